//! generate → train → eval → export → inspect, and what each says.

use crate::support::*;
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::CheckpointState;
use ontrain::onnx::read_file;
use ontrain::tensor::Tensor;
use ontrain::train::Session;
use ontrain::train::metrics::accuracy;
use serde_json::{Value, json};
use std::io::Write;

#[test]
fn from_a_model_to_a_trained_model() {
    let folder = scratch("flow");
    std::fs::write(folder.join("model.onnx"), classifier(FEATURES)).unwrap();
    let (x, labels) = data();
    npz(&folder.join("data.npz"), &[("x", &x), ("labels", &labels)]);
    let run = |args: &[&str]| ontrain(&folder, args).ok();

    let generated = run(&[
        "generate",
        "model.onnx",
        "--loss",
        "cross-entropy",
        "--frozen",
        "fc1.bias",
        "--output-dir",
        "new/a",
        "--prefix",
        "p_",
        "--nominal-checkpoint",
        "--json",
    ]);
    let generated = &generated.json()[0];
    assert_eq!(generated["trained"], json!({"parameters": 3, "elements": 32 + 24 + 3}));
    assert_eq!(generated["frozen"], json!({"parameters": 1, "elements": 8}));
    assert_eq!(generated["files"].as_array().unwrap().len(), 5);
    for file in generated["files"].as_array().unwrap() {
        let written = std::fs::metadata(folder.join(file["path"].as_str().unwrap())).unwrap().len();
        assert_eq!(Some(written), file["bytes"].as_u64());
    }

    let training = ["train", "--artifacts", "new/a", "--prefix", "p_", "--data", "data.npz", "--eval-data", "data.npz"];
    let options =
        ["--epochs", "20", "--batch-size", "16", "--lr", "0.02", "--seed", "3", "--save", "trained", "--json"];
    let trained = run(&[&training[..], &options].concat());
    let epochs = trained.events("epoch");
    assert_eq!(epochs.len(), 20);
    let (first, last) = (&epochs[0], &epochs[19]);
    assert!(last["loss"].as_f64() < first["loss"].as_f64().map(|l| l * 0.5), "{first} {last}");
    assert_eq!(last["optimizer_steps"], 80, "four batches, the last of 12 samples");
    assert_eq!(trained.events("saved").len(), 1);

    let evaluated = run(&[
        "eval",
        "--artifacts",
        "new/a",
        "--prefix",
        "p_",
        "--checkpoint",
        "trained",
        "--data",
        "data.npz",
        "--batch-size",
        "16",
        "--json",
    ]);
    let evaluated = &evaluated.json()[0];
    assert_eq!((&evaluated["loss"], &evaluated["accuracy"]), (&last["eval_loss"], &last["eval_accuracy"]));
    assert!(evaluated["accuracy"].as_f64() > Some(0.9), "{evaluated}");

    run(&[
        "export",
        "--artifacts",
        "new/a",
        "--prefix",
        "p_",
        "--checkpoint",
        "trained",
        "--output-names",
        "scores",
        "-o",
        "out.onnx",
    ]);
    let mut session = Session::new(read_file(folder.join("out.onnx")).unwrap(), Cpu);
    assert_eq!((session.input_names(), session.output_names()), (vec!["x".to_owned()], vec!["scores".to_owned()]));
    let scores = session.run(&[&x]).unwrap()[0].clone();
    assert_eq!(Some(accuracy(&scores, &labels, None).unwrap().correct), evaluated["correct"].as_u64());

    let model = run(&["inspect", "out.onnx", "--json"]).json().remove(0);
    assert_eq!(model["inputs"], json!([{"name": "x", "dtype": "float32", "shape": ["batch", FEATURES]}]));
    let ops: Vec<&Value> = model["operators"].as_array().unwrap().iter().map(|op| &op["name"]).collect();
    assert_eq!(ops, ["Dropout", "Gemm", "Relu"]);
    let checkpoint = run(&["inspect", "trained", "--json"]).json().remove(0);
    assert_eq!(checkpoint["optimizer"]["step"], 80);
    assert_eq!(checkpoint["properties"]["ontrain.epoch"], 20);
    let frozen = checkpoint["parameters"].as_array().unwrap().iter().find(|p| p["name"] == "fc1.bias").unwrap();
    assert_eq!(frozen["requires_grad"], false);
    let text = run(&["inspect", "trained"]).stdout;
    assert!(text.contains("fc1.bias float32[8]  (frozen)") && text.contains("optimizer: 80 steps"), "{text}");
}

#[test]
fn frozen_parameters_stay() {
    let folder = prepared("frozen");
    let run = |args: &[&str]| ontrain(&folder, args).ok();
    run(&[
        "generate",
        "model.onnx",
        "--loss",
        "cross-entropy",
        "--frozen",
        "fc1.*",
        "--output-dir",
        "a",
        "--optimizer",
        "sgd",
    ]);
    run(&["train", "--artifacts", "a", "--data", "data.npz", "--save", "c"]);
    let (before, after) =
        (CheckpointState::load(folder.join("a/checkpoint")).unwrap(), CheckpointState::load(folder.join("c")).unwrap());
    for name in ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"] {
        let same = before.parameter(name).unwrap().value == after.parameter(name).unwrap().value;
        assert_eq!(same, name.starts_with("fc1"), "{name}");
    }
}

/// Losses of ORT's own artifacts follow ORT's trace.
#[test]
fn trains_onnx_runtimes_artifacts() {
    let folder = scratch("golden");
    let golden = fixture("golden/reg_mse");
    let (x, y) = (golden_array(&format!("{golden}/input_0.npy")), golden_array(&format!("{golden}/input_1.npy")));
    npz(&folder.join("reg.npz"), &[("x", &x), ("y", &y)]);
    let options =
        ["--inputs", "input=x", "target=y", "--batch-size", "16", "--epochs", "5", "--lr", "0.01", "--no-shuffle"];
    let args = [
        &["train", "--artifacts", &golden, "--data", "reg.npz"][..],
        &options,
        &["--log-every", "1", "--save", "c", "--json"],
    ]
    .concat();
    let trained = ontrain(&folder, &args).ok();
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(format!("{golden}/trace.json")).unwrap()).unwrap();
    let run = &trace["runs"]["adamw"];
    assert_eq!(run["lr"], 0.01, "the trace is of the run that this test repeats");
    let steps = trained.events("step");
    assert_eq!(steps.len(), 20);
    for (i, step) in steps.iter().enumerate() {
        let (ours, theirs) = (step["loss"].as_f64().unwrap(), run["losses"][i].as_f64().unwrap());
        let tolerance = (run["loss_sensitivity_1e-7"][i].as_f64().unwrap() * 10.0).max(1e-5);
        assert!((ours - theirs).abs() <= tolerance, "step {i}: {ours} for {theirs}");
    }
}

/// IDX files give what the same numbers give as arrays, with gzip too.
#[test]
fn images_are_scaled_and_reshaped() {
    let folder = prepared("images");
    let pixels: Vec<u8> = (0..SAMPLES * FEATURES).map(|i| (i * 7 % 256) as u8).collect();
    let images = Tensor::new(&[SAMPLES, 2, 2], &pixels).unwrap();
    let labels = Tensor::new(&[SAMPLES], &(0..SAMPLES).map(|i| (i % CLASSES) as u8).collect::<Vec<_>>()).unwrap();
    std::fs::write(folder.join("images"), idx(&images)).unwrap();
    let mut gz = flate2::write::GzEncoder::new(
        std::fs::File::create(folder.join("labels.gz")).unwrap(),
        flate2::Compression::fast(),
    );
    gz.write_all(&idx(&labels)).unwrap();
    gz.finish().unwrap();
    let values: Vec<f64> = pixels.iter().map(|&p| (p as f64 / 255.0 - 0.5) / 0.25).collect();
    let x = Tensor::from_f64s(ontrain::tensor::DType::F32, &[SAMPLES, FEATURES], &values).unwrap();
    npz(&folder.join("same.npz"), &[("x", &x), ("labels", &labels)]);

    let eval = |data: &[&str]| {
        ontrain(&folder, &[&["eval", "--artifacts", "a", "--json"], data].concat()).ok().json().remove(0)
    };
    let from_idx = eval(&["--images", "images", "--labels", "labels.gz", "--mean", "0.5", "--std", "0.25"]);
    let from_npz = eval(&["--data", "same.npz"]);
    let (a, b) = (from_idx["loss"].as_f64().unwrap(), from_npz["loss"].as_f64().unwrap());
    assert!((a - b).abs() < 1e-6, "{from_idx} {from_npz}");
    assert_eq!(from_idx["correct"], from_npz["correct"]);
    let unscaled = eval(&["--images", "images", "--labels", "labels.gz"])["loss"].as_f64().unwrap();
    assert!((unscaled - b).abs() > 1e-3, "mean and std matter");
}

/// NumPy's default dtypes are taken: float64 (rounded, which is said) and int32 labels.
#[test]
fn other_dtypes_fit() {
    let folder = prepared("dtypes");
    let (x, labels) = data();
    let x64 = Tensor::from_f64s(ontrain::tensor::DType::F64, x.shape(), &x.to_f64s()).unwrap();
    let labels32 = Tensor::from_f64s(ontrain::tensor::DType::I32, labels.shape(), &labels.to_f64s()).unwrap();
    npz(&folder.join("other.npz"), &[("x", &x64), ("labels", &labels32)]);
    let eval = |data: &str| ontrain(&folder, &["eval", "--artifacts", "a", "--json", "--data", data]).ok();
    let (plain, other) = (eval("data.npz"), eval("other.npz"));
    assert_eq!(plain.stdout, other.stdout);
    assert!(other.stderr.contains("float64 rounded to float32") && plain.stderr.is_empty(), "{}", other.stderr);
}

#[test]
fn plans_are_shown() {
    let folder = prepared("plan");
    let run = |args: &[&str]| ontrain(&folder, args).ok();
    let text = run(&["plan", "a/training_model.onnx", "--shape", "x=16,4"]).stdout;
    assert!(text.contains("bytes peak") && text.contains("input labels: int64[16]"), "{text}");
    let small = run(&["plan", "a/training_model.onnx", "--shape", "x=16,4", "--json"]).json().remove(0);
    let large = run(&["plan", "a/training_model.onnx", "--shape", "x=64,4", "--json"]).json().remove(0);
    assert!(small["flops"].as_u64() < large["flops"].as_u64());
    assert!(small["peak_bytes"].as_u64() < large["peak_bytes"].as_u64());
    let kernels: Vec<&Value> = small["steps"].as_array().unwrap().iter().map(|s| &s["kernel"]).collect();
    assert_eq!(kernels.iter().filter(|k| **k == "Gemm").count(), 5, "two forward, three backward: x needs no gradient");
    run(&["plan", "model.onnx", "--shape", "x=1,4"]);
}

#[test]
fn lines_off_a_terminal() {
    let folder = prepared("lines");
    let ran = ontrain(
        &folder,
        &["train", "--artifacts", "a", "--data", "data.npz", "--batch-size", "30", "--save", "c", "--log-every", "1"],
    )
    .ok();
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(lines.len(), 4, "{}", ran.stdout);
    assert!(lines[0].starts_with("epoch 1/1, batch 1/2: loss ") && lines[0].contains(", accuracy "), "{}", lines[0]);
    assert!(lines[2].starts_with("epoch 1/1: loss ") && lines[3] == "saved c", "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}') && ran.stderr.is_empty(), "no escape codes: {}", ran.stderr);
}
