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
    if b > a || b.is_nan() { b } else { a }
}

fn lesser(a: f32, b: f32) -> f32 {
    if b < a || b.is_nan() { b } else { a }
}

/// Lanes of runs shorter than a block.
const SHORT: usize = 8;

/// Folds lanes to one: halves onto halves.
#[inline(always)]
fn fold<V: F32s, const B: usize>(mut lanes: [f32; B], f: impl Fn(V, V) -> V, one: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = B / 2;
    while half >= V::N {
        for j in (0..half).step_by(V::N) {
            // Safety: the lanes are twice `half`; the caller has shown that `V`'s instructions are there.
            unsafe {
                let at = lanes.as_mut_ptr().add(j);
                f(V::load(at), V::load(at.add(half))).store(at);
            }
        }
        half /= 2;
    }
    while half > 0 {
        for i in 0..half {
            lanes[i] = one(lanes[i], lanes[i + half]);
        }
        half /= 2;
    }
    lanes[0]
}

/// `B` lanes of `f` over the blocks of `value(args)`; the last block comes padded with `identity`.
///
/// Safety: `V`'s instructions are there, `n` elements behind the moving operands, a block behind others.
#[inline(always)]
unsafe fn lanes<V: F32s, const A: usize, const B: usize>(
    args: [Source<f32>; A],
    n: usize,
    identity: f32,
    value: impl Fn([V; A]) -> V,
    f: impl Fn(V, V) -> V,
) -> [f32; B] {
    // At most `B` vectors of one element; those beyond B / N stay unused.
    // Safety: the caller's promise, here and below.
    let mut acc = [unsafe { V::splat(identity) }; B];
    let count = B / V::N;
    let (mut left, mut from) = (n, args);
    let mut pad = [[0f32; B]; A];
    while left > 0 {
        let whole = left >= B;
        if !whole {
            for i in 0..A {
                let count = if args[i].1 == 0 { B } else { left };
                // Safety: so many are there.
                (0..count).for_each(|k| pad[i][k] = unsafe { *from[i].0.add(k) });
                from[i].0 = pad[i].as_ptr();
            }
        }
        for j in 0..count {
            // Safety: a whole block is there, or its copy.
            let mut x = value(std::array::from_fn(|i| unsafe { V::load(from[i].0.add(j * V::N)) }));
            if !whole {
                // Padding takes no part.
                let mut lanes = [identity; B];
                // Safety: there is room for a vector.
                unsafe {
                    x.store(lanes.as_mut_ptr().add(j * V::N));
                    lanes[left..].fill(identity);
                    x = V::load(lanes.as_ptr().add(j * V::N));
                }
            }
            acc[j] = f(acc[j], x);
        }
        if !whole {
            break;
        }
        left -= B;
        for i in 0..A {
            from[i].0 = from[i].0.wrapping_add(if args[i].1 == 0 { 0 } else { B });
        }
    }
    let mut out = [identity; B];
    for j in 0..count {
        // Safety: `out` holds a block.
        unsafe { acc[j].store(out.as_mut_ptr().add(j * V::N)) };
    }
    out
}

/// Safety: as for [`lanes`].
#[inline(always)]
unsafe fn total<V: F32s, const A: usize>(
    args: [Source<f32>; A],
    n: usize,
    identity: f32,
    value: impl Fn([V; A]) -> V,
    f: impl Fn(V, V) -> V,
    one: impl Fn(f32, f32) -> f32,
) -> f32 {
    // Safety: the caller's promise.
    unsafe {
        if n < BLOCK {
            fold::<V, SHORT>(lanes::<V, A, SHORT>(args, n, identity, value, &f), &f, one)
        } else {
            fold::<V, BLOCK>(lanes::<V, A, BLOCK>(args, n, identity, value, &f), &f, one)
        }
    }
}

/// `op` over `n` floats.
///
/// # Safety
/// They are there, and `V`'s instructions.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
pub(crate) unsafe fn floats<V: F32s>(op: ReduceOp, x: *const f32, n: usize) -> f32 {
    let (source, start) = ([(x, BLOCK)], identity(op));
    // Safety: the caller's promise.
    unsafe {
        match op {
            ReduceOp::Sum => total::<V, 1>(source, n, start, |[x]| x, |a, b| a.add(b), |a, b| a + b),
            ReduceOp::Max => total::<V, 1>(source, n, start, |[x]| x, |a, b| a.max(b), greater),
            ReduceOp::Min => total::<V, 1>(source, n, start, |[x]| x, |a, b| a.min(b), lesser),
        }
    }
}

/// The dot product of two runs of `n` floats.
///
/// # Safety
/// As for [`floats`]; an operand that does not move has a block.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
pub(crate) unsafe fn dot<V: F32s>(a: Source<f32>, b: Source<f32>, n: usize) -> f32 {
    // Safety: the caller's promise.
    unsafe { total::<V, 2>([a, b], n, 0.0, |[x, y]| x.mul(y), |a, b| a.add(b), |a, b| a + b) }
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
