//! Tensors and files on their way between JavaScript and the engine.

use super::task::lent;
use super::{JsResult, js};
use crate::error::{Result, bail, err};
use crate::onnx;
use crate::tensor::{DType, Tensor};
use js_sys::{Array, Uint8Array, Uint32Array};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use wasm_bindgen::prelude::*;

/// The inputs of a step, kept from step to step: an input of the same dtype and sizes as last time is copied
/// into the place that is there.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawFeeds {
    pub(super) tensors: Rc<RefCell<Vec<Tensor>>>,
}

#[wasm_bindgen]
impl RawFeeds {
    /// No inputs yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets input `index`, which is one that is there or the next one.
    pub fn set(&self, index: usize, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> JsResult<()> {
        self.put(index, dtype, dims, bytes).map_err(js)
    }

    fn put(&self, index: usize, dtype: i32, dims: &[u32], bytes: &Uint8Array) -> Result<()> {
        let dtype = DType::from_onnx(dtype)?;
        let mut tensors = lent(&self.tensors)?;
        let same =
            |t: &&mut Tensor| t.dtype() == dtype && t.shape().iter().copied().eq(dims.iter().map(|&d| d as usize));
        if let Some(tensor) = tensors.get_mut(index).filter(same) {
            return fill(tensor, bytes);
        }
        let tensor = from_js(dtype, dims, bytes)?;
        let count = tensors.len();
        match tensors.get_mut(index) {
            Some(place) => *place = tensor,
            None if index == count => tensors.push(tensor),
            None => bail!(Input, "input {count} is missing before input {index}"),
        }
        Ok(())
    }
}

/// Files by name: what a model's external data lies in.
#[wasm_bindgen]
#[derive(Default)]
pub struct RawFiles {
    files: BTreeMap<String, Vec<u8>>,
}

#[wasm_bindgen]
impl RawFiles {
    /// No files yet.
    #[wasm_bindgen(constructor)]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file.
    pub fn add(&mut self, name: String, bytes: &Uint8Array) {
        self.files.insert(name, bytes.to_vec());
    }
}

impl RawFiles {
    /// Reads a model whose external data lies in these files.
    pub(super) fn read(&self, model: &Uint8Array) -> Result<crate::graph::Graph> {
        onnx::read(&model.to_vec(), &self.files)
    }
}

/// A tensor of `bytes`.
pub(super) fn from_js(dtype: DType, dims: &[u32], bytes: &Uint8Array) -> Result<Tensor> {
    let shape: Vec<usize> = dims.iter().map(|&d| d as usize).collect();
    let mut tensor = sized(dtype, &shape, bytes)?;
    fill(&mut tensor, bytes)?;
    Ok(tensor)
}

/// Zeros of a shape that `bytes` fill: nothing is set aside for more than they are.
fn sized(dtype: DType, shape: &[usize], bytes: &Uint8Array) -> Result<Tensor> {
    let wanted = crate::tensor::checked_len(shape).and_then(|n| n.checked_mul(dtype.size()));
    if wanted != Some(bytes.length() as usize) {
        let shown = crate::tensor::show_dims(shape);
        return Err(
            err!(Input, "data does not fill a {dtype} tensor of {shown}").found(format!("{} bytes", bytes.length()))
        );
    }
    Tensor::zeros(dtype, shape)
}

fn fill(tensor: &mut Tensor, bytes: &Uint8Array) -> Result<()> {
    let place = tensor.bytes_mut();
    if place.len() != bytes.length() as usize {
        return Err(err!(Input, "data does not fill its tensor").expected(place.len()).found(bytes.length()));
    }
    bytes.copy_to(place);
    if tensor.dtype() == DType::Bool
        && let Some(other) = tensor.bytes().iter().find(|b| **b > 1)
    {
        return Err(err!(Input, "an element of a bool tensor is neither 0 nor 1").found(other));
    }
    Ok(())
}

/// `[dtype, dims, bytes]`.
pub(super) fn to_js(tensor: &Tensor) -> Array {
    let dims: Vec<u32> = tensor.shape().iter().map(|&d| d as u32).collect();
    let dims = Uint32Array::from(&*dims);
    Array::of3(&tensor.dtype().onnx().into(), &dims, &Uint8Array::from(tensor.bytes()))
}
