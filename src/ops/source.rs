//! Values out of nothing: constants and ranges.

use super::sizes::{element_count, elements, number_of};
use super::*;
use crate::error::{Kind, bail};
use crate::kernel::{Expr, ExprId, Program, Scalar};
use crate::tensor::{DType, Dim, Tensor, checked_len};
use std::sync::Arc;

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Constant" [1, 9, 11, 12, 13, 19, 21, 23, 24, 25] - => |spec| Constant::parse(spec),
    "ConstantOfShape" [9, 20, 21, 23, 24, 25] - => |spec| ConstantOfShape::parse(spec),
    "Range" [11, 27] - => |spec| {
        // Products of 16-bit floats are computed in float32; without it (before opset 27) there are none.
        let small = spec.since() >= 27;
        if small && spec.int("stash_type", 1)? != 1 {
            bail!(Unsupported, "attribute stash_type other than 1 (float)");
        }
        Ok(Range { small })
    },
};

/// A tensor.
#[derive(Debug)]
struct Constant(Arc<Tensor>);

impl Constant {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        for name in ["sparse_value", "value_string", "value_strings"] {
            if spec.node().attributes.contains_key(name) {
                bail!(Unsupported, "a constant by attribute {name}");
            }
        }
        let mut found = Vec::new();
        found.extend(spec.tensor_opt("value")?);
        if spec.since() >= 12 {
            found.extend(spec.float_opt("value_float")?.map(|x| Arc::new(Tensor::scalar(x))));
            found.extend(spec.int_opt("value_int")?.map(|x| Arc::new(Tensor::scalar(x))));
            found.extend(spec.ints_opt("value_ints")?.map(|v| Arc::new(Tensor::ints(&v))));
            if let Some(v) = spec.floats_opt("value_floats")? {
                found.push(Arc::new(Tensor::new(&[v.len()], &v)?));
            }
        }
        match (found.pop(), found.len()) {
            (Some(tensor), 0) => Ok(Self(tensor)),
            (_, more) => Err(err!(Graph, "the attributes of a constant").expected("one value").found(if more == 0 {
                0
            } else {
                more + 1
            })),
        }
    }
}

impl Operator for Constant {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let shape: Vec<Dim> = self.0.shape().iter().copied().map(Dim::Known).collect();
        let rank = shape.len();
        cx.set(0, self.0.dtype(), shape);
        if let Some(values) = self.0.to_i64s().filter(|_| rank <= 1 && self.0.dtype().is_int()) {
            cx.set_dims(0, values.into_iter().map(super::sizes::dim_of).collect());
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.set_constant(0, (*self.0).clone());
        Ok(())
    }
}

/// One value everywhere; 0 (float32) by default.
#[derive(Debug)]
struct ConstantOfShape {
    value: Arc<Tensor>,
}

impl ConstantOfShape {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let value = spec.tensor_opt("value")?.unwrap_or_else(|| Arc::new(Tensor::scalar(0.0f32)));
        if value.len() != 1 {
            return Err(err!(Shape, "attribute value").expected("one element").found(format!("{value:?}")));
        }
        Ok(Self { value: Arc::new((*value).clone().reshaped(&[])?) })
    }
}

impl Operator for ConstantOfShape {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let shape = match (elements(cx, 0), element_count(cx, 0)?) {
            (Some(shape), _) => shape,
            (None, Some(rank)) => (0..rank).map(|axis| cx.unknown(0, axis)).collect(),
            (None, None) => return Ok(()),
        };
        if let Some(n) = shape.iter().filter_map(number_of).find(|n| *n < 0) {
            bail!(Shape, "a size of {n}");
        }
        cx.set(0, self.value.dtype(), shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (_, shape) = cx.output_type(0)?;
        let value = cx.constant_view((*self.value).clone());
        cx.alias(0, value.broadcast_to(&shape));
        Ok(())
    }
}

/// `start, start + delta, …` below (above, for negative delta) `limit`.
#[derive(Debug)]
struct Range {
    /// May it be of 16-bit floats?
    small: bool,
}

impl Range {
    fn dtype(&self, cx: &InferCx<'_>) -> Result<DType> {
        cx.same_dtype(0, 1)?;
        let dtype = cx.same_dtype(0, 2)?;
        match dtype {
            DType::F32 | DType::F64 | DType::I16 | DType::I32 | DType::I64 => Ok(dtype),
            DType::F16 | DType::BF16 if self.small => Ok(dtype),
            _ => Err(err!(Shape, "a range of this dtype")
                .expected("float32, float64, int16, int32 or int64")
                .found(dtype)),
        }
    }

    /// `max(ceil((limit - start) / delta), 0)`.
    fn len(start: &Tensor, limit: &Tensor, delta: &Tensor) -> Result<usize> {
        for (what, tensor) in [("start", start), ("limit", limit), ("delta", delta)] {
            if tensor.len() != 1 {
                return Err(err!(Shape, "{what} of a range").expected("one number").found(format!("{tensor:?}")));
            }
        }
        if delta.to_f64s()[0] == 0.0 {
            bail!(Shape, "a range with a step of 0");
        }
        let len = match (start.to_i64s(), limit.to_i64s(), delta.to_i64s()) {
            (Some(start), Some(limit), Some(delta)) => {
                let (span, delta) = (limit[0] as i128 - start[0] as i128, delta[0] as i128);
                let ahead = span != 0 && (span < 0) == (delta < 0);
                if ahead { usize::try_from(span.unsigned_abs().div_ceil(delta.unsigned_abs())).ok() } else { Some(0) }
            }
            _ => {
                let span = limit.to_f64s()[0] - start.to_f64s()[0];
                // The difference is rounded as the dtype has it.
                let span = match start.dtype() {
                    DType::F64 => span,
                    _ => span as f32 as f64,
                };
                let len = (span / delta.to_f64s()[0]).ceil();
                if len.is_nan() { None } else { Some(len.max(0.0) as usize) }
            }
        };
        len.filter(|&n| checked_len(&[n]).is_some()).ok_or_else(|| err!(Shape, "a range that no memory holds"))
    }
}

/// A one-element tensor as a constant of `dtype`.
fn number(program: &mut Program, tensor: &Tensor, dtype: DType) -> ExprId {
    let scalar = match tensor.to_i64s() {
        Some(values) => Scalar::Int(values[0]),
        None => Scalar::Float(tensor.to_f64s()[0]),
    };
    program.push(Expr::Const(scalar), dtype)
}

impl Operator for Range {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = self.dtype(cx)?;
        let size = match (cx.constant(0), cx.constant(1), cx.constant(2)) {
            (Some(start), Some(limit), Some(delta)) => Dim::Known(Self::len(start, limit, delta)?),
            (Some(start), None, Some(delta)) if start.to_f64s() == [0.0] && delta.to_f64s() == [1.0] => {
                // 0, 1, … as many as a size that is a symbol.
                let limit = elements(cx, 1).filter(|limit| limit.len() == 1 && dtype.is_int());
                limit.and_then(|mut limit| limit.pop()).unwrap_or_else(|| cx.unknown(0, 0))
            }
            _ => cx.unknown(0, 0),
        };
        cx.set(0, dtype, [size]);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (start, limit, delta) = (cx.require_constant(0)?, cx.require_constant(1)?, cx.require_constant(2)?);
        let len = Self::len(&start, &limit, &delta)?;
        let to = cx.output(0)?;
        if to.shape != [len] {
            return Err(cx.error(Kind::Shape, "the size of the range").expected(len).found(to.len()));
        }
        let dtype = to.dtype;
        let wide = if matches!(dtype, DType::F16 | DType::BF16) { DType::F32 } else { dtype };
        let mut program = Program::new();
        let i = program.coordinate(0);
        let i = program.cast(i, wide);
        let (start, delta) = (number(&mut program, &start, wide), number(&mut program, &delta, wide));
        let way = program.mul(i, delta);
        let value = program.add(start, way);
        let value = program.cast(value, dtype);
        program.output(value);
        cx.fused(vec![len], 0, program, vec![], vec![to]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Attribute;
    use crate::ops::testing::Case;
    use half::f16;

    fn range<T: crate::tensor::Element>(start: T, limit: T, delta: T) -> Case {
        let case = Case::op("Range").tensor("start", Tensor::scalar(start), false);
        case.tensor("limit", Tensor::scalar(limit), false).tensor("delta", Tensor::scalar(delta), false)
    }

    #[test]
    fn constants() {
        let new = || Case::op("Constant");
        let tensor = Tensor::new(&[1, 2], &[3i32, 4]).unwrap();
        assert_eq!(new().attr("value", Attribute::Tensor(Arc::new(tensor.clone()))).run()[0], tensor);
        assert_eq!(new().attr("value_float", Attribute::Float(1.5)).run()[0], Tensor::scalar(1.5f32));
        assert_eq!(new().int("value_int", -2).run()[0], Tensor::scalar(-2i64));
        assert_eq!(new().ints("value_ints", &[1, 2]).run()[0], Tensor::ints(&[1, 2]));
        assert_eq!(
            new().attr("value_floats", Attribute::Floats(vec![0.5])).run()[0],
            Tensor::new(&[1], &[0.5f32]).unwrap()
        );
        assert!(new().fails().contains("expected one value; found 0"));
        assert!(new().int("value_int", 1).attr("value_float", Attribute::Float(1.0)).fails().contains("found 2"));
        assert!(new().attr("value_string", Attribute::String("a".into())).fails().starts_with("[Unsupported]"));
        assert!(new().opset(11).int("value_int", 1).fails().contains("expected one value; found 0"));
    }

    #[test]
    fn constant_of_shape() {
        let new = |shape: &[i64]| Case::op("ConstantOfShape").indices("shape", &[shape.len()], shape);
        assert_eq!(new(&[2, 1]).run()[0], Tensor::zeros(DType::F32, &[2, 1]).unwrap());
        assert_eq!(new(&[]).run()[0], Tensor::scalar(0.0f32));
        assert_eq!(new(&[0, 3]).run()[0].shape(), [0, 3]);
        let value = |t: Tensor| Attribute::Tensor(Arc::new(t));
        assert_eq!(new(&[2]).attr("value", value(Tensor::ints(&[7]))).run()[0], Tensor::ints(&[7, 7]));
        assert!(new(&[2]).attr("value", value(Tensor::ints(&[7, 8]))).fails().contains("expected one element"));
        assert!(new(&[-1]).fails().contains("a size of -1"));
        assert!(new(&[1 << 40, 1 << 40]).fails().starts_with('['));
    }

    #[test]
    fn ranges() {
        range(1.0f64, 5.0, 2.0).gives(&[2], &[1.0, 3.0]);
        range(10i64, 4, -2).gives(&[3], &[10.0, 8.0, 6.0]);
        range(10i32, 5, -2).gives(&[3], &[10.0, 8.0, 6.0]);
        range(0i16, 5, 2).gives(&[3], &[0.0, 2.0, 4.0]);
        range(3i64, 3, 1).gives(&[0], &[]);
        range(3i64, 5, -1).gives(&[0], &[]);
        range(i64::MAX - 1, i64::MAX, 1).gives(&[1], &[(i64::MAX - 1) as f64]);
        assert_eq!(range(0.0f32, 1.0, 0.1).run()[0].len(), 10);
        let (start, limit, delta) = (f16::from_f32(1.0), f16::from_f32(2.0), f16::from_f32(0.5));
        assert_eq!(range(start, limit, delta).opset(27).run()[0].to_f64s(), [1.0, 1.5]);
        assert!(range(start, limit, delta).fails().contains("found float16"));
        assert!(range(0i64, 5, 0).fails().contains("step of 0"));
        assert!(range(i64::MIN, i64::MAX, 1).fails().contains("no memory"));
        assert!(range(0.0f64, f64::INFINITY, 1.0).fails().contains("no memory"));
        assert!(range(0.0f64, f64::NAN, 1.0).fails().contains("no memory"));
        assert!(range(0u8, 1, 1).fails().contains("found uint8"));
    }
}
