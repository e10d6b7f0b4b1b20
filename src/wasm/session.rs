//! Models that are only run.

use super::value::to_js;
use super::{JsResult, RawFeeds, RawFiles, js};
use crate::backend::cpu::Cpu;
use crate::train::Session;
use js_sys::{Array, Uint8Array};
use wasm_bindgen::prelude::*;

/// A [`Session`] on the processor.
#[wasm_bindgen]
pub struct RawSession {
    session: Session<Cpu>,
}

#[wasm_bindgen]
impl RawSession {
    /// A session for a model's bytes.
    #[wasm_bindgen(constructor)]
    pub fn new(model: &Uint8Array, files: &RawFiles, seed: u64) -> JsResult<Self> {
        let mut session = Session::new(files.read(model).map_err(js)?, Cpu);
        session.set_seed(seed);
        Ok(Self { session })
    }

    /// Names of the inputs.
    #[wasm_bindgen(js_name = inputNames)]
    pub fn input_names(&self) -> Vec<String> {
        self.session.input_names()
    }

    /// Names of the outputs.
    #[wasm_bindgen(js_name = outputNames)]
    pub fn output_names(&self) -> Vec<String> {
        self.session.output_names()
    }

    /// The outputs for `feeds`, in order.
    pub fn run(&mut self, feeds: &RawFeeds) -> JsResult<Vec<Array>> {
        Ok(self.session.run(&feeds.tensors()).map_err(js)?.iter().map(to_js).collect())
    }
}
