//! Models that are only run.

use super::task::{lent, start};
use super::value::to_js;
use super::{JsResult, RawDevice, RawFeeds, RawFiles, js};
use crate::backend::Any;
use crate::tensor::Tensor;
use crate::train::Session;
use js_sys::{Array, Uint8Array};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// A [`Session`].
#[wasm_bindgen]
pub struct RawSession {
    session: Rc<RefCell<Session<Any>>>,
}

#[wasm_bindgen]
impl RawSession {
    /// A session for a model's bytes.
    #[wasm_bindgen(constructor)]
    pub fn new(model: &Uint8Array, files: &RawFiles, device: &RawDevice, seed: u64) -> JsResult<Self> {
        let mut session = Session::new(files.read(model).map_err(js)?, device.device.clone());
        session.set_seed(seed);
        Ok(Self { session: Rc::new(RefCell::new(session)) })
    }

    /// Names of the inputs.
    #[wasm_bindgen(js_name = inputNames)]
    pub fn input_names(&self) -> JsResult<Vec<String>> {
        Ok(lent(&self.session).map_err(js)?.input_names())
    }

    /// Names of the outputs.
    #[wasm_bindgen(js_name = outputNames)]
    pub fn output_names(&self) -> JsResult<Vec<String>> {
        Ok(lent(&self.session).map_err(js)?.output_names())
    }

    /// The outputs for `feeds`, in order.
    #[wasm_bindgen(unchecked_return_type = "TensorAnswer[] | RawTask")]
    pub fn run(&self, feeds: &RawFeeds) -> JsResult<JsValue> {
        let (session, feeds) = (self.session.clone(), feeds.tensors.clone());
        start(async move {
            let (mut session, feeds) = (lent(&session)?, lent(&feeds)?);
            let outputs = session.run_async(&feeds.iter().collect::<Vec<&Tensor>>()).await?;
            Ok(outputs.iter().map(to_js).collect::<Array>())
        })
    }
}
