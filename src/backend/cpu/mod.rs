//! The CPU: kernels written once over the vectors of each instruction set.

pub mod gemm;
mod gemm_dot;
mod gemm_kernel;
pub mod simd;
pub mod threads;
