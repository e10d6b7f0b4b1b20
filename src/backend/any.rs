//! The device that a program chooses while it runs.

use super::Backend;
use super::cpu::{Cpu, CpuBuffer, CpuProgram};
#[cfg(feature = "webgpu")]
use super::webgpu::{GpuBuffer, GpuProgram, WebGpu};
use crate::error::{Result, bail};
use crate::kernel::RunContext;
use crate::plan::{Layout, Output, Plan};
use crate::tensor::{DType, Tensor};

/// One of the devices.
#[derive(Clone)]
pub enum Any {
    /// The processor.
    Cpu(Cpu),
    /// The GPU.
    #[cfg(feature = "webgpu")]
    WebGpu(WebGpu),
}

/// Memory of one of the devices.
#[derive(Clone)]
pub enum AnyBuffer {
    /// Of the processor.
    Cpu(CpuBuffer),
    /// Of the GPU.
    #[cfg(feature = "webgpu")]
    WebGpu(GpuBuffer),
}

/// A plan compiled for one of the devices.
pub enum AnyProgram {
    /// For the processor.
    Cpu(CpuProgram),
    /// For the GPU.
    #[cfg(feature = "webgpu")]
    WebGpu(Box<GpuProgram>),
}

impl Any {
    /// The device of a name: `cpu` or `webgpu`.
    ///
    /// # Errors
    /// `Input` for another name. `Device` if the machine has no such device.
    pub async fn open(name: &str) -> Result<Self> {
        match name {
            "cpu" => Ok(Any::Cpu(Cpu)),
            #[cfg(feature = "webgpu")]
            "webgpu" => WebGpu::open().await.map(Any::WebGpu),
            #[cfg(not(feature = "webgpu"))]
            "webgpu" => bail!(Device, "this build of ontrain has no WebGPU (cargo feature \"webgpu\")"),
            _ => bail!(Input, "there is no device \"{name}\"; expected cpu or webgpu"),
        }
    }
}

/// Calls the same method on the device, with its own buffer or program.
macro_rules! on {
    ($self:ident, $device:ident => $call:expr) => {
        match $self {
            Any::Cpu($device) => $call,
            #[cfg(feature = "webgpu")]
            Any::WebGpu($device) => $call,
        }
    };
}

/// The error for memory or a program of another device.
#[cfg(feature = "webgpu")]
fn foreign() -> crate::error::Error {
    crate::error::err!(Device, "memory or a program of one device was given to another")
}

impl Backend for Any {
    type Buffer = AnyBuffer;
    type Program = AnyProgram;

    fn name(&self) -> &'static str {
        on!(self, device => device.name())
    }

    fn layout(&self) -> Layout {
        on!(self, device => device.layout())
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<AnyBuffer> {
        match self {
            Any::Cpu(device) => device.alloc(dtype, len).map(AnyBuffer::Cpu),
            #[cfg(feature = "webgpu")]
            Any::WebGpu(device) => device.alloc(dtype, len).map(AnyBuffer::WebGpu),
        }
    }

    fn upload(&self, buffer: &AnyBuffer, bytes: &[u8]) -> Result<()> {
        match (self, buffer) {
            (Any::Cpu(device), AnyBuffer::Cpu(buffer)) => device.upload(buffer, bytes),
            #[cfg(feature = "webgpu")]
            (Any::WebGpu(device), AnyBuffer::WebGpu(buffer)) => device.upload(buffer, bytes),
            #[cfg(feature = "webgpu")]
            _ => Err(foreign()),
        }
    }

    async fn download(&self, buffer: &AnyBuffer, bytes: &mut [u8]) -> Result<()> {
        match (self, buffer) {
            (Any::Cpu(device), AnyBuffer::Cpu(buffer)) => device.download(buffer, bytes).await,
            #[cfg(feature = "webgpu")]
            (Any::WebGpu(device), AnyBuffer::WebGpu(buffer)) => device.download(buffer, bytes).await,
            #[cfg(feature = "webgpu")]
            _ => Err(foreign()),
        }
    }

    async fn copy(&self, from: &AnyBuffer, to: &AnyBuffer) -> Result<()> {
        match (self, from, to) {
            (Any::Cpu(device), AnyBuffer::Cpu(from), AnyBuffer::Cpu(to)) => device.copy(from, to).await,
            #[cfg(feature = "webgpu")]
            (Any::WebGpu(device), AnyBuffer::WebGpu(from), AnyBuffer::WebGpu(to)) => device.copy(from, to).await,
            #[cfg(feature = "webgpu")]
            _ => Err(foreign()),
        }
    }

    async fn compile(&self, plan: &Plan, inputs: &[AnyBuffer]) -> Result<AnyProgram> {
        match self {
            Any::Cpu(device) => {
                let own = inputs.iter().map(|b| match b {
                    AnyBuffer::Cpu(b) => Ok(b.clone()),
                    #[cfg(feature = "webgpu")]
                    AnyBuffer::WebGpu(_) => Err(foreign()),
                });
                device.compile(plan, &own.collect::<Result<Vec<_>>>()?).await.map(AnyProgram::Cpu)
            }
            #[cfg(feature = "webgpu")]
            Any::WebGpu(device) => {
                let own = inputs.iter().map(|b| match b {
                    AnyBuffer::WebGpu(b) => Ok(b.clone()),
                    AnyBuffer::Cpu(_) => Err(foreign()),
                });
                let program = device.compile(plan, &own.collect::<Result<Vec<_>>>()?).await?;
                Ok(AnyProgram::WebGpu(Box::new(program)))
            }
        }
    }

    async fn run(&self, program: &mut AnyProgram, cx: &RunContext) -> Result<()> {
        match (self, program) {
            (Any::Cpu(device), AnyProgram::Cpu(program)) => device.run(program, cx).await,
            #[cfg(feature = "webgpu")]
            (Any::WebGpu(device), AnyProgram::WebGpu(program)) => device.run(program, cx).await,
            #[cfg(feature = "webgpu")]
            _ => Err(foreign()),
        }
    }

    async fn read(&self, program: &AnyProgram, outputs: &[(String, Output)], tensors: &mut [Tensor]) -> Result<()> {
        match (self, program) {
            (Any::Cpu(device), AnyProgram::Cpu(program)) => device.read(program, outputs, tensors).await,
            #[cfg(feature = "webgpu")]
            (Any::WebGpu(device), AnyProgram::WebGpu(program)) => device.read(program, outputs, tensors).await,
            #[cfg(feature = "webgpu")]
            _ => Err(foreign()),
        }
    }

    fn failures(&self) -> u64 {
        on!(self, device => device.failures())
    }

    fn flush(&self) {
        on!(self, device => device.flush());
    }
}
