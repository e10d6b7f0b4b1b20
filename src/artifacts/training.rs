//! The forward graph with its loss, and the training and eval graphs made of it.

use super::Options;
use super::parameters::choose;
use crate::checkpoint::Parameter;
use crate::error::{Kind, Result, err};
use crate::grad::differentiate;
use crate::graph::{Attribute, Graph, TensorType, ValueId, ValueType};
use crate::ops::{Builder, Facts, MS, infer_graph};
use crate::passes::{fold, identity};
use crate::tensor::{DType, Dim, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// The model with its loss, before anything is said of training or evaluation.
pub(super) struct Forward {
    pub(super) graph: Graph,
    loss: ValueId,
    /// Loss, then additional outputs.
    outputs: Vec<ValueId>,
    /// Value, trained?, initial value.
    parameters: Vec<(ValueId, bool, Arc<Tensor>)>,
    /// Should a nominal checkpoint be made?
    pub(super) nominal: bool,
}

impl Forward {
    /// Reads the request on a copy of the model: parameters leave the initializers, the loss is added.
    pub(super) fn build(model: &Graph, options: &Options) -> Result<Self> {
        let mut graph = model.clone();
        identity::untie(&mut graph, &options.requires_grad);
        identity::untie(&mut graph, &options.frozen_params);
        let chosen = choose(&graph, options)?;
        let keep: HashSet<ValueId> = chosen.parameters.iter().map(|(id, _)| *id).collect();
        fold::constants(&mut graph, &keep)?;
        let mut parameters = Vec::new();
        for &(id, trained) in &chosen.parameters {
            let at = graph.initializers.iter().position(|(v, _)| *v == id).expect("chosen among the initializers");
            parameters.push((id, trained, graph.initializers.remove(at).1));
            graph.inputs.retain(|input| *input != id); // IR 3 models list initializers as inputs
        }
        let defaulted: HashSet<ValueId> = graph.initializers.iter().map(|(id, _)| *id).collect();
        graph.inputs.retain(|input| !defaulted.contains(input));
        let mut facts = infer_graph(&mut graph)?;
        let (loss, outputs) = add_loss(&mut graph, &mut facts, options)?;
        graph.inputs.extend(parameters.iter().map(|(id, ..)| *id));
        Ok(Self { graph, loss, outputs, parameters, nominal: options.nominal_checkpoint })
    }

    /// The parameters with their initial values.
    pub(super) fn parameters(&self) -> impl Iterator<Item = Parameter> {
        self.parameters
            .iter()
            .map(|(id, trained, value)| Parameter::new(self.graph.name_of(*id), (**value).clone(), *trained))
    }

    /// Forward and loss, with Dropout off and BatchNormalization on its running statistics.
    pub(super) fn eval(&self) -> Result<Graph> {
        let mut graph = self.graph.clone();
        graph.outputs = self.outputs.clone();
        for node in graph.nodes.iter_mut().filter(|n| n.domain.is_empty()) {
            match node.op_type.as_str() {
                "Dropout" => node.inputs.truncate(2),
                "BatchNormalization" => {
                    node.outputs.truncate(1);
                    node.attributes.remove("training_mode");
                }
                _ => {}
            }
        }
        fold::drop_dead(&mut graph);
        Ok(graph)
    }

    /// Forward, backward, accumulation.
    pub(super) fn training(&self) -> Result<Graph> {
        let mut graph = self.graph.clone();
        graph.outputs = self.outputs.clone();
        fold::drop_dead(&mut graph);
        train_batch_norms(&mut graph);
        let mut facts = infer_graph(&mut graph)?;
        let wrt: Vec<ValueId> = self.parameters.iter().filter(|p| p.1).map(|p| p.0).collect();
        let gradients = differentiate(&mut graph, &mut facts, self.loss, &wrt).map_err(|e| match e.kind() {
            Kind::Unsupported => e.with_kind(Kind::Gradient),
            _ => e,
        })?;
        accumulate(&mut graph, &mut facts, &wrt, &gradients)?;
        fold::drop_dead(&mut graph);
        Ok(graph)
    }
}

/// The loss and the outputs to be: loss first.
fn add_loss(graph: &mut Graph, facts: &mut Facts, options: &Options) -> Result<(ValueId, Vec<ValueId>)> {
    let find = |graph: &Graph, name: &String, what: &str| {
        graph.find(name).ok_or_else(|| {
            let known: Vec<_> = graph.outputs.iter().map(|id| format!("\"{}\"", graph.name_of(*id))).collect();
            err!(Graph, "{what} \"{name}\" is not a value of the model")
                .expected(format!("such as {}", known.join(", ")))
        })
    };
    let mut inputs = graph.outputs.clone();
    if !options.loss_input_names.is_empty() {
        inputs = options.loss_input_names.iter().map(|n| find(graph, n, "loss input")).collect::<Result<_>>()?;
    }
    let mut builder = Builder { graph: &mut *graph, facts, stem: "loss".into() };
    let loss = options.loss.build(&mut builder, &inputs)?;
    let mut outputs = vec![loss];
    for name in &options.additional_output_names {
        outputs.push(find(graph, name, "additional output")?);
    }
    Ok((loss, outputs))
}

/// Every BatchNormalization normalizes by the batch and moves its running statistics in place, as ONNX Runtime
/// does whatever the exported `training_mode` says.
fn train_batch_norms(graph: &mut Graph) {
    let mut any = false;
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if !(node.domain.is_empty() && node.op_type == "BatchNormalization") {
            continue;
        }
        any = true;
        let y = node.outputs.first().copied().flatten();
        let stem = y.map_or_else(String::new, |y| graph.name_of(y).to_owned());
        let mut outputs = vec![y];
        for name in ["running_mean", "running_var", "saved_mean", "saved_inv_std"] {
            outputs.push(Some(graph.fresh_value(&format!("{stem}/{name}"), None)));
        }
        let node = &mut graph.nodes[i];
        node.op_type = "BatchNormInternal".into();
        node.domain = MS.into();
        node.attributes.insert("training_mode".into(), Attribute::Int(1));
        node.attributes.remove("spatial"); // 1 wherever it exists and is supported
        node.outputs = outputs;
    }
    if any {
        graph.opsets.insert(MS.into(), 1);
    }
}

/// `buffer = lazy_reset_grad ? gradient : buffer + gradient` for every trainable parameter.
fn accumulate(graph: &mut Graph, facts: &mut Facts, wrt: &[ValueId], gradients: &[ValueId]) -> Result<()> {
    let mut buffers = Vec::new();
    for &id in wrt {
        let ty = facts.ty(id).cloned().expect("parameters are typed");
        let name = format!("{}_grad.accumulation.buffer", graph.name_of(id));
        let buffer = graph.add_input(&name, ty.clone())?;
        facts.set_type(buffer, ty);
        buffers.push(buffer);
    }
    let flag_type = TensorType::new(DType::Bool, vec![Dim::Known(1)]);
    let reset = graph.add_input("lazy_reset_grad", flag_type.clone())?;
    facts.set_type(reset, flag_type.clone());
    for (i, ((&id, &gradient), &buffer)) in wrt.iter().zip(gradients).zip(&buffers).enumerate() {
        let name = format!("{}_grad.accumulation.out", graph.name_of(id));
        let out = graph.add_value(&name, Some(ValueType::Tensor(flag_type.clone())))?;
        let node = crate::graph::Node {
            name: format!("GradientAccumulator{}", i + 1),
            domain: MS.into(),
            op_type: "InPlaceAccumulatorV2".into(),
            inputs: vec![Some(buffer), Some(gradient), Some(reset)],
            outputs: vec![Some(out)],
            attributes: Default::default(),
        };
        Builder { graph, facts, stem: String::new() }.add(node)?;
        graph.outputs.push(out);
    }
    Ok(())
}
