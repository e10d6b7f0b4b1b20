//! Parameters that hide behind Identity. PyTorch's exporter writes initializers of equal value once and
//! gives the others' names to the outputs of Identity nodes; to train them apart they must be untied.

use crate::graph::{Graph, Node, TensorType, ValueId, ValueType};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Makes every value of `names` that is the output of a chain of Identity nodes on an initializer an
/// initializer itself: a copy under its own name, after those that are there. The nodes that wrote
/// them are dropped. Names that are initializers already, that are something else or that the graph does not
/// have change nothing.
pub fn untie(graph: &mut Graph, names: &[impl AsRef<str>]) {
    let producers = graph.producers();
    let mut dropped = vec![false; graph.nodes.len()];
    for name in names {
        let Some(id) = graph.find(name.as_ref()) else { continue };
        let Some(node) = producers.get(id.index()).copied().flatten() else { continue };
        let Some(tensor) = source(graph, &producers, id).filter(|_| !dropped[node]) else { continue };
        graph.value_mut(id).ty = Some(ValueType::Tensor(TensorType::of(&tensor)));
        graph.initializers.push((id, tensor));
        dropped[node] = true;
    }
    let mut at = dropped.iter();
    graph.nodes.retain(|_| !at.next().copied().unwrap_or(false));
}

/// The initializer at the end of the chain of Identity nodes that writes `id`.
fn source(graph: &Graph, producers: &[Option<usize>], mut id: ValueId) -> Option<Arc<Tensor>> {
    loop {
        // Nodes are in topological order, so the chain ends.
        let node = &graph.nodes[producers.get(id.index()).copied().flatten()?];
        id = operand(node)?;
        if let Some(tensor) = graph.initializer(id) {
            return Some(tensor.clone());
        }
    }
}

/// What an Identity node passes on.
fn operand(node: &Node) -> Option<ValueId> {
    let identity = node.domain.is_empty() && node.op_type == "Identity";
    if identity { node.inputs.first().copied().flatten() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// w → a → b, w → c by Identity; r = Relu(w).
    fn tied() -> Graph {
        let mut graph = Graph::new("tied", 17);
        graph.add_initializer("w", Tensor::new(&[2], &[1.0f32, 2.0]).unwrap()).unwrap();
        for (from, op, to) in
            [("w", "Identity", "a"), ("a", "Identity", "b"), ("w", "Identity", "c"), ("w", "Relu", "r")]
        {
            let from = graph.find(from);
            let to = graph.add_value(to, None).unwrap();
            graph.nodes.push(Node {
                name: String::new(),
                domain: String::new(),
                op_type: op.into(),
                inputs: vec![from],
                outputs: vec![Some(to)],
                attributes: Default::default(),
            });
        }
        graph.outputs = ["b", "c", "r"].iter().map(|n| graph.find(n).unwrap()).collect();
        graph
    }

    #[test]
    fn each_name_gets_its_own_copy() {
        let mut graph = tied();
        untie(&mut graph, &["b", "w", "r", "nothing", "b"]);
        let names: Vec<_> = graph.initializers.iter().map(|(id, _)| graph.show(*id)).collect();
        assert_eq!(names, ["w: float32[2]", "b: float32[2]"]);
        assert_eq!(graph.nodes.len(), 3, "the node that wrote b is gone, the others stay");
        let value = graph.initializer(graph.find("b").unwrap()).unwrap();
        assert_eq!(value.as_slice::<f32>().unwrap(), [1.0, 2.0]);
        untie(&mut graph, &["a", "c"]);
        assert_eq!((graph.initializers.len(), graph.nodes.len()), (4, 1));
    }
}
