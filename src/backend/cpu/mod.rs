//! The CPU: kernels written once over the vectors of each instruction set.

pub mod conv;
mod conv_columns;
mod conv_geometry;
mod conv_tiles;
mod conv_weight;
mod convolve;
pub mod copy;
mod depthwise;
mod device;
pub mod fused;
pub mod gemm;
mod gemm_dot;
mod gemm_f64;
mod gemm_kernel;
pub mod index;
mod lanes;
mod math;
mod matmul;
pub mod memory;
pub mod pool;
mod pooling;
pub mod reduce;
pub mod simd;
mod step;
pub mod threads;

pub use device::{Cpu, CpuBuffer, CpuProgram};
