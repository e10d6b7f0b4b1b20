//! From a graph and the sizes of its inputs to a [`Plan`]: which kernels run, in which order, on
//! which memory. All of it is decided once and kept as a value that can be printed.

mod build;
mod flops;
mod fuse;
mod layout;
mod memory;
mod show;

pub use build::{PlanInput, build};
pub use layout::Layout;

use crate::kernel::{Kernel, Step, View};
use crate::tensor::{DType, Tensor};
use std::sync::Arc;

/// Where a buffer lives.
#[derive(Clone, Debug)]
pub enum Placement {
    /// In one of the plan's arenas, at a byte offset.
    Arena {
        /// Which arena.
        arena: usize,
        /// Bytes from the start of the arena; a multiple of 64.
        offset: usize,
        /// Size in bytes.
        bytes: usize,
    },
    /// A constant that the plan carries.
    Constant(Arc<Tensor>),
    /// The buffer bound to input `index` of the plan.
    Input(usize),
    /// Nothing uses it any more.
    Unused,
}

/// An input of a plan: bound once, when the plan is compiled.
#[derive(Clone, Debug)]
pub struct Input {
    /// The graph input's name.
    pub name: String,
    /// Its dtype.
    pub dtype: DType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Is its value part of the plan (a shape or an axis, say), so that another value needs another plan?
    pub pinned: bool,
}

/// Where an output of the graph is found after a run.
#[derive(Clone, Debug)]
pub enum Output {
    /// In memory.
    View(View),
    /// It does not depend on the run.
    Constant(Arc<Tensor>),
}

/// What a run does: a value, made once for each set of input sizes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kernels in order.
    pub steps: Vec<Step>,
    /// Where each buffer lives, by `BufferId`.
    pub buffers: Vec<Placement>,
    /// The graph inputs in order.
    pub inputs: Vec<Input>,
    /// The graph outputs in order: name, place.
    pub outputs: Vec<(String, Output)>,
    /// Bytes of each arena: the memory of everything that lives inside a run. Host memory needs one.
    pub arenas: Vec<Arena>,
    /// Floating-point operations of one run.
    pub flops: u64,
}

/// A piece of memory that temporary tensors share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arena {
    /// Its size.
    pub bytes: usize,
    /// Does it hold float16 tensors, apart from the others (see [`Layout::halves_apart`])?
    pub halves: bool,
}

impl Plan {
    /// Bytes of all arenas: the peak of everything that lives inside a run.
    pub fn peak_bytes(&self) -> usize {
        self.arenas.iter().map(|a| a.bytes).sum()
    }

    /// Bytes of all constants.
    pub fn constant_bytes(&self) -> usize {
        let bytes = |p: &Placement| if let Placement::Constant(t) = p { t.bytes().len() } else { 0 };
        self.buffers.iter().map(bytes).sum()
    }

    /// Floating-point operations of one run's matrix products and convolutions.
    pub fn product_flops(&self) -> u64 {
        let product = |step: &&Step| matches!(step.kernel, Kernel::Gemm(_) | Kernel::Conv(_));
        self.steps.iter().filter(product).map(flops::of).sum()
    }
}
