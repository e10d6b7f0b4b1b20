//! The Pool kernel on f32 views.

use super::conv::MAX_SPATIAL;
use super::matmul::{slice_mut, slice_of};
use super::memory::Memory;
use super::pool::{
    PoolShape, average_pool, average_pool_gradient, average_pool_gradient_scratch, max_pool, max_pool_gradient,
};
use crate::error::{Result, err};
use crate::kernel::{Kernel, PoolKind, Step, View};
use crate::tensor::DType;
use std::sync::Arc;

/// A prepared pooling.
pub(super) struct Pooling {
    shape: PoolShape,
    kind: PoolKind,
    gradient: bool,
    reads: Vec<View>,
    writes: Vec<View>,
    from: Arc<str>,
}

impl Pooling {
    /// `None` unless all float views are contiguous f32, positions contiguous int64, and there are at most
    /// [`MAX_SPATIAL`] spatial axes.
    pub(super) fn compile(step: &Step) -> Option<Self> {
        let Kernel::Pool(kernel) = &step.kernel else { return None };
        let spatial = kernel.window.len();
        let (x, y) =
            if kernel.gradient { (&step.writes[0], &step.reads[0]) } else { (&step.reads[0], &step.writes[0]) };
        let positions = step.reads[1..].iter().chain(&step.writes[1..]);
        let plain = [x, y].iter().all(|v| v.dtype == DType::F32 && v.is_contiguous());
        if !plain
            || !positions.clone().all(|v| v.dtype == DType::I64 && v.is_contiguous())
            || !(1..=MAX_SPATIAL).contains(&spatial)
        {
            return None;
        }
        let sizes = |from: &[usize], rest: usize| {
            let mut sizes = [rest; MAX_SPATIAL];
            sizes[..spatial].copy_from_slice(from);
            sizes
        };
        let shape = PoolShape {
            planes: x.shape[0] * x.shape[1],
            spatial,
            input: sizes(&x.shape[2..], 1),
            output: sizes(&y.shape[2..], 1),
            kernel: sizes(&kernel.window, 1),
            stride: sizes(&kernel.strides, 1),
            dilation: sizes(&kernel.dilations, 1),
            pad: sizes(&kernel.pads_begin, 0),
            pad_end: sizes(&kernel.pads_end, 0),
        };
        let (reads, writes) = (step.reads.clone(), step.writes.clone());
        Some(Self { shape, kind: kernel.kind, gradient: kernel.gradient, reads, writes, from: step.from.clone() })
    }

    pub(super) fn scratch(&self) -> usize {
        match self.kind {
            PoolKind::Average { .. } if self.gradient => average_pool_gradient_scratch(&self.shape),
            _ => 0,
        }
    }

    /// # Safety
    /// Every view has passed `Memory::check` for this memory, and the results overlap no operand.
    pub(super) unsafe fn run(&self, memory: &Memory, scratch: &mut [f32]) -> Result<()> {
        // Safety: the caller's word.
        let (from, to) = unsafe {
            (slice_of(memory, &self.reads[0]), &mut slice_mut(memory, &self.writes[0])[..self.writes[0].len()])
        };
        match (self.kind, self.gradient) {
            (PoolKind::Average { include_pad }, false) => average_pool(&self.shape, include_pad, from, to),
            (PoolKind::Average { include_pad }, true) => {
                average_pool_gradient(&self.shape, include_pad, from, to, scratch)
            }
            (PoolKind::Max, false) => {
                // Safety: as above.
                let positions = self.writes.get(1).map(|v| unsafe { ints(memory, v) });
                max_pool(&self.shape, from, to, positions);
            }
            (PoolKind::Max, true) => {
                // Safety: as above; nobody writes the positions here.
                let positions = unsafe { ints(memory, &self.reads[1]) };
                max_pool_gradient(&self.shape, from, positions, to).map_err(|bad| {
                    let at = format!("{} at position {}", bad.index, bad.at);
                    err!(Input, "a position of MaxPool's Indices lies outside its plane").at(&*self.from).found(at)
                })?;
            }
        }
        Ok(())
    }
}

/// What a contiguous int64 view sees.
///
/// # Safety
/// The view has passed `Memory::check`, and nobody else writes it meanwhile.
#[allow(clippy::mut_from_ref, reason = "the table holds raw pointers; the caller answers for disjointness")]
unsafe fn ints<'a>(memory: &'a Memory, view: &View) -> &'a mut [i64] {
    if view.is_empty() {
        return &mut [];
    }
    // Safety: the caller's word.
    unsafe { std::slice::from_raw_parts_mut(memory.ptr::<i64>(view), view.len()) }
}
