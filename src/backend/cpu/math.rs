//! Transcendental functions of f32 vectors, branch-free. Polynomials are minimax fits (relative
//! error below 1e-8 before rounding); bounds in units in the last place are tested below over
//! each function's whole range. No fused multiply-add: the same bits on every target.

use super::lanes::F32s;

/// Estrin's scheme by groups of four terms, whose chains of dependent operations are short; `c[0]`
/// is the constant term.
#[inline(always)]
fn poly<V: F32s, const N: usize>(x: V, c: &[f32; N]) -> V {
    let square = x.mul(x);
    let mut y = four(x, square, c, (N - 1) / 4 * 4);
    if N > 8 {
        y = y.mul(square.mul(square)).add(four(x, square, c, 4));
    }
    if N > 4 {
        y = y.mul(square.mul(square)).add(four(x, square, c, 0));
    }
    y
}

/// The terms `i` to `i + 3`, as far as there are, over `x^i`. (Functions, since closures are not
/// always inlined, and then neither are their instructions.)
#[inline(always)]
fn four<V: F32s, const N: usize>(x: V, square: V, c: &[f32; N], i: usize) -> V {
    if i + 2 < N { two(x, c, i + 2).mul(square).add(two(x, c, i)) } else { two(x, c, i) }
}

#[inline(always)]
fn two<V: F32s, const N: usize>(x: V, c: &[f32; N], i: usize) -> V {
    if i + 1 < N { x.num(c[i + 1]).mul(x).add(x.num(c[i])) } else { x.num(c[i]) }
}

/// The numbers that these functions need. They come from memory, by a pointer that the compiler
/// cannot see through: wasm engines build a vector constant by four instructions, but load one by
/// a single one.
pub(crate) struct Numbers {
    exp: [f32; 5],
    log: [f32; 9],
    tanh: [f32; 6],
    erf_small: [f32; 7],
    erf_large: [f32; 7],
    /// Below, exp gives 0; above, infinity.
    exp_range: [f32; 2],
    log2_e: f32,
    /// ln 2 in two parts; the first has so few bits that its multiples by exponents are exact.
    ln_2: [f32; 2],
    /// 1.5 * 2^23: adding it rounds to the nearest integer, which then stands in the low bits.
    round: f32,
    one: f32,
    two: f32,
    half: f32,
    negative_zero: f32,
    /// Of exponents; an integer.
    bias: f32,
    /// Where the functions' second forms begin.
    tanh_split: f32,
    erf_split: f32,
    /// Beyond, erf is 1.
    erf_end: f32,
}

static NUMBERS: Numbers = Numbers {
    exp: [0.499_999_94, 0.166_665_21, 0.041_668_274, 8.368_686e-3, 1.382_013_8e-3],
    log: [
        0.333_333_1,
        -0.249_999_94,
        0.200_022_01,
        -0.166_686_52,
        0.142_187_31,
        -0.123_961_69,
        0.118_852_206,
        -0.117_218_465,
        0.068_030_18,
    ],
    tanh: [-0.333_333_3, 0.133_332_21, -0.053_948_18, 0.021_706_894, -8.190_013e-3, 2.152_683_7e-3],
    erf_small: [0.128_379_17, -0.376_126_3, 0.112_836_26, -0.026_855_731, 5.192_405e-3, -8.049_77e-4, 7.996_65e-5],
    erf_large: [0.128_648_49, 0.635_151_3, 0.106_236_845, -0.023_762_02, 3.642_429_6e-3, -3.227_94e-4, 1.123_001_2e-5],
    exp_range: [-104.0, 89.0],
    log2_e: std::f32::consts::LOG2_E,
    ln_2: [0.693_359_4, -2.121_944_4e-4],
    round: 12_582_912.0,
    one: 1.0,
    two: 2.0,
    half: 0.5,
    negative_zero: -0.0,
    bias: f32::from_bits(127),
    tanh_split: 0.625,
    erf_split: 0.925,
    erf_end: 4.0,
};

/// The numbers, to hand to the functions below.
pub(crate) fn numbers() -> &'static Numbers {
    std::hint::black_box(&NUMBERS)
}

#[inline(always)]
fn power_of_two<V: F32s>(n: V, k: &Numbers) -> V {
    n.iadd(n.num(k.bias)).shl::<23>()
}

/// e^x; at most 2 ulp (and half the smallest denormal where the result is denormal). 0 below -104,
/// infinity above 88.72.
#[inline(always)]
pub(crate) fn exp<V: F32s>(x: V, k: &Numbers) -> V {
    let x = x.max_first(x.num(k.exp_range[0])).min_first(x.num(k.exp_range[1]));
    let round = x.num(k.round);
    let shifted = x.mul(x.num(k.log2_e)).add(round);
    let n = shifted.sub(round);
    let r = x.sub(n.mul(x.num(k.ln_2[0]))).sub(n.mul(x.num(k.ln_2[1])));
    let y = poly(r, &k.exp).mul(r).mul(r).add(r).add(x.num(k.one));
    // 2^n in two factors, since n = 128 and n < -126 have no normal one.
    let n = shifted.isub(round);
    let half = n.sar::<1>();
    y.mul(power_of_two(half, k)).mul(power_of_two(n.isub(half), k))
}

/// Natural logarithm; at most 2 ulp, denormals included. NaN below 0, -infinity at 0.
#[inline(always)]
pub(crate) fn log<V: F32s>(x: V, k: &Numbers) -> V {
    let tiny = x.lt(x.num(f32::MIN_POSITIVE));
    let scaled = tiny.select(x.mul(x.num(8_388_608.0)), x);
    // scaled = m 2^e with m in [sqrt(1/2), sqrt(2)).
    let offset = x.bits(0x3F35_04F3);
    let e = scaled.isub(offset).sar::<23>();
    let m = scaled.isub(e.shl::<23>());
    // The integer e as a float, by way of the low bits of a large one.
    let round = x.num(k.round);
    let e = e.iadd(round).sub(round).sub(tiny.and(x.num(23.0)));
    let t = m.sub(x.num(k.one));
    let z = t.mul(t);
    let y = poly(t, &k.log).mul(t).mul(z).add(e.mul(x.num(k.ln_2[1]))).sub(z.mul(x.num(k.half)));
    let y = t.add(y).add(e.mul(x.num(k.ln_2[0])));
    let zero = x.num(0.0);
    let y = x.eq(zero).select(x.num(f32::NEG_INFINITY), y);
    let y = x.eq(x.num(f32::INFINITY)).select(x, y);
    // NaN where x is not at least 0.
    zero.le(x).select(y, x.num(f32::NAN))
}

/// Hyperbolic tangent; at most 2 ulp.
#[inline(always)]
pub(crate) fn tanh<V: F32s>(x: V, k: &Numbers) -> V {
    let t = x.abs();
    let z = x.mul(x);
    let small = poly(z, &k.tanh).mul(z).mul(x).add(x);
    let one = x.num(k.one);
    let large = one.sub(x.num(k.two).div(exp(t.add(t), k).add(one)));
    t.lt(x.num(k.tanh_split)).select(small, large).or(x.and(x.num(k.negative_zero)))
}

/// Error function; at most 2 ulp. Near 0 an odd polynomial, else 1 - exp(-t - t Q(t)), t = |x|.
#[inline(always)]
pub(crate) fn erf<V: F32s>(x: V, k: &Numbers) -> V {
    let t = x.abs().min_first(x.num(k.erf_end));
    let z = t.mul(t);
    let small = poly(z, &k.erf_small).mul(x).add(x);
    let large = x.num(k.one).sub(exp(poly(t, &k.erf_large).mul(t).add(t).neg(), k));
    t.lt(x.num(k.erf_split)).select(small, large).or(x.and(x.num(k.negative_zero)))
}

/// 1 / (1 + exp(-x)); at most 3 ulp where the result is normal.
#[inline(always)]
pub(crate) fn sigmoid<V: F32s>(x: V, k: &Numbers) -> V {
    let one = x.num(k.one);
    one.div(exp(x.neg(), k).add(one))
}

#[cfg(test)]
mod tests {
    use super::super::lanes::Plain;
    use super::*;

    fn scalar(f: impl Fn(Plain<1>, &Numbers) -> Plain<1>, x: f32) -> f32 {
        let mut y = 0.0;
        // Safety: plain Rust needs no instructions; `x` and `y` are one element each.
        unsafe { f(Plain::load(&x), numbers()).store(&mut y) };
        y
    }

    /// Units in the last place of f32 between `got` and `want`; denormals count as such.
    fn ulps(got: f32, want: f64) -> f64 {
        if (want as f32).is_infinite() || want.is_nan() {
            return if got == want as f32 || (got.is_nan() && want.is_nan()) { 0.0 } else { f64::INFINITY };
        }
        let exponent = (want.abs().max(f32::MIN_POSITIVE as f64)).log2().floor();
        (got as f64 - want).abs() / (exponent - 23.0).exp2()
    }

    /// The greatest error over every `step`-th float in `range` (by bits, both signs on request).
    fn worst(f: impl Fn(Plain<1>, &Numbers) -> Plain<1>, want: impl Fn(f64) -> f64, low: f32, high: f32) -> (f64, f32) {
        let mut worst = (0.0, low);
        let n = 200_000;
        let (a, b) = (low.to_bits() as i64, high.to_bits() as i64);
        for i in 0..=n {
            // Even steps through the bits, that is through all exponents, and through the values.
            let by_bits = f32::from_bits((a + (b - a) * i / n) as u32);
            let by_value = low + (high - low) * (i as f32 / n as f32);
            for x in [by_bits, by_value, -by_bits, -by_value] {
                let error = ulps(scalar(&f, x), want(x as f64));
                if error > worst.0 {
                    worst = (error, x);
                }
            }
        }
        worst
    }

    /// erf by its Maclaurin series, or the continued fraction of erfc beyond 2.5.
    fn erf64(x: f64) -> f64 {
        let t = x.abs();
        let y = if t < 2.5 {
            let (mut term, mut sum, mut n) = (t, t, 0.0);
            while term.abs() > 1e-18 * sum.abs() && n < 200.0 {
                n += 1.0;
                term *= -t * t / n;
                sum += term / (2.0 * n + 1.0);
            }
            sum * 2.0 / std::f64::consts::PI.sqrt()
        } else {
            let fraction = (1..=60).rev().fold(t, |f, k| t + k as f64 / 2.0 / f);
            1.0 - (-t * t).exp() / fraction / std::f64::consts::PI.sqrt()
        };
        y.copysign(x)
    }

    #[test]
    fn bounds() {
        let check = |name: &str, (error, x): (f64, f32), bound: f64| {
            println!("{name}: {error:.3} ulp at {x:e}");
            assert!(error <= bound, "{name}({x:e}) is {error} ulp off");
        };
        check("exp", worst(exp, f64::exp, 1e-30, 110.0), 1.5);
        check("log", worst(log, f64::ln, 1e-45, f32::MAX), 1.5);
        check("log near 1", worst(log, f64::ln, 0.5, 2.0), 1.5);
        check("tanh", worst(tanh, f64::tanh, 1e-45, 30.0), 2.0);
        check("erf", worst(erf, erf64, 1e-38, 6.0), 2.0);
        check("sigmoid", worst(sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 1e-30, 87.0), 3.0);
    }

    #[test]
    fn edges() {
        let inf = f32::INFINITY;
        for (f, cases) in [
            (
                exp as fn(Plain<1>, &Numbers) -> Plain<1>,
                [(0.0, 1.0), (-0.0, 1.0), (inf, inf), (-inf, 0.0), (89.0, inf), (-110.0, 0.0)],
            ),
            (log, [(0.0, -inf), (-0.0, -inf), (inf, inf), (-inf, f32::NAN), (1.0, 0.0), (-1e-40, f32::NAN)]),
            (tanh, [(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (100.0, 1.0), (1e-45, 1e-45)]),
            (erf, [(0.0, 0.0), (-0.0, -0.0), (inf, 1.0), (-inf, -1.0), (5.0, 1.0), (-5.0, -1.0)]),
            (sigmoid, [(0.0, 0.5), (-0.0, 0.5), (inf, 1.0), (-inf, 0.0), (30.0, 1.0), (-200.0, 0.0)]),
        ] {
            assert!(scalar(f, f32::NAN).is_nan());
            for (x, want) in cases {
                let got = scalar(f, x);
                let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                assert!(same, "f({x}) = {got}, not {want}");
            }
        }
    }

    /// Every vector type of this target gives the bits of the scalar one.
    #[test]
    fn same_bits() {
        fn all<V: F32s>(xs: &[f32]) -> Vec<u32> {
            let mut out = Vec::new();
            for f in [
                exp as fn(V, &Numbers) -> V,
                log,
                tanh,
                erf,
                sigmoid,
                |x, _| x.sqrt(),
                |x, _| x.min(x.num(0.5)),
                |x, _| x.max(x.num(0.5)),
            ] {
                for chunk in xs.chunks_exact(V::N) {
                    let mut y = [0f32; 32];
                    // Safety: the caller checked the instructions; a chunk has N elements, y has 32.
                    unsafe { f(V::load(chunk.as_ptr()), numbers()).store(y.as_mut_ptr()) };
                    out.extend(y[..V::N].iter().map(|y| if y.is_nan() { 1 } else { y.to_bits() }));
                }
            }
            out
        }
        let mut xs: Vec<f32> = (0..4096u32).map(|i| f32::from_bits(i.wrapping_mul(1_048_583))).collect();
        xs.extend((0..4096).map(|i| (i - 2048) as f32 / 64.0));
        let want = all::<Plain<1>>(&xs);
        assert!(want == all::<Plain<4>>(&xs));
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            assert!(want == all::<super::super::lanes::Avx2>(&xs));
            assert!(want == all::<super::super::lanes::Pair<super::super::lanes::Avx2>>(&xs));
        }
        #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
        assert!(want == all::<super::super::lanes::Simd128>(&xs));
    }
}
