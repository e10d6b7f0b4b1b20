//! Counting floating-point operations: a multiply and an add are two.

use crate::kernel::{Direction, Kernel, Step};

/// Operations of one step. Elementwise expressions count one each; copies and lookups none.
pub(super) fn of(step: &Step) -> u64 {
    let count = |shape: &[usize]| shape.iter().map(|&n| n as u64).product::<u64>();
    match &step.kernel {
        Kernel::Gemm(_) => 2 * count(&step.writes[0].shape) * *step.reads[0].shape.last().unwrap_or(&1) as u64,
        Kernel::Conv(conv) => {
            // Every direction multiplies each output position with each weight of its group.
            let (y, w) = match conv.direction {
                Direction::Forward => (&step.writes[0], &step.reads[1]),
                Direction::InputGrad => (&step.reads[0], &step.reads[1]),
                Direction::WeightGrad => (&step.reads[0], &step.writes[0]),
            };
            2 * count(&y.shape) * count(&w.shape[1..])
        }
        Kernel::Fused(fused) => count(&fused.shape) * fused.program.arithmetic() as u64,
        Kernel::Reduce(reduce) => count(&reduce.shape) * (reduce.program.arithmetic() as u64 + 1),
        Kernel::Pool(pool) => {
            let y = if pool.gradient { &step.reads[0] } else { &step.writes[0] };
            count(&y.shape) * count(&pool.window)
        }
        Kernel::Scatter(_) => count(&step.reads[1].shape),
        Kernel::Copy | Kernel::Gather(_) | Kernel::Check(_) => 0,
    }
}
