//! Philox by vectors: the numbers of [`philox::uniform`] at consecutive positions.

use super::super::lanes::F32s;
use super::super::simd::transpose4;
use super::code::BLOCK;
use crate::kernel::{RunContext, philox};
use std::array::from_fn;

/// `d[i] = philox::uniform(cx, stream, start + i)` for `i < n`.
///
/// # Safety
/// `n` places behind `d`; `V`'s instructions are there.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
pub(super) unsafe fn random<V: F32s>(d: *mut f32, n: usize, cx: &RunContext, stream: u32, start: u64) {
    let mut at = 0;
    let one = |at: usize| philox::uniform(cx, stream, start + at as u64);
    // Up to the start of a block of four.
    while at < n && !(start + at as u64).is_multiple_of(4) {
        // Safety: the caller's promise.
        unsafe { *d.add(at) = one(at) };
        at += 1;
    }
    while at < n {
        let block = (start + at as u64) / 4;
        let count = BLOCK.min(n - at);
        let mut out = [0f32; BLOCK];
        // All blocks of a vector share the upper half of their number.
        if block as u32 <= u32::MAX - BLOCK as u32 {
            let high = ((block >> 32) as u32 & 0xFFFF) | (((cx.step >> 32) as u32) << 16);
            let rest = [high, stream, cx.step as u32];
            for part in (0..BLOCK).step_by(4 * V::N) {
                // Safety: the caller's promise; `out` holds a block, and 4 N divides it.
                unsafe { blocks::<V>(out.as_mut_ptr().add(part), block as u32 + part as u32 / 4, rest, cx.seed) };
            }
        } else {
            (0..count).for_each(|i| out[i] = one(at + i));
        }
        // Safety: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(out.as_ptr(), d.add(at), count) };
        at += count;
    }
}

/// `N` consecutive blocks of Philox 4x32-10, four numbers in [0, 1) each; see [`philox`].
///
/// Safety: `4 N` (at most 32) places behind `d`; `V`'s instructions are there.
#[inline(always)]
unsafe fn blocks<V: F32s>(d: *mut f32, first: u32, rest: [u32; 3], seed: u64) {
    let count: [f32; 8] = from_fn(|l| f32::from_bits(first + l as u32));
    // Safety: the caller's promise; at most eight lanes.
    let like = unsafe { V::load(count.as_ptr()) };
    let mut c = [like, like.bits(rest[0]), like.bits(rest[1]), like.bits(rest[2])];
    let (a, b) = (like.bits(philox::MULTIPLIERS[0]), like.bits(philox::MULTIPLIERS[1]));
    let (mut key0, mut key1) = (seed as u32, (seed >> 32) as u32);
    for _ in 0..10 {
        let ((high0, low0), (high1, low1)) = (c[0].umul(a), c[2].umul(b));
        c = [high1.xor(c[1]).xor(like.bits(key0)), low1, high0.xor(c[3]).xor(like.bits(key1)), low0];
        key0 = key0.wrapping_add(philox::WEYL[0]);
        key1 = key1.wrapping_add(philox::WEYL[1]);
    }
    let mut words = [0f32; BLOCK];
    for (k, c) in c.into_iter().enumerate() {
        // The upper 24 bits; the shift copies the sign, the mask drops it.
        let number = c.sar::<8>().and(c.bits(0x00FF_FFFF)).to_number().mul(c.num(1.0 / (1u32 << 24) as f32));
        // Safety: four vectors of at most eight.
        unsafe { number.store(words.as_mut_ptr().add(k * V::N)) };
    }
    for l in (0..V::N).step_by(4) {
        // Safety: as above; number `k` of block `l` goes to `4 l + k`.
        unsafe { transpose4(words.as_ptr().add(l), V::N as isize, d.add(4 * l), 4) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::lanes::Plain;
    use super::*;

    #[test]
    fn same_as_one_by_one() {
        let cx = RunContext::new(0x1234_5678_9ABC, 7 << 32 | 5);
        for start in [0, 1, 6, 4 * (1 << 32) - 36, 4 * (1 << 32) - 8] {
            let mut got = [0f32; 100];
            // Safety: 100 places; plain vectors need no instructions.
            unsafe { random::<Plain<4>>(got.as_mut_ptr(), 100, &cx, 3, start) };
            for (i, x) in got.into_iter().enumerate() {
                assert_eq!(x, philox::uniform(&cx, 3, start + i as u64), "{start} {i}");
            }
        }
    }
}
