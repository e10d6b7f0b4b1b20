//! BatchNormalization, ONNX Runtime's training form of it, and its gradient.

use super::reduce::{reduce, reduce_mean, wide};
use super::*;
use crate::error::{bail, err};
use crate::graph::{Attribute, ValueId};
use crate::kernel::{ExprId, Program, ReduceOp, Unary, View};
use crate::tensor::DType;

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "BatchNormalization" [7, 9, 14, 15] d => |s| {
        if s.since() < 9 && !s.flag("spatial", true)? {
            return Err(err!(Unsupported, "attribute spatial").expected(1).found(0));
        }
        // Before opset 14 a node that has more outputs than one is in training.
        let more = s.node().outputs.iter().skip(1).any(Option::is_some);
        let training = if s.since() < 14 { more } else { s.flag("training_mode", false)? };
        BatchNorm::parse(s, training, Extra::Variance)
    },
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "BatchNormInternal" [1] d => |s| BatchNorm::parse(s, s.flag("training_mode", false)?, Extra::Inverse),
    "BatchNormalizationGrad" [1] - => |s| {
        s.ignore("epsilon"); // it is in the inverse deviation
        Ok(BatchNormGrad)
    },
};

/// What output 4 is: the variance of the batch (old ONNX), or `1/√(var + ε)` (ONNX Runtime).
#[derive(Clone, Copy, Debug, PartialEq)]
enum Extra {
    Variance,
    Inverse,
}

/// `(x - mean) / √(var + ε) scale + bias` for each channel (axis 1); inputs `x, scale, bias, mean, var`.
///
/// In training, mean and (biased) variance are those of the batch, and outputs 1 and 2 are
/// `input momentum + batch (1 - momentum)`. BatchNormInternal writes these into the input mean and
/// variance where they are graph inputs, as ONNX Runtime does.
#[derive(Debug)]
struct BatchNorm {
    epsilon: f32,
    momentum: f32,
    training: bool,
    extra: Extra,
}

impl BatchNorm {
    fn parse(spec: &Spec<'_>, training: bool, extra: Extra) -> Result<Self> {
        let (epsilon, momentum) = (spec.float("epsilon", 1e-5)?, spec.float("momentum", 0.9)?);
        Ok(Self { epsilon, momentum, training, extra })
    }

    fn in_place(&self) -> bool {
        self.extra == Extra::Inverse
    }
}

/// A view of one value per channel, to broadcast against `[N, C, …]` of `rank` axes.
fn along_channels(view: &View, rank: usize) -> View {
    (2..rank).fold(view.clone(), |v, _| v.unsqueezed(v.rank()))
}

/// A program over several reads, all cast to `work`; `write` gives the results.
fn program<const N: usize>(
    cx: &mut LowerCx<'_>,
    shape: &[usize],
    work: DType,
    reads: &[&View],
    writes: [View; N],
    write: impl FnOnce(&mut Program, &[ExprId]) -> [ExprId; N],
) {
    let mut p = Program::new();
    let ids: Vec<ExprId> = reads
        .iter()
        .enumerate()
        .map(|(k, r)| {
            let value = p.input(k, r.dtype);
            p.cast(value, work)
        })
        .collect();
    for (value, to) in write(&mut p, &ids).into_iter().zip(&writes) {
        let value = p.cast(value, to.dtype);
        p.output(value);
    }
    let reads = reads.iter().map(|&r| r.clone()).collect();
    cx.fused(shape.to_vec(), 0, p, reads, writes.to_vec());
}

/// The mean over all axes but 1 of `write(reads)`, or the sum, as `[C]`.
fn per_channel(
    cx: &mut LowerCx<'_>,
    shape: &[usize],
    work: DType,
    mean: bool,
    reads: &[&View],
    write: impl FnOnce(&mut Program, &[ExprId]) -> ExprId,
) -> View {
    let reduced: Vec<bool> = (0..shape.len()).map(|a| a != 1).collect();
    let count: usize = shape.iter().zip(&reduced).map(|(&n, &r)| if r { n } else { 1 }).product();
    let to = cx.temp(work, &shape[1..2]);
    let reads: Vec<View> = reads.iter().map(|&r| r.clone()).collect();
    let scale = if mean { 1.0 / count as f64 } else { 1.0 };
    reduce(cx, shape, &reduced, ReduceOp::Sum, scale, &reads, to.clone(), |p, v| {
        let v: Vec<ExprId> = v.iter().map(|&v| p.cast(v, work)).collect();
        write(p, &v)
    });
    to
}

/// `1/√(var + ε)`.
fn inverse(p: &mut Program, variance: ExprId, epsilon: f32) -> ExprId {
    let epsilon = p.constant_like(epsilon as f64, variance);
    let sum = p.add(variance, epsilon);
    let deviation = p.unary(Unary::Sqrt, sum);
    p.unary(Unary::Reciprocal, deviation)
}

/// Says that output `o` is `view`, in the output's own dtype.
fn settle(cx: &mut LowerCx<'_>, o: usize, view: &View) -> Result<()> {
    if cx.has_output(o) {
        let (dtype, _) = cx.output_type(o)?;
        if dtype == view.dtype {
            cx.alias(o, view.clone());
        } else {
            let to = cx.output(o)?;
            cx.map(std::slice::from_ref(view), to, |p, v| p.cast(v[0], dtype));
        }
    }
    Ok(())
}

impl BatchNorm {
    /// Mean, variance and inverse deviation of the batch, `[C]` each; writes outputs 1 to 4.
    fn batch(&self, cx: &mut LowerCx<'_>, x: &View, work: DType) -> Result<(View, View)> {
        let mean = per_channel(cx, &x.shape, work, true, &[x], |_, v| v[0]);
        let center = along_channels(&mean, x.rank());
        let variance = per_channel(cx, &x.shape, work, true, &[x, &center], |p, v| {
            let centered = p.sub(v[0], v[1]);
            p.mul(centered, centered)
        });
        let inv = cx.temp(work, &mean.shape);
        program(cx, &mean.shape, work, &[&variance], [inv.clone()], |p, v| [inverse(p, v[0], self.epsilon)]);
        let momentum = self.momentum as f64;
        for (o, i, new) in [(1, 3, &mean), (2, 4, &variance)] {
            // Running statistics that are no graph input (a constant) have no place to be kept.
            let place = if self.in_place() { cx.input_mut(i).ok() } else { None };
            if place.is_none() && !cx.has_output(o) {
                continue;
            }
            let old = cx.input(i)?;
            let to = match place {
                Some(to) => {
                    cx.alias(o, to.clone());
                    to
                }
                None => cx.output(o)?,
            };
            program(cx, &mean.shape, work, &[&old, new], [to], |p, v| {
                let (kept, added) = (p.scale(v[0], momentum), p.scale(v[1], 1.0 - momentum));
                [p.add(kept, added)]
            });
        }
        settle(cx, 3, &mean)?;
        settle(cx, 4, if self.extra == Extra::Inverse { &inv } else { &variance })?;
        Ok((mean, inv))
    }

    /// Mean and inverse deviation as they were given; writes outputs 1 to 4.
    fn given(&self, cx: &mut LowerCx<'_>, work: DType) -> Result<(View, View)> {
        let (mean, variance) = (cx.input(3)?, cx.input(4)?);
        let inv = cx.temp(work, &mean.shape);
        program(cx, &mean.shape, work, &[&variance], [inv.clone()], |p, v| [inverse(p, v[0], self.epsilon)]);
        settle(cx, 1, &mean)?;
        settle(cx, 2, &variance)?;
        settle(cx, 3, &mean)?;
        settle(cx, 4, if self.extra == Extra::Inverse { &inv } else { &variance })?;
        Ok((mean, inv))
    }
}

impl Operator for BatchNorm {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        let [_, channels, ..] = shape.as_slice() else {
            bail!(Shape, "input 0 must be [N, C, …], found rank {}", shape.len());
        };
        let channels = vec![channels.clone()];
        for i in 1..5 {
            cx.float(i)?;
            cx.expect_shape(i, &channels)?;
        }
        let stats = cx.dtype(3)?;
        for o in 1..5 {
            cx.set(o, stats, channels.clone());
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if (1..5).any(|o| cx.dy_opt(o).is_some()) {
            return Err(cx.error("the loss depends on the statistics that it outputs"));
        }
        if !self.training {
            return self.gradient_given(cx);
        }
        let (dy, x, scale) = (cx.dy(0)?, cx.input(0)?, cx.input(1)?);
        let (mean, inv) = match self.extra {
            Extra::Inverse => (cx.output(3)?, cx.output(4)?),
            Extra::Variance => self.statistics(cx, x)?,
        };
        let inputs = [Some(dy), Some(x), Some(scale), Some(mean), Some(inv)];
        let d = cx.node(MS, "BatchNormalizationGrad", &inputs, &[("epsilon", Attribute::Float(self.epsilon))], 3)?;
        for i in (0..3).filter(|&i| cx.needs(i)).collect::<Vec<_>>() {
            let (d, input) = (d[i], cx.input(i)?);
            let d = cx.op_cast(d, input)?;
            cx.set(i, d);
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let work = wide(x.dtype);
        let (mean, inv) = if self.training { self.batch(cx, &x, work)? } else { self.given(cx, work)? };
        let (scale, bias, to) = (cx.input(1)?, cx.input(2)?, cx.output(0)?);
        let factor = cx.temp(work, &mean.shape);
        program(cx, &mean.shape, work, &[&inv, &scale], [factor.clone()], |p, v| [p.mul(v[0], v[1])]);
        let [mean, factor, bias] = [mean, factor, bias].map(|v| along_channels(&v, x.rank()));
        let shape = x.shape.clone();
        program(cx, &shape, work, &[&x, &mean, &factor, &bias], [to], |p, v| {
            let centered = p.sub(v[0], v[1]);
            let scaled = p.mul(centered, v[2]);
            [p.add(scaled, v[3])]
        });
        Ok(())
    }
}

impl BatchNorm {
    /// Nodes that compute mean and inverse deviation of the batch, for a node that does not output them.
    fn statistics(&self, cx: &mut GradCx<'_>, x: ValueId) -> Result<(ValueId, ValueId)> {
        let rank = cx.dims(x)?.len() as i64;
        let axes: Vec<i64> = (0..rank).filter(|&a| a != 1).collect();
        let inner: Vec<i64> = (1..rank - 1).collect();
        let mean = reduce_mean(cx, x, &axes, false)?;
        let center = if inner.is_empty() { mean } else { cx.unsqueeze(mean, &inner)? };
        let centered = cx.sub(x, center)?;
        let square = cx.mul(centered, centered)?;
        let variance = reduce_mean(cx, square, &axes, false)?;
        let inv = self.inverse(cx, variance)?;
        Ok((mean, inv))
    }

    fn inverse(&self, cx: &mut GradCx<'_>, variance: ValueId) -> Result<ValueId> {
        let epsilon = cx.scalar_like(variance, self.epsilon as f64)?;
        let sum = cx.add_(variance, epsilon)?;
        let deviation = cx.op("Sqrt", &[sum])?;
        cx.op("Reciprocal", &[deviation])
    }

    /// With fixed statistics, `n = (x - mean) inv`: `dx = dy scale inv`, `dscale = Σ dy n`, `dbias = Σ dy`,
    /// `dmean = -scale inv dbias`, `dvar = -inv² scale dscale / 2`.
    fn gradient_given(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (dy, x) = (cx.dy(0)?, cx.input(0)?);
        let rank = cx.dims(x)?.len() as i64;
        let axes: Vec<i64> = (0..rank).filter(|&a| a != 1).collect();
        let inner: Vec<i64> = (1..rank - 1).collect();
        let mut own = [x; 5];
        for i in 1..5 {
            let value = cx.input(i)?;
            own[i] = cx.op_cast(value, x)?;
        }
        let [_, scale, _, mean, variance] = own;
        let inv = self.inverse(cx, variance)?;
        let factor = cx.mul(scale, inv)?;
        let wide = |cx: &mut GradCx<'_>, v| if inner.is_empty() { Ok(v) } else { cx.unsqueeze(v, &inner) };
        let mut d = [None; 5];
        if cx.needs(0) {
            let factor = wide(cx, factor)?;
            d[0] = Some(cx.mul(dy, factor)?);
        }
        if cx.needs(2) || cx.needs(3) {
            let dbias = cx.reduce_sum(dy, &axes, false)?;
            let dmean = cx.mul(dbias, factor)?;
            (d[2], d[3]) = (Some(dbias), Some(cx.neg(dmean)?));
        }
        if cx.needs(1) || cx.needs(4) {
            let center = wide(cx, mean)?;
            let centered = cx.sub(x, center)?;
            let product = cx.mul(dy, centered)?;
            let sum = cx.reduce_sum(product, &axes, false)?;
            let dscale = cx.mul(sum, inv)?;
            d[1] = Some(dscale);
            if cx.needs(4) {
                let half = cx.scalar_like(inv, -0.5)?;
                let slope = cx.mul(inv, factor)?;
                let slope = cx.mul(slope, half)?;
                d[4] = Some(cx.mul(dscale, slope)?);
            }
        }
        for (i, d) in d.into_iter().enumerate() {
            if let Some(d) = d.filter(|_| cx.needs(i)) {
                let input = cx.input(i)?;
                let d = cx.op_cast(d, input)?;
                cx.set(i, d);
            }
        }
        Ok(())
    }
}

/// From `dy, x, scale`, and mean and inverse deviation of the batch, with `n = (x - mean) inv` and averages
/// over each channel: `dbias = Σ dy`, `dscale = Σ dy n`, `dx = scale inv (dy - avg(dy) - n avg(dy n))`.
#[derive(Debug)]
struct BatchNormGrad;

impl Operator for BatchNormGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape, stats) = (cx.float(1)?, cx.shape(1)?, cx.float(2)?);
        let [_, channels, ..] = shape.as_slice() else {
            bail!(Shape, "input 1 must be [N, C, …], found rank {}", shape.len());
        };
        let channels = vec![channels.clone()];
        cx.float(0)?;
        cx.expect_shape(0, &shape)?;
        for i in 2..5 {
            cx.float(i)?;
            cx.expect_shape(i, &channels)?;
        }
        cx.set(1, stats, channels.clone());
        cx.set(2, stats, channels);
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (dy, x, scale) = (cx.input(0)?, cx.input(1)?, cx.input(2)?);
        let (mean, inv) = (cx.input(3)?, cx.input(4)?);
        let (shape, rank, work) = (x.shape.clone(), x.rank(), wide(x.dtype));
        let count: usize = shape.iter().enumerate().map(|(a, &n)| if a == 1 { 1 } else { n }).product();
        let (center, inv_wide) = (along_channels(&mean, rank), along_channels(&inv, rank));
        let dbias = per_channel(cx, &shape, work, false, &[&dy], |_, v| v[0]);
        let dscale = per_channel(cx, &shape, work, false, &[&dy, &x, &center, &inv_wide], |p, v| {
            let centered = p.sub(v[1], v[2]);
            let normal = p.mul(centered, v[3]);
            p.mul(v[0], normal)
        });
        settle(cx, 1, &dscale)?;
        settle(cx, 2, &dbias)?;
        if !cx.has_output(0) {
            return Ok(());
        }
        // Per channel: scale inv, avg(dy), inv avg(dy n).
        let channels = mean.shape.clone();
        let [factor, offset, slope] = [(); 3].map(|()| cx.temp(work, &channels));
        let writes = [factor.clone(), offset.clone(), slope.clone()];
        program(cx, &channels, work, &[&scale, &inv, &dbias, &dscale], writes, |p, v| {
            let average = 1.0 / count as f64;
            let (factor, offset, slope) = (p.mul(v[0], v[1]), p.scale(v[2], average), p.scale(v[3], average));
            [factor, offset, p.mul(slope, v[1])]
        });
        let [factor, offset, slope] = [factor, offset, slope].map(|v| along_channels(&v, rank));
        let to = cx.output(0)?;
        program(cx, &shape, work, &[&dy, &x, &center, &factor, &offset, &slope], [to], |p, v| {
            let (centered, rest) = (p.sub(v[1], v[2]), p.sub(v[0], v[4]));
            let along = p.mul(centered, v[5]);
            let rest = p.sub(rest, along);
            [p.mul(v[3], rest)]
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::{Attribute, Graph, Node, TensorType};
    use crate::kernel::{RunContext, reference};
    use crate::ops::testing::Case;
    use crate::ops::{Facts, Lowering, Origin, infer_node, lower_node, resolve};
    use crate::tensor::Tensor;

    fn case(op: &'static str, shape: &[usize]) -> Case {
        let x = Case::op(op).random("x", shape, -2.0, 2.0).random("scale", &[3], 0.5, 1.5);
        x.random("bias", &[3], -1.0, 1.0)
    }

    fn frozen(case: Case) -> Case {
        case.random("mean", &[3], -1.0, 1.0).random("var", &[3], 0.5, 1.5)
    }

    fn constant(case: Case) -> Case {
        case.constant("mean", &[3], &[0.1, -0.2, 0.3]).constant("var", &[3], &[1.0, 2.0, 0.5])
    }

    #[test]
    fn gradients() {
        for shape in [&[4, 3][..], &[2, 3, 4], &[2, 3, 2, 3]] {
            frozen(case("BatchNormalization", shape)).check();
            frozen(case("BatchNormalization", shape)).opset(9).check();
            constant(case("BatchNormalization", shape)).int("training_mode", 1).check();
            constant(case("BatchNormalization", shape))
                .int("training_mode", 1)
                .opset(14)
                .attr("epsilon", Attribute::Float(0.2))
                .check();
            constant(case("BatchNormInternal", shape)).domain("com.microsoft").int("training_mode", 1).check();
            frozen(case("BatchNormInternal", shape)).domain("com.microsoft").check();
        }
    }

    fn small(op: &'static str) -> Case {
        let x = Case::op(op).input("x", &[2, 1, 2], &[1.0, 3.0, 3.0, 1.0]).constant("scale", &[1], &[2.0]).constant(
            "bias",
            &[1],
            &[0.5],
        );
        x.constant("mean", &[1], &[4.0]).constant("var", &[1], &[2.0]).attr("epsilon", Attribute::Float(3.0))
    }

    #[test]
    fn values() {
        // The batch has mean 2 and variance 1: 1/√(1 + 3) = 1/2.
        let momentum = |case: Case| case.attr("momentum", Attribute::Float(0.75));
        let out = momentum(small("BatchNormalization").int("training_mode", 1).outputs(3)).run();
        let values: Vec<_> = out.iter().map(Tensor::to_f64s).collect();
        assert_eq!(values, [vec![-0.5, 1.5, 1.5, -0.5], vec![3.5], vec![1.75]]);
        let old = momentum(small("BatchNormalization").opset(9).outputs(5)).run();
        let values: Vec<_> = old[1..].iter().map(|t| t.to_f64s()[0]).collect();
        assert_eq!(values, [3.5, 1.75, 2.0, 1.0]);
        let internal =
            momentum(small("BatchNormInternal").domain("com.microsoft").int("training_mode", 1).outputs(5)).run();
        let values: Vec<_> = internal[1..].iter().map(|t| t.to_f64s()[0]).collect();
        assert_eq!(values, [3.5, 1.75, 2.0, 0.5]);
        let r = 2.0 / 5.0f64.sqrt();
        small("BatchNormalization").gives(&[2, 1, 2], &[0.5 - 3.0 * r, 0.5 - r, 0.5 - r, 0.5 - 3.0 * r]);
    }

    /// BatchNormInternal writes the running statistics where they came from.
    #[test]
    fn running_statistics_in_place() {
        let mut graph = Graph::new("in place", 17);
        graph.opsets.insert("com.microsoft".into(), 1);
        let tensors = [
            Tensor::new(&[2, 1, 2], &[1.0f32, 3.0, 3.0, 1.0]).unwrap(),
            Tensor::new(&[1], &[2.0f32]).unwrap(),
            Tensor::new(&[1], &[0.5f32]).unwrap(),
            Tensor::new(&[1], &[4.0f32]).unwrap(),
            Tensor::new(&[1], &[2.0f32]).unwrap(),
        ];
        let names = ["x", "scale", "bias", "mean", "var"];
        let inputs: Vec<_> =
            names.iter().zip(&tensors).map(|(n, t)| graph.add_input(n, TensorType::of(t)).unwrap()).collect();
        let outputs: Vec<_> = (0..3).map(|o| graph.add_value(&format!("out{o}"), None).unwrap()).collect();
        let node = Node {
            name: "bn".into(),
            domain: "com.microsoft".into(),
            op_type: "BatchNormInternal".into(),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: outputs.iter().copied().map(Some).collect(),
            attributes: [
                ("training_mode".to_owned(), Attribute::Int(1)),
                ("momentum".to_owned(), Attribute::Float(0.75)),
            ]
            .into(),
        };
        let mut facts = Facts::of(&graph);
        let mut lowering = Lowering::default();
        for (&id, tensor) in inputs.iter().zip(&tensors) {
            lowering.add_input(id, tensor.dtype(), tensor.shape());
        }
        let op = resolve(&graph, &node).unwrap();
        infer_node(&graph, &node, &*op, &mut facts).unwrap();
        lower_node(&graph, &node, &*op, &mut facts, &mut lowering).unwrap();
        let mut memory = reference::HostBuffers::new();
        for info in &lowering.buffers {
            let tensor = match &info.origin {
                Origin::Input(id) => tensors[inputs.iter().position(|i| i == id).unwrap()].clone(),
                Origin::Constant(tensor) => (**tensor).clone(),
                Origin::Temp => Tensor::zeros(info.dtype, &[info.len]).unwrap(),
            };
            memory.add(&tensor);
        }
        for step in &lowering.steps {
            reference::run(step, &mut memory, &RunContext::default()).unwrap();
        }
        let mut read = |id| memory.read(&lowering.view(&facts, id).unwrap()).unwrap().to_f64s()[0];
        assert_eq!([inputs[3], inputs[4], outputs[1], outputs[2]].map(&mut read), [3.5, 1.75, 3.5, 1.75]);
    }

    #[test]
    fn errors() {
        assert!(small("BatchNormalization").opset(8).int("spatial", 0).fails().contains("spatial"));
        let two = Case::op("BatchNormalization").random("x", &[2, 2], 0.0, 1.0).random("s", &[3], 0.0, 1.0).random(
            "b",
            &[2],
            0.0,
            1.0,
        );
        assert!(
            two.random("m", &[2], 0.0, 1.0).random("v", &[2], 0.0, 1.0).fails().contains("input 1 has the wrong shape")
        );
    }
}
