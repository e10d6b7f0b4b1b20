//! The CPU: kernels written once over the vectors of each instruction set.

mod convolve;
mod device;
pub mod copy;
pub mod index;
pub mod fused;
pub mod conv;
mod conv_columns;
mod conv_geometry;
mod conv_tiles;
mod conv_weight;
mod depthwise;
pub mod gemm;
mod gemm_dot;
mod gemm_f64;
mod gemm_kernel;
mod matmul;
mod lanes;
mod math;
pub mod memory;
pub mod pool;
mod pooling;
pub mod reduce;
pub mod simd;
mod step;
pub mod threads;

pub use device::{Cpu, CpuBuffer, CpuProgram};
