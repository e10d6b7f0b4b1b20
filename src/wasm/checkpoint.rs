//! Checkpoints.

use super::value::{from_js, to_js};
use super::{JsResult, js};
use crate::checkpoint::{CheckpointState, Property};
use crate::error::{Result, err};
use crate::tensor::{DType, Tensor};
use js_sys::{Array, Uint8Array};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A [`CheckpointState`]. It is borrowed for moments only, never while a device is waited for.
#[wasm_bindgen]
pub struct RawCheckpointState {
    pub(super) state: Rc<RefCell<CheckpointState>>,
}

/// Puts a module's values into the state of its checkpoint.
pub(super) fn put(state: &mut CheckpointState, values: Vec<(String, Tensor)>) -> Result<()> {
    values.into_iter().try_for_each(|(name, value)| state.set_parameter(&name, value))
}

#[wasm_bindgen]
impl RawCheckpointState {
    /// Reads a checkpoint file's bytes.
    #[wasm_bindgen(constructor)]
    pub fn new(bytes: &Uint8Array) -> JsResult<Self> {
        let state = CheckpointState::from_bytes(&bytes.to_vec()).map_err(js)?;
        Ok(Self { state: Rc::new(RefCell::new(state)) })
    }

    /// The bytes of the checkpoint file.
    #[wasm_bindgen(js_name = toBytes)]
    pub fn to_bytes(&self, include_optimizer_state: bool) -> JsResult<Uint8Array> {
        let bytes = self.state.borrow().to_bytes(include_optimizer_state).map_err(js)?;
        Ok(Uint8Array::from(&*bytes))
    }

    /// Names of all parameters, or of the trainable ones.
    #[wasm_bindgen(js_name = parameterNames)]
    pub fn parameter_names(&self, trainable_only: bool) -> Vec<String> {
        let state = self.state.borrow();
        let chosen = state.parameters().iter().filter(|p| p.requires_grad || !trainable_only);
        chosen.map(|p| p.name.clone()).collect()
    }

    /// A parameter's value.
    #[wasm_bindgen(unchecked_return_type = "TensorAnswer")]
    pub fn parameter(&self, name: &str) -> JsResult<Array> {
        let state = self.state.borrow();
        let parameter = state.parameter(name);
        let parameter = parameter.ok_or_else(|| js(err!(Input, "the checkpoint has no parameter named \"{name}\"")))?;
        let value = parameter.value.as_ref();
        let value = value.ok_or_else(|| {
            js(err!(
                State,
                "the checkpoint is nominal: parameter \"{name}\" has no value yet; fill every parameter first"
            ))
        })?;
        Ok(to_js(value))
    }

    /// Replaces or fills a parameter's value.
    #[wasm_bindgen(js_name = setParameter)]
    pub fn set_parameter(&self, name: &str, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> JsResult<()> {
        let tensor = DType::from_onnx(dtype).and_then(|dtype| from_js(dtype, dims, bytes));
        tensor.and_then(|tensor| self.state.borrow_mut().set_parameter(name, tensor)).map_err(js)
    }

    /// Is some parameter unfilled?
    #[wasm_bindgen(getter, js_name = isNominal)]
    pub fn is_nominal(&self) -> bool {
        self.state.borrow().is_nominal()
    }

    /// Names of the properties.
    #[wasm_bindgen(js_name = propertyNames)]
    pub fn property_names(&self) -> Vec<String> {
        self.state.borrow().properties().keys().cloned().collect()
    }

    /// A property: a bigint for a whole number, a number, a string, or undefined.
    pub fn property(&self, name: &str) -> JsValue {
        match self.state.borrow().property(name) {
            None => JsValue::UNDEFINED,
            Some(Property::Int(value)) => (*value).into(),
            Some(Property::Float(value)) => (*value).into(),
            Some(Property::String(value)) => value.into(),
        }
    }

    /// Sets a property that is a whole number.
    #[wasm_bindgen(js_name = setInt)]
    pub fn set_int(&self, name: &str, value: i64) {
        self.state.borrow_mut().add_property(name, value);
    }

    /// Sets a property that is a number.
    #[wasm_bindgen(js_name = setFloat)]
    pub fn set_float(&self, name: &str, value: f32) {
        self.state.borrow_mut().add_property(name, value);
    }

    /// Sets a property that is a text.
    #[wasm_bindgen(js_name = setString)]
    pub fn set_string(&self, name: &str, value: &str) {
        self.state.borrow_mut().add_property(name, value);
    }
}
