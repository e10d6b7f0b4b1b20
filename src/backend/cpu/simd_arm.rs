//! Vectors of 64-bit ARM.

use super::{Portable, Simd, load_partial4, store_partial4};
use core::arch::aarch64::*;

/// `Isa::Neon`.
#[derive(Clone, Copy)]
pub struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 24;
    const DOT: (usize, usize) = (5, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        // Safety: NEON is part of the target.
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn load_splat(p: *const f32) -> float32x4_t {
        // Safety: the trait's contract.
        unsafe { vld1q_dup_f32(p) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        // Safety: the trait's contract.
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> float32x4_t {
        // Safety: the trait's contract.
        unsafe { vld1q_f32(load_partial4(p, n).as_ptr()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        // Safety: the trait's contract.
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: float32x4_t, n: usize) {
        let mut lanes = [0.0; 4];
        // Safety: the trait's contract.
        unsafe {
            vst1q_f32(lanes.as_mut_ptr(), v);
            store_partial4(p, lanes, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // Safety: NEON is part of the target.
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        // Safety: NEON is part of the target.
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        // Safety: NEON is part of the target.
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn sum(v: float32x4_t) -> f32 {
        // Safety: NEON is part of the target.
        unsafe { vaddvq_f32(v) }
    }
    #[inline(always)]
    unsafe fn keep_larger(
        best: float32x4_t,
        at: float32x4_t,
        x: float32x4_t,
        x_at: float32x4_t,
    ) -> (float32x4_t, float32x4_t) {
        // Safety: NEON is part of the target.
        unsafe {
            let take = vorrq_u32(vcgtq_f32(x, best), vmvnq_u32(vceqq_f32(x, x)));
            (vbslq_f32(take, x, best), vbslq_f32(take, x_at, at))
        }
    }
    #[inline(always)]
    unsafe fn deinterleave(a: float32x4_t, b: float32x4_t) -> (float32x4_t, float32x4_t) {
        // Safety: NEON is part of the target.
        unsafe { (vuzp1q_f32(a, b), vuzp2q_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn interleave(a: float32x4_t, b: float32x4_t) -> (float32x4_t, float32x4_t) {
        // Safety: NEON is part of the target.
        unsafe { (vzip1q_f32(a, b), vzip2q_f32(a, b)) }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
        // Safety: the trait's contract.
        unsafe { Portable::transpose4(src, src_row, dst, dst_row) }
    }
}
