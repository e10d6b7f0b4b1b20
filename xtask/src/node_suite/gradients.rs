//! Gradients of the cases of the node suite.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ontrain::error::{Kind, err};
use ontrain::grad::{check_gradients, differentiate};
use ontrain::graph::{Attribute, Graph, TensorType, ValueId, ValueType};
use ontrain::kernel::RunContext;
use ontrain::onnx::{WriteOptions, write};
use ontrain::ops::{Builder, infer_graph, interpret};
use ontrain::tensor::{DType, Tensor};

use super::{Backward, data_sets, entry, feed, load, random, tensors};
use crate::replay::engine::Engine;

/// Largest error of a gradient against differences, relative.
const GRADIENT: f64 = 1e-6;
/// Elements of each input whose gradient is checked by differences.
const SAMPLES: usize = 24;

/// Gradients of all floating inputs, if the graph is differentiable.
pub(super) fn backward(case: &Path, engine: &mut dyn Engine) -> Result<Backward> {
    let Ok(graph) = load(case)? else { bail!("the case was run and cannot be loaded") };
    let without: BTreeSet<&str> = graph
        .nodes
        .iter()
        .filter(|n| !entry(&n.domain, &n.op_type).is_some_and(|e| e.gradient))
        .map(|n| &*n.op_type)
        .collect();
    let set = data_sets(case)?.into_iter().next().context("the case has no data")?;
    let Ok(inputs) = tensors(&set, "input")? else { bail!("the case was run and its inputs cannot be read") };
    let names = graph.inputs.iter().map(|id| graph.name_of(*id).to_owned());
    let floats: Vec<String> =
        names.zip(&inputs).filter(|(_, t)| t.dtype().is_float() && !t.is_empty()).map(|(name, _)| name).collect();
    let any_output = graph.outputs.iter().any(|id| graph.tensor_type(*id).is_none_or(|ty| ty.dtype.is_float()));
    if floats.is_empty() || !any_output {
        return Ok(Backward::None("no floating input or output".into()));
    }
    if random(&graph, &feed(&graph, inputs.clone())?, &[]).unwrap_or(false) {
        return Ok(Backward::None("random".into()));
    }
    let outcome = match engine.name() {
        "cpu" => differences(&graph, &inputs, &floats)?,
        _ => plain(&graph, &inputs, &floats, engine)?,
    };
    let Backward::None(reasons) = outcome else { return Ok(outcome) };
    match without.is_empty() {
        true => Ok(Backward::None(reasons)),
        false => Ok(Backward::None(format!("no gradient of {}", without.into_iter().collect::<Vec<_>>().join(", ")))),
    }
}

/// The graph, and the graph of its first output: statistics that some operators give besides have no gradient.
fn parts(graph: &Graph) -> Vec<Graph> {
    let mut first = graph.clone();
    first.outputs.truncate(1);
    if graph.outputs.len() > 1 { vec![graph.clone(), first] } else { vec![first] }
}

/// Gradients in f64 against finite differences.
fn differences(graph: &Graph, inputs: &[Tensor], names: &[String]) -> Result<Backward> {
    let (parts, mut checked, mut reasons) = (parts(graph), false, Vec::new());
    for name in names {
        let mut outcome = Backward::None(String::new());
        for part in &parts {
            if let Backward::None(_) = outcome {
                outcome = input_gradient(part, inputs, name)?;
            }
        }
        match outcome {
            Backward::Checked => checked = true,
            Backward::Failed(reason) => return Ok(Backward::Failed(reason)),
            Backward::None(reason) => reasons.push(reason),
        }
    }
    Ok(if checked { Backward::Checked } else { Backward::None(reasons.join("; ")) })
}

/// Gradients on a backend against those of the plain kernels, whose rules are checked by [`differences`].
fn plain(graph: &Graph, inputs: &[Tensor], names: &[String], engine: &mut dyn Engine) -> Result<Backward> {
    let mut reasons = Vec::new();
    for part in parts(graph) {
        let mut wrt = Vec::new();
        for name in names {
            match gradient_graph(&part, inputs, std::slice::from_ref(name)) {
                Ok(_) => wrt.push(name.clone()),
                Err(e) if e.kind() == Kind::Gradient => reasons.push(e.to_string()),
                Err(e) => return Err(e.into()),
            }
        }
        if wrt.is_empty() {
            continue;
        }
        let gradients = gradient_graph(&part, inputs, &wrt)?;
        let given: Vec<_> = inputs.iter().cloned().map(Some).collect();
        // A session draws the same random numbers in its first run.
        let expected = interpret(&gradients, &given, &RunContext::new(0, 1))?;
        let found =
            engine.forward(&write(&gradients, &WriteOptions::default())?, &feed(&gradients, inputs.to_vec())?)?;
        return Ok(match same_gradients(&wrt, &found, &expected, tolerance(inputs, &gradients)) {
            Err(reason) => Backward::Failed(reason),
            Ok(()) => Backward::Checked,
        });
    }
    Ok(Backward::None(reasons.join("; ")))
}

/// What may be lost on the way: as much as the coarsest float type that the values go through loses in some steps.
fn tolerance(inputs: &[Tensor], graph: &Graph) -> f64 {
    let values = (0..graph.value_count()).filter_map(|i| graph.tensor_type(ValueId(i as u32)).map(|ty| ty.dtype));
    let of = |dtype| match dtype {
        DType::BF16 => 5e-2,
        DType::F16 => 1e-2,
        DType::F64 => 1e-6,
        _ => 1e-4,
    };
    values.chain(inputs.iter().map(Tensor::dtype)).filter(|dtype| dtype.is_float()).map(of).fold(1e-6, f64::max)
}

fn same_gradients(names: &[String], found: &[Tensor], expected: &[Tensor], tolerance: f64) -> Result<(), String> {
    if found.len() != expected.len() {
        return Err(format!("{} gradients, expected {}", found.len(), expected.len()));
    }
    for ((name, found), expected) in names.iter().zip(found).zip(expected) {
        if (found.dtype(), found.shape()) != (expected.dtype(), expected.shape()) {
            return Err(format!("the gradient of {name} is {found:?}, expected {expected:?}"));
        }
        let expected = expected.to_f64s();
        let most = expected.iter().filter(|x| x.is_finite()).fold(1.0, |most: f64, x| most.max(x.abs()));
        for (at, (&a, &b)) in found.to_f64s().iter().zip(&expected).enumerate() {
            if !(a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance * most) {
                return Err(format!("gradient of {name}[{at}] is {a}, by the plain kernels {b}"));
            }
        }
    }
    Ok(())
}

/// A graph of the gradients of `names`: of the sum over all floating outputs, times weights that differ.
fn gradient_graph(graph: &Graph, inputs: &[Tensor], names: &[String]) -> ontrain::error::Result<Graph> {
    let mut graph = graph.clone();
    for (id, tensor) in graph.inputs.clone().into_iter().zip(inputs) {
        graph.value_mut(id).ty = Some(ValueType::Tensor(TensorType::of(tensor)));
    }
    let given: Vec<_> = inputs.iter().cloned().map(Some).collect();
    let values = interpret(&graph, &given, &RunContext::new(1, 1))?;
    let mut facts = infer_graph(&mut graph)?;
    let mut total: Option<ValueId> = None;
    for (id, value) in graph.outputs.clone().into_iter().zip(values) {
        if !value.dtype().is_float() {
            continue;
        }
        let mut builder = Builder { graph: &mut graph, facts: &mut facts, stem: "projection".into() };
        let weights: Vec<f64> = (0..value.len()).map(|i| 0.5 + irregular(i)).collect();
        let weights = builder.tensor(Tensor::from_f64s(value.dtype(), value.shape(), &weights)?);
        let product = builder.mul(id, weights)?;
        let sum = builder.op_with("ReduceSum", &[product], &[("keepdims", Attribute::Int(0))])?;
        total = Some(match total {
            Some(total) => {
                let sum = builder.op_cast(sum, total)?;
                builder.add_(total, sum)?
            }
            None => sum,
        });
    }
    let loss = total.ok_or_else(|| err!(Gradient, "no output is floating point"))?;
    let wrt: Vec<ValueId> = names.iter().filter_map(|name| graph.find(name)).collect();
    graph.outputs = differentiate(&mut graph, &mut facts, loss, &wrt)?;
    Ok(graph)
}

/// The gradient of one input. Where it is wrong, the inputs may be no place to take differences at: then it must be right
/// beside them.
fn input_gradient(graph: &Graph, inputs: &[Tensor], name: &str) -> Result<Backward> {
    let mut worst = String::new();
    for place in [unmoved, untied, ordinary] {
        let inputs: Vec<Tensor> = inputs.iter().map(|tensor| moved(tensor, place)).collect::<Result<_>>()?;
        let checks = match check_gradients(graph, &inputs, &[name], SAMPLES) {
            Ok(checks) => checks,
            Err(e) if e.kind() == Kind::Gradient => return Ok(Backward::None(e.to_string())),
            Err(e) => return Err(e.into()),
        };
        let wrong = checks.iter().find(|c| c.error.is_nan() || c.error > GRADIENT);
        let Some(c) = wrong else { return Ok(Backward::Checked) };
        let (at, error) = (c.element, c.error);
        worst = format!(
            "gradient of {}[{at}] is {}, by differences {} (off by {error:.2e})",
            c.name, c.analytic, c.numeric
        );
    }
    Ok(Backward::Failed(worst))
}

/// Where element i is looked at instead of at x.
type Place = fn(i: usize, x: f64) -> f64;

fn unmoved(_: usize, x: f64) -> f64 {
    x
}

/// An irregular few percent away: what was equal, or on a kink, is not any more.
fn untied(i: usize, x: f64) -> f64 {
    x + (0.02 + 0.1 * irregular(i)) * x.abs().max(1.0)
}

/// In (0, 1): what is infinite or so large that differences are taken in steps too wide.
fn ordinary(i: usize, x: f64) -> f64 {
    if x.is_finite() && x.abs() < 10.0 { untied(i, x) } else { 0.05 + 0.9 * irregular(i) }
}

/// Fractions of multiples of the golden ratio.
fn irregular(i: usize) -> f64 {
    (i as f64 * 0.618_033_988_749_895).fract()
}

fn moved(tensor: &Tensor, place: Place) -> Result<Tensor> {
    if !tensor.dtype().is_float() {
        return Ok(tensor.clone());
    }
    let values: Vec<f64> = tensor.to_f64s().into_iter().enumerate().map(|(i, x)| place(i, x)).collect();
    Ok(Tensor::from_f64s(DType::F64, tensor.shape(), &values)?)
}
