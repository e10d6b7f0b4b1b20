//! [`Graph`] → bytes of a `ModelProto`.

use super::proto::{GraphProto, ModelProto, NodeProto, OperatorSetIdProto};
use super::{attribute, tensor, types};
use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, ValueId};
use prost::{Message, encode_length_delimiter, length_delimiter_len};
use std::collections::HashSet;

/// `ir_version` of graphs that were built here, the one of ONNX Runtime 1.19's artifacts.
const IR_VERSION: i64 = 8;
/// From this `ir_version` on, initializers need not be graph inputs.
const IR_VERSION_FREE_INITIALIZERS: i64 = 4;

/// Keys (field number and wire type) of the fields that are written by hand.
const MODEL_GRAPH: u8 = 7 << 3 | 2;
const GRAPH_INITIALIZER: u8 = 5 << 3 | 2;
const TENSOR_RAW_DATA: u8 = 9 << 3 | 2;

/// What to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOptions {
    /// Also the known types of values between the nodes. Default true.
    pub value_info: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self { value_info: true }
    }
}

/// Writes an ONNX model, its tensors inside. Names, order, attributes, types and opsets are the graph's;
/// reading it back gives the same graph.
///
/// # Errors
/// `Graph` if a graph input has no type; `Unsupported` for attributes that were carried by name only (such
/// as subgraphs), and for more than the 2 GiB that a protobuf message can hold.
pub fn write(graph: &Graph, options: &WriteOptions) -> Result<Vec<u8>> {
    let model = model(graph);
    let body = body(graph, options)?;
    // The tensors go straight to the output: a message that held them would be one more copy of the model.
    let heads: Vec<_> = graph.initializers.iter().map(|(id, t)| (tensor::head(graph.name_of(*id), t), t)).collect();
    let sizes: Vec<usize> = heads.iter().map(|(head, t)| head.encoded_len() + field_len(t.bytes().len())).collect();
    let inside = sizes.iter().fold(body.encoded_len(), |sum, &size| sum.saturating_add(field_len(size)));
    let total = model.encoded_len().saturating_add(field_len(inside));
    if total > i32::MAX as usize {
        return Err(err!(Unsupported, "a model of this size in one file").expected("at most 2 GiB").found(total));
    }
    let mut out = Vec::with_capacity(total);
    let cannot = |_| err!(Load, "a message does not fit its own size");
    model.encode(&mut out).map_err(cannot)?;
    open_field(MODEL_GRAPH, inside, &mut out)?;
    body.encode(&mut out).map_err(cannot)?;
    for ((head, tensor), size) in heads.iter().zip(sizes) {
        open_field(GRAPH_INITIALIZER, size, &mut out)?;
        head.encode(&mut out).map_err(cannot)?;
        open_field(TENSOR_RAW_DATA, tensor.bytes().len(), &mut out)?;
        out.extend_from_slice(tensor.bytes());
    }
    Ok(out)
}

/// Bytes of a length-delimited field with a key of one byte.
fn field_len(content: usize) -> usize {
    content.saturating_add(1 + length_delimiter_len(content))
}

fn open_field(key: u8, len: usize, out: &mut Vec<u8>) -> Result<()> {
    out.push(key);
    encode_length_delimiter(len, out).map_err(|_| err!(Load, "a message does not fit its own size"))
}

/// The model without its graph.
fn model(graph: &Graph) -> ModelProto {
    let inputs: HashSet<ValueId> = graph.inputs.iter().copied().collect();
    let free = graph.initializers.iter().any(|(id, _)| !inputs.contains(id));
    let opset = |(domain, &version): (&String, &i64)| OperatorSetIdProto { domain: domain.clone(), version };
    ModelProto {
        ir_version: match graph.ir_version {
            0 => IR_VERSION,
            old if free => old.max(IR_VERSION_FREE_INITIALIZERS),
            version => version,
        },
        producer_name: "ontrain".into(),
        producer_version: env!("CARGO_PKG_VERSION").into(),
        opset_import: graph.opsets.iter().map(opset).collect(),
        graph: None,
        functions: Vec::new(),
    }
}

/// The graph without its initializers.
fn body(graph: &Graph, options: &WriteOptions) -> Result<GraphProto> {
    let info = |&id: &ValueId| types::encode(graph.name_of(id), graph.value(id).ty.as_ref());
    if let Some(&id) = graph.inputs.iter().find(|&&id| graph.value(id).ty.is_none()) {
        bail!(Graph, "graph input \"{}\" has no type", graph.name_of(id));
    }
    let nodes: Result<Vec<_>> = graph.nodes.iter().map(|n| node(graph, n).map_err(|e| e.at(n.path(graph)))).collect();
    let value_info = if options.value_info { inner_values(graph) } else { Vec::new() };
    Ok(GraphProto {
        node: nodes?,
        // Other readers insist on a name.
        name: if graph.name.is_empty() { "graph".into() } else { graph.name.clone() },
        input: graph.inputs.iter().map(info).collect(),
        output: graph.outputs.iter().map(info).collect(),
        value_info: value_info.iter().map(info).collect(),
        initializer: Vec::new(),
        sparse_initializer: Vec::new(),
    })
}

/// Values with a type that nothing else in the file declares.
fn inner_values(graph: &Graph) -> Vec<ValueId> {
    let declared: HashSet<ValueId> = graph.outputs.iter().copied().collect();
    let written = graph.nodes.iter().flat_map(|n| n.outputs.iter().flatten().copied());
    written.filter(|id| !declared.contains(id) && graph.value(*id).ty.is_some()).collect()
}

fn node(graph: &Graph, node: &Node) -> Result<NodeProto> {
    let name = |id: &Option<ValueId>| id.map_or(String::new(), |id| graph.name_of(id).to_owned());
    let attributes: Result<Vec<_>> = node.attributes.iter().map(|(name, v)| attribute::encode(name, v)).collect();
    Ok(NodeProto {
        input: node.inputs.iter().map(name).collect(),
        output: node.outputs.iter().map(name).collect(),
        name: node.name.clone(),
        op_type: node.op_type.clone(),
        attribute: attributes?,
        domain: node.domain.clone(),
        overload: String::new(),
    })
}
