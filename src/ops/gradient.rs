//! What an operator sees while it writes its gradient.

use super::Builder;
use crate::error::{Error, Kind, Result};
use crate::graph::{Node, TensorType, ValueId, ValueType};
use std::ops::{Deref, DerefMut};

/// The context of one node's gradient rule. It is also a [`Builder`].
///
/// Notation of the rules: `dy` is the gradient of the loss by the output `y`, `dx` by the input `x`.
pub struct GradCx<'g> {
    builder: Builder<'g>,
    /// Position of the node in the graph.
    index: usize,
    node: Node,
    dys: Vec<Option<ValueId>>,
    needs: Vec<bool>,
    dxs: Vec<Option<ValueId>>,
}

impl<'g> GradCx<'g> {
    /// The context for node `index`, given its outputs' gradients and which inputs need one.
    pub fn new(builder: Builder<'g>, index: usize, dys: Vec<Option<ValueId>>, needs: Vec<bool>) -> Self {
        let node = builder.graph.nodes[index].clone();
        let dxs = vec![None; node.inputs.len()];
        Self { builder, index, node, dys, needs, dxs }
    }

    /// The gradients that the rule set, per input.
    pub fn finish(self) -> Vec<Option<ValueId>> {
        self.dxs
    }

    /// A `Gradient` error at this node: operator, node and opset are named.
    pub fn error(&self, why: impl Into<String>) -> Error {
        let opset = self.builder.graph.opset(&self.node.domain);
        let message = format!("no gradient for {} (opset {opset}): {}", self.node.op_type, why.into());
        Error::new(Kind::Gradient, message).at(self.node.path(self.builder.graph))
    }

    /// Does input `i` need a gradient?
    pub fn needs(&self, i: usize) -> bool {
        self.needs.get(i).copied().unwrap_or(false)
    }

    /// Number of inputs.
    pub fn input_count(&self) -> usize {
        self.node.inputs.len()
    }

    /// Number of outputs.
    pub fn output_count(&self) -> usize {
        self.node.outputs.len()
    }

    /// Input `i`, if it is there.
    pub fn input_opt(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    /// Input `i`.
    pub fn input(&self, i: usize) -> Result<ValueId> {
        self.input_opt(i).ok_or_else(|| self.error(format!("input {i} is required and missing")))
    }

    /// Output `o`, made visible if the node did not name it.
    pub fn output(&mut self, o: usize) -> Result<ValueId> {
        if let Some(id) = self.node.outputs.get(o).copied().flatten() {
            return Ok(id);
        }
        let first = self.node.outputs.iter().copied().flatten().next();
        let base = first.map_or_else(String::new, |id| self.builder.graph.name_of(id).to_owned());
        let id = self.builder.graph.fresh_value(&format!("{base}/output{o}"), None);
        let node = &mut self.builder.graph.nodes[self.index];
        node.outputs.resize(node.outputs.len().max(o + 1), None);
        node.outputs[o] = Some(id);
        self.node = node.clone();
        self.dys.resize(self.node.outputs.len(), None);
        let op = super::resolve(self.builder.graph, &self.node)?;
        super::infer_node(self.builder.graph, &self.node, &*op, self.builder.facts)?;
        if let Some(ty) = self.builder.facts.ty(id) {
            let ty: TensorType = ty.clone();
            self.builder.graph.value_mut(id).ty = Some(ValueType::Tensor(ty));
        }
        Ok(id)
    }

    /// The gradient of output `o`, or `None` if the loss does not depend on it.
    pub fn dy_opt(&self, o: usize) -> Option<ValueId> {
        self.dys.get(o).copied().flatten()
    }

    /// The gradient of output `o`. An error if the loss does not depend on it: for operators whose
    /// first output is the one that matters.
    pub fn dy(&self, o: usize) -> Result<ValueId> {
        self.dy_opt(o)
            .ok_or_else(|| self.error(format!("the loss uses an output other than {o}, for which there is no rule")))
    }

    /// Sets the gradient of input `i`.
    pub fn set(&mut self, i: usize, dx: ValueId) {
        self.dxs[i] = Some(dx);
    }

    /// Sets the gradient of input `i` from one in the broadcast shape.
    pub fn set_unbroadcast(&mut self, i: usize, d: ValueId) -> Result<()> {
        let target = self.input(i)?;
        let dx = self.builder.unbroadcast(d, target)?;
        self.set(i, dx);
        Ok(())
    }
}

impl<'g> Deref for GradCx<'g> {
    type Target = Builder<'g>;
    fn deref(&self) -> &Builder<'g> {
        &self.builder
    }
}

impl<'g> DerefMut for GradCx<'g> {
    fn deref_mut(&mut self) -> &mut Builder<'g> {
        &mut self.builder
    }
}
