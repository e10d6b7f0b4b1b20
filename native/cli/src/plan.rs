//! `ontrain plan`: what a run of a model does, for given sizes of its inputs.

use crate::output::{Result, Stop, say, say_json};
use clap::Args as ClapArgs;
use ontrain::err;
use ontrain::graph::{Graph, ValueType};
use ontrain::kernel::{Direction, Kernel, View};
use ontrain::onnx::read_file;
use ontrain::plan::{Layout, Plan, PlanInput, build};
use ontrain::tensor::{Dim, show_dims};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct Args {
    /// A model, a training model or an eval model
    model: PathBuf,
    /// Sizes of an input, for those that the model leaves open: input=32,784
    #[arg(long, value_name = "INPUT=SIZES", num_args = 1..)]
    shape: Vec<String>,
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    let mut graph = read_file(&args.model)?;
    let constants: HashSet<_> = graph.initializers.iter().map(|(id, _)| *id).collect();
    graph.inputs.retain(|id| !constants.contains(id));
    let shapes = shapes(&graph, &args.shape)?;
    let inputs = inputs(&graph, &shapes)?;
    let plan = build(&graph, &inputs, &Layout::HOST)?;
    if json {
        say_json(&plan_json(&plan))
    } else {
        say(plan.to_string().trim_end())
    }
    Ok(())
}

/// The sizes asked for, by input.
fn shapes(graph: &Graph, asked: &[String]) -> Result<BTreeMap<String, Vec<usize>>> {
    let mut shapes = BTreeMap::new();
    for text in asked {
        let wrong = || Stop::Usage(format!("--shape takes INPUT=SIZES such as input=32,784, not \"{text}\""));
        let (name, sizes) = text.rsplit_once('=').ok_or_else(wrong)?;
        let parts = sizes.split(',').map(str::trim).filter(|part| !part.is_empty());
        let sizes = parts.map(|part| part.parse().map_err(|_| wrong())).collect::<Result<Vec<usize>>>()?;
        if !graph.inputs.iter().any(|id| graph.name_of(*id) == name) {
            let names: Vec<_> = graph.inputs.iter().map(|id| format!("\"{}\"", graph.name_of(*id))).collect();
            return Err(err!(Input, "--shape: the model has no input \"{name}\"").expected(names.join(", ")).into());
        }
        if shapes.insert(name.to_owned(), sizes).is_some() {
            return Err(Stop::Usage(format!("--shape names input \"{name}\" twice")));
        }
    }
    Ok(shapes)
}

/// Every input with its sizes: those asked for, those declared, and symbols that another input has settled.
fn inputs(graph: &Graph, asked: &BTreeMap<String, Vec<usize>>) -> Result<Vec<PlanInput<'static>>> {
    let mut symbols: BTreeMap<String, (usize, String)> = BTreeMap::new();
    let mut types = Vec::new();
    for &id in &graph.inputs {
        let name = graph.name_of(id);
        let ty = match &graph.value(id).ty {
            Some(ValueType::Tensor(ty)) => ty,
            Some(ValueType::Sequence(_)) => {
                let message =
                    "an optimizer model works on the parameters of a training model and has no plan of its own";
                return Err(err!(Unsupported, "{message}").found(format!("sequence input \"{name}\"")).into());
            }
            None => return Err(err!(Graph, "input \"{name}\" has no type").into()),
        };
        types.push((name, ty));
        let (Some(sizes), Some(dims)) = (asked.get(name), &ty.shape) else { continue };
        let wrong = || err!(Input, "--shape does not fit input \"{name}\"").expected(ty).found(show_dims(sizes));
        if sizes.len() != dims.len() {
            return Err(wrong().into());
        }
        for (dim, &size) in dims.iter().zip(sizes) {
            match dim {
                Dim::Known(n) if *n != size => return Err(wrong().into()),
                Dim::Known(_) => {}
                Dim::Symbol(symbol) => {
                    let (known, from) = symbols.entry(symbol.to_string()).or_insert_with(|| (size, name.to_owned()));
                    if *known != size {
                        let message = format!("inputs \"{from}\" and \"{name}\" disagree on {symbol}");
                        return Err(err!(Input, "{message}").expected(known).found(size).into());
                    }
                }
            }
        }
    }
    let size = |dim: &Dim| dim.known().or_else(|| symbols.get(&dim.to_string()).map(|(n, _)| *n));
    let mut inputs = Vec::new();
    for (name, ty) in types {
        let settled = || ty.shape.as_ref()?.iter().map(size).collect::<Option<Vec<usize>>>();
        let Some(shape) = asked.get(name).cloned().or_else(settled) else {
            return Err(err!(Input, "the model leaves sizes of input \"{name}\" open: say --shape {name}=SIZES")
                .expected(ty)
                .into());
        };
        inputs.push(PlanInput { dtype: ty.dtype, shape, value: None });
    }
    Ok(inputs)
}

fn kernel_name(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Fused(_) => "Fused",
        Kernel::Reduce(_) => "Reduce",
        Kernel::Gemm(_) => "Gemm",
        Kernel::Conv(k) => match k.direction {
            Direction::Forward => "Conv",
            Direction::InputGrad => "ConvInputGrad",
            Direction::WeightGrad => "ConvWeightGrad",
        },
        Kernel::Pool(_) => "Pool",
        Kernel::Copy => "Copy",
        Kernel::Gather(_) => "Gather",
        Kernel::Scatter(_) => "Scatter",
        Kernel::Check(_) => "Check",
    }
}

fn plan_json(plan: &Plan) -> Value {
    let view = |v: &View| json!({"buffer": v.buffer.0, "dtype": v.dtype.name(), "shape": v.shape});
    let views = |list: &[View]| list.iter().map(view).collect::<Vec<_>>();
    let steps: Vec<Value> = plan
        .steps
        .iter()
        .map(|s| json!({"kernel": kernel_name(&s.kernel), "from": &*s.from, "reads": views(&s.reads), "writes": views(&s.writes)}))
        .collect();
    let inputs: Vec<Value> = plan
        .inputs
        .iter()
        .map(|i| json!({"name": i.name, "dtype": i.dtype.name(), "shape": i.shape, "pinned": i.pinned}))
        .collect();
    json!({
        "peak_bytes": plan.peak_bytes(),
        "constant_bytes": plan.constant_bytes(),
        "flops": plan.flops,
        "inputs": inputs,
        "outputs": plan.outputs.iter().map(|(name, _)| name).collect::<Vec<_>>(),
        "steps": steps,
    })
}
