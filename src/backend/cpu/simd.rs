//! One vector of f32 per instruction set, and the choice among them at run time.
//!
//! Hot loops are written once against [`Simd`] as the `run` of a [`SimdOp`]; [`dispatch`] compiles them for
//! every instruction set of the target and calls the widest that this machine has.

/// An instruction set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Four lanes in plain Rust; what is left to the compiler.
    Portable,
    /// x86-64 with AVX2 and FMA.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// x86-64 with AVX-512F.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// WebAssembly's fixed 128-bit SIMD.
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    Simd128,
}

/// The widest instruction set of this machine.
pub fn isa() -> Isa {
    #[cfg(target_arch = "x86_64")]
    {
        // The standard library caches these answers.
        if is_x86_feature_detected!("avx512f") {
            return Isa::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Isa::Avx2;
        }
        Isa::Portable
    }
    #[cfg(target_arch = "aarch64")]
    {
        Isa::Neon
    }
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    {
        Isa::Simd128
    }
    #[cfg(not(any(
        target_arch = "x86_64",
        target_arch = "aarch64",
        all(target_arch = "wasm32", target_feature = "simd128")
    )))]
    {
        Isa::Portable
    }
}

impl Isa {
    /// Those that this machine can run: what tests go through.
    #[cfg(test)]
    pub(crate) fn available() -> Vec<Isa> {
        let mut all = vec![Isa::Portable];
        #[cfg(target_arch = "x86_64")]
        if isa() != Isa::Portable {
            all.push(Isa::Avx2);
        }
        if !all.contains(&isa()) {
            all.push(isa());
        }
        all
    }

    /// The same or, where rows fill no more than half of a vector, one of half the width.
    pub(crate) fn for_rows_of(self, width: usize) -> Isa {
        match self {
            // Every machine with AVX-512F has AVX2 and FMA.
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 if width <= 8 => Isa::Avx2,
            same => {
                let _ = width;
                same
            }
        }
    }

    /// Lanes of a vector, and accumulators that a loop may hold in registers.
    pub(crate) fn registers(self) -> (usize, usize) {
        struct Registers;
        impl SimdOp for Registers {
            type Out = (usize, usize);
            #[inline(always)]
            unsafe fn run<S: Simd>(self) -> (usize, usize) {
                (S::LANES, S::ACCUMULATORS)
            }
        }
        dispatch_on(self, Registers)
    }
}

/// Work written once for every instruction set.
pub trait SimdOp {
    /// What [`SimdOp::run`] returns.
    type Out;
    /// The work. Mark it `#[inline(always)]`, and whatever it calls that handles vectors.
    ///
    /// # Safety
    /// The machine has `S`'s instructions.
    unsafe fn run<S: Simd>(self) -> Self::Out;
}

/// Runs `op` with the widest vectors of this machine.
#[inline]
pub fn dispatch<O: SimdOp>(op: O) -> O::Out {
    dispatch_on(isa(), op)
}

/// Runs `op` with the vectors of `isa`, which this machine must have.
#[inline]
pub(crate) fn dispatch_on<O: SimdOp>(isa: Isa, op: O) -> O::Out {
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma")]
    unsafe fn avx2<O: SimdOp>(op: O) -> O::Out {
        // Safety: the caller has seen that the machine has AVX2 and FMA.
        unsafe { op.run::<Avx2>() }
    }
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx2,fma")]
    unsafe fn avx512<O: SimdOp>(op: O) -> O::Out {
        // Safety: the caller has seen that the machine has AVX-512F.
        unsafe { op.run::<Avx512>() }
    }
    match isa {
        // Safety: needs nothing special.
        Isa::Portable => unsafe { op.run::<Portable>() },
        // Safety: `isa` comes from detection.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => unsafe { avx2(op) },
        // Safety: `isa` comes from detection.
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => unsafe { avx512(op) },
        // Safety: part of the target.
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => unsafe { op.run::<Neon>() },
        // Safety: part of the target.
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Isa::Simd128 => unsafe { op.run::<Simd128>() },
    }
}

/// The most lanes that any instruction set of this target has.
pub(crate) const MAX_LANES: usize = if cfg!(target_arch = "x86_64") { 16 } else { 4 };

/// Vectors of f32.
///
/// # Safety
/// Every method may be called only where the machine has the instructions, and pointers must be good for
/// the elements that a method says it touches; they need no alignment.
#[allow(clippy::missing_safety_doc, reason = "one contract for all methods, above")]
pub trait Simd: Copy + 'static {
    /// The vector.
    type V: Copy;
    /// Elements in it.
    const LANES: usize;
    /// Accumulators that a register tile may hold, leaving room for its operands.
    const ACCUMULATORS: usize;
    /// Rows and columns of the tile of dot products that fits the registers.
    const DOT: (usize, usize);

    /// All lanes `x`.
    unsafe fn splat(x: f32) -> Self::V;
    /// All lanes the element at `p`.
    unsafe fn load_splat(p: *const f32) -> Self::V;
    /// `LANES` elements from `p`.
    unsafe fn load(p: *const f32) -> Self::V;
    /// `n < LANES` elements from `p`, then zeros.
    unsafe fn load_partial(p: *const f32, n: usize) -> Self::V;
    /// `LANES` elements to `p`.
    unsafe fn store(p: *mut f32, v: Self::V);
    /// The first `n < LANES` elements to `p`.
    unsafe fn store_partial(p: *mut f32, v: Self::V, n: usize);
    /// `a + b`
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once where the machine can.
    unsafe fn mul_add(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// The sum of the lanes.
    unsafe fn sum(v: Self::V) -> f32;
    /// The even elements of `a` then `b`, and the odd ones.
    unsafe fn deinterleave(a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// Elements of `a` and `b` in turn: the first `LANES` of them, and the rest.
    unsafe fn interleave(a: Self::V, b: Self::V) -> (Self::V, Self::V);
    /// Stores the transpose of a 4x4 block: `dst[i * dst_row + j] = src[j * src_row + i]`.
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize);
}

/// [`Isa::Portable`].
#[derive(Clone, Copy)]
pub struct Portable;

impl Simd for Portable {
    type V = [f32; 4];
    const LANES: usize = 4;
    const ACCUMULATORS: usize = 8;
    const DOT: (usize, usize) = (2, 4);

    #[inline(always)]
    unsafe fn splat(x: f32) -> [f32; 4] {
        [x; 4]
    }
    #[inline(always)]
    unsafe fn load_splat(p: *const f32) -> [f32; 4] {
        // Safety: the caller's promise.
        [unsafe { *p }; 4]
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> [f32; 4] {
        // Safety: the caller's promise; an array of f32 needs f32's alignment only.
        unsafe { *p.cast::<[f32; 4]>() }
    }
    #[inline(always)]
    unsafe fn load_partial(p: *const f32, n: usize) -> [f32; 4] {
        // Safety: the caller's promise.
        unsafe { load_partial4(p, n) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: [f32; 4]) {
        // Safety: the caller's promise.
        unsafe { *p.cast::<[f32; 4]>() = v }
    }
    #[inline(always)]
    unsafe fn store_partial(p: *mut f32, v: [f32; 4], n: usize) {
        // Safety: the caller's promise.
        unsafe { store_partial4(p, v, n) }
    }
    #[inline(always)]
    unsafe fn add(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        core::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    unsafe fn mul(a: [f32; 4], b: [f32; 4]) -> [f32; 4] {
        core::array::from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    unsafe fn mul_add(a: [f32; 4], b: [f32; 4], c: [f32; 4]) -> [f32; 4] {
        core::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn sum(v: [f32; 4]) -> f32 {
        (v[0] + v[2]) + (v[1] + v[3])
    }
    #[inline(always)]
    unsafe fn deinterleave(a: [f32; 4], b: [f32; 4]) -> ([f32; 4], [f32; 4]) {
        ([a[0], a[2], b[0], b[2]], [a[1], a[3], b[1], b[3]])
    }
    #[inline(always)]
    unsafe fn interleave(a: [f32; 4], b: [f32; 4]) -> ([f32; 4], [f32; 4]) {
        ([a[0], b[0], a[1], b[1]], [a[2], b[2], a[3], b[3]])
    }
    #[inline(always)]
    unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
        for i in 0..4 {
            for j in 0..4 {
                // Safety: the caller's promise.
                unsafe { *dst.add(i * dst_row + j) = *src.offset(j as isize * src_row).add(i) }
            }
        }
    }
}

/// The first `n < 4` elements, then zeros.
///
/// # Safety
/// `p` is good for reading `n` elements.
#[inline(always)]
unsafe fn load_partial4(p: *const f32, n: usize) -> [f32; 4] {
    let mut v = [0.0; 4];
    // Safety: the caller's promise, and `min` keeps inside `v`.
    unsafe { core::ptr::copy_nonoverlapping(p, v.as_mut_ptr(), n.min(4)) };
    v
}

/// # Safety
/// `p` is good for writing `n` elements.
#[inline(always)]
unsafe fn store_partial4(p: *mut f32, v: [f32; 4], n: usize) {
    // Safety: the caller's promise, and `min` keeps inside `v`.
    unsafe { core::ptr::copy_nonoverlapping(v.as_ptr(), p, n.min(4)) }
}

/// Stores the transpose of a 4x4 block with vectors that every machine of the target has.
///
/// # Safety
/// As [`Simd::transpose4`].
#[inline(always)]
pub(crate) unsafe fn transpose4(src: *const f32, src_row: isize, dst: *mut f32, dst_row: usize) {
    // Safety: the caller's promise; these instructions are part of the target.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        x86::transpose4(src, src_row, dst, dst_row);
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        Simd128::transpose4(src, src_row, dst, dst_row);
        #[cfg(not(any(target_arch = "x86_64", all(target_arch = "wasm32", target_feature = "simd128"))))]
        Portable::transpose4(src, src_row, dst, dst_row);
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
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
}

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
mod arm {
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
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub use wasm::Simd128;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod wasm {
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
}
