//! Sums, maxima and minima of a run of elements, in an order that only its length decides: 32
//! lanes, whatever the machine's vectors are, then halves onto halves.

use super::super::lanes::F32s;
use super::code::BLOCK;
use super::exec::Source;
use crate::kernel::ReduceOp;

/// What a reduction over nothing gives.
pub(crate) fn identity(op: ReduceOp) -> f32 {
    match op {
        ReduceOp::Sum => 0.0,
        ReduceOp::Max => f32::NEG_INFINITY,
        ReduceOp::Min => f32::INFINITY,
    }
}

/// NaN wins.
fn greater(a: f32, b: f32) -> f32 {
    if a > b || a.is_nan() { a } else { b }
}

fn lesser(a: f32, b: f32) -> f32 {
    if a < b || a.is_nan() { a } else { b }
}

/// Folds lanes to one: halves onto halves.
fn fold(mut lanes: [f32; BLOCK], f: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = BLOCK / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = f(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// Lanes of `f` over the blocks of `load(block start) -> value`; the last block comes padded.
///
/// Safety: `V`'s instructions are there, `n` elements behind the moving operands, a block behind others.
#[inline(always)]
unsafe fn lanes<V: F32s, const A: usize>(
    args: [Source<f32>; A],
    n: usize,
    identity: f32,
    value: impl Fn([V; A]) -> V,
    f: impl Fn(V, V) -> V,
) -> [f32; BLOCK] {
    // At most 32 vectors of one element; those beyond 32 / N stay unused.
    // Safety: the caller's promise, here and below.
    let mut acc = [unsafe { V::splat(identity) }; BLOCK];
    let count = BLOCK / V::N;
    let (mut left, mut from) = (n, args);
    while left >= BLOCK {
        for j in 0..count {
            let x = value(std::array::from_fn(|i| unsafe { V::load(from[i].0.add(j * V::N)) }));
            acc[j] = f(acc[j], x);
        }
        left -= BLOCK;
        for i in 0..A {
            from[i].0 = from[i].0.wrapping_add(args[i].1);
        }
    }
    let mut out = [identity; BLOCK];
    for j in 0..count {
        // Safety: `out` holds a block.
        unsafe { acc[j].store(out.as_mut_ptr().add(j * V::N)) };
    }
    if left > 0 {
        let mut pad = [[0f32; BLOCK]; A];
        let mut tail = [identity; BLOCK];
        for i in 0..A {
            let count = if args[i].1 == 0 { BLOCK } else { left };
            // Safety: so many are there.
            unsafe { std::ptr::copy_nonoverlapping(from[i].0, pad[i].as_mut_ptr(), count) };
        }
        let mut values = [0f32; BLOCK];
        for j in 0..count {
            // Safety: these arrays hold a block.
            unsafe {
                value(std::array::from_fn(|i| V::load(pad[i].as_ptr().add(j * V::N))))
                    .store(values.as_mut_ptr().add(j * V::N))
            };
        }
        tail[..left].copy_from_slice(&values[..left]);
        for j in 0..count {
            // Safety: as above.
            unsafe {
                let at = out.as_mut_ptr().add(j * V::N);
                f(V::load(at), V::load(tail.as_ptr().add(j * V::N))).store(at);
            }
        }
    }
    out
}

/// `op` over `n` floats.
///
/// # Safety
/// They are there, and `V`'s instructions.
#[inline(always)]
pub(crate) unsafe fn floats<V: F32s>(op: ReduceOp, x: *const f32, n: usize) -> f32 {
    let source = [(x, BLOCK)];
    // Safety: the caller's promise.
    unsafe {
        match op {
            ReduceOp::Sum => fold(lanes::<V, 1>(source, n, 0.0, |[x]| x, |a, b| a.add(b)), |a, b| a + b),
            ReduceOp::Max => fold(lanes::<V, 1>(source, n, identity(op), |[x]| x, |a, b| a.max(b)), greater),
            ReduceOp::Min => fold(lanes::<V, 1>(source, n, identity(op), |[x]| x, |a, b| a.min(b)), lesser),
        }
    }
}

/// The dot product of two runs of `n` floats.
///
/// # Safety
/// As for [`floats`]; an operand that does not move has a block.
#[inline(always)]
pub(crate) unsafe fn dot<V: F32s>(a: Source<f32>, b: Source<f32>, n: usize) -> f32 {
    // Safety: the caller's promise.
    unsafe { fold(lanes::<V, 2>([a, b], n, 0.0, |[x, y]| x.mul(y), |a, b| a.add(b)), |a, b| a + b) }
}

/// `op` over `n` integers; sums wrap.
///
/// # Safety
/// They are there.
pub(crate) unsafe fn ints(op: ReduceOp, x: *const i64, n: usize) -> i64 {
    // Safety: the caller's promise.
    let x = unsafe { std::slice::from_raw_parts(x, n) };
    match op {
        ReduceOp::Sum => x.iter().fold(0i64, |a, &b| a.wrapping_add(b)),
        ReduceOp::Max => x.iter().copied().max().unwrap_or(i64::MIN),
        ReduceOp::Min => x.iter().copied().min().unwrap_or(i64::MAX),
    }
}

/// Combines two partial results.
pub(crate) fn combine(op: ReduceOp, a: f64, b: f64) -> f64 {
    match op {
        ReduceOp::Sum => a + b,
        ReduceOp::Max if a > b || a.is_nan() => a,
        ReduceOp::Min if a < b || a.is_nan() => a,
        ReduceOp::Max | ReduceOp::Min => b,
    }
}

/// Combines two partial results of integers.
pub(crate) fn combine_ints(op: ReduceOp, a: i64, b: i64) -> i64 {
    match op {
        ReduceOp::Sum => a.wrapping_add(b),
        ReduceOp::Max => a.max(b),
        ReduceOp::Min => a.min(b),
    }
}
