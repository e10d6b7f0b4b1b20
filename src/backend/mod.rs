//! Devices: each runs the kernel set, and nothing in it knows ONNX or that a model is being trained.

pub mod cpu;
#[cfg(feature = "webgpu")]
pub mod webgpu;

use crate::error::Result;
use crate::kernel::{RunContext, View};
use crate::plan::Plan;

/// A device. Buffers are handles: a clone is the same memory.
///
/// A plan is compiled once, with the buffers of its inputs bound; a run then needs nothing but
/// what differs from step to step, and allocates nothing.
pub trait Backend {
    /// A piece of device memory.
    type Buffer: Clone;
    /// A compiled plan: kernels, arena, constants, bindings.
    type Program;

    /// The device's name, as `--backend` has it.
    fn name(&self) -> &'static str;

    /// Zeroed memory. `Device` error if there is not enough.
    fn alloc(&self, bytes: usize) -> Result<Self::Buffer>;

    /// Writes the first `bytes.len()` bytes of a buffer.
    fn upload(&self, buffer: &Self::Buffer, bytes: &[u8]) -> Result<()>;

    /// Reads the first `bytes.len()` bytes of a buffer.
    fn download(&self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<()>;

    /// Copies the first `bytes` bytes of one buffer to another, on the device.
    fn copy(&self, from: &Self::Buffer, to: &Self::Buffer, bytes: usize) -> Result<()>;

    /// Prepares a plan; `inputs` are the buffers of its inputs, in order. Inputs that are pinned or unused need
    /// one all the same.
    fn compile(&self, plan: &Plan, inputs: &[Self::Buffer]) -> Result<Self::Program>;

    /// Runs a compiled plan once.
    fn run(&self, program: &mut Self::Program, cx: &RunContext) -> Result<()>;

    /// Reads an output of the last run, row-major.
    fn read(&self, program: &Self::Program, view: &View, bytes: &mut [u8]) -> Result<()>;
}
