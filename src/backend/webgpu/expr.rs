//! A program of expressions as WGSL.

/// Does a step's arithmetic need float64, which GPUs lack? (Until expressions are here: any float64 at all.)
pub(super) fn on_host(step: &crate::kernel::Step) -> bool {
    step.reads.iter().chain(&step.writes).any(|v| v.dtype == crate::tensor::DType::F64)
}
