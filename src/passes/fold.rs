//! Folding what is constant, and dropping what nobody needs.

use crate::error::Result;
use crate::graph::{Graph, ValueId};
use crate::ops::{Facts, Lowering, infer_node, lower_node, resolve};
use crate::tensor::known_shape;
use std::collections::HashSet;

/// Larger results stay computed, so that a file does not grow by its folding.
const LIMIT: usize = 1 << 16;

/// Replaces nodes whose inputs are all constant by initializers. Values of `keep` (parameters to be) are not taken
/// for constants.
pub fn constants(graph: &mut Graph, keep: &HashSet<ValueId>) -> Result<()> {
    let mut facts = Facts::default();
    for (id, tensor) in &graph.initializers {
        if !keep.contains(id) && !graph.inputs.contains(id) {
            facts.set_constant(*id, tensor.clone());
        }
    }
    let (mut kept, mut folded) = (Vec::new(), Vec::new());
    for node in std::mem::take(&mut graph.nodes) {
        let constant = node.inputs.iter().flatten().all(|id| facts.constant(*id).is_some());
        if constant && node.outputs.iter().flatten().all(|id| !graph.outputs.contains(id)) {
            let op = resolve(graph, &node)?;
            infer_node(graph, &node, &*op, &mut facts)?;
            let small = node.outputs.iter().flatten().all(|id| {
                let shape = facts.ty(*id).and_then(|ty| known_shape(ty.shape.as_deref()?));
                shape.is_some_and(|s| s.iter().product::<usize>() <= LIMIT)
            });
            if small {
                lower_node(graph, &node, &*op, &mut facts, &mut Lowering::default())?;
            }
            let results: Vec<_> = node.outputs.iter().flatten().map(|id| (*id, facts.constant(*id).cloned())).collect();
            if results.iter().all(|(_, tensor)| tensor.is_some()) {
                folded.extend(results.into_iter().filter_map(|(id, tensor)| Some((id, tensor?))));
                continue;
            }
        }
        kept.push(node);
    }
    graph.nodes = kept;
    graph.initializers.extend(folded);
    drop_dead(graph);
    Ok(())
}

/// Drops nodes and initializers that no output needs. Graph inputs stay, and so do nodes that write in place.
pub fn drop_dead(graph: &mut Graph) {
    let mut needed: HashSet<ValueId> = graph.outputs.iter().copied().collect();
    let mut kept = Vec::new();
    for node in std::mem::take(&mut graph.nodes).into_iter().rev() {
        if node.outputs.iter().flatten().any(|id| needed.contains(id)) {
            needed.extend(node.inputs.iter().flatten());
            kept.push(node);
        }
    }
    kept.reverse();
    graph.nodes = kept;
    graph.initializers.retain(|(id, _)| needed.contains(id));
}
