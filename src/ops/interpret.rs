//! Running a whole graph through the reference kernels: slow, plain, right for every dtype. The
//! finite-difference checker and the tests' oracle.

use super::{Facts, Lowering, Origin, infer_node, lower_node, resolve};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, TensorType};
use crate::kernel::{RunContext, View, reference};
use crate::tensor::Tensor;
use std::sync::Arc;

/// Computes the outputs of a graph for these inputs (in the order of `graph.inputs`; those with an
/// initializer may be left out as `None`). Every value is treated as known, so that shapes may
/// depend on inputs. Writes in place are not possible here.
pub fn interpret(graph: &Graph, inputs: &[Option<Tensor>], cx: &RunContext) -> Result<Vec<Tensor>> {
    let mut facts = Facts::default();
    for (id, tensor) in &graph.initializers {
        facts.set_constant(*id, tensor.clone());
    }
    for (i, &id) in graph.inputs.iter().enumerate() {
        match inputs.get(i) {
            Some(Some(tensor)) => facts.set_constant(id, Arc::new(tensor.clone())),
            _ if facts.constant(id).is_some() => {}
            _ => bail!(Input, "input \"{}\" is missing", graph.name_of(id)),
        }
    }
    for node in &graph.nodes {
        let op = resolve(graph, node)?;
        infer_node(graph, node, &*op, &mut facts)?;
        let mut lowering = Lowering::default();
        lower_node(graph, node, &*op, &mut facts, &mut lowering)?;
        // What was not folded (random numbers, checks, large results) runs here.
        let mut memory = reference::HostBuffers::default();
        for info in &lowering.buffers {
            match &info.origin {
                Origin::Constant(tensor) => memory.add(tensor),
                _ => memory.add(&Tensor::zeros(info.dtype, &[info.len])?),
            };
        }
        for step in &lowering.steps {
            reference::run(step, &mut memory, cx)?;
        }
        for &id in node.outputs.iter().flatten() {
            if facts.constant(id).is_none() {
                let view: Option<View> = lowering.view(&facts, id);
                let view = view.ok_or_else(|| err!(Plan, "\"{}\" is not computed", graph.name_of(id)))?;
                facts.set_constant(id, Arc::new(memory.read(&view)?));
            }
        }
    }
    let output = |&id| match facts.constant(id) {
        Some(tensor) => Ok((**tensor).clone()),
        None => Err(err!(Graph, "output \"{}\" is not computed", graph.name_of(id))),
    };
    graph.outputs.iter().map(output).collect()
}

impl TensorType {
    /// Does a tensor fit this type? Symbols fit any size.
    pub fn accepts(&self, tensor: &Tensor) -> bool {
        let fits = |dims: &Vec<crate::tensor::Dim>| {
            dims.len() == tensor.shape().len()
                && dims.iter().zip(tensor.shape()).all(|(d, &n)| d.known().is_none_or(|k| k == n))
        };
        self.dtype == tensor.dtype() && self.shape.as_ref().is_none_or(fits)
    }
}
