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
    /// Where `x` is larger than `best`, or NaN: `x` and `x_at`; elsewhere `best` and `at`. The latter are only moved.
    unsafe fn keep_larger(best: Self::V, at: Self::V, x: Self::V, x_at: Self::V) -> (Self::V, Self::V);
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
    unsafe fn keep_larger(best: [f32; 4], at: [f32; 4], x: [f32; 4], x_at: [f32; 4]) -> ([f32; 4], [f32; 4]) {
        let take: [bool; 4] = core::array::from_fn(|i| x[i] > best[i] || x[i].is_nan());
        let pick = |a: [f32; 4], b: [f32; 4]| core::array::from_fn(|i| if take[i] { b[i] } else { a[i] });
        (pick(best, x), pick(at, x_at))
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
#[path = "simd_x86.rs"]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use arm::Neon;

#[cfg(target_arch = "aarch64")]
#[path = "simd_arm.rs"]
mod arm;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub use wasm::Simd128;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
#[path = "simd_wasm.rs"]
mod wasm;
