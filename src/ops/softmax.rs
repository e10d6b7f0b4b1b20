//! Softmax, LogSoftmax and their gradient operators.

use super::infer::normalize_axis;
use super::*;
use crate::graph::Attribute;
use crate::kernel::{ExprId, Program, ReduceOp, Unary};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Softmax" [1, 11, 13] d => |s| Softmax::parse(s, false),
    "LogSoftmax" [1, 11, 13] d => |s| Softmax::parse(s, true),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "SoftmaxGrad" [1] - => |s| SoftmaxGrad::parse(s, false, Rows::From, 1),
    "LogSoftmaxGrad" [1] - => |s| SoftmaxGrad::parse(s, true, Rows::From, 1),
    "SoftmaxGrad_13" [1] - => |s| SoftmaxGrad::parse(s, false, Rows::Along, -1),
    "LogSoftmaxGrad_13" [1] - => |s| SoftmaxGrad::parse(s, true, Rows::Along, -1),
};

/// What is normalized together.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rows {
    /// All axes from `axis` on, as if the tensor were flattened there (before opset 13).
    From,
    /// One axis.
    Along,
}

impl Rows {
    /// The order of axes in which a row is the last ones, and how many these are.
    fn order(self, axis: usize, rank: usize) -> (Vec<usize>, usize) {
        match self {
            Rows::From => ((0..rank).collect(), rank - axis),
            Rows::Along => ((0..rank).filter(|&a| a != axis).chain([axis]).collect(), 1),
        }
    }
}

/// `exp(x) / Σ exp(x)` over each row, or its logarithm.
#[derive(Debug)]
struct Softmax {
    log: bool,
    rows: Rows,
    axis: i64,
}

impl Softmax {
    fn parse(spec: &Spec<'_>, log: bool) -> Result<Self> {
        let (rows, axis) = if spec.since() >= 13 { (Rows::Along, -1) } else { (Rows::From, 1) };
        Ok(Self { log, rows, axis: spec.int("axis", axis)? })
    }
}

/// `log(softmax(x))` over the row: `x - max - log Σ exp(x - max)`.
pub(super) fn log_softmax(p: &mut Program, x: ExprId) -> ExprId {
    let max = p.row(ReduceOp::Max, x);
    let shifted = p.sub(x, max);
    let exp = p.unary(Unary::Exp, shifted);
    let sum = p.row(ReduceOp::Sum, exp);
    let log = p.unary(Unary::Log, sum);
    p.sub(shifted, log)
}

/// `softmax(x)` over the row, with the maximum subtracted so that nothing overflows.
fn softmax(p: &mut Program, x: ExprId) -> ExprId {
    let max = p.row(ReduceOp::Max, x);
    let shifted = p.sub(x, max);
    let exp = p.unary(Unary::Exp, shifted);
    let sum = p.row(ReduceOp::Sum, exp);
    p.div(exp, sum)
}

impl Operator for Softmax {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        normalize_axis(self.axis, shape.len())?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (dy, y) = (cx.dy(0)?, cx.output(0)?);
        let op = match (self.log, self.rows) {
            (false, Rows::From) => "SoftmaxGrad",
            (true, Rows::From) => "LogSoftmaxGrad",
            (false, Rows::Along) => "SoftmaxGrad_13",
            (true, Rows::Along) => "LogSoftmaxGrad_13",
        };
        let dx = cx.ms(op, &[dy, y], &[("axis", Attribute::Int(self.axis))])?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let (order, row_axes) = self.rows.order(normalize_axis(self.axis, x.rank())?, x.rank());
        let (x, to) = (x.permuted(&order), cx.output(0)?.permuted(&order));
        let mut p = Program::new();
        let value = p.input(0, x.dtype);
        let y = if self.log { log_softmax(&mut p, value) } else { softmax(&mut p, value) };
        p.output(y);
        cx.fused(to.shape.clone(), row_axes, p, vec![x], vec![to]);
        Ok(())
    }
}

/// `dx` from `dy` and the result `y`: `y (dy - Σ dy y)`, or `dy - exp(y) Σ dy` for LogSoftmax.
#[derive(Debug)]
struct SoftmaxGrad {
    log: bool,
    rows: Rows,
    axis: i64,
}

impl SoftmaxGrad {
    fn parse(spec: &Spec<'_>, log: bool, rows: Rows, axis: i64) -> Result<Self> {
        Ok(Self { log, rows, axis: spec.int("axis", axis)? })
    }
}

impl Operator for SoftmaxGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.float(0)?;
        let (dtype, shape) = (cx.same_dtype(0, 1)?, cx.shape(1)?);
        cx.expect_shape(0, &shape)?;
        normalize_axis(self.axis, shape.len())?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (dy, y) = (cx.input(0)?, cx.input(1)?);
        let (order, row_axes) = self.rows.order(normalize_axis(self.axis, y.rank())?, y.rank());
        let (dy, y, to) = (dy.permuted(&order), y.permuted(&order), cx.output(0)?.permuted(&order));
        let mut p = Program::new();
        let (d, v) = (p.input(0, dy.dtype), p.input(1, y.dtype));
        let dx = if self.log {
            let (sum, exp) = (p.row(ReduceOp::Sum, d), p.unary(Unary::Exp, v));
            let part = p.mul(exp, sum);
            p.sub(d, part)
        } else {
            let product = p.mul(d, v);
            let dot = p.row(ReduceOp::Sum, product);
            let rest = p.sub(d, dot);
            p.mul(v, rest)
        };
        p.output(dx);
        cx.fused(to.shape.clone(), row_axes, p, vec![dy, y], vec![to]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    #[test]
    fn gradients() {
        for op in ["Softmax", "LogSoftmax"] {
            Case::op(op).random("x", &[2, 3, 2], -2.0, 2.0).check();
            for axis in [-3, 1, 2] {
                Case::op(op).random("x", &[2, 3, 2], -2.0, 2.0).int("axis", axis).check();
                Case::op(op).opset(12).random("x", &[2, 3, 2], -2.0, 2.0).int("axis", axis).check();
            }
            Case::op(op).opset(7).random("x", &[2, 3, 2], -2.0, 2.0).check();
        }
    }

    #[test]
    fn values() {
        let logits = [0.0, 2.0f64.ln(), 1000.0, 1000.0 + 3.0f64.ln()];
        let two = |op: &'static str| Case::op(op).input("x", &[2, 2], &logits);
        two("Softmax").gives(&[2, 2], &[1.0 / 3.0, 2.0 / 3.0, 0.25, 0.75]);
        two("LogSoftmax").gives(&[2, 2], &[-(3.0f64.ln()), 2.0f64.ln() - 3.0f64.ln(), 0.25f64.ln(), 0.75f64.ln()]);
        // Before opset 13 all axes from 1 on are one row; after it only the last.
        let ones = |opset| Case::op("Softmax").opset(opset).input("x", &[1, 2, 2], &[1.0; 4]);
        ones(11).gives(&[1, 2, 2], &[0.25; 4]);
        ones(13).gives(&[1, 2, 2], &[0.5; 4]);
        let half = Tensor::from_f64s(DType::F16, &[2], &[1.0, 1.0]).unwrap();
        let y = Case::op("Softmax").tensor("x", half, false).run();
        assert_eq!(y[0], Tensor::from_f64s(DType::F16, &[2], &[0.5, 0.5]).unwrap());
        Case::op("Softmax").input("x", &[0, 3], &[]).gives(&[0, 3], &[]);
    }

    #[test]
    fn errors() {
        assert!(Case::op("Softmax").input("x", &[2], &[1.0, 2.0]).int("axis", 1).fails().contains("axis out of range"));
        assert!(Case::op("Softmax").indices("x", &[2], &[1, 2]).fails().contains("floating point"));
    }
}
