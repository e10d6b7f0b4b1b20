//! Optimizer models: one node over sequences, as ONNX Runtime has them.

use crate::error::{Result, bail};
use crate::graph::{Attribute, Attributes, Graph, Node, TensorType, ValueId, ValueType};
use crate::ops::MS;
use crate::tensor::{DType, Dim};

/// The optimizer of a training.
#[derive(Clone, Debug, PartialEq)]
pub enum Optimizer {
    /// AdamW in Hugging Face's form (ORT's `adam_mode` 1), with m and v the moments after this step's update, t the number of
    /// this step: `p -= lr √(1-β₂ᵗ)/(1-β₁ᵗ) m/(√v + ε)`, then `p -= lr λ p`.
    AdamW {
        /// β₁ and β₂. Default 0.9 and 0.999.
        betas: (f32, f32),
        /// ε. Default 1e-6.
        eps: f32,
        /// λ. Default 0.
        weight_decay: f32,
        /// Correct the bias of the moments? Default true. Without: `p -= lr m/(√v + ε)`.
        bias_correction: bool,
        /// Scale all gradients down together if their joint L2 norm is above this.
        clip_grad_norm: Option<f32>,
    },
    /// `p -= lr g`.
    SGD {
        /// As for AdamW.
        clip_grad_norm: Option<f32>,
    },
}

impl Optimizer {
    /// AdamW with ONNX Runtime's defaults.
    pub fn adamw() -> Self {
        Optimizer::AdamW {
            betas: (0.9, 0.999),
            eps: 1e-6,
            weight_decay: 0.0,
            bias_correction: true,
            clip_grad_norm: None,
        }
    }

    /// Plain gradient descent.
    pub fn sgd() -> Self {
        Optimizer::SGD { clip_grad_norm: None }
    }

    /// The optimizer model's graph. `Graph` error for values outside their ranges.
    pub(super) fn graph(&self, opset: i64) -> Result<Graph> {
        self.check()?;
        let mut graph = Graph::new("optimizer", opset);
        graph.ir_version = 10;
        graph.opsets.insert(MS.into(), 1);
        let one = || vec![Dim::Known(1)];
        let lr = graph.add_input("learning_rate", TensorType::new(DType::F32, one()))?;
        let step = graph.add_input("step", TensorType::new(DType::I64, one()))?;
        let mut sequences = ["params", "gradients", "first_order_moments", "second_order_moments"].as_slice();
        if matches!(self, Optimizer::SGD { .. }) {
            sequences = &sequences[..3]; // ORT lists the first moments and does not use them
        }
        let mut ids = Vec::new();
        for name in sequences {
            let id = graph.add_value(name, Some(ValueType::Sequence(DType::F32)))?;
            graph.inputs.push(id);
            ids.push(id);
        }
        let (Optimizer::AdamW { clip_grad_norm, .. } | Optimizer::SGD { clip_grad_norm }) = self;
        if let Some(max_norm) = clip_grad_norm {
            let clipped = graph.add_value("clipped_gradients", Some(ValueType::Sequence(DType::F32)))?;
            let attributes = [("max_norm".to_owned(), Attribute::Float(*max_norm))].into();
            graph.nodes.push(node("InplaceClipGradNorm", vec![ids[1]], clipped, attributes));
            ids[1] = clipped;
        }
        let flag = graph.add_value("updated_flag", Some(ValueType::Tensor(TensorType::new(DType::Bool, one()))))?;
        graph.outputs.push(flag);
        match self {
            Optimizer::AdamW { betas, eps, weight_decay, bias_correction, .. } => {
                let attributes = [
                    ("alpha", Attribute::Float(betas.0)),
                    ("beta", Attribute::Float(betas.1)),
                    ("epsilon", Attribute::Float(*eps)),
                    ("weight_decay", Attribute::Float(*weight_decay)),
                    ("correct_bias", Attribute::Int(*bias_correction as i64)),
                    ("adam_mode", Attribute::Int(1)),
                ];
                let attributes = attributes.map(|(k, v)| (k.to_owned(), v)).into();
                graph.nodes.push(node(
                    "AdamWOptimizer",
                    vec![lr, step, ids[0], ids[1], ids[2], ids[3]],
                    flag,
                    attributes,
                ));
            }
            Optimizer::SGD { .. } => {
                graph.nodes.push(node("SGDOptimizerV2", vec![lr, ids[0], ids[1]], flag, Attributes::new()));
            }
        }
        Ok(graph)
    }

    fn check(&self) -> Result<()> {
        if let Optimizer::AdamW { betas, eps, weight_decay, .. } = self {
            let unit = |b: f32| (0.0..1.0).contains(&b);
            if !unit(betas.0) || !unit(betas.1) {
                bail!(Graph, "AdamW's betas must lie in [0, 1), found {betas:?}");
            }
            if !(*eps >= 0.0 && eps.is_finite() && *weight_decay >= 0.0 && weight_decay.is_finite()) {
                bail!(
                    Graph,
                    "AdamW's eps and weight_decay must be finite and not negative, found {eps} and {weight_decay}"
                );
            }
        }
        let (Optimizer::AdamW { clip_grad_norm, .. } | Optimizer::SGD { clip_grad_norm }) = self;
        if clip_grad_norm.is_some_and(|norm| norm.is_nan() || norm <= 0.0) {
            bail!(Graph, "clip_grad_norm must be positive, found {clip_grad_norm:?}");
        }
        Ok(())
    }
}

fn node(op_type: &str, inputs: Vec<ValueId>, output: ValueId, attributes: Attributes) -> Node {
    Node {
        name: op_type.into(),
        domain: MS.into(),
        op_type: op_type.into(),
        inputs: inputs.into_iter().map(Some).collect(),
        outputs: vec![Some(output)],
        attributes,
    }
}
