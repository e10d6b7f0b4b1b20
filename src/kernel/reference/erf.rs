//! The error function.
#![allow(clippy::excessive_precision, reason = "coefficients and table values stand as they are published")]

/// erf(x) = 2/sqrt(pi) * integral of exp(-t^2) over 0..x, to within 1e-15: the rational Chebyshev
/// approximations of W. J. Cody, "Rational Chebyshev approximations for the error function",
/// Mathematics of Computation 23 (1969), pp. 631-637, one for each of three ranges of |x|.
pub fn erf(x: f64) -> f64 {
    let y = x.abs();
    if y <= 0.46875 {
        return x * ratio(y * y, &SMALL);
    }
    // From 6 on erf is 1 to the last bit (NaN fails both comparisons and passes through).
    let erfc = if y <= 4.0 {
        exp_of_minus_square(y) * ratio(y, &MIDDLE)
    } else if y >= 6.0 {
        0.0
    } else {
        let z = 1.0 / (y * y);
        exp_of_minus_square(y) * (ONE_BY_SQRT_PI - z * ratio(z, &LARGE)) / y
    };
    // 0.5 twice keeps the bits that 1 - erfc would round away first.
    (0.5 - erfc + 0.5).copysign(x)
}

/// exp(-y^2) with y^2 split in two, because exp magnifies the rounding error of a large square.
fn exp_of_minus_square(y: f64) -> f64 {
    let head = (y * 16.0).trunc() / 16.0;
    (-head * head).exp() * (-(y - head) * (y + head)).exp()
}

/// A rational function, coefficients from the highest power down.
struct Rational {
    numerator: &'static [f64],
    denominator: &'static [f64],
}

fn ratio(x: f64, of: &Rational) -> f64 {
    let polynomial = |c: &[f64]| c.iter().fold(0.0, |sum, c| sum * x + c);
    polynomial(of.numerator) / polynomial(of.denominator)
}

const ONE_BY_SQRT_PI: f64 = 0.564_189_583_547_756_3;

/// erf(x) / x, in x^2.
const SMALL: Rational = Rational {
    numerator: &[
        1.857_777_061_846_031_53e-1,
        3.161_123_743_870_565_60,
        1.138_641_541_510_501_56e2,
        3.774_852_376_853_020_21e2,
        3.209_377_589_138_469_47e3,
    ],
    denominator: &[
        1.0,
        2.360_129_095_234_412_09e1,
        2.440_246_379_344_441_73e2,
        1.282_616_526_077_372_28e3,
        2.844_236_833_439_170_62e3,
    ],
};

/// erfc(y) * exp(y^2), in y.
const MIDDLE: Rational = Rational {
    numerator: &[
        2.153_115_354_744_038_46e-8,
        5.641_884_969_886_700_89e-1,
        8.883_149_794_388_375_94,
        6.611_919_063_714_162_95e1,
        2.986_351_381_974_001_31e2,
        8.819_522_212_417_690_90e2,
        1.712_047_612_634_070_58e3,
        2.051_078_377_826_071_47e3,
        1.230_339_354_797_997_25e3,
    ],
    denominator: &[
        1.0,
        1.574_492_611_070_983_47e1,
        1.176_939_508_913_124_99e2,
        5.371_811_018_620_098_58e2,
        1.621_389_574_566_690_19e3,
        3.290_799_235_733_459_63e3,
        4.362_619_090_143_247_16e3,
        3.439_367_674_143_721_64e3,
        1.230_339_354_803_749_42e3,
    ],
};

/// (1/sqrt(pi) - erfc(y) * exp(y^2) * y) * y^2, in 1/y^2.
const LARGE: Rational = Rational {
    numerator: &[
        1.631_538_713_730_209_78e-2,
        3.053_266_349_612_323_44e-1,
        3.603_448_999_498_044_39e-1,
        1.257_817_261_112_292_46e-1,
        1.608_378_514_874_227_66e-2,
        6.587_491_615_298_378_03e-4,
    ],
    denominator: &[
        1.0,
        2.568_520_192_289_822_42,
        1.872_952_849_923_467_25,
        5.279_051_029_514_284_12e-1,
        6.051_834_131_244_131_91e-2,
        2.335_204_976_268_691_85e-3,
    ],
};

#[cfg(test)]
mod tests {
    use super::erf;

    #[test]
    fn erf_has_fifteen_digits() {
        // Abramowitz & Stegun table 7.1 and its continuation, one or more values per range.
        let known = [
            (0.0, 0.0),
            (1e-10, 1.128_379_167_095_512_6e-10),
            (0.1, 0.112_462_916_018_284_89),
            (0.25, 0.276_326_390_168_236_93),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (3.5, 0.999_999_256_901_627_7),
            (4.5, 0.999_999_999_803_383_9),
            (5.5, 0.999_999_999_999_992_6),
            (7.0, 1.0),
        ];
        for (x, y) in known {
            assert!((erf(x) - y).abs() <= 2.3e-16 * f64::max(1e-300, y), "erf({x}) = {}, not {y}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert!(erf(f64::NAN).is_nan());
        assert_eq!((erf(f64::INFINITY), erf(f64::NEG_INFINITY)), (1.0, -1.0));
    }

    /// The derivative ties all ranges and their seams to the definition.
    #[test]
    fn erf_has_the_right_slope() {
        for i in 0..600 {
            let x = i as f64 / 100.0;
            let h = 1e-4;
            let slope = (8.0 * (erf(x + h) - erf(x - h)) - (erf(x + 2.0 * h) - erf(x - 2.0 * h))) / (12.0 * h);
            assert!((slope - 2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp()).abs() < 5e-12, "at {x}: {slope}");
        }
    }
}
