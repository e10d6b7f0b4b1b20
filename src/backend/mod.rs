//! Devices: each runs the kernel set, and nothing in it knows ONNX or that a model is being trained.

mod any;
pub mod cpu;
#[cfg(feature = "webgpu")]
pub mod webgpu;

pub use any::Any;

use crate::error::Result;
use crate::kernel::RunContext;
use crate::plan::{Layout, Output, Plan};
use crate::tensor::{DType, Tensor};

/// A device. Buffers are handles: a clone is the same memory.
///
/// A plan is compiled once, with the buffers of its inputs bound; a run then needs nothing but what differs from step to
/// step, and allocates nothing.
///
/// What a run does may still be under way when [`Self::run`] returns: later calls see its results, and an error that only
/// the device finds (an index out of range, a loss that is not finite) comes from the next call that waits for it:
/// [`Self::read`] or [`Self::download`]. Until it has been reported, nothing that outlives a run is written any more.
#[allow(async_fn_in_trait, reason = "a GPU in a browser lives on one thread; nothing here is Send")]
pub trait Backend {
    /// A tensor's device memory.
    type Buffer: Clone;
    /// A compiled plan: kernels, arenas, constants, bindings.
    type Program;

    /// The device's name, as `--backend` has it.
    fn name(&self) -> &'static str;

    /// How the device keeps tensors: what its plans are made for.
    fn layout(&self) -> Layout;

    /// A buffer of zeros. `Device` error if there is not enough memory.
    fn alloc(&self, dtype: DType, len: usize) -> Result<Self::Buffer>;

    /// Fills a buffer; `bytes` are its elements as ONNX has them.
    fn upload(&self, buffer: &Self::Buffer, bytes: &[u8]) -> Result<()>;

    /// Reads a buffer; `bytes` take its elements as ONNX has them.
    async fn download(&self, buffer: &Self::Buffer, bytes: &mut [u8]) -> Result<()>;

    /// Copies a buffer to another of the same dtype and length, on the device.
    async fn copy(&self, from: &Self::Buffer, to: &Self::Buffer) -> Result<()>;

    /// Prepares a plan; `inputs` are the buffers of its inputs, in order. Inputs that are pinned or unused need one all the
    /// same.
    async fn compile(&self, plan: &Plan, inputs: &[Self::Buffer]) -> Result<Self::Program>;

    /// Runs a compiled plan once.
    async fn run(&self, program: &mut Self::Program, cx: &RunContext) -> Result<()>;

    /// Reads outputs of the last run into tensors of their dtypes and shapes. Constant ones are passed over.
    async fn read(&self, program: &Self::Program, outputs: &[(String, Output)], tensors: &mut [Tensor]) -> Result<()>;

    /// How many errors that the device found late have been reported, by whichever call came to know of them.
    fn failures(&self) -> u64 {
        0
    }

    /// Lets the device begin what has been asked of it so far, without waiting for it.
    fn flush(&self) {}
}

/// The result of an operation that is done at once: on every device but a GPU in a browser. `Device` error if it is not.
pub fn now<T>(operation: impl Future<Output = Result<T>>) -> Result<T> {
    use std::task::{Context, Poll, Waker};
    let operation = std::pin::pin!(operation);
    match operation.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => Err(crate::error::err!(
            Device,
            "this device answers later: use the method whose name ends in _async, and await it"
        )),
    }
}

/// Fails unless the loss of a train step is finite.
fn finite(loss: f64, step: u64) -> Result<()> {
    if loss.is_finite() {
        return Ok(());
    }
    Err(crate::error::err!(
        State,
        "the loss is {loss} at train step {step}; parameters are unchanged and this step's gradients are dropped"
    ))
}
