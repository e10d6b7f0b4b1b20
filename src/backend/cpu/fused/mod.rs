//! Fused kernels on the CPU: the expression runs a cache-sized tile at a time, one vectorised
//! loop per instruction, over operands where they lie.

mod code;
mod exec;
mod frame;
mod nodes;
mod reduce;
mod space;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

use super::lanes::{F32s, Plain};
use super::memory::Memory;
use super::simd::{Isa, isa};
use super::threads::parallel_for;
use crate::kernel::{Fused, ReduceOp, RunContext, View};
use code::{Access, BLOCK, Code, MAX_ACCESSES, MAX_REDUCTIONS, MAX_SLOTS, SCRATCH, Slot};
use frame::Frame;
use nodes::{Class, Graph, Shapes};
use space::{MAX_AXES, Place, Tiling, Walk, merge};
use std::mem::MaybeUninit;

/// Elements of a tile.
const TILE: usize = 1024;
/// Rows of so many elements are kept whole where registers allow.
const LONGEST: usize = 4096;
/// Elements times instructions that make a task worth a thread.
const WORK: usize = 1 << 18;

/// A [`Fused`] kernel, ready to run on any memory that its views fit.
#[derive(Debug)]
pub struct FusedOp {
    tiling: Tiling,
    code: Code,
    /// Reads, then writes.
    accesses: Vec<Access>,
    /// Are tasks made of whole rows (else of tiles)?
    by_rows: bool,
    units: usize,
    units_per_task: usize,
}

/// Registers of a task.
#[repr(align(64))]
struct Scratch(#[allow(dead_code, reason = "used through its address")] [MaybeUninit<u8>; SCRATCH]);

impl FusedOp {
    /// Prepares a kernel, or gives `None` where there is no fast path for it: dtypes without a
    /// class (float64, uint64), operations without an instruction, or more operands, axes or
    /// live values than there is room for.
    pub fn compile(fused: &Fused, reads: &[View], writes: &[View]) -> Option<Self> {
        if reads.len() + writes.len() > MAX_ACCESSES || writes.len() != fused.program.outputs.len() {
            return None;
        }
        if fused.shape.contains(&0) {
            // Nothing to compute, unless a value per row still wants to be written.
            return writes.iter().all(View::is_empty).then(Self::nothing);
        }
        for tile in [TILE, TILE / 4, TILE / 16] {
            if let Some(op) = Self::attempt(fused, reads, writes, tile) {
                return Some(op);
            }
        }
        None
    }

    fn nothing() -> Self {
        let tiling = Tiling::new(vec![1, 1], 1, TILE, LONGEST);
        Self { tiling, code: Code::default(), accesses: Vec::new(), by_rows: false, units: 0, units_per_task: 1 }
    }

    fn attempt(fused: &Fused, reads: &[View], writes: &[View], tile: usize) -> Option<Self> {
        let first_row = fused.shape.len() - fused.row_axes;
        let per_row: Vec<bool> = writes.iter().map(|w| w.shape != fused.shape).collect();
        let mut walks: Vec<Walk> = reads.iter().chain(writes).map(Walk::new).collect();
        for (walk, _) in walks[reads.len()..].iter_mut().zip(&per_row).filter(|(_, p)| **p) {
            walk.strides[first_row..].fill(0);
        }
        // Kernels that reduce nothing may cut the space into rows as they like.
        let rows_matter = fused.program.has_row_reduce() || per_row.contains(&true);
        let is_row: Vec<bool> = (0..fused.shape.len()).map(|a| rows_matter && a >= first_row).collect();
        let (shape, groups) = merge(&fused.shape, &is_row, &mut walks.iter_mut().collect::<Vec<_>>());
        let split = if rows_matter {
            groups.iter().filter(|row| !**row).count()
        } else {
            free_split(&shape, &walks[..reads.len()])
        };
        let (shape, split) = pad(shape, split, &mut walks);
        if shape.len() > MAX_AXES {
            return None;
        }
        let longest = if fused.program.has_row_reduce() { LONGEST * tile / TILE } else { tile };
        let tiling = Tiling::new(shape, split, tile, longest);
        let mut accesses: Vec<Access> = Vec::with_capacity(walks.len());
        for (i, walk) in walks.into_iter().enumerate() {
            Class::of(walk.dtype)?;
            let level = match i.checked_sub(reads.len()) {
                Some(write) => 2 - per_row[write] as u8,
                None => level(&walk, split),
            };
            accesses.push(access(&tiling, walk, level));
        }
        let levels: Vec<u8> = accesses.iter().map(|a| a.level).collect();
        let shapes = Shapes { levels: &levels, shape: &fused.shape, row_len: tiling.row_len() };
        let mut graph = Graph::build(&fused.program, &shapes)?;
        for (k, &id) in graph.outputs.iter().enumerate() {
            // A value that differs along the row has no place in a write per row.
            if per_row[k] && graph.nodes[id as usize].level == 2 {
                return None;
            }
        }
        let code = code::generate(&mut graph, &tiling, &mut accesses, reads.len())?;
        Some(Self::schedule(tiling, code, accesses, per_row.contains(&true)))
    }

    /// Splits the work into tasks, by shape alone.
    fn schedule(tiling: Tiling, code: Code, accesses: Vec<Access>, per_row: bool) -> Self {
        let by_rows = tiling.long && (per_row || code.passes.len() > 1);
        let tiles = tiling.tiles();
        let (units, each) = match by_rows {
            true => (tiles / tiling.tiles_per_row(), tiling.row_len()),
            false => (tiles, tiling.tile_len()),
        };
        let instructions: usize = code.passes.iter().map(|p| p.tile.len()).sum();
        let units_per_task = (WORK / (each * (instructions + 2))).max(1);
        Self { tiling, code, accesses, by_rows, units, units_per_task }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for every view it was compiled with.
    pub unsafe fn run(&self, memory: &Memory, cx: &RunContext) {
        parallel_for(self.units.div_ceil(self.units_per_task), |task| {
            // Safety: the caller's promise; tasks write disjoint places.
            unsafe { self.task(task, memory, cx) }
        });
    }

    /// Safety: as for [`FusedOp::run`].
    unsafe fn task(&self, task: usize, memory: &Memory, cx: &RunContext) {
        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2")]
        unsafe fn avx2(op: &FusedOp, task: usize, memory: &Memory, cx: &RunContext) {
            // Safety: the caller's promise; the instructions are enabled here.
            unsafe { op.work::<super::lanes::Avx2>(task, memory, cx) }
        }
        // Safety: the caller's promise; `isa` says which instructions are there.
        unsafe {
            match isa() {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 | Isa::Avx512 => avx2(self, task, memory, cx),
                #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
                Isa::Simd128 => self.work::<super::lanes::Simd128>(task, memory, cx),
                _ => self.work::<Plain<4>>(task, memory, cx),
            }
        }
    }

    /// Safety: as for [`FusedOp::run`]; `V`'s instructions are there.
    #[inline(always)]
    unsafe fn work<V: F32s>(&self, task: usize, memory: &Memory, cx: &RunContext) {
        let mut scratch = MaybeUninit::<Scratch>::uninit();
        let mut frame = self.frame(memory, cx, scratch.as_mut_ptr().cast());
        let (start, end) = (task * self.units_per_task, ((task + 1) * self.units_per_task).min(self.units));
        self.go(&mut frame, if self.by_rows { start * self.tiling.tiles_per_row() } else { start });
        // Safety: the caller's promise; `go` has pointed the frame at each tile.
        unsafe {
            exec::run::<V>(&self.code.prologue, &mut frame);
            if !self.tiling.long {
                for tile in start..end {
                    self.go(&mut frame, tile);
                    exec::run::<V>(&self.code.passes[0].tile, &mut frame);
                }
            } else if self.by_rows {
                for row in start..end {
                    self.row::<V>(row, &mut frame);
                }
            } else {
                let per_row = self.tiling.tiles_per_row();
                for tile in start..end {
                    self.go(&mut frame, tile);
                    if tile == start || tile % per_row == 0 {
                        exec::run::<V>(&self.code.passes[0].row, &mut frame);
                    }
                    exec::run::<V>(&self.code.passes[0].tile, &mut frame);
                }
            }
        }
    }

    /// All passes over one long row.
    ///
    /// Safety: as for [`FusedOp::work`].
    #[inline(always)]
    unsafe fn row<V: F32s>(&self, row: usize, frame: &mut Frame) {
        let per_row = self.tiling.tiles_per_row();
        for pass in &self.code.passes {
            for (i, r) in pass.reductions.iter().enumerate() {
                frame.floats[i] = reduce::identity(r.op) as f64;
                frame.ints[i] = match r.op {
                    ReduceOp::Sum => 0,
                    ReduceOp::Max => i64::MIN,
                    ReduceOp::Min => i64::MAX,
                };
            }
            self.go(frame, row * per_row);
            // Safety: the caller's promise.
            unsafe {
                exec::run::<V>(&pass.row, frame);
                if !pass.tile.is_empty() {
                    for tile in row * per_row..(row + 1) * per_row {
                        self.go(frame, tile);
                        exec::run::<V>(&pass.tile, frame);
                    }
                }
                for (i, r) in pass.reductions.iter().enumerate() {
                    let d = frame.slot(r.dst);
                    match r.class {
                        Class::I => std::slice::from_raw_parts_mut(d.cast::<i64>(), BLOCK).fill(frame.ints[i]),
                        _ => std::slice::from_raw_parts_mut(d.cast::<f32>(), BLOCK).fill(frame.floats[i] as f32),
                    }
                }
            }
        }
        self.go(frame, row * per_row);
        // Safety: the caller's promise.
        unsafe { exec::run::<V>(&self.code.stores, frame) };
    }

    /// Points the frame at a tile.
    #[inline]
    fn go(&self, frame: &mut Frame, tile: usize) {
        let place = self.tiling.place(tile);
        frame.rows = place.extent * self.tiling.rows_per_step();
        frame.len = place.extent * self.tiling.inner();
        frame.enter(place, self.tiling.axis);
    }

    fn frame(&self, memory: &Memory, cx: &RunContext, scratch: *mut u8) -> Frame<'_> {
        let mut frame = Frame {
            accesses: &self.accesses,
            context: *cx,
            slots: [std::ptr::null_mut(); MAX_SLOTS],
            keys: [(0, 0); MAX_SLOTS],
            base: [std::ptr::null_mut(); MAX_ACCESSES],
            current: [std::ptr::null_mut(); MAX_ACCESSES],
            place: Place::default(),
            rows: 0,
            len: 0,
            row_len: self.tiling.row_len(),
            floats: [0.0; MAX_REDUCTIONS],
            ints: [0; MAX_REDUCTIONS],
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
}

/// Where rows begin in a space that may be cut freely: rows are the shortest run of trailing axes
/// along which some operand (that is not one number) stays the same; else all is one row.
fn free_split(shape: &[usize], reads: &[Walk]) -> usize {
    let suffix = |w: &Walk| w.strides.iter().rev().take_while(|s| **s == 0).count();
    let shortest = reads.iter().map(suffix).filter(|&n| n > 0 && n < shape.len()).min();
    shortest.map_or(0, |n| shape.len() - n)
}

/// Adds axes of size 1 so that there is at least one before and one after `split`.
fn pad(mut shape: Vec<usize>, mut split: usize, walks: &mut [Walk]) -> (Vec<usize>, usize) {
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
fn level(walk: &Walk, split: usize) -> u8 {
    let still = |strides: &[isize]| strides.iter().all(|s| *s == 0);
    match (still(&walk.strides[split..]), still(&walk.strides)) {
        (_, true) => 0,
        (true, false) => 1,
        (false, false) => 2,
    }
}

fn access(tiling: &Tiling, walk: Walk, level: u8) -> Access {
    let whole = level == 2;
    let dims = if !whole && tiling.long { Vec::new() } else { tiling.inner_dims(&walk, whole) };
    let (step, dense) = (walk.strides[tiling.axis], tiling.dense(&walk, whole));
    Access { walk, level, step, dims, dense, slot: None, keep: false }
}

const _: () = assert!(SCRATCH >= 16 * TILE, "a register must fit at the smallest tile");
