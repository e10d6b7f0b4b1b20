//! Inlining of local functions.

use super::super::proto::FunctionProto;
use super::*;
use crate::graph::Attribute;

fn function(name: &str, input: &[&str], output: &[&str], nodes: Vec<NodeProto>) -> FunctionProto {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    FunctionProto {
        name: name.into(),
        domain: "my".into(),
        input: names(input),
        output: names(output),
        node: nodes,
        opset_import: vec![opset("", 17), opset("my", 1)],
        ..FunctionProto::default()
    }
}

/// A call of a function, named.
fn call(name: &str, function: &str, input: &[&str], output: &[&str]) -> NodeProto {
    NodeProto { domain: "my".into(), name: name.into(), ..node(function, input, output) }
}

fn with(functions: Vec<FunctionProto>, nodes: Vec<NodeProto>) -> ModelProto {
    let mut model = model(nodes, vec![]);
    model.opset_import.push(opset("my", 1));
    ModelProto { functions, ..model }
}

fn attribute(name: &str, f: f32) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: 1, f: Some(f), ..AttributeProto::default() }
}

fn reference(name: &str, to: &str) -> AttributeProto {
    AttributeProto { name: name.into(), r#type: 1, ref_attr_name: to.into(), ..AttributeProto::default() }
}

/// `op(inputs) -> outputs` of each node.
fn lines(graph: &Graph) -> Vec<String> {
    let line = |n: &ToldNode| format!("{}({}) -> {}", n.op.1, n.inputs.join(", "), n.outputs.join(", "));
    tell(graph).nodes.iter().map(line).collect()
}

#[test]
fn calls_become_the_nodes_of_the_function() {
    let square = function("Square", &["a"], &["b"], vec![node("Mul", &["a", "a"], &["b"])]);
    let twice = function(
        "Fourth",
        &["a"],
        &["b"],
        vec![call("one", "Square", &["a"], &["t"]), call("", "Square", &["t"], &["b"])],
    );
    // The names inside collide with those of the model and of each other.
    let nodes =
        vec![node("Neg", &["x"], &["top/t"]), call("top", "Fourth", &["top/t"], &["b"]), node("Neg", &["b"], &["y"])];
    let graph = load(&with(vec![square, twice], nodes)).unwrap();
    assert_eq!(
        lines(&graph),
        ["Neg(x) -> top/t", "Mul(top/t, top/t) -> top/t_1", "Mul(top/t_1, top/t_1) -> b", "Neg(b) -> y"]
    );
    assert_eq!(graph.opsets.keys().collect::<Vec<_>>(), [""]);
    assert_eq!(tell(&graph), tell(&round(&graph)));
}

#[test]
fn optional_inputs_and_unwanted_outputs() {
    let body = vec![node("Clip", &["a", "low", "high"], &["b"]), node("Neg", &["b"], &["c"])];
    let clip = function("Clip2", &["a", "low", "high"], &["b", "c", "a"], body);
    let nodes = vec![call("k", "Clip2", &["x"], &["", "y"]), call("", "Clip2", &["y"], &["p", "", "q"])];
    let graph = load(&with(vec![clip], nodes)).unwrap();
    let expected = ["Clip(x, , ) -> k/b", "Neg(k/b) -> y", "Identity(y) -> q", "Clip(y, , ) -> p", "Neg(p) -> Clip2/c"];
    assert_eq!(lines(&graph), expected);
}

#[test]
fn attributes_are_handed_down() {
    let mut leaky = function("Leaky", &["a"], &["b"], vec![]);
    leaky.node = vec![NodeProto {
        attribute: vec![reference("alpha", "slope"), reference("beta", "absent"), attribute("gamma", 3.0)],
        ..node("LeakyRelu", &["a"], &["b"])
    }];
    leaky.attribute_proto = vec![attribute("slope", 0.25)];
    let mut outer = function("Outer", &["a"], &["b"], vec![call("", "Leaky", &["a"], &["b"])]);
    outer.node[0].attribute = vec![reference("slope", "s")];
    let mut nodes = vec![
        call("", "Leaky", &["x"], &["p"]),
        call("", "Leaky", &["p"], &["q"]),
        call("", "Outer", &["q"], &["r"]),
        call("", "Outer", &["r"], &["y"]),
    ];
    nodes[1].attribute = vec![attribute("slope", 0.5)];
    nodes[2].attribute = vec![attribute("s", 0.75)];
    let graph = load(&with(vec![leaky, outer], nodes)).unwrap();
    let alphas: Vec<_> = graph.nodes.iter().map(|n| n.attributes["alpha"].clone()).collect();
    assert_eq!(alphas, [0.25, 0.5, 0.75, 0.25].map(Attribute::Float));
    let rest = &graph.nodes[0].attributes;
    assert_eq!((rest.get("beta"), rest.get("gamma")), (None, Some(&Attribute::Float(3.0))));
    // Outside of a function there is nothing to refer to.
    let stray = NodeProto { attribute: vec![reference("alpha", "s")], ..node("LeakyRelu", &["x"], &["y"]) };
    refused(&model(vec![stray], vec![]), Kind::Load, &["LeakyRelu node", "alpha"]);
}

#[test]
fn overloads_and_domains_tell_functions_apart() {
    let body = |op: &str| vec![node(op, &["a"], &["b"])];
    let plain = function("F", &["a"], &["b"], body("Neg"));
    let second = FunctionProto { overload: "2".into(), ..function("F", &["a"], &["b"], body("Abs")) };
    let official = FunctionProto { domain: "ai.onnx".into(), ..function("Relu", &["a"], &["b"], body("Exp")) };
    let nodes = vec![
        call("", "F", &["x"], &["p"]),
        NodeProto { overload: "2".into(), ..call("", "F", &["p"], &["q"]) },
        node("Relu", &["q"], &["y"]),
    ];
    let functions = vec![plain.clone(), second, official];
    let graph = load(&with(functions, nodes.clone())).unwrap();
    assert_eq!(lines(&graph), ["Neg(x) -> p", "Abs(p) -> q", "Exp(q) -> y"]);
    refused(&with(vec![plain.clone(), plain], nodes), Kind::Graph, &["\"F\"", "twice"]);
}

#[test]
fn opsets_of_functions() {
    let neg = |imports| {
        let body = vec![node("Neg", &["a"], &["b"])];
        let function = FunctionProto { opset_import: imports, ..function("F", &["a"], &["b"], body) };
        with(vec![function], vec![call("", "F", &["x"], &["y"])])
    };
    assert!(load(&neg(vec![opset("", 17)])).is_ok());
    refused(&neg(vec![opset("", 18)]), Kind::Unsupported, &["F node", "expected 17", "found 18"]);
    refused(&neg(vec![]), Kind::Load, &["F node", "imports no opset"]);
    let mut foreign = neg(vec![opset("com.microsoft", 1)]);
    foreign.functions[0].node[0].domain = "com.microsoft".into();
    assert_eq!(load(&foreign).unwrap().opset("com.microsoft"), 1);
}

#[test]
fn recursion_and_explosion_end() {
    let own = function("F", &["a"], &["b"], vec![call("", "F", &["a"], &["b"])]);
    let through = |name: &str, to: &str| function(name, &["a"], &["b"], vec![call("", to, &["a"], &["b"])]);
    let nodes = || vec![call("", "F", &["x"], &["y"])];
    refused(&with(vec![own], nodes()), Kind::Graph, &["F node", "calls itself"]);
    refused(&with(vec![through("F", "G"), through("G", "F")], nodes()), Kind::Graph, &["calls itself"]);
    // Each function calls the next twice: 2^30 nodes if nobody counts.
    let name = |i: usize| if i == 0 { "F".to_owned() } else { format!("F{i}") };
    let double = |i: usize| {
        let calls = vec![call("", &name(i + 1), &["a"], &["t"]), call("", &name(i + 1), &["t"], &["b"])];
        function(&name(i), &["a"], &["b"], calls)
    };
    let mut functions: Vec<_> = (0..30).map(double).collect();
    functions.push(function(&name(30), &["a"], &["b"], vec![node("Neg", &["a"], &["b"])]));
    refused(&with(functions, nodes()), Kind::Load, &["expand"]);
    let deep: Vec<_> = (0..100).map(|i| through(&name(i), &name(i + 1))).collect();
    refused(&with(deep, nodes()), Kind::Unsupported, &["deeper"]);
}

#[test]
fn bad_calls() {
    let neg = function("F", &["a"], &["b"], vec![node("Neg", &["a"], &["b"])]);
    let calls = |node| with(vec![neg.clone()], vec![node]);
    refused(&calls(call("", "F", &["x", "x"], &["y"])), Kind::Graph, &["too many inputs"]);
    refused(&calls(call("", "F", &["x"], &["y", "z"])), Kind::Graph, &["too many outputs"]);
    let stray = function("F", &["a"], &["b"], vec![node("Neg", &["x"], &["b"])]);
    refused(&with(vec![stray], vec![call("c", "F", &["x"], &["y"])]), Kind::Graph, &["\"c/x\""]);
}
