//! Parameters behind Identity: exporters share one initializer between equal tensors and give the other
//! names through Identity nodes.

use crate::graph::{Graph, ValueId};

/// Gives every value of `names` that is an initializer behind Identity nodes its own copy, as an initializer
/// under its own name. Other names are left as they are.
pub fn untie(graph: &mut Graph, names: &[String]) {
    for name in names {
        let Some(id) = graph.find(name) else { continue };
        if let Some(tensor) = behind_identity(graph, id).and_then(|source| graph.initializer(source)).cloned() {
            graph.nodes.retain(|n| !n.outputs.contains(&Some(id)));
            graph.initializers.push((id, tensor));
        }
    }
}

/// The value that a chain of Identity nodes passes on as `id`, if there is at least one such node.
fn behind_identity(graph: &Graph, id: ValueId) -> Option<ValueId> {
    let mut at = id;
    loop {
        let writes = |n: &&crate::graph::Node| n.outputs.first() == Some(&Some(at));
        match graph.nodes.iter().find(writes) {
            Some(n) if n.domain.is_empty() && n.op_type == "Identity" => at = n.inputs.first().copied().flatten()?,
            _ => return (at != id).then_some(at),
        }
    }
}
