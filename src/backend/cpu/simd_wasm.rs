//! Vectors of WebAssembly.

use super::{Simd, load_partial4, store_partial4};
use core::arch::wasm32::*;

/// `Isa::Simd128`.
#[derive(Clone, Copy)]
pub struct Simd128;

impl Simd for Simd128 {
    type V = v128;
    const LANES: usize = 4;
    // A 4x8 tile: what V8 keeps in registers, in Node as in Chromium.
    const ACCUMULATORS: usize = 8;
    const DOT: (usize, usize) = (2, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> v128 {
        f32x4_splat(x)
    }
    #[inline(always)]
    unsafe fn load_splat(p: *const f32) -> v128 {
        // Safety: the trait's contract.
        unsafe { v128_load32_splat(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> v128 {
        // Safety: the trait's contract; the instruction needs no alignment.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> v128 {
        // Safety: the trait's contract.
        unsafe { v128_load(load_partial4(p, n).as_ptr().cast()) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: v128) {
        // Safety: the trait's contract; the instruction needs no alignment.
        unsafe { v128_store(p.cast(), v) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: v128, n: usize) {
        let mut lanes = [0.0f32; 4];
        // Safety: the trait's contract.
        unsafe {
            v128_store(lanes.as_mut_ptr().cast(), v);
            store_partial4(p, lanes, n);
        }
    }
    #[inline(always)]
    unsafe fn add(a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }
    #[inline(always)]
    unsafe fn mul_add(a: v128, b: v128, c: v128) -> v128 {
        f32x4_add(f32x4_mul(a, b), c)
    }
    #[inline(always)]
    unsafe fn sum(v: v128) -> f32 {
        let two = f32x4_add(v, i32x4_shuffle::<2, 3, 0, 1>(v, v));
        f32x4_extract_lane::<0>(two) + f32x4_extract_lane::<1>(two)
    }
    #[inline(always)]
    unsafe fn keep_larger(best: v128, at: v128, x: v128, x_at: v128) -> (v128, v128) {
        let take = v128_or(f32x4_gt(x, best), f32x4_ne(x, x));
        (v128_bitselect(x, best, take), v128_bitselect(x_at, at, take))
    }
    #[inline(always)]
    unsafe fn deinterleave(a: v128, b: v128) -> (v128, v128) {
        (i32x4_shuffle::<0, 2, 4, 6>(a, b), i32x4_shuffle::<1, 3, 5, 7>(a, b))
    }
    #[inline(always)]
    unsafe fn interleave(a: v128, b: v128) -> (v128, v128) {
        (i32x4_shuffle::<0, 4, 1, 5>(a, b), i32x4_shuffle::<2, 6, 3, 7>(a, b))
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
        // Safety: the trait's contract.
        unsafe {
            let [r0, r1, r2, r3] = core::array::from_fn(|i| v128_load(src.offset(i as isize * src_row).cast()));
            let (a, b) = (i32x4_shuffle::<0, 4, 1, 5>(r0, r1), i32x4_shuffle::<2, 6, 3, 7>(r0, r1));
            let (c, d) = (i32x4_shuffle::<0, 4, 1, 5>(r2, r3), i32x4_shuffle::<2, 6, 3, 7>(r2, r3));
            v128_store(dst.cast(), i64x2_shuffle::<0, 2>(a, c));
            v128_store(dst.add(dst_row).cast(), i64x2_shuffle::<1, 3>(a, c));
            v128_store(dst.add(2 * dst_row).cast(), i64x2_shuffle::<0, 2>(b, d));
            v128_store(dst.add(3 * dst_row).cast(), i64x2_shuffle::<1, 3>(b, d));
        }
    }
}
