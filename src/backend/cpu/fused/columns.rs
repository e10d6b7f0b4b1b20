//! Reductions whose innermost axis stays: a tile of partial results, added to tile by tile.

use super::TILE;
use super::code::{self, Access, Code, MAX_ACCESSES};
use super::fold::{combine, identity};
use super::frame::walk_runs;
use super::machine::{Machine, access, level, pad};
use super::nodes::{Class, Graph, Op, Shapes};
use super::space::{MAX_AXES, Tiling, Walk, merge};
use crate::backend::cpu::memory::Memory;
use crate::backend::cpu::threads::{Shared, parallel_for};
use crate::kernel::{Program, ReduceOp, RunContext, View};
use crate::tensor::DType;

/// Tiles summed in f32 before they go to f64.
const FLUSH: usize = 32;
/// Elements that make a part of a reduction worth a task.
const WORK: usize = 1 << 15;
/// At most so many parts.
const PARTS: usize = 16;

/// `scale * op over the middle axes of program(reads)`, for a space of leading kept, reduced, and
/// trailing kept axes. The innermost axes may be reduced too: they are kept as long as the others
/// are reduced, and summed in the end.
#[derive(Debug)]
pub(crate) struct Columns {
    machine: Machine,
    op: ReduceOp,
    scale: f64,
    /// The slot of the tile of partial results.
    sums: u16,
    /// Elements of the trailing kept axes. Does a tile hold them all, or else a piece?
    columns: usize,
    /// So many neighbouring columns are one in the end.
    fold: usize,
    whole: bool,
    pieces: usize,
    /// Rows (combinations of leading axes), steps of a row's reduction (tiles of one piece).
    rows: usize,
    rows_per_task: usize,
    steps: usize,
    parts: usize,
    write: Walk,
    /// Sizes and strides of the write along leading and trailing axes.
    lead: Vec<(usize, isize)>,
    trail: Vec<(usize, isize)>,
}

impl Columns {
    /// Prepares it; `lead` and `trail` say how many of the axes are kept before and after those
    /// reduced, and how many follow that are reduced in the end. `None` as for [`super::FusedOp`], and for results that are not floats.
    pub(crate) fn compile(
        shape: &[usize],
        (lead, trail, inner): (usize, usize, usize),
        program: &Program,
        (op, scale): (ReduceOp, f64),
        reads: &[View],
        write: &View,
    ) -> Option<Self> {
        if reads.len() + 1 > MAX_ACCESSES || Class::of(write.dtype) != Some(Class::F) || shape.contains(&0) {
            return None;
        }
        let (end, kept_end) = (shape.len() - trail - inner, shape.len() - inner);
        let dims = |axes: std::ops::Range<usize>| axes.map(|a| (shape[a], write.strides[a])).collect::<Vec<_>>();
        let (write_lead, write_trail) = (dims(0..lead), dims(end..kept_end));
        let mut walks: Vec<Walk> = reads.iter().map(Walk::new).collect();
        let group: Vec<u8> = (0..shape.len()).map(|a| (a >= lead) as u8 + (a >= end) as u8).collect();
        let (merged, groups) = merge(shape, &group, &mut walks.iter_mut().collect::<Vec<_>>());
        let split = groups.iter().filter(|g| **g == 0).count();
        let trailing = groups.iter().filter(|g| **g == 2).count();
        let (merged, split) = pad(merged, split, &mut walks);
        if merged.len() > MAX_AXES {
            return None;
        }
        let tail = merged.len() - trailing;
        let columns: usize = shape[end..].iter().product();
        let fold: usize = shape[kept_end..].iter().product();
        let tiling = Tiling::new(merged, split, TILE, 0);
        // A tile is some steps of the reduction over all columns, or one step over some columns.
        let whole = tiling.tile_len().is_multiple_of(columns);
        let pieces = if whole { 1 } else { tiling.tiles_per_row() / (tiling.row_len() / columns) };
        let mut accesses: Vec<Access> = walks
            .into_iter()
            .map(|walk| {
                Class::of(walk.dtype)?;
                let level = level(&walk, split);
                let still = walk.strides[split..tail].iter().all(|s| *s == 0);
                let access = access(&tiling, walk, level);
                Some(Access { repeats: access.repeats || still, ..access })
            })
            .collect::<Option<_>>()?;
        let levels: Vec<u8> = accesses.iter().map(|a| a.level).collect();
        let mut graph = Graph::build(program, &Shapes { levels: &levels, shape, row_len: tiling.row_len() })?;
        let value = graph.outputs.pop()?;
        if graph.nodes[value as usize].class != Class::F {
            return None;
        }
        graph.accumulate(op, value);
        let code = code::generate(&mut graph, &tiling, &mut accesses, reads.len())?;
        let sums = sums_slot(&code)?;
        let rows = tiling.tiles() / tiling.tiles_per_row();
        let steps = tiling.tiles_per_row() / pieces;
        let parts = (PARTS / (rows * pieces)).min(steps * tiling.tile_len() / WORK).clamp(1, PARTS);
        let rows_per_task = (WORK * parts * pieces / tiling.row_len()).clamp(1, rows);
        let machine = Machine { tiling, code, accesses };
        let (lead, trail) = (write_lead, write_trail);
        let write = Walk::new(write);
        Some(Self {
            machine,
            op,
            scale,
            sums,
            columns,
            fold,
            whole,
            pieces,
            rows,
            rows_per_task,
            steps,
            parts,
            write,
            lead,
            trail,
        })
    }

    /// f32 elements of scratch memory that a run needs, for its partial results.
    pub(crate) fn scratch(&self) -> usize {
        2 * self.rows * self.parts * self.columns
    }

    fn group(&self, group: usize) -> std::ops::Range<usize> {
        group * self.rows_per_task..((group + 1) * self.rows_per_task).min(self.rows)
    }

    /// Runs it.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for every view; `scratch` has [`Columns::scratch`]
    /// elements and is aligned to 8.
    pub(crate) unsafe fn run(&self, memory: &Memory, scratch: &mut [f32], cx: &RunContext) {
        debug_assert!(scratch.len() >= self.scratch());
        let run = Run { op: self, memory, cx, partial: Shared::new(scratch) };
        // Safety: the caller's promise; tasks fill disjoint pieces.
        let groups = self.rows.div_ceil(self.rows_per_task);
        // Safety: the caller's promise; tasks fill disjoint pieces.
        parallel_for(groups * self.parts * self.pieces, |task| unsafe { run.task(task) });
        parallel_for(groups, |group| {
            // Safety: as above.
            self.group(group).for_each(|row| unsafe { run.finish(row) });
        });
    }
}

/// The register that partial results accumulate in.
fn sums_slot(code: &Code) -> Option<u16> {
    let accumulates = |op: Op| matches!(op, Op::Accumulate(_) | Op::AccumulateDot);
    code.passes.iter().flat_map(|p| &p.tile).find(|i| accumulates(i.op)).map(|i| i.dst)
}

struct Run<'a> {
    op: &'a Columns,
    memory: &'a Memory,
    cx: &'a RunContext,
    partial: Shared<f32>,
}

impl Run<'_> {
    /// One part of one piece of each row of a group.
    ///
    /// Safety: as for [`Columns::run`].
    unsafe fn task(&self, task: usize) {
        let Columns { machine, op, pieces, steps, parts, columns, .. } = self.op;
        let (piece, part, group) = (task % pieces, task / pieces % parts, task / (pieces * parts));
        let pass = &machine.code.passes[0];
        let rows = self.op.group(group);
        // Safety: the caller's promise; the register holds a tile, the partial results are this
        // task's alone.
        machine.on_stack(self.memory, self.cx, |frame| unsafe {
            machine.go(frame, machine.tiles_of(rows.start).start + piece);
            frame.run(&machine.code.prologue);
            for row in rows {
                let first = machine.tiles_of(row).start + piece;
                machine.go(frame, first);
                frame.run(&pass.row);
                let (start, here) =
                    if self.op.whole { (0, *columns) } else { (frame.place.linear % columns, frame.len) };
                let used = if self.op.whole { machine.tiling.tile_len() } else { here };
                let sums = std::slice::from_raw_parts_mut(frame.slot(self.op.sums).cast::<f32>(), used);
                let out = self.partial.get().cast::<f64>().add((row * parts + part) * columns + start);
                let out = std::slice::from_raw_parts_mut(out, here);
                out.fill(identity(*op) as f64);
                sums.fill(identity(*op));
                let (from, to) = (steps * part / parts, steps * (part + 1) / parts);
                for step in from..to {
                    machine.go(frame, first + step * pieces);
                    frame.run(&pass.tile);
                    if (step - from) % FLUSH == FLUSH - 1 || step + 1 == to {
                        collect(*op, sums, out);
                    }
                }
            }
        });
    }
}

/// Adds the tile's rows of columns to `out` and clears the tile.
fn collect(op: ReduceOp, sums: &mut [f32], out: &mut [f64]) {
    for line in sums.chunks_mut(out.len()) {
        for (o, s) in out.iter_mut().zip(line) {
            *o = combine(op, *o, *s as f64);
            *s = identity(op);
        }
    }
}

impl Run<'_> {
    /// Combines the parts of a row, in order, and writes its columns.
    ///
    /// Safety: as for [`Columns::run`]; all parts are there.
    unsafe fn finish(&self, row: usize) {
        let Columns { op, scale, parts, columns, fold, write, lead, trail, .. } = self.op;
        let mut at = 0;
        let mut rest = row;
        for &(size, stride) in lead.iter().rev() {
            at += (rest % size) as isize * stride;
            rest /= size;
        }
        // Safety: the caller's promise.
        unsafe {
            let base = self.partial.get().cast::<f64>().add(row * parts * columns);
            let part = |column: usize| {
                (1..*parts).fold(*base.add(column), |s, p| combine(*op, s, *base.add(p * columns + column)))
            };
            let value = |column: usize| {
                let first = column * fold;
                let sum = (first + 1..first + fold).fold(part(first), |s, c| combine(*op, s, part(c)));
                (sum * scale) as f32
            };
            let to = self.memory.at(write.buffer, write.offset).offset(at * write.dtype.size() as isize);
            walk_runs(1, 0, trail, |position, offset, count, stride| {
                for i in 0..count {
                    let at = offset + i as isize * stride;
                    match write.dtype {
                        DType::F16 => *to.cast::<half::f16>().offset(at) = half::f16::from_f32(value(position + i)),
                        DType::BF16 => *to.cast::<half::bf16>().offset(at) = half::bf16::from_f32(value(position + i)),
                        _ => *to.cast::<f32>().offset(at) = value(position + i),
                    }
                }
            });
        }
    }
}
