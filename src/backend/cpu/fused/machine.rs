//! A compiled program with its tiles and operands, and how tasks run on it.

use super::super::memory::Memory;
use super::code::{Access, BLOCK, Code, MAX_ACCESSES, MAX_KEPT, MAX_REDUCTIONS, MAX_SLOTS, Pass, SCRATCH, Slot};
use super::exec;
use super::frame::Frame;
use super::nodes::Class;
use super::space::{Place, Tiling, Walk};
use crate::kernel::{ReduceOp, RunContext};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes of registers that most programs do with.
const SMALL: usize = 12 << 10;

/// Registers of a task.
#[repr(align(64))]
struct Scratch<const N: usize>(#[allow(dead_code, reason = "used through its address")] [MaybeUninit<u8>; N]);

#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) tiling: Tiling,
    pub(crate) code: Code,
    /// Reads, then writes.
    pub(crate) accesses: Vec<Access>,
}

impl Machine {
    /// Calls `work` with the state of a task on `memory`; registers lie on the stack.
    pub(crate) fn on_stack(&self, memory: &Memory, cx: &RunContext, work: impl FnOnce(&mut Frame)) {
        // A small piece of stack where it is enough: a large one costs time, as each page of it is touched.
        #[inline(never)]
        fn with<const N: usize>(machine: &Machine, memory: &Memory, cx: &RunContext, work: impl FnOnce(&mut Frame)) {
            let mut scratch = MaybeUninit::<Scratch<N>>::uninit();
            work(&mut machine.frame(memory, cx, scratch.as_mut_ptr().cast()));
        }
        match self.code.scratch {
            ..=SMALL => with::<SMALL>(self, memory, cx, work),
            _ => with::<SCRATCH>(self, memory, cx, work),
        }
    }

    fn frame(&self, memory: &Memory, cx: &RunContext, scratch: *mut u8) -> Frame<'_> {
        let mut frame = Frame {
            accesses: &self.accesses,
            context: *cx,
            slots: [std::ptr::null_mut(); MAX_SLOTS],
            keys: [(0, 0); MAX_KEPT],
            base: [std::ptr::null_mut(); MAX_ACCESSES],
            current: [std::ptr::null_mut(); MAX_ACCESSES],
            place: Place::default(),
            rows: 0,
            len: 0,
            row_len: self.tiling.row_len(),
            floats: [0.0; MAX_REDUCTIONS],
            ints: [0; MAX_REDUCTIONS],
            engine: exec::engine(),
        };
        for (slot, at) in self.code.slots.iter().zip(&mut frame.slots) {
            *at = match *slot {
                Slot::Register(offset) => scratch.wrapping_add(offset),
                Slot::Constant(i) => self.code.constants[i].as_ptr().cast::<u8>().cast_mut(),
                Slot::Access => std::ptr::null_mut(),
            };
        }
        for (access, base) in self.accesses.iter().zip(&mut frame.base) {
            *base = memory.at(access.walk.buffer, access.walk.offset);
        }
        frame
    }

    /// Points the frame at a tile.
    #[inline]
    pub(crate) fn go(&self, frame: &mut Frame, tile: usize) {
        let place = self.tiling.place(tile);
        frame.rows = place.extent * self.tiling.rows_per_step();
        frame.len = place.extent * self.tiling.inner();
        frame.enter(place, self.tiling.axis);
    }

    /// The tiles of a long row.
    pub(crate) fn tiles_of(&self, row: usize) -> Range<usize> {
        let per_row = self.tiling.tiles_per_row();
        row * per_row..(row + 1) * per_row
    }

    /// Runs a pass over some tiles of a long row, which leaves the states of its reductions in
    /// the frame.
    ///
    /// # Safety
    /// Every view has passed [`Memory::check`]; the prologue has run.
    pub(crate) unsafe fn pass(&self, pass: &Pass, tiles: Range<usize>, frame: &mut Frame) {
        for (i, r) in pass.reductions.iter().enumerate() {
            frame.floats[i] = super::fold::identity(r.op) as f64;
            frame.ints[i] = match r.op {
                ReduceOp::Sum => 0,
                ReduceOp::Max => i64::MIN,
                ReduceOp::Min => i64::MAX,
            };
        }
        self.go(frame, tiles.start);
        // Safety: the caller's promise.
        unsafe {
            frame.run(&pass.row);
            if !pass.tile.is_empty() {
                for tile in tiles {
                    self.go(frame, tile);
                    frame.run(&pass.tile);
                }
            }
        }
    }

    /// Moves the states of reductions to the registers of their results.
    ///
    /// # Safety
    /// As for [`Machine::pass`].
    pub(crate) unsafe fn finish(&self, pass: &Pass, frame: &Frame) {
        for (i, r) in pass.reductions.iter().enumerate() {
            let d = frame.slot(r.dst);
            // Safety: registers of row values hold a block.
            unsafe {
                match r.class {
                    Class::I => std::slice::from_raw_parts_mut(d.cast::<i64>(), BLOCK).fill(frame.ints[i]),
                    _ => std::slice::from_raw_parts_mut(d.cast::<f32>(), BLOCK).fill(frame.floats[i] as f32),
                }
            }
        }
    }
}

/// Adds axes of size 1 so that there is at least one before and one after `split`.
pub(crate) fn pad(mut shape: Vec<usize>, mut split: usize, walks: &mut [Walk]) -> (Vec<usize>, usize) {
    if split == 0 {
        shape.insert(0, 1);
        walks.iter_mut().for_each(|w| w.strides.insert(0, 0));
        split = 1;
    }
    if split == shape.len() {
        shape.push(1);
        walks.iter_mut().for_each(|w| w.strides.push(0));
    }
    (shape, split)
}

/// How often an operand must be read: once, once per row, or per element.
pub(crate) fn level(walk: &Walk, split: usize) -> u8 {
    let still = |strides: &[isize]| strides.iter().all(|s| *s == 0);
    match (still(&walk.strides[split..]), still(&walk.strides)) {
        (_, true) => 0,
        (true, false) => 1,
        (false, false) => 2,
    }
}

/// An operand as the tiles see it.
pub(crate) fn access(tiling: &Tiling, walk: Walk, level: u8) -> Access {
    let whole = level == 2;
    let dims = if !whole && tiling.long { Vec::new() } else { tiling.inner_dims(&walk, whole) };
    let (step, dense) = (walk.strides[tiling.axis], tiling.dense(&walk, whole));
    Access { walk, level, step, dims, dense, slot: None, repeats: step == 0, kept: None }
}
