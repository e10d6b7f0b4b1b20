//! Strided to strided copies of elements of any dtype, by their size alone.

use super::memory::Memory;
use super::simd::transpose4;
use super::threads::parallel_for;
use crate::kernel::{BufferId, View};

/// Elements that make a task worth a thread.
const WORK: usize = 1 << 15;
/// Rows of a destination that a transpose fills side by side.
const SQUARE: usize = 16;

/// An axis: its size, the strides of source and destination.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    size: usize,
    from: isize,
    to: isize,
}

/// What the innermost axis looks like.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Runs on both sides.
    Run,
    /// One element, again and again, to a run.
    Fill,
    /// A run of the source goes across runs of the destination.
    Transpose,
    /// Anything else.
    Stride,
}

/// A copy, ready to run on any memory that its views fit.
#[derive(Debug)]
pub struct CopyOp {
    size: usize,
    from: (BufferId, usize),
    to: (BufferId, usize),
    /// All axes but the two innermost of the copy.
    outer: Vec<Axis>,
    /// The two innermost, and how much of each is one unit of work.
    j: Axis,
    i: Axis,
    block: (usize, usize),
    kind: Kind,
    units: usize,
    units_per_task: usize,
}

impl CopyOp {
    /// Prepares the copy of `read` to `write`, which have one shape and dtype; `None` if not.
    pub fn compile(read: &View, write: &View) -> Option<Self> {
        if read.shape != write.shape || read.dtype != write.dtype {
            return None;
        }
        let mut axes: Vec<Axis> = (0..read.rank())
            .map(|a| Axis { size: read.shape[a], from: read.strides[a], to: write.strides[a] })
            .filter(|a| a.size != 1)
            .collect();
        // The order of a copy is free: walk the destination as it lies.
        axes.sort_by_key(|a| std::cmp::Reverse(a.to.unsigned_abs()));
        let mut merged: Vec<Axis> = Vec::new();
        for axis in axes {
            match merged.last_mut() {
                Some(last)
                    if last.from == axis.from * axis.size as isize && last.to == axis.to * axis.size as isize =>
                {
                    *last = Axis { size: last.size * axis.size, ..axis };
                }
                _ => merged.push(axis),
            }
        }
        let point = Axis { size: 1, from: 0, to: 0 };
        let i = merged.pop().unwrap_or(Axis { from: 1, to: 1, ..point });
        let kind = match (i.from, i.to) {
            (1, 1) => Kind::Run,
            (0, 1) => Kind::Fill,
            (_, 1) if merged.iter().any(|a| a.from == 1) => Kind::Transpose,
            _ => Kind::Stride,
        };
        let j = match kind {
            Kind::Transpose => merged.iter().position(|a| a.from == 1).map(|at| merged.remove(at)),
            _ => merged.pop(),
        };
        let j = j.unwrap_or(point);
        let block = match kind {
            Kind::Transpose => (j.size.min(SQUARE), i.size.min(WORK / SQUARE)),
            _ => (j.size.min((WORK / i.size.max(1)).max(1)), i.size.min(WORK)),
        };
        let outer: usize = merged.iter().map(|a| a.size).product();
        let units = if read.is_empty() { 0 } else { outer * j.size.div_ceil(block.0) * i.size.div_ceil(block.1) };
        let units_per_task = (WORK / (block.0 * block.1).max(1)).max(1);
        let size = read.dtype.size();
        let at = |v: &View| (v.buffer, v.offset * size);
        Some(Self { size, from: at(read), to: at(write), outer: merged, j, i, block, kind, units, units_per_task })
    }

    /// Runs the copy.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for both views; they are disjoint or identical.
    pub unsafe fn run(&self, memory: &Memory) {
        // Safety: the caller's promise.
        unsafe {
            match self.size {
                1 => self.copy::<u8>(memory),
                2 => self.copy::<u16>(memory),
                4 => self.copy::<u32>(memory),
                _ => self.copy::<u64>(memory),
            }
        }
    }

    /// Safety: as for [`CopyOp::run`].
    unsafe fn copy<T: Copy>(&self, memory: &Memory) {
        parallel_for(self.units.div_ceil(self.units_per_task), |task| {
            let from = memory.at(self.from.0, self.from.1).cast::<T>();
            let to = memory.at(self.to.0, self.to.1).cast::<T>();
            let start = task * self.units_per_task;
            for unit in start..(start + self.units_per_task).min(self.units) {
                // Safety: the caller's promise; units write disjoint places.
                unsafe { self.unit(unit, from, to) };
            }
        });
    }

    /// Safety: as for [`CopyOp::run`].
    unsafe fn unit<T: Copy>(&self, unit: usize, from: *const T, to: *mut T) {
        let (j, i) = (self.j, self.i);
        let (pieces_i, pieces_j) = (i.size.div_ceil(self.block.1), j.size.div_ceil(self.block.0));
        let (i0, rest) = (unit % pieces_i * self.block.1, unit / pieces_i);
        let (j0, mut rest) = (rest % pieces_j * self.block.0, rest / pieces_j);
        let mut source = j0 as isize * j.from + i0 as isize * i.from;
        let mut target = j0 as isize * j.to + i0 as isize * i.to;
        for axis in self.outer.iter().rev() {
            let at = (rest % axis.size) as isize;
            rest /= axis.size;
            source += at * axis.from;
            target += at * axis.to;
        }
        let (rows, n) = (self.block.0.min(j.size - j0), self.block.1.min(i.size - i0));
        // Safety: the caller's promise, for all of these.
        unsafe {
            let (s, d) = (from.offset(source), to.offset(target));
            if self.kind == Kind::Transpose {
                return transpose(s, i.from, d, j.to, rows, n);
            }
            for row in 0..rows as isize {
                let (s, d) = (s.offset(row * j.from), d.offset(row * j.to));
                match self.kind {
                    // Both may be one place.
                    Kind::Run => std::ptr::copy(s, d, n),
                    Kind::Fill => std::slice::from_raw_parts_mut(d, n).fill(*s),
                    _ => (0..n as isize).for_each(|k| *d.offset(k * i.to) = *s.offset(k * i.from)),
                }
            }
        }
    }
}

/// `d[r * d_row + c] = s[c * s_row + r]` for `rows` by `n`, in squares of four where elements have
/// the size of f32.
///
/// Safety: the elements are there, and source and destination are disjoint.
unsafe fn transpose<T: Copy>(s: *const T, s_row: isize, d: *mut T, d_row: isize, rows: usize, n: usize) {
    let squares = if size_of::<T>() == 4 && d_row > 0 { (rows / 4 * 4, n / 4 * 4) } else { (0, 0) };
    for c in (0..squares.1).step_by(4) {
        for r in (0..squares.0).step_by(4) {
            // Safety: the caller's promise; a transpose moves bits, whatever they mean.
            unsafe {
                let (s, d) = (s.offset(c as isize * s_row).add(r), d.offset(r as isize * d_row).add(c));
                transpose4(s.cast(), s_row, d.cast(), d_row as usize);
            }
        }
    }
    for r in 0..rows {
        let done = if r < squares.0 { squares.1 } else { 0 };
        for c in done..n {
            // Safety: the caller's promise.
            unsafe { *d.offset(r as isize * d_row).add(c) = *s.offset(c as isize * s_row).add(r) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fused::testing::{Rng, memory};
    use super::super::threads::set_threads;
    use super::*;
    use crate::kernel::reference::{self, HostBuffers};
    use crate::kernel::{Kernel, RunContext, Step};
    use crate::tensor::DType;

    fn check(buffers: &HostBuffers, read: View, write: View) -> Kind {
        let op = CopyOp::compile(&read, &write).unwrap();
        let run = |threads: usize| {
            let mut mine = buffers.clone();
            let table = memory(&mut mine);
            table.check(&read).unwrap();
            table.check(&write).unwrap();
            set_threads(threads);
            // Safety: both views were checked.
            unsafe { op.run(&table) };
            set_threads(0);
            mine
        };
        let mut want = buffers.clone();
        let step =
            Step { kernel: Kernel::Copy, reads: vec![read.clone()], writes: vec![write.clone()], from: "n".into() };
        reference::run(&step, &mut want, &RunContext::default()).unwrap();
        for got in [run(1), run(2)] {
            for (got, want) in got.0.iter().zip(&want.0) {
                assert!(got.as_bytes() == want.as_bytes(), "{step:?} {op:?}");
            }
        }
        op.kind
    }

    #[test]
    fn against_the_reference() {
        let mut rng = Rng(1);
        let mut seen = Vec::new();
        for dtype in [DType::U8, DType::F16, DType::F32, DType::I64] {
            for shape in [
                vec![],
                vec![5],
                vec![0, 3],
                vec![70_000],
                vec![3, 1, 40],
                vec![33, 50],
                vec![300, 200],
                vec![5, 6, 7, 8],
                vec![2, 130, 20, 16],
            ] {
                let tensor = rng.tensor(dtype, &shape);
                let mut buffers = HostBuffers::new();
                let from = View::contiguous(buffers.add(&tensor), dtype, &shape);
                let spare = buffers.add_zeros(dtype, &[tensor.len() * 3 + 1]).unwrap();
                let rank = shape.len();
                let orders: Vec<Vec<usize>> =
                    vec![(0..rank).collect(), (0..rank).rev().collect(), (1..rank).chain(0..rank.min(1)).collect()];
                for read_order in &orders {
                    for write_order in &orders {
                        let read = from.permuted(read_order);
                        let mut lying = vec![0; rank];
                        for (a, &o) in write_order.iter().enumerate() {
                            lying[o] = read.shape[a];
                        }
                        let write = View::contiguous(spare, dtype, &lying).permuted(write_order);
                        seen.push(check(&buffers, read.clone(), write.clone()));
                        if rank > 0 && shape[0] > 1 && !read.is_empty() {
                            // Backwards, spread out, repeated.
                            let n = read.shape[0];
                            let mut spread = write.clone();
                            spread.strides.iter_mut().for_each(|s| *s *= 3);
                            seen.push(check(&buffers, read.sliced(0, n - 1, -1, n), spread));
                            let repeated = View { strides: vec![0; rank], ..read.clone() };
                            seen.push(check(&buffers, repeated, write));
                        }
                    }
                }
                check(&buffers, from.clone(), from);
            }
        }
        for kind in [Kind::Run, Kind::Fill, Kind::Transpose, Kind::Stride] {
            assert!(seen.contains(&kind), "{kind:?} was never tried");
        }
    }
}
