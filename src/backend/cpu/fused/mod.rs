//! Fused kernels on the CPU: the expression runs a cache-sized tile at a time, one vectorised
//! loop per instruction, over operands where they lie.

mod code;
mod columns;
mod composites;
mod exec;
mod fold;
mod frame;
mod machine;
mod nodes;
mod random;
mod space;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;

pub(super) use columns::Columns;

use super::memory::Memory;
use super::threads::{Shared, parallel_for};
use crate::kernel::{Fused, RunContext, View};
use code::{Access, Code, MAX_ACCESSES, Reduction};
use machine::{Machine, access, level, pad};
use nodes::{Class, Graph, Shapes};
use space::{MAX_AXES, Tiling, Walk, merge};

/// Elements of a tile.
const TILE: usize = 1024;
/// Rows of so many elements are kept whole where registers allow.
const LONGEST: usize = 4096;
/// Elements times instructions that make a task worth a thread.
const WORK: usize = 1 << 18;
/// Partial results of long reductions that fit a run's stack.
const PARTIALS: usize = 256;
/// Tiles that make a part of a reduction.
const PART: usize = 8;

/// A [`Fused`] kernel, ready to run on any memory that its views fit.
#[derive(Debug)]
pub struct FusedOp {
    machine: Machine,
    /// Are tasks made of whole rows (else of tiles)?
    by_rows: bool,
    units: usize,
    units_per_task: usize,
    /// Into how many parts each row's reduction is split.
    parts: usize,
}

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
        [TILE, TILE / 4, TILE / 16].into_iter().find_map(|tile| Self::attempt(fused, reads, writes, tile))
    }

    fn nothing() -> Self {
        let tiling = Tiling::new(vec![1, 1], 1, TILE, LONGEST);
        let machine = Machine { tiling, code: Code::default(), accesses: Vec::new() };
        Self { machine, by_rows: false, units: 0, units_per_task: 1, parts: 1 }
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
        Some(Self::schedule(Machine { tiling, code, accesses }, per_row.contains(&true)))
    }

    /// Splits the work into tasks, by shape alone.
    fn schedule(machine: Machine, per_row: bool) -> Self {
        let Machine { tiling, code, .. } = &machine;
        let by_rows = tiling.long && (per_row || code.passes.len() > 1);
        let tiles = tiling.tiles();
        let (units, each) = match by_rows {
            true => (tiles / tiling.tiles_per_row(), tiling.row_len()),
            false => (tiles, tiling.tile_len()),
        };
        let instructions: usize = code.passes.iter().map(|p| p.tile.len()).sum();
        let units_per_task = (WORK / (each * (instructions + 2))).max(1);
        // Few long rows of which only reductions are wanted are reduced in parts.
        let mut parts = 1;
        if by_rows
            && let [first, last] = &code.passes[..]
            && last.tile.is_empty()
        {
            let room = PARTIALS / (units * first.reductions.len().max(1));
            parts = (tiling.tiles_per_row() / PART).min(room).clamp(1, 32);
        }
        Self { machine, by_rows, units, units_per_task, parts }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for every view it was compiled with.
    pub unsafe fn run(&self, memory: &Memory, cx: &RunContext) {
        let run = Run { op: self, memory, cx };
        if self.parts == 1 {
            // Safety: the caller's promise; tasks write disjoint places.
            return parallel_for(self.units.div_ceil(self.units_per_task), |task| unsafe { run.task(task) });
        }
        let mut states = [(0f64, 0i64); PARTIALS];
        let states = Shared::new(&mut states);
        let (parts, rows) = (Parts { run: &run, states }, Rows { run: &run, states });
        // Safety: as above; states are disjoint too.
        parallel_for(self.units * self.parts, |task| unsafe { parts.task(task) });
        // Safety: as above.
        parallel_for(self.units, |task| unsafe { rows.task(task) });
    }
}

/// A run of a kernel, in tasks of tiles or of whole rows.
struct Run<'a> {
    op: &'a FusedOp,
    memory: &'a Memory,
    cx: &'a RunContext,
}

impl Run<'_> {
    /// Safety: as for [`FusedOp::run`].
    unsafe fn task(&self, task: usize) {
        let FusedOp { machine, by_rows, units, units_per_task, .. } = self.op;
        let (start, end) = (task * units_per_task, ((task + 1) * units_per_task).min(*units));
        let first = &machine.code.passes[0];
        // Safety: the caller's promise; `go` has pointed the frame at each tile.
        machine.on_stack(self.memory, self.cx, |frame| unsafe {
            machine.go(frame, if *by_rows { machine.tiles_of(start).start } else { start });
            frame.run(&machine.code.prologue);
            if *by_rows {
                for row in start..end {
                    for pass in &machine.code.passes {
                        machine.pass(pass, machine.tiles_of(row), frame);
                        machine.finish(pass, frame);
                    }
                    machine.go(frame, machine.tiles_of(row).start);
                    frame.run(&machine.code.stores);
                }
                return;
            }
            let per_row = if machine.tiling.long { machine.tiling.tiles_per_row() } else { 1 };
            for tile in start..end {
                machine.go(frame, tile);
                if tile == start || tile % per_row == 0 {
                    frame.run(&first.row);
                }
                frame.run(&first.tile);
            }
        });
    }
}

/// The first pass, by parts of rows.
struct Parts<'a> {
    run: &'a Run<'a>,
    states: Shared<(f64, i64)>,
}

impl Parts<'_> {
    /// Safety: as for [`FusedOp::run`].
    unsafe fn task(&self, task: usize) {
        let FusedOp { machine, parts, .. } = self.run.op;
        let (pass, tiles) = (&machine.code.passes[0], machine.tiles_of(task / parts));
        let n = tiles.len();
        let piece = task % parts;
        let tiles = tiles.start + n * piece / parts..tiles.start + n * (piece + 1) / parts;
        // Safety: the caller's promise; every task has states of its own.
        machine.on_stack(self.run.memory, self.run.cx, |frame| unsafe {
            machine.go(frame, tiles.start);
            frame.run(&machine.code.prologue);
            machine.pass(pass, tiles, frame);
            let count = pass.reductions.len();
            for (i, state) in self.states.slice(task * count, count).iter_mut().enumerate() {
                *state = (frame.floats[i], frame.ints[i]);
            }
        });
    }
}

/// The second pass, which has no tiles: combines the parts of a row, in order.
struct Rows<'a> {
    run: &'a Run<'a>,
    states: Shared<(f64, i64)>,
}

impl Rows<'_> {
    /// Safety: as for [`FusedOp::run`].
    unsafe fn task(&self, row: usize) {
        let FusedOp { machine, parts, .. } = self.run.op;
        let (first, second) = (&machine.code.passes[0], &machine.code.passes[1]);
        let start = machine.tiles_of(row).start;
        let count = first.reductions.len();
        // Safety: the caller's promise; the states of this row were all written before.
        machine.on_stack(self.run.memory, self.run.cx, |frame| unsafe {
            machine.go(frame, start);
            frame.run(&machine.code.prologue);
            frame.run(&first.row);
            let states = self.states.slice(row * parts * count, parts * count);
            for (i, &Reduction { op, .. }) in first.reductions.iter().enumerate() {
                (frame.floats[i], frame.ints[i]) = states[i];
                for part in 1..*parts {
                    let (float, int) = states[part * count + i];
                    frame.floats[i] = fold::combine(op, frame.floats[i], float);
                    frame.ints[i] = fold::combine_ints(op, frame.ints[i], int);
                }
            }
            machine.finish(first, frame);
            machine.pass(second, start..start, frame);
            machine.finish(second, frame);
            frame.run(&machine.code.stores);
        });
    }
}

/// Where rows begin in a space that may be cut freely: rows are the shortest run of trailing axes
/// along which some operand (that is not one number) stays the same; else all is one row.
fn free_split(shape: &[usize], reads: &[Walk]) -> usize {
    let suffix = |w: &Walk| w.strides.iter().rev().take_while(|s| **s == 0).count();
    let shortest = reads.iter().map(suffix).filter(|&n| n > 0 && n < shape.len()).min();
    shortest.map_or(0, |n| shape.len() - n)
}
