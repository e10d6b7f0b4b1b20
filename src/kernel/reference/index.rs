//! Kernels that look at indices: Gather, Scatter, Check.

use super::super::{Buffers, Check, Gather, Scatter, Step, View};
use super::values::{Number, Values};
use super::{load, mixed_operands, read, store, write};
use crate::error::{Error, Result, bail, err};
use crate::tensor::{DType, Tensor, show_dims};

pub(super) fn gather(k: &Gather, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    let (data, out) = (&step.reads[0], &step.writes[0]);
    let slices = Slices::new(k.axis, data, &step.reads[1], buffers)?;
    let data = read(buffers, data)?;
    let mut result = Tensor::zeros(out.dtype, &out.shape)?;
    // Bit for bit, whatever the dtype.
    let bytes = slices.inner * out.dtype.size();
    slices.each(|in_data, in_slices| {
        result.bytes_mut()[in_slices * bytes..][..bytes].copy_from_slice(&data.bytes()[in_data * bytes..][..bytes]);
    });
    write(buffers, out, &result)
}

pub(super) fn scatter(k: &Scatter, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    fn add<T: Number>(slices: &Slices, updates: &[T], len: usize) -> Vec<T> {
        let mut data = vec![T::ZERO; len];
        slices.each(|in_data, in_slices| {
            for i in 0..slices.inner {
                let sum = &mut data[in_data * slices.inner + i];
                *sum = sum.plus(updates[in_slices * slices.inner + i]);
            }
        });
        data
    }
    let data = &step.writes[0];
    let slices = Slices::new(k.axis, data, &step.reads[0], buffers)?;
    let result = match load(buffers, &step.reads[1])? {
        Values::Float(updates) => Values::Float(add(&slices, &updates, data.len())),
        Values::Int(updates) => Values::Int(add(&slices, &updates, data.len())),
    };
    store(buffers, data, &result)
}

/// Slices of a tensor along an axis, chosen by index.
struct Slices {
    /// Product of the sizes before the axis.
    outer: usize,
    /// Size of the axis.
    size: usize,
    /// Product of the sizes after the axis: elements of a slice.
    inner: usize,
    /// Each in `0..size`.
    indices: Vec<usize>,
}

impl Slices {
    /// Reads and checks the indices.
    fn new(axis: usize, data: &View, indices: &View, buffers: &dyn Buffers) -> Result<Self> {
        let size = data.shape[axis];
        let Values::Int(ints) = load(buffers, indices)? else {
            return Err(mixed_operands("Gather by index"));
        };
        let low = -(size as i64);
        let resolve = |(at, &index): (usize, &i64)| {
            // A negative `i64` that stands for a large `u64` counts from nowhere.
            let fits = (low..size as i64).contains(&index) && !(indices.dtype == DType::U64 && index < 0);
            let index_from_start = if index < 0 { index - low } else { index } as usize;
            fits.then_some(index_from_start).ok_or_else(|| {
                out_of_range("index", index, at, indices).expected(format!("{low} to {}", size as i64 - 1))
            })
        };
        Ok(Self {
            outer: data.shape[..axis].iter().product(),
            size,
            inner: data.shape[axis + 1..].iter().product(),
            indices: ints.iter().enumerate().map(resolve).collect::<Result<_>>()?,
        })
    }

    /// Calls `visit` with the number of every slice in the data and in the gathered result.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for outer in 0..self.outer {
            for (i, &index) in self.indices.iter().enumerate() {
                visit(outer * self.size + index, outer * self.indices.len() + i);
            }
        }
    }
}

pub(super) fn check(k: &Check, step: &Step, buffers: &dyn Buffers) -> Result<()> {
    let view = &step.reads[0];
    let Values::Int(values) = load(buffers, view)? else {
        bail!(Unsupported, "range check of {} values", view.dtype);
    };
    let allowed = |value: i64| {
        let beyond = view.dtype == DType::U64 && value < 0;
        !beyond && ((k.low..k.high).contains(&value) || k.ignore == Some(value))
    };
    let Some(at) = values.iter().position(|&v| !allowed(v)) else {
        return Ok(());
    };
    let range = match k.high.checked_sub(1) {
        Some(last) if last >= k.low => format!("{} to {last}", k.low),
        _ => "none".into(),
    };
    let expected = k.ignore.map_or(range.clone(), |ignore| format!("{range}, or {ignore}"));
    Err(out_of_range(k.what, values[at], at, view).expected(expected))
}

/// An error for the value at row-major position `at` of a view.
fn out_of_range(what: &str, value: i64, mut at: usize, view: &View) -> Error {
    let mut position = vec![0; view.rank()];
    for (coordinate, &size) in position.iter_mut().zip(&view.shape).rev() {
        *coordinate = at % size;
        at /= size;
    }
    let value = if view.dtype == DType::U64 { (value as u64).to_string() } else { value.to_string() };
    err!(Input, "{what} {value} at position {} is out of range", show_dims(&position)).found(value)
}
