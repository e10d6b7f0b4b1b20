//! Optimizer models take sequences of tensors (`params`, `gradients`, `first_order_moments`, …).
//! ontrain computes with tensors only: once the number of parameters is known, each sequence becomes
//! that many tensors.

use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, TensorType, ValueId, ValueType};
use crate::tensor::DType;
use std::collections::HashMap;

/// The tensors of each sequence.
type Members = HashMap<ValueId, Vec<ValueId>>;

/// Rewrites an optimizer graph for parameters of these `shapes`, all of `dtype`.
///
/// - Each graph input of sequence type becomes, in its place, `shapes.len()` tensor inputs named
///   `{sequence}.{i}`, whether a node reads it or not.
/// - `com.microsoft.AdamWOptimizer` reads `[lr, step, w…, g…, m…, v…]` (and then `update_signal`, if it is
///   there), `com.microsoft.SGDOptimizerV2` `[lr, w…, g…]`: the order of ONNX Runtime's inputs, flattened.
/// - `com.microsoft.InplaceClipGradNorm` reads and writes as many tensors; its outputs are `{output}.{i}`.
/// - `SequenceConstruct`, `SequenceAt` (by a constant position) and `Identity` of sequences disappear.
///
/// Errors: `Unsupported`, naming the node, for any other use of a sequence and for graph outputs that are
/// sequences; `Shape` for a sequence of another dtype; `Graph` for a name that is taken and if `shapes` is
/// empty.
pub fn expand(graph: &mut Graph, shapes: &[Vec<usize>], dtype: DType) -> Result<()> {
    let mut members = expand_inputs(graph, shapes, dtype)?;
    let nodes = std::mem::take(&mut graph.nodes);
    let mut kept = Vec::with_capacity(nodes.len());
    for mut node in nodes {
        let path = node.path(graph);
        if rewrite(graph, &mut node, &mut members, shapes.len()).map_err(|e| e.at(path))? {
            kept.push(node);
        }
    }
    graph.nodes = kept;
    match graph.outputs.iter().find(|&&id| is_sequence(graph, &members, id)) {
        Some(&id) => bail!(Unsupported, "the graph output \"{}\" is a sequence of tensors", graph.name_of(id)),
        None => Ok(()),
    }
}

/// Replaces the graph's sequence inputs.
fn expand_inputs(graph: &mut Graph, shapes: &[Vec<usize>], dtype: DType) -> Result<Members> {
    let mut members = Members::new();
    for id in std::mem::take(&mut graph.inputs) {
        let Some(ValueType::Sequence(found)) = graph.value(id).ty else {
            graph.inputs.push(id);
            continue;
        };
        let name = graph.name_of(id).to_owned();
        if found != dtype {
            return Err(err!(Shape, "the sequence \"{name}\" is of another dtype than the parameters")
                .expected(dtype)
                .found(found));
        }
        if shapes.is_empty() {
            bail!(Graph, "the sequence \"{name}\" would have no tensors: there are no parameters to train");
        }
        let mut tensors = Vec::with_capacity(shapes.len());
        for (i, shape) in shapes.iter().enumerate() {
            tensors.push(graph.add_input(&format!("{name}.{i}"), TensorType::known(dtype, shape))?);
        }
        members.insert(id, tensors);
    }
    Ok(members)
}

fn is_sequence(graph: &Graph, members: &Members, id: ValueId) -> bool {
    members.contains_key(&id) || matches!(graph.value(id).ty, Some(ValueType::Sequence(_)))
}

/// Rewrites one node; `false` if nothing is left of it.
fn rewrite(graph: &mut Graph, node: &mut Node, members: &mut Members, count: usize) -> Result<bool> {
    let mut operands = node.inputs.iter().chain(&node.outputs).flatten();
    let construct = node.domain.is_empty() && node.op_type == "SequenceConstruct";
    if !construct && !operands.any(|&id| is_sequence(graph, members, id)) {
        return Ok(true);
    }
    match (&*node.domain, &*node.op_type) {
        ("", "Identity") => {
            let (from, to) = (sequence(node, members, 0)?, output(node)?);
            members.insert(to, from);
            Ok(false)
        }
        ("", "SequenceConstruct") => {
            members.insert(output(node)?, flat(node, members)?);
            Ok(false)
        }
        ("", "SequenceAt") => {
            let all = sequence(node, members, 0)?;
            let member = all[position(graph, node, all.len())?];
            node.op_type = "Identity".into();
            node.inputs = vec![Some(member)];
            Ok(true)
        }
        ("com.microsoft", "AdamWOptimizer") => optimizer(node, members, &[2, 3, 4, 5], count),
        ("com.microsoft", "SGDOptimizerV2") => optimizer(node, members, &[1, 2], count),
        ("com.microsoft", "InplaceClipGradNorm") => {
            let (from, to) = (sequence(node, members, 0)?, output(node)?);
            let stem = graph.name_of(to).to_owned();
            let mut clipped = Vec::with_capacity(from.len());
            for (i, &id) in from.iter().enumerate() {
                let ty = graph.value(id).ty.clone();
                clipped.push(graph.add_value(&format!("{stem}.{i}"), ty)?);
            }
            node.inputs = from.into_iter().map(Some).collect();
            node.outputs = clipped.iter().copied().map(Some).collect();
            members.insert(to, clipped);
            Ok(true)
        }
        _ => Err(err!(Unsupported, "{} on a sequence of tensors", node.op_type)),
    }
}

/// An optimizer's operands, flattened where they are sequences, each of which must have `count` tensors.
fn optimizer(node: &mut Node, members: &Members, sequences: &[usize], count: usize) -> Result<bool> {
    for &i in sequences {
        let len = sequence(node, members, i)?.len();
        if len != count {
            return Err(err!(Graph, "input {i} has not one tensor for each parameter").expected(count).found(len));
        }
    }
    if node.outputs.iter().skip(1).any(Option::is_some) {
        bail!(Unsupported, "{} with outputs beside the flag: tensors are updated in place", node.op_type);
    }
    node.outputs.truncate(1);
    let last = node.inputs.iter().rposition(Option::is_some).map_or(0, |i| i + 1);
    node.inputs.truncate(last);
    node.inputs = flat(node, members)?.into_iter().map(Some).collect();
    Ok(true)
}

/// All operands of a node, sequences flattened. Fails if one is left out.
fn flat(node: &Node, members: &Members) -> Result<Vec<ValueId>> {
    let mut out = Vec::new();
    for (i, id) in node.inputs.iter().enumerate() {
        match id {
            Some(id) => match members.get(id) {
                Some(tensors) => out.extend(tensors),
                None => out.push(*id),
            },
            None => bail!(Graph, "input {i} is required and missing"),
        }
    }
    Ok(out)
}

/// The tensors of the sequence that input `i` is.
fn sequence(node: &Node, members: &Members, i: usize) -> Result<Vec<ValueId>> {
    let id = node.inputs.get(i).copied().flatten();
    let tensors = id.and_then(|id| members.get(&id)).cloned();
    tensors.ok_or_else(|| {
        err!(Unsupported, "input {i} must be a sequence of tensors that a graph input or SequenceConstruct gives")
    })
}

fn output(node: &Node) -> Result<ValueId> {
    let id = node.outputs.first().copied().flatten();
    id.ok_or_else(|| err!(Graph, "output 0 is required and missing"))
}

/// The constant position that a SequenceAt reads.
fn position(graph: &Graph, node: &Node, len: usize) -> Result<usize> {
    let constant = node.inputs.get(1).copied().flatten().and_then(|id| graph.initializer(id));
    let Some(at) = constant.and_then(|t| t.to_i64s()?.first().copied()) else {
        bail!(Unsupported, "SequenceAt with a position that is not a constant");
    };
    let from_start = if at < 0 { at.checked_add(len as i64) } else { Some(at) };
    let found = from_start.and_then(|i| usize::try_from(i).ok()).filter(|&i| i < len);
    found.ok_or_else(|| err!(Graph, "position out of range").expected(format!("-{len}..{len}")).found(at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    /// An optimizer model as onnxblock writes it: sequence inputs, and these nodes
    /// `(domain, operator, inputs, outputs)`.
    fn model(sequences: &[&str], nodes: &[(&str, &str, &[&str], &[&str])], output: &str) -> Graph {
        let mut graph = Graph::new("optimizer", 17);
        graph.opsets.insert("com.microsoft".into(), 1);
        graph.add_input("learning_rate", TensorType::known(DType::F32, &[1])).unwrap();
        graph.add_input("step", TensorType::known(DType::I64, &[1])).unwrap();
        graph.add_initializer("minus_one", Tensor::scalar(-1i64)).unwrap();
        graph.add_initializer("two", Tensor::scalar(2i64)).unwrap();
        for name in sequences {
            let id = graph.add_value(name, Some(ValueType::Sequence(DType::F32))).unwrap();
            graph.inputs.push(id);
        }
        for &(domain, op, inputs, outputs) in nodes {
            let inputs = inputs.iter().map(|n| graph.find(n)).collect();
            let outputs = outputs.iter().map(|n| Some(graph.add_value(n, None).unwrap())).collect();
            let (domain, op_type) = (domain.into(), op.into());
            graph.nodes.push(Node {
                name: op.into(),
                domain,
                op_type,
                inputs,
                outputs,
                attributes: Default::default(),
            });
        }
        graph.outputs = vec![graph.find(output).unwrap()];
        graph
    }

    fn names(graph: &Graph, ids: &[Option<ValueId>]) -> String {
        ids.iter().map(|id| graph.name_of(id.unwrap())).collect::<Vec<_>>().join(" ")
    }

    const ALL: [&str; 4] = ["params", "gradients", "first_order_moments", "second_order_moments"];
    const ADAMW: [&str; 6] =
        ["learning_rate", "step", "params", "gradients", "first_order_moments", "second_order_moments"];

    #[test]
    fn adamw() {
        let mut graph = model(&ALL, &[("com.microsoft", "AdamWOptimizer", &ADAMW, &["flag"])], "flag");
        expand(&mut graph, &[vec![2, 3], vec![]], DType::F32).unwrap();
        let inputs: Vec<_> = graph.inputs.iter().map(|&id| graph.show(id)).collect();
        assert_eq!(
            inputs[..5].join(" "),
            "learning_rate: float32[1] step: int64[1] params.0: float32[2,3] params.1: float32[] gradients.0: float32[2,3]"
        );
        assert_eq!(inputs.len(), 10);
        let reads = "learning_rate step params.0 params.1 gradients.0 gradients.1 first_order_moments.0 first_order_moments.1 \
                     second_order_moments.0 second_order_moments.1";
        assert_eq!(names(&graph, &graph.nodes[0].inputs), reads);
        assert_eq!(names(&graph, &graph.nodes[0].outputs), "flag");
    }

    #[test]
    fn sgd_with_clipping() {
        let nodes: [(&str, &str, &[&str], &[&str]); 2] = [
            ("com.microsoft", "InplaceClipGradNorm", &["gradients"], &["clipped"]),
            ("com.microsoft", "SGDOptimizerV2", &["learning_rate", "params", "clipped"], &["flag"]),
        ];
        let mut graph = model(&ALL[..3], &nodes, "flag");
        expand(&mut graph, &[vec![2], vec![3]], DType::F32).unwrap();
        assert_eq!(graph.inputs.len(), 8, "moments that nobody reads are expanded too");
        assert_eq!(names(&graph, &graph.nodes[0].inputs), "gradients.0 gradients.1");
        assert_eq!(names(&graph, &graph.nodes[0].outputs), "clipped.0 clipped.1");
        assert_eq!(graph.show(graph.find("clipped.1").unwrap()), "clipped.1: float32[3]");
        assert_eq!(names(&graph, &graph.nodes[1].inputs), "learning_rate params.0 params.1 clipped.0 clipped.1");
    }

    #[test]
    fn sequence_operators_disappear() {
        let nodes: [(&str, &str, &[&str], &[&str]); 4] = [
            ("", "Identity", &["gradients"], &["same"]),
            ("", "SequenceAt", &["same", "minus_one"], &["last"]),
            ("", "SequenceConstruct", &["last", "learning_rate"], &["made"]),
            ("com.microsoft", "SGDOptimizerV2", &["learning_rate", "params", "made"], &["flag"]),
        ];
        let mut graph = model(&ALL[..2], &nodes, "flag");
        expand(&mut graph, &[vec![2], vec![3]], DType::F32).unwrap();
        assert_eq!(graph.nodes.len(), 2);
        assert_eq!((&*graph.nodes[0].op_type, &*names(&graph, &graph.nodes[0].inputs)), ("Identity", "gradients.1"));
        assert_eq!(names(&graph, &graph.nodes[1].inputs), "learning_rate params.0 params.1 last learning_rate");
    }

    #[test]
    fn refusals() {
        let fails = |nodes: &[(&str, &str, &[&str], &[&str])], output: &str, shapes: &[Vec<usize>], dtype| {
            let mut graph = model(&ALL, nodes, output);
            format!("{:?}", expand(&mut graph, shapes, dtype).unwrap_err())
        };
        let one = [vec![2]];
        let adamw: [(&str, &str, &[&str], &[&str]); 1] = [("com.microsoft", "AdamWOptimizer", &ADAMW, &["flag"])];
        assert!(fails(&adamw, "flag", &one, DType::F64).contains("expected float64; found float32"));
        assert!(fails(&adamw, "flag", &[], DType::F32).contains("no parameters"));
        assert!(fails(&adamw, "params", &one, DType::F32).contains("graph output \"params\" is a sequence"));
        let length = fails(&[("", "SequenceLength", &["params"], &["n"])], "n", &one, DType::F32);
        assert!(length.starts_with("[Unsupported] SequenceLength node"), "{length}");
        assert!(
            fails(&[("", "SequenceAt", &["params", "two"], &["p"])], "p", &one, DType::F32)
                .contains("expected -1..1; found 2")
        );
        assert!(
            fails(&[("", "SequenceAt", &["params", "step"], &["p"])], "p", &one, DType::F32).contains("not a constant")
        );
        let outputs: [(&str, &str, &[&str], &[&str]); 1] =
            [("com.microsoft", "AdamWOptimizer", &ADAMW, &["flag", "weights"])];
        assert!(fails(&outputs, "flag", &one, DType::F32).contains("in place"));
        let short: [(&str, &str, &[&str], &[&str]); 2] = [
            ("", "SequenceConstruct", &["learning_rate", "learning_rate"], &["two_gradients"]),
            ("com.microsoft", "SGDOptimizerV2", &["learning_rate", "params", "two_gradients"], &["flag"]),
        ];
        assert!(fails(&short, "flag", &one, DType::F32).contains("expected 1; found 2"));
        let tensors: [(&str, &str, &[&str], &[&str]); 1] =
            [("com.microsoft", "SGDOptimizerV2", &["learning_rate", "params", "step"], &["flag"])];
        assert!(fails(&tensors, "flag", &one, DType::F32).contains("input 2 must be a sequence"));
    }
}
