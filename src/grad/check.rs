//! Gradients against finite differences, in f64.

use super::differentiate;
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Graph, TensorType, ValueId, ValueType};
use crate::kernel::RunContext;
use crate::ops::{Facts, infer_graph, interpret};
use crate::tensor::{DType, Tensor};
use std::sync::Arc;

/// The outcome of [`check_gradients`] for one input.
#[derive(Clone, Debug)]
pub struct Check {
    /// The input's name.
    pub name: String,
    /// Largest difference between the two gradients, over the largest magnitude of either
    /// (at least 1).
    pub error: f64,
    /// The element where it is.
    pub element: usize,
    /// The gradient there by the rules.
    pub analytic: f64,
    /// The gradient there by central differences.
    pub numeric: f64,
}

/// Compares the gradients that ontrain builds with central differences.
///
/// All floating values of the graph are computed in f64 (Cast to a float type becomes Cast to f64).
/// The loss is the sum over all floating outputs of `output * r` for fixed pseudo-random `r`, so that
/// every element of every output counts. Differences are the fourth-order central formula
/// `(8 (f(x+h) - f(x-h)) - (f(x+2h) - f(x-2h))) / 12h` with `h = 1e-3 max(1, |x|)`.
///
/// `inputs` are in the order of `graph.inputs`; `wrt` are names of graph inputs or initializers; at most
/// `samples` elements of each are tried, spread evenly. Non-differentiable points (kinks closer
/// than `2h`) are the caller's to avoid.
pub fn check_gradients(graph: &Graph, inputs: &[Tensor], wrt: &[&str], samples: usize) -> Result<Vec<Check>> {
    let mut graph = to_f64(graph);
    let mut inputs: Vec<Tensor> = inputs.iter().map(tensor_to_f64).collect::<Result<_>>()?;
    // Initializers that are asked for become inputs, so that they can be moved.
    for name in wrt {
        let id = graph.find(name).ok_or_else(|| err!(Graph, "there is no value \"{name}\""))?;
        if let Some(at) = graph.initializers.iter().position(|(v, _)| *v == id) {
            let (_, tensor) = graph.initializers.remove(at);
            graph.inputs.push(id);
            inputs.push((*tensor).clone());
        } else if !graph.inputs.contains(&id) {
            bail!(Graph, "\"{name}\" is neither an input nor an initializer");
        }
    }
    for (id, tensor) in graph.inputs.clone().into_iter().zip(&inputs) {
        graph.value_mut(id).ty = Some(ValueType::Tensor(TensorType::of(tensor)));
    }
    let mut facts = infer_graph(&mut graph)?;
    let loss = project(&mut graph, &mut facts, &inputs)?;
    let ids: Vec<ValueId> = wrt.iter().map(|name| graph.find(name).expect("found above")).collect();
    let mut forward = graph.clone();
    forward.outputs = vec![loss];
    let gradients = differentiate(&mut graph, &mut facts, loss, &ids)?;
    graph.outputs = gradients;
    let run = |graph: &Graph, inputs: &[Tensor]| {
        let inputs: Vec<_> = inputs.iter().cloned().map(Some).collect();
        interpret(graph, &inputs, &RunContext::new(1, 1))
    };
    let analytic = run(&graph, &inputs)?;
    let mut checks = Vec::new();
    for ((name, id), gradient) in wrt.iter().zip(&ids).zip(&analytic) {
        let at = graph.inputs.iter().position(|v| v == id).expect("made an input above");
        let gradient = gradient.to_f64s();
        if gradient.len() != inputs[at].len() {
            return Err(err!(Gradient, "the gradient of \"{name}\" has the wrong size")
                .expected(inputs[at].len())
                .found(gradient.len()));
        }
        let (mut worst, mut scale) = ((-1.0, 0, 0.0, 0.0), 1.0f64);
        for element in pick(inputs[at].len(), samples) {
            let x = inputs[at].to_f64s()[element];
            let h = 1e-3 * x.abs().max(1.0);
            let mut f = |value: f64| -> Result<f64> {
                inputs[at].as_mut_slice::<f64>().expect("all floats are f64")[element] = value;
                Ok(run(&forward, &inputs)?[0].to_f64s()[0])
            };
            let numeric = (8.0 * (f(x + h)? - f(x - h)?) - (f(x + 2.0 * h)? - f(x - 2.0 * h)?)) / (12.0 * h);
            f(x)?;
            let error = (gradient[element] - numeric).abs();
            scale = scale.max(numeric.abs()).max(gradient[element].abs());
            if !error.is_finite() || error > worst.0 {
                worst = (if error.is_nan() { f64::INFINITY } else { error }, element, gradient[element], numeric);
            }
        }
        checks.push(Check {
            name: (*name).into(),
            error: worst.0.max(0.0) / scale,
            element: worst.1,
            analytic: worst.2,
            numeric: worst.3,
        });
    }
    Ok(checks)
}

/// At most `samples` positions below `len`, spread evenly.
fn pick(len: usize, samples: usize) -> impl Iterator<Item = usize> {
    let count = len.min(samples);
    (0..count).map(move |i| i * len / count)
}

fn tensor_to_f64(tensor: &Tensor) -> Result<Tensor> {
    if tensor.dtype().is_float() {
        Tensor::from_f64s(DType::F64, tensor.shape(), &tensor.to_f64s())
    } else {
        Ok(tensor.clone())
    }
}

/// The graph with every floating type made f64.
fn to_f64(graph: &Graph) -> Graph {
    let mut graph = graph.clone();
    for (_, tensor) in &mut graph.initializers {
        *tensor = Arc::new(tensor_to_f64(tensor).expect("a tensor's own shape fits"));
    }
    for i in 0..graph.value_count() {
        if let Some(ValueType::Tensor(ty)) = &mut graph.value_mut(ValueId(i as u32)).ty
            && ty.dtype.is_float()
        {
            ty.dtype = DType::F64;
        }
    }
    for node in &mut graph.nodes {
        for attribute in node.attributes.values_mut() {
            if let Attribute::Tensor(tensor) = attribute {
                *tensor = Arc::new(tensor_to_f64(tensor).expect("a tensor's own shape fits"));
            }
        }
        if node.op_type == "Cast"
            && let Some(Attribute::Int(to)) = node.attributes.get_mut("to")
            && DType::from_onnx(*to as i32).is_ok_and(DType::is_float)
        {
            *to = DType::F64.onnx() as i64;
        }
    }
    graph
}

/// Adds `sum over outputs of sum(output * r)`, computing each output's size from a first run.
fn project(graph: &mut Graph, facts: &mut Facts, inputs: &[Tensor]) -> Result<ValueId> {
    let wrapped: Vec<_> = inputs.iter().cloned().map(Some).collect();
    let values = interpret(graph, &wrapped, &RunContext::new(1, 1))?;
    let outputs = graph.outputs.clone();
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64 + 0.5
    };
    let mut total: Option<ValueId> = None;
    let mut builder = crate::ops::Builder { graph, facts, stem: "projection".into() };
    for (id, value) in outputs.into_iter().zip(values) {
        if !value.dtype().is_float() {
            continue;
        }
        let weights: Vec<f64> = (0..value.len()).map(|_| random()).collect();
        let weights = builder.tensor(Tensor::from_f64s(DType::F64, value.shape(), &weights)?);
        let product = builder.mul(id, weights)?;
        let sum = builder.op_with("ReduceSum", &[product], &[("keepdims", Attribute::Int(0))])?;
        total = Some(match total {
            Some(t) => builder.add_(t, sum)?,
            None => sum,
        });
    }
    total.ok_or_else(|| err!(Gradient, "no output is floating point"))
}
