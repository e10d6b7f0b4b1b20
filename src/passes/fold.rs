//! Computing what is the same at every run, and dropping what nothing needs.

use crate::error::Result;
use crate::graph::{Graph, Node, TensorType, ValueId, ValueType};
use crate::ops::{Facts, Lowering, infer_node, lower_node, resolve};
use crate::tensor::known_shape;
use std::collections::HashSet;

/// A folded result may have this many bytes even if the operands have fewer: a file should not grow
/// because an Expand or ConstantOfShape in it was computed early.
const SMALL: usize = 1 << 16;

/// Replaces nodes whose operands are all constant by initializers under the names of their outputs.
/// `Shape` and `Size` of values whose sizes are all known are folded too.
///
/// Values in `keep` (parameters) are not taken for constants, nor is what depends on them, nor are graph
/// inputs with a default. Nodes that ontrain does not know, that draw random numbers or whose results are much
/// larger than their operands stay.
///
/// # Errors
/// Those of type inference and of computing the constants: what could not run anyway.
pub fn constants(graph: &mut Graph, keep: &HashSet<ValueId>) -> Result<()> {
    let mut facts = Facts::of(graph);
    for &id in keep {
        facts.forget(id);
    }
    let mut kept = Vec::with_capacity(graph.nodes.len());
    for node in std::mem::take(&mut graph.nodes) {
        if !fold_node(graph, &node, &mut facts)? {
            kept.push(node);
        }
    }
    graph.nodes = kept;
    Ok(())
}

/// Folds one node if that can be done; `facts` know its outputs afterwards.
fn fold_node(graph: &mut Graph, node: &Node, facts: &mut Facts) -> Result<bool> {
    let Ok(op) = resolve(graph, node) else { return Ok(false) };
    infer_node(graph, node, &*op, facts)?;
    let constant = node.inputs.iter().flatten().all(|&id| facts.constant(id).is_some());
    if !constant && !sizes_only(node, facts) {
        return Ok(false);
    }
    let operands: usize =
        node.inputs.iter().flatten().filter_map(|&id| facts.constant(id)).map(|t| t.bytes().len()).sum();
    let limit = operands.max(SMALL);
    let outputs: Vec<ValueId> = node.outputs.iter().flatten().copied().collect();
    if outputs.iter().any(|&id| bytes(facts, id).is_none_or(|n| n > limit)) {
        return Ok(false);
    }
    lower_node(graph, node, &*op, facts, &mut Lowering::default())?;
    if outputs.iter().any(|&id| facts.constant(id).is_none()) {
        return Ok(false);
    }
    for id in outputs {
        if let Some(tensor) = facts.constant(id).cloned() {
            graph.value_mut(id).ty = Some(ValueType::Tensor(TensorType::of(&tensor)));
            graph.initializers.push((id, tensor));
        }
    }
    Ok(true)
}

/// Does the node read only the sizes of its operand, which are known?
fn sizes_only(node: &Node, facts: &Facts) -> bool {
    let operand = node.inputs.first().copied().flatten().and_then(|id| facts.ty(id));
    let known = operand.and_then(|ty| ty.shape.as_deref().and_then(known_shape)).is_some();
    known && node.domain.is_empty() && matches!(&*node.op_type, "Shape" | "Size")
}

/// The bytes of a value of known sizes.
fn bytes(facts: &Facts, id: ValueId) -> Option<usize> {
    let ty = facts.ty(id)?;
    let shape = ty.shape.as_deref().and_then(known_shape)?;
    shape.iter().try_fold(ty.dtype.size(), |n, &d| n.checked_mul(d))
}

/// Drops nodes and initializers that no graph output needs. Graph inputs stay, with their defaults.
pub fn drop_dead(graph: &mut Graph) {
    let mut needed = vec![false; graph.value_count()];
    for id in &graph.outputs {
        needed[id.index()] = true;
    }
    let mut live = vec![false; graph.nodes.len()];
    for (node, live) in graph.nodes.iter().zip(&mut live).rev() {
        *live = node.outputs.iter().flatten().any(|id| needed[id.index()]);
        if *live {
            node.inputs.iter().flatten().for_each(|id| needed[id.index()] = true);
        }
    }
    for id in &graph.inputs {
        needed[id.index()] = true;
    }
    let mut live = live.into_iter();
    graph.nodes.retain(|_| live.next() == Some(true));
    graph.initializers.retain(|(id, _)| needed[id.index()]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::{DType, Tensor};

    fn node(graph: &mut Graph, op: &str, inputs: &[&str], output: &str) {
        let inputs = inputs.iter().map(|n| Some(graph.find(n).unwrap())).collect();
        let outputs = vec![Some(graph.add_value(output, None).unwrap())];
        let (name, op_type) = (output.into(), op.into());
        graph.nodes.push(Node {
            name,
            domain: String::new(),
            op_type,
            inputs,
            outputs,
            attributes: Default::default(),
        });
    }

    /// y = x + (w + (a + b)), d = a * b unused.
    fn model() -> Graph {
        let mut graph = Graph::new("fold", 17);
        graph.add_input("x", TensorType::new(DType::F32, [crate::tensor::Dim::symbol("batch"), 2.into()])).unwrap();
        for (name, value) in [("a", 1.0f32), ("b", 2.0), ("w", 3.0)] {
            graph.add_initializer(name, Tensor::new(&[2], &[value, value]).unwrap()).unwrap();
        }
        node(&mut graph, "Add", &["a", "b"], "ab");
        node(&mut graph, "Add", &["w", "ab"], "wab");
        node(&mut graph, "Mul", &["a", "b"], "d");
        node(&mut graph, "Add", &["x", "wab"], "y");
        graph.outputs = vec![graph.find("y").unwrap()];
        graph
    }

    fn names(graph: &Graph) -> (Vec<&str>, Vec<&str>) {
        let nodes = graph.nodes.iter().map(|n| n.name.as_str()).collect();
        (nodes, graph.initializers.iter().map(|(id, _)| graph.name_of(*id)).collect())
    }

    #[test]
    fn constants_are_computed_but_not_parameters() {
        let mut graph = model();
        let keep = HashSet::from([graph.find("w").unwrap()]);
        constants(&mut graph, &keep).unwrap();
        assert_eq!(names(&graph), (vec!["wab", "y"], vec!["a", "b", "w", "ab", "d"]));
        let sum = graph.initializer(graph.find("ab").unwrap()).unwrap();
        assert_eq!(sum.as_slice::<f32>().unwrap(), [3.0, 3.0]);
        drop_dead(&mut graph);
        assert_eq!(names(&graph), (vec!["wab", "y"], vec!["w", "ab"]));
        let mut graph = model();
        constants(&mut graph, &HashSet::new()).unwrap();
        drop_dead(&mut graph);
        assert_eq!(names(&graph), (vec!["y"], vec!["wab"]));
    }

    #[test]
    fn unknown_operators_stay() {
        let mut graph = model();
        graph.nodes[0].op_type = "Unheard".into();
        constants(&mut graph, &HashSet::new()).unwrap();
        assert_eq!(names(&graph).0, ["ab", "wab", "y"]);
    }
}
