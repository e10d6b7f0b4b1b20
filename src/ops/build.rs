//! Writing nodes into a graph with their types known at once: how gradients and losses are built.

use super::{Facts, infer_node, resolve};
use crate::error::{Result, err};
use crate::graph::{Attribute, Graph, Node, TensorType, ValueId, ValueType};
use crate::tensor::{DType, Dim, Tensor, known_shape};
use std::sync::Arc;

/// The domain of ONNX Runtime's contributed operators.
pub const MS: &str = "com.microsoft";

/// Writes nodes at the end of a graph.
pub struct Builder<'g> {
    /// The graph.
    pub graph: &'g mut Graph,
    /// What is known of its values.
    pub facts: &'g mut Facts,
    /// How names of new values and nodes begin.
    pub stem: String,
}

impl Builder<'_> {
    /// A node with `outputs` results.
    pub fn node(
        &mut self,
        domain: &str,
        op_type: &str,
        inputs: &[Option<ValueId>],
        attributes: &[(&str, Attribute)],
        outputs: usize,
    ) -> Result<Vec<ValueId>> {
        let stem = format!("{}/{op_type}", self.stem);
        let ids: Vec<ValueId> = (0..outputs).map(|_| self.graph.fresh_value(&stem, None)).collect();
        let node = Node {
            name: ids.first().map_or(stem, |&id| self.graph.name_of(id).to_owned()),
            domain: domain.into(),
            op_type: op_type.into(),
            inputs: inputs.to_vec(),
            outputs: ids.iter().copied().map(Some).collect(),
            attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        };
        self.add(node)?;
        Ok(ids)
    }

    /// A node that was made by hand; its outputs' types are inferred.
    pub fn add(&mut self, node: Node) -> Result<()> {
        if !node.domain.is_empty() {
            self.graph.opsets.entry(node.domain.clone()).or_insert(1);
        }
        let op = resolve(self.graph, &node)?;
        infer_node(self.graph, &node, &*op, self.facts)?;
        for &id in node.outputs.iter().flatten() {
            if let Some(ty) = self.facts.ty(id) {
                self.graph.value_mut(id).ty = Some(ValueType::Tensor(ty.clone()));
            }
        }
        self.graph.nodes.push(node);
        Ok(())
    }

    /// A node of ai.onnx with one result and no attributes.
    pub fn op(&mut self, op_type: &str, inputs: &[ValueId]) -> Result<ValueId> {
        self.op_with(op_type, inputs, &[])
    }

    /// A node of ai.onnx with one result.
    pub fn op_with(&mut self, op_type: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)]) -> Result<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.node("", op_type, &inputs, attributes, 1)?[0])
    }

    /// A node of com.microsoft with one result.
    pub fn ms(&mut self, op_type: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)]) -> Result<ValueId> {
        let inputs: Vec<_> = inputs.iter().copied().map(Some).collect();
        Ok(self.node(MS, op_type, &inputs, attributes, 1)?[0])
    }

    /// The opset of ai.onnx.
    pub fn opset(&self) -> i64 {
        self.graph.opset("")
    }

    /// The type of a value; an error if it is not known.
    pub fn ty(&self, id: ValueId) -> Result<&TensorType> {
        self.facts.ty(id).ok_or_else(|| err!(Shape, "the type of \"{}\" is not known", self.graph.name_of(id)))
    }

    /// The dtype of a value.
    pub fn dtype(&self, id: ValueId) -> Result<DType> {
        Ok(self.ty(id)?.dtype)
    }

    /// The shape of a value; an error if not even its rank is known.
    pub fn dims(&self, id: ValueId) -> Result<Vec<Dim>> {
        let shape = self.ty(id)?.shape.clone();
        shape.ok_or_else(|| err!(Shape, "the rank of \"{}\" is not known", self.graph.name_of(id)))
    }

    /// A constant.
    pub fn tensor(&mut self, tensor: Tensor) -> ValueId {
        let stem = format!("{}/constant", self.stem);
        let id = self.graph.fresh_value(&stem, Some(ValueType::Tensor(TensorType::of(&tensor))));
        let tensor = Arc::new(tensor);
        self.graph.initializers.push((id, tensor.clone()));
        self.facts.set_constant(id, tensor);
        id
    }

    /// A rank-0 constant of a floating (or integer) dtype.
    pub fn scalar(&mut self, dtype: DType, value: f64) -> Result<ValueId> {
        let tensor = Tensor::from_f64s(dtype, &[], &[value])?;
        Ok(self.tensor(tensor))
    }

    /// A rank-0 constant of the dtype of `like`.
    pub fn scalar_like(&mut self, like: ValueId, value: f64) -> Result<ValueId> {
        let dtype = self.dtype(like)?;
        self.scalar(dtype, value)
    }

    /// A rank-1 int64 constant.
    pub fn ints(&mut self, values: &[i64]) -> ValueId {
        self.tensor(Tensor::ints(values))
    }

    /// `a + b`.
    pub fn add_(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op("Add", &[a, b])
    }

    /// `a - b`.
    pub fn sub(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op("Sub", &[a, b])
    }

    /// `a * b`.
    pub fn mul(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op("Mul", &[a, b])
    }

    /// `a / b`.
    pub fn div(&mut self, a: ValueId, b: ValueId) -> Result<ValueId> {
        self.op("Div", &[a, b])
    }

    /// `-a`.
    pub fn neg(&mut self, a: ValueId) -> Result<ValueId> {
        self.op("Neg", &[a])
    }

    /// `x` in the dtype of `like`.
    pub fn op_cast(&mut self, x: ValueId, like: ValueId) -> Result<ValueId> {
        let to = self.dtype(like)?;
        if self.dtype(x)? == to {
            return Ok(x);
        }
        self.op_with("Cast", &[x], &[("to", Attribute::Int(to.onnx() as i64))])
    }

    /// The sum over `axes`.
    pub fn reduce_sum(&mut self, x: ValueId, axes: &[i64], keepdims: bool) -> Result<ValueId> {
        let keep = ("keepdims", Attribute::Int(keepdims as i64));
        if self.opset() >= 13 {
            let axes = self.ints(axes);
            self.op_with("ReduceSum", &[x, axes], &[keep])
        } else {
            self.op_with("ReduceSum", &[x], &[("axes", Attribute::Ints(axes.to_vec())), keep])
        }
    }

    /// New axes of size 1, at these positions of the result.
    pub fn unsqueeze(&mut self, x: ValueId, axes: &[i64]) -> Result<ValueId> {
        if self.opset() >= 13 {
            let axes = self.ints(axes);
            self.op("Unsqueeze", &[x, axes])
        } else {
            self.op_with("Unsqueeze", &[x], &[("axes", Attribute::Ints(axes.to_vec()))])
        }
    }

    /// The shape of a value as int64: a constant where it is known.
    pub fn shape(&mut self, x: ValueId) -> Result<ValueId> {
        let known = self.ty(x)?.shape.as_deref().and_then(known_shape);
        match known {
            Some(shape) => Ok(self.ints(&shape.iter().map(|&n| n as i64).collect::<Vec<_>>())),
            None => self.op("Shape", &[x]),
        }
    }

    /// `x` in the shape of `like`, which has as many elements.
    pub fn reshape_like(&mut self, x: ValueId, like: ValueId) -> Result<ValueId> {
        if self
            .facts
            .ty(x)
            .is_some_and(|t| t.shape.is_some() && self.facts.ty(like).is_some_and(|l| l.shape == t.shape))
        {
            return Ok(x);
        }
        let shape = self.shape(like)?;
        self.op("Reshape", &[x, shape])
    }

    /// `x` repeated to the shape of `like`, to which it broadcasts.
    pub fn expand_like(&mut self, x: ValueId, like: ValueId) -> Result<ValueId> {
        if self
            .facts
            .ty(x)
            .is_some_and(|t| t.shape.is_some() && self.facts.ty(like).is_some_and(|l| l.shape == t.shape))
        {
            return Ok(x);
        }
        if self.opset() < 8 {
            // There is no Expand yet. `like < like` holds nowhere, whatever the values are.
            let nowhere = self.op("Less", &[like, like])?;
            let zeros = self.op_cast(nowhere, x)?;
            return self.add_(x, zeros);
        }
        let shape = self.shape(like)?;
        self.op("Expand", &[x, shape])
    }

    /// Sums `dy`, which has the broadcast shape of several operands, over the axes along which
    /// `target` was repeated: the gradient of broadcasting.
    ///
    /// Where shapes are symbols that might be 1 at run time, the axes are worked out then
    /// (`BroadcastGradientArgs`).
    pub fn unbroadcast(&mut self, dy: ValueId, target: ValueId) -> Result<ValueId> {
        let (from, to) = (self.dims(dy)?, self.dims(target)?);
        let Some(lead) = from.len().checked_sub(to.len()) else {
            return self.reshape_like(dy, target); // target has more axes of size 1
        };
        let pairs = || from[lead..].iter().zip(&to);
        let certain = pairs().all(|(f, t)| f == t || t.known().is_some());
        if !certain {
            let (a, b) = (self.shape(target)?, self.shape(dy)?);
            let axes = self.node(MS, "BroadcastGradientArgs", &[Some(a), Some(b)], &[], 2)?[0];
            let keep = [("keepdims", Attribute::Int(1)), ("noop_with_empty_axes", Attribute::Int(1))];
            let sum = self.op_with("ReduceSum", &[dy, axes], &keep)?;
            let shape = self.shape(target)?;
            return self.op("Reshape", &[sum, shape]);
        }
        let mut axes: Vec<i64> = (0..lead as i64).collect();
        let inner = pairs().enumerate().filter(|(_, (f, t))| t.is(1) && !f.is(1));
        let inner: Vec<i64> = inner.map(|(i, _)| (lead + i) as i64).collect();
        axes.extend(&inner);
        if axes.is_empty() {
            return Ok(dy);
        }
        let sum = self.reduce_sum(dy, &axes, lead == 0)?;
        if lead == 0 || inner.is_empty() { Ok(sum) } else { self.reshape_like(sum, target) }
    }
}
