//! A step prepared for the CPU: the fast path of its kernel, or the reference where there is none.

use super::memory::Memory;
use crate::error::Result;
use crate::kernel::{RunContext, Step, reference};

/// A prepared step.
pub(super) enum Op {
    /// Dtypes and shapes without a fast path.
    Reference(Box<Step>),
}

impl Op {
    pub(super) fn compile(step: &Step) -> Result<Self> {
        Ok(Op::Reference(Box::new(step.clone())))
    }

    /// f32 elements of scratch that it needs.
    pub(super) fn scratch(&self) -> usize {
        match self {
            Op::Reference(_) => 0,
        }
    }

    /// # Safety
    /// Every view of the step has passed `Memory::check` for this memory.
    pub(super) unsafe fn run(&self, memory: &mut Memory, _scratch: &mut [f32], cx: &RunContext) -> Result<()> {
        match self {
            Op::Reference(step) => reference::run(step, memory, cx),
        }
    }
}
