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
        let check = index_check(size);
        let resolve = |(at, &index): (usize, &i64)| {
            let index_from_start = if index < 0 { index + size as i64 } else { index } as usize;
            let ok = allows(&check, indices.dtype, index);
            ok.then_some(index_from_start).ok_or_else(|| refusal(&check, index, at, indices.dtype, &indices.shape))
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
    match values.iter().position(|&v| !allows(k, view.dtype, v)) {
        Some(at) => Err(refusal(k, values[at], at, view.dtype, &view.shape)),
        None => Ok(()),
    }
}

/// What the indices of Gather and Scatter are checked for, along an axis of this size.
pub(crate) fn index_check(size: usize) -> Check {
    Check { what: "index", low: -(size as i64), high: size as i64, ignore: None }
}

/// Is a value of this dtype (`u64` by its bits) allowed? A negative one that stands for a large `u64` never is.
fn allows(check: &Check, dtype: DType, value: i64) -> bool {
    let beyond = dtype == DType::U64 && value < 0;
    !beyond && ((check.low..check.high).contains(&value) || check.ignore == Some(value))
}

/// The error for a value that a check does not allow, at row-major position `at` of a view of this dtype and shape. Backends
/// that check values themselves say it with this.
pub(crate) fn refusal(check: &Check, value: i64, mut at: usize, dtype: DType, shape: &[usize]) -> Error {
    let mut position = vec![0; shape.len()];
    for (coordinate, &size) in position.iter_mut().zip(shape).rev() {
        *coordinate = at % size;
        at /= size;
    }
    let range = match check.high.checked_sub(1) {
        Some(last) if last >= check.low => format!("{} to {last}", check.low),
        _ => "none".into(),
    };
    let expected = check.ignore.map_or(range.clone(), |ignore| format!("{range}, or {ignore}"));
    let value = if dtype == DType::U64 { (value as u64).to_string() } else { value.to_string() };
    let position = show_dims(&position);
    err!(Input, "{} {value} at position {position} is out of range", check.what).expected(expected).found(value)
}
