//! Activation functions and the gradient operators that ONNX Runtime has for them.

use super::*;
use crate::error::err;
use crate::graph::Attribute;
use crate::kernel::{Binary, ExprId, Program, Unary};
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI, PI};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Relu" [6, 13, 14] d => |_| Ok(Activation(Function::Relu)),
    "LeakyRelu" [6, 16] d => |s| Ok(Activation(leaky(s)?)),
    "Sigmoid" [6, 13] d => |_| Ok(Activation(Function::Sigmoid)),
    "Tanh" [6, 13] d => |_| Ok(Activation(Function::Tanh)),
    "Gelu" [20] d => |s| Ok(Activation(s.choice("approximate", &[("none", Function::Gelu), ("tanh", Function::FastGelu)])?)),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "Gelu" [1] d => |_| Ok(Activation(Function::Gelu)),
    "FastGelu" [1] d => |_| Ok(FastGelu),
    "ReluGrad" [1] - => |_| Ok(ActivationGrad(Function::Relu)),
    "LeakyReluGrad" [1] - => |s| Ok(ActivationGrad(leaky(s)?)),
    "SigmoidGrad" [1] - => |_| Ok(ActivationGrad(Function::Sigmoid)),
    "TanhGrad" [1] - => |_| Ok(ActivationGrad(Function::Tanh)),
    "GeluGrad" [1] - => |_| Ok(ActivationGrad(Function::Gelu)),
    "FastGeluGrad" [1] - => |_| Ok(ActivationGrad(Function::FastGelu)),
};

fn leaky(spec: &Spec<'_>) -> Result<Function> {
    Ok(Function::LeakyRelu(spec.float("alpha", 0.01)?))
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Function {
    Relu,
    /// `x` where it is not negative, else `alpha x`.
    LeakyRelu(f32),
    Sigmoid,
    Tanh,
    /// `x Φ(x)` with the normal distribution function Φ.
    Gelu,
    /// `x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))`.
    FastGelu,
}

/// The cubic coefficient of [`Function::FastGelu`].
const CUBIC: f64 = 0.044715;

impl Function {
    fn value(self, p: &mut Program, x: ExprId) -> ExprId {
        match self {
            Function::Relu => {
                let zero = p.constant_like(0.0, x);
                p.binary(Binary::Max, x, zero)
            }
            Function::LeakyRelu(alpha) => {
                let zero = p.constant_like(0.0, x);
                let negative = p.binary(Binary::Less, x, zero);
                let scaled = p.scale(x, alpha as f64);
                p.select(negative, scaled, x)
            }
            Function::Sigmoid => p.unary(Unary::Sigmoid, x),
            Function::Tanh => p.unary(Unary::Tanh, x),
            Function::Gelu => {
                let normal = normal_distribution(p, x);
                p.mul(x, normal)
            }
            Function::FastGelu => {
                let (tanh, half) = (fast_gelu_tanh(p, x), p.scale(x, 0.5));
                let one = p.constant_like(1.0, x);
                let sum = p.add(one, tanh);
                p.mul(half, sum)
            }
        }
    }

    /// `dy` times the slope, from the result `v` (the operand for Gelu and FastGelu).
    fn gradient(self, p: &mut Program, dy: ExprId, v: ExprId) -> ExprId {
        let (zero, one) = (p.constant_like(0.0, v), p.constant_like(1.0, v));
        match self {
            Function::Relu => {
                let positive = p.binary(Binary::Less, zero, v);
                p.select(positive, dy, zero)
            }
            Function::LeakyRelu(alpha) => {
                let positive = p.binary(Binary::Less, zero, v);
                let scaled = p.scale(dy, alpha as f64);
                p.select(positive, dy, scaled)
            }
            // y (1 - y)
            Function::Sigmoid => {
                let rest = p.sub(one, v);
                let slope = p.mul(v, rest);
                p.mul(dy, slope)
            }
            // 1 - y²
            Function::Tanh => {
                let square = p.mul(v, v);
                let slope = p.sub(one, square);
                p.mul(dy, slope)
            }
            // Φ(x) + x φ(x), φ(x) = exp(-x²/2) / √(2π)
            Function::Gelu => {
                let normal = normal_distribution(p, v);
                let square = p.mul(v, v);
                let exponent = p.scale(square, -0.5);
                let bell = p.unary(Unary::Exp, exponent);
                let density = p.scale(bell, 1.0 / (2.0 * PI).sqrt());
                let moved = p.mul(v, density);
                let slope = p.add(normal, moved);
                p.mul(dy, slope)
            }
            // (1 + t)/2 + x/2 (1 - t²) √(2/π) (1 + 3·0.044715 x²)
            Function::FastGelu => {
                let tanh = fast_gelu_tanh(p, v);
                let sum = p.add(one, tanh);
                let first = p.scale(sum, 0.5);
                let (square, tanh_square) = (p.mul(v, v), p.mul(tanh, tanh));
                let rest = p.sub(one, tanh_square);
                let cubic = p.scale(square, 3.0 * CUBIC);
                let inner = p.add(one, cubic);
                let half = p.scale(v, 0.5 * FRAC_2_PI.sqrt());
                let second = p.mul(half, rest);
                let second = p.mul(second, inner);
                let slope = p.add(first, second);
                p.mul(dy, slope)
            }
        }
    }
}

/// `Φ(x) = (1 + erf(x/√2)) / 2`.
fn normal_distribution(p: &mut Program, x: ExprId) -> ExprId {
    let scaled = p.scale(x, FRAC_1_SQRT_2);
    let erf = p.unary(Unary::Erf, scaled);
    let one = p.constant_like(1.0, x);
    let sum = p.add(one, erf);
    p.scale(sum, 0.5)
}

/// `tanh(√(2/π) (x + 0.044715 x³))`.
fn fast_gelu_tanh(p: &mut Program, x: ExprId) -> ExprId {
    let square = p.mul(x, x);
    let cubic = p.scale(square, CUBIC);
    let one = p.constant_like(1.0, x);
    let factor = p.add(one, cubic);
    let inner = p.mul(x, factor);
    let inner = p.scale(inner, FRAC_2_PI.sqrt());
    p.unary(Unary::Tanh, inner)
}

/// A function of each element.
#[derive(Debug)]
struct Activation(Function);

impl Operator for Activation {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = if self.0 == Function::Relu { cx.dtype(0)? } else { cx.float(0)? };
        if dtype == crate::tensor::DType::Bool {
            return Err(err!(Shape, "input 0 must be a number").expected("a float or integer dtype").found(dtype));
        }
        let shape = cx.shape(0)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let dx = match self.0 {
            // The sign of the result no longer tells that of the operand.
            Function::LeakyRelu(alpha) if alpha < 0.0 => {
                let (zero, factor) = (cx.scalar_like(x, 0.0)?, cx.scalar_like(x, alpha as f64)?);
                let positive = cx.op("Greater", &[x, zero])?;
                let scaled = cx.mul(dy, factor)?;
                cx.op("Where", &[positive, dy, scaled])?
            }
            Function::Gelu => cx.ms("GeluGrad", &[dy, x], &[])?,
            Function::FastGelu => cx.ms("FastGeluGrad", &[dy, x], &[])?,
            by_result => {
                let y = cx.output(0)?;
                match by_result {
                    Function::Relu => cx.ms("ReluGrad", &[dy, y], &[])?,
                    Function::LeakyRelu(alpha) => {
                        cx.ms("LeakyReluGrad", &[dy, y], &[("alpha", Attribute::Float(alpha))])?
                    }
                    Function::Sigmoid => cx.ms("SigmoidGrad", &[dy, y], &[])?,
                    _ => cx.ms("TanhGrad", &[dy, y], &[])?,
                }
            }
        };
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0], |p, x| self.0.value(p, x[0]))
    }
}

/// `FastGelu(x + bias)`; the bias may be left out.
#[derive(Debug)]
struct FastGelu;

impl Operator for FastGelu {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        if cx.has(1) {
            cx.same_dtype(0, 1)?;
            cx.broadcast(&[0, 1])?;
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let sum = match cx.input_opt(1) {
            Some(bias) => cx.add_(x, bias)?,
            None => x,
        };
        let dx = cx.ms("FastGeluGrad", &[dy, sum], &[])?;
        cx.set(0, dx);
        if cx.needs(1) {
            cx.set_unbroadcast(1, dx)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let inputs: &[usize] = if cx.has(1) { &[0, 1] } else { &[0] };
        cx.elementwise(inputs, |p, x| {
            let sum = x[1..].iter().fold(x[0], |sum, &b| p.add(sum, b));
            Function::FastGelu.value(p, sum)
        })
    }
}

/// `dx` from `dy` and the function's result (Relu, LeakyRelu, Sigmoid, Tanh) or operand (Gelu, FastGelu).
#[derive(Debug)]
struct ActivationGrad(Function);

impl Operator for ActivationGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(1)?);
        cx.same_dtype(0, 1)?;
        cx.expect_shape(0, &shape)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        cx.elementwise(&[0, 1], |p, x| self.0.gradient(p, x[0], x[1]))
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Attribute;
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    const X: [f64; 6] = [-1.5, -0.4, 0.3, 1.1, 2.0, -0.7];

    fn x(op: &'static str) -> Case {
        Case::op(op).input("x", &[2, 3], &X)
    }

    #[test]
    fn gradients() {
        for op in ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "Gelu"] {
            x(op).check();
        }
        for alpha in [0.0, 0.3, -0.5] {
            x("LeakyRelu").attr("alpha", Attribute::Float(alpha)).check();
        }
        x("Gelu").attr("approximate", Attribute::String("tanh".into())).check();
        x("Gelu").domain("com.microsoft").check();
        x("FastGelu").domain("com.microsoft").check();
        x("FastGelu").domain("com.microsoft").random("bias", &[3], -1.0, 1.0).check();
        x("Relu").opset(7).check();
    }

    #[test]
    fn values() {
        x("Relu").gives(&[2, 3], &[0.0, 0.0, 0.3, 1.1, 2.0, 0.0]);
        Case::op("Relu").input("x", &[2], &[f64::NEG_INFINITY, f64::INFINITY]).gives(&[2], &[0.0, f64::INFINITY]);
        assert!(Case::op("Relu").input("x", &[1], &[f64::NAN]).run()[0].to_f64s()[0].is_nan());
        let ints = Tensor::new(&[3], &[-3i8, 0, 5]).unwrap();
        assert_eq!(Case::op("Relu").tensor("x", ints, false).run()[0], Tensor::new(&[3], &[0i8, 0, 5]).unwrap());
        x("LeakyRelu").attr("alpha", Attribute::Float(0.5)).gives(&[2, 3], &[-0.75, -0.2, 0.3, 1.1, 2.0, -0.35]);
        // Φ(1) = 0.8413447460685429.
        Case::op("Gelu")
            .input("x", &[3], &[1.0, 0.0, -1.0])
            .gives(&[3], &[0.8413447460685429, 0.0, -0.15865525393145707]);
        Case::op("Sigmoid").input("x", &[3], &[0.0, 800.0, -800.0]).gives(&[3], &[0.5, 1.0, 0.0]);
        // At 0 the gradient is that of the negative side.
        Case::op("ReluGrad")
            .domain("com.microsoft")
            .constant("dy", &[3], &[2.0, 3.0, 4.0])
            .constant("y", &[3], &[0.0, 1.0, 0.0])
            .gives(&[3], &[0.0, 3.0, 0.0]);
    }

    #[test]
    fn errors() {
        let bools = Tensor::from_bools(&[1], &[true]).unwrap();
        assert!(Case::op("Relu").tensor("x", bools, false).fails().contains("must be a number"));
        assert!(x("Gelu").attr("approximate", Attribute::String("sigmoid".into())).fails().contains("none or tanh"));
        assert!(x("Gelu").opset(19).fails().contains("supported from opset 20"));
        let ints = Tensor::zeros(DType::I32, &[1]).unwrap();
        assert!(Case::op("Tanh").tensor("x", ints, false).fails().contains("floating point"));
        let mismatched = x("TanhGrad").domain("com.microsoft").input("y", &[2], &[0.0, 0.0]);
        assert!(mismatched.fails().contains("shape"));
    }
}
