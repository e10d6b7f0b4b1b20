//! How tensors lie in GPU memory, and where the buffers of a plan are.
//!
//! WGSL addresses words of 32 bits, so that every element takes at least one: bool, int8/16, uint8/16 and bfloat16 (as the f32 of
//! the same value) take 4 bytes; 64-bit ones take two words, low word first. float16 takes 2 bytes in memory of its own where the
//! device has `shader-f16`, else 4 as the f32 of the same value.

use crate::kernel::BufferId;
use crate::tensor::DType;

/// How an element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Storage {
    /// One 32-bit word.
    Word,
    /// Two words, low first.
    Pair,
    /// An `f16`.
    Half,
}

impl Storage {
    /// Bytes of an element.
    pub(super) fn bytes(self) -> usize {
        match self {
            Storage::Half => 2,
            Storage::Word => 4,
            Storage::Pair => 8,
        }
    }
}

/// How elements of `dtype` are stored on a device with (or without) `halves`.
pub(super) fn storage(dtype: DType, halves: bool) -> Storage {
    match dtype {
        DType::F16 if halves => Storage::Half,
        DType::I64 | DType::U64 | DType::F64 => Storage::Pair,
        _ => Storage::Word,
    }
}

/// A GPU buffer of a program, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    /// Which.
    pub(super) index: u32,
    /// Does it hold `f16` elements?
    pub(super) halves: bool,
}

impl Slot {
    /// The device's record of failed checks: word 0 is 0 as long as none has failed, else the number of the check; word 1 the
    /// position of the value in its view, row-major; words 2 and 3 the value as int64.
    pub(super) const STATUS: Slot = Slot { index: 0, halves: false };
    /// The run's seed (two words) and step (two words), low word first.
    pub(super) const RUN: Slot = Slot { index: 1, halves: false };
    /// Words for partial results between the dispatches of one step.
    pub(super) const SCRATCH: Slot = Slot { index: 2, halves: false };
}

/// Where a buffer of the plan lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The GPU buffer.
    pub(super) slot: Slot,
    /// Bytes from its start.
    pub(super) offset: usize,
    /// Does it outlive the run (a parameter, a gradient, an optimizer's moment)?
    pub(super) lasting: bool,
}

/// What kernels are told of the device and of the plan's memory.
#[derive(Clone, Debug)]
pub(super) struct Places {
    /// By `BufferId`; `None` for unused ones.
    pub(super) places: Vec<Option<Place>>,
    /// Are float16 elements stored as `f16`?
    pub(super) halves: bool,
    /// Is the device software on a CPU? Workgroup barriers are dear there, caches large.
    pub(super) software: bool,
}

impl Places {
    /// Where a buffer lies.
    pub(super) fn of(&self, id: BufferId) -> Place {
        self.places[id.index()].expect("a buffer that a step uses has a place")
    }
}
