//! From a plan's step to the dispatches that compute it.

use super::layout::Places;
use super::shader::Dispatch;
use super::status::Checks;
use super::{contraction, conv, fused, gemm, index, pool, reduce};
use crate::error::Result;
use crate::kernel::{Kernel, Step};

/// What kernels see and gather while a plan is lowered to dispatches.
pub(super) struct Lower<'a> {
    /// Where buffers lie.
    pub(super) places: &'a Places,
    /// The checks of the device so far.
    pub(super) checks: &'a mut Checks,
    /// Words of scratch that the most demanding step needs.
    pub(super) scratch: usize,
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
    dispatches.map_err(|e| e.at(&*step.from))
}
