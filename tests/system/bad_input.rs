//! What must be refused is refused with the right kind, and says what was expected and what came.

use crate::support::{
    Case, Net, Random, bytes, case, expect, floats, indices, mlp, model, options, parse, start, transformer,
};
use ontrain::artifacts::{Loss, Options, generate};
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::{CheckpointState, write_atomically};
use ontrain::error::Kind;
use ontrain::onnx::{NoExternalData, read};
use ontrain::tensor::{DType, Tensor};
use ontrain::train::{Module, NonFinite, Optimizer, Session};
use std::fs;

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&s| s.to_owned()).collect()
}

fn classify() -> Case {
    case("mlp")
}

/// All parameters, bit for bit.
fn parameters(module: &Module<Cpu>) -> Vec<Tensor> {
    module.parameter_names().map(|name| module.parameter(name).unwrap()).collect()
}

// ---- files ----

/// Reading must end in a value or an error, never in a panic; most mutilations must be noticed.
fn mutilate<T>(whole: &[u8], read: impl Fn(&[u8]) -> ontrain::error::Result<T>, kinds: &[Kind]) {
    let mut refused = 0;
    let mut tried = 0;
    let mut see = |bytes: &[u8]| {
        tried += 1;
        if let Err(e) = read(bytes) {
            refused += 1;
            assert!(kinds.contains(&e.kind()), "{e:?}");
            assert!(!e.to_string().is_empty());
        }
    };
    let step = (whole.len() / 400).max(1);
    for end in (0..whole.len()).step_by(step) {
        see(&whole[..end]);
    }
    let mut random = Random::new(11);
    for len in [0, 1, 3, 4, 8, 9, 64, 1000, 5000] {
        for _ in 0..20 {
            let noise: Vec<u8> = (0..len).map(|_| random.bits() as u8).collect();
            see(&noise);
            // Noise behind the true beginning gets past the first look.
            let mut front = whole[..whole.len().min(64)].to_vec();
            front.extend(noise);
            see(&front);
        }
    }
    for _ in 0..400 {
        let mut bytes = whole.to_vec();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bytes.len());
            bytes[at] = random.bits() as u8;
        }
        see(&bytes);
    }
    assert!(refused * 2 > tried, "only {refused} of {tried} refused");
}

#[test]
fn broken_models() {
    let kinds = [Kind::Load, Kind::Graph, Kind::Shape, Kind::Unsupported];
    for file in
        ["golden/bnnet_ce/model.onnx", "golden/reg_mse/training_model.onnx", "golden/reg_mse/optimizer_model.onnx"]
    {
        let whole = bytes(file);
        mutilate(&whole, |bytes| read(bytes, &NoExternalData), &kinds);
    }
    expect(read(b"", &NoExternalData), Kind::Load, &["empty", "expected an ONNX model", "found 0 bytes"]);
    expect(read(b"<!DOCTYPE html>", &NoExternalData), Kind::Load, &["expected an ONNX model", "web page"]);
    let whole = bytes("golden/bnnet_ce/model.onnx");
    expect(read(&whole[..whole.len() - 7], &NoExternalData), Kind::Load, &["only a part", "found 1549 bytes"]);
}

/// A model that reads although bytes of it are wrong must still not panic further on.
#[test]
fn models_with_wrong_bytes_do_not_panic() {
    let whole = bytes("golden/bnnet_ce/model.onnx");
    let mut random = Random::new(5);
    let (mut made, mut refused) = (0, 0);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bytes.len());
            bytes[at] = random.bits() as u8;
        }
        let Ok(graph) = read(&bytes, &NoExternalData) else { continue };
        let Ok(artifacts) = generate(&graph, &options(Loss::cross_entropy())) else {
            refused += 1;
            continue;
        };
        made += 1;
        let state = CheckpointState::from_bytes(&artifacts.checkpoint).unwrap();
        let Ok(mut module) = Module::new(parse(&artifacts.training_model), None, &state, Cpu) else { continue };
        module.set_non_finite(NonFinite::Return);
        let _ = module.train_step(&[&floats(&[2, 2, 6, 6], 1), &indices(&[2], 4, 2)]);
    }
    assert!(made > 10 && refused > 3, "{made} made, {refused} refused: the test sees too little");
}

#[test]
fn broken_checkpoints() {
    let kinds = [Kind::Load, Kind::Checkpoint, Kind::Unsupported];
    for file in ["checkpoint/bnnet", "checkpoint/reg_mse_after_adamw", "checkpoint/mlp_nominal"] {
        mutilate(&bytes(file), CheckpointState::from_bytes, &kinds);
    }
    expect(CheckpointState::from_bytes(b"not a checkpoint"), Kind::Load, &["expected", "found"]);
    expect(CheckpointState::from_bytes(&bytes("golden/bnnet_ce/model.onnx")), Kind::Load, &["expected", "found"]);
    expect(CheckpointState::load("/no/such/folder/checkpoint"), Kind::Load, &["/no/such/folder/checkpoint"]);
}

// ---- artifact generation ----

#[test]
fn unknown_and_doubly_listed_parameters() {
    let graph = mlp();
    let with = |requires_grad: &[&str], frozen: &[&str]| {
        let o = Options {
            requires_grad: names(requires_grad),
            frozen_params: names(frozen),
            loss: Loss::cross_entropy(),
            ..Options::default()
        };
        generate(&graph, &o)
    };
    let known = "expected one of \"fc1.weight\", \"fc1.bias\"";
    expect(with(&["fc1.wieght"], &[]), Kind::Graph, &["\"fc1.wieght\"", "does not exist", known]);
    expect(with(&["fc1.weight"], &["fc9.bias"]), Kind::Graph, &["\"fc9.bias\"", "does not exist", known]);
    expect(with(&["hidden"], &[]), Kind::Graph, &["\"hidden\"", "is not an initializer", known]);
    expect(with(&["input"], &[]), Kind::Graph, &["\"input\"", "is not an initializer", known]);
    expect(with(&["conv*"], &[]), Kind::Graph, &["no parameter matches \"conv*\"", known]);
    let both = ["\"fc1.bias\"", "both requires_grad and frozen_params"];
    expect(with(&["fc1.weight", "fc1.bias"], &["fc1.bias"]), Kind::Graph, &both);
    // Named twice in one list is once.
    assert!(with(&["fc1.weight", "fc1.weight"], &[]).is_ok());
}

#[test]
fn no_trainable_parameter() {
    let none = |requires_grad: &[&str], frozen: &[&str]| {
        let o = Options {
            requires_grad: names(requires_grad),
            frozen_params: names(frozen),
            loss: Loss::cross_entropy(),
            ..Options::default()
        };
        generate(&mlp(), &o)
    };
    expect(none(&[], &[]), Kind::Graph, &["no trainable parameter", "expected one of \"fc1.weight\""]);
    expect(none(&["*"], &["*"]), Kind::Graph, &["no trainable parameter"]);
    let bn = Options { requires_grad: names(&["bn.running_mean"]), loss: Loss::cross_entropy(), ..Options::default() };
    let graph = model("golden/bnnet_ce/model.onnx");
    expect(generate(&graph, &bn), Kind::Graph, &["\"bn.running_mean\"", "running statistic"]);
}

#[test]
fn unreachable_parameter() {
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None, Some(4)]);
    let (used, idle) = (net.weight("used", &[4, 3]), net.weight("idle", &[4, 3]));
    let y = net.op("MatMul", &[x, used], &[], "output");
    net.op("MatMul", &[x, idle], &[], "aside");
    let graph = net.output(y);
    let result = generate(&graph, &options(Loss::cross_entropy()));
    expect(result, Kind::Gradient, &["does not depend on \"idle\""]);
    // Cut off by an operator through which nothing flows.
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None, Some(4)]);
    let w = net.weight("w", &[4, 3]);
    let y = net.op("MatMul", &[x, w], &[], "product");
    let shape = net.op("Shape", &[y], &[], "shape");
    let y = net.op("Cast", &[shape], &[("to", ontrain::graph::Attribute::Int(1))], "floats");
    let loss = net.op("ReduceSum", &[y], &[("keepdims", ontrain::graph::Attribute::Int(0))], "loss");
    let says = ["\"loss\" does not depend on \"w\"", "Shape node \"node/shape\", which gives int64"];
    expect(generate(&net.output(loss), &options(Loss::None)), Kind::Gradient, &says);
}

#[test]
fn loss_that_is_no_scalar() {
    let result = generate(&mlp(), &options(Loss::None));
    expect(result, Kind::Gradient, &["\"output\" is not a scalar", "expected one element", "found float32[batch,10]"]);
    let mut graph = mlp();
    graph.outputs.clear();
    expect(generate(&graph, &options(Loss::None)), Kind::Graph, &["no output"]);
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None]);
    let w = net.weight("w", &[1]);
    let y = net.op("Mul", &[x, w], &[], "output");
    let result = generate(&net.output(y), &options(Loss::cross_entropy()));
    expect(result, Kind::Shape, &["CrossEntropyLoss", "expected rank 2 or more", "found float32[batch]"]);
}

#[test]
fn operator_without_gradient() {
    let with = |op: &str, opset: i64| {
        let mut net = Net::new(opset);
        let x = net.input("input", DType::F32, &[None, Some(4)]);
        let w = net.weight("w", &[4, 3]);
        let y = net.op("MatMul", &[x, w], &[], "product");
        let y = net.op(op, &[y], &[], "output");
        generate(&net.output(y), &options(Loss::cross_entropy()))
    };
    // Not known at all.
    expect(with("Frobnicate", 17), Kind::Unsupported, &["node \"node/output\"", "Frobnicate", "17"]);
    // Known, but only forwards.
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None, Some(4)]);
    let w = net.weight("w", &[4, 3]);
    let y = net.op("MatMul", &[x, w], &[], "product");
    let y = net.op("ReluGrad", &[y, y], &[], "output");
    let mut graph = net.output(y);
    graph.nodes[1].domain = "com.microsoft".into();
    graph.opsets.insert("com.microsoft".into(), 1);
    let says = ["ReluGrad node \"node/output\"", "no gradient for ReluGrad (opset 1)"];
    expect(generate(&graph, &options(Loss::cross_entropy())), Kind::Gradient, &says);
    // Nothing flows through integers.
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None, Some(4)]);
    let w = net.weight("w", &[4, 3]);
    let y = net.op("MatMul", &[x, w], &[], "product");
    let i = net.op("Cast", &[y], &[("to", ontrain::graph::Attribute::Int(7))], "rounded");
    let y = net.op("Cast", &[i], &[("to", ontrain::graph::Attribute::Int(1))], "output");
    let result = generate(&net.output(y), &options(Loss::cross_entropy()));
    expect(result, Kind::Gradient, &["does not depend on \"w\"", "Cast node \"node/rounded\", which gives int64"]);
}

// ---- steps ----

#[test]
fn labels_out_of_range() {
    for label in [-1i64, -100, 10, i64::MAX, i64::MIN] {
        let case = classify();
        let (mut module, mut optimizer) = case.start();
        module.train_step(&case.inputs()).unwrap();
        optimizer.step(&mut module).unwrap();
        let before = parameters(&module);
        let mut labels: Vec<i64> = case.inputs[1].as_slice().unwrap().to_vec();
        labels[3] = label;
        let labels = Tensor::ints(&labels);
        let found = format!("found {label}");
        let says = ["SoftmaxCrossEntropyLoss", "label", "position [3]", "expected 0 to 9", &found];
        expect(module.train_step(&[&case.inputs[0], &labels]), Kind::Input, &says);
        assert_eq!(parameters(&module), before);
        expect(module.eval_step(&[&case.inputs[0], &labels]), Kind::Input, &says);
        // The failed step leaves nothing behind: the next one is as if it had not been.
        module.lazy_reset_grad();
        let loss = module.train_step(&case.inputs()).unwrap();
        let (mut other, mut fresh) = case.start();
        other.train_step(&case.inputs()).unwrap();
        fresh.step(&mut other).unwrap();
        other.lazy_reset_grad();
        assert_eq!(other.train_step(&case.inputs()).unwrap().to_bits(), loss.to_bits());
        assert_eq!(other.gradient("fc1.weight").unwrap(), module.gradient("fc1.weight").unwrap());
    }
}

/// BatchNormalization moves its running statistics while the step runs: a step that fails puts them back.
#[test]
fn failed_steps_leave_running_statistics() {
    let case = case("bnnet");
    let (mut module, _) = case.start();
    let fresh = parameters(&module);
    let (x, y) = (&case.inputs[0], &case.inputs[1]);
    expect(module.train_step(&[x, &Tensor::ints(&[0, 1, 2, 3, 4])]), Kind::Input, &["label 4", "expected 0 to 3"]);
    assert_eq!(parameters(&module), fresh);
    let mut poisoned = x.clone();
    poisoned.as_mut_slice::<f32>().unwrap()[7] = f32::NAN;
    expect(module.train_step(&[&poisoned, y]), Kind::State, &["NaN"]);
    assert_eq!(parameters(&module), fresh);
    module.train_step(&[x, y]).unwrap();
    let moved = parameters(&module);
    assert_ne!(moved, fresh);
    // Asked to go on, it does what ONNX Runtime does.
    module.set_non_finite(NonFinite::Return);
    assert!(module.train_step(&[&poisoned, y]).unwrap().is_nan());
    assert!(module.parameter("bn.running_mean").unwrap().to_f64s().iter().any(|v| v.is_nan()));
}

#[test]
fn token_out_of_range() {
    let artifacts = generate(&transformer(), &options(Loss::cross_entropy())).unwrap();
    let (mut module, _) = start(&artifacts);
    let mut tokens = vec![0i64; 24];
    tokens[17] = 20;
    let (tokens, labels) = (Tensor::new(&[2, 12], &tokens).unwrap(), Tensor::ints(&[0, 1]));
    expect(module.train_step(&[&tokens, &labels]), Kind::Input, &["20", "embedded"]);
}

#[test]
fn wrong_inputs() {
    let case = classify();
    let (x, y) = (&case.inputs[0], &case.inputs[1]);
    for training in [true, false] {
        let (mut module, _) = case.start();
        module.train(training);
        let before = parameters(&module);
        let mut step = |inputs: &[&Tensor], says: &[&str]| expect(module.step(inputs), Kind::Input, says);
        step(&[x], &["number of inputs", "expected 2 (input, labels)", "found 1"]);
        step(&[x, y, y], &["number of inputs", "expected 2", "found 3"]);
        step(&[], &["found 0"]);
        let wide = Tensor::zeros(DType::F64, &[5, 16]).unwrap();
        step(&[&wide, y], &["\"input\"", "dtype", "expected float32[batch,16]", "found float64[5,16]"]);
        let narrow = Tensor::zeros(DType::I32, &[5]).unwrap();
        step(&[x, &narrow], &["\"labels\"", "dtype", "expected int64[batch]", "found int32[5]"]);
        step(&[y, x], &["\"input\"", "dtype", "found int64[5]"]);
        step(&[&floats(&[80], 1), y], &["\"input\"", "rank", "expected float32[batch,16]", "found float32[80]"]);
        step(&[&floats(&[5, 16, 1], 1), y], &["\"input\"", "rank", "found float32[5,16,1]"]);
        step(&[&floats(&[5, 15], 1), y], &["\"input\"", "shape", "expected float32[batch,16]", "found float32[5,15]"]);
        let says = ["\"labels\" disagrees with \"input\" on batch", "expected 5", "found 4"];
        step(&[x, &indices(&[4], 10, 1)], &says);
        // The same after a plan exists, and the module still works.
        module.step(&case.inputs()).unwrap();
        expect(module.step(&[x, &indices(&[4], 10, 1)]), Kind::Input, &says);
        assert_eq!(parameters(&module), before);
        module.step(&case.inputs()).unwrap();
    }
}

/// An input that the model does not have is refused by name where inputs are given by name.
#[test]
fn wrong_names() {
    let case = classify();
    let (module, _) = case.start();
    let data = ontrain::train::data::Dataset::new(vec![
        ("inptu".into(), floats(&[5, 16], 1)),
        ("labels".into(), indices(&[5], 10, 2)),
    ]);
    let ordered = data.unwrap().ordered(&module.input_names(true).unwrap());
    expect(ordered, Kind::Input, &["\"input\"", "inptu"]);
    expect(module.parameter("fc3.weight"), Kind::Input, &["\"fc3.weight\"", "one of", "fc1.weight"]);
    expect(module.gradient("fc3.weight"), Kind::Input, &["\"fc3.weight\"", "one of"]);
    let says = ["\"nothing\""];
    expect(module.export_model_for_inferencing(&["nothing"]), Kind::Graph, &says);
}

#[test]
fn wrong_parameter_values() {
    let case = classify();
    let (mut module, _) = case.start();
    let before = parameters(&module);
    let says = ["\"fc1.bias\"", "expected float32[33]", "found float32[32]"];
    expect(module.set_parameter("fc1.bias", &floats(&[32], 1)), Kind::Input, &says);
    let all = module.parameters_size(false);
    let too_few = vec![0f32; all - 1];
    let says = [format!("expected {all} elements"), format!("found {}", all - 1)];
    let says: Vec<&str> = says.iter().map(|s| &**s).collect();
    expect(module.load_contiguous_parameters(&too_few, false), Kind::Input, &says);
    assert_eq!(parameters(&module), before);
}

/// An inference session refuses the same.
#[test]
fn wrong_inputs_of_a_session() {
    let mut session = Session::new(mlp(), Cpu);
    session.run(&[&floats(&[2, 16], 1)]).unwrap();
    expect(session.run(&[&floats(&[2, 17], 1)]), Kind::Input, &["\"input\"", "[batch,16]", "[2,17]"]);
    expect(session.run(&[]), Kind::Input, &["expected 1 (input)", "found 0"]);
}

// ---- states ----

#[test]
fn checkpoint_of_another_model() {
    let case = classify();
    let (train, eval) = (parse(&case.artifacts.training_model), parse(&case.artifacts.eval_model));
    let other = CheckpointState::from_bytes(&bytes("checkpoint/reg_mse")).unwrap();
    let made = Module::new(train.clone(), Some(eval.clone()), &other, Cpu);
    let says = ["\"fc1.weight\"", "expected float32[16,33]", "found float32[32,8]"];
    expect(made.map(|_| ()), Kind::Checkpoint, &says);
    let bn = CheckpointState::from_bytes(&bytes("checkpoint/bnnet")).unwrap();
    expect(Module::new(train.clone(), None, &bn, Cpu).map(|_| ()), Kind::Checkpoint, &["another model"]);
    // The same names, another shape.
    let mine = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    let reshaped = mine.parameters().iter().map(|p| {
        let mut p = p.clone();
        if p.name == "fc2.bias" {
            p.value = Some(floats(&[11], 1));
        }
        p
    });
    let reshaped = CheckpointState::new(reshaped.collect()).unwrap();
    let says = ["\"fc2.bias\"", "expected float32[10]", "found float32[11]"];
    expect(Module::new(train.clone(), None, &reshaped, Cpu).map(|_| ()), Kind::Checkpoint, &says);
    // A parameter is missing.
    let fewer = mine.parameters().iter().filter(|p| p.name != "fc1.bias").cloned().collect();
    let fewer = CheckpointState::new(fewer).unwrap();
    expect(Module::new(train.clone(), None, &fewer, Cpu).map(|_| ()), Kind::Checkpoint, &["fc1.bias"]);
    // Frozen there, trained here.
    let frozen = mine
        .parameters()
        .iter()
        .map(|p| ontrain::checkpoint::Parameter { requires_grad: p.name != "fc1.bias", ..p.clone() });
    let frozen = CheckpointState::new(frozen.collect()).unwrap();
    expect(Module::new(train.clone(), None, &frozen, Cpu).map(|_| ()), Kind::Checkpoint, &["\"fc1.bias\"", "frozen"]);
    // An eval model of another training.
    let another = parse(&case_regression().artifacts.eval_model);
    expect(Module::new(train, Some(another), &mine, Cpu).map(|_| ()), Kind::Checkpoint, &["eval model"]);
}

fn case_regression() -> Case {
    case("regression")
}

#[test]
fn models_in_the_wrong_place() {
    let case = classify();
    let state = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    let (module, _) = case.start();
    let not = Optimizer::new(parse(&case.artifacts.eval_model), &module, &state);
    expect(not.map(|_| ()), Kind::Graph, &["not an optimizer model", "expected"]);
    assert!(Module::new(parse(&case.artifacts.eval_model), None, &state, Cpu).is_err());
    let optimizer = parse(case.artifacts.optimizer_model.as_ref().unwrap());
    assert!(Module::new(optimizer, None, &state, Cpu).is_err());
}

#[test]
fn eval_without_eval_model() {
    let case = classify();
    let state = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    let mut module = Module::new(parse(&case.artifacts.training_model), None, &state, Cpu).unwrap();
    expect(module.eval_step(&case.inputs()), Kind::State, &["without an eval model"]);
    expect(module.input_names(false), Kind::State, &["without an eval model"]);
    expect(module.export_model_for_inferencing(&["output"]), Kind::State, &["without an eval model"]);
    module.train(false);
    expect(module.step(&case.inputs()), Kind::State, &["without an eval model"]);
    module.train(true);
    module.step(&case.inputs()).unwrap();
}

#[test]
fn nominal_checkpoint() {
    let case = classify();
    let full = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    let bytes = full.to_nominal().to_bytes(false).unwrap();
    let nominal = CheckpointState::from_bytes(&bytes).unwrap();
    assert!(nominal.is_nominal());
    let (train, eval) = (parse(&case.artifacts.training_model), parse(&case.artifacts.eval_model));
    let mut module = Module::new(train, Some(eval), &nominal, Cpu).unwrap();
    let mut optimizer =
        Optimizer::new(parse(case.artifacts.optimizer_model.as_ref().unwrap()), &module, &nominal).unwrap();
    let empty = ["nominal", "fc", "no value"];
    expect(module.train_step(&case.inputs()), Kind::State, &empty);
    expect(module.eval_step(&case.inputs()), Kind::State, &empty);
    expect(optimizer.step(&mut module), Kind::State, &empty);
    expect(module.parameter("fc1.weight"), Kind::State, &["nominal", "fc1.weight"]);
    expect(module.contiguous_parameters(false), Kind::State, &empty);
    expect(module.export_model_for_inferencing(&["output"]), Kind::State, &empty);
    let says = ["expected float32[10]", "found float32[3]"];
    expect(module.set_parameter("fc2.bias", &floats(&[3], 1)), Kind::Input, &says);
    for p in full.parameters() {
        expect(module.train_step(&case.inputs()), Kind::State, &empty);
        module.set_parameter(&p.name, p.value.as_ref().unwrap()).unwrap();
    }
    let (mut other, _) = case.start();
    let loss = module.train_step(&case.inputs()).unwrap();
    assert_eq!(loss.to_bits(), other.train_step(&case.inputs()).unwrap().to_bits());
    optimizer.step(&mut module).unwrap();
}

#[test]
fn loss_that_is_not_finite() {
    for bad in [f32::NAN, f32::INFINITY] {
        let case = case_regression();
        let (mut module, mut optimizer) = case.start();
        module.train_step(&case.inputs()).unwrap();
        optimizer.step(&mut module).unwrap();
        module.lazy_reset_grad();
        let before = parameters(&module);
        let mut x = case.inputs[1].clone();
        x.as_mut_slice::<f32>().unwrap()[2] = bad;
        let inputs = [&case.inputs[0], &x];
        let word = if bad.is_nan() { "NaN" } else { "inf" };
        expect(module.train_step(&inputs), Kind::State, &["loss", word, "train step 2", "unchanged"]);
        assert_eq!(parameters(&module), before);
        // Its gradients are gone with the next step.
        module.train_step(&case.inputs()).unwrap();
        let gradient = module.gradient("fc1.weight").unwrap();
        assert!(gradient.to_f64s().iter().all(|g| g.is_finite()));
        module.set_non_finite(NonFinite::Return);
        assert!(!module.train_step(&inputs).unwrap().is_finite());
        // An evaluation says what it finds.
        assert!(!module.eval_step(&inputs).unwrap().is_finite());
    }
}

#[test]
fn learning_rates() {
    let case = classify();
    let (_, mut optimizer) = case.start();
    for rate in [f32::NAN, f32::INFINITY, -0.1] {
        expect(
            optimizer.set_learning_rate(rate),
            Kind::Input,
            &["learning rate", "expected a finite number", &rate.to_string()],
        );
    }
    assert_eq!(optimizer.learning_rate(), 1e-3);
}

// ---- saving ----

/// A folder of its own, removed when dropped.
struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ontrain-system-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn failed_saves_leave_the_old_file_whole() {
    // A full disk and a kill in the middle of a save are tried in src/checkpoint/tests.rs.
    let folder = Folder::new("save");
    let state = CheckpointState::from_bytes(&bytes("checkpoint/bnnet")).unwrap();
    let path = folder.0.join("checkpoint");
    state.save(&path, true).unwrap();
    let old = fs::read(&path).unwrap();
    // A folder stands where the file should go.
    let blocked = folder.0.join("blocked");
    fs::create_dir(&blocked).unwrap();
    expect(state.save(&blocked, true), Kind::Device, &["blocked", "not a plain file"]);
    // No folder to write into.
    let nowhere = folder.0.join("nowhere").join("checkpoint");
    expect(state.save(&nowhere, true), Kind::Device, &["nowhere"]);
    // A device is not a file to be replaced.
    #[cfg(target_os = "linux")]
    expect(write_atomically("/dev/full", b"bytes"), Kind::Device, &["/dev/full", "not a plain file"]);
    assert_eq!(fs::read(&path).unwrap(), old);
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "a failed save leaves nothing behind: {left:?}");
}
