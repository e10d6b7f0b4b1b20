//! The losses of torch.nn.functional as trace.json names them: ontrain's own where it has them, else written in
//! ONNX operators.

use anyhow::{Context, Result, bail, ensure};
use ontrain::artifacts::{Custom, Loss, Reduction};
use ontrain::error::err;
use ontrain::graph::{Attribute, TensorType, ValueId};
use ontrain::ops::Builder;
use ontrain::tensor::{DType, Dim, Tensor};
use serde_json::Value;

use super::data::{number, numbers};

type Built = ontrain::error::Result<ValueId>;

/// The loss `{type, options, logits_layout}` for targets such as `target`. It adds the graph input `labels` (int64) or
/// `target`.
pub(super) fn loss(spec: &Value, target: &Tensor) -> Result<Loss> {
    let mut options = Options::read(spec)?;
    let kind = spec["type"].as_str().context("loss.type")?;
    let loss = match kind {
        "mse" => Loss::MSELoss(options.reduction()?),
        "l1" => Loss::L1Loss(options.reduction()?),
        "smooth_l1" => regression(options.huber("beta", true)?),
        "huber" => regression(options.huber("delta", false)?),
        "bce" => options.bce()?,
        "bce_with_logits" => {
            let pos_weight = options.vector("pos_weight")?;
            Loss::BCEWithLogitsLoss { reduction: options.reduction()?, pos_weight }
        }
        "kl_div" => options.kl_div()?,
        "cross_entropy" | "nll" => options.classification(kind == "nll", target)?,
        other => bail!("a loss of type {other}"),
    };
    options.finish()?;
    Ok(loss)
}

/// The options of a loss; each is to be taken.
struct Options {
    values: serde_json::Map<String, Value>,
    layout: String,
}

impl Options {
    fn read(spec: &Value) -> Result<Self> {
        let values = spec["options"].as_object().cloned().unwrap_or_default();
        Ok(Self { values, layout: spec["logits_layout"].as_str().unwrap_or("NC").to_owned() })
    }

    /// Fails if an option was not taken: the loss would be another.
    fn finish(&self) -> Result<()> {
        let rest: Vec<_> = self.values.iter().filter(|(_, v)| !v.is_null()).map(|(k, _)| k.as_str()).collect();
        ensure!(rest.is_empty(), "loss options that are not known: {}", rest.join(", "));
        Ok(())
    }

    fn number(&mut self, name: &str) -> Result<Option<f64>> {
        match self.values.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => Ok(Some(number(&value).with_context(|| format!("loss option {name}"))?)),
        }
    }

    fn vector(&mut self, name: &str) -> Result<Option<Tensor>> {
        match self.values.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let values: Vec<f32> = numbers(&value)?.into_iter().map(|x| x as f32).collect();
                Ok(Some(Tensor::new(&[values.len()], &values)?))
            }
        }
    }

    fn reduction(&mut self) -> Result<Reduction> {
        match self.values.remove("reduction") {
            None => Ok(Reduction::Mean),
            Some(value) => match value.as_str() {
                Some("mean") => Ok(Reduction::Mean),
                Some("sum") => Ok(Reduction::Sum),
                _ => bail!("a loss with reduction {value}"),
            },
        }
    }

    /// Quadratic below `beta`, linear above; divided by `beta` or not.
    fn huber(&mut self, name: &str, divided: bool) -> Result<(Reduction, Element)> {
        let (reduction, beta) = (self.reduction()?, self.number(name)?.unwrap_or(1.0));
        ensure!(beta > 0.0, "{name} is {beta}");
        let scale = if divided { 1.0 } else { beta };
        let element: Element = Box::new(move |b, x, t| {
            let difference = b.sub(x, t)?;
            let distance = b.op("Abs", &[difference])?;
            let beta_ = b.scalar_like(x, beta)?;
            let below = b.op("Less", &[distance, beta_])?;
            let square = b.mul(difference, difference)?;
            let half = b.scalar_like(x, 0.5 * scale / beta)?;
            let quadratic = b.mul(square, half)?;
            let offset = b.scalar_like(x, 0.5 * beta)?;
            let linear = b.sub(distance, offset)?;
            let scale = b.scalar_like(x, scale)?;
            let linear = b.mul(linear, scale)?;
            b.op("Where", &[below, quadratic, linear])
        });
        Ok((reduction, element))
    }

    /// Binary cross entropy of probabilities; logarithms do not go below -100.
    fn bce(&mut self) -> Result<Loss> {
        Ok(regression((
            self.reduction()?,
            Box::new(|b, x, t| {
                let one = b.scalar_like(x, 1.0)?;
                let (not_x, not_t) = (b.sub(one, x)?, b.sub(one, t)?);
                let floor = b.scalar_like(x, -100.0)?;
                let mut term = |p, t| -> Built {
                    let log = b.op("Log", &[p])?;
                    let log = b.op("Max", &[log, floor])?;
                    b.mul(t, log)
                };
                let (yes, no) = (term(x, t)?, term(not_x, not_t)?);
                let sum = b.add_(yes, no)?;
                b.neg(sum)
            }),
        )))
    }

    /// `t (log t - x)` of log-probabilities x.
    fn kl_div(&mut self) -> Result<Loss> {
        let log_target = self.values.remove("log_target").is_some_and(|v| v == true);
        let by_batch = self.values.get("reduction").is_some_and(|v| v == "batchmean");
        let reduction = if by_batch {
            self.values.remove("reduction");
            Reduction::Sum
        } else {
            self.reduction()?
        };
        let element: Element = Box::new(move |b, x, t| {
            if log_target {
                let (p, d) = (b.op("Exp", &[t])?, b.sub(t, x)?);
                return b.mul(p, d);
            }
            let (zero, tiny) = (b.scalar_like(x, 0.0)?, b.scalar_like(x, f32::MIN_POSITIVE as f64)?);
            let positive = b.op("Greater", &[t, zero])?;
            let kept = b.op("Max", &[t, tiny])?;
            let log = b.op("Log", &[kept])?;
            let entropy = b.mul(t, log)?;
            let entropy = b.op("Where", &[positive, entropy, zero])?;
            let cross = b.mul(t, x)?;
            b.sub(entropy, cross)
        });
        Ok(custom(move |b, x| {
            let t = target(b, x)?;
            let each = element(b, x, t)?;
            let total = reduced(b, each, reduction)?;
            if !by_batch {
                return Ok(total);
            }
            let batch = axis_size(b, x, 0)?;
            b.div(total, batch)
        }))
    }

    fn classification(&mut self, log_probabilities: bool, target: &Tensor) -> Result<Loss> {
        let (reduction, weight) = (self.reduction()?, self.vector("weight")?);
        let ignore_index = self.number("ignore_index")?.map(|x| x as i64);
        let smoothing = self.number("label_smoothing")?.unwrap_or(0.0);
        let soft = target.dtype().is_float();
        let last = match self.layout.as_str() {
            "NC" | "NCd" => false,
            "NTC" => true,
            other => bail!("a logits layout {other}"),
        };
        if !log_probabilities && !soft && smoothing == 0.0 && !last {
            return Ok(Loss::CrossEntropyLoss { reduction, weight, ignore_index });
        }
        let how = Classification { log_probabilities, soft, last, smoothing, reduction, weight, ignore_index };
        Ok(custom(move |b, x| how.build(b, x)))
    }
}

/// The loss of each element, from output and target.
type Element = Box<dyn Fn(&mut Builder<'_>, ValueId, ValueId) -> Built>;

fn custom(build: impl Fn(&mut Builder<'_>, ValueId) -> Built + 'static) -> Loss {
    let build: Custom = Box::new(move |b, outputs| match outputs.first() {
        Some(&x) => build(b, x),
        None => Err(err!(Graph, "the model has no output to compute a loss from")),
    });
    Loss::Custom(build)
}

fn regression((reduction, element): (Reduction, Element)) -> Loss {
    custom(move |b, x| {
        let t = target(b, x)?;
        let each = element(b, x, t)?;
        reduced(b, each, reduction)
    })
}

fn reduced(b: &mut Builder<'_>, x: ValueId, reduction: Reduction) -> Built {
    let op = match reduction {
        Reduction::Mean => "ReduceMean",
        Reduction::Sum => "ReduceSum",
    };
    b.op_with(op, &[x], &[("keepdims", Attribute::Int(0))])
}

/// The graph input `target`, shaped as `x`.
fn target(b: &mut Builder<'_>, x: ValueId) -> Built {
    let ty = b.ty(x)?.clone();
    input(b, "target", ty)
}

fn input(b: &mut Builder<'_>, name: &str, ty: TensorType) -> Built {
    let id = b.graph.add_input(name, ty.clone())?;
    b.facts.set_type(id, ty);
    Ok(id)
}

/// The size of an axis, as a number of the dtype of `x`.
fn axis_size(b: &mut Builder<'_>, x: ValueId, axis: i64) -> Built {
    let (shape, at) = (b.op("Shape", &[x])?, b.tensor(Tensor::scalar(axis)));
    let size = b.op("Gather", &[shape, at])?;
    b.op_cast(size, x)
}

/// A classification loss that ontrain has no name for.
struct Classification {
    /// Outputs are log-probabilities already.
    log_probabilities: bool,
    /// Targets are probabilities.
    soft: bool,
    /// Classes are the last axis, else axis 1.
    last: bool,
    smoothing: f64,
    reduction: Reduction,
    weight: Option<Tensor>,
    ignore_index: Option<i64>,
}

impl Classification {
    fn build(&self, b: &mut Builder<'_>, x: ValueId) -> Built {
        let dims = b.dims(x)?;
        let axis = if self.last { dims.len() - 1 } else { 1.min(dims.len() - 1) };
        if !self.log_probabilities && !self.soft && self.smoothing == 0.0 {
            return self.softmax_cross_entropy(b, x, &dims);
        }
        let log_p = match self.log_probabilities {
            true => x,
            false => b.op_with("LogSoftmax", &[x], &[("axis", Attribute::Int(axis as i64))])?,
        };
        let Some(classes) = dims[axis].known() else {
            return Err(err!(Shape, "the number of classes is not known").found(b.ty(x)?.to_string()));
        };
        let mut along = vec![1; dims.len()];
        along[axis] = classes;
        let weight = self.weight.clone().map(|w| w.reshaped(&along)).transpose()?.map(|w| b.tensor(w));
        let (truth, normalizer) = if self.soft {
            (target(b, x)?, None)
        } else {
            let truth = self.one_hot(b, x, dims.clone(), axis, classes)?;
            let weighted = weight.map_or(Ok(truth), |w| b.mul(truth, w))?;
            (truth, Some(b.op_with("ReduceSum", &[weighted], &[("keepdims", Attribute::Int(0))])?))
        };
        let truth = self.smooth(b, truth, axis, classes)?;
        let truth = weight.map_or(Ok(truth), |w| b.mul(truth, w))?;
        let each = b.mul(truth, log_p)?;
        let total = b.op_with("ReduceSum", &[each], &[("keepdims", Attribute::Int(0))])?;
        let total = b.neg(total)?;
        match (self.reduction, normalizer) {
            (Reduction::Sum, _) => Ok(total),
            (Reduction::Mean, Some(normalizer)) => b.div(total, normalizer),
            (Reduction::Mean, None) => {
                let all = b.op("Size", &[x])?;
                let all = b.op_cast(all, x)?;
                let classes = b.scalar_like(x, classes as f64)?;
                let samples = b.div(all, classes)?;
                b.div(total, samples)
            }
        }
    }

    /// Classes moved to axis 1, then the operator.
    fn softmax_cross_entropy(&self, b: &mut Builder<'_>, x: ValueId, dims: &[Dim]) -> Built {
        let rank = dims.len() as i64;
        let order: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        let x = b.op_with("Transpose", &[x], &[("perm", Attribute::Ints(order))])?;
        let labels = input(b, "labels", TensorType::new(DType::I64, dims[..dims.len() - 1].to_vec()))?;
        let mut inputs = vec![Some(x), Some(labels)];
        if let Some(weight) = &self.weight {
            inputs.push(Some(b.tensor(weight.clone())));
        }
        let reduction = if self.reduction == Reduction::Mean { "mean" } else { "sum" };
        let mut attributes = vec![("reduction", Attribute::String(reduction.into()))];
        if let Some(index) = self.ignore_index {
            attributes.push(("ignore_index", Attribute::Int(index)));
        }
        Ok(b.node("", "SoftmaxCrossEntropyLoss", &inputs, &attributes, 2)?[0])
    }

    /// 1 at the label, 0 elsewhere; nothing but 0 where the label is to be ignored.
    fn one_hot(&self, b: &mut Builder<'_>, x: ValueId, mut dims: Vec<Dim>, axis: usize, classes: usize) -> Built {
        dims.remove(axis);
        let mut along = vec![1; dims.len() + 1];
        along[axis] = classes;
        let labels = input(b, "labels", TensorType::new(DType::I64, dims))?;
        let labels = b.unsqueeze(labels, &[axis as i64])?;
        // A class that is to be ignored equals no label.
        let ids: Vec<i64> =
            (0..classes as i64).map(|c| if Some(c) == self.ignore_index { i64::MIN } else { c }).collect();
        let ids = b.tensor(Tensor::new(&along, &ids)?);
        let hit = b.op("Equal", &[labels, ids])?;
        b.op_cast(hit, x)
    }

    /// `(1 - s) truth + s / classes`, for samples that count.
    fn smooth(&self, b: &mut Builder<'_>, truth: ValueId, axis: usize, classes: usize) -> Built {
        if self.smoothing == 0.0 {
            return Ok(truth);
        }
        let counts = b.reduce_sum(truth, &[axis as i64], true)?;
        let (keep, share) =
            (b.scalar_like(truth, 1.0 - self.smoothing)?, b.scalar_like(truth, self.smoothing / classes as f64)?);
        let (hard, even) = (b.mul(truth, keep)?, b.mul(counts, share)?);
        b.add_(hard, even)
    }
}
