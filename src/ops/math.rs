//! Elementwise arithmetic.

use super::*;
use crate::graph::ValueId;
use crate::kernel::{Binary, Unary};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Abs" [6, 13] d => |_| Ok(Math(Unary::Abs)),
    "Neg" [6, 13] d => |_| Ok(Math(Unary::Neg)),
    "Exp" [6, 13] d => |_| Ok(Math(Unary::Exp)),
    "Log" [6, 13] d => |_| Ok(Math(Unary::Log)),
    "Sqrt" [6, 13] d => |_| Ok(Math(Unary::Sqrt)),
    "Reciprocal" [6, 13] d => |_| Ok(Math(Unary::Reciprocal)),
    "Erf" [9, 13] d => |_| Ok(Math(Unary::Erf)),
    "Sign" [9, 13] d => |_| Ok(Math(Unary::Sign)),
    "Add" [7, 13, 14] d => |_| Ok(Arithmetic(Binary::Add)),
    "Sub" [7, 13, 14] d => |_| Ok(Arithmetic(Binary::Sub)),
    "Mul" [7, 13, 14] d => |_| Ok(Arithmetic(Binary::Mul)),
    "Div" [7, 13, 14] d => |_| Ok(Arithmetic(Binary::Div)),
    "Pow" [7, 12, 13, 15] d => |_| Ok(Pow),
    "Sum" [6, 8, 13] d => |_| Ok(Sum),
};

/// A function of one operand.
#[derive(Debug)]
struct Math(Unary);

impl Operator for Math {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let any_number = matches!(self.0, Unary::Abs | Unary::Neg | Unary::Sign);
        let dtype = if any_number { cx.dtype(0)? } else { cx.float(0)? };
        let shape = cx.shape(0)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let dx = match self.0 {
            // d|x| = sign(x), 0 at 0.
            Unary::Abs => {
                let sign = cx.op("Sign", &[x])?;
                cx.mul(dy, sign)?
            }
            Unary::Neg => cx.neg(dy)?,
            Unary::Exp => {
                let y = cx.output(0)?;
                cx.mul(dy, y)?
            }
            Unary::Log => cx.div(dy, x)?,
            // d√x = 1 / (2√x).
            Unary::Sqrt => {
                let y = cx.output(0)?;
                let half = cx.scalar_like(dy, 0.5)?;
                let dy = cx.mul(dy, half)?;
                cx.div(dy, y)?
            }
            // d(1/x) = -1/x².
            Unary::Reciprocal => {
                let y = cx.output(0)?;
                let dy = cx.neg(dy)?;
                let d = cx.mul(dy, y)?;
                cx.mul(d, y)?
            }
            // d erf(x) = 2/√π exp(-x²).
            Unary::Erf => {
                let square = cx.mul(x, x)?;
                let exponent = cx.neg(square)?;
                let bell = cx.op("Exp", &[exponent])?;
                let c = cx.scalar_like(x, std::f64::consts::FRAC_2_SQRT_PI)?;
                let slope = cx.mul(bell, c)?;
                cx.mul(dy, slope)?
            }
            // Flat wherever it is differentiable.
            Unary::Sign => return Ok(()),
            Unary::Not | Unary::Tanh | Unary::Sigmoid => unreachable!("not in this table"),
        };
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0], |p, x| p.unary(self.0, x[0]))
    }
}

/// A function of two operands that broadcast.
#[derive(Debug)]
struct Arithmetic(Binary);

impl Operator for Arithmetic {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        let shape = cx.broadcast(&[0, 1])?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (a, b, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        if cx.needs(0) {
            let da = match self.0 {
                Binary::Mul => cx.mul(dy, b)?,
                Binary::Div => cx.div(dy, b)?,
                _ => dy,
            };
            cx.set_unbroadcast(0, da)?;
        }
        if cx.needs(1) {
            let db = match self.0 {
                Binary::Mul => cx.mul(dy, a)?,
                Binary::Sub => cx.neg(dy)?,
                // d(a/b)/db = -(a/b)/b.
                Binary::Div => {
                    let y = cx.output(0)?;
                    let d = cx.mul(dy, y)?;
                    let d = cx.div(d, b)?;
                    cx.neg(d)?
                }
                _ => dy,
            };
            cx.set_unbroadcast(1, db)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0, 1], |p, x| p.binary(self.0, x[0], x[1]))
    }
}

/// `x ^ y`; the exponent may be of another dtype (from opset 12 on) and the result has the base's.
#[derive(Debug)]
struct Pow;

impl Pow {
    /// The exponent, if it is one number known while building.
    fn constant_exponent(cx: &GradCx<'_>, y: ValueId) -> Option<f64> {
        let tensor = cx.facts.constant(y)?;
        (tensor.len() == 1).then(|| tensor.to_f64s()[0])
    }
}

impl Operator for Pow {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.dtype(0)?, cx.broadcast(&[0, 1])?);
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, y, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        if cx.needs(0) {
            // d(x^y)/dx = y x^(y-1).
            let dx = match Self::constant_exponent(cx, y) {
                Some(2.0) => {
                    let two = cx.scalar_like(x, 2.0)?;
                    let slope = cx.mul(x, two)?;
                    cx.mul(dy, slope)?
                }
                _ => {
                    let one = cx.scalar_like(y, 1.0)?;
                    let less = cx.sub(y, one)?;
                    let power = cx.op("Pow", &[x, less])?;
                    let like = cx.op_cast(y, x)?;
                    let slope = cx.mul(power, like)?;
                    cx.mul(dy, slope)?
                }
            };
            cx.set_unbroadcast(0, dx)?;
        }
        if cx.needs(1) {
            // d(x^y)/dy = x^y ln x, and 0 where x is 0 (as PyTorch has it).
            let out = cx.output(0)?;
            let zero = cx.scalar_like(x, 0.0)?;
            let log = cx.op("Log", &[x])?;
            let is_zero = cx.op("Equal", &[x, zero])?;
            let log = cx.op("Where", &[is_zero, zero, log])?;
            let slope = cx.mul(out, log)?;
            let d = cx.mul(dy, slope)?;
            let d = cx.op_cast(d, y)?;
            cx.set_unbroadcast(1, d)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let exponent = cx.constant(1).filter(|t| t.len() == 1).map(|t| t.to_f64s()[0]);
        let float = cx.dtype(0)?.is_float();
        match exponent {
            Some(2.0) => cx.elementwise(&[0, 1], |p, x| p.mul(x[0], x[0])),
            Some(3.0) => cx.elementwise(&[0, 1], |p, x| {
                let square = p.mul(x[0], x[0]);
                p.mul(square, x[0])
            }),
            Some(0.5) if float => cx.elementwise(&[0, 1], |p, x| p.unary(Unary::Sqrt, x[0])),
            _ => cx.elementwise(&[0, 1], |p, x| {
                let base = p.dtype(x[0]);
                // An integer base under a float exponent is computed in f64, as the result is cast back.
                if base.is_int() && p.dtype(x[1]).is_float() {
                    let (a, b) = (p.cast(x[0], crate::tensor::DType::F64), p.cast(x[1], crate::tensor::DType::F64));
                    let power = p.binary(Binary::Pow, a, b);
                    return p.cast(power, base);
                }
                let exponent = p.cast(x[1], base);
                p.binary(Binary::Pow, x[0], exponent)
            }),
        }
    }
}

/// The sum of any number of operands that broadcast.
#[derive(Debug)]
struct Sum;

impl Operator for Sum {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        for i in 1..cx.input_count() {
            cx.same_dtype(0, i)?;
        }
        let all: Vec<usize> = (0..cx.input_count()).collect();
        let (dtype, shape) = (cx.dtype(0)?, cx.broadcast(&all)?);
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        for i in (0..cx.input_count()).filter(|&i| cx.needs(i)).collect::<Vec<_>>() {
            cx.set_unbroadcast(i, dy)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let all: Vec<usize> = (0..cx.input_count()).collect();
        cx.elementwise(&all, |p, x| x[1..].iter().fold(x[0], |sum, &b| p.add(sum, b)))
    }
}

#[cfg(test)]
mod tests {
    use crate::ops::testing::Case;

    #[test]
    fn gradients() {
        for op in ["Abs", "Neg", "Exp", "Erf", "Reciprocal"] {
            Case::op(op).input("x", &[2, 3], &[-1.5, -0.4, 0.3, 1.1, 2.0, 0.7]).check();
        }
        for op in ["Log", "Sqrt"] {
            Case::op(op).input("x", &[2, 3], &[1.5, 0.4, 0.3, 1.1, 2.0, 0.7]).check();
        }
        for op in ["Add", "Sub", "Mul", "Div", "Pow"] {
            Case::op(op).random("a", &[2, 3], 0.5, 2.0).random("b", &[2, 3], 0.5, 2.0).check();
            Case::op(op).random("a", &[2, 3], 0.5, 2.0).random("b", &[3], 0.5, 2.0).check();
            Case::op(op).random("a", &[1, 3], 0.5, 2.0).random("b", &[4, 2, 1], 0.5, 2.0).check();
            Case::op(op).random("a", &[], 0.5, 2.0).random("b", &[2, 1], 0.5, 2.0).check();
        }
        Case::op("Pow").random("x", &[4], -2.0, -0.5).constant("two", &[], &[2.0]).check();
        Case::op("Pow").random("x", &[4], -2.0, -0.5).constant("three", &[1], &[3.0]).check();
        Case::op("Sum")
            .random("a", &[2, 3], -1.0, 1.0)
            .random("b", &[3], -1.0, 1.0)
            .random("c", &[2, 1], -1.0, 1.0)
            .check();
    }

    #[test]
    fn values() {
        Case::op("Div").input("a", &[3], &[1.0, 2.0, 3.0]).input("b", &[1], &[2.0]).gives(&[3], &[0.5, 1.0, 1.5]);
        Case::op("Pow")
            .input("a", &[3], &[1.0, 2.0, 3.0])
            .input("b", &[3], &[4.0, 5.0, 6.0])
            .gives(&[3], &[1.0, 32.0, 729.0]);
        Case::op("Sign").input("a", &[3], &[-1.5, 0.0, 3.0]).gives(&[3], &[-1.0, 0.0, 1.0]);
    }
}
