//! Vectors of f32 for the element-wise kernels: AVX2, wasm simd128, and two plain fallbacks. All
//! give the same bits (no fused multiply-add), so that a model trains alike natively and on wasm.

/// A vector of [`Self::N`] f32, or of as many bit masks. `load`, `store` and `splat` are unsafe
/// because a vector may only be made where its instructions exist; whoever holds one has shown
/// that they do.
pub(crate) trait F32s: Copy {
    /// How many elements; divides 32.
    const N: usize;
    /// Safety: `N` elements from `p` on must be readable, the instructions available.
    unsafe fn load(p: *const f32) -> Self;
    /// Safety: `N` elements from `p` on must be writable, the instructions available.
    unsafe fn store(self, p: *mut f32);
    /// Safety: the instructions must be available.
    unsafe fn splat(x: f32) -> Self;
    /// A constant like `self`.
    #[inline(always)]
    fn num(self, x: f32) -> Self {
        // Safety: `self` exists, hence the instructions do.
        unsafe { Self::splat(x) }
    }
    /// The constant with these bits.
    #[inline(always)]
    fn bits(self, x: u32) -> Self {
        self.num(f32::from_bits(x))
    }
    fn add(self, o: Self) -> Self;
    fn sub(self, o: Self) -> Self;
    fn mul(self, o: Self) -> Self;
    fn div(self, o: Self) -> Self;
    fn sqrt(self) -> Self;
    /// The lesser; `self` if it is NaN, some value if only `o` is.
    fn min_first(self, o: Self) -> Self;
    /// The greater; `self` if it is NaN, some value if only `o` is.
    fn max_first(self, o: Self) -> Self;
    /// All ones where `self < o`.
    fn lt(self, o: Self) -> Self;
    /// All ones where `self <= o`.
    fn le(self, o: Self) -> Self;
    /// All ones where `self == o`.
    fn eq(self, o: Self) -> Self;
    fn and(self, o: Self) -> Self;
    fn or(self, o: Self) -> Self;
    fn xor(self, o: Self) -> Self;
    /// `a` where the mask `self` is all ones, `b` where it is all zeros.
    fn select(self, a: Self, b: Self) -> Self;
    /// Sum of the bits as integers.
    fn iadd(self, o: Self) -> Self;
    /// Difference of the bits as integers.
    fn isub(self, o: Self) -> Self;
    fn shl<const K: i32>(self) -> Self;
    /// Arithmetic shift of the bits.
    fn sar<const K: i32>(self) -> Self;
    /// `N` bytes, 0 or 1, as masks.
    ///
    /// Safety: `N` bytes from `p` on must be readable, the instructions available.
    unsafe fn load_bools(p: *const u8) -> Self;
    /// The masks as `N` bytes, 0 or 1.
    ///
    /// Safety: `N` bytes from `p` on must be writable.
    unsafe fn store_bools(self, p: *mut u8);
    /// High and low halves of the products of the bits as unsigned integers.
    fn umul(self, o: Self) -> (Self, Self);
    /// The bits, a signed integer, as a number.
    fn to_number(self) -> Self;

    /// All ones where `self` is NaN.
    #[inline(always)]
    fn nan(self) -> Self {
        self.eq(self).xor(self.bits(u32::MAX))
    }
    #[inline(always)]
    fn neg(self) -> Self {
        self.xor(self.num(-0.0))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        self.and(self.bits(0x7FFF_FFFF))
    }
    /// The lesser; NaN if either is.
    #[inline(always)]
    fn min(self, o: Self) -> Self {
        o.nan().select(o, self.min_first(o))
    }
    /// The greater; NaN if either is.
    #[inline(always)]
    fn max(self, o: Self) -> Self {
        o.nan().select(o, self.max_first(o))
    }
}

macro_rules! plain {
    ($op:expr, $($a:expr),*) => { std::array::from_fn(|i| $op($($a[i]),*)) };
}

/// Four f32 in plain Rust, which LLVM turns into vectors where it knows some.
#[derive(Clone, Copy)]
#[repr(C, align(16))]
pub(crate) struct Plain<const L: usize>([f32; L]);

fn mask(b: bool) -> f32 {
    f32::from_bits(if b { u32::MAX } else { 0 })
}

#[inline(always)]
fn by_bits(f: impl Fn(u32, u32) -> u32) -> impl Fn(f32, f32) -> f32 {
    move |a, b| f32::from_bits(f(a.to_bits(), b.to_bits()))
}

impl<const L: usize> F32s for Plain<L> {
    const N: usize = L;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // Safety: the caller's promise.
        Self(unsafe { p.cast::<[f32; L]>().read() })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // Safety: the caller's promise.
        unsafe { p.cast::<[f32; L]>().write(self.0) }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; L])
    }
    #[inline(always)]
    fn add(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| a + b, self.0, o.0))
    }
    #[inline(always)]
    fn sub(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| a - b, self.0, o.0))
    }
    #[inline(always)]
    fn mul(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| a * b, self.0, o.0))
    }
    #[inline(always)]
    fn div(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| a / b, self.0, o.0))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(plain!(|a: f32| a.sqrt(), self.0))
    }
    #[inline(always)]
    fn min_first(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| if b < a { b } else { a }, self.0, o.0))
    }
    #[inline(always)]
    fn max_first(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| if b > a { b } else { a }, self.0, o.0))
    }
    #[inline(always)]
    fn lt(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| mask(a < b), self.0, o.0))
    }
    #[inline(always)]
    fn le(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| mask(a <= b), self.0, o.0))
    }
    #[inline(always)]
    fn eq(self, o: Self) -> Self {
        Self(plain!(|a: f32, b: f32| mask(a == b), self.0, o.0))
    }
    #[inline(always)]
    fn and(self, o: Self) -> Self {
        Self(plain!(by_bits(|a, b| a & b), self.0, o.0))
    }
    #[inline(always)]
    fn or(self, o: Self) -> Self {
        Self(plain!(by_bits(|a, b| a | b), self.0, o.0))
    }
    #[inline(always)]
    fn xor(self, o: Self) -> Self {
        Self(plain!(by_bits(|a, b| a ^ b), self.0, o.0))
    }
    #[inline(always)]
    fn select(self, a: Self, b: Self) -> Self {
        Self(plain!(|m: f32, a, b| if m.to_bits() != 0 { a } else { b }, self.0, a.0, b.0))
    }
    #[inline(always)]
    fn iadd(self, o: Self) -> Self {
        Self(plain!(by_bits(u32::wrapping_add), self.0, o.0))
    }
    #[inline(always)]
    fn isub(self, o: Self) -> Self {
        Self(plain!(by_bits(u32::wrapping_sub), self.0, o.0))
    }
    #[inline(always)]
    fn shl<const K: i32>(self) -> Self {
        Self(plain!(|a: f32| f32::from_bits(a.to_bits() << K), self.0))
    }
    #[inline(always)]
    unsafe fn load_bools(p: *const u8) -> Self {
        // Safety: the caller's promise.
        let bytes = unsafe { p.cast::<[u8; L]>().read() };
        Self(plain!(|b: u8| f32::from_bits(0u32.wrapping_sub(b as u32)), bytes))
    }
    #[inline(always)]
    unsafe fn store_bools(self, p: *mut u8) {
        // Safety: the caller's promise.
        unsafe { p.cast::<[u8; L]>().write(plain!(|m: f32| (m.to_bits() & 1) as u8, self.0)) }
    }
    #[inline(always)]
    fn umul(self, o: Self) -> (Self, Self) {
        let product = |a: f32, b: f32| a.to_bits() as u64 * b.to_bits() as u64;
        (
            Self(plain!(|a, b| f32::from_bits((product(a, b) >> 32) as u32), self.0, o.0)),
            Self(plain!(|a, b| f32::from_bits(product(a, b) as u32), self.0, o.0)),
        )
    }
    #[inline(always)]
    fn to_number(self) -> Self {
        Self(plain!(|a: f32| a.to_bits() as i32 as f32, self.0))
    }
    #[inline(always)]
    fn sar<const K: i32>(self) -> Self {
        Self(plain!(|a: f32| f32::from_bits((a.to_bits() as i32 >> K) as u32), self.0))
    }
}

/// Two vectors side by side: their instructions interleave, so that long chains of dependent ones
/// keep the machine busy.
#[derive(Clone, Copy)]
pub(crate) struct Pair<V>(V, V);

macro_rules! both {
    ($($name:ident)*) => {$(
        #[inline(always)]
        fn $name(self, o: Self) -> Self {
            Self(self.0.$name(o.0), self.1.$name(o.1))
        }
    )*};
}

impl<V: F32s> F32s for Pair<V> {
    const N: usize = 2 * V::N;
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // Safety: the caller's promise.
        unsafe { Self(V::load(p), V::load(p.add(V::N))) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // Safety: the caller's promise.
        unsafe {
            self.0.store(p);
            self.1.store(p.add(V::N));
        }
    }
    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        // Safety: the caller's promise.
        let x = unsafe { V::splat(x) };
        Self(x, x)
    }
    both!(add sub mul div min_first max_first lt le eq and or xor iadd isub);
    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.sqrt(), self.1.sqrt())
    }
    #[inline(always)]
    fn select(self, a: Self, b: Self) -> Self {
        Self(self.0.select(a.0, b.0), self.1.select(a.1, b.1))
    }
    #[inline(always)]
    fn shl<const K: i32>(self) -> Self {
        Self(self.0.shl::<K>(), self.1.shl::<K>())
    }
    #[inline(always)]
    fn sar<const K: i32>(self) -> Self {
        Self(self.0.sar::<K>(), self.1.sar::<K>())
    }
    #[inline(always)]
    unsafe fn load_bools(p: *const u8) -> Self {
        // Safety: the caller's promise.
        unsafe { Self(V::load_bools(p), V::load_bools(p.add(V::N))) }
    }
    #[inline(always)]
    unsafe fn store_bools(self, p: *mut u8) {
        // Safety: the caller's promise.
        unsafe {
            self.0.store_bools(p);
            self.1.store_bools(p.add(V::N));
        }
    }
    #[inline(always)]
    fn umul(self, o: Self) -> (Self, Self) {
        let (a, b) = (self.0.umul(o.0), self.1.umul(o.1));
        (Self(a.0, b.0), Self(a.1, b.1))
    }
    #[inline(always)]
    fn to_number(self) -> Self {
        Self(self.0.to_number(), self.1.to_number())
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::F32s;
    use std::arch::x86_64::*;

    /// Eight f32 in an AVX2 register.
    #[derive(Clone, Copy)]
    pub(crate) struct Avx2(__m256);

    macro_rules! op {
        ($name:ident, $a:ident $(, $o:ident)? => $e:expr) => {
            #[inline(always)]
            fn $name(self $(, $o: Self)?) -> Self {
                let $a = self.0;
                $(let $o = $o.0;)?
                // Safety: `self` exists, hence AVX2 does.
                Self(unsafe { $e })
            }
        };
    }
    macro_rules! int {
        ($f:ident, $a:expr, $b:expr) => {
            _mm256_castsi256_ps($f(_mm256_castps_si256($a), _mm256_castps_si256($b)))
        };
    }

    impl F32s for Avx2 {
        const N: usize = 8;
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // Safety: the caller's promise.
            Self(unsafe { _mm256_loadu_ps(p) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // Safety: the caller's promise.
            unsafe { _mm256_storeu_ps(p, self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // Safety: the caller's promise.
            Self(unsafe { _mm256_set1_ps(x) })
        }
        op!(add, a, o => _mm256_add_ps(a, o));
        op!(sub, a, o => _mm256_sub_ps(a, o));
        op!(mul, a, o => _mm256_mul_ps(a, o));
        op!(div, a, o => _mm256_div_ps(a, o));
        op!(sqrt, a => _mm256_sqrt_ps(a));
        // The instruction gives its second operand when either is NaN.
        op!(min_first, a, o => _mm256_min_ps(o, a));
        op!(max_first, a, o => _mm256_max_ps(o, a));
        op!(lt, a, o => _mm256_cmp_ps::<_CMP_LT_OQ>(a, o));
        op!(le, a, o => _mm256_cmp_ps::<_CMP_LE_OQ>(a, o));
        op!(eq, a, o => _mm256_cmp_ps::<_CMP_EQ_OQ>(a, o));
        op!(and, a, o => _mm256_and_ps(a, o));
        op!(or, a, o => _mm256_or_ps(a, o));
        op!(xor, a, o => _mm256_xor_ps(a, o));
        op!(iadd, a, o => int!(_mm256_add_epi32, a, o));
        op!(isub, a, o => int!(_mm256_sub_epi32, a, o));
        #[inline(always)]
        fn select(self, a: Self, b: Self) -> Self {
            // Safety: `self` exists, hence AVX2 does.
            Self(unsafe { _mm256_blendv_ps(b.0, a.0, self.0) })
        }
        #[inline(always)]
        unsafe fn load_bools(p: *const u8) -> Self {
            // Safety: the caller's promise.
            unsafe {
                let wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
                Self(_mm256_castsi256_ps(_mm256_sub_epi32(_mm256_setzero_si256(), wide)))
            }
        }
        #[inline(always)]
        unsafe fn store_bools(self, p: *mut u8) {
            // Safety: the caller's promise; `self` exists, hence AVX2 does.
            unsafe {
                let masks = _mm256_castps_si256(self.0);
                let words = _mm_packs_epi32(_mm256_castsi256_si128(masks), _mm256_extracti128_si256::<1>(masks));
                let bytes = _mm_and_si128(_mm_packs_epi16(words, words), _mm_set1_epi8(1));
                _mm_storel_epi64(p.cast(), bytes);
            }
        }
        #[inline(always)]
        fn umul(self, o: Self) -> (Self, Self) {
            // Safety: `self` exists, hence AVX2 does.
            unsafe {
                let (a, b) = (_mm256_castps_si256(self.0), _mm256_castps_si256(o.0));
                // Products of every other lane.
                let even = _mm256_mul_epu32(a, b);
                let odd = _mm256_mul_epu32(_mm256_srli_epi64::<32>(a), _mm256_srli_epi64::<32>(b));
                let high = _mm256_blend_epi32::<0xAA>(_mm256_srli_epi64::<32>(even), odd);
                let low = _mm256_blend_epi32::<0xAA>(even, _mm256_slli_epi64::<32>(odd));
                (Self(_mm256_castsi256_ps(high)), Self(_mm256_castsi256_ps(low)))
            }
        }
        #[inline(always)]
        fn to_number(self) -> Self {
            // Safety: `self` exists, hence AVX2 does.
            Self(unsafe { _mm256_cvtepi32_ps(_mm256_castps_si256(self.0)) })
        }
        #[inline(always)]
        fn shl<const K: i32>(self) -> Self {
            // Safety: `self` exists, hence AVX2 does.
            Self(unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<K>(_mm256_castps_si256(self.0))) })
        }
        #[inline(always)]
        fn sar<const K: i32>(self) -> Self {
            // Safety: `self` exists, hence AVX2 does.
            Self(unsafe { _mm256_castsi256_ps(_mm256_srai_epi32::<K>(_mm256_castps_si256(self.0))) })
        }
    }
}

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
pub(crate) use simd128::Simd128;

#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128 {
    use super::F32s;
    use std::arch::wasm32::*;

    /// Four f32 in a wasm vector.
    #[derive(Clone, Copy)]
    pub(crate) struct Simd128(v128);

    macro_rules! op {
        ($name:ident => $f:ident) => {
            #[inline(always)]
            fn $name(self, o: Self) -> Self {
                Self($f(self.0, o.0))
            }
        };
    }

    impl F32s for Simd128 {
        const N: usize = 4;
        #[inline(always)]
        unsafe fn load(p: *const f32) -> Self {
            // Safety: the caller's promise; v128_load needs no alignment.
            Self(unsafe { v128_load(p.cast()) })
        }
        #[inline(always)]
        unsafe fn store(self, p: *mut f32) {
            // Safety: the caller's promise; v128_store needs no alignment.
            unsafe { v128_store(p.cast(), self.0) }
        }
        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            Self(f32x4_splat(x))
        }
        op!(add => f32x4_add);
        op!(sub => f32x4_sub);
        op!(mul => f32x4_mul);
        op!(div => f32x4_div);
        #[inline(always)]
        fn sqrt(self) -> Self {
            Self(f32x4_sqrt(self.0))
        }
        // These give their first operand when either is NaN.
        op!(min_first => f32x4_pmin);
        op!(max_first => f32x4_pmax);
        op!(lt => f32x4_lt);
        op!(le => f32x4_le);
        op!(eq => f32x4_eq);
        op!(and => v128_and);
        op!(or => v128_or);
        op!(xor => v128_xor);
        op!(iadd => i32x4_add);
        op!(isub => i32x4_sub);
        #[inline(always)]
        fn select(self, a: Self, b: Self) -> Self {
            Self(v128_bitselect(a.0, b.0, self.0))
        }
        #[inline(always)]
        unsafe fn load_bools(p: *const u8) -> Self {
            // Safety: the caller's promise.
            let bytes = unsafe { v128_load32_zero(p.cast()) };
            Self(i32x4_neg(u32x4_extend_low_u16x8(u16x8_extend_low_u8x16(bytes))))
        }
        #[inline(always)]
        unsafe fn store_bools(self, p: *mut u8) {
            let words = i16x8_narrow_i32x4(self.0, self.0);
            let bytes = v128_and(i8x16_narrow_i16x8(words, words), i8x16_splat(1));
            // Safety: the caller's promise.
            unsafe { v128_store32_lane::<0>(bytes, p.cast()) }
        }
        #[inline(always)]
        fn umul(self, o: Self) -> (Self, Self) {
            let first = u64x2_extmul_low_u32x4(self.0, o.0);
            let last = u64x2_extmul_high_u32x4(self.0, o.0);
            (Self(i32x4_shuffle::<1, 3, 5, 7>(first, last)), Self(i32x4_shuffle::<0, 2, 4, 6>(first, last)))
        }
        #[inline(always)]
        fn to_number(self) -> Self {
            Self(f32x4_convert_i32x4(self.0))
        }
        #[inline(always)]
        fn shl<const K: i32>(self) -> Self {
            Self(i32x4_shl(self.0, K as u32))
        }
        #[inline(always)]
        fn sar<const K: i32>(self) -> Self {
            Self(i32x4_shr(self.0, K as u32))
        }
    }
}
