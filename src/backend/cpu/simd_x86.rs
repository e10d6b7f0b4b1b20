//! Vectors of x86-64: AVX2 and AVX-512.

use super::Simd;
use core::arch::x86_64::*;

/// `Isa::Avx2`.
#[derive(Clone, Copy)]
pub struct Avx2;
/// `Isa::Avx512`.
#[derive(Clone, Copy)]
pub struct Avx512;

/// Eight ones before eight zeros: from `8 - n` on, the mask of the first `n` lanes.
static MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// # Safety
/// `n <= 8`; AVX.
#[inline(always)]
unsafe fn mask(n: usize) -> __m256i {
    // Safety: the caller's promise keeps the eight elements inside the table.
    unsafe { _mm256_loadu_si256(MASKS.as_ptr().add(8 - n).cast()) }
}

/// # Safety
/// As `Simd::transpose4`.
#[inline(always)]
pub(super) unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
    // Safety: the caller's promise; SSE is part of the target.
    unsafe {
        let mut r0 = _mm_loadu_ps(src);
        let mut r1 = _mm_loadu_ps(src.offset(src_row));
        let mut r2 = _mm_loadu_ps(src.offset(2 * src_row));
        let mut r3 = _mm_loadu_ps(src.offset(3 * src_row));
        _MM_TRANSPOSE4_PS(&mut r0, &mut r1, &mut r2, &mut r3);
        _mm_storeu_ps(dst, r0);
        _mm_storeu_ps(dst.add(dst_row), r1);
        _mm_storeu_ps(dst.add(2 * dst_row), r2);
        _mm_storeu_ps(dst.add(3 * dst_row), r3);
    }
}

/// # Safety
/// AVX.
#[inline(always)]
unsafe fn sum8(v: __m256) -> f32 {
    // Safety: the caller's promise.
    unsafe {
        let four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
        let two = _mm_add_ps(four, _mm_movehl_ps(four, four));
        _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps::<1>(two, two)))
    }
}

// Safety: for every method, the trait's contract is what the intrinsic asks for.
impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const ACCUMULATORS: usize = 12;
    const DOT: (usize, usize) = (3, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_splat(p: *const f32) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_broadcast_ss(&*p) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> __m256 {
        // Safety: the trait's contract; masked lanes are not touched.
        unsafe { _mm256_maskload_ps(p, mask(n)) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        // Safety: the trait's contract.
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: __m256, n: usize) {
        // Safety: the trait's contract; masked lanes are not touched.
        unsafe { _mm256_maskstore_ps(p, mask(n), v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m256, b: __m256, c: __m256) -> __m256 {
        // Safety: the trait's contract.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sum(v: __m256) -> f32 {
        // Safety: the trait's contract.
        unsafe { sum8(v) }
    }
    #[inline(always)]
    unsafe fn keep_larger(best: __m256, at: __m256, x: __m256, x_at: __m256) -> (__m256, __m256) {
        // Safety: the trait's contract.
        unsafe {
            let take = _mm256_or_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(x, best), _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            (_mm256_blendv_ps(best, x, take), _mm256_blendv_ps(at, x_at, take))
        }
    }
    #[inline(always)]
    unsafe fn deinterleave(a: __m256, b: __m256) -> (__m256, __m256) {
        // Safety: the trait's contract.
        unsafe {
            let even = _mm256_castps_pd(_mm256_shuffle_ps::<0x88>(a, b));
            let odd = _mm256_castps_pd(_mm256_shuffle_ps::<0xDD>(a, b));
            let (even, odd) = (_mm256_permute4x64_pd::<0xD8>(even), _mm256_permute4x64_pd::<0xD8>(odd));
            (_mm256_castpd_ps(even), _mm256_castpd_ps(odd))
        }
    }
    #[inline(always)]
    unsafe fn interleave(a: __m256, b: __m256) -> (__m256, __m256) {
        // Safety: the trait's contract.
        unsafe {
            let (lo, hi) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            (_mm256_permute2f128_ps::<0x20>(lo, hi), _mm256_permute2f128_ps::<0x31>(lo, hi))
        }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
        // Safety: the trait's contract.
        unsafe { transpose4(src, src_row, dst, dst_row) }
    }
}

// Safety: for every method, the trait's contract is what the intrinsic asks for.
impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const ACCUMULATORS: usize = 24;
    const DOT: (usize, usize) = (5, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn load_splat(p: *const f32) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_set1_ps(*p) }
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> __m512 {
        // Safety: the trait's contract; masked lanes are not touched.
        unsafe { _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, p) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        // Safety: the trait's contract.
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: __m512, n: usize) {
        // Safety: the trait's contract; masked lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(p, ((1u32 << n) - 1) as u16, v) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512 {
        // Safety: the trait's contract.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn sum(v: __m512) -> f32 {
        // Safety: the trait's contract.
        unsafe {
            let high = _mm512_castps512_ps256(_mm512_shuffle_f32x4::<0b1110>(v, v));
            sum8(_mm256_add_ps(_mm512_castps512_ps256(v), high))
        }
    }
    #[inline(always)]
    unsafe fn keep_larger(best: __m512, at: __m512, x: __m512, x_at: __m512) -> (__m512, __m512) {
        // Safety: the trait's contract.
        unsafe {
            let take = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(x, best) | _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(x, x);
            (_mm512_mask_blend_ps(take, best, x), _mm512_mask_blend_ps(take, at, x_at))
        }
    }
    #[inline(always)]
    unsafe fn deinterleave(a: __m512, b: __m512) -> (__m512, __m512) {
        // Safety: the trait's contract.
        unsafe {
            let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            let odd = _mm512_setr_epi32(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
            (_mm512_permutex2var_ps(a, even, b), _mm512_permutex2var_ps(a, odd, b))
        }
    }
    #[inline(always)]
    unsafe fn interleave(a: __m512, b: __m512) -> (__m512, __m512) {
        // Safety: the trait's contract.
        unsafe {
            let lo = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let hi = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(a, lo, b), _mm512_permutex2var_ps(a, hi, b))
        }
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
        // Safety: the trait's contract.
        unsafe { transpose4(src, src_row, dst, dst_row) }
    }
}
