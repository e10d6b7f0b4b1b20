//! ONNX Runtime's optimizer operators, all in place: AdamWOptimizer, SGDOptimizerV2, InplaceClipGradNorm,
//! InPlaceAccumulatorV2.
//!
//! Sequences are expanded before (`passes::sequences`): AdamWOptimizer reads
//! `[lr, step, w…, g…, m…, v…, update_signal?]`, SGDOptimizerV2 `[lr, w…, g…, update_signal?]`, as many tensors in each
//! group as there are parameters. Tensors that are written must be graph inputs.

use super::reduce::{global_norm, wide};
use super::*;
use crate::error::{bail, err};
use crate::kernel::{Binary, ExprId, Program, Unary, View};
use crate::tensor::{DType, Dim, Tensor};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "AdamWOptimizer" [1] - => AdamW::parse,
    "SGDOptimizerV2" [1] - => |_| Ok(Sgd),
    "InplaceClipGradNorm" [1] - => ClipGradNorm::parse,
    "InPlaceAccumulatorV2" [1] - => |_| Ok(Accumulator),
};

/// Checks `[scalars…, groups × n tensors, update_signal?]` and sets the flag's type.
fn infer_optimizer(cx: &mut InferCx<'_>, scalars: usize, groups: usize) -> Result<()> {
    let tensors = cx.input_count().saturating_sub(scalars);
    let count = tensors / groups;
    if count == 0 || tensors % groups > 1 {
        return Err(err!(Graph, "the number of inputs is wrong")
            .expected(format!("{scalars} and {groups} for each parameter"))
            .found(cx.input_count()));
    }
    for i in (0..scalars).chain((tensors % groups == 1).then(|| cx.input_count() - 1)) {
        cx.one_element(i)?;
    }
    cx.float(0)?;
    for i in 0..count {
        let shape = cx.shape(scalars + i)?;
        for group in 0..groups {
            cx.float(scalars + group * count + i)?;
            cx.expect_shape(scalars + group * count + i, &shape)?;
        }
    }
    if (1..cx.output_count()).any(|o| cx.has_output(o)) {
        bail!(Unsupported, "outputs beside the flag: parameters are updated in place");
    }
    cx.set(0, DType::Bool, vec![Dim::Known(1)]);
    Ok(())
}

/// The `update_signal` of an optimizer, if it has one; writes output 0 to be it, or true.
fn signal(cx: &mut LowerCx<'_>, scalars: usize, groups: usize) -> Result<Option<View>> {
    cx.keep();
    if (cx.input_count() - scalars).is_multiple_of(groups) {
        cx.set_constant(0, Tensor::from_bools(&[1], &[true])?);
        return Ok(None);
    }
    let flag = cx.input(cx.input_count() - 1)?;
    let flag = cx.reshape(flag, &[1]);
    cx.alias(0, flag.clone());
    Ok(Some(flag))
}

/// A scalar input.
fn scalar(cx: &mut LowerCx<'_>, i: usize) -> Result<View> {
    let view = cx.input(i)?;
    Ok(cx.reshape(view, &[]))
}

/// One Fused kernel that updates `state` in place from itself, `other` tensors of its shape, and
/// scalars: `write` gets them all in the working dtype, in that order, and gives the new state.
/// Nothing changes where `signal` is false.
fn update<const N: usize>(
    cx: &mut LowerCx<'_>,
    state: [View; N],
    others: &[View],
    scalars: &[View],
    signal: Option<&View>,
    write: impl FnOnce(&mut Program, &[ExprId]) -> [ExprId; N],
) {
    let mut p = Program::new();
    let shape = state[0].shape.clone();
    let work = wide(state[0].dtype);
    let mut reads: Vec<View> = state.iter().chain(others).chain(scalars).cloned().collect();
    let ids: Vec<ExprId> = reads
        .iter()
        .enumerate()
        .map(|(k, r)| {
            let value = p.input(k, r.dtype);
            p.cast(value, work)
        })
        .collect();
    let new = write(&mut p, &ids);
    let signal = signal.map(|s| {
        reads.push(s.reshaped(&[]).unwrap_or_else(|| s.clone()));
        p.input(reads.len() - 1, s.dtype)
    });
    for (i, (new, to)) in new.into_iter().zip(&state).enumerate() {
        let new = match signal {
            Some(signal) => p.select(signal, new, ids[i]),
            None => new,
        };
        let new = p.cast(new, to.dtype);
        p.output(new);
    }
    cx.fused(shape, 0, p, reads, state.to_vec());
}

/// AdamW with bias correction `c1 = 1 - α^t`, `c2 = 1 - β^t` (1 without `correct_bias`):
/// `m = α m + (1-α) g`, `v = β v + (1-β) g²`, then
/// - `adam_mode` 0 (PyTorch): `w -= lr decay w`, `w -= lr/c1 m / (√(v/c2) + ε)`;
/// - `adam_mode` 1 (Hugging Face): `w -= lr √c2/c1 m / (√v + ε)`, `w -= lr decay w`.
///
/// `step` is t, counted from 1.
#[derive(Debug)]
struct AdamW {
    alpha: f32,
    beta: f32,
    epsilon: f32,
    weight_decay: f32,
    correct_bias: bool,
    decay_first: bool,
}

impl AdamW {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let decay_first = match spec.int("adam_mode", 0)? {
            0 => true,
            1 => false,
            other => return Err(err!(Unsupported, "attribute adam_mode").expected("0 or 1").found(other)),
        };
        Ok(Self {
            alpha: spec.float("alpha", 0.9)?,
            beta: spec.float("beta", 0.999)?,
            epsilon: spec.float("epsilon", 1e-8)?,
            weight_decay: spec.float("weight_decay", 1e-2)?,
            correct_bias: spec.flag("correct_bias", true)?,
            decay_first,
        })
    }

    /// Scalars of dtype `work`: the step size `lr/c1` or `lr √c2/c1`, `1/√c2` (mode 0), and `lr decay`; computed
    /// in f64.
    fn coefficients(&self, cx: &mut LowerCx<'_>, work: DType) -> Result<Vec<View>> {
        let reads = vec![scalar(cx, 0)?, scalar(cx, 1)?];
        let mut p = Program::new();
        let (lr, step) = (p.input(0, reads[0].dtype), p.input(1, reads[1].dtype));
        let (lr, step) = (p.cast(lr, DType::F64), p.cast(step, DType::F64));
        let one = p.constant(1.0, DType::F64);
        let mut correction = |rate: f32| {
            if !self.correct_bias {
                return one;
            }
            let rate = p.constant(rate as f64, DType::F64);
            let power = p.binary(Binary::Pow, rate, step);
            p.sub(one, power)
        };
        let (c1, c2) = (correction(self.alpha), correction(self.beta));
        let root = p.unary(Unary::Sqrt, c2);
        let rate = if self.decay_first { lr } else { p.mul(lr, root) };
        let size = p.div(rate, c1);
        let inverse = p.unary(Unary::Reciprocal, root);
        let decay = p.scale(lr, self.weight_decay as f64);
        let writes: Vec<View> = (0..3).map(|_| cx.temp(work, &[])).collect();
        for value in [size, inverse, decay] {
            let value = p.cast(value, work);
            p.output(value);
        }
        cx.fused(Vec::new(), 0, p, reads, writes.clone());
        Ok(writes)
    }

    /// The new `[w, m, v]` from `[w, m, v, g, size, inverse, decay]`.
    fn step(&self, p: &mut Program, x: &[ExprId]) -> [ExprId; 3] {
        let &[w, m, v, g, size, inverse, decay] = x else { unreachable!("seven operands are given") };
        let average = |p: &mut Program, rate: f32, old: ExprId, new: ExprId| {
            let (old, new) = (p.scale(old, rate as f64), p.scale(new, 1.0 - rate as f64));
            p.add(old, new)
        };
        let m = average(p, self.alpha, m, g);
        let square = p.mul(g, g);
        let v = average(p, self.beta, v, square);
        let decayed = |p: &mut Program, w: ExprId| {
            if self.weight_decay == 0.0 {
                return w;
            }
            let part = p.mul(decay, w);
            p.sub(w, part)
        };
        let w = if self.decay_first { decayed(p, w) } else { w };
        let mut root = p.unary(Unary::Sqrt, v);
        if self.decay_first && self.correct_bias {
            root = p.mul(root, inverse);
        }
        let epsilon = p.constant_like(self.epsilon as f64, root);
        let denominator = p.add(root, epsilon);
        let move_by = p.mul(size, m);
        let move_by = p.div(move_by, denominator);
        let w = p.sub(w, move_by);
        [if self.decay_first { w } else { decayed(p, w) }, m, v]
    }
}

impl Operator for AdamW {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.index(1)?;
        infer_optimizer(cx, 2, 4)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let count = (cx.input_count() - 2) / 4;
        let signal = signal(cx, 2, 4)?;
        // The scalars once per working dtype that occurs.
        let mut known: Vec<(DType, Vec<View>)> = Vec::new();
        for i in 0..count {
            let [w, g, m, v] = [0, 1, 2, 3].map(|group| 2 + group * count + i);
            let state = [cx.input_mut(w)?, cx.input_mut(m)?, cx.input_mut(v)?];
            let work = wide(state[0].dtype);
            let scalars = match known.iter().find(|(dtype, _)| *dtype == work) {
                Some((_, scalars)) => scalars.clone(),
                None => {
                    let scalars = self.coefficients(cx, work)?;
                    known.push((work, scalars.clone()));
                    scalars
                }
            };
            let g = cx.input(g)?;
            update(cx, state, &[g], &scalars, signal.as_ref(), |p, x| self.step(p, x));
        }
        Ok(())
    }
}

/// `w -= lr g`.
#[derive(Debug)]
struct Sgd;

impl Operator for Sgd {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        infer_optimizer(cx, 1, 2)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let count = (cx.input_count() - 1) / 2;
        let signal = signal(cx, 1, 2)?;
        let lr = scalar(cx, 0)?;
        for i in 0..count {
            let (w, g) = (cx.input_mut(1 + i)?, cx.input(1 + count + i)?);
            update(cx, [w], &[g], std::slice::from_ref(&lr), signal.as_ref(), |p, x| {
                let part = p.mul(x[2], x[1]);
                [p.sub(x[0], part)]
            });
        }
        Ok(())
    }
}

/// Scales all tensors so that the norm of all their elements together is at most `max_norm`:
/// `g *= min(max_norm / (norm + 1e-6), 1)`. The outputs are the inputs, updated.
#[derive(Debug)]
struct ClipGradNorm {
    max_norm: f32,
}

impl ClipGradNorm {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        spec.choice("norm_type", &[("fro", ())])?;
        Ok(Self { max_norm: spec.float("max_norm", 1.0)? })
    }
}

impl Operator for ClipGradNorm {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        if cx.input_count() == 0 || cx.output_count() > cx.input_count() {
            return Err(err!(Graph, "there must be one output for each gradient")
                .expected(cx.input_count())
                .found(cx.output_count()));
        }
        for i in 0..cx.input_count() {
            let (dtype, shape) = (cx.float(i)?, cx.shape(i)?);
            cx.set(i, dtype, shape);
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let views = (0..cx.input_count()).map(|i| cx.input_mut(i)).collect::<Result<Vec<_>>>()?;
        let norm = global_norm(cx, &views);
        let factor = cx.temp(norm.dtype, &[]);
        cx.map(&[norm], factor.clone(), |p, x| {
            let (most, small) = (p.constant_like(self.max_norm as f64, x[0]), p.constant_like(1e-6, x[0]));
            let (one, sum) = (p.constant_like(1.0, x[0]), p.add(x[0], small));
            let ratio = p.div(most, sum);
            p.binary(Binary::Min, ratio, one)
        });
        for (i, view) in views.into_iter().enumerate() {
            update(cx, [view.clone()], &[], std::slice::from_ref(&factor), None, |p, x| [p.mul(x[0], x[1])]);
            cx.alias(i, view);
        }
        Ok(())
    }
}

/// `buffer = overwrite_flag ? value : buffer + value`; without a flag, adds. Whatever the buffer held (NaN too)
/// is dropped by an overwrite. Outputs true, and the buffer.
#[derive(Debug)]
struct Accumulator;

impl Operator for Accumulator {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        cx.float(1)?;
        cx.expect_shape(1, &shape)?;
        if cx.has(2) {
            cx.one_element(2)?;
            if cx.dtype(2)? != DType::Bool {
                return Err(err!(Shape, "overwrite_flag must be bool").expected(DType::Bool).found(cx.dtype(2)?));
            }
        }
        cx.set(0, DType::Bool, vec![Dim::Known(1)]);
        cx.set(1, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (buffer, value) = (cx.input_mut(0)?, cx.input(1)?);
        let flag = if cx.has(2) { Some(scalar(cx, 2)?) } else { None };
        let reads: Vec<View> = [buffer.clone(), value].into_iter().chain(flag).collect();
        let (dtype, work) = (buffer.dtype, wide(buffer.dtype));
        cx.map(&reads, buffer.clone(), |p, x| {
            let (old, new) = (p.cast(x[0], work), p.cast(x[1], work));
            let sum = p.add(old, new);
            let result = match x.get(2) {
                Some(&flag) => p.select(flag, new, sum),
                None => sum,
            };
            p.cast(result, dtype)
        });
        cx.set_constant(0, Tensor::from_bools(&[1], &[true])?);
        cx.alias(1, buffer);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::error::Result;
    use crate::graph::{Attribute, Graph, Node, TensorType};
    use crate::kernel::{RunContext, reference};
    use crate::ops::{Facts, Lowering, Origin, infer_node, lower_node, resolve};
    use crate::tensor::{DType, Tensor};

    /// Runs one node on graph inputs in place; gives the inputs, and then the outputs, afterwards.
    fn run(op: &str, inputs: &[Tensor], outputs: usize, attributes: &[(&str, Attribute)]) -> Result<Vec<Tensor>> {
        let mut graph = Graph::new("in place", 17);
        graph.opsets.insert("com.microsoft".into(), 1);
        let ids: Vec<_> = inputs
            .iter()
            .enumerate()
            .map(|(i, t)| graph.add_input(&format!("in{i}"), TensorType::of(t)))
            .collect::<Result<_>>()?;
        let outs: Vec<_> = (0..outputs).map(|o| graph.add_value(&format!("out{o}"), None)).collect::<Result<_>>()?;
        let node = Node {
            name: "node".into(),
            domain: "com.microsoft".into(),
            op_type: op.into(),
            inputs: ids.iter().copied().map(Some).collect(),
            outputs: outs.iter().copied().map(Some).collect(),
            attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        };
        let (mut facts, mut lowering) = (Facts::of(&graph), Lowering::default());
        for (&id, tensor) in ids.iter().zip(inputs) {
            lowering.add_input(id, tensor.dtype(), tensor.shape());
        }
        let op = resolve(&graph, &node)?;
        infer_node(&graph, &node, &*op, &mut facts)?;
        lower_node(&graph, &node, &*op, &mut facts, &mut lowering)?;
        let views: Vec<_> = ids.iter().chain(&outs).map(|&id| lowering.view(&facts, id).unwrap()).collect();
        let mut memory = reference::HostBuffers::new();
        for info in &lowering.buffers {
            memory.add(&match &info.origin {
                Origin::Input(id) => inputs[ids.iter().position(|i| i == id).unwrap()].clone(),
                Origin::Constant(tensor) => (**tensor).clone(),
                Origin::Temp => Tensor::zeros(info.dtype, &[info.len])?,
            });
        }
        for step in &lowering.steps {
            reference::run(step, &mut memory, &RunContext::default())?;
        }
        views.iter().map(|view| memory.read(view)).collect()
    }

    fn floats(shape: &[usize], values: &[f32]) -> Tensor {
        Tensor::new(shape, values).unwrap()
    }

    fn near(got: &Tensor, want: &[f64]) {
        let got = got.to_f64s();
        assert_eq!(got.len(), want.len());
        for (g, w) in got.iter().zip(want) {
            assert!((g - w).abs() <= 1e-6 * w.abs().max(1e-3), "{got:?}, want {want:?}");
        }
    }

    fn flag(on: bool) -> Tensor {
        Tensor::from_bools(&[1], &[on]).unwrap()
    }

    /// AdamW written out for one element, after `t - 1` steps with moments `m`, `v`.
    fn adamw(mode: i64, correct: bool, decay: f64, t: i32, [w, g, m, v]: [f64; 4]) -> [f64; 3] {
        let (a, b, lr, eps) = (0.9f32 as f64, 0.999f32 as f64, 0.01f32 as f64, 1e-6f32 as f64);
        let (m, v) = (a * m + (1.0 - a) * g, b * v + (1.0 - b) * g * g);
        let (c1, c2) = if correct { (1.0 - a.powi(t), 1.0 - b.powi(t)) } else { (1.0, 1.0) };
        let w = match mode {
            0 => w - lr * decay * w - lr * m / (c1 * ((v / c2).sqrt() + eps)),
            _ => {
                let w = w - lr * c2.sqrt() / c1 * m / (v.sqrt() + eps);
                w - lr * decay * w
            }
        };
        [w, m, v]
    }

    #[test]
    fn adamw_in_place() {
        let state = [[1.0, 0.5, 0.1, 0.2], [-2.0, 1e-3, 0.0, 0.0], [0.3, -4.0, 0.7, 9.0]];
        for (mode, correct, decay, t) in
            [(0, true, 0.01, 1), (0, false, 0.01, 7), (1, true, 0.0, 1), (1, true, 0.25, 1000), (1, false, 0.25, 3)]
        {
            // Two parameters, [2] and a scalar, in each group.
            let mut inputs = vec![floats(&[1], &[0.01]), Tensor::ints(&[t])];
            for group in 0..4 {
                inputs.push(floats(&[2], &[state[0][group] as f32, state[1][group] as f32]));
                inputs.push(floats(&[], &[state[2][group] as f32]));
            }
            let attributes = [
                ("adam_mode", Attribute::Int(mode)),
                ("correct_bias", Attribute::Int(correct as i64)),
                ("weight_decay", Attribute::Float(decay as f32)),
                ("epsilon", Attribute::Float(1e-6)),
            ];
            let out = run("AdamWOptimizer", &inputs, 1, &attributes).unwrap();
            let decay = decay as f32 as f64;
            let want = state.map(|s| adamw(mode, correct, decay, t as i32, s.map(|x| x as f32 as f64)));
            // Groups w, m, v are inputs 2, 6, 8; gradients (4) stay.
            for (k, group) in [2, 6, 8].into_iter().enumerate() {
                near(&out[group], &[want[0][k], want[1][k]]);
                near(&out[group + 1], &[want[2][k]]);
            }
            assert_eq!(out[4], inputs[4]);
            assert_eq!(out.last(), Some(&flag(true)));
        }
    }

    #[test]
    fn sgd_in_place() {
        let mut inputs = vec![floats(&[1], &[0.5]), floats(&[2], &[1.0, 2.0]), floats(&[1, 1], &[3.0])];
        inputs.extend([floats(&[2], &[4.0, -2.0]), floats(&[1, 1], &[1.0])]);
        let out = run("SGDOptimizerV2", &inputs, 1, &[]).unwrap();
        assert_eq!((out[1].to_f64s(), out[2].to_f64s()), (vec![-1.0, 3.0], vec![2.5]));
        assert_eq!(out[5], flag(true));
        // update_signal
        for (on, want) in [(true, vec![-1.0, 3.0]), (false, vec![1.0, 2.0])] {
            inputs.truncate(5);
            inputs.push(flag(on));
            let out = run("SGDOptimizerV2", &inputs, 1, &[]).unwrap();
            assert_eq!((out[1].to_f64s(), &out[6]), (want, &flag(on)));
        }
    }

    #[test]
    fn clip_in_place() {
        let inputs = [floats(&[2], &[3.0, 0.0]), floats(&[1, 2], &[4.0, 12.0]), floats(&[0], &[])];
        let out = run("InplaceClipGradNorm", &inputs, 3, &[("max_norm", Attribute::Float(6.5))]).unwrap();
        near(&out[0], &[1.5, 0.0]);
        near(&out[1], &[2.0, 6.0]);
        assert_eq!(out[..3], out[3..]);
        let out = run("InplaceClipGradNorm", &inputs, 3, &[("max_norm", Attribute::Float(20.0))]).unwrap();
        assert_eq!(out[..3], inputs);
    }

    #[test]
    fn accumulate_in_place() {
        let value = floats(&[2], &[1.0, 2.0]);
        let sum = |buffer: [f32; 2], on| {
            let out = run("InPlaceAccumulatorV2", &[floats(&[2], &buffer), value.clone(), flag(on)], 2, &[]).unwrap();
            assert_eq!((&out[3], &out[4]), (&flag(true), &out[0]));
            out[0].to_f64s()
        };
        assert_eq!(sum([10.0, 20.0], false), [11.0, 22.0]);
        assert_eq!(sum([f32::NAN, f32::INFINITY], true), [1.0, 2.0]);
        let scalar = [floats(&[], &[1.0]), floats(&[], &[2.0]), flag(false)];
        assert_eq!(run("InPlaceAccumulatorV2", &scalar, 1, &[]).unwrap()[0].to_f64s(), [3.0]);
        let out = run("InPlaceAccumulatorV2", &[value.clone(), value.clone()], 1, &[]).unwrap();
        assert_eq!(out[0].to_f64s(), [2.0, 4.0]);
    }

    #[test]
    fn errors() {
        let fails = |op: &str, inputs: &[Tensor], attributes: &[_]| {
            format!("{:?}", run(op, inputs, 1, attributes).unwrap_err())
        };
        let (lr, w) = (floats(&[1], &[0.5]), floats(&[2], &[1.0, 2.0]));
        assert!(fails("SGDOptimizerV2", std::slice::from_ref(&lr), &[]).contains("number of inputs"));
        assert!(fails("SGDOptimizerV2", &[lr.clone(), w.clone(), lr.clone()], &[]).contains("wrong shape"));
        assert!(fails("SGDOptimizerV2", &[w.clone(), w.clone(), w.clone()], &[]).contains("one number"));
        assert!(
            fails("InplaceClipGradNorm", std::slice::from_ref(&w), &[("norm_type", Attribute::String("inf".into()))])
                .contains("fro")
        );
        let adam = [lr.clone(), Tensor::ints(&[1]), w.clone(), w.clone(), w.clone(), w.clone()];
        assert!(fails("AdamWOptimizer", &adam[..5], &[]).contains("number of inputs"));
        assert!(fails("AdamWOptimizer", &adam, &[("adam_mode", Attribute::Int(2))]).contains("0 or 1"));
        let int = Tensor::zeros(DType::I32, &[2]).unwrap();
        assert!(fails("InPlaceAccumulatorV2", &[int.clone(), int], &[]).contains("floating point"));
        // What is written must outlive the run.
        let case = crate::ops::testing::Case::op("InPlaceAccumulatorV2").domain("com.microsoft");
        assert!(
            case.constant("buffer", &[1], &[1.0])
                .constant("value", &[1], &[1.0])
                .fails()
                .contains("must be a graph input")
        );
    }
}
