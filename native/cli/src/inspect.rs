//! `ontrain inspect`: what a model or a checkpoint holds.

use crate::output::{Result, cannot_read, count, say, say_json};
use clap::Args as ClapArgs;
use ontrain::checkpoint::{CheckpointState, Property};
use ontrain::graph::{Graph, ValueId, ValueType};
use ontrain::onnx::read_file;
use ontrain::ops;
use ontrain::tensor::show_dims;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

#[derive(ClapArgs)]
pub(crate) struct Args {
    /// A model (.onnx) or a checkpoint
    file: PathBuf,
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    if is_checkpoint(&args.file)? {
        let state = CheckpointState::load(&args.file)?;
        if json { say_json(&checkpoint_json(&state)) } else { show_checkpoint(&state) }
    } else {
        let graph = read_file(&args.file)?;
        let operators = operators(&graph);
        if json { say_json(&model_json(&graph, &operators)) } else { show_model(&graph, &operators) }
    }
    Ok(())
}

/// A checkpoint carries "ODTC" after its first four bytes.
fn is_checkpoint(path: &Path) -> Result<bool> {
    let mut start = Vec::new();
    let file = std::fs::File::open(path).map_err(|e| cannot_read(path, e))?;
    file.take(8).read_to_end(&mut start).map_err(|e| cannot_read(path, e))?;
    Ok(start.get(4..8) == Some(b"ODTC"))
}

/// What there is to know of one operator of a model.
#[derive(Default)]
struct Use {
    count: usize,
    /// Why ontrain cannot run a node of it.
    lacks: Option<String>,
    gradient: bool,
}

/// Operators by domain and name.
fn operators(graph: &Graph) -> BTreeMap<(String, String), Use> {
    let mut uses: BTreeMap<(String, String), Use> = BTreeMap::new();
    for node in &graph.nodes {
        let of = uses.entry((node.domain.clone(), node.op_type.clone())).or_default();
        of.count += 1;
        if let Err(e) = ops::resolve(graph, node) {
            of.lacks.get_or_insert_with(|| e.to_string());
        }
        of.gradient = ops::entries().any(|e| e.domain == node.domain && e.name == node.op_type && e.gradient);
    }
    uses
}

fn full_name((domain, name): &(String, String)) -> String {
    if domain.is_empty() { name.clone() } else { format!("{domain}.{name}") }
}

/// dtype and dimensions; sizes are numbers, symbols strings.
fn type_of(graph: &Graph, id: ValueId) -> Value {
    match &graph.value(id).ty {
        Some(ValueType::Tensor(ty)) => {
            let dim = |d: &ontrain::tensor::Dim| d.known().map_or_else(|| json!(d.to_string()), |n| json!(n));
            let shape = ty.shape.as_ref().map(|dims| dims.iter().map(dim).collect::<Vec<_>>());
            json!({"name": graph.name_of(id), "dtype": ty.dtype.name(), "shape": shape})
        }
        Some(ValueType::Sequence(dtype)) => json!({"name": graph.name_of(id), "sequence_of": dtype.name()}),
        None => json!({"name": graph.name_of(id)}),
    }
}

fn model_json(graph: &Graph, operators: &BTreeMap<(String, String), Use>) -> Value {
    let values = |ids: &[ValueId]| ids.iter().map(|id| type_of(graph, *id)).collect::<Vec<_>>();
    let parameters: Vec<Value> = graph
        .initializers
        .iter()
        .map(|(id, t)| json!({"name": graph.name_of(*id), "dtype": t.dtype().name(), "shape": t.shape()}))
        .collect();
    let list: Vec<Value> = operators
        .iter()
        .map(|(key, of)| json!({"domain": key.0, "name": key.1, "count": of.count, "supported": of.lacks.is_none(), "gradient": of.gradient, "reason": of.lacks}))
        .collect();
    json!({
        "kind": "model",
        "name": graph.name,
        "ir_version": graph.ir_version,
        "opsets": graph.opsets.iter().map(|(domain, v)| (if domain.is_empty() { "ai.onnx" } else { domain }, v)).collect::<BTreeMap<_, _>>(),
        "inputs": values(&graph.inputs),
        "outputs": values(&graph.outputs),
        "parameters": parameters,
        "operators": list,
    })
}

fn show_value(graph: &Graph, id: ValueId) -> String {
    match &graph.value(id).ty {
        Some(ValueType::Tensor(ty)) => format!("{} {ty}", graph.name_of(id)),
        Some(ValueType::Sequence(dtype)) => format!("{} sequence of {dtype}", graph.name_of(id)),
        None => graph.name_of(id).to_owned(),
    }
}

fn show_model(graph: &Graph, operators: &BTreeMap<(String, String), Use>) {
    let opsets: Vec<String> =
        graph.opsets.iter().map(|(d, v)| format!("{} {v}", if d.is_empty() { "ai.onnx" } else { d })).collect();
    say(format!("model \"{}\", IR version {}, opsets: {}", graph.name, graph.ir_version, opsets.join(", ")));
    for (title, ids) in [("inputs", &graph.inputs), ("outputs", &graph.outputs)] {
        say(format!("{title}:"));
        ids.iter().for_each(|id| say(format!("  {}", show_value(graph, *id))));
    }
    let elements: usize = graph.initializers.iter().map(|(_, t)| t.len()).sum();
    say(format!("parameters: {}, {}", graph.initializers.len(), count(elements, "element")));
    for (id, tensor) in &graph.initializers {
        say(format!("  {} {}{}", graph.name_of(*id), tensor.dtype(), show_dims(tensor.shape())));
    }
    say(format!("operators: {}", count(graph.nodes.len(), "node")));
    for (key, of) in operators {
        let gradient = if of.lacks.is_none() && !of.gradient { "  (no gradient)" } else { "" };
        let lacks = if of.lacks.is_some() { "  (ontrain cannot run it)" } else { "" };
        say(format!("  {:5} {}{gradient}{lacks}", of.count, full_name(key)));
    }
    for of in operators.values() {
        if let Some(reason) = &of.lacks {
            say(format!("lacking: {reason}"));
        }
    }
}

fn property_json(property: &Property) -> Value {
    match property {
        Property::Int(value) => json!(value),
        Property::Float(value) => json!(value),
        Property::String(value) => json!(value),
    }
}

fn checkpoint_json(state: &CheckpointState) -> Value {
    let parameters: Vec<Value> = state
        .parameters()
        .iter()
        .map(|p| {
            let shape = p.value.as_ref().map(|v| v.shape().to_vec());
            json!({"name": p.name, "dtype": p.dtype.name(), "shape": shape, "requires_grad": p.requires_grad})
        })
        .collect();
    let optimizer = state.optimizer.as_ref().map(|o| {
        json!({"step": o.step, "initial_learning_rate": o.initial_learning_rate, "moments": moments(o), "parameters": o.states.len()})
    });
    let properties: BTreeMap<&str, Value> =
        state.properties().iter().map(|(name, p)| (&**name, property_json(p))).collect();
    json!({
        "kind": "checkpoint",
        "nominal": state.is_nominal(),
        "parameters": parameters,
        "optimizer": optimizer,
        "properties": properties,
    })
}

/// Names of what an optimizer keeps for a parameter.
fn moments(state: &ontrain::checkpoint::OptimizerState) -> Vec<&str> {
    state.states.first().map_or_else(Vec::new, |s| s.momentums.iter().map(|(name, _)| &**name).collect())
}

fn show_checkpoint(state: &CheckpointState) {
    let elements: usize = state.parameters().iter().filter_map(|p| p.value.as_ref()).map(|v| v.len()).sum();
    let nominal = if state.is_nominal() { " (nominal: without values)" } else { "" };
    say(format!(
        "checkpoint: {}, {}{nominal}",
        count(state.parameters().len(), "parameter"),
        count(elements, "element")
    ));
    for p in state.parameters() {
        let shape = p.value.as_ref().map_or_else(|| "[?]".into(), |v| show_dims(v.shape()));
        say(format!("  {} {}{shape}{}", p.name, p.dtype, if p.requires_grad { "" } else { "  (frozen)" }));
    }
    match &state.optimizer {
        None => say("optimizer: none"),
        Some(o) => say(format!(
            "optimizer: {}, initial learning rate {}, {} of {}",
            count(o.step.try_into().unwrap_or(0), "step"),
            o.initial_learning_rate,
            moments(o).join(" and "),
            count(o.states.len(), "parameter")
        )),
    }
    for (name, property) in state.properties() {
        let value = match property {
            Property::Int(v) => v.to_string(),
            Property::Float(v) => v.to_string(),
            Property::String(v) => format!("{v:?}"),
        };
        say(format!("property {name} = {value}"));
    }
}
