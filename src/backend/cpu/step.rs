//! A step prepared for the CPU: the fast path of its kernel, or the reference where there is none.

use super::convolve::Convolve;
use super::copy::CopyOp;
use super::fused::FusedOp;
use super::index::{CheckOp, GatherOp, ScatterOp};
use super::matmul::MatMul;
use super::memory::Memory;
use super::pooling::Pooling;
use super::reduce::Reducer;
use crate::error::Result;
use crate::kernel::{Kernel, RunContext, Step, reference};

/// A prepared step.
pub(super) enum Op {
    Fused(FusedOp),
    Reduce(Reducer),
    MatMul(MatMul),
    Convolve(Convolve),
    Pooling(Pooling),
    Copy(CopyOp),
    Gather(GatherOp),
    Scatter(ScatterOp),
    Check(CheckOp),
    /// Dtypes and shapes without a fast path.
    Reference(Box<Step>),
}

impl Op {
    pub(super) fn compile(step: &Step) -> Self {
        let (reads, writes) = (&step.reads, &step.writes);
        let fast = match &step.kernel {
            Kernel::Fused(k) => FusedOp::compile(k, reads, writes).map(Op::Fused),
            Kernel::Reduce(k) => Reducer::compile(k, reads, &writes[0]).map(Op::Reduce),
            Kernel::Gemm(k) => MatMul::compile(k, reads, &writes[0]).map(Op::MatMul),
            Kernel::Conv(k) => Convolve::compile(k, reads, &writes[0]).map(Op::Convolve),
            Kernel::Pool(_) => Pooling::compile(step).map(Op::Pooling),
            Kernel::Copy => CopyOp::compile(&reads[0], &writes[0]).map(Op::Copy),
            Kernel::Gather(_) => GatherOp::compile(step).map(Op::Gather),
            Kernel::Scatter(_) => ScatterOp::compile(step).map(Op::Scatter),
            Kernel::Check(_) => CheckOp::compile(step).map(Op::Check),
        };
        fast.unwrap_or_else(|| Op::Reference(Box::new(step.clone())))
    }

    /// f32 elements of scratch that it needs.
    pub(super) fn scratch(&self) -> usize {
        match self {
            Op::Reduce(op) => op.scratch(),
            Op::MatMul(op) => op.scratch(),
            Op::Convolve(op) => op.scratch(),
            Op::Pooling(op) => op.scratch(),
            Op::Fused(_) | Op::Copy(_) | Op::Gather(_) | Op::Scatter(_) | Op::Check(_) | Op::Reference(_) => 0,
        }
    }

    /// # Safety
    /// Every view of the step has passed `Memory::check` for this memory, and its writes overlap nothing that
    /// it reads but in place.
    pub(super) unsafe fn run(&self, memory: &mut Memory, scratch: &mut [f32], cx: &RunContext) -> Result<()> {
        // Safety: the caller's word, for each arm.
        unsafe {
            match self {
                Op::Fused(op) => op.run(memory, cx),
                Op::Reduce(op) => op.run(memory, scratch, cx),
                Op::MatMul(op) => op.run(memory, scratch),
                Op::Convolve(op) => op.run(memory, scratch),
                Op::Copy(op) => op.run(memory),
                Op::Pooling(op) => return op.run(memory, scratch),
                Op::Gather(op) => return op.run(memory),
                Op::Scatter(op) => return op.run(memory),
                Op::Check(op) => return op.run(memory),
                Op::Reference(step) => return reference::run(step, memory, cx),
            }
        }
        Ok(())
    }
}
