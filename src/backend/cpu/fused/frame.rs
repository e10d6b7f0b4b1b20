//! The state of a running task, and the instructions that move data: gathering and converting
//! operands, storing results, coordinates and random numbers.

use super::code::{Access, BLOCK, Ins, Len, MAX_ACCESSES, MAX_KEPT, MAX_REDUCTIONS, MAX_SLOTS};
use super::exec::Engine;
use super::fold::{combine, combine_ints};
use super::nodes::{Class, Op};
use super::space::{MAX_AXES, Place};
use crate::kernel::{ReduceOp, RunContext};
use crate::tensor::DType;
use half::{bf16, f16};

/// What a task works on. Slots and keys beyond those in use stay as they are.
pub(crate) struct Frame<'a> {
    pub(crate) accesses: &'a [Access],
    pub(crate) context: RunContext,
    pub(crate) slots: [*mut u8; MAX_SLOTS],
    /// Per kept tile: from where and how much it was filled.
    pub(crate) keys: [(usize, usize); MAX_KEPT],
    /// Per access: the element at coordinate 0, and that at the start of the tile.
    pub(crate) base: [*mut u8; MAX_ACCESSES],
    pub(crate) current: [*mut u8; MAX_ACCESSES],
    pub(crate) place: Place,
    /// Rows and elements of this tile, elements of a row.
    pub(crate) rows: usize,
    pub(crate) len: usize,
    pub(crate) row_len: usize,
    /// States of reductions over a long row.
    pub(crate) floats: [f64; MAX_REDUCTIONS],
    pub(crate) ints: [i64; MAX_REDUCTIONS],
    pub(crate) engine: Engine,
}

impl Frame<'_> {
    #[inline(always)]
    pub(crate) fn slot(&self, i: u16) -> *mut u8 {
        self.slots[i as usize]
    }

    /// Runs a list of instructions on the current tile.
    ///
    /// # Safety
    /// The slots hold what the code's registers, constants and operands need.
    #[inline]
    pub(crate) unsafe fn run(&mut self, list: &[Ins]) {
        // Safety: the caller's promise; `engine` was chosen for this machine.
        unsafe { (self.engine)(list, self) }
    }

    /// Points accesses and slots at the tile at `place`, whose cut axis is `axis`.
    #[inline]
    pub(crate) fn enter(&mut self, place: Place, axis: usize) {
        self.place = place;
        for (k, access) in self.accesses.iter().enumerate() {
            let mut at = 0;
            for a in 0..=axis {
                at += place.coords[a] as isize * access.walk.strides[a];
            }
            let p = self.base[k].wrapping_offset(at * access.walk.dtype.size() as isize);
            self.current[k] = p;
            if let Some(slot) = access.slot {
                self.slots[slot as usize] = p;
            }
        }
    }

    pub(crate) fn accumulate_float(&mut self, i: u16, op: ReduceOp, value: f32) {
        let state = &mut self.floats[i as usize];
        *state = combine(op, *state, value as f64);
    }

    pub(crate) fn accumulate_int(&mut self, i: u16, op: ReduceOp, value: i64) {
        let state = &mut self.ints[i as usize];
        *state = combine_ints(op, *state, value);
    }

    /// Writes a row value: a number in every place of its block, or one of several rows'.
    ///
    /// # Safety
    /// The instruction's register holds that many.
    pub(crate) unsafe fn put<T: Copy>(&self, ins: &Ins, row: usize, value: T) {
        let d = self.slot(ins.dst).cast::<T>();
        // Safety: the caller's promise.
        unsafe {
            if ins.len == Len::Rows {
                *d.add(row) = value;
            } else {
                fill(d, BLOCK, value);
            }
        }
    }

    /// Runs an instruction that moves data.
    ///
    /// # Safety
    /// The slots hold what it needs.
    pub(crate) unsafe fn moves(&mut self, ins: &Ins, n: usize) {
        let d = self.slot(ins.dst);
        let (from, step) = (self.slot(ins.args[0].slot), ins.args[0].step);
        // Safety: the caller's promise, below.
        unsafe {
            match (ins.op, ins.class) {
                (Op::Load(k), _) => self.load(ins, n, k),
                (Op::Store(k), _) => self.store(ins, k, from, step != 0),
                (Op::Coordinate { stride, size, kept }, _) => self.coordinate(ins, n, (stride, size), kept),
                (Op::Expand, Class::F) => expand(d.cast::<f32>(), from.cast(), self.rows, self.row_len),
                (Op::Expand, Class::I) => expand(d.cast::<i64>(), from.cast(), self.rows, self.row_len),
                (Op::Expand, Class::B) => expand(d, from, self.rows, self.row_len),
                (Op::Copy, class) => {
                    let n = if step == 0 { BLOCK } else { n };
                    std::ptr::copy(from, d, n * class.size());
                }
                _ => unreachable!("{:?} computes", ins.op),
            }
        }
    }

    /// Safety: as for [`Frame::moves`].
    unsafe fn load(&mut self, ins: &Ins, n: usize, k: usize) {
        let access = &self.accesses[k];
        let from = self.current[k];
        if let Some(kept) = access.kept {
            let key = &mut self.keys[kept as usize];
            if key.0 == from as usize && key.1 >= n {
                return;
            }
            *key = (from as usize, n);
        }
        let extent = self.place.extent;
        macro_rules! load {
            ($s:ty, $t:ty, $f:expr) => {{
                let (d, s) = (self.slot(ins.dst).cast::<$t>(), from.cast::<$s>().cast_const());
                // Safety: the caller's promise.
                unsafe {
                    if ins.len == Len::Block {
                        fill(d, BLOCK, $f(*s));
                    } else {
                        gather(d, s, extent, access.step, &access.dims, $f);
                    }
                }
            }};
        }
        match access.walk.dtype {
            DType::F32 => load!(f32, f32, |x| x),
            DType::F16 => load!(f16, f32, f16::to_f32),
            DType::BF16 => load!(bf16, f32, bf16::to_f32),
            DType::Bool => load!(u8, u8, |x| x),
            DType::U8 => load!(u8, i64, |x| x as i64),
            DType::I8 => load!(i8, i64, |x| x as i64),
            DType::U16 => load!(u16, i64, |x| x as i64),
            DType::I16 => load!(i16, i64, |x| x as i64),
            DType::I32 => load!(i32, i64, |x| x as i64),
            DType::U32 => load!(u32, i64, |x| x as i64),
            DType::I64 => load!(i64, i64, |x| x),
            DType::F64 | DType::U64 => unreachable!("these dtypes have no class"),
        }
    }

    /// Safety: as for [`Frame::moves`].
    unsafe fn store(&self, ins: &Ins, k: usize, from: *mut u8, moves: bool) {
        let access = &self.accesses[k];
        let to = self.current[k];
        let extent = if ins.len == Len::Block { 1 } else { self.place.extent };
        let dims: &[(usize, isize)] = if ins.len == Len::Block { &[] } else { &access.dims };
        macro_rules! store {
            ($t:ty, $d:ty, $f:expr) => {{
                let (d, s) = (to.cast::<$d>(), from.cast::<$t>().cast_const());
                // Safety: the caller's promise.
                unsafe { scatter(d, s, moves, extent, access.step, dims, $f) }
            }};
        }
        match access.walk.dtype {
            DType::F32 => store!(f32, f32, |x| x),
            DType::F16 => store!(f32, f16, f16::from_f32),
            DType::BF16 => store!(f32, bf16, bf16::from_f32),
            DType::Bool => store!(u8, u8, |x| x),
            DType::U8 => store!(i64, u8, |x| x as u8),
            DType::I8 => store!(i64, i8, |x| x as i8),
            DType::U16 => store!(i64, u16, |x| x as u16),
            DType::I16 => store!(i64, i16, |x| x as i16),
            DType::I32 => store!(i64, i32, |x| x as i32),
            DType::U32 => store!(i64, u32, |x| x as u32),
            DType::I64 => store!(i64, i64, |x| x),
            DType::F64 | DType::U64 => unreachable!("these dtypes have no class"),
        }
    }

    /// Safety: as for [`Frame::moves`].
    unsafe fn coordinate(&mut self, ins: &Ins, n: usize, (stride, size): (usize, usize), kept: u8) {
        let d = self.slot(ins.dst).cast::<i64>();
        let start = if ins.len == Len::Tile { self.place.linear } else { self.place.linear / self.row_len };
        let start = start % (stride * size);
        if ins.len == Len::Block {
            // Safety: a register holds a block.
            return unsafe { fill(d, BLOCK, (start / stride) as i64) };
        }
        let key = &mut self.keys[kept as usize];
        // Keys start at (0, 0): positions count from 1 here.
        if key.0 == start + 1 && key.1 >= n {
            return;
        }
        *key = (start + 1, n);
        let (mut value, mut run) = (start / stride, stride - start % stride);
        let mut at = 0;
        while at < n {
            let count = run.min(n - at);
            // Safety: the register holds `n` elements.
            unsafe { fill(d.add(at), count, value as i64) };
            at += count;
            run = stride;
            value = if value + 1 == size { 0 } else { value + 1 };
        }
    }
}

/// Safety: `n` elements behind `d`.
#[inline(always)]
unsafe fn fill<T: Copy>(d: *mut T, n: usize, value: T) {
    // Safety: the caller's promise.
    unsafe { std::slice::from_raw_parts_mut(d, n) }.fill(value);
}

/// Safety: `rows` values behind `s`, `rows * n` places behind `d`.
#[inline(never)]
unsafe fn expand<T: Copy>(d: *mut T, s: *const T, rows: usize, n: usize) {
    const WIDE: usize = 8;
    let total = rows * n;
    for row in 0..rows {
        // Safety: the caller's promise. What a wide store writes of the next row is written again.
        unsafe {
            let value = *s.add(row);
            let (mut at, end) = (row * n, (row + 1) * n);
            while at < end && at + WIDE <= total {
                d.add(at).cast::<[T; WIDE]>().write_unaligned([value; WIDE]);
                at += WIDE;
            }
            while at < end {
                *d.add(at) = value;
                at += 1;
            }
        }
    }
}

/// Calls `f(row-major position, offset, count, stride)` for each run along the last axis of
/// `extent` steps of `step` times `dims`.
#[inline(always)]
pub(crate) fn walk_runs(
    extent: usize,
    step: isize,
    dims: &[(usize, isize)],
    mut f: impl FnMut(usize, isize, usize, isize),
) {
    let Some((&(count, stride), outer)) = dims.split_last() else {
        return f(0, 0, extent, step);
    };
    let runs: usize = outer.iter().map(|d| d.0).product();
    let mut index = [0usize; MAX_AXES];
    let mut position = 0;
    for i in 0..extent {
        let mut offset = i as isize * step;
        for _ in 0..runs {
            f(position, offset, count, stride);
            position += count;
            for (axis, &(size, stride)) in outer.iter().enumerate().rev() {
                index[axis] += 1;
                offset += stride;
                if index[axis] < size {
                    break;
                }
                index[axis] = 0;
                offset -= stride * size as isize;
            }
        }
    }
}

/// Collects a strided operand into consecutive places.
///
/// Safety: every element that it walks over is there, as are the places.
#[inline(never)]
unsafe fn gather<S: Copy, T: Copy>(
    d: *mut T,
    s: *const S,
    extent: usize,
    step: isize,
    dims: &[(usize, isize)],
    f: impl Fn(S) -> T,
) {
    walk_runs(extent, step, dims, |position, offset, count, stride| {
        // Safety: the caller's promise.
        unsafe {
            let (d, s) = (d.add(position), s.offset(offset));
            match stride {
                // Registers never overlap operands.
                1 => {
                    let (d, s) = (std::slice::from_raw_parts_mut(d, count), std::slice::from_raw_parts(s, count));
                    d.iter_mut().zip(s).for_each(|(d, &s)| *d = f(s));
                }
                0 => fill(d, count, f(*s)),
                _ => (0..count).for_each(|i| *d.add(i) = f(*s.offset(i as isize * stride))),
            }
        }
    });
}

/// Spreads consecutive values (or, unless it `moves`, one value) over a strided result.
///
/// Safety: as for [`gather`].
#[inline(never)]
unsafe fn scatter<S: Copy, T: Copy>(
    d: *mut T,
    s: *const S,
    moves: bool,
    extent: usize,
    step: isize,
    dims: &[(usize, isize)],
    f: impl Fn(S) -> T,
) {
    walk_runs(extent, step, dims, |position, offset, count, stride| {
        // Safety: the caller's promise.
        unsafe {
            let d = d.offset(offset);
            match (moves, stride) {
                (false, _) => (0..count).for_each(|i| *d.offset(i as isize * stride) = f(*s)),
                // By pointers: source and destination may be one view.
                (true, 1) => (0..count).for_each(|i| *d.add(i) = f(*s.add(position + i))),
                _ => (0..count).for_each(|i| *d.offset(i as isize * stride) = f(*s.add(position + i))),
            }
        }
    });
}
