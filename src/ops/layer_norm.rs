//! LayerNormalization.

use super::infer::normalize_axis;
use super::reduce::{reduce, wide};
use super::*;
use crate::error::{bail, err};
use crate::graph::{Attribute, ValueId};
use crate::kernel::{ExprId, Program, ReduceOp, Unary, View};
use crate::tensor::{DType, Dim, known_shape};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    // Version 1 is the form that ONNX Runtime writes into graphs of opsets that do not have it.
    "LayerNormalization" [1, 17] d => |s| Ok(LayerNorm(Settings::parse(s)?)),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "LayerNormalizationGrad" [1] - => |s| Ok(LayerNormGrad(Settings::parse(s)?)),
};

#[derive(Debug)]
struct Settings {
    /// The first normalized axis.
    axis: i64,
    epsilon: f32,
    /// The dtype of means and deviations (f64 for inputs of f64).
    stash: DType,
}

impl Settings {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let stash = DType::from_onnx(spec.int("stash_type", 1)? as i32)?;
        if !stash.is_float() {
            return Err(err!(Graph, "attribute stash_type").expected("a float dtype").found(stash));
        }
        Ok(Self { axis: spec.int("axis", -1)?, epsilon: spec.float("epsilon", 1e-5)?, stash })
    }

    /// The dtype of the statistics of an input.
    fn stash(&self, x: DType) -> DType {
        if x == DType::F64 { x } else { self.stash }
    }

    fn attributes(&self) -> [(&'static str, Attribute); 3] {
        let stash = Attribute::Int(self.stash.onnx() as i64);
        [("axis", Attribute::Int(self.axis)), ("epsilon", Attribute::Float(self.epsilon)), ("stash_type", stash)]
    }
}

/// Adds a read, in the working dtype.
fn read(p: &mut Program, reads: &mut Vec<View>, view: &View, work: DType) -> ExprId {
    reads.push(view.clone());
    let value = p.input(reads.len() - 1, view.dtype);
    p.cast(value, work)
}

/// `(x - mean) / √(var + ε) scale + bias` over the axes from `axis` on; outputs mean and `1/√(var + ε)` too.
#[derive(Debug)]
struct LayerNorm(Settings);

impl Operator for LayerNorm {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        let axis = normalize_axis(self.0.axis, shape.len())?;
        for i in (1..3).filter(|&i| i == 1 || cx.has(i)) {
            cx.float(i)?;
            let (all, part) = (cx.broadcast(&[0, i])?, cx.shape(i)?);
            if all.len() != shape.len() || part.len() > shape.len() {
                bail!(Shape, "input {i} has more axes than the input");
            }
        }
        let mut stats = shape.clone();
        stats[axis..].fill(Dim::Known(1));
        cx.set(1, self.0.stash(dtype), stats.clone());
        cx.set(2, self.0.stash(dtype), stats);
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if cx.dy_opt(1).or(cx.dy_opt(2)).is_some() {
            return Err(cx.error("the loss depends on the mean or the deviation that it outputs"));
        }
        let (dy, x, scale) = (cx.dy(0)?, cx.input(0)?, cx.input(1)?);
        let (mean, inv) = (cx.output(1)?, cx.output(2)?);
        let full = self.expand(cx, x, scale)?;
        let inputs = [Some(dy), Some(x), Some(full), Some(mean), Some(inv)];
        let d = cx.node(MS, "LayerNormalizationGrad", &inputs, &self.0.attributes(), 3)?;
        for i in (0..3).filter(|&i| cx.needs(i)).collect::<Vec<_>>() {
            if i == 0 { cx.set(0, d[0]) } else { cx.set_unbroadcast(i, d[i])? }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (x, scale, bias) = (cx.input(0)?, cx.input(1)?, cx.input_opt(2)?);
        let axis = normalize_axis(self.0.axis, x.rank())?;
        let work = wide(x.dtype);
        let count: usize = x.shape[axis..].iter().product();
        let (mut p, mut reads) = (Program::new(), Vec::new());
        let value = read(&mut p, &mut reads, &x, work);
        let sum = p.row(ReduceOp::Sum, value);
        let mean = p.scale(sum, 1.0 / count as f64);
        let centered = p.sub(value, mean);
        let square = p.mul(centered, centered);
        let sum = p.row(ReduceOp::Sum, square);
        let variance = p.scale(sum, 1.0 / count as f64);
        let epsilon = p.constant(self.0.epsilon as f64, work);
        let variance = p.add(variance, epsilon);
        let deviation = p.unary(Unary::Sqrt, variance);
        let inv = p.unary(Unary::Reciprocal, deviation);
        let normal = p.mul(centered, inv);
        let scale = read(&mut p, &mut reads, &scale, work);
        let mut y = p.mul(normal, scale);
        if let Some(bias) = bias {
            let bias = read(&mut p, &mut reads, &bias, work);
            y = p.add(y, bias);
        }
        let mut writes = Vec::new();
        for (o, value) in [y, mean, inv].into_iter().enumerate() {
            if cx.has_output(o) {
                let to = cx.output(o)?;
                let value = p.cast(value, to.dtype);
                p.output(value);
                writes.push(to);
            }
        }
        cx.fused(x.shape.clone(), x.rank() - axis, p, reads, writes);
        Ok(())
    }
}

impl LayerNorm {
    /// `scale` in the shape of the normalized axes, as LayerNormalizationGrad wants it.
    fn expand(&self, cx: &mut GradCx<'_>, x: ValueId, scale: ValueId) -> Result<ValueId> {
        let (dims, found) = (cx.dims(x)?, cx.dims(scale)?);
        let axis = normalize_axis(self.0.axis, dims.len())?;
        let want = &dims[axis..];
        // Symbols are taken to agree, as ONNX Runtime does.
        let differ = |(a, b): (&Dim, &Dim)| a.known().is_some() && b.known().is_some() && a != b;
        if found.len() == want.len() && !found.iter().zip(want).any(differ) {
            return Ok(scale);
        }
        match known_shape(want) {
            Some(shape) if found.len() <= shape.len() => {
                let shape = cx.ints(&shape.iter().map(|&n| n as i64).collect::<Vec<_>>());
                cx.op("Expand", &[scale, shape])
            }
            _ => Err(cx.error("the scale must have the shape of the normalized axes")),
        }
    }
}

/// With `n = (x - mean) inv`, `g = dy scale` and averages over each row:
/// `dx = inv (g - avg(g) - n avg(g n))`, `dscale = Σ dy n`, `dbias = Σ dy`; from `dy, x, scale, mean, inv`.
#[derive(Debug)]
struct LayerNormGrad(Settings);

impl LayerNormGrad {
    /// `dscale` (output 1) or `dbias` (output 2): sums over the axes that are not normalized.
    fn sum(&self, cx: &mut LowerCx<'_>, o: usize, reads: &[View], axis: usize) -> Result<()> {
        if !cx.has_output(o) {
            return Ok(());
        }
        let to = cx.output(o)?;
        let shape = reads[0].shape.clone();
        let outer: Vec<bool> = (0..shape.len()).map(|a| a < axis).collect();
        let (dtype, work) = (to.dtype, wide(reads[0].dtype));
        let total = if dtype == work { to.clone() } else { cx.temp(work, &to.shape) };
        reduce(cx, &shape, &outer, ReduceOp::Sum, 1.0, reads, total.clone(), |p, v| {
            let v: Vec<ExprId> = v.iter().map(|&v| p.cast(v, work)).collect();
            match v.as_slice() {
                &[dy, x, mean, inv] => {
                    let centered = p.sub(x, mean);
                    let normal = p.mul(centered, inv);
                    p.mul(dy, normal)
                }
                all => all[0],
            }
        });
        if total != to {
            cx.map(&[total], to, |p, v| p.cast(v[0], dtype));
        }
        Ok(())
    }
}

impl Operator for LayerNormGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        for i in 0..5 {
            cx.float(i)?;
        }
        let (dtype, shape) = (cx.dtype(1)?, cx.shape(1)?);
        let axis = normalize_axis(self.0.axis, shape.len())?;
        let mut stats = shape.clone();
        stats[axis..].fill(Dim::Known(1));
        cx.expect_shape(0, &shape)?;
        cx.expect_shape(2, &shape[axis..])?;
        cx.expect_shape(3, &stats)?;
        cx.expect_shape(4, &stats)?;
        let scale = cx.dtype(2)?;
        cx.set(1, scale, &shape[axis..]);
        cx.set(2, scale, &shape[axis..]);
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let all = (0..5).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
        let [dy, x, scale, mean, inv] = all.as_slice() else { bail!(Graph, "five inputs are required") };
        let axis = normalize_axis(self.0.axis, x.rank())?;
        let work = wide(x.dtype);
        let count: usize = x.shape[axis..].iter().product();
        if cx.has_output(0) {
            let to = cx.output(0)?;
            let (mut p, mut reads) = (Program::new(), Vec::new());
            let v: Vec<ExprId> = [dy, x, scale, mean, inv].map(|view| read(&mut p, &mut reads, view, work)).to_vec();
            let centered = p.sub(v[1], v[3]);
            let normal = p.mul(centered, v[4]);
            let g = p.mul(v[0], v[2]);
            let product = p.mul(g, normal);
            let (sum, dot) = (p.row(ReduceOp::Sum, g), p.row(ReduceOp::Sum, product));
            let (sum, dot) = (p.scale(sum, 1.0 / count as f64), p.scale(dot, 1.0 / count as f64));
            let along = p.mul(normal, dot);
            let rest = p.sub(g, sum);
            let rest = p.sub(rest, along);
            let dx = p.mul(v[4], rest);
            let dx = p.cast(dx, to.dtype);
            p.output(dx);
            cx.fused(x.shape.clone(), x.rank() - axis, p, reads, vec![to]);
        }
        self.sum(cx, 1, &[dy.clone(), x.clone(), mean.clone(), inv.clone()], axis)?;
        self.sum(cx, 2, std::slice::from_ref(dy), axis)
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Attribute;
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    fn layer_norm() -> Case {
        Case::op("LayerNormalization").random("x", &[2, 3, 4], -2.0, 2.0)
    }

    #[test]
    fn gradients() {
        layer_norm().random("scale", &[4], 0.5, 1.5).random("bias", &[4], -1.0, 1.0).check();
        layer_norm().random("scale", &[4], 0.5, 1.5).check();
        layer_norm().random("scale", &[3, 4], 0.5, 1.5).random("bias", &[3, 4], -1.0, 1.0).int("axis", 1).check();
        layer_norm()
            .random("scale", &[2, 3, 4], 0.5, 1.5)
            .int("axis", -3)
            .attr("epsilon", Attribute::Float(0.1))
            .check();
        // Scale and bias that broadcast.
        layer_norm().random("scale", &[4], 0.5, 1.5).random("bias", &[1], -1.0, 1.0).int("axis", 1).check();
        layer_norm().random("scale", &[1], 0.5, 1.5).random("bias", &[4], -1.0, 1.0).check();
        layer_norm().opset(15).random("scale", &[4], 0.5, 1.5).random("bias", &[4], -1.0, 1.0).check();
    }

    #[test]
    fn values() {
        // Mean 2, variance 1 - ε + ε.
        let x = Case::op("LayerNormalization").outputs(3).input("x", &[1, 4], &[1.0, 3.0, 3.0, 1.0]);
        let out = x
            .constant("scale", &[4], &[1.0, 2.0, 3.0, 4.0])
            .constant("b", &[4], &[0.5; 4])
            .attr("epsilon", Attribute::Float(3.0))
            .run();
        assert_eq!(out[0].to_f64s(), [0.0, 1.5, 2.0, -1.5]);
        assert_eq!((out[1].shape(), out[1].to_f64s(), out[2].to_f64s()), (&[1, 1][..], vec![2.0], vec![0.5]));
        let half = Tensor::from_f64s(DType::F16, &[1, 2], &[1000.0, 1002.0]).unwrap();
        let scale = Tensor::from_f64s(DType::F16, &[2], &[1.0, 1.0]).unwrap();
        let out = Case::op("LayerNormalization").outputs(3).tensor("x", half, false).tensor("s", scale, false).run();
        assert_eq!((out[0].dtype(), out[1].dtype(), out[0].to_f64s()), (DType::F16, DType::F32, vec![-1.0, 1.0]));
    }

    #[test]
    fn errors() {
        assert!(layer_norm().random("scale", &[3], 0.5, 1.5).fails().contains("broadcast"));
        assert!(layer_norm().random("scale", &[1, 2, 3, 4], 0.5, 1.5).fails().contains("more axes"));
        assert!(layer_norm().random("scale", &[4], 0.5, 1.5).int("axis", 3).fails().contains("axis out of range"));
        assert!(layer_norm().random("scale", &[4], 0.5, 1.5).int("stash_type", 7).fails().contains("stash_type"));
    }
}
