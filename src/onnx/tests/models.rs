//! Whole models: what is read, and that writing keeps it.

use super::super::proto::type_proto::{Sequence, Unread};
use super::*;
use crate::graph::{Attribute, TensorType};
use crate::tensor::{DType, Dim};
use std::collections::BTreeMap;

fn dynamo_data() -> BTreeMap<String, &'static [u8]> {
    BTreeMap::from([("model.dyn.onnx.data".to_owned(), DYNAMO_DATA)])
}

#[test]
fn every_fixture_survives_a_round_trip() {
    for bytes in [ADAMW, BNNET, BNNET_TRAINING, REG_EVAL, TORCHSCRIPT, DYNAMO] {
        let graph = read(bytes, &dynamo_data()).unwrap();
        let again = round(&graph);
        assert_eq!(tell(&graph), tell(&again));
        assert_eq!(graph.ir_version, again.ir_version);
    }
}

#[test]
fn an_inference_model_reads_as_it_is() {
    let graph = read_alone(BNNET).unwrap();
    let ops: Vec<_> = graph.nodes.iter().map(|n| n.op_type.as_str()).collect();
    assert_eq!(ops, ["Conv", "BatchNormalization", "Relu", "ReduceMean", "Gemm"]);
    assert_eq!((graph.opset(""), graph.ir_version, graph.name.as_str()), (17, 8, "main_graph"));
    let weight = graph.initializer(graph.find("conv.weight").unwrap()).unwrap();
    assert_eq!(weight.dtype(), DType::F32);
    assert_eq!(weight.shape().len(), 4);
    let names: Vec<_> = graph.initializers.iter().map(|(id, _)| graph.name_of(*id)).collect();
    assert_eq!(names[..3], ["conv.weight", "bn.weight", "bn.bias"]);
    let input = graph.tensor_type(graph.find("input").unwrap()).unwrap();
    assert!(matches!(input.shape.as_ref().unwrap()[0], Dim::Symbol(_)));
}

#[test]
fn an_optimizer_model_has_sequences() {
    let graph = read_alone(ADAMW).unwrap();
    assert_eq!(graph.nodes[0].domain, "com.microsoft");
    assert_eq!(graph.nodes[0].attributes["beta"], Attribute::Float(0.999));
    assert_eq!(graph.value(graph.inputs[2]).name, "params");
    assert_eq!(graph.value(graph.inputs[2]).ty, Some(ValueType::Sequence(DType::F32)));
}

#[test]
fn value_info_can_be_left_out() {
    let graph = read_alone(REG_EVAL).unwrap();
    let lean = write(&graph, &WriteOptions { value_info: false }).unwrap();
    assert!(lean.len() < write(&graph, &WriteOptions::default()).unwrap().len());
    let again = read_alone(&lean).unwrap();
    assert!(tell(&graph).inner.iter().any(|(name, ty)| ty.is_some() && name != graph.name_of(graph.outputs[0])));
    assert!(tell(&again).inner.iter().all(|(name, ty)| ty.is_none() || name == graph.name_of(graph.outputs[0])));
}

#[test]
fn external_data_comes_from_files_and_from_memory() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/onnx/dynamo");
    let from_disk = read_file(format!("{folder}/model.dyn.onnx")).unwrap();
    let from_memory = read(DYNAMO, &dynamo_data()).unwrap();
    assert_eq!(tell(&from_disk), tell(&from_memory));
    let weight = from_disk.initializer(from_disk.find("a.weight").unwrap()).unwrap();
    assert_eq!(weight.shape(), [20, 16]);
    // The other exporter keeps the same weights in the model itself.
    let inside = read_alone(TORCHSCRIPT).unwrap();
    assert_eq!(weight, inside.initializer(inside.find("a.weight").unwrap()).unwrap());
}

#[test]
fn missing_external_data_names_tensor_and_file() {
    check_error(read_alone(DYNAMO), Kind::Load, &["a.weight", "model.dyn.onnx.data", "missing"]);
    let short = BTreeMap::from([("model.dyn.onnx.data".to_owned(), &DYNAMO_DATA[..1000])]);
    check_error(read(DYNAMO, &short), Kind::Load, &["a.weight", "too short", "1280 bytes", "1000 bytes"]);
    check_error(read_file("no/such/model.onnx"), Kind::Load, &["no/such/model.onnx"]);
}

#[test]
fn constant_nodes_become_initializers() {
    let constant = |output: &str, attribute: AttributeProto| NodeProto {
        attribute: vec![attribute],
        ..node("Constant", &[], &[output])
    };
    let named = |name: &str| AttributeProto { name: name.into(), ..AttributeProto::default() };
    let nodes = vec![
        node("Add", &["x", "v"], &["y"]),
        constant("v", AttributeProto { t: Some(Box::new(floats("", &[1.0, 2.0]))), r#type: 4, ..named("value") }),
        constant("f", AttributeProto { f: Some(0.5), r#type: 1, ..named("value_float") }),
        constant("fs", AttributeProto { floats: vec![1.5, 2.5], r#type: 6, ..named("value_floats") }),
        constant("i", AttributeProto { r#type: 2, ..named("value_int") }),
        constant("is", AttributeProto { ints: vec![-1, 3], r#type: 7, ..named("value_ints") }),
    ];
    let graph = load(&model(nodes, vec![])).unwrap();
    assert_eq!(graph.nodes.len(), 1);
    let expect = [
        ("v", Tensor::new(&[2], &[1.0f32, 2.0]).unwrap()),
        ("f", Tensor::scalar(0.5f32)),
        ("fs", Tensor::new(&[2], &[1.5f32, 2.5]).unwrap()),
        ("i", Tensor::scalar(0i64)),
        ("is", Tensor::ints(&[-1, 3])),
    ];
    let expect: Vec<_> = expect.into_iter().map(|(name, t)| (name.to_owned(), t)).collect();
    assert_eq!(tell(&graph).initializers, expect);

    let text = AttributeProto { s: Some(b"a".into()), r#type: 3, ..named("value_string") };
    refused(&model(vec![constant("y", text)], vec![]), Kind::Unsupported, &["Constant node writing \"y\"", "strings"]);
    let wrong = AttributeProto { f: Some(0.5), r#type: 1, ..named("value_int") };
    refused(&model(vec![constant("y", wrong)], vec![]), Kind::Load, &["value_int"]);
}

#[test]
fn nodes_are_sorted_and_otherwise_left_alone() {
    let chain = |order: [usize; 4]| {
        let nodes = [
            node("Relu", &["x"], &["a"]),
            node("Relu", &["a"], &["b"]),
            node("Relu", &["x"], &["c"]),
            node("Sum", &["b", "c"], &["y"]),
        ];
        let graph = load(&model(order.map(|i| nodes[i].clone()).to_vec(), vec![])).unwrap();
        graph.nodes.iter().map(|n| graph.name_of(n.outputs[0].unwrap()).to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(chain([0, 1, 2, 3]), ["a", "b", "c", "y"]);
    assert_eq!(chain([2, 0, 1, 3]), ["c", "a", "b", "y"]);
    assert_eq!(chain([3, 1, 0, 2]), ["a", "b", "c", "y"]);
}

#[test]
fn broken_graphs_name_the_culprit() {
    let cycle = vec![node("Add", &["x", "b"], &["a"]), node("Neg", &["a"], &["b"]), node("Relu", &["b"], &["y"])];
    refused(&model(cycle, vec![]), Kind::Graph, &["node writing \"", "depends on its own output"]);
    refused(&model(vec![node("Neg", &["nope"], &["y"])], vec![]), Kind::Graph, &["Neg node writing \"y\"", "nope"]);
    let twice = vec![node("Neg", &["x"], &["y"]), node("Abs", &["x"], &["y"])];
    refused(&model(twice, vec![]), Kind::Graph, &["Abs node", "\"y\""]);
    refused(&model(vec![], vec![]), Kind::Graph, &["output \"y\""]);
    let twice = vec![floats("w", &[1.0]), floats("w", &[1.0])];
    refused(&model(vec![node("Neg", &["x"], &["y"])], twice), Kind::Graph, &["\"w\""]);
    let attribute = AttributeProto { name: "axis".into(), r#type: 2, ..AttributeProto::default() };
    let twice = NodeProto { attribute: vec![attribute.clone(), attribute], ..node("Neg", &["x"], &["y"]) };
    refused(&model(vec![twice], vec![]), Kind::Graph, &["\"axis\"", "twice"]);
}

#[test]
fn optional_inputs_and_outputs_may_be_left_out() {
    let nodes = vec![node("Clip", &["x", "", "high"], &["y"]), node("Dropout", &["x"], &["z", ""])];
    let graph = load(&model(nodes, vec![floats("high", &[1.0])])).unwrap();
    assert_eq!(graph.nodes[0].inputs[1], None);
    assert_eq!(graph.nodes[1].outputs[1], None);
    assert_eq!(tell(&graph), tell(&round(&graph)));
}

#[test]
fn opset_imports() {
    let neg = || vec![node("Neg", &["x"], &["y"])];
    let with = |opset_import| ModelProto { opset_import, ..model(neg(), vec![]) };
    assert_eq!(load(&with(vec![opset("ai.onnx", 13), opset("", 13)])).unwrap().opsets.len(), 1);
    refused(&with(vec![opset("ai.onnx", 13), opset("", 14)]), Kind::Load, &["13", "14"]);
    refused(&with(vec![]), Kind::Load, &["imports no opset"]);
    refused(&with(vec![opset("", 0)]), Kind::Load, &["opset 0"]);
    assert_eq!(load(&ModelProto { ir_version: 2, ..with(vec![]) }).unwrap().opset(""), 1);
    let long = NodeProto { domain: "ai.onnx".into(), ..node("Neg", &["x"], &["y"]) };
    assert_eq!(load(&model(vec![long], vec![])).unwrap().nodes[0].domain, "");
}

#[test]
fn types_of_values() {
    let neg = || model(vec![node("Neg", &["x"], &["y"])], vec![]);
    let with = |input: ValueInfoProto| {
        let mut model = neg();
        model.graph.as_mut().unwrap().input[0] = input;
        model
    };
    refused(&with(float("x", &[2, -1])), Kind::Shape, &["input \"x\"", "dimension 1", "-1"]);
    refused(&with(ValueInfoProto { name: "x".into(), r#type: None }), Kind::Load, &["input \"x\"", "no type"]);
    refused(&with(value("x", Value::MapType(Unread {}))), Kind::Unsupported, &["input \"x\"", "a map"]);
    let nested = Sequence { elem_type: Some(Box::new(TypeProto { value: Some(Value::MapType(Unread {})) })) };
    refused(&with(value("x", Value::SequenceType(Box::new(nested)))), Kind::Unsupported, &["input \"x\"", "sequence"]);
    let text = TensorTypeProto { elem_type: 8, shape: None };
    refused(&with(value("x", Value::TensorType(text))), Kind::Unsupported, &["input \"x\"", "string"]);
    // Inside of the graph such a type is the business of whoever reads the value.
    let mut inner = model(vec![node("Neg", &["x"], &["a"]), node("Neg", &["a"], &["y"])], vec![]);
    inner.graph.as_mut().unwrap().value_info = vec![value("a", Value::OptionalType(Unread {})), float("gone", &[1])];
    let graph = load(&inner).unwrap();
    assert_eq!(graph.value(graph.find("a").unwrap()).ty, None);
}

#[test]
fn nameless_dimensions_are_all_different() {
    let mut proto = model(vec![node("Neg", &["x"], &["y"])], vec![]);
    let graph = proto.graph.as_mut().unwrap();
    let unnamed = |name: &str| {
        let mut info = float(name, &[0, 0, 7]);
        let Some(TypeProto { value: Some(Value::TensorType(t)) }) = &mut info.r#type else { panic!() };
        let dims = &mut t.shape.as_mut().unwrap().dim;
        dims[0].value = None;
        dims[1].value = Some(super::super::proto::tensor_shape_proto::dimension::Value::DimParam("x.0".into()));
        info
    };
    graph.input = vec![unnamed("x")];
    graph.output = vec![unnamed("y")];
    let graph = load(&proto).unwrap();
    let dims = |name| match graph.tensor_type(graph.find(name).unwrap()) {
        Some(TensorType { shape: Some(dims), .. }) => dims.clone(),
        _ => panic!(),
    };
    assert_eq!(dims("x"), [Dim::symbol("x.0_1"), Dim::symbol("x.0"), Dim::Known(7)]);
    assert_eq!(dims("y"), [Dim::symbol("y.0"), Dim::symbol("x.0"), Dim::Known(7)]);
}

#[test]
fn initializers_may_be_defaults_of_inputs() {
    let mut proto = model(vec![node("Add", &["x", "w"], &["y"])], vec![floats("w", &[1.0, 2.0])]);
    proto.graph.as_mut().unwrap().input.push(float("w", &[2]));
    let graph = load(&proto).unwrap();
    assert_eq!(graph.inputs.len(), 2);
    assert_eq!(graph.initializers[0].0, graph.inputs[1]);
    assert_eq!(tell(&graph), tell(&round(&graph)));
    proto.graph.as_mut().unwrap().input[1] = float("w", &[3]);
    refused(&proto, Kind::Shape, &["initializer \"w\"", "[3]", "[2]"]);
}

#[test]
fn subgraphs_are_carried_by_name() {
    let body = AttributeProto { name: "body".into(), r#type: 5, ..AttributeProto::default() };
    let looped = NodeProto { attribute: vec![body], ..node("Loop", &["x"], &["y"]) };
    let graph = load(&model(vec![looped], vec![])).unwrap();
    assert_eq!(graph.nodes[0].attributes["body"], Attribute::Other("graph"));
    let written = write(&graph, &WriteOptions::default());
    check_error(written, Kind::Unsupported, &["Loop node writing \"y\"", "body", "graph"]);
}

#[test]
fn a_graph_built_here_can_be_written() {
    let mut graph = Graph::new("", 17);
    let x = graph.add_input("x", TensorType::new(DType::F16, [Dim::symbol("batch"), Dim::Known(3)])).unwrap();
    graph.add_initializer("empty", Tensor::zeros(DType::I64, &[0]).unwrap()).unwrap();
    graph.outputs.push(x);
    let again = round(&graph);
    assert_eq!(again.ir_version, 8);
    assert_eq!(tell(&again), Told { name: "graph".into(), ..tell(&graph) });
    graph.value_mut(x).ty = None;
    check_error(write(&graph, &WriteOptions::default()), Kind::Graph, &["\"x\"", "no type"]);
}
