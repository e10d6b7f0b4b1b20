//! The instruction loops. Each works in blocks of [`BLOCK`] elements, the last one through padded
//! copies, and reads all of a block before it writes it, so that results may replace operands.
//!
//! Natively every loop becomes part of one function per kind of vector, since only there its
//! instructions may be used. On wasm they stay functions of their own, which engines optimise one
//! by one as they get hot.

use super::super::lanes::{F32s, Pair};
use super::super::math;
use super::super::simd::{Isa, isa};
use super::code::{Arg, BLOCK, Ins, Len};
use super::fold;
use super::frame::Frame;
use super::nodes::{Class, Op, wrap};
use super::random::random;
use crate::kernel::{Binary, ReduceOp, Unary};
use crate::tensor::DType;
use half::{bf16, f16};
use std::array::from_fn;

/// Where an operand's elements start, and how far it moves from block to block.
pub(crate) type Source<T> = (*const T, usize);

/// `d[i] = f(args[i])` for `i < n`, in vectors.
///
/// # Safety
/// `n` elements behind `d` and each moving operand, [`BLOCK`] behind the others; `V`'s
/// instructions are there.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn map<V: F32s, const A: usize>(n: usize, d: *mut f32, args: [Source<f32>; A], f: impl Fn([V; A]) -> V) {
    let (mut left, mut d, mut from) = (n, d, args);
    let mut pad = [[0f32; BLOCK]; A];
    let mut out = [0f32; BLOCK];
    while left > 0 {
        let whole = left >= BLOCK;
        let mut to = d;
        if !whole {
            for i in 0..A {
                if args[i].1 != 0 {
                    // Safety: `left` elements are there.
                    unsafe { std::ptr::copy_nonoverlapping(from[i].0, pad[i].as_mut_ptr(), left) };
                    from[i].0 = pad[i].as_ptr();
                }
            }
            to = out.as_mut_ptr();
        }
        for j in (0..BLOCK).step_by(V::N) {
            // Safety: a whole block is there, or its copy.
            unsafe { f(from_fn(|i| V::load(from[i].0.add(j)))).store(to.add(j)) };
        }
        if !whole {
            // Safety: `left` elements are there.
            unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), d, left) };
            return;
        }
        left -= BLOCK;
        d = d.wrapping_add(BLOCK);
        for i in 0..A {
            from[i].0 = from[i].0.wrapping_add(args[i].1);
        }
    }
}

/// `d[i] = f(args[i])` for `i < n`, one by one (LLVM makes vectors of it).
///
/// # Safety
/// As for [`map`].
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn each<T: Copy, U: Copy, const A: usize>(n: usize, d: *mut U, args: [Source<T>; A], f: impl Fn([T; A]) -> U) {
    let mut from = args;
    let mut at = 0;
    while at + BLOCK <= n {
        // Safety: a whole block is there.
        unsafe {
            let x: [[T; BLOCK]; A] = from_fn(|i| from[i].0.cast::<[T; BLOCK]>().read_unaligned());
            let y: [U; BLOCK] = from_fn(|j| f(from_fn(|i| x[i][j])));
            d.add(at).cast::<[U; BLOCK]>().write_unaligned(y);
        }
        at += BLOCK;
        for i in 0..A {
            from[i].0 = from[i].0.wrapping_add(args[i].1);
        }
    }
    for j in 0..n - at {
        // Safety: `n` elements are there, and fewer than a block are left.
        unsafe { *d.add(at + j) = f(from_fn(|i| *from[i].0.add(j))) };
    }
}

/// `d[i] = f(a[i], b[i])` as 0 or 1.
///
/// # Safety
/// As for [`map`].
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn compare<V: F32s>(n: usize, d: *mut u8, args: [Source<f32>; 2], f: impl Fn(V, V) -> V) {
    let mut from = args;
    let mut pad = [[0f32; BLOCK]; 2];
    let mut out = [0u8; BLOCK];
    for at in (0..n).step_by(BLOCK) {
        let left = (n - at).min(BLOCK);
        let mut to = d.wrapping_add(at);
        // Safety: a whole block is there, or its copy.
        unsafe {
            if left < BLOCK {
                for i in 0..2 {
                    let count = if args[i].1 == 0 { BLOCK } else { left };
                    std::ptr::copy_nonoverlapping(from[i].0, pad[i].as_mut_ptr(), count);
                    from[i].0 = pad[i].as_ptr();
                }
                to = out.as_mut_ptr();
            }
            for j in (0..BLOCK).step_by(V::N) {
                f(V::load(from[0].0.add(j)), V::load(from[1].0.add(j))).store_bools(to.add(j));
            }
            if left < BLOCK {
                std::ptr::copy_nonoverlapping(out.as_ptr(), d.add(at), left);
            }
        }
        for i in 0..2 {
            from[i].0 = from[i].0.wrapping_add(args[i].1);
        }
    }
}

/// `d[i] = c[i] ? a[i] : b[i]` for f32.
///
/// # Safety
/// As for [`map`].
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn select<V: F32s>(n: usize, d: *mut f32, c: Source<u8>, args: [Source<f32>; 2]) {
    let (mut bools, mut from) = (c.0, args);
    let (mut bytes, mut pad, mut out) = ([0u8; BLOCK], [[0f32; BLOCK]; 2], [0f32; BLOCK]);
    for at in (0..n).step_by(BLOCK) {
        let left = (n - at).min(BLOCK);
        let mut to = d.wrapping_add(at);
        // Safety: a whole block is there, or its copy.
        unsafe {
            if left < BLOCK {
                std::ptr::copy_nonoverlapping(bools, bytes.as_mut_ptr(), left);
                bools = bytes.as_ptr();
                for i in 0..2 {
                    let count = if args[i].1 == 0 { BLOCK } else { left };
                    std::ptr::copy_nonoverlapping(from[i].0, pad[i].as_mut_ptr(), count);
                    from[i].0 = pad[i].as_ptr();
                }
                to = out.as_mut_ptr();
            }
            for j in (0..BLOCK).step_by(V::N) {
                let (a, b) = (V::load(from[0].0.add(j)), V::load(from[1].0.add(j)));
                V::load_bools(bools.add(j)).select(a, b).store(to.add(j));
            }
            if left < BLOCK {
                std::ptr::copy_nonoverlapping(out.as_ptr(), d.add(at), left);
            }
        }
        bools = bools.wrapping_add(c.1);
        for i in 0..2 {
            from[i].0 = from[i].0.wrapping_add(args[i].1);
        }
    }
}

#[inline(always)]
fn clamp<V: F32s>(x: V, low: V, high: V) -> V {
    x.max_first(low).min_first(high)
}

/// -1, 0 or 1; zeros and NaN stay.
#[inline(always)]
fn sign<V: F32s>(x: V) -> V {
    let zero = x.num(0.0);
    zero.lt(x).select(x.num(1.0), x.lt(zero).select(x.num(-1.0), x))
}

/// Runs a list of instructions on a frame's current tile; see [`Frame::run`].
pub(crate) type Engine = unsafe fn(&[Ins], &mut Frame);

/// The loops for the widest vectors of this machine. They are compiled once for each kind of
/// vector: inlined into every caller they would be most of the crate's code.
pub(crate) fn engine() -> Engine {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2")]
    unsafe fn avx2(list: &[Ins], frame: &mut Frame) {
        // Safety: the caller's promise; the instructions are enabled here.
        unsafe { run::<super::super::lanes::Avx2>(list, frame) }
    }
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 | Isa::Avx512 => avx2,
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Isa::Simd128 => run::<super::super::lanes::Simd128>,
        _ => run::<super::super::lanes::Plain<4>>,
    }
}

/// # Safety
/// The frame's slots hold what the code's registers, constants and operands need; `V`'s
/// instructions are there.
#[inline(always)]
unsafe fn run<V: F32s>(list: &[Ins], frame: &mut Frame) {
    for ins in list {
        let n = match ins.len {
            Len::Block => BLOCK,
            Len::Rows => frame.rows,
            Len::Tile => frame.len,
        };
        // Safety: the caller's promise.
        unsafe {
            match ins.op {
                Op::Const(_) => {}
                Op::Load(_) | Op::Store(_) | Op::Coordinate { .. } | Op::Expand | Op::Copy => frame.moves(ins, n),
                Op::Random(stream) => {
                    random::<V>(frame.slot(ins.dst).cast(), n, &frame.context, stream, frame.place.linear as u64);
                }
                Op::Reduce(_) | Op::ReduceDot => reduce_row::<V>(ins, frame),
                _ if ins.class == Class::F => floats::<V>(ins, n, frame),
                _ => others::<V>(ins, n, frame),
            }
        }
    }
}

/// Safety: as for [`run`].
#[inline(always)]
unsafe fn floats<V: F32s>(ins: &Ins, n: usize, frame: &Frame) {
    let d = frame.slot(ins.dst).cast::<f32>();
    let of = |a: Arg| (frame.slot(a.slot).cast::<f32>().cast_const(), a.step as usize);
    let [a, b, c, e, g, h] = ins.args.map(of);
    let k = math::numbers();
    // Safety: the caller's promise, for every loop below.
    unsafe {
        match ins.op {
            Op::F1(op) => match op {
                Unary::Neg => map::<V, 1>(n, d, [a], |[x]| x.neg()),
                Unary::Abs => map::<V, 1>(n, d, [a], |[x]| x.abs()),
                Unary::Sign => map::<V, 1>(n, d, [a], |[x]| sign(x)),
                Unary::Exp => map::<Pair<V>, 1>(n, d, [a], |[x]| math::exp(x, k)),
                Unary::Log => map::<Pair<V>, 1>(n, d, [a], |[x]| math::log(x, k)),
                Unary::Sqrt => map::<V, 1>(n, d, [a], |[x]| x.sqrt()),
                Unary::Reciprocal => map::<V, 1>(n, d, [a], |[x]| x.num(1.0).div(x)),
                Unary::Erf => map::<Pair<V>, 1>(n, d, [a], |[x]| math::erf(x, k)),
                Unary::Tanh => map::<Pair<V>, 1>(n, d, [a], |[x]| math::tanh(x, k)),
                Unary::Sigmoid => map::<Pair<V>, 1>(n, d, [a], |[x]| math::sigmoid(x, k)),
                Unary::Not => unreachable!("not of a float is never built"),
            },
            Op::F2(op) => match op {
                Binary::Add => map::<V, 2>(n, d, [a, b], |[x, y]| x.add(y)),
                Binary::Sub => map::<V, 2>(n, d, [a, b], |[x, y]| x.sub(y)),
                Binary::Mul => map::<V, 2>(n, d, [a, b], |[x, y]| x.mul(y)),
                Binary::Div => map::<V, 2>(n, d, [a, b], |[x, y]| x.div(y)),
                Binary::Min => map::<V, 2>(n, d, [a, b], |[x, y]| x.min(y)),
                Binary::Max => map::<V, 2>(n, d, [a, b], |[x, y]| x.max(y)),
                // Once for a number: it is no vector function.
                Binary::Pow if a.1 + b.1 == 0 => std::slice::from_raw_parts_mut(d, n).fill((*a.0).powf(*b.0)),
                Binary::Pow => each(n, d, [a, b], |[x, y]: [f32; 2]| x.powf(y)),
                Binary::And | Binary::Or | Binary::Equal | Binary::Less | Binary::LessOrEqual => {
                    unreachable!("{op:?} never gives a float")
                }
            },
            Op::MulAdd => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.mul(y).add(z)),
            Op::MulSub => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.mul(y).sub(z)),
            Op::NegMulAdd => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| z.sub(x.mul(y))),
            Op::SubMul => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.sub(y).mul(z)),
            Op::NormGrad => {
                map::<V, 6>(n, d, [a, b, c, e, g, h], |[x, y, z, w, v, u]| x.sub(y).sub(z.sub(w).mul(v)).mul(u));
            }
            Op::MulAddSquare => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.mul(y).add(z.mul(z).mul(w))),
            Op::SqrtMulAdd => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.sqrt().mul(y).add(z)),
            Op::SubMulDiv => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.sub(y.mul(z).div(w))),
            Op::SubMulAdd => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.sub(y).mul(z).add(w)),
            Op::MulIfLess => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.mul(y.lt(z).and(x.num(1.0)))),
            Op::MulIfLessOrEqual => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.mul(y.le(z).and(x.num(1.0)))),
            Op::MulIfBoth => {
                map::<V, 5>(n, d, [a, b, c, e, g], |[x, y, z, w, v]| x.mul(y.le(z).and(w.le(v)).and(x.num(1.0))))
            }
            Op::MulMulAdd => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.mul(y).add(z.mul(w))),
            Op::DivSqrtAdd => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| x.div(y.sqrt().add(z))),
            Op::ExpSub => map::<Pair<V>, 2>(n, d, [a, b], |[x, y]| math::exp(x.sub(y), k)),
            Op::ErfMul => map::<Pair<V>, 2>(n, d, [a, b], |[x, y]| math::erf(x.mul(y), k)),
            Op::Accumulate(op) => match op {
                ReduceOp::Sum => map::<V, 2>(n, d, [(d, BLOCK), a], |[s, x]| s.add(x)),
                ReduceOp::Max => map::<V, 2>(n, d, [(d, BLOCK), a], |[s, x]| s.max(x)),
                ReduceOp::Min => map::<V, 2>(n, d, [(d, BLOCK), a], |[s, x]| s.min(x)),
            },
            Op::AccumulateDot => map::<V, 3>(n, d, [(d, BLOCK), a, b], |[s, x, y]| s.add(x.mul(y))),
            Op::MinNumber => map::<V, 2>(n, d, [a, b], |[x, y]| x.min_first(y)),
            Op::MaxNumber => map::<V, 2>(n, d, [a, b], |[x, y]| x.max_first(y)),
            Op::Clamp => map::<V, 3>(n, d, [a, b, c], |[x, y, z]| clamp(x, y, z)),
            Op::MulAddClamp => map::<V, 5>(n, d, [a, b, c, e, g], |[x, y, z, w, v]| clamp(x.mul(y).add(z), w, v)),
            Op::AddClamp => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| clamp(x.add(y), z, w)),
            Op::SelectLess => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.lt(y).select(z, w)),
            Op::SelectLessOrEqual => map::<V, 4>(n, d, [a, b, c, e], |[x, y, z, w]| x.le(y).select(z, w)),
            // One condition for all: an optimizer that is told not to step, a gradient that starts anew.
            Op::FSelect if a.1 == 0 => {
                let chosen = if *a.0.cast::<u8>() != 0 { b } else { c };
                match chosen.1 {
                    0 => std::slice::from_raw_parts_mut(d, n).fill(*chosen.0),
                    _ => std::ptr::copy(chosen.0, d, n),
                }
            }
            Op::FSelect => select::<V>(n, d, (a.0.cast(), a.1), [b, c]),
            Op::FRound(DType::F16) => each(n, d, [a], |[x]: [f32; 1]| f16::from_f32(x).to_f32()),
            Op::FRound(_) => each(n, d, [a], |[x]: [f32; 1]| bf16::from_f32(x).to_f32()),
            Op::IToF => each(n, d, [(a.0.cast::<i64>(), a.1)], |[x]| x as f32),
            Op::BToF => each(n, d, [(a.0.cast::<u8>(), a.1)], |[x]| x as f32),
            _ => unreachable!("{:?} never gives a float", ins.op),
        }
    }
}

/// Safety: as for [`run`].
#[inline(always)]
unsafe fn others<V: F32s>(ins: &Ins, n: usize, frame: &Frame) {
    let dst = frame.slot(ins.dst);
    let (di, db) = (dst.cast::<i64>(), dst);
    fn of<T>(frame: &Frame, a: Arg) -> Source<T> {
        (frame.slot(a.slot).cast::<T>().cast_const(), a.step as usize)
    }
    let [a, b, c, ..] = ins.args;
    let i = |a: Arg| of::<i64>(frame, a);
    let u = |a: Arg| of::<u8>(frame, a);
    let f = |a: Arg| of::<f32>(frame, a);
    // Safety: the caller's promise, for every loop below.
    unsafe {
        match ins.op {
            Op::I1(op) => match op {
                Unary::Neg => each(n, di, [i(a)], |[x]| x.wrapping_neg()),
                Unary::Abs => each(n, di, [i(a)], |[x]| x.wrapping_abs()),
                _ => each(n, di, [i(a)], |[x]| x.signum()),
            },
            Op::I2(op) => match op {
                Binary::Add => each(n, di, [i(a), i(b)], |[x, y]| x.wrapping_add(y)),
                Binary::Sub => each(n, di, [i(a), i(b)], |[x, y]| x.wrapping_sub(y)),
                Binary::Mul => each(n, di, [i(a), i(b)], |[x, y]| x.wrapping_mul(y)),
                Binary::Div => each(n, di, [i(a), i(b)], |[x, y]| if y == 0 { 0 } else { x.wrapping_div(y) }),
                Binary::Pow => each(n, di, [i(a), i(b)], |[x, y]| power(x, y)),
                Binary::Min => each(n, di, [i(a), i(b)], |[x, y]| x.min(y)),
                _ => each(n, di, [i(a), i(b)], |[x, y]| x.max(y)),
            },
            Op::ICompare(op) => match op {
                Binary::Equal => each(n, db, [i(a), i(b)], |[x, y]| (x == y) as u8),
                Binary::Less => each(n, db, [i(a), i(b)], |[x, y]| (x < y) as u8),
                _ => each(n, db, [i(a), i(b)], |[x, y]| (x <= y) as u8),
            },
            Op::FCompare(op) => match op {
                Binary::Equal => compare::<V>(n, db, [f(a), f(b)], |x, y| x.eq(y)),
                Binary::Less => compare::<V>(n, db, [f(a), f(b)], |x, y| x.lt(y)),
                _ => compare::<V>(n, db, [f(a), f(b)], |x, y| x.le(y)),
            },
            Op::B2(op) => match op {
                Binary::And => each(n, db, [u(a), u(b)], |[x, y]| x & y),
                Binary::Or => each(n, db, [u(a), u(b)], |[x, y]| x | y),
                Binary::Equal => each(n, db, [u(a), u(b)], |[x, y]| (x == y) as u8),
                Binary::Less => each(n, db, [u(a), u(b)], |[x, y]| (x < y) as u8),
                _ => each(n, db, [u(a), u(b)], |[x, y]| (x <= y) as u8),
            },
            Op::BNot => each(n, db, [u(a)], |[x]| x ^ 1),
            Op::BSelect => each(n, db, [u(a), u(b), u(c)], |[m, x, y]| if m != 0 { x } else { y }),
            Op::ISelect => {
                let (mut at, mut m, mut x, mut y) = (0, u(a), i(b), i(c));
                while at < n {
                    for j in 0..BLOCK.min(n - at) {
                        *di.add(at + j) = if *m.0.add(j) != 0 { *x.0.add(j) } else { *y.0.add(j) };
                    }
                    at += BLOCK;
                    m.0 = m.0.wrapping_add(m.1);
                    x.0 = x.0.wrapping_add(x.1);
                    y.0 = y.0.wrapping_add(y.1);
                }
            }
            Op::Wrap(to) => each(n, di, [i(a)], |[x]| wrap(x, to)),
            Op::FToI(to) => float_to_int(n, di, f(a), to),
            Op::FToB => each(n, db, [f(a)], |[x]| (x != 0.0) as u8),
            Op::IToB => each(n, db, [i(a)], |[x]| (x != 0) as u8),
            Op::BToI => each(n, di, [u(a)], |[x]| x as i64),
            _ => unreachable!("{:?} gives floats", ins.op),
        }
    }
}

/// Safety: as for [`map`].
unsafe fn float_to_int(n: usize, d: *mut i64, a: Source<f32>, to: DType) {
    // Safety: the caller's promise.
    unsafe {
        match to {
            DType::U8 => each(n, d, [a], |[x]| x as u8 as i64),
            DType::I8 => each(n, d, [a], |[x]| x as i8 as i64),
            DType::U16 => each(n, d, [a], |[x]| x as u16 as i64),
            DType::I16 => each(n, d, [a], |[x]| x as i16 as i64),
            DType::I32 => each(n, d, [a], |[x]| x as i32 as i64),
            DType::U32 => each(n, d, [a], |[x]| x as u32 as i64),
            _ => each(n, d, [a], |[x]| x as i64),
        }
    }
}

/// `x` to the power of `y`, wrapping; of a negative `y` the integer part.
fn power(x: i64, y: i64) -> i64 {
    match (x, y) {
        (1, _) => 1,
        (-1, _) => 1 - 2 * (y & 1),
        (_, ..0) => 0,
        _ => {
            let (mut base, mut exponent, mut result) = (x, y, 1i64);
            while exponent > 0 {
                if exponent & 1 == 1 {
                    result = result.wrapping_mul(base);
                }
                base = base.wrapping_mul(base);
                exponent >>= 1;
            }
            result
        }
    }
}

/// A reduction along the rows of the tile (short rows) or into an accumulator (long ones).
///
/// Safety: as for [`run`].
#[inline(always)]
unsafe fn reduce_row<V: F32s>(ins: &Ins, frame: &mut Frame) {
    let [a, b, ..] = ins.args;
    let op = if let Op::Reduce(op) = ins.op { op } else { ReduceOp::Sum };
    let part = ins.len == Len::Tile;
    let (rows, n) =
        if part { (1, frame.len) } else { (if ins.len == Len::Rows { frame.rows } else { 1 }, frame.row_len) };
    let from = frame.slot(a.slot);
    for row in 0..rows {
        // Safety: the caller's promise; operands of several rows move.
        unsafe {
            if ins.class == Class::I {
                let value = fold::ints(op, from.cast::<i64>().add(row * n), n);
                if part {
                    frame.accumulate_int(ins.dst, op, value);
                } else {
                    frame.put(ins, row, value);
                }
                continue;
            }
            let x = from.cast::<f32>().add(row * n).cast_const();
            let value = if ins.op == Op::ReduceDot {
                let start = |a: Arg| {
                    (
                        frame.slot(a.slot).cast::<f32>().add(if a.step == 0 { 0 } else { row * n }).cast_const(),
                        a.step as usize,
                    )
                };
                fold::dot::<V>(start(a), start(b), n)
            } else {
                fold::floats::<V>(op, x, n)
            };
            if part {
                frame.accumulate_float(ins.dst, op, value);
            } else {
                frame.put(ins, row, value);
            }
        }
    }
}
