//! The typed graph: an SSA list of nodes in topological order, with ONNX's names kept. Pure data:
//! what an operator means is said in `ops`.

mod attribute;
mod dump;

pub use attribute::{Attribute, Attributes};

use crate::error::{Result, bail};
use crate::tensor::{DType, Dim, Tensor, show_dims};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// A value (edge) of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    /// As an index into per-value tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Dtype and shape of a value. `shape: None` means that not even the rank is known.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorType {
    /// Element type.
    pub dtype: DType,
    /// Dimensions, if the rank is known.
    pub shape: Option<Vec<Dim>>,
}

impl TensorType {
    /// A type of known rank.
    pub fn new(dtype: DType, shape: impl Into<Vec<Dim>>) -> Self {
        Self { dtype, shape: Some(shape.into()) }
    }

    /// A type of known sizes.
    pub fn known(dtype: DType, shape: &[usize]) -> Self {
        Self { dtype, shape: Some(shape.iter().map(|&n| Dim::Known(n)).collect()) }
    }

    /// The type of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self::known(tensor.dtype(), tensor.shape())
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.shape {
            Some(dims) => write!(f, "{}{}", self.dtype, show_dims(dims)),
            None => write!(f, "{}[..]", self.dtype),
        }
    }
}

/// The type of a value: a tensor, or (in optimizer models) a sequence of tensors.
#[derive(Clone, Debug, PartialEq)]
pub enum ValueType {
    /// A tensor.
    Tensor(TensorType),
    /// A sequence of tensors of one dtype.
    Sequence(DType),
}

/// A value: its name and what is known of its type.
#[derive(Clone, Debug)]
pub struct Value {
    /// The ONNX name; unique in the graph.
    pub name: String,
    /// Its type, once declared or inferred.
    pub ty: Option<ValueType>,
}

/// A node: one application of an ONNX operator.
#[derive(Clone, Debug)]
pub struct Node {
    /// The ONNX name; may be empty.
    pub name: String,
    /// Operator domain; `""` is ai.onnx.
    pub domain: String,
    /// Operator name.
    pub op_type: String,
    /// Inputs; `None` where an optional input is left out.
    pub inputs: Vec<Option<ValueId>>,
    /// Outputs; `None` where an optional output is left out.
    pub outputs: Vec<Option<ValueId>>,
    /// Attributes by name.
    pub attributes: Attributes,
}

impl Node {
    /// `Gemm node "fc1"`: how errors name a node.
    pub fn path(&self, graph: &Graph) -> String {
        if !self.name.is_empty() {
            return format!("{} node \"{}\"", self.op_type, self.name);
        }
        match self.outputs.iter().flatten().next() {
            Some(&out) => format!("{} node writing \"{}\"", self.op_type, graph.value(out).name),
            None => format!("{} node", self.op_type),
        }
    }
}

/// A model's graph with the facts of the model around it.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    /// Name of the graph.
    pub name: String,
    /// Opset version by domain (`""` is ai.onnx).
    pub opsets: BTreeMap<String, i64>,
    /// `ir_version` of the file it came from, 0 if it was built here.
    pub ir_version: i64,
    /// Nodes in topological order.
    pub nodes: Vec<Node>,
    /// Graph inputs in order, those that initializers give a default included.
    pub inputs: Vec<ValueId>,
    /// Graph outputs in order.
    pub outputs: Vec<ValueId>,
    /// Constant values, in the order of the file.
    pub initializers: Vec<(ValueId, Arc<Tensor>)>,
    values: Vec<Value>,
    by_name: HashMap<String, ValueId>,
}

impl Graph {
    /// An empty graph for one version of ai.onnx.
    pub fn new(name: &str, opset: i64) -> Self {
        Self { name: name.into(), opsets: BTreeMap::from([(String::new(), opset)]), ..Self::default() }
    }

    /// The opset version of a domain, 0 if it is not imported.
    pub fn opset(&self, domain: &str) -> i64 {
        self.opsets.get(domain).copied().unwrap_or(0)
    }

    /// A value by id.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.index()]
    }

    /// A value by id, to change its type.
    pub fn value_mut(&mut self, id: ValueId) -> &mut Value {
        &mut self.values[id.index()]
    }

    /// Number of values; ids run below it.
    pub fn value_count(&self) -> usize {
        self.values.len()
    }

    /// A value's name.
    pub fn name_of(&self, id: ValueId) -> &str {
        &self.values[id.index()].name
    }

    /// The value of that name.
    pub fn find(&self, name: &str) -> Option<ValueId> {
        self.by_name.get(name).copied()
    }

    /// A tensor type, if the value is known to be a tensor.
    pub fn tensor_type(&self, id: ValueId) -> Option<&TensorType> {
        match &self.value(id).ty {
            Some(ValueType::Tensor(ty)) => Some(ty),
            _ => None,
        }
    }

    /// A new value of that name. Fails if the name is taken: graphs are in SSA form.
    pub fn add_value(&mut self, name: &str, ty: Option<ValueType>) -> Result<ValueId> {
        if self.by_name.contains_key(name) {
            bail!(Graph, "the name \"{name}\" is given to two values");
        }
        let id = ValueId(self.values.len() as u32);
        self.values.push(Value { name: name.into(), ty });
        self.by_name.insert(name.into(), id);
        Ok(id)
    }

    /// A new value whose name starts with `stem`: `stem` itself if free, else `stem_1`, ….
    pub fn fresh_value(&mut self, stem: &str, ty: Option<ValueType>) -> ValueId {
        let mut name = stem.to_owned();
        let mut n = 0;
        while self.by_name.contains_key(&name) {
            n += 1;
            name = format!("{stem}_{n}");
        }
        self.add_value(&name, ty).expect("the name was just seen to be free")
    }

    /// Renames a value. Fails if the new name is taken.
    pub fn rename(&mut self, id: ValueId, name: &str) -> Result<()> {
        if self.find(name).is_some_and(|other| other != id) {
            bail!(Graph, "cannot rename \"{}\": the name \"{name}\" is taken", self.name_of(id));
        }
        let old = std::mem::replace(&mut self.values[id.index()].name, name.into());
        self.by_name.remove(&old);
        self.by_name.insert(name.into(), id);
        Ok(())
    }

    /// A graph input.
    pub fn add_input(&mut self, name: &str, ty: TensorType) -> Result<ValueId> {
        let id = self.add_value(name, Some(ValueType::Tensor(ty)))?;
        self.inputs.push(id);
        Ok(id)
    }

    /// A constant of the graph.
    pub fn add_initializer(&mut self, name: &str, tensor: Tensor) -> Result<ValueId> {
        let id = self.add_value(name, Some(ValueType::Tensor(TensorType::of(&tensor))))?;
        self.initializers.push((id, Arc::new(tensor)));
        Ok(id)
    }

    /// The constant behind a value, if it is an initializer.
    pub fn initializer(&self, id: ValueId) -> Option<&Arc<Tensor>> {
        self.initializers.iter().find(|(v, _)| *v == id).map(|(_, t)| t)
    }

    /// Which node writes each value (index into `nodes`).
    pub fn producers(&self) -> Vec<Option<usize>> {
        let mut by_value = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            for out in node.outputs.iter().flatten() {
                by_value[out.index()] = Some(i);
            }
        }
        by_value
    }

    /// How often each value is read, by nodes and as a graph output.
    pub fn use_counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.values.len()];
        let reads = self.nodes.iter().flat_map(|n| n.inputs.iter().flatten());
        for id in reads.chain(&self.outputs) {
            counts[id.index()] += 1;
        }
        counts
    }
}
