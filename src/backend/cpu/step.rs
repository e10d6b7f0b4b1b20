//! A step prepared for the CPU: the fast path of its kernel, or the reference where there is none.

use super::matmul::MatMul;
use super::memory::Memory;
use crate::error::Result;
use crate::kernel::{Kernel, RunContext, Step, reference};

/// A prepared step.
pub(super) enum Op {
    MatMul(MatMul),
    /// Dtypes and shapes without a fast path.
    Reference(Box<Step>),
}

impl Op {
    pub(super) fn compile(step: &Step) -> Self {
        let (reads, writes) = (&step.reads, &step.writes);
        let fast = match &step.kernel {
            Kernel::Gemm(k) => MatMul::compile(k, reads, &writes[0]).map(Op::MatMul),
            Kernel::Fused(_)
            | Kernel::Reduce(_)
            | Kernel::Pool(_)
            | Kernel::Conv(_)
            | Kernel::Copy
            | Kernel::Gather(_)
            | Kernel::Scatter(_)
            | Kernel::Check(_) => None,
        };
        fast.unwrap_or_else(|| Op::Reference(Box::new(step.clone())))
    }

    /// f32 elements of scratch that it needs.
    pub(super) fn scratch(&self) -> usize {
        match self {
            Op::MatMul(op) => op.scratch(),
            Op::Reference(_) => 0,
        }
    }

    /// # Safety
    /// Every view of the step has passed `Memory::check` for this memory, and its writes overlap nothing that
    /// it reads but in place.
    pub(super) unsafe fn run(&self, memory: &mut Memory, scratch: &mut [f32], cx: &RunContext) -> Result<()> {
        // Safety: the caller's word, for each arm.
        unsafe {
            match self {
                Op::MatMul(op) => op.run(memory, scratch),
                Op::Reference(step) => return reference::run(step, memory, cx),
            }
        }
        Ok(())
    }
}
