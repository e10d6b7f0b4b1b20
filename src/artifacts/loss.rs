//! Losses, built in ONNX operators.

use crate::error::{Result, err};
use crate::graph::{Attribute, TensorType, ValueId};
use crate::ops::Builder;
use crate::tensor::{DType, Dim, Tensor};

/// How element losses become one number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// Their mean. For cross entropy with weights: the weighted mean.
    #[default]
    Mean,
    /// Their sum.
    Sum,
}

impl Reduction {
    fn name(self) -> &'static str {
        match self {
            Reduction::Mean => "mean",
            Reduction::Sum => "sum",
        }
    }
}

/// A loss made by the caller: gets a builder at the end of the forward graph and the model's outputs, and
/// gives the scalar loss. It may add graph inputs.
pub type Custom = Box<dyn Fn(&mut Builder<'_>, &[ValueId]) -> Result<ValueId>>;

/// The loss that a training model minimizes. It compares the model's first output with a new
/// graph input.
#[derive(Default)]
pub enum Loss {
    /// The model's first output is the loss already.
    #[default]
    None,
    /// mean((output - target)²). `target`: as the output.
    MSELoss(Reduction),
    /// mean(|output - target|). `target`: as the output.
    L1Loss(Reduction),
    /// Softmax cross entropy of scores `[N, C, d…]` and `labels` int64 `[N, d…]`.
    CrossEntropyLoss {
        /// How it is reduced.
        reduction: Reduction,
        /// A weight per class, `[C]` of the scores' dtype.
        weight: Option<Tensor>,
        /// A label that does not count.
        ignore_index: Option<i64>,
    },
    /// Binary cross entropy of logits `x` and `target` `t` in [0, 1], in the form that does not overflow:
    /// `max(x, 0) - x t + log(1 + exp(-|x|))`; with `pos_weight` p: `(1 - t) x + (1 + (p - 1) t) (log(1 + exp(-|x|)) + max(-x, 0))`
    /// (as torch.nn.BCEWithLogitsLoss).
    BCEWithLogitsLoss {
        /// How it is reduced.
        reduction: Reduction,
        /// A weight of positive targets, broadcast to the output.
        pos_weight: Option<Tensor>,
    },
    /// Anything else.
    Custom(Custom),
}

impl Loss {
    /// Cross entropy with ONNX Runtime's defaults.
    pub fn cross_entropy() -> Self {
        Loss::CrossEntropyLoss { reduction: Reduction::Mean, weight: None, ignore_index: None }
    }

    /// Stable binary cross entropy of logits with ONNX Runtime's defaults.
    pub fn bce_with_logits() -> Self {
        Loss::BCEWithLogitsLoss { reduction: Reduction::Mean, pos_weight: None }
    }

    /// Writes the loss; gives the scalar.
    pub(super) fn build(&self, b: &mut Builder<'_>, outputs: &[ValueId]) -> Result<ValueId> {
        let first =
            outputs.first().copied().ok_or_else(|| err!(Graph, "the model has no output to compute a loss from"));
        match self {
            Loss::None => first,
            Loss::Custom(build) => build(b, outputs),
            Loss::MSELoss(reduction) => {
                let x = first?;
                let target = like(b, x)?;
                let d = b.sub(x, target)?;
                let two = b.scalar_like(x, 2.0)?;
                let square = b.op("Pow", &[d, two])?;
                reduce(b, square, *reduction)
            }
            Loss::L1Loss(reduction) => {
                let x = first?;
                let target = like(b, x)?;
                let d = b.sub(x, target)?;
                let abs = b.op("Abs", &[d])?;
                reduce(b, abs, *reduction)
            }
            Loss::CrossEntropyLoss { reduction, weight, ignore_index } => {
                cross_entropy(b, first?, *reduction, weight.as_ref(), *ignore_index)
            }
            Loss::BCEWithLogitsLoss { reduction, pos_weight } => {
                bce_with_logits(b, first?, *reduction, pos_weight.as_ref())
            }
        }
    }
}

/// The graph input `target`, shaped as `x`; an input of that name that the model has already is taken.
fn like(b: &mut Builder<'_>, x: ValueId) -> Result<ValueId> {
    let ty = b.ty(x)?.clone();
    input(b, "target", ty)
}

fn input(b: &mut Builder<'_>, name: &str, ty: TensorType) -> Result<ValueId> {
    if let Some(id) = b.graph.find(name) {
        if b.graph.inputs.contains(&id) {
            return Ok(id);
        }
        return Err(err!(
            Graph,
            "the loss needs a graph input \"{name}\", but the model gives that name to another value"
        ));
    }
    b.facts.set_type(b.graph.add_input(name, ty.clone())?, ty);
    Ok(b.graph.find(name).expect("just added"))
}

fn reduce(b: &mut Builder<'_>, x: ValueId, reduction: Reduction) -> Result<ValueId> {
    let op = match reduction {
        Reduction::Mean => "ReduceMean",
        Reduction::Sum => "ReduceSum",
    };
    b.op_with(op, &[x], &[("keepdims", Attribute::Int(0))])
}

fn cross_entropy(
    b: &mut Builder<'_>,
    scores: ValueId,
    reduction: Reduction,
    weight: Option<&Tensor>,
    ignore: Option<i64>,
) -> Result<ValueId> {
    let dims = b.dims(scores)?;
    if dims.len() < 2 {
        let shown = b.ty(scores)?.to_string();
        return Err(err!(Shape, "CrossEntropyLoss needs scores [N, C, …]").expected("rank 2 or more").found(shown));
    }
    let mut label_dims: Vec<Dim> = dims.clone();
    let classes = label_dims.remove(1);
    let labels = input(b, "labels", TensorType::new(DType::I64, label_dims))?;
    let mut inputs = vec![Some(scores), Some(labels)];
    if let Some(weight) = weight {
        let want = TensorType::new(b.dtype(scores)?, vec![classes]);
        if !want.accepts(weight) {
            return Err(err!(Shape, "class weights of CrossEntropyLoss").expected(want).found(TensorType::of(weight)));
        }
        inputs.push(Some(b.tensor(weight.clone())));
    }
    let mut attributes = vec![("reduction", Attribute::String(reduction.name().into()))];
    if let Some(label) = ignore {
        attributes.push(("ignore_index", Attribute::Int(label)));
    }
    // The second output, log_prob, is what the gradient starts from.
    Ok(b.node("", "SoftmaxCrossEntropyLoss", &inputs, &attributes, 2)?[0])
}

fn bce_with_logits(
    b: &mut Builder<'_>,
    x: ValueId,
    reduction: Reduction,
    pos_weight: Option<&Tensor>,
) -> Result<ValueId> {
    let t = like(b, x)?;
    let abs = b.op("Abs", &[x])?;
    let minus = b.neg(abs)?;
    let small = b.op("Exp", &[minus])?;
    let one = b.scalar_like(x, 1.0)?;
    let sum = b.add_(small, one)?;
    let log = b.op("Log", &[sum])?;
    let loss = match pos_weight {
        None => {
            let relu = b.op("Relu", &[x])?;
            let xt = b.mul(x, t)?;
            let d = b.sub(relu, xt)?;
            b.add_(d, log)?
        }
        Some(p) => {
            let p = b.tensor(p.clone());
            let rest = b.sub(one, t)?;
            let a = b.mul(rest, x)?;
            let p1 = b.sub(p, one)?;
            let pt = b.mul(p1, t)?;
            let factor = b.add_(pt, one)?;
            let neg = b.neg(x)?;
            let relu = b.op("Relu", &[neg])?;
            let softplus = b.add_(log, relu)?;
            let c = b.mul(factor, softplus)?;
            b.add_(a, c)?
        }
    };
    reduce(b, loss, reduction)
}
