//! The surface that JavaScript sees: thin classes over [`crate::artifacts`], [`crate::checkpoint`] and
//! [`crate::train`], without logic of their own. The TypeScript in `pkg-templates` is their only caller: it
//! shapes arguments, and turns errors into classes.
//!
//! Conventions: bytes come as `Uint8Array` and are copied once, into place; tensors leave as
//! `[ONNX dtype number, Uint32Array of sizes, Uint8Array of little-endian elements]`; an error is a JavaScript
//! `Error` with the properties `kind` and `at`; what may have to wait for the device gives its result or a [`RawTask`].
#![allow(clippy::await_holding_refcell_ref, reason = "calls on one object come one after the other; see task::lent")]

mod artifacts;
mod checkpoint;
mod device;
mod module;
mod optimizer;
mod session;
mod task;
mod value;

pub use artifacts::{RawArtifacts, RawGenerator};
pub use checkpoint::RawCheckpointState;
pub use device::{RawDevice, open_device};
pub use module::RawModule;
pub use optimizer::{RawLinearLRScheduler, RawOptimizer};
pub use session::RawSession;
pub use task::RawTask;
pub use value::{RawFeeds, RawFiles};

use crate::error::Error;
use js_sys::Reflect;
use wasm_bindgen::prelude::*;

#[wasm_bindgen(typescript_custom_section)]
const TYPES: &str = "
/** ONNX dtype number, sizes, little-endian elements. */
export type TensorAnswer = [number, Uint32Array, Uint8Array];
/** The loss, then all outputs. */
export type StepAnswer = [number, ...TensorAnswer[]];
";

/// `Result` as wasm-bindgen throws it.
type JsResult<T> = Result<T, JsValue>;

/// A panic is a bug. Without this hook it would be a trap without a word; so it throws an `Error` that says what
/// happened, and carries `panic: true`. The instance must not be used after that, which the caller sees to.
#[wasm_bindgen(start)]
fn start() {
    std::panic::set_hook(Box::new(|info| {
        let error = js_sys::Error::new(&info.to_string());
        set(&error, "panic", &JsValue::TRUE);
        wasm_bindgen::throw_val(error.into());
    }));
}

/// The JavaScript form of an error.
fn js(error: Error) -> JsValue {
    let thrown = js_sys::Error::new(&error.to_string());
    set(&thrown, "kind", &error.kind().name().into());
    if let Some(place) = error.place() {
        set(&thrown, "at", &place.into());
    }
    thrown.into()
}

/// Sets a property of a fresh object, which cannot fail.
fn set(object: &JsValue, name: &str, value: &JsValue) {
    let _ = Reflect::set(object, &name.into(), value);
}
