//! From a plan's step to the dispatches that compute it.

use super::layout::Places;
use super::shader::Dispatch;
use super::status::Checks;
use super::{conv, fused, gemm, index, pool, reduce};
use crate::error::Result;
use crate::kernel::{Check, Kernel, Step, View};

/// What kernels see and gather while a plan is lowered to dispatches.
pub(super) struct Lower<'a> {
    /// Where buffers lie.
    pub(super) places: &'a Places,
    /// The checks of the device so far.
    pub(super) checks: &'a mut Checks,
    /// Words of scratch that the most demanding step needs.
    pub(super) scratch: usize,
    /// Values that an earlier step of the plan has checked, and that no step has overwritten since.
    pub(super) checked: Vec<(View, Check)>,
}

impl<'a> Lower<'a> {
    pub(super) fn new(places: &'a Places, checks: &'a mut Checks) -> Self {
        Self { places, checks, scratch: 0, checked: Vec::new() }
    }

    /// Forgets checks of values that `writes` overwrite. (Another buffer in the same memory is written only when the checked one
    /// is not needed any more; two inputs of a plan may be the very same memory.)
    pub(super) fn forget(&mut self, writes: &[View]) {
        let (places, checked) = (self.places, &mut self.checked);
        checked.retain(|(view, _)| {
            let same = |w: &View| w.buffer == view.buffer || places.of(w.buffer) == places.of(view.buffer);
            !writes.iter().any(same)
        });
    }
}

/// The dispatches of a step, in order. None for a step without elements.
pub(super) fn lower(step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let dispatches = match &step.kernel {
        Kernel::Fused(k) => fused::lower(k, step, cx),
        Kernel::Reduce(k) => reduce::lower(k, step, cx),
        Kernel::Gemm(k) => gemm::lower(k, step, cx),
        Kernel::Conv(k) => conv::lower(k, step, cx),
        Kernel::Pool(k) => pool::lower(k, step, cx),
        Kernel::Copy => fused::copy(step, cx),
        Kernel::Gather(k) => index::gather(k, step, cx),
        Kernel::Scatter(k) => index::scatter(k, step, cx),
        Kernel::Check(k) => index::check(k, step, cx),
    };
    cx.forget(&step.writes);
    dispatches.map_err(|e| e.at(&*step.from))
}
