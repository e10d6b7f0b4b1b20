//! Devices.

use super::JsResult;
use super::task::start;
use crate::backend::{Any, Backend, cpu::Cpu};
use crate::train::self_check;
use wasm_bindgen::prelude::*;

/// A device: where modules and sessions compute.
#[wasm_bindgen]
pub struct RawDevice {
    pub(super) device: Any,
}

/// Opens the device `wasm`, which is the processor, or `webgpu`.
#[wasm_bindgen(js_name = openDevice, unchecked_return_type = "RawDevice | RawTask")]
pub fn open_device(name: String) -> JsResult<JsValue> {
    start(async move {
        let device = if name == "wasm" { Any::Cpu(Cpu) } else { Any::open(&name).await? };
        Ok(RawDevice { device })
    })
}

#[wasm_bindgen]
impl RawDevice {
    /// `wasm` or `webgpu`.
    #[wasm_bindgen(getter, unchecked_return_type = "\"wasm\" | \"webgpu\"")]
    pub fn name(&self) -> String {
        let name = self.device.name();
        if name == "cpu" { "wasm".into() } else { name.into() }
    }

    /// What a GPU has been asked to make and do so far, by name; undefined on the processor.
    #[wasm_bindgen(getter)]
    pub fn counters(&self) -> JsValue {
        match &self.device {
            Any::Cpu(_) => JsValue::UNDEFINED,
            #[cfg(feature = "webgpu")]
            Any::WebGpu(gpu) => {
                let counters = gpu.counters();
                let object = js_sys::Object::new().into();
                for (name, count) in [
                    ("buffers", counters.buffers),
                    ("bindGroups", counters.bind_groups),
                    ("pipelines", counters.pipelines),
                    ("submissions", counters.submissions),
                    ("maps", counters.maps),
                    ("dispatches", counters.dispatches),
                ] {
                    super::set(&object, name, &count.into());
                }
                object
            }
        }
    }

    /// Is the device lost, for good?
    #[wasm_bindgen(getter, js_name = isLost)]
    pub fn is_lost(&self) -> bool {
        match &self.device {
            Any::Cpu(_) => false,
            #[cfg(feature = "webgpu")]
            Any::WebGpu(gpu) => gpu.is_lost(),
        }
    }

    /// Gives a GPU up, as if it had been lost.
    pub fn destroy(&self) {
        match &self.device {
            Any::Cpu(_) => {}
            #[cfg(feature = "webgpu")]
            Any::WebGpu(gpu) => gpu.destroy(),
        }
    }

    /// Computes a train step of a small model here and on the processor. `Device` error if they differ.
    #[wasm_bindgen(js_name = selfCheck, unchecked_return_type = "RawTask | undefined")]
    pub fn self_check(&self) -> JsResult<JsValue> {
        let device = self.device.clone();
        start(async move { self_check(&device).await.map(|()| JsValue::UNDEFINED) })
    }
}
