//! Generating artifacts.

use super::value::from_js;
use super::{JsResult, RawFiles, js};
use crate::artifacts::{Artifacts, Loss, Optimizer, Options, Reduction, generate};
use crate::error::{Result, bail};
use crate::tensor::{DType, Tensor};
use js_sys::Uint8Array;
use wasm_bindgen::prelude::*;

/// Collects [`Options`], then generates.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawGenerator {
    options: Options,
    reduction: Reduction,
    weight: Option<Tensor>,
    ignore_index: Option<i64>,
}

#[wasm_bindgen]
impl RawGenerator {
    /// The defaults of [`Options`].
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Parameters to train and to freeze: names or globs.
    pub fn parameters(&mut self, requires_grad: Vec<String>, frozen_params: Vec<String>) {
        self.options.requires_grad = requires_grad;
        self.options.frozen_params = frozen_params;
    }

    /// Outputs besides the loss, and the outputs that the loss gets.
    pub fn outputs(&mut self, additional: Vec<String>, loss_inputs: Vec<String>) {
        self.options.additional_output_names = additional;
        self.options.loss_input_names = loss_inputs;
    }

    /// Also make a checkpoint without values?
    #[wasm_bindgen(js_name = nominalCheckpoint)]
    pub fn nominal_checkpoint(&mut self, wanted: bool) {
        self.options.nominal_checkpoint = wanted;
    }

    /// The weight of [`Self::loss`]: per class, or of positive targets.
    pub fn weight(&mut self, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> JsResult<()> {
        self.weight = Some(DType::from_onnx(dtype).and_then(|dtype| from_js(dtype, dims, bytes)).map_err(js)?);
        Ok(())
    }

    /// The label that does not count, of [`Self::loss`].
    #[wasm_bindgen(js_name = ignoreIndex)]
    pub fn ignore_index(&mut self, label: i64) {
        self.ignore_index = Some(label);
    }

    /// The loss, by ORT's name or `none`, with the weight and label given before.
    pub fn loss(&mut self, name: &str, reduction: &str) -> JsResult<()> {
        self.set_loss(name, reduction).map_err(js)
    }

    fn set_loss(&mut self, name: &str, reduction: &str) -> Result<()> {
        self.reduction = match reduction {
            "mean" => Reduction::Mean,
            "sum" => Reduction::Sum,
            _ => bail!(Input, "there is no reduction \"{reduction}\"; expected mean or sum"),
        };
        let (reduction, weight, ignore_index) = (self.reduction, self.weight.take(), self.ignore_index.take());
        self.options.loss = match name {
            "none" => Loss::None,
            "MSELoss" => Loss::MSELoss(reduction),
            "L1Loss" => Loss::L1Loss(reduction),
            "CrossEntropyLoss" => Loss::CrossEntropyLoss { reduction, weight, ignore_index },
            "BCEWithLogitsLoss" => Loss::BCEWithLogitsLoss { reduction, pos_weight: weight },
            _ => bail!(
                Input,
                "there is no loss \"{name}\"; expected MSELoss, L1Loss, CrossEntropyLoss, BCEWithLogitsLoss or none"
            ),
        };
        Ok(())
    }

    /// AdamW.
    pub fn adamw(
        &mut self,
        beta1: f32,
        beta2: f32,
        eps: f32,
        weight_decay: f32,
        bias_correction: bool,
        clip_grad_norm: Option<f32>,
    ) {
        let betas = (beta1, beta2);
        self.options.optimizer = Some(Optimizer::AdamW { betas, eps, weight_decay, bias_correction, clip_grad_norm });
    }

    /// Plain gradient descent.
    pub fn sgd(&mut self, clip_grad_norm: Option<f32>) {
        self.options.optimizer = Some(Optimizer::SGD { clip_grad_norm });
    }

    /// The artifacts of `model`.
    pub fn generate(&self, model: &Uint8Array, files: &RawFiles) -> JsResult<RawArtifacts> {
        let artifacts = files.read(model).and_then(|graph| generate(&graph, &self.options)).map_err(js)?;
        Ok(RawArtifacts { artifacts })
    }
}

/// Generated files.
#[wasm_bindgen]
pub struct RawArtifacts {
    artifacts: Artifacts,
}

#[wasm_bindgen]
impl RawArtifacts {
    /// Forward, backward, accumulation.
    #[wasm_bindgen(getter, js_name = trainingModel)]
    pub fn training_model(&self) -> Uint8Array {
        Uint8Array::from(&*self.artifacts.training_model)
    }

    /// Forward and loss.
    #[wasm_bindgen(getter, js_name = evalModel)]
    pub fn eval_model(&self) -> Uint8Array {
        Uint8Array::from(&*self.artifacts.eval_model)
    }

    /// The optimizer step.
    #[wasm_bindgen(getter, js_name = optimizerModel)]
    pub fn optimizer_model(&self) -> Option<Uint8Array> {
        self.artifacts.optimizer_model.as_deref().map(Uint8Array::from)
    }

    /// Parameters.
    #[wasm_bindgen(getter)]
    pub fn checkpoint(&self) -> Uint8Array {
        Uint8Array::from(&*self.artifacts.checkpoint)
    }

    /// Their names and dtypes.
    #[wasm_bindgen(getter, js_name = nominalCheckpoint)]
    pub fn nominal_checkpoint(&self) -> Option<Uint8Array> {
        self.artifacts.nominal_checkpoint.as_deref().map(Uint8Array::from)
    }
}
