//! The CPU as a [`Backend`]: buffers in host memory, a plan compiled to a list of prepared steps.

use super::memory::Memory;
use super::step::Op;
use super::threads::in_pool;
use crate::backend::{Backend, finite};
use crate::error::{Result, err};
use crate::kernel::{BufferId, Buffers, RunContext, View};
use crate::plan::{Layout, Output, Placement, Plan};
use crate::tensor::{AlignedBytes, DType, Tensor};
use std::cell::UnsafeCell;
use std::sync::Arc;

/// The processor that this program runs on, natively or in wasm.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cpu;

/// Host memory, shared by handle.
#[derive(Clone)]
pub struct CpuBuffer(Arc<Memory16>);

/// Memory that kernels write through raw pointers.
struct Memory16 {
    start: *mut u8,
    len: usize,
    _owner: UnsafeCell<AlignedBytes>,
}

// Safety: a `Module` hands its buffers only to programs that run under `&mut`, so that no two threads
// touch one buffer at a time; within a run the kernels split the work into disjoint parts.
unsafe impl Send for Memory16 {}
// Safety: as above.
unsafe impl Sync for Memory16 {}

impl CpuBuffer {
    fn of(mut bytes: AlignedBytes) -> Self {
        let (start, len) = (bytes.as_bytes_mut().as_mut_ptr(), bytes.as_bytes().len());
        Self(Arc::new(Memory16 { start, len, _owner: UnsafeCell::new(bytes) }))
    }
}

/// A compiled plan.
pub struct CpuProgram {
    ops: Vec<Op>,
    memory: Memory,
    scratch: AlignedBytes,
    /// The first output, if it is one floating number.
    loss: Option<View>,
    /// What `memory` points into.
    _arena: CpuBuffer,
    _inputs: Vec<CpuBuffer>,
    _constants: Vec<CpuBuffer>,
}

impl Cpu {
    fn memory(&self, bytes: usize) -> Result<CpuBuffer> {
        let too_much = || err!(Device, "there is no memory for a buffer of {bytes} bytes");
        AlignedBytes::try_zeroed(bytes).map(CpuBuffer::of).ok_or_else(too_much)
    }
}

impl Backend for Cpu {
    type Buffer = CpuBuffer;
    type Program = CpuProgram;

    fn name(&self) -> &'static str {
        if cfg!(target_arch = "wasm32") { "wasm" } else { "cpu" }
    }

    fn layout(&self) -> Layout {
        Layout::HOST
    }

    fn alloc(&self, dtype: DType, len: usize) -> Result<CpuBuffer> {
        let bytes = Layout::HOST.bytes(dtype, len);
        self.memory(bytes.ok_or_else(|| err!(Device, "{len} elements of {dtype} cannot be addressed"))?)
    }

    fn upload(&self, buffer: &CpuBuffer, bytes: &[u8]) -> Result<()> {
        fits(buffer, bytes.len())?;
        // Safety: `fits` checked the length; the buffer is not used meanwhile (see `Memory16`).
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), buffer.0.start, bytes.len()) };
        Ok(())
    }

    async fn download(&self, buffer: &CpuBuffer, bytes: &mut [u8]) -> Result<()> {
        fits(buffer, bytes.len())?;
        // Safety: as in `upload`.
        unsafe { std::ptr::copy_nonoverlapping(buffer.0.start, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    async fn copy(&self, from: &CpuBuffer, to: &CpuBuffer) -> Result<()> {
        let bytes = from.0.len;
        fits(to, bytes)?;
        // Safety: `fits` checked the length; `copy` allows that they are one buffer. As in `upload`.
        unsafe { std::ptr::copy(from.0.start, to.0.start, bytes) };
        Ok(())
    }

    async fn compile(&self, plan: &Plan, inputs: &[CpuBuffer]) -> Result<CpuProgram> {
        let arena = self.memory(plan.peak_bytes())?;
        let mut memory = Memory::new(plan.buffers.len());
        let mut constants: Vec<CpuBuffer> = Vec::new();
        for (i, placement) in plan.buffers.iter().enumerate() {
            let id = BufferId(i as u32);
            let (start, len) = match placement {
                Placement::Unused => continue,
                Placement::Arena { offset, bytes, .. } => (arena.0.start.wrapping_add(*offset), *bytes),
                Placement::Input(k) => {
                    let buffer = inputs.get(*k).ok_or_else(|| err!(Plan, "input {k} of the plan is not bound"))?;
                    (buffer.0.start, buffer.0.len)
                }
                Placement::Constant(tensor) => {
                    let buffer = CpuBuffer::of(AlignedBytes::copy_of(tensor.bytes()));
                    constants.push(buffer.clone());
                    (buffer.0.start, buffer.0.len)
                }
            };
            // Safety: the program keeps arena, inputs and constants alive beside the table.
            unsafe { memory.bind(id, start, len) };
        }
        let mut ops = Vec::with_capacity(plan.steps.len());
        let mut scratch = 0;
        for step in &plan.steps {
            for view in step.reads.iter().chain(&step.writes) {
                memory.check(view).map_err(|e| e.at(&*step.from))?;
            }
            let op = Op::compile(step);
            scratch = scratch.max(op.scratch());
            ops.push(op);
        }
        let scratch =
            AlignedBytes::try_zeroed(scratch * 4).ok_or_else(|| err!(Device, "there is no memory for scratch"))?;
        let loss = match plan.outputs.first() {
            Some((_, Output::View(view))) if view.len() == 1 && view.dtype.is_float() => Some(view.clone()),
            _ => None,
        };
        Ok(CpuProgram { ops, memory, scratch, loss, _arena: arena, _inputs: inputs.to_vec(), _constants: constants })
    }

    async fn run(&self, program: &mut CpuProgram, cx: &RunContext) -> Result<()> {
        let CpuProgram { ops, memory, scratch, loss, .. } = program;
        let scratch: &mut [f32] = bytemuck::cast_slice_mut(scratch.as_bytes_mut());
        // One entry into the pool for the whole run, not one a kernel.
        // Safety: `compile` checked every view against this memory.
        in_pool(|| ops.iter().try_for_each(|op| unsafe { op.run(memory, scratch, cx) }))?;
        match loss {
            Some(view) if cx.finite => finite(number(memory, view), cx.step),
            _ => Ok(()),
        }
    }

    async fn read(&self, program: &CpuProgram, outputs: &[(String, Output)], tensors: &mut [Tensor]) -> Result<()> {
        outputs.iter().zip(tensors).try_for_each(|((_, output), tensor)| match output {
            Output::View(view) => read(&program.memory, view, tensor.bytes_mut()),
            Output::Constant(_) => Ok(()),
        })
    }
}

/// The number that a view of one floating element sees.
fn number(memory: &Memory, view: &View) -> f64 {
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..view.dtype.size()];
    let done = read(memory, view, bytes);
    debug_assert!(done.is_ok(), "compile checked the view");
    match view.dtype {
        DType::F64 => f64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        DType::F32 => f32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
        DType::BF16 => half::bf16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
        _ => half::f16::from_le_bytes(bytes.try_into().expect("two bytes")).to_f64(),
    }
}

/// Reads a view, row-major.
fn read(memory: &Memory, view: &View, bytes: &mut [u8]) -> Result<()> {
    if view.is_contiguous() {
        let size = view.dtype.size();
        let from = memory.bytes(view.buffer).get(view.offset * size..).and_then(|b| b.get(..bytes.len()));
        let from = from.ok_or_else(|| err!(Plan, "an output reaches outside its buffer"))?;
        bytes.copy_from_slice(from);
        return Ok(());
    }
    let tensor: Tensor = crate::kernel::reference::read(memory, view)?;
    if tensor.bytes().len() != bytes.len() {
        return Err(err!(Plan, "output size").expected(tensor.bytes().len()).found(bytes.len()));
    }
    bytes.copy_from_slice(tensor.bytes());
    Ok(())
}

fn fits(buffer: &CpuBuffer, len: usize) -> Result<()> {
    if len > buffer.0.len {
        return Err(err!(Device, "a transfer is longer than its buffer").expected(buffer.0.len).found(len));
    }
    Ok(())
}
