//! Optimizers and the schedule of their learning rate.

use super::{JsResult, RawCheckpointState, RawFiles, RawModule, js};
use crate::backend::cpu::Cpu;
use crate::train::{LinearLRScheduler, Optimizer};
use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;

/// An [`Optimizer`] on the processor.
#[wasm_bindgen]
pub struct RawOptimizer {
    optimizer: Optimizer<Cpu>,
}

#[wasm_bindgen]
impl RawOptimizer {
    /// An optimizer for `module` that goes on from the memory in `state`, if there is some.
    #[wasm_bindgen(constructor)]
    pub fn new(model: &Uint8Array, module: &RawModule, state: &RawCheckpointState) -> JsResult<Self> {
        let graph = RawFiles::default().read(model).map_err(|e| js(e.at("optimizer model")))?;
        let optimizer = Optimizer::new(graph, &module.module, &state.state).map_err(js)?;
        Ok(Self { optimizer })
    }

    /// Steps the module's parameters.
    pub fn step(&mut self, module: &mut RawModule) -> JsResult<()> {
        self.optimizer.step(&mut module.module).map_err(js)
    }

    /// Steps taken.
    #[wasm_bindgen(getter)]
    pub fn steps(&self) -> f64 {
        self.optimizer.steps() as f64
    }

    /// The learning rate of the next step.
    #[wasm_bindgen(getter, js_name = learningRate)]
    pub fn learning_rate(&self) -> f32 {
        self.optimizer.learning_rate()
    }

    /// Sets it.
    #[wasm_bindgen(js_name = setLearningRate)]
    pub fn set_learning_rate(&mut self, rate: f32) -> JsResult<()> {
        self.optimizer.set_learning_rate(rate).map_err(js)
    }

    /// Writes the optimizer's memory into a checkpoint state.
    pub fn save(&self, module: &RawModule, state: &mut RawCheckpointState) -> JsResult<()> {
        self.optimizer.save(module.module.backend(), &mut state.state).map_err(js)
    }
}

/// A [`LinearLRScheduler`].
#[wasm_bindgen]
pub struct RawLinearLRScheduler {
    scheduler: LinearLRScheduler,
}

#[wasm_bindgen]
impl RawLinearLRScheduler {
    /// A schedule for `optimizer`, whose learning rate it sets at once.
    #[wasm_bindgen(constructor)]
    pub fn new(
        optimizer: &mut RawOptimizer,
        warmup_step_count: u32,
        total_step_count: u32,
        initial_lr: f32,
    ) -> JsResult<Self> {
        let optimizer = &mut optimizer.optimizer;
        let scheduler =
            LinearLRScheduler::new(optimizer, warmup_step_count, total_step_count, initial_lr).map_err(js)?;
        Ok(Self { scheduler })
    }

    /// Sets the learning rate for the steps taken so far.
    pub fn step(&self, optimizer: &mut RawOptimizer) -> JsResult<()> {
        self.scheduler.step(&mut optimizer.optimizer).map_err(js)
    }
}
