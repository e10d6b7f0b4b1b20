//! Optimizers and the schedule of their learning rate.

use super::checkpoint::put;
use super::task::{lent, start};
use super::{JsResult, RawCheckpointState, RawFiles, RawModule, js};
use crate::backend::Any;
use crate::train::{LinearLRScheduler, Optimizer};
use js_sys::Uint8Array;
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// An [`Optimizer`]. Calls on it and on its module are made one after the other.
#[wasm_bindgen]
pub struct RawOptimizer {
    optimizer: Rc<RefCell<Optimizer<Any>>>,
}

#[wasm_bindgen]
impl RawOptimizer {
    /// An optimizer for `module` that goes on from the memory in `state`, if there is some.
    #[wasm_bindgen(constructor)]
    pub fn new(model: &Uint8Array, module: &RawModule, state: &RawCheckpointState) -> JsResult<Self> {
        let graph = RawFiles::default().read(model).map_err(|e| js(e.at("optimizer model")))?;
        let module = lent(&module.module).map_err(js)?;
        let optimizer = Optimizer::new(graph, &module, &state.state.borrow()).map_err(js)?;
        Ok(Self { optimizer: Rc::new(RefCell::new(optimizer)) })
    }

    /// Steps the module's parameters.
    #[wasm_bindgen(unchecked_return_type = "RawTask | undefined")]
    pub fn step(&self, module: &RawModule) -> JsResult<JsValue> {
        let (optimizer, module) = (self.optimizer.clone(), module.module.clone());
        start(async move {
            let mut optimizer = lent(&optimizer)?;
            optimizer.step_async(&mut *lent(&module)?).await.map(|()| JsValue::UNDEFINED)
        })
    }

    /// Steps taken.
    pub fn steps(&self) -> JsResult<f64> {
        Ok(lent(&self.optimizer).map_err(js)?.steps() as f64)
    }

    /// The learning rate of the next step.
    #[wasm_bindgen(js_name = learningRate)]
    pub fn learning_rate(&self) -> JsResult<f32> {
        Ok(lent(&self.optimizer).map_err(js)?.learning_rate())
    }

    /// Sets it.
    #[wasm_bindgen(js_name = setLearningRate)]
    pub fn set_learning_rate(&self, rate: f32) -> JsResult<()> {
        lent(&self.optimizer).and_then(|mut optimizer| optimizer.set_learning_rate(rate)).map_err(js)
    }

    /// Writes the optimizer's memory, and the parameters' values if wanted, into a checkpoint state: all or nothing.
    #[wasm_bindgen(unchecked_return_type = "RawTask | undefined")]
    pub fn save(&self, module: &RawModule, state: &RawCheckpointState, parameters: bool) -> JsResult<JsValue> {
        let (optimizer, module, state) = (self.optimizer.clone(), module.module.clone(), state.state.clone());
        start(async move {
            let module = lent(&module)?;
            let values = if parameters { module.values_async().await? } else { Vec::new() };
            let memory = lent(&optimizer)?.memory_async(module.backend()).await?;
            let mut state = state.borrow_mut();
            put(&mut state, values)?;
            state.optimizer = Some(memory);
            Ok(JsValue::UNDEFINED)
        })
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
        optimizer: &RawOptimizer,
        warmup_step_count: u32,
        total_step_count: u32,
        initial_lr: f32,
    ) -> JsResult<Self> {
        let mut optimizer = lent(&optimizer.optimizer).map_err(js)?;
        let scheduler =
            LinearLRScheduler::new(&mut optimizer, warmup_step_count, total_step_count, initial_lr).map_err(js)?;
        Ok(Self { scheduler })
    }

    /// Sets the learning rate for the steps taken so far.
    pub fn step(&self, optimizer: &RawOptimizer) -> JsResult<()> {
        lent(&optimizer.optimizer).and_then(|mut optimizer| self.scheduler.step(&mut optimizer)).map_err(js)
    }
}
