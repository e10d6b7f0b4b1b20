//! Node attributes.

use crate::tensor::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "ONNX's AttributeType names")]
pub enum Attribute {
    Int(i64),
    Float(f32),
    String(String),
    Tensor(Arc<Tensor>),
    Ints(Vec<i64>),
    Floats(Vec<f32>),
    Strings(Vec<String>),
    /// A kind that is carried by name only (graphs, sparse tensors, …); operators refuse it.
    Other(&'static str),
}

/// Attributes of a node, by name.
pub type Attributes = BTreeMap<String, Attribute>;
