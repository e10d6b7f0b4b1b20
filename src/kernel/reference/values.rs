//! Numbers of every dtype in two classes: floats as `f64`, integers and bool as `i64`.

use crate::error::{Result, bail, err};
use crate::tensor::{DType, Tensor};
use half::{bf16, f16};

/// Elements in row-major order. `u64` is held by its bits.
#[derive(Clone, Debug)]
pub(super) enum Values {
    Float(Vec<f64>),
    Int(Vec<i64>),
}

impl Values {
    /// The elements of a tensor, exactly.
    pub(super) fn of(tensor: &Tensor) -> Self {
        match tensor.to_i64s() {
            Some(ints) => Values::Int(ints),
            None => Values::Float(tensor.to_f64s()),
        }
    }

    /// A tensor of `dtype`: floats rounded, integers wrapped.
    pub(super) fn to_tensor(&self, dtype: DType, shape: &[usize]) -> Result<Tensor> {
        match self {
            Values::Float(floats) if dtype.is_float() => {
                let rounded: Vec<f64> = floats.iter().map(|&x| round(x, dtype)).collect();
                Tensor::from_f64s(dtype, shape, &rounded)
            }
            Values::Int(ints) if !dtype.is_float() => {
                // Little-endian: the low bytes come first, and cutting the rest off is wrapping.
                let bytes: Vec<u8> =
                    ints.iter().flat_map(|&x| wrap(x, dtype).to_le_bytes().into_iter().take(dtype.size())).collect();
                Tensor::from_bytes(dtype, shape, &bytes)
            }
            Values::Float(_) => bail!(Unsupported, "storing floats as {dtype} without a Cast"),
            Values::Int(_) => bail!(Unsupported, "storing integers as {dtype} without a Cast"),
        }
    }

    /// The first element of every run of `stride` elements.
    pub(super) fn every(&self, stride: usize) -> Self {
        match self {
            Values::Float(v) => Values::Float(v.iter().step_by(stride).copied().collect()),
            Values::Int(v) => Values::Int(v.iter().step_by(stride).copied().collect()),
        }
    }

    /// As an expression of dtype `to` has it after a Cast from `from`.
    pub(super) fn cast(&self, from: DType, to: DType) -> Self {
        match self {
            Values::Float(v) if to.is_float() => Values::Float(v.iter().map(|&x| round(round(x, from), to)).collect()),
            Values::Float(v) => Values::Int(v.iter().map(|&x| truncate(round(x, from), to)).collect()),
            Values::Int(v) if to.is_float() => Values::Float(v.iter().map(|&x| int_to_float(x, from, to)).collect()),
            Values::Int(v) => Values::Int(v.iter().map(|&x| wrap(x, to)).collect()),
        }
    }
}

/// What sums of products are made of.
pub(super) trait Number: Copy {
    const ZERO: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

impl Number for f64 {
    const ZERO: Self = 0.0;
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn times(self, other: Self) -> Self {
        self * other
    }
}

/// Modulo 2^64, which wrapping to a narrower width afterwards makes modulo that width.
impl Number for i64 {
    const ZERO: Self = 0;
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    fn times(self, other: Self) -> Self {
        self.wrapping_mul(other)
    }
}

/// `x` rounded to the nearest value of a float dtype, ties to even.
pub(crate) fn round(x: f64, dtype: DType) -> f64 {
    // `half` looks at the upper 32 bits of an f64 only. Folding the lower ones into one sticky bit
    // keeps what decides a tie.
    let sticky = || {
        let bits = x.to_bits();
        f64::from_bits((bits >> 32 | (bits as u32 != 0) as u64) << 32)
    };
    match dtype {
        DType::F32 => x as f32 as f64,
        DType::F16 => f16::from_f64(sticky()).to_f64(),
        DType::BF16 => bf16::from_f64(sticky()).to_f64(),
        _ => x,
    }
}

/// `x` modulo the width of an integer dtype; for bool, whether it is not 0.
pub(crate) fn wrap(x: i64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => (x != 0) as i64,
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::U16 => x as u16 as i64,
        DType::I16 => x as i16 as i64,
        DType::U32 => x as u32 as i64,
        DType::I32 => x as i32 as i64,
        _ => x,
    }
}

/// `x` truncated towards zero and saturated, NaN to 0; for bool, whether it is not 0.
pub(crate) fn truncate(x: f64, dtype: DType) -> i64 {
    match dtype {
        DType::Bool => (x != 0.0) as i64,
        DType::U8 => x as u8 as i64,
        DType::I8 => x as i8 as i64,
        DType::U16 => x as u16 as i64,
        DType::I16 => x as i16 as i64,
        DType::U32 => x as u32 as i64,
        DType::I32 => x as i32 as i64,
        DType::U64 => x as u64 as i64,
        _ => x as i64,
    }
}

/// An integer rounded once to a float dtype.
pub(super) fn int_to_float(x: i64, from: DType, to: DType) -> f64 {
    match (from, to) {
        (DType::U64, DType::F32) => x as u64 as f32 as f64,
        (_, DType::F32) => x as f32 as f64,
        (DType::U64, _) => round(x as u64 as f64, to),
        _ => round(x as f64, to),
    }
}

/// The lowest and the highest value of an integer dtype, or of bool.
pub(crate) fn int_limits(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::Bool => (0, 1),
        DType::U64 => (0, u64::MAX as i64),
        DType::U8 | DType::U16 | DType::U32 => (0, (1 << (8 * dtype.size())) - 1),
        DType::I8 | DType::I16 | DType::I32 => {
            let half = 1 << (8 * dtype.size() - 1);
            (-half, half - 1)
        }
        _ => (i64::MIN, i64::MAX),
    }
}

/// A factor of an integer kernel, which must be whole.
pub(crate) fn whole(factor: f64) -> Result<i64> {
    let int = factor as i64;
    if int as f64 == factor {
        return Ok(int);
    }
    Err(err!(Unsupported, "scaling integers").expected("a whole factor").found(factor))
}
