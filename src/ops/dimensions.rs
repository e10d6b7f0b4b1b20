//! Shapes as values.

use super::sizes::{Product, integers};
use super::*;
use crate::error::{Kind, bail};
use crate::tensor::{DType, Dim, Tensor, checked_len, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Shape" [1, 13, 15, 19, 21, 23, 24, 25] - => |spec| {
        let slices = spec.since() >= 15;
        let start = if slices { spec.int("start", 0)? } else { 0 };
        let end = if slices { spec.int_opt("end")? } else { None };
        Ok(Shape { start, end })
    },
    "Size" [1, 13, 19, 21, 23, 24, 25] - => |_| Ok(Size),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "BroadcastGradientArgs" [1] - => |_| Ok(BroadcastGradientArgs),
};

/// The sizes of axes `start..end`, counted from the end if negative and clamped to the rank.
#[derive(Debug)]
struct Shape {
    start: i64,
    end: Option<i64>,
}

impl Shape {
    fn part<'a, T>(&self, shape: &'a [T]) -> &'a [T] {
        let rank = shape.len() as i64;
        let clamp = |at: i64| if at < 0 { at.saturating_add(rank) } else { at }.clamp(0, rank) as usize;
        let (start, end) = (clamp(self.start), self.end.map_or(shape.len(), clamp));
        &shape[start..end.max(start)]
    }
}

impl Operator for Shape {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let shape = cx.shape(0)?;
        let dims = self.part(&shape).to_vec();
        cx.set(0, DType::I64, [dims.len().into()]);
        cx.set_dims(0, dims);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let sizes: Vec<i64> = self.part(&cx.shape(0)?).iter().map(|&n| n as i64).collect();
        cx.set_constant(0, Tensor::ints(&sizes));
        Ok(())
    }
}

/// The number of elements.
#[derive(Debug)]
struct Size;

impl Operator for Size {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let size = Product::of(&cx.shape(0)?).map(|p| p.dim());
        cx.set(0, DType::I64, []);
        if let Some(size) = size {
            cx.set_dims(0, vec![size]);
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let shape = cx.shape(0)?;
        let len =
            checked_len(&shape).ok_or_else(|| cx.error(Kind::Plan, format!("{} is too large", show_dims(&shape))))?;
        cx.set_constant(0, Tensor::scalar(len as i64));
        Ok(())
    }
}

/// For two shapes that broadcast, the axes of their common shape along which each is repeated: over these a
/// gradient is summed. Descending, as ONNX Runtime has them.
#[derive(Debug)]
struct BroadcastGradientArgs;

impl BroadcastGradientArgs {
    fn axes(a: &[i64], b: &[i64]) -> Result<[Vec<i64>; 2]> {
        let rank = a.len().max(b.len());
        let mut axes = [Vec::new(), Vec::new()];
        for axis in (0..rank).rev() {
            let size = |shape: &[i64]| (axis + shape.len()).checked_sub(rank).map(|i| shape[i]);
            match (size(a), size(b)) {
                (None, _) => axes[0].push(axis as i64),
                (_, None) => axes[1].push(axis as i64),
                (a, b) if a == b => {}
                (Some(1), _) => axes[0].push(axis as i64),
                (_, Some(1)) => axes[1].push(axis as i64),
                _ => bail!(Shape, "shapes {} and {} do not broadcast", show_dims(a), show_dims(b)),
            }
        }
        Ok(axes)
    }
}

impl Operator for BroadcastGradientArgs {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let counts = match (cx.ints(0), cx.ints(1)) {
            (Some(a), Some(b)) => Self::axes(&a, &b)?.map(|axes| Some(axes.len())),
            _ => [None, None],
        };
        for (o, count) in counts.into_iter().enumerate() {
            if cx.has_output(o) {
                let size = count.map_or_else(|| cx.unknown(o, 0), Dim::Known);
                cx.set(o, DType::I64, [size]);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (a, b) = (cx.require_constant(0)?, cx.require_constant(1)?);
        let axes = Self::axes(&integers(&a, "input 0")?, &integers(&b, "input 1")?)?;
        for (o, axes) in axes.iter().enumerate() {
            cx.set_constant(o, Tensor::ints(axes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Case;

    fn six(op: &'static str) -> Case {
        Case::op(op).random("x", &[2, 1, 3], -1.0, 1.0)
    }

    #[test]
    fn values() {
        let shape = |start: i64, end: i64| six("Shape").int("start", start).int("end", end);
        six("Shape").gives(&[3], &[2.0, 1.0, 3.0]);
        six("Shape").opset(7).gives(&[3], &[2.0, 1.0, 3.0]);
        shape(1, 99).gives(&[2], &[1.0, 3.0]);
        shape(-99, -1).gives(&[2], &[2.0, 1.0]);
        shape(2, 1).gives(&[0], &[]);
        shape(i64::MIN, i64::MAX).gives(&[3], &[2.0, 1.0, 3.0]);
        six("Size").gives(&[], &[6.0]);
        assert!(six("Shape").opset(14).int("start", 1).fails().contains("attribute start"));
    }

    #[test]
    fn broadcast_gradient_args() {
        let axes = |a: &[i64], b: &[i64]| {
            let case = Case::op("BroadcastGradientArgs").domain(MS).outputs(2);
            let out = case.indices("a", &[a.len()], a).indices("b", &[b.len()], b).run();
            [out[0].to_i64s().unwrap(), out[1].to_i64s().unwrap()]
        };
        assert_eq!(axes(&[2, 3], &[2, 3]), [vec![], vec![]]);
        assert_eq!(axes(&[2, 1], &[4, 1, 3]), [vec![2, 0], vec![1]]);
        assert_eq!(axes(&[1, 1], &[1]), [vec![], vec![0]]);
        assert_eq!(axes(&[], &[2, 3]), [vec![1, 0], vec![]]);
        assert!(BroadcastGradientArgs::axes(&[2], &[3]).is_err());
    }
}
