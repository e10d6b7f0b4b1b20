//! Modules.

use super::checkpoint::put;
use super::task::{lent, start};
use super::value::{from_js, to_js};
use super::{JsResult, RawCheckpointState, RawDevice, RawFeeds, RawFiles, js};
use crate::backend::Any;
use crate::error::Result;
use crate::tensor::{DType, Tensor};
use crate::train::{Module, NonFinite};
use js_sys::{Array, Float32Array, Uint8Array};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A [`Module`]. Calls on it and on its optimizer are made one after the other.
#[wasm_bindgen]
pub struct RawModule {
    pub(super) module: Rc<RefCell<Module<Any>>>,
    /// Has every parameter a value? Known here so that it can be asked at any time.
    filled: Cell<bool>,
}

impl RawModule {
    /// Work with the module.
    fn with<T: Into<JsValue>>(
        &self,
        work: impl AsyncFnOnce(&mut Module<Any>) -> Result<T> + 'static,
    ) -> JsResult<JsValue> {
        let module = self.module.clone();
        start(async move { work(&mut *lent(&module)?).await })
    }

    /// Work with the module and inputs.
    fn step<T: Into<JsValue>>(
        &self,
        feeds: &RawFeeds,
        work: impl AsyncFnOnce(&mut Module<Any>, &[&Tensor]) -> Result<T> + 'static,
    ) -> JsResult<JsValue> {
        let feeds = feeds.tensors.clone();
        self.with(async move |module| {
            let feeds = lent(&feeds)?;
            work(module, &feeds.iter().collect::<Vec<_>>()).await
        })
    }

    /// A change of parameters, which is done at once.
    fn change(&self, work: impl FnOnce(&mut Module<Any>) -> Result<()>) -> JsResult<()> {
        let mut module = lent(&self.module).map_err(js)?;
        let changed = work(&mut module);
        self.filled.set(module.is_filled());
        changed.map_err(js)
    }
}

/// A loss, and all outputs.
fn result(loss: f32, outputs: &[Tensor]) -> Array {
    let result = Array::of1(&loss.into());
    outputs.iter().for_each(|tensor| {
        result.push(&to_js(tensor));
    });
    result
}

#[wasm_bindgen]
impl RawModule {
    /// A module of models' bytes and a checkpoint.
    #[wasm_bindgen(constructor)]
    pub fn new(
        train: &Uint8Array,
        eval: Option<Uint8Array>,
        state: &RawCheckpointState,
        device: &RawDevice,
        seed: u64,
    ) -> JsResult<Self> {
        let files = RawFiles::default();
        let train = files.read(train).map_err(|e| js(e.at("training model")))?;
        let eval = eval.map(|eval| files.read(&eval)).transpose().map_err(|e| js(e.at("eval model")))?;
        let mut module = Module::new(train, eval, &state.state.borrow(), device.device.clone()).map_err(js)?;
        module.set_seed(seed);
        let filled = Cell::new(module.is_filled());
        Ok(Self { module: Rc::new(RefCell::new(module)), filled })
    }

    /// Return a loss that is not finite instead of failing.
    #[wasm_bindgen(js_name = returnNonFinite)]
    pub fn return_non_finite(&self) -> JsResult<()> {
        lent(&self.module).map_err(js)?.set_non_finite(NonFinite::Return);
        Ok(())
    }

    /// Forward and backward; gives the loss and the outputs.
    #[wasm_bindgen(js_name = trainStep, unchecked_return_type = "StepAnswer | RawTask")]
    pub fn train_step(&self, feeds: &RawFeeds) -> JsResult<JsValue> {
        self.step(feeds, async |module, feeds| {
            let loss = module.train_step_async(feeds).await?;
            Ok(result(loss, module.train_outputs()))
        })
    }

    /// Begins a train step.
    #[wasm_bindgen(js_name = startTrainStep, unchecked_return_type = "RawTask | undefined")]
    pub fn start_train_step(&self, feeds: &RawFeeds) -> JsResult<JsValue> {
        self.step(feeds, async |module, feeds| module.start_train_step(feeds).await.map(|()| JsValue::UNDEFINED))
    }

    /// The loss and the outputs of the train step that was begun last.
    #[wasm_bindgen(js_name = readLoss, unchecked_return_type = "StepAnswer | RawTask")]
    pub fn read_loss(&self) -> JsResult<JsValue> {
        self.with(async |module| {
            let loss = module.loss_async().await?;
            Ok(result(loss, module.train_outputs()))
        })
    }

    /// Forward; gives the loss and the outputs.
    #[wasm_bindgen(js_name = evalStep, unchecked_return_type = "StepAnswer | RawTask")]
    pub fn eval_step(&self, feeds: &RawFeeds) -> JsResult<JsValue> {
        self.step(feeds, async |module, feeds| {
            let loss = module.eval_step_async(feeds).await?;
            Ok(result(loss, module.eval_outputs()))
        })
    }

    /// Lets the next train step overwrite the gradients.
    #[wasm_bindgen(js_name = lazyResetGrad)]
    pub fn lazy_reset_grad(&self) -> JsResult<()> {
        lent(&self.module).map_err(js)?.lazy_reset_grad();
        Ok(())
    }

    /// Names of the inputs of the training or eval model.
    #[wasm_bindgen(js_name = inputNames)]
    pub fn input_names(&self, training: bool) -> JsResult<Vec<String>> {
        lent(&self.module).and_then(|module| module.input_names(training)).map_err(js)
    }

    /// Names of the outputs of the training or eval model.
    #[wasm_bindgen(js_name = outputNames)]
    pub fn output_names(&self, training: bool) -> JsResult<Vec<String>> {
        lent(&self.module).and_then(|module| module.output_names(training)).map_err(js)
    }

    /// The plan for these inputs, as text.
    #[wasm_bindgen(unchecked_return_type = "string | RawTask")]
    pub fn plan(&self, training: bool, feeds: &RawFeeds) -> JsResult<JsValue> {
        self.step(feeds, async move |module, feeds| Ok(module.plan_async(training, feeds).await?.to_string()))
    }

    /// A parameter's value.
    #[wasm_bindgen(unchecked_return_type = "TensorAnswer | RawTask")]
    pub fn parameter(&self, name: String) -> JsResult<JsValue> {
        self.with(async move |module| Ok(to_js(&module.parameter_async(&name).await?)))
    }

    /// Replaces a parameter's value.
    #[wasm_bindgen(js_name = setParameter)]
    pub fn set_parameter(&self, name: &str, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> JsResult<()> {
        self.change(|module| module.set_parameter(name, &from_js(DType::from_onnx(dtype)?, dims, bytes)?))
    }

    /// The gradient gathered for a parameter.
    #[wasm_bindgen(unchecked_return_type = "TensorAnswer | RawTask")]
    pub fn gradient(&self, name: String) -> JsResult<JsValue> {
        self.with(async move |module| Ok(to_js(&module.gradient_async(&name).await?)))
    }

    /// Number of elements of all (trainable) parameters.
    #[wasm_bindgen(js_name = parametersSize)]
    pub fn parameters_size(&self, trainable_only: bool) -> JsResult<usize> {
        Ok(lent(&self.module).map_err(js)?.parameters_size(trainable_only))
    }

    /// All (trainable) parameters one after the other.
    #[wasm_bindgen(js_name = contiguousParameters, unchecked_return_type = "TensorAnswer | RawTask")]
    pub fn contiguous_parameters(&self, trainable_only: bool) -> JsResult<JsValue> {
        self.with(async move |module| Ok(to_js(&module.contiguous_parameters_async(trainable_only).await?)))
    }

    /// Fills the (trainable) parameters.
    #[wasm_bindgen(js_name = loadContiguousParameters)]
    pub fn load_contiguous_parameters(&self, values: &Float32Array, trainable_only: bool) -> JsResult<()> {
        self.change(|module| module.load_contiguous_parameters(&values.to_vec(), trainable_only))
    }

    /// Has every parameter a value?
    #[wasm_bindgen(getter, js_name = isFilled)]
    pub fn is_filled(&self) -> bool {
        self.filled.get()
    }

    /// Writes the parameters' current values into a checkpoint state, all or none.
    #[wasm_bindgen(unchecked_return_type = "RawTask | undefined")]
    pub fn save(&self, state: &RawCheckpointState) -> JsResult<JsValue> {
        let state = state.state.clone();
        self.with(async move |module| {
            let values = module.values_async().await?;
            put(&mut state.borrow_mut(), values).map(|()| JsValue::UNDEFINED)
        })
    }

    /// An inference model of the trained values.
    #[wasm_bindgen(js_name = exportModelForInferencing, unchecked_return_type = "Uint8Array | RawTask")]
    pub fn export_model_for_inferencing(&self, outputs: Vec<String>) -> JsResult<JsValue> {
        self.with(async move |module| {
            let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
            let bytes = module.export_model_for_inferencing_async(&outputs).await?;
            Ok(Uint8Array::from(&*bytes))
        })
    }
}
