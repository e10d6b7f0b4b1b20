//! Every kernel for every dtype, written to be plainly right. It is the oracle of every backend,
//! folds constants while planning, and computes the dtypes for which a backend has no fast path.
//!
//! Floats of any width are computed in `f64` and rounded where they are stored or cast; integers
//! are exact in `i64` (`u64` by its bits) and wrap to the dtype's width after each operation. Sums
//! run in plain row-major order. All operands are read before anything is written, so that writes
//! may alias reads. A [`Fused`](Kernel::Fused) kernel of one element allocates nothing.

mod conv;
mod erf;
mod expr;
mod index;
mod matmul;
mod pool;
mod scalar;
#[cfg(test)]
mod tests;
mod values;
mod window;

pub use erf::erf;
#[cfg(feature = "webgpu")]
#[cfg(feature = "webgpu")]
pub(crate) use index::{index_check, refusal};

use super::{BufferId, Buffers, Kernel, RunContext, Step, View};
use crate::error::{Error, Result, bail, err};
use crate::tensor::{AlignedBytes, DType, Tensor};
use values::Values;
pub(crate) use values::round;
#[cfg(feature = "webgpu")]
pub(crate) use values::{int_limits, truncate, whole, wrap};

/// Runs one step on `buffers`.
///
/// Errors: `Input` for an index or checked value out of range, naming it, its position and what is
/// allowed; `Unsupported` for an operation that the dtype does not have (`Exp` of integers, `And` of
/// floats); `Plan` for a view that leaves its buffer. All name `step.from`.
pub fn run(step: &Step, buffers: &mut dyn Buffers, cx: &RunContext) -> Result<()> {
    let done = match &step.kernel {
        Kernel::Fused(k) if scalar::takes(k) => scalar::fused(k, step, buffers, cx),
        Kernel::Fused(k) => expr::fused(k, step, buffers, cx),
        Kernel::Reduce(k) => expr::reduce(k, step, buffers, cx),
        Kernel::Gemm(k) => matmul::gemm(k, step, buffers),
        Kernel::Conv(k) => conv::conv(k, step, buffers),
        Kernel::Pool(k) => pool::pool(k, step, buffers),
        Kernel::Copy => read(buffers, &step.reads[0]).and_then(|tensor| write(buffers, &step.writes[0], &tensor)),
        Kernel::Gather(k) => index::gather(k, step, buffers),
        Kernel::Scatter(k) => index::scatter(k, step, buffers),
        Kernel::Check(k) => index::check(k, step, buffers),
    };
    done.map_err(|e| e.at(&*step.from))
}

/// Buffers in host memory, one allocation each: what constants are folded on, and tests run on.
#[derive(Clone, Default)]
pub struct HostBuffers(pub Vec<AlignedBytes>);

impl HostBuffers {
    /// No buffers.
    pub fn new() -> Self {
        Self::default()
    }

    /// A new buffer that holds a copy of `tensor`; see it through [`View::contiguous`].
    pub fn add(&mut self, tensor: &Tensor) -> BufferId {
        self.0.push(AlignedBytes::copy_of(tensor.bytes()));
        BufferId(self.0.len() as u32 - 1)
    }

    /// A new buffer of zeros for a tensor of `dtype` and `shape`. Fails if the size overflows.
    pub fn add_zeros(&mut self, dtype: DType, shape: &[usize]) -> Result<BufferId> {
        Ok(self.add(&Tensor::zeros(dtype, shape)?))
    }

    /// The elements that `view` sees, in row-major order. Fails if it leaves its buffer.
    pub fn read(&self, view: &View) -> Result<Tensor> {
        read(self, view)
    }
}

impl Buffers for HostBuffers {
    fn bytes(&self, id: BufferId) -> &[u8] {
        self.0[id.index()].as_bytes()
    }
    fn bytes_mut(&mut self, id: BufferId) -> &mut [u8] {
        self.0[id.index()].as_bytes_mut()
    }
}

/// Calls `visit` with the position of every element of a strided walk, in row-major order.
fn walk(shape: &[usize], offset: usize, strides: &[isize], mut visit: impl FnMut(usize)) {
    if shape.contains(&0) {
        return;
    }
    let Some((&inner, outer)) = shape.split_last() else {
        return visit(offset);
    };
    let mut at = vec![0; outer.len()];
    let mut base = offset as isize;
    loop {
        for i in 0..inner as isize {
            visit((base + i * strides[outer.len()]) as usize);
        }
        // Count up the outer coordinate, last axis first.
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            base += strides[axis];
            if at[axis] < outer[axis] {
                break;
            }
            at[axis] = 0;
            base -= strides[axis] * outer[axis] as isize;
        }
    }
}

/// The elements of a view, bit for bit.
pub fn read(buffers: &(impl Buffers + ?Sized), view: &View) -> Result<Tensor> {
    fn copy<const SIZE: usize>(from: &[u8], view: &View, to: &mut [u8]) {
        let from = from.as_chunks::<SIZE>().0;
        let mut to = to.as_chunks_mut::<SIZE>().0.iter_mut();
        walk(&view.shape, view.offset, &view.strides, |p| {
            if let Some(to) = to.next() {
                *to = from[p];
            }
        });
    }
    let mut tensor = Tensor::zeros(view.dtype, &view.shape)?;
    if view.is_empty() {
        return Ok(tensor);
    }
    let from = buffers.bytes(view.buffer);
    inside(view, from.len())?;
    let to = tensor.bytes_mut();
    match view.dtype.size() {
        1 => copy::<1>(from, view, to),
        2 => copy::<2>(from, view, to),
        4 => copy::<4>(from, view, to),
        _ => copy::<8>(from, view, to),
    }
    Ok(tensor)
}

/// Writes the elements of `tensor` through a view of the same dtype and number of elements.
fn write(buffers: &mut (impl Buffers + ?Sized), view: &View, tensor: &Tensor) -> Result<()> {
    fn copy<const SIZE: usize>(from: &[u8], view: &View, to: &mut [u8]) {
        let to = to.as_chunks_mut::<SIZE>().0;
        let mut from = from.as_chunks::<SIZE>().0.iter();
        walk(&view.shape, view.offset, &view.strides, |p| {
            if let Some(from) = from.next() {
                to[p] = *from;
            }
        });
    }
    debug_assert_eq!((view.dtype, view.len()), (tensor.dtype(), tensor.len()));
    if view.is_empty() {
        return Ok(());
    }
    let to = buffers.bytes_mut(view.buffer);
    inside(view, to.len())?;
    let from = tensor.bytes();
    match view.dtype.size() {
        1 => copy::<1>(from, view, to),
        2 => copy::<2>(from, view, to),
        4 => copy::<4>(from, view, to),
        _ => copy::<8>(from, view, to),
    }
    Ok(())
}

/// Fails if `view` reaches outside a buffer of `bytes` bytes.
fn inside(view: &View, bytes: usize) -> Result<()> {
    let len = bytes / view.dtype.size();
    match view.span() {
        Some((low, high)) if low >= len || high >= len => {
            bail!(Plan, "a view reaches elements {low} to {high} of a buffer that holds {len} of {}", view.dtype)
        }
        _ => Ok(()),
    }
}

/// The elements of a view as numbers.
fn load(buffers: &dyn Buffers, view: &View) -> Result<Values> {
    read(buffers, view).map(|tensor| Values::of(&tensor))
}

/// Rounds or wraps `values` to the dtype of a view and writes them through it.
fn store(buffers: &mut dyn Buffers, view: &View, values: &Values) -> Result<()> {
    let tensor = values.to_tensor(view.dtype, &view.shape)?;
    write(buffers, view, &tensor)
}

/// The error for operands of which some are floats and some are not.
fn mixed_operands(kernel: &str) -> Error {
    err!(Unsupported, "{kernel} of floats and integers together")
}
