//! Modules.

use super::value::{from_js, to_js};
use super::{JsResult, RawCheckpointState, RawFeeds, RawFiles, js};
use crate::backend::cpu::Cpu;
use crate::tensor::DType;
use crate::train::{Module, NonFinite};
use js_sys::{Array, Float32Array, Uint8Array};
use wasm_bindgen::prelude::*;

/// A [`Module`] on the processor.
#[wasm_bindgen]
pub struct RawModule {
    pub(super) module: Module<Cpu>,
}

#[wasm_bindgen]
impl RawModule {
    /// A module of models' bytes and a checkpoint.
    #[wasm_bindgen(constructor)]
    pub fn new(train: &Uint8Array, eval: Option<Uint8Array>, state: &RawCheckpointState, seed: u64) -> JsResult<Self> {
        let files = RawFiles::default();
        let train = files.read(train).map_err(|e| js(e.at("training model")))?;
        let eval = eval.map(|eval| files.read(&eval)).transpose().map_err(|e| js(e.at("eval model")))?;
        let mut module = Module::new(train, eval, &state.state, Cpu).map_err(js)?;
        module.set_seed(seed);
        Ok(Self { module })
    }

    /// Return a loss that is not finite instead of failing.
    #[wasm_bindgen(js_name = returnNonFinite)]
    pub fn return_non_finite(&mut self) {
        self.module.set_non_finite(NonFinite::Return);
    }

    /// Is the module in train mode?
    #[wasm_bindgen(getter, js_name = isTraining)]
    pub fn is_training(&self) -> bool {
        self.module.is_training()
    }

    /// Train mode, or eval mode.
    pub fn train(&mut self, training: bool) {
        self.module.train(training);
    }

    /// Forward and backward; gives the loss.
    #[wasm_bindgen(js_name = trainStep)]
    pub fn train_step(&mut self, feeds: &RawFeeds) -> JsResult<f32> {
        self.module.train_step(&feeds.tensors()).map_err(js)
    }

    /// Forward; gives the loss.
    #[wasm_bindgen(js_name = evalStep)]
    pub fn eval_step(&mut self, feeds: &RawFeeds) -> JsResult<f32> {
        self.module.eval_step(&feeds.tensors()).map_err(js)
    }

    /// An output of the last train or eval step.
    pub fn output(&self, training: bool, index: usize) -> Option<Array> {
        let outputs = if training { self.module.train_outputs() } else { self.module.eval_outputs() };
        outputs.get(index).map(to_js)
    }

    /// Lets the next train step overwrite the gradients.
    #[wasm_bindgen(js_name = lazyResetGrad)]
    pub fn lazy_reset_grad(&mut self) {
        self.module.lazy_reset_grad();
    }

    /// Names of the inputs of the training or eval model.
    #[wasm_bindgen(js_name = inputNames)]
    pub fn input_names(&self, training: bool) -> JsResult<Vec<String>> {
        self.module.input_names(training).map_err(js)
    }

    /// Names of the outputs of the training or eval model.
    #[wasm_bindgen(js_name = outputNames)]
    pub fn output_names(&self, training: bool) -> JsResult<Vec<String>> {
        self.module.output_names(training).map_err(js)
    }

    /// The plan for these inputs, as text.
    pub fn plan(&mut self, training: bool, feeds: &RawFeeds) -> JsResult<String> {
        self.module.plan(training, &feeds.tensors()).map(ToString::to_string).map_err(js)
    }

    /// A parameter's value.
    pub fn parameter(&self, name: &str) -> JsResult<Array> {
        self.module.parameter(name).map(|tensor| to_js(&tensor)).map_err(js)
    }

    /// Replaces a parameter's value.
    #[wasm_bindgen(js_name = setParameter)]
    pub fn set_parameter(&mut self, name: &str, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> JsResult<()> {
        let tensor = DType::from_onnx(dtype).and_then(|dtype| from_js(dtype, dims, bytes));
        tensor.and_then(|tensor| self.module.set_parameter(name, &tensor)).map_err(js)
    }

    /// The gradient gathered for a parameter.
    pub fn gradient(&self, name: &str) -> JsResult<Array> {
        self.module.gradient(name).map(|tensor| to_js(&tensor)).map_err(js)
    }

    /// Number of elements of all (trainable) parameters.
    #[wasm_bindgen(js_name = parametersSize)]
    pub fn parameters_size(&self, trainable_only: bool) -> usize {
        self.module.parameters_size(trainable_only)
    }

    /// All (trainable) parameters one after the other.
    #[wasm_bindgen(js_name = contiguousParameters)]
    pub fn contiguous_parameters(&self, trainable_only: bool) -> JsResult<Array> {
        self.module.contiguous_parameters(trainable_only).map(|tensor| to_js(&tensor)).map_err(js)
    }

    /// Fills the (trainable) parameters.
    #[wasm_bindgen(js_name = loadContiguousParameters)]
    pub fn load_contiguous_parameters(&mut self, values: &Float32Array, trainable_only: bool) -> JsResult<()> {
        self.module.load_contiguous_parameters(&values.to_vec(), trainable_only).map_err(js)
    }

    /// Writes the parameters' current values into a checkpoint state.
    #[wasm_bindgen(js_name = saveParameters)]
    pub fn save_parameters(&self, state: &mut RawCheckpointState) -> JsResult<()> {
        self.module.save_parameters(&mut state.state).map_err(js)
    }

    /// An inference model of the trained values.
    #[wasm_bindgen(js_name = exportModelForInferencing)]
    pub fn export_model_for_inferencing(&self, outputs: Vec<String>) -> JsResult<Uint8Array> {
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let bytes = self.module.export_model_for_inferencing(&outputs).map_err(js)?;
        Ok(Uint8Array::from(&*bytes))
    }
}
