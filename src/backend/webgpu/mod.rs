//! The GPU through wgpu: WebGPU in a browser; Vulkan, Metal or Direct3D natively. Kernels are WGSL texts.

mod contraction;
mod conv;
mod expr;
mod fused;
mod gemm;
mod index;
mod layout;
mod lower;
mod pool;
mod reduce;
mod shader;
mod status;
#[cfg(test)]
mod testing;
