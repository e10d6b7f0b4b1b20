//! The training and eval models over one set of parameters.

use super::model::{Model, Role};
use super::parameters::{Parameter, Parameters};
use crate::backend::{Backend, now};
use crate::checkpoint::CheckpointState;
use crate::error::{Result, err};
use crate::graph::{Graph, ValueType};
use crate::kernel::RunContext;
use crate::onnx::{WriteOptions, write};
use crate::passes::cut;
use crate::plan::Plan;
use crate::tensor::{DType, Tensor, known_shape};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What a train step does when its loss is NaN or infinite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NonFinite {
    /// Fails with a `State` error. Parameters are as they were, and the gradients of the step are dropped: the
    /// next train step overwrites them.
    #[default]
    Error,
    /// Returns the loss as it is, and adds the gradients, as ONNX Runtime does.
    Return,
}

/// A model in training: parameters, gradients, the training model and the eval model.
pub struct Module<B: Backend> {
    backend: B,
    pub(super) parameters: Parameters<B>,
    train: Model<B>,
    eval: Option<Model<B>>,
    /// Running statistics: a train step moves them in place, one that fails must leave them as they were.
    statistics: Vec<Kept<B>>,
    /// One bool on the device: overwrite gradients instead of adding.
    reset: B::Buffer,
    /// Will the next train step overwrite?
    overwrite: AtomicBool,
    /// Failures of the device from which this module has recovered.
    failures: AtomicU64,
    training: bool,
    cx: RunContext,
}

/// A buffer and what it held before the step.
struct Kept<B: Backend> {
    value: B::Buffer,
    before: B::Buffer,
}

const RESET: &str = "lazy_reset_grad";

impl<B: Backend> Module<B> {
    /// A module of a training model, perhaps an eval model, and the parameters of a checkpoint.
    ///
    /// A nominal checkpoint is accepted; its parameters must be filled before the first step.
    ///
    /// # Errors
    /// `Checkpoint` if the checkpoint's parameters are not those of the models: a name, dtype or shape differs.
    /// `Graph` if a model is not a training or eval model.
    pub fn new(train: Graph, eval: Option<Graph>, state: &CheckpointState, backend: B) -> Result<Self> {
        let parameters = Parameters::new(&train, state, &backend)?;
        let reset = backend.alloc(DType::Bool, 1)?;
        let gradients = parameters.trainable().count();
        let read = train.outputs.len().checked_sub(gradients).filter(|&n| n > 0);
        let Some(read) = read else {
            return Err(err!(Graph, "the training model has too few outputs")
                .expected(format!("a loss and {gradients} flags"))
                .found(train.outputs.len()));
        };
        let roles = parameters.roles(&train, &reset)?;
        let statistics = parameters.statistics(&train, &backend)?;
        let train = Model::new(train, roles, read);
        let eval = eval.map(|graph| -> Result<_> {
            let roles = parameters.roles(&graph, &reset).map_err(|e| e.at("eval model"))?;
            let outputs = graph.outputs.len();
            Ok(Model::new(graph, roles, outputs))
        });
        let eval = eval.transpose()?;
        let cx = RunContext { finite: true, ..RunContext::default() };
        let module = Self {
            backend,
            parameters,
            train,
            eval,
            statistics,
            reset,
            overwrite: AtomicBool::new(true),
            failures: AtomicU64::new(0),
            training: true,
            cx,
        };
        Ok(module)
    }

    /// The device.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Seeds the random numbers of Dropout. The same seed, model and steps draw the same masks on every device.
    /// Default 0.
    pub fn set_seed(&mut self, seed: u64) {
        self.cx = RunContext { seed, step: 0, ..self.cx };
    }

    /// Seeds as [`Self::set_seed`] and goes on after `steps` train steps: the next one draws the masks of the step after them.
    pub fn set_random_state(&mut self, seed: u64, steps: u64) {
        self.cx = RunContext { seed, step: steps, ..self.cx };
    }

    /// What to do about a loss that is NaN or infinite. Default [`NonFinite::Error`].
    pub fn set_non_finite(&mut self, what: NonFinite) {
        self.cx.finite = what == NonFinite::Error;
    }

    /// Is the module in train mode? It is when it is made.
    pub fn is_training(&self) -> bool {
        self.training
    }

    /// Train mode, or eval mode: which model [`Self::step`] runs.
    pub fn train(&mut self, training: bool) {
        self.training = training;
    }

    /// A step in the current mode.
    pub fn step(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        now(self.step_async(inputs))
    }

    /// As [`Self::step`], on devices that answer later.
    pub async fn step_async(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        if self.training { self.train_step_async(inputs).await } else { self.eval_step_async(inputs).await }
    }

    /// Forward and backward: gives the loss and adds to the gradients (overwrites them in the first step and after
    /// [`Self::lazy_reset_grad`]). `inputs` are in the order of [`Self::input_names`].
    ///
    /// # Errors
    /// `Input` for a wrong number, dtype, rank or size of inputs, or a label out of range. `State` while a nominal
    /// checkpoint is not filled, or for a loss that is not finite (see [`NonFinite`]). After an error the gradients of this
    /// step are dropped; parameters are as they were.
    pub fn train_step(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        now(self.train_step_async(inputs))
    }

    /// As [`Self::train_step`], on devices that answer later.
    pub async fn train_step_async(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        self.start_train_step(inputs).await?;
        self.loss_async().await
    }

    /// Begins a train step without waiting for its loss, so that a GPU always has work: [`Self::loss_async`] gives the loss of the
    /// step started last.
    ///
    /// # Errors
    /// As [`Self::train_step`]; but on a GPU, a label out of range or a loss that is not finite is found later, and comes from
    /// the next call that waits for the device. From such a step on nothing is written to parameters, gradients and optimizer
    /// state until it has been reported; optimizer steps meanwhile are counted by [`Optimizer::steps`](super::Optimizer::steps)
    /// though they do nothing.
    pub async fn start_train_step(&mut self, inputs: &[&Tensor]) -> Result<()> {
        self.recover().await?;
        self.parameters.check_filled()?;
        self.backend.upload(&self.reset, &[self.overwrite.load(Ordering::Relaxed) as u8])?;
        for kept in &self.statistics {
            self.backend.copy(&kept.value, &kept.before).await?;
        }
        self.cx.step += 1;
        let started = self.train.start(&self.backend, inputs, &self.cx).await;
        self.settle(started).await?;
        self.overwrite.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Waits for the train step started last: gives its loss, and its outputs to [`Self::train_outputs`].
    ///
    /// # Errors
    /// `State` if no step was started or the last one failed. Otherwise as [`Self::start_train_step`] says.
    pub async fn loss_async(&mut self) -> Result<f32> {
        let read = self.train.fetch(&self.backend).await;
        self.settle(read).await?;
        let loss = self.train.outputs().first();
        scalar(loss.ok_or_else(|| err!(State, "there is no loss: no train step was started, or the last one failed"))?)
    }

    /// What a train step gave; after one that failed the module is as it was before it.
    async fn settle(&self, step: Result<()>) -> Result<()> {
        if step.is_err() {
            self.failures.store(self.backend.failures(), Ordering::Relaxed);
            self.undo().await?;
        }
        step
    }

    /// A step that nobody waited for may have failed, and another call than [`Self::loss_async`] been told.
    async fn recover(&self) -> Result<()> {
        let failures = self.backend.failures();
        if self.failures.swap(failures, Ordering::Relaxed) != failures {
            self.undo().await?;
        }
        Ok(())
    }

    /// Running statistics are as they were before the step that failed, and the next step overwrites its gradients.
    async fn undo(&self) -> Result<()> {
        self.overwrite.store(true, Ordering::Relaxed);
        for kept in &self.statistics {
            self.backend.copy(&kept.before, &kept.value).await?;
        }
        Ok(())
    }

    /// Forward with the eval model: gives the loss.
    ///
    /// # Errors
    /// As [`Self::train_step`], and `State` if there is no eval model. A loss that is not finite is returned.
    pub fn eval_step(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        now(self.eval_step_async(inputs))
    }

    /// As [`Self::eval_step`], on devices that answer later.
    pub async fn eval_step_async(&mut self, inputs: &[&Tensor]) -> Result<f32> {
        self.recover().await?;
        self.parameters.check_filled()?;
        let eval = self.eval.as_mut().ok_or_else(no_eval)?;
        eval.run(&self.backend, inputs, &RunContext { finite: false, ..self.cx }).await?;
        scalar(&eval.outputs()[0])
    }

    /// All outputs of the last step of the current mode: the loss, then the additional outputs, in the order
    /// of [`Self::output_names`]. Empty before the first step.
    pub fn outputs(&self) -> &[Tensor] {
        match (&self.eval, self.training) {
            (_, true) => self.train.outputs(),
            (Some(eval), false) => eval.outputs(),
            (None, false) => &[],
        }
    }

    /// All outputs of the last eval step.
    pub fn eval_outputs(&self) -> &[Tensor] {
        self.eval.as_ref().map_or(&[], Model::outputs)
    }

    /// All outputs of the last train step.
    pub fn train_outputs(&self) -> &[Tensor] {
        self.train.outputs()
    }

    /// Lets the next train step overwrite the gradients instead of adding to them.
    pub fn lazy_reset_grad(&mut self) {
        self.overwrite.store(true, Ordering::Relaxed);
    }

    /// Names of the inputs of the training (or eval) model that a step takes, in order.
    pub fn input_names(&self, training: bool) -> Result<Vec<String>> {
        Ok(self.model(training)?.input_names())
    }

    /// Names of the outputs of the training (or eval) model, in order: the loss first.
    pub fn output_names(&self, training: bool) -> Result<Vec<String>> {
        Ok(self.model(training)?.output_names())
    }

    /// The plan of a train (or eval) step on inputs of these sizes.
    pub fn plan(&mut self, training: bool, inputs: &[&Tensor]) -> Result<&Plan> {
        now(self.plan_async(training, inputs))
    }

    /// As [`Self::plan`], on devices that answer later.
    pub async fn plan_async(&mut self, training: bool, inputs: &[&Tensor]) -> Result<&Plan> {
        match (training, &mut self.eval) {
            (true, _) => self.train.plan(&self.backend, inputs).await,
            (false, Some(eval)) => eval.plan(&self.backend, inputs).await,
            (false, None) => Err(no_eval()),
        }
    }

    fn model(&self, training: bool) -> Result<&Model<B>> {
        if training { Ok(&self.train) } else { self.eval.as_ref().ok_or_else(no_eval) }
    }

    /// The names, shapes and roles of the parameters, in the order of the training model's inputs.
    pub fn parameter_names(&self) -> impl Iterator<Item = &str> {
        self.parameters.list.iter().map(|p| &*p.name)
    }

    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> Result<Tensor> {
        now(self.parameter_async(name))
    }

    /// As [`Self::parameter`], on devices that answer later.
    pub async fn parameter_async(&self, name: &str) -> Result<Tensor> {
        self.recover().await?;
        self.parameters.value(&self.backend, name).await
    }

    /// Has every parameter a value? (Those of a nominal checkpoint have none at first.)
    pub fn is_filled(&self) -> bool {
        self.parameters.check_filled().is_ok()
    }

    /// Replaces a parameter's value; `Input` error if dtype or shape differ.
    pub fn set_parameter(&mut self, name: &str, value: &Tensor) -> Result<()> {
        self.parameters.set(&self.backend, name, value)
    }

    /// The gradient gathered for a trainable parameter: zeros before the first train step.
    pub fn gradient(&self, name: &str) -> Result<Tensor> {
        now(self.gradient_async(name))
    }

    /// As [`Self::gradient`], on devices that answer later.
    pub async fn gradient_async(&self, name: &str) -> Result<Tensor> {
        self.parameters.gradient(&self.backend, name).await
    }

    /// Number of elements of all (trainable) parameters together.
    pub fn parameters_size(&self, trainable_only: bool) -> usize {
        self.parameters.size(trainable_only)
    }

    /// All (trainable) parameters one after the other, as one float32 vector, in the order of the training model's inputs.
    pub fn contiguous_parameters(&self, trainable_only: bool) -> Result<Tensor> {
        now(self.contiguous_parameters_async(trainable_only))
    }

    /// As [`Self::contiguous_parameters`], on devices that answer later.
    pub async fn contiguous_parameters_async(&self, trainable_only: bool) -> Result<Tensor> {
        self.recover().await?;
        self.parameters.contiguous(&self.backend, trainable_only).await
    }

    /// The way back: fills the parameters from such a vector. `Input` error if its length differs; then nothing is changed.
    pub fn load_contiguous_parameters(&mut self, values: &[f32], trainable_only: bool) -> Result<()> {
        self.parameters.load(&self.backend, values, trainable_only)
    }

    /// Writes the parameters' current values into a checkpoint state. After an error the state is as it was.
    pub fn save_parameters(&self, state: &mut CheckpointState) -> Result<()> {
        now(self.save_parameters_async(state))
    }

    /// As [`Self::save_parameters`], on devices that answer later.
    pub async fn save_parameters_async(&self, state: &mut CheckpointState) -> Result<()> {
        let values = self.values_async().await?;
        values.into_iter().try_for_each(|(name, value)| state.set_parameter(&name, value))
    }

    /// Names and current values of the parameters; those of a nominal checkpoint that are not filled are left out.
    pub async fn values_async(&self) -> Result<Vec<(String, Tensor)>> {
        self.recover().await?;
        self.parameters.values(&self.backend).await
    }

    /// An inference model: the eval model cut at `outputs` (any of its values), the trained values as
    /// initializers, the model's own inputs as inputs.
    ///
    /// # Errors
    /// `State` if there is no eval model or a nominal checkpoint is not filled; `Graph` for an unknown name.
    pub fn export_model_for_inferencing(&self, outputs: &[&str]) -> Result<Vec<u8>> {
        now(self.export_model_for_inferencing_async(outputs))
    }

    /// As [`Self::export_model_for_inferencing`], on devices that answer later.
    pub async fn export_model_for_inferencing_async(&self, outputs: &[&str]) -> Result<Vec<u8>> {
        self.parameters.check_filled()?;
        let mut graph = self.eval.as_ref().ok_or_else(no_eval)?.graph.clone();
        for p in &self.parameters.list {
            let Some(id) = graph.find(&p.name) else { continue };
            graph.inputs.retain(|input| *input != id);
            graph.initializers.push((id, Arc::new(self.parameter_async(&p.name).await?)));
        }
        cut(&mut graph, outputs)?;
        let used: Vec<_> =
            graph.nodes.iter().flat_map(|n| n.inputs.iter().flatten().copied()).chain(graph.outputs.clone()).collect();
        graph.inputs.retain(|input| used.contains(input)); // labels go with the loss
        let domains: Vec<String> = graph.nodes.iter().map(|n| n.domain.clone()).collect();
        graph.opsets.retain(|domain, _| domain.is_empty() || domains.contains(domain));
        write(&graph, &WriteOptions::default())
    }
}

fn no_eval() -> crate::error::Error {
    err!(State, "the module was made without an eval model")
}

/// The loss as a number.
fn scalar(tensor: &Tensor) -> Result<f32> {
    match tensor.as_slice::<f32>() {
        Some([loss]) => Ok(*loss),
        _ if tensor.len() == 1 && tensor.dtype().is_float() => Ok(tensor.to_f64s()[0] as f32),
        _ => Err(err!(Graph, "the first output is not a loss")
            .expected("one floating number")
            .found(format!("{tensor:?}"))),
    }
}

impl<B: Backend> Parameters<B> {
    /// Sorts the inputs of a training or eval model by role. `Checkpoint` error if the model's parameters are not
    /// these.
    fn roles(&self, graph: &Graph, reset: &B::Buffer) -> Result<Vec<Role<B>>> {
        let mut roles = Vec::new();
        let mut seen = false;
        for &id in &graph.inputs {
            let name = graph.name_of(id);
            let role = if let Some(p) = self.find(name) {
                seen = true;
                p.fits(graph, id)?;
                Role::Bound { buffer: p.value.clone(), dtype: p.dtype, shape: p.shape.clone() }
            } else if name == RESET {
                Role::Bound { buffer: reset.clone(), dtype: DType::Bool, shape: vec![1] }
            } else if let Some(of) = name.strip_suffix("_grad.accumulation.buffer") {
                let p = self.find(of).ok_or_else(|| missing(of))?;
                let gradient = p.gradient.clone().ok_or_else(|| {
                    err!(Checkpoint, "parameter \"{of}\" is frozen in the checkpoint, but the model trains it")
                })?;
                Role::Bound { buffer: gradient, dtype: p.dtype, shape: p.shape.clone() }
            } else if seen {
                return Err(missing(name)); // user inputs stand before the parameters
            } else {
                Role::User
            };
            roles.push(role);
        }
        Ok(roles)
    }
}

impl<B: Backend> Parameters<B> {
    /// The parameters that a training model moves by itself: running mean and variance.
    fn statistics(&self, train: &Graph, backend: &B) -> Result<Vec<Kept<B>>> {
        let norms = train.nodes.iter().filter(|n| n.op_type == "BatchNormInternal");
        let moved =
            norms.flat_map(|n| n.inputs.iter().skip(3).flatten()).filter_map(|id| self.find(train.name_of(*id)));
        let keep = |p: &Parameter<B>| {
            Ok(Kept { value: p.value.clone(), before: backend.alloc(p.dtype, p.shape.iter().product())? })
        };
        moved.map(keep).collect()
    }
}

fn missing(name: &str) -> crate::error::Error {
    err!(Checkpoint, "the checkpoint has no parameter \"{name}\", which the model needs: is it another model's?")
}

/// Dtype and sizes that a graph declares for an input.
pub(super) fn declared(graph: &Graph, id: crate::graph::ValueId) -> Result<(DType, Vec<usize>)> {
    let name = graph.name_of(id);
    match &graph.value(id).ty {
        Some(ValueType::Tensor(ty)) => match ty.shape.as_deref().and_then(known_shape) {
            Some(shape) => Ok((ty.dtype, shape)),
            None => Err(err!(Graph, "parameter \"{name}\" has no fixed shape in the model").found(ty)),
        },
        _ => Err(err!(Graph, "parameter \"{name}\" is not a tensor in the model")),
    }
}
