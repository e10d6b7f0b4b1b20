//! The GPU through wgpu: WebGPU in a browser; Vulkan, Metal or Direct3D natively. Kernels are WGSL texts.
//!
//! A plan becomes a list of dispatches ([`lower`]): texts, parameters and the memories that they bind, without a device in
//! sight. [`program`] makes pipelines and bind groups of them once; a run only encodes and submits. What is asked of the
//! device gathers in one command encoder until somebody waits for a result, or lets it begin ([`Backend::flush`]).
//!
//! Checks (a label out of range, a loss that is not finite) run on the device, too. The first failure is kept in the status
//! words, and from then on nothing that outlives a run is written, until the failure has been read and reported.

mod access;
mod axes;
mod block;
mod contraction;
mod conv;
mod depthwise;
mod device;
mod expr;
mod facts;
mod fused;
#[cfg(test)]
mod fused_tests;
mod gemm;
mod host;
mod index;
mod layout;
mod lower;
mod memory;
mod pipelines;
mod pool;
#[cfg(test)]
mod product_tests;
mod program;
mod reduce;
mod rows;
mod shader;
mod sink;
mod status;
mod stream;
#[cfg(test)]
mod testing;
mod tiled;
mod tiles;
mod walks;

pub use device::{Counters, Options, WebGpu};
pub use memory::GpuBuffer;
pub use program::GpuProgram;

use super::Backend;
use crate::error::Result;
use crate::kernel::RunContext;
use crate::plan::{Layout, Output, Plan};
use crate::tensor::{DType, Tensor};

impl Backend for WebGpu {
    type Buffer = GpuBuffer;
    type Program = GpuProgram;

    fn name(&self) -> &'static str {
        "webgpu"
    }

    fn layout(&self) -> Layout {
        self.stream.layout()
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<GpuBuffer> {
        self.stream.alloc(dtype, len)
    }

    fn upload(&self, buffer: &GpuBuffer, bytes: &[u8]) -> Result<()> {
        self.stream.upload(buffer, bytes)
    }

    async fn download(&self, buffer: &GpuBuffer, bytes: &mut [u8]) -> Result<()> {
        self.stream.download(buffer, bytes).await
    }

    async fn copy(&self, from: &GpuBuffer, to: &GpuBuffer) -> Result<()> {
        self.stream.copy(from, to).await
    }

    async fn compile(&self, plan: &Plan, inputs: &[GpuBuffer]) -> Result<GpuProgram> {
        GpuProgram::compile(&self.stream, plan, inputs).await
    }

    async fn run(&self, program: &mut GpuProgram, cx: &RunContext) -> Result<()> {
        program.run(cx).await
    }

    async fn read(&self, program: &GpuProgram, outputs: &[(String, Output)], tensors: &mut [Tensor]) -> Result<()> {
        program.read(outputs, tensors).await
    }

    fn failures(&self) -> u64 {
        self.stream.failures()
    }

    fn flush(&self) {
        self.stream.submit();
    }
}
