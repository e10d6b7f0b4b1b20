//! A model that is only run: what it computes before or after training.

use super::model::{Model, Role};
use crate::backend::{Backend, now};
use crate::error::Result;
use crate::graph::Graph;
use crate::kernel::RunContext;
use crate::plan::Plan;
use crate::tensor::Tensor;

/// Runs a forward model on a device.
pub struct Session<B: Backend> {
    backend: B,
    model: Model<B>,
    cx: RunContext,
}

impl<B: Backend> Session<B> {
    /// A session for a graph. Graph inputs that have an initializer are constants.
    pub fn new(mut graph: Graph, backend: B) -> Self {
        let constants: Vec<_> = graph.initializers.iter().map(|(id, _)| *id).collect();
        graph.inputs.retain(|id| !constants.contains(id));
        let roles = graph.inputs.iter().map(|_| Role::User).collect();
        let outputs = graph.outputs.len();
        Self { backend, model: Model::new(graph, roles, outputs), cx: RunContext::default() }
    }

    /// Seeds the random numbers (Dropout in a training graph).
    pub fn set_seed(&mut self, seed: u64) {
        self.cx = RunContext::new(seed, 0);
    }

    /// Names of the inputs, in order.
    pub fn input_names(&self) -> Vec<String> {
        self.model.input_names()
    }

    /// Names of the outputs, in order.
    pub fn output_names(&self) -> Vec<String> {
        self.model.output_names()
    }

    /// The outputs for `inputs`, in the order of [`Self::input_names`].
    ///
    /// Errors: `Input` if one has a wrong dtype, rank or size; whatever planning finds for these sizes.
    pub fn run(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        now(self.run_async(inputs))?;
        Ok(self.model.outputs())
    }

    /// As [`Self::run`], on devices that answer later.
    pub async fn run_async(&mut self, inputs: &[&Tensor]) -> Result<&[Tensor]> {
        self.cx.step += 1;
        self.model.run(&self.backend, inputs, &self.cx).await?;
        Ok(self.model.outputs())
    }

    /// The plan for inputs of these sizes.
    pub fn plan(&mut self, inputs: &[&Tensor]) -> Result<&Plan> {
        now(self.model.plan(&self.backend, inputs))
    }
}
