//! Tests of the reader and the writer. `tests/fixtures/onnx` holds models as ONNX Runtime's artifact
//! generator and both PyTorch exporters wrote them.

mod functions;
mod hostile;
mod models;
mod tensors;

use super::proto::type_proto::{Tensor as TensorTypeProto, Value};
use super::proto::{
    AttributeProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto, TensorProto, TensorShapeProto, TypeProto,
    ValueInfoProto,
};
use super::*;
use crate::error::{Error, Kind};
use crate::graph::{Attributes, ValueId, ValueType};
use crate::tensor::Tensor;

const ADAMW: &[u8] = include_bytes!("../../../tests/fixtures/onnx/adamw.onnx");
const BNNET: &[u8] = include_bytes!("../../../tests/fixtures/onnx/bnnet.onnx");
const BNNET_TRAINING: &[u8] = include_bytes!("../../../tests/fixtures/onnx/bnnet_training.onnx");
const REG_EVAL: &[u8] = include_bytes!("../../../tests/fixtures/onnx/reg_eval.onnx");
const TORCHSCRIPT: &[u8] = include_bytes!("../../../tests/fixtures/onnx/torchscript.onnx");
const DYNAMO: &[u8] = include_bytes!("../../../tests/fixtures/onnx/dynamo/model.dyn.onnx");
const DYNAMO_DATA: &[u8] = include_bytes!("../../../tests/fixtures/onnx/dynamo/model.dyn.onnx.data");

fn read_alone(bytes: &[u8]) -> Result<Graph> {
    read(bytes, &NoExternalData)
}

/// A node of ai.onnx.
fn node(op_type: &str, input: &[&str], output: &[&str]) -> NodeProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    NodeProto { op_type: op_type.into(), input: names(input), output: names(output), ..NodeProto::default() }
}

/// A float32 value of that shape.
fn float(name: &str, dims: &[i64]) -> ValueInfoProto {
    use super::proto::tensor_shape_proto::{Dimension, dimension::Value as Dim};
    let dim = dims.iter().map(|&n| Dimension { value: Some(Dim::DimValue(n)) }).collect();
    let tensor = TensorTypeProto { elem_type: 1, shape: Some(TensorShapeProto { dim }) };
    value(name, Value::TensorType(tensor))
}

fn value(name: &str, ty: Value) -> ValueInfoProto {
    ValueInfoProto { name: name.into(), r#type: Some(TypeProto { value: Some(ty) }) }
}

fn floats(name: &str, values: &[f32]) -> TensorProto {
    let dims = vec![values.len() as i64];
    TensorProto { name: name.into(), data_type: 1, dims, float_data: values.into(), ..TensorProto::default() }
}

/// A model with input `x: float32[2]` and output `y: float32[2]`.
fn model(nodes: Vec<NodeProto>, initializers: Vec<TensorProto>) -> ModelProto {
    let graph = GraphProto {
        name: "g".into(),
        node: nodes,
        initializer: initializers,
        input: vec![float("x", &[2])],
        output: vec![float("y", &[2])],
        ..GraphProto::default()
    };
    let opset_import = vec![opset("", 17)];
    ModelProto { ir_version: 8, opset_import, graph: Some(graph), ..ModelProto::default() }
}

fn opset(domain: &str, version: i64) -> OperatorSetIdProto {
    OperatorSetIdProto { domain: domain.into(), version }
}

fn load(model: &ModelProto) -> Result<Graph> {
    read_alone(&model.encode_to_vec())
}

/// The error of a model that must not load; its text must hold all of `words`.
#[track_caller]
fn refused(model: &ModelProto, kind: Kind, words: &[&str]) {
    check_error(load(model), kind, words);
}

#[track_caller]
fn check_error<T>(result: Result<T>, kind: Kind, words: &[&str]) {
    let Err(error) = result else { panic!("this must be refused with {words:?}") };
    let text = format!("{error:?}");
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{text:?} does not say {word:?}");
    }
}

/// All that a graph says, by name: two graphs that are equal here are the same graph.
#[derive(Clone, Debug, PartialEq)]
struct Told {
    name: String,
    opsets: Vec<(String, i64)>,
    inputs: Vec<(String, Option<ValueType>)>,
    outputs: Vec<(String, Option<ValueType>)>,
    initializers: Vec<(String, Tensor)>,
    nodes: Vec<ToldNode>,
    inner: Vec<(String, Option<ValueType>)>,
}

#[derive(Clone, Debug, PartialEq)]
struct ToldNode {
    name: String,
    /// Domain and operator.
    op: (String, String),
    inputs: Vec<String>,
    outputs: Vec<String>,
    attributes: Attributes,
}

fn tell(graph: &Graph) -> Told {
    let typed = |id: &ValueId| (graph.name_of(*id).to_owned(), graph.value(*id).ty.clone());
    let names = |ids: &[Option<ValueId>]| -> Vec<String> {
        ids.iter().map(|id| id.map_or(String::new(), |id| graph.name_of(id).into())).collect()
    };
    let nodes = graph.nodes.iter().map(|n| ToldNode {
        name: n.name.clone(),
        op: (n.domain.clone(), n.op_type.clone()),
        inputs: names(&n.inputs),
        outputs: names(&n.outputs),
        attributes: n.attributes.clone(),
    });
    let inner = graph.nodes.iter().flat_map(|n| n.outputs.iter().flatten());
    Told {
        name: graph.name.clone(),
        opsets: graph.opsets.iter().map(|(d, v)| (d.clone(), *v)).collect(),
        inputs: graph.inputs.iter().map(typed).collect(),
        outputs: graph.outputs.iter().map(typed).collect(),
        initializers: graph.initializers.iter().map(|(id, t)| (graph.name_of(*id).into(), (**t).clone())).collect(),
        nodes: nodes.collect(),
        inner: inner.map(typed).collect(),
    }
}

/// Writes and reads again.
fn round(graph: &Graph) -> Graph {
    let bytes = write(graph, &WriteOptions::default()).expect("the graph can be written");
    read_alone(&bytes).expect("what was written can be read")
}
