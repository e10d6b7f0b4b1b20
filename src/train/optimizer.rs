//! The optimizer model over a module's parameters and gradients.

use super::model::{Model, Role};
use super::module::Module;
use crate::backend::{Backend, now};
use crate::checkpoint::{CheckpointState, OptimizerState, ParameterState};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, ValueType};
use crate::kernel::RunContext;
use crate::passes::sequences;
use crate::tensor::{DType, Tensor};

/// The learning rate that ONNX Runtime starts with.
const DEFAULT_LEARNING_RATE: f32 = 1e-3;

/// Steps a module's trainable parameters in place.
pub struct Optimizer<B: Backend> {
    model: Model<B>,
    learning_rate: B::Buffer,
    step: B::Buffer,
    /// Names and shapes of the parameters, and the moments kept for each.
    parameters: Vec<Moments<B>>,
    steps: i64,
    rate: f32,
    initial_rate: f32,
}

struct Moments<B: Backend> {
    name: String,
    dtype: DType,
    shape: Vec<usize>,
    moments: Vec<B::Buffer>,
}

impl<B: Backend> Optimizer<B> {
    /// An optimizer for `module`. If `state` holds an optimizer's memory it goes on from there; moments that it lacks
    /// start at zero, and those that the optimizer does not know are left alone.
    ///
    /// # Errors
    /// `Graph` if `graph` is not an optimizer model; `Checkpoint` if the state's moments do not fit the parameters.
    pub fn new(mut graph: Graph, module: &Module<B>, state: &CheckpointState) -> Result<Self> {
        let backend = module.backend();
        let trainable: Vec<_> = module.parameters.trainable().collect();
        let kept = moments_of(&graph)?;
        let mut parameters = Vec::new();
        for p in &trainable {
            let len = p.shape.iter().product();
            let moments = (0..kept).map(|_| backend.alloc(p.dtype, len)).collect::<Result<Vec<_>>>()?;
            parameters.push(Moments { name: p.name.clone(), dtype: p.dtype, shape: p.shape.clone(), moments });
        }
        let shapes: Vec<Vec<usize>> = trainable.iter().map(|p| p.shape.clone()).collect();
        let dtype = trainable.first().map_or(DType::F32, |p| p.dtype);
        if let Some(p) = trainable.iter().find(|p| p.dtype != dtype) {
            return Err(err!(Unsupported, "parameters of several dtypes under one optimizer")
                .expected(dtype)
                .found(format!("{} of \"{}\"", p.dtype, p.name)));
        }
        sequences::expand(&mut graph, &shapes, dtype)?;
        let (learning_rate, step) = (backend.alloc(DType::F32, 1)?, backend.alloc(DType::I64, 1)?);
        let mut roles = Vec::new();
        for &id in &graph.inputs {
            let name = graph.name_of(id);
            let bound = |buffer: &B::Buffer, dtype, shape: &[usize]| Role::Bound {
                buffer: buffer.clone(),
                dtype,
                shape: shape.to_vec(),
            };
            let of = |sequence: &str| {
                name.strip_prefix(sequence)?.strip_prefix('.')?.parse::<usize>().ok().filter(|&i| i < trainable.len())
            };
            let role = if name == "learning_rate" {
                bound(&learning_rate, DType::F32, &[1])
            } else if name == "step" {
                bound(&step, DType::I64, &[1])
            } else if let Some(i) = of("params") {
                bound(&trainable[i].value, trainable[i].dtype, &trainable[i].shape)
            } else if let Some(i) = of("gradients") {
                let gradient = trainable[i].gradient.as_ref().expect("trainable parameters have one");
                bound(gradient, trainable[i].dtype, &trainable[i].shape)
            } else if let Some(i) = of("first_order_moments") {
                bound(&parameters[i].moments[0], trainable[i].dtype, &trainable[i].shape)
            } else if let Some(i) = of("second_order_moments") {
                bound(&parameters[i].moments[1], trainable[i].dtype, &trainable[i].shape)
            } else {
                bail!(Graph, "the optimizer model has an input \"{name}\" that ontrain does not know");
            };
            roles.push(role);
        }
        let model = Model::new(graph, roles, 0);
        let mut optimizer = Self {
            model,
            learning_rate,
            step,
            parameters,
            steps: 0,
            rate: DEFAULT_LEARNING_RATE,
            initial_rate: DEFAULT_LEARNING_RATE,
        };
        if let Some(memory) = &state.optimizer {
            optimizer.restore(backend, memory)?;
        }
        Ok(optimizer)
    }

    /// One step: updates the parameters of `module`, for which the optimizer was made, by the gradients gathered so far.
    /// The gradients stay; [`Module::lazy_reset_grad`] lets the next train step overwrite them.
    pub fn step(&mut self, module: &mut Module<B>) -> Result<()> {
        now(self.step_async(module))
    }

    /// As [`Self::step`], on devices that answer later. Does not wait for the device.
    pub async fn step_async(&mut self, module: &mut Module<B>) -> Result<()> {
        module.parameters.check_filled()?;
        let backend = module.backend();
        backend.upload(&self.learning_rate, &self.rate.to_le_bytes())?;
        backend.upload(&self.step, &(self.steps + 1).to_le_bytes())?;
        self.model.start(backend, &[], &RunContext::default()).await?;
        backend.flush();
        self.steps += 1;
        Ok(())
    }

    /// Optimizer steps taken, those of a restored state included.
    pub fn steps(&self) -> i64 {
        self.steps
    }

    /// The learning rate of the next step. Default 1e-3.
    pub fn learning_rate(&self) -> f32 {
        self.rate
    }

    /// Sets the learning rate. `Input` error unless it is finite and not negative.
    pub fn set_learning_rate(&mut self, rate: f32) -> Result<()> {
        if !(rate.is_finite() && rate >= 0.0) {
            return Err(err!(Input, "the learning rate cannot be used")
                .expected("a finite number, 0 or more")
                .found(rate));
        }
        self.rate = rate;
        Ok(())
    }

    /// Writes the optimizer's memory into a checkpoint state.
    pub fn save(&self, backend: &B, state: &mut CheckpointState) -> Result<()> {
        now(self.save_async(backend, state))
    }

    /// As [`Self::save`], on devices that answer later.
    pub async fn save_async(&self, backend: &B, state: &mut CheckpointState) -> Result<()> {
        state.optimizer = Some(self.memory_async(backend).await?);
        Ok(())
    }

    /// What the optimizer remembers.
    pub async fn memory_async(&self, backend: &B) -> Result<OptimizerState> {
        let mut states = Vec::new();
        for p in &self.parameters {
            let mut momentums = Vec::new();
            for (i, buffer) in p.moments.iter().enumerate() {
                let mut tensor = Tensor::zeros(p.dtype, &p.shape)?;
                backend.download(buffer, tensor.bytes_mut()).await?;
                momentums.push((format!("momentum{i}"), tensor));
            }
            states.push(ParameterState { param_name: p.name.clone(), momentums });
        }
        Ok(OptimizerState {
            group_name: OptimizerState::GROUP.into(),
            step: self.steps,
            initial_learning_rate: self.initial_rate,
            states,
        })
    }

    fn restore(&mut self, backend: &B, memory: &OptimizerState) -> Result<()> {
        for p in &self.parameters {
            let Some(state) = memory.states.iter().find(|s| s.param_name == p.name) else {
                bail!(Checkpoint, "the checkpoint's optimizer state lacks parameter \"{}\"", p.name);
            };
            for (i, buffer) in p.moments.iter().enumerate() {
                let wanted = format!("momentum{i}");
                let Some((_, tensor)) = state.momentums.iter().find(|(name, _)| *name == wanted) else { continue };
                if (tensor.dtype(), tensor.shape()) != (p.dtype, &*p.shape) {
                    return Err(err!(Checkpoint, "{wanted} of \"{}\" does not fit the parameter", p.name)
                        .expected(format!("{}{:?}", p.dtype, p.shape))
                        .found(format!("{}{:?}", tensor.dtype(), tensor.shape())));
                }
                backend.upload(buffer, tensor.bytes())?;
            }
        }
        self.steps = memory.step;
        self.initial_rate = memory.initial_learning_rate;
        self.rate = memory.initial_learning_rate;
        Ok(())
    }
}

/// How many moments the model keeps per parameter. `Graph` error if it is not an optimizer model.
fn moments_of(graph: &Graph) -> Result<usize> {
    let has = |name: &str| {
        let id = graph.find(name).filter(|id| graph.inputs.contains(id));
        id.is_some_and(|id| matches!(graph.value(id).ty, Some(ValueType::Sequence(_))))
    };
    if !has("params") || !has("gradients") {
        return Err(
            err!(Graph, "this is not an optimizer model").expected("sequence inputs \"params\" and \"gradients\"")
        );
    }
    Ok(has("first_order_moments") as usize + has("second_order_moments") as usize)
}
