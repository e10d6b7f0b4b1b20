//! The CPU: kernels written once over the vectors of each instruction set.

mod device;
pub mod gemm;
mod gemm_dot;
mod gemm_kernel;
mod memory;
pub mod simd;
mod step;
pub mod threads;

pub use device::{Cpu, CpuBuffer, CpuProgram};
