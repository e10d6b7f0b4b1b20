//! Cross-entropy: SoftmaxCrossEntropyLoss, NegativeLogLikelihoodLoss and ONNX Runtime's forms of them.
//!
//! With `p` the log probabilities, `c` a label, `w[c]` its class weight (1 if there are none; 0 where the
//! label is `ignore_index`): each loss is `-w[c] p[c]`; `mean` divides their sum by that of the weights,
//! so that it is 0/0 = NaN if all labels are ignored.

use super::reduce::{reduce, wide};
use super::softmax::log_softmax;
use super::*;
use crate::error::{bail, err};
use crate::graph::{Attribute, ValueId};
use crate::kernel::{Binary, Check, ExprId, Kernel, Program, ReduceOp, Unary, View};
use crate::tensor::{DType, Dim};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "SoftmaxCrossEntropyLoss" [12, 13] d => |s| CrossEntropy::parse(s, Form::Softmax),
    "NegativeLogLikelihoodLoss" [12, 13, 22] d => |s| CrossEntropy::parse(s, Form::Likelihood),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "SoftmaxCrossEntropyLossInternal" [1] d => |s| CrossEntropy::parse(s, Form::Internal),
    "SoftmaxCrossEntropyLossGrad" [1] - => |s| Ok(CrossEntropyGrad(CrossEntropy::parse(s, Form::Softmax)?)),
    "SoftmaxCrossEntropyLossInternalGrad" [1] - => |s| Ok(CrossEntropyGrad(CrossEntropy::parse(s, Form::Internal)?)),
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduction {
    Mean,
    Sum,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Form {
    /// Scores in; loss and log probabilities out; `ignore_index` is an attribute.
    Softmax,
    /// The same with `ignore_index` as an input, constant, and `output_type` as an attribute.
    Internal,
    /// Log probabilities in.
    Likelihood,
}

/// The forward operators: scores or log probabilities `[N, C, …]`, labels `[N, …]`, class weights `[C]`?
/// to a loss (scalar, or `[N, …]` with reduction none) and log probabilities.
#[derive(Debug)]
struct CrossEntropy {
    form: Form,
    reduction: Reduction,
    ignore_index: Option<i64>,
    /// The results' dtype, if it is not that of the scores.
    output_type: Option<DType>,
}

impl CrossEntropy {
    fn parse(spec: &Spec<'_>, form: Form) -> Result<Self> {
        let reductions = [("mean", Reduction::Mean), ("sum", Reduction::Sum), ("none", Reduction::None)];
        let internal = form == Form::Internal;
        let output_type = if internal { spec.int_opt("output_type")?.filter(|&t| t != 0) } else { None };
        let output_type = match output_type.map(|t| DType::from_onnx(t as i32)).transpose()? {
            Some(dtype) if !dtype.is_float() => {
                return Err(err!(Graph, "attribute output_type").expected("a float dtype").found(dtype));
            }
            known => known,
        };
        Ok(Self {
            form,
            reduction: spec.choice("reduction", &reductions)?,
            ignore_index: if internal { None } else { spec.int_opt("ignore_index")? },
            output_type,
        })
    }

    /// Checks scores (input `i`), labels (`i + 1`) and weights; gives the shapes of the scores and of the labels.
    fn shapes(&self, cx: &InferCx<'_>, i: usize) -> Result<(Vec<Dim>, Vec<Dim>)> {
        cx.float(i)?;
        cx.index(i + 1)?;
        let scores = cx.shape(i)?;
        let [batch, classes, rest @ ..] = scores.as_slice() else {
            bail!(Shape, "input {i} must be [N, C, …], found rank {}", scores.len());
        };
        let labels: Vec<Dim> = std::iter::once(batch).chain(rest).cloned().collect();
        cx.expect_shape(i + 1, &labels)?;
        if cx.has(i + 2) {
            cx.float(i + 2)?;
            cx.expect_shape(i + 2, std::slice::from_ref(classes))?;
        }
        if self.form == Form::Internal && cx.has(i + 3) {
            cx.one_element(i + 3)?;
        }
        Ok((scores, labels))
    }

    /// The label that does not count: an attribute, or the constant input `i`.
    fn ignored(&self, cx: &LowerCx<'_>, i: usize) -> Result<Option<i64>> {
        if self.form != Form::Internal || !cx.has(i) {
            return Ok(self.ignore_index);
        }
        match cx.require_constant(i)?.to_i64s().as_deref() {
            Some([index]) => Ok(Some(*index)),
            _ => bail!(Shape, "ignore_index must be one integer"),
        }
    }
}

/// Operands in the iteration space `[N, …, C]`: classes last, so that they are a row.
struct Space {
    shape: Vec<usize>,
    /// The order of the axes of scores that gives it.
    order: Vec<usize>,
    /// `[N, …, 1]`.
    labels: View,
    /// `[C]`.
    weights: Option<View>,
    ignored: Option<i64>,
}

impl Space {
    /// For scores as input `i`, labels `i + 1`, weights `i + 2`, ignored label `i + 3`. Writes the
    /// check that labels are in range.
    fn new(cx: &mut LowerCx<'_>, op: &CrossEntropy, i: usize) -> Result<Self> {
        let scores = cx.shape(i)?;
        let order: Vec<usize> = (0..scores.len()).filter(|&a| a != 1).chain([1]).collect();
        let shape: Vec<usize> = order.iter().map(|&a| scores[a]).collect();
        let ignored = op.ignored(cx, i + 3)?;
        let labels = cx.input(i + 1)?;
        let check = Check { what: "label", low: 0, high: scores[1] as i64, ignore: ignored };
        cx.push(Kernel::Check(check), vec![labels.clone()], vec![]);
        cx.keep();
        let weights = cx.input_opt(i + 2)?;
        Ok(Self { labels: labels.unsqueezed(labels.rank()), shape, order, weights, ignored })
    }

    /// One value per label.
    fn per_label(&self) -> Vec<usize> {
        let mut shape = self.shape.clone();
        *shape.last_mut().expect("has the class axis") = 1;
        shape
    }

    fn label_count(&self) -> usize {
        self.per_label().iter().product()
    }

    /// Is this class the label? `label` is a read of the program.
    fn hit(&self, p: &mut Program, label: ExprId) -> (ExprId, ExprId) {
        let label = p.cast(label, DType::I64);
        let class = p.coordinate(self.shape.len() - 1);
        (p.binary(Binary::Equal, class, label), label)
    }

    /// `value`, or 0 where the label is ignored.
    fn counted(&self, p: &mut Program, label: ExprId, value: ExprId) -> ExprId {
        let Some(ignored) = self.ignored else { return value };
        let ignored = p.push(crate::kernel::Expr::Const(crate::kernel::Scalar::Int(ignored)), DType::I64);
        let is_ignored = p.binary(Binary::Equal, label, ignored);
        let zero = p.constant_like(0.0, value);
        p.select(is_ignored, zero, value)
    }

    /// `value` of the class that is the label, the same along the row.
    fn pick(&self, p: &mut Program, hit: ExprId, value: ExprId) -> ExprId {
        let zero = p.constant_like(0.0, value);
        let only = p.select(hit, value, zero);
        p.row(ReduceOp::Sum, only)
    }

    /// The weight of each label in a program that reads the weights as `weights`.
    fn weight(&self, p: &mut Program, hit: ExprId, label: ExprId, weights: Option<ExprId>, dtype: DType) -> ExprId {
        let weight = match weights {
            Some(w) => {
                let w = p.cast(w, dtype);
                self.pick(p, hit, w)
            }
            None => p.constant(1.0, dtype),
        };
        self.counted(p, label, weight)
    }

    /// The sum of the labels' weights as a scalar, unless it is just their number.
    fn total_weight(&self, cx: &mut LowerCx<'_>, dtype: DType) -> Option<View> {
        if self.weights.is_none() && self.ignored.is_none() {
            return None;
        }
        let per_label = self.per_label();
        let all = vec![true; per_label.len()];
        let total = cx.temp(dtype, &[]);
        let Some(weights) = &self.weights else {
            reduce(
                cx,
                &per_label,
                &all,
                ReduceOp::Sum,
                1.0,
                std::slice::from_ref(&self.labels),
                total.clone(),
                |p, x| {
                    let (label, one) = (p.cast(x[0], DType::I64), p.constant(1.0, dtype));
                    self.counted(p, label, one)
                },
            );
            return Some(total);
        };
        let each = cx.temp(dtype, &per_label);
        let mut p = Program::new();
        let (label, w) = (p.input(0, self.labels.dtype), p.input(1, weights.dtype));
        let (hit, label) = self.hit(&mut p, label);
        let weight = self.weight(&mut p, hit, label, Some(w), dtype);
        p.output(weight);
        cx.fused(self.shape.clone(), 1, p, vec![self.labels.clone(), weights.clone()], vec![each.clone()]);
        reduce(cx, &per_label, &all, ReduceOp::Sum, 1.0, &[each], total.clone(), |_, x| x[0]);
        Some(total)
    }
}

impl Operator for CrossEntropy {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (scores, labels) = self.shapes(cx, 0)?;
        let dtype = self.output_type.unwrap_or(cx.dtype(0)?);
        cx.set(0, dtype, if self.reduction == Reduction::None { labels } else { Vec::new() });
        if self.form != Form::Likelihood {
            cx.set(1, dtype, scores);
        }
        Ok(())
    }

    /// The gradient of the loss by ONNX Runtime's operator; that of the log probabilities, if they are
    /// used too, as LogSoftmax's.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if cx.needs(2) {
            return Err(cx.error("class weights have no gradient"));
        }
        let x = cx.input(0)?;
        let mut dx = None;
        if let Some(dy) = cx.dy_opt(0) {
            let log_prob = match self.form {
                // exp(-∞) = 0 leaves what NegativeLogLikelihoodLoss has: the labels' part.
                Form::Likelihood => {
                    let nothing = cx.scalar_like(x, f64::NEG_INFINITY)?;
                    cx.expand_like(nothing, x)?
                }
                _ => cx.output(1)?,
            };
            dx = Some(self.loss_gradient(cx, dy, log_prob)?);
        }
        if self.form != Form::Likelihood
            && let Some(dy) = cx.dy_opt(1)
        {
            let log_prob = cx.output(1)?;
            let d = cx.ms("LogSoftmaxGrad_13", &[dy, log_prob], &[("axis", Attribute::Int(1))])?;
            let d = cx.op_cast(d, x)?;
            dx = Some(match dx {
                Some(first) => cx.add_(first, d)?,
                None => d,
            });
        }
        if let Some(dx) = dx {
            cx.set(0, dx);
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let space = Space::new(cx, self, 0)?;
        let scores = cx.input(0)?.permuted(&space.order);
        let (dtype, work) = (cx.output_type(0)?.0, wide(scores.dtype));
        let mut p = Program::new();
        let mut reads = vec![scores.clone(), space.labels.clone()];
        reads.extend(space.weights.clone());
        let (x, label) = (p.input(0, scores.dtype), p.input(1, space.labels.dtype));
        let weights = space.weights.as_ref().map(|w| p.input(2, w.dtype));
        let x = p.cast(x, work);
        let log_prob = if self.form == Form::Likelihood { x } else { log_softmax(&mut p, x) };
        let (hit, label) = space.hit(&mut p, label);
        let picked = space.pick(&mut p, hit, log_prob);
        let mut loss = p.unary(Unary::Neg, picked);
        if weights.is_some() {
            let weight = space.weight(&mut p, hit, label, weights, work);
            loss = p.mul(loss, weight);
        }
        let loss = space.counted(&mut p, label, loss);

        let keep_each = self.reduction == Reduction::None && dtype == work;
        let each = if keep_each { cx.output(0)? } else { cx.temp(work, &space.per_label()) };
        let each = cx.reshape(each, &space.per_label());
        p.output(loss);
        let mut writes = vec![each.clone()];
        if cx.has_output(1) {
            let log_prob = p.cast(log_prob, dtype);
            p.output(log_prob);
            writes.push(cx.output(1)?.permuted(&space.order));
        }
        cx.fused(space.shape.clone(), 1, p, reads, writes);
        if !keep_each { self.reduce(cx, &space, each, dtype) } else { Ok(()) }
    }
}

impl CrossEntropy {
    fn loss_gradient(&self, cx: &mut GradCx<'_>, dy: ValueId, log_prob: ValueId) -> Result<ValueId> {
        let mut inputs = vec![Some(dy), Some(log_prob), Some(cx.input(1)?), cx.input_opt(2)];
        let word = match self.reduction {
            Reduction::Mean => "mean",
            Reduction::Sum => "sum",
            Reduction::None => "none",
        };
        let mut attributes = vec![("reduction", Attribute::String(word.into()))];
        attributes.extend(self.ignore_index.map(|i| ("ignore_index", Attribute::Int(i))));
        let mut op = "SoftmaxCrossEntropyLossGrad";
        if self.form == Form::Internal {
            op = "SoftmaxCrossEntropyLossInternalGrad";
            inputs.push(cx.input_opt(3));
            if self.output_type.is_some() {
                let x = cx.input(0)?;
                attributes.push(("output_type", Attribute::Int(cx.dtype(x)?.onnx() as i64)));
            }
        }
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        Ok(cx.node(MS, op, &inputs, &attributes, 1)?[0])
    }

    /// From the loss of each label to output 0.
    fn reduce(&self, cx: &mut LowerCx<'_>, space: &Space, each: View, dtype: DType) -> Result<()> {
        let to = cx.output(0)?;
        if self.reduction == Reduction::None {
            let to = cx.reshape(to, &each.shape);
            cx.map(&[each], to, |p, x| p.cast(x[0], dtype));
            return Ok(());
        }
        let shape = each.shape.clone();
        let all = vec![true; shape.len()];
        let work = each.dtype;
        let total = if self.reduction == Reduction::Mean { space.total_weight(cx, work) } else { None };
        let scale = match (self.reduction, &total) {
            (Reduction::Mean, None) => 1.0 / space.label_count() as f64,
            _ => 1.0,
        };
        let sum = if total.is_none() { to.clone() } else { cx.temp(work, &[]) };
        reduce(cx, &shape, &all, ReduceOp::Sum, scale, &[each], sum.clone(), |p, x| {
            if total.is_none() { p.cast(x[0], work) } else { x[0] }
        });
        if let Some(total) = total {
            cx.map(&[sum, total], to, |p, x| {
                let mean = p.div(x[0], x[1]);
                p.cast(mean, dtype)
            });
        }
        Ok(())
    }
}

/// `dx = dy w[c] (exp(p) - [class = c])`, divided by the sum of the weights if the loss was a mean; from
/// `dy`, log probabilities, labels, class weights?.
#[derive(Debug)]
struct CrossEntropyGrad(CrossEntropy);

impl Operator for CrossEntropyGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.float(0)?;
        let (scores, labels) = self.0.shapes(cx, 1)?;
        match self.0.reduction {
            Reduction::None => cx.expect_shape(0, &labels)?,
            _ => cx.one_element(0)?,
        }
        let most = if self.0.form == Form::Internal { 5 } else { 4 };
        if (most..cx.input_count()).any(|i| cx.has(i)) {
            bail!(Unsupported, "a bias (input {most})");
        }
        let dtype = self.0.output_type.unwrap_or(cx.dtype(1)?);
        cx.set(0, dtype, scores);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let space = Space::new(cx, &self.0, 1)?;
        let (dy, log_prob) = (cx.input(0)?, cx.input(1)?.permuted(&space.order));
        let to = cx.output(0)?.permuted(&space.order);
        let work = wide(log_prob.dtype);
        let mean = self.0.reduction == Reduction::Mean;
        let total = if mean { space.total_weight(cx, work) } else { None };
        let dy = match self.0.reduction {
            Reduction::None => dy.unsqueezed(dy.rank()),
            _ => cx.reshape(dy, &[]),
        };
        let mut p = Program::new();
        let mut reads = vec![dy.clone(), log_prob.clone(), space.labels.clone()];
        let (d, lp, label) = (p.input(0, dy.dtype), p.input(1, log_prob.dtype), p.input(2, space.labels.dtype));
        let mut read = |p: &mut Program, view: &View| {
            reads.push(view.clone());
            p.input(reads.len() - 1, view.dtype)
        };
        let weights = space.weights.as_ref().map(|w| read(&mut p, w));
        let total = total.map(|t| read(&mut p, &t));
        // The factor of the row.
        let mut factor = p.cast(d, work);
        let (hit, label) = space.hit(&mut p, label);
        if weights.is_some() {
            let weight = space.weight(&mut p, hit, label, weights, work);
            factor = p.mul(factor, weight);
        }
        factor = match total {
            Some(total) => p.div(factor, total),
            None if mean => p.scale(factor, 1.0 / space.label_count() as f64),
            None => factor,
        };
        let (lp, one) = (p.cast(lp, work), p.constant(1.0, work));
        let prob = p.unary(Unary::Exp, lp);
        let less = p.sub(prob, one);
        let difference = p.select(hit, less, prob);
        let dx = p.mul(difference, factor);
        let dx = space.counted(&mut p, label, dx);
        let dx = p.cast(dx, to.dtype);
        p.output(dx);
        let row_axes = p.has_row_reduce() as usize;
        cx.fused(space.shape.clone(), row_axes, p, reads, vec![to]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::graph::Attribute;
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    const WEIGHTS: [f64; 3] = [0.5, 2.0, 1.25];

    fn word(case: Case, reduction: &str) -> Case {
        case.attr("reduction", Attribute::String(reduction.into()))
    }

    /// Four labels of three classes, one of them -1.
    fn four(op: &'static str) -> Case {
        Case::op(op).random("x", &[4, 3], -2.0, 2.0).indices("labels", &[4], &[2, 0, -1, 1]).int("ignore_index", -1)
    }

    #[test]
    fn gradients() {
        for op in ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"] {
            for reduction in ["mean", "sum", "none"] {
                let plain = || Case::op(op).random("x", &[2, 3], -2.0, 2.0).indices("labels", &[2], &[2, 0]);
                word(plain(), reduction).check();
                word(plain().constant("w", &[3], &WEIGHTS), reduction).check();
                word(four(op), reduction).check();
                word(four(op).constant("w", &[3], &WEIGHTS), reduction).check();
                let deep = || Case::op(op).random("x", &[2, 3, 2], -2.0, 2.0).indices("labels", &[2, 2], &[2, 0, 1, 1]);
                word(deep().constant("w", &[3], &WEIGHTS).int("ignore_index", 0), reduction).check();
            }
        }
        // The log probabilities count too.
        four("SoftmaxCrossEntropyLoss").outputs(2).check();
        let internal = || {
            let case =
                Case::op("SoftmaxCrossEntropyLossInternal").domain("com.microsoft").random("x", &[2, 3], -2.0, 2.0);
            case.indices("labels", &[2], &[2, 0])
        };
        internal().outputs(2).check();
        internal().none().indices("ignored", &[], &[2]).check();
        internal().constant("w", &[3], &WEIGHTS).indices("ignored", &[], &[1]).check();
    }

    #[test]
    fn values() {
        // Both rows have probabilities 1/4, 1/4, 1/2.
        let two = 2.0f64.ln();
        let op =
            || Case::op("SoftmaxCrossEntropyLoss").input("x", &[2, 3], &[0.0, 0.0, two, 1000.0, 1000.0, 1000.0 + two]);
        let loss = || op().indices("labels", &[2], &[2, 0]);
        word(loss(), "none").gives(&[2], &[two, 2.0 * two]);
        word(loss(), "sum").gives(&[], &[3.0 * two]);
        loss().gives(&[], &[1.5 * two]);
        loss().constant("w", &[3], &[0.5, 1.0, 2.0]).gives(&[], &[(2.0 * two + two) / 2.5]);
        loss().int("ignore_index", 0).gives(&[], &[two]);
        let log_prob = &loss().outputs(2).run()[1];
        for (got, want) in log_prob.to_f64s().iter().zip([-2.0, -2.0, -1.0, -2.0, -2.0, -1.0]) {
            assert!((got - want * two).abs() < 1e-9);
        }
        let ignored = op().indices("labels", &[2], &[-1, -1]).int("ignore_index", -1);
        assert!(ignored.run()[0].to_f64s()[0].is_nan());
        // A logit of -∞ elsewhere, and nonsense under an ignored label, do not matter.
        let x = [f64::NEG_INFINITY, 0.0, f64::NAN, f64::NAN];
        Case::op("SoftmaxCrossEntropyLoss")
            .input("x", &[2, 2], &x)
            .indices("labels", &[2], &[1, -7])
            .int("ignore_index", -7)
            .gives(&[], &[0.0]);
    }

    #[test]
    fn half_precision() {
        let x = Tensor::from_f64s(DType::F16, &[2, 2], &[0.0, 0.0, 30.0, -30.0]).unwrap();
        let labels = Tensor::new(&[2], &[0i32, 1]).unwrap();
        let loss =
            Case::op("SoftmaxCrossEntropyLoss").tensor("x", x, false).tensor("labels", labels, false).outputs(2).run();
        assert_eq!(loss[0].dtype(), DType::F16);
        assert!((loss[0].to_f64s()[0] - (2.0f64.ln() + 60.0) / 2.0).abs() < 0.02);
        assert_eq!(loss[1].to_f64s()[3], -60.0);
    }

    #[test]
    fn gradient_of_ignored_labels_is_zero() {
        let grad = Case::op("SoftmaxCrossEntropyLossGrad").domain("com.microsoft").constant("dy", &[], &[1.0]);
        let grad = grad.constant("p", &[1, 2], &[-0.1, -0.2]).indices("labels", &[1], &[-1]).int("ignore_index", -1);
        grad.gives(&[1, 2], &[0.0, 0.0]);
    }

    #[test]
    fn errors() {
        let labels = |shape: &[usize], l: &[i64]| {
            Case::op("SoftmaxCrossEntropyLoss").random("x", &[2, 3], 0.0, 1.0).indices("labels", shape, l)
        };
        for (bad, label) in [([0, 3], "label 3"), ([-1, 0], "label -1")] {
            let message = labels(&[2], &bad).fails();
            assert!(message.contains(label) && message.contains("0 to 2"), "{message}");
        }
        assert!(labels(&[2], &[-1, 4]).int("ignore_index", -1).fails().contains("label 4"));
        assert!(labels(&[1], &[0]).fails().contains("wrong shape"));
        assert!(labels(&[2], &[0, 1]).constant("w", &[2], &[1.0, 1.0]).fails().contains("wrong shape"));
        assert!(word(labels(&[2], &[0, 1]), "median").fails().contains("mean or sum or none"));
        let floats =
            Case::op("SoftmaxCrossEntropyLoss").random("x", &[2, 3], 0.0, 1.0).constant("labels", &[2], &[0.0, 1.0]);
        assert!(floats.fails().contains("int32 or int64"));
    }
}
