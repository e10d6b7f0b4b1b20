//! Generated artifacts keep ONNX Runtime 1.19.2's contract: names, order, dtypes and sizes of the models' inputs
//! and outputs, and the bytes of the checkpoint, compared with artifacts that ONNX Runtime generated.

use crate::support::{CASES, bytes, case, expect, floats, indices, mlp, model, options, parse, start};
use ontrain::artifacts::{Artifacts, Loss, Optimizer, Options, generate};
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::CheckpointState;
use ontrain::error::Kind;
use ontrain::graph::{Graph, ValueId, ValueType};
use ontrain::onnx::{WriteOptions, write};
use ontrain::tensor::Tensor;
use ontrain::train::Session;

/// What a model's user sees of it: a line per input or output.
fn signature(graph: &Graph, ids: &[ValueId]) -> Vec<String> {
    let line = |id: &ValueId| {
        let ty = match &graph.value(*id).ty {
            Some(ValueType::Tensor(ty)) => ty.to_string(),
            Some(ValueType::Sequence(dtype)) => format!("sequence of {dtype}"),
            None => "untyped".into(),
        };
        format!("{} {ty}", graph.name_of(*id))
    };
    ids.iter().map(line).collect()
}

/// The same signature. The first output (the loss, or the optimizer's flag) may have another name: ONNX
/// Runtime's holds a count of what a process has built (`onnx::loss::2`, `onnx::adamw.updated_flag::5`).
#[track_caller]
fn same(what: &str, ours: &Graph, theirs: &Graph) {
    assert_eq!(signature(ours, &ours.inputs), signature(theirs, &theirs.inputs), "inputs of {what}");
    let (a, b) = (&ours.outputs, &theirs.outputs);
    assert!(theirs.name_of(b[0]).starts_with("onnx::"));
    assert_eq!(ours.tensor_type(a[0]), theirs.tensor_type(b[0]), "first output of {what}");
    assert_eq!(signature(ours, &a[1..]), signature(theirs, &b[1..]), "outputs of {what}");
    for (domain, version) in &ours.opsets {
        assert_eq!(theirs.opsets.get(domain), Some(version), "opset of {domain:?} in {what}");
    }
}

struct Golden {
    /// The forward model.
    model: &'static str,
    /// Folder of ONNX Runtime's artifacts.
    folder: &'static str,
    requires_grad: &'static [&'static str],
    frozen: &'static [&'static str],
    additional: &'static [&'static str],
}

const MLP: &[&str] = &["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
const REG: &[&str] = &["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "fc3.weight", "fc3.bias"];

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|&s| s.to_owned()).collect()
}

impl Golden {
    fn generate(&self, loss: Loss, optimizer: Optimizer) -> Artifacts {
        let options = Options {
            requires_grad: names(self.requires_grad),
            frozen_params: names(self.frozen),
            loss,
            optimizer: Some(optimizer),
            additional_output_names: names(self.additional),
            nominal_checkpoint: true,
            ..Options::default()
        };
        generate(&model(self.model), &options).unwrap()
    }

    /// The models against ONNX Runtime's of `optimizer`.
    fn check(&self, loss: Loss, optimizer: Optimizer, file: &str) -> Artifacts {
        let ours = self.generate(loss, optimizer);
        let theirs = |name: &str| model(&format!("{}/{name}", self.folder));
        same("the training model", &parse(&ours.training_model), &theirs("training_model.onnx"));
        same("the eval model", &parse(&ours.eval_model), &theirs("eval_model.onnx"));
        if !file.is_empty() {
            let mine = parse(ours.optimizer_model.as_ref().unwrap());
            same("the optimizer model", &mine, &theirs(file));
        }
        // The loss has one name in both models.
        let loss = |bytes: &[u8]| {
            let graph = parse(bytes);
            graph.name_of(graph.outputs[0]).to_owned()
        };
        assert_eq!(loss(&ours.training_model), loss(&ours.eval_model));
        ours
    }

    fn same_checkpoint(&self, ours: &Artifacts, file: &str) {
        assert!(ours.checkpoint == bytes(file), "{file}: other bytes");
        let nominal = CheckpointState::from_bytes(ours.nominal_checkpoint.as_ref().unwrap()).unwrap();
        let full = CheckpointState::from_bytes(&ours.checkpoint).unwrap();
        assert_eq!(nominal, full.to_nominal());
    }
}

#[test]
fn cross_entropy() {
    let golden = Golden {
        model: "golden/mlp_ce_outputs/model.onnx",
        folder: "contract/mlp_ce",
        requires_grad: MLP,
        frozen: &[],
        additional: &[],
    };
    let ours = golden.check(Loss::cross_entropy(), Optimizer::adamw(), "");
    golden.same_checkpoint(&ours, "golden/mlp_ce_outputs/checkpoint");
    assert!(ours.nominal_checkpoint.unwrap() == bytes("checkpoint/mlp_nominal"));
}

#[test]
fn additional_outputs() {
    let golden = Golden {
        model: "golden/mlp_ce_outputs/model.onnx",
        folder: "golden/mlp_ce_outputs",
        requires_grad: MLP,
        frozen: &[],
        additional: &["output"],
    };
    let ours = golden.check(Loss::cross_entropy(), Optimizer::adamw(), "optimizer_model.onnx");
    golden.same_checkpoint(&ours, "golden/mlp_ce_outputs/checkpoint");
}

#[test]
fn frozen_parameters() {
    let golden = Golden {
        model: "golden/mlp_ce_outputs/model.onnx",
        folder: "contract/mlp_frozen",
        requires_grad: &["fc2.weight", "fc2.bias"],
        frozen: &["fc1.weight", "fc1.bias"],
        additional: &[],
    };
    let ours = golden.check(Loss::cross_entropy(), Optimizer::adamw(), "");
    // What is neither trained nor frozen stays in the models.
    let alone = Golden { frozen: &[], ..golden }.generate(Loss::cross_entropy(), Optimizer::adamw());
    let graph = parse(&alone.training_model);
    let weight = graph.find("fc1.weight").unwrap();
    assert!(graph.initializer(weight).is_some() && !graph.inputs.contains(&weight));
    assert!(alone.training_model.len() > ours.training_model.len());
}

#[test]
fn mean_squares() {
    let golden = Golden {
        model: "golden/reg_mse/model.onnx",
        folder: "golden/reg_mse",
        requires_grad: REG,
        frozen: &[],
        additional: &[],
    };
    let mse = || Loss::MSELoss(Default::default());
    let ours = golden.check(mse(), Optimizer::adamw(), "optimizer_model.onnx");
    golden.same_checkpoint(&ours, "golden/reg_mse/checkpoint");
    golden.check(mse(), Optimizer::sgd(), "optimizer_model_sgd.onnx");
    let l1 = Golden { folder: "golden/reg_l1", ..golden };
    l1.check(Loss::L1Loss(Default::default()), Optimizer::adamw(), "optimizer_model.onnx");
}

#[test]
fn binary_cross_entropy() {
    let golden = Golden {
        model: "golden/bin_bce_overflow/model.onnx",
        folder: "golden/bin_bce_overflow",
        requires_grad: REG,
        frozen: &[],
        additional: &[],
    };
    let ours = golden.check(Loss::bce_with_logits(), Optimizer::adamw(), "optimizer_model.onnx");
    golden.same_checkpoint(&ours, "golden/bin_bce_overflow/checkpoint");
}

#[test]
fn batch_normalization() {
    let golden = Golden {
        model: "golden/bnnet_ce/model.onnx",
        folder: "golden/bnnet_ce",
        requires_grad: &["conv.weight", "bn.weight", "bn.bias", "fc.weight", "fc.bias"],
        frozen: &["bn.running_mean", "bn.running_var"],
        additional: &[],
    };
    let ours = golden.check(Loss::cross_entropy(), Optimizer::adamw(), "optimizer_model.onnx");
    golden.same_checkpoint(&ours, "golden/bnnet_ce/checkpoint");
    // Running statistics travel whether they are named or not.
    let unnamed = Golden { frozen: &[], ..golden };
    assert!(unnamed.generate(Loss::cross_entropy(), Optimizer::adamw()).checkpoint == ours.checkpoint);
}

#[test]
fn clipping() {
    let golden = Golden {
        model: "golden/reg_mse/model.onnx",
        folder: "golden/reg_adamw_clip",
        requires_grad: REG,
        frozen: &[],
        additional: &[],
    };
    let mut adamw = Optimizer::adamw();
    let Optimizer::AdamW { clip_grad_norm, .. } = &mut adamw else { unreachable!() };
    *clip_grad_norm = Some(0.5);
    let mse = || Loss::MSELoss(Default::default());
    golden.check(mse(), adamw, "optimizer_model.onnx");
    let sgd = Golden { folder: "golden/reg_sgd_clip", ..golden };
    sgd.check(mse(), Optimizer::SGD { clip_grad_norm: Some(0.5) }, "optimizer_model_sgd.onnx");
}

/// The optimizer's node has ONNX Runtime's attributes and values.
#[test]
fn optimizer_attributes() {
    let mut nobias = Optimizer::adamw();
    let Optimizer::AdamW { bias_correction, weight_decay, .. } = &mut nobias else { unreachable!() };
    *bias_correction = false;
    let theirs = model("golden/reg_adamw_nobias/optimizer_model.onnx");
    let attribute = |graph: &Graph, name: &str| {
        let node = graph.nodes.iter().find(|n| n.op_type == "AdamWOptimizer").unwrap();
        node.attributes.get(name).cloned()
    };
    if let Some(ontrain::graph::Attribute::Float(decay)) = attribute(&theirs, "weight_decay") {
        *weight_decay = decay;
    }
    let o = Options { optimizer: Some(nobias), ..options(Loss::cross_entropy()) };
    let ours = parse(&generate(&mlp(), &o).unwrap().optimizer_model.unwrap());
    for name in ["alpha", "beta", "epsilon", "weight_decay", "correct_bias", "adam_mode"] {
        assert_eq!(attribute(&ours, name), attribute(&theirs, name), "{name}");
    }
    let same_node = |a: &Graph, b: &Graph| {
        let of = |g: &Graph| g.nodes.iter().map(|n| (n.domain.clone(), n.op_type.clone())).collect::<Vec<_>>();
        assert_eq!(of(a), of(b));
    };
    same_node(&ours, &theirs);
}

#[test]
fn outputs_and_loss_inputs_by_name() {
    let with = |additional: &[&str], loss_inputs: &[&str]| {
        let o = Options {
            additional_output_names: names(additional),
            loss_input_names: names(loss_inputs),
            requires_grad: names(&["fc1.*"]),
            ..options(Loss::cross_entropy())
        };
        generate(&mlp(), &o)
    };
    // Any value of the graph, in the order asked for.
    let artifacts = with(&["active", "output"], &[]).unwrap();
    for bytes in [&artifacts.training_model, &artifacts.eval_model] {
        let graph = parse(bytes);
        let outputs: Vec<&str> = graph.outputs[1..3].iter().map(|id| graph.name_of(*id)).collect();
        assert_eq!(outputs, ["active", "output"]);
    }
    expect(with(&["nothing"], &[]), Kind::Graph, &["additional output \"nothing\"", "expected such as \"output\""]);
    expect(with(&[], &["nothing"]), Kind::Graph, &["loss input \"nothing\""]);
    assert!(with(&[], &["active"]).is_ok());
}

/// Nothing is lost between graph and bytes.
#[test]
fn rereading_gives_the_same_graph() {
    for name in CASES {
        let artifacts = case(name).artifacts;
        let models = [Some(&artifacts.training_model), Some(&artifacts.eval_model), artifacts.optimizer_model.as_ref()];
        for bytes in models.into_iter().flatten() {
            let graph = parse(bytes);
            let again = write(&graph, &WriteOptions::default()).unwrap();
            assert!(again == *bytes, "{name}: other bytes after reading and writing");
            assert_eq!(parse(&again).to_string(), graph.to_string());
        }
        let state = CheckpointState::from_bytes(&artifacts.checkpoint).unwrap();
        assert!(state.to_bytes(false).unwrap() == artifacts.checkpoint, "{name}");
    }
}

/// The same request gives the same bytes.
#[test]
fn generation_is_reproducible() {
    for name in CASES {
        let (a, b) = (case(name).artifacts, case(name).artifacts);
        assert!(a.training_model == b.training_model && a.eval_model == b.eval_model, "{name}");
        assert!(a.checkpoint == b.checkpoint && a.optimizer_model == b.optimizer_model, "{name}");
    }
}

/// Files are written under ONNX Runtime's names.
#[test]
fn files() {
    let folder = std::env::temp_dir().join(format!("ontrain-contract-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let artifacts = generate(&mlp(), &Options { nominal_checkpoint: true, ..options(Loss::cross_entropy()) }).unwrap();
    artifacts.save(&folder, "mlp_").unwrap();
    let mut found: Vec<String> =
        std::fs::read_dir(&folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    found.sort();
    let wanted = ["checkpoint", "eval_model.onnx", "nominal_checkpoint", "optimizer_model.onnx", "training_model.onnx"];
    assert_eq!(found, wanted.map(|name| format!("mlp_{name}")));
    let read = CheckpointState::load(folder.join("mlp_checkpoint")).unwrap();
    assert_eq!(read, CheckpointState::from_bytes(&artifacts.checkpoint).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
    expect(artifacts.save(&folder, ""), Kind::Device, &["training_model.onnx"]);
}

/// An exported model takes the forward model's inputs, holds the trained values, names no training domain, and
/// computes what the eval model computes.
#[test]
fn exported_models() {
    let batch = [floats(&[3, 16], 9), indices(&[3], 10, 1)];
    let batch: Vec<&Tensor> = batch.iter().collect();
    let o = Options { additional_output_names: names(&["output"]), ..options(Loss::cross_entropy()) };
    let (mut module, mut optimizer) = start(&generate(&mlp(), &o).unwrap());
    module.train_step(&batch).unwrap();
    optimizer.step(&mut module).unwrap();
    module.eval_step(&batch).unwrap();
    let graph = parse(&module.export_model_for_inferencing(&["output"]).unwrap());
    let forward = mlp();
    assert_eq!(signature(&graph, &graph.inputs), signature(&forward, &forward.inputs));
    assert_eq!(signature(&graph, &graph.outputs), ["output float32[batch,10]"]);
    assert_eq!(graph.opsets, forward.opsets);
    let weight = graph.initializer(graph.find("fc1.weight").unwrap()).unwrap();
    assert_eq!(**weight, module.parameter("fc1.weight").unwrap());
    assert_ne!(**weight, **forward.initializer(forward.find("fc1.weight").unwrap()).unwrap());
    let mut session = Session::new(graph, Cpu);
    assert_eq!(session.run(&batch[..1]).unwrap()[0], module.eval_outputs()[1]);
}
