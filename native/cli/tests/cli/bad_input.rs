//! What is wrong is said on stderr by its kind, with exit code 1 (2 for the command line itself); nothing panics.

use crate::support::*;
use ontrain::tensor::Tensor;
use serde_json::Value;
use std::path::Path;

const GENERATE: &[&str] = &["generate", "model.onnx", "--loss", "cross-entropy", "--output-dir", "out"];
const TRAIN: &[&str] = &["train", "--artifacts", "a", "--save", "c", "--data"];
const EVAL: &[&str] = &["eval", "--artifacts", "a", "--data"];

/// Runs, and checks exit code, kind and message, as text and as JSON. Stdout stays empty.
fn refused(folder: &Path, args: &[&[&str]], code: i32, kind: &str, parts: &[&str]) {
    let args = args.concat();
    let ran = ontrain(folder, &args);
    assert_eq!((ran.code, &*ran.stdout), (Some(code), ""), "{args:?}: {}", ran.stderr);
    if kind != "Usage" {
        assert!(ran.stderr.starts_with(&format!("error[{kind}]: ")), "{args:?}: {}", ran.stderr);
    }
    for part in parts {
        assert!(ran.stderr.contains(part), "{args:?}: no {part:?} in {}", ran.stderr);
    }
    let ran = ontrain(folder, &[&args[..], &["--json"]].concat());
    assert_eq!((ran.code, &*ran.stdout), (Some(code), ""), "{args:?}: {}", ran.stderr);
    let last = ran.stderr.lines().last().unwrap_or_default();
    let error: Value = serde_json::from_str(last).unwrap_or_else(|e| panic!("{args:?}: {e}: {}", ran.stderr));
    assert_eq!(error["error"]["kind"], kind, "{args:?}");
    let message = error["error"]["message"].as_str().unwrap();
    for part in parts {
        assert!(message.contains(part), "{args:?}: no {part:?} in {message}");
    }
}

/// Bytes without meaning, the same each time.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9E37_79B9u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn models() {
    let folder = prepared("bad_models");
    let generate = |model: &str, kind: &str, parts: &[&str]| {
        let args = ["generate", model, "--loss", "cross-entropy", "--output-dir", "out"];
        refused(&folder, &[&args], 1, kind, parts);
    };
    generate("missing.onnx", "Load", &["missing.onnx"]);
    let model = std::fs::read(folder.join("model.onnx")).unwrap();
    std::fs::write(folder.join("half.onnx"), &model[..model.len() / 2]).unwrap();
    generate("half.onnx", "Load", &["half.onnx"]);
    std::fs::write(folder.join("noise.onnx"), noise(5000)).unwrap();
    generate("noise.onnx", "Load", &["noise.onnx"]);
    std::fs::write(folder.join("empty.onnx"), []).unwrap();
    generate("empty.onnx", "Load", &["empty"]);
    for cut in (0..model.len()).step_by(model.len() / 40 + 1) {
        std::fs::write(folder.join("cut.onnx"), &model[..cut]).unwrap();
        let ran = ontrain(&folder, &["inspect", "cut.onnx"]);
        assert!(matches!(ran.code, Some(0 | 1)), "cut at {cut}: {:?} {}", ran.code, ran.stderr);
    }
    refused(&folder, &[&["inspect", "missing"]], 1, "Load", &["missing"]);
    refused(&folder, &[&["inspect", "."]], 1, "Load", &[]);
    assert!(!folder.join("out").exists(), "nothing is written");
}

#[test]
fn parameters() {
    let folder = prepared("bad_parameters");
    refused(
        &folder,
        &[GENERATE, &["--requires-grad", "fc9.weight"]],
        1,
        "Graph",
        &["\"fc9.weight\" does not exist", "\"fc1.weight\""],
    );
    refused(&folder, &[GENERATE, &["--requires-grad", "fc9.*"]], 1, "Graph", &["no parameter matches \"fc9.*\""]);
    refused(
        &folder,
        &[GENERATE, &["--requires-grad", "fc1.bias", "--frozen", "fc1.bias"]],
        1,
        "Graph",
        &["\"fc1.bias\" stands in both"],
    );
    refused(&folder, &[GENERATE, &["--frozen", "*"]], 1, "Graph", &["no trainable parameter"]);
    refused(&folder, &[GENERATE, &["--additional-output", "logits"]], 1, "Graph", &["\"logits\" is not a value"]);
    refused(
        &folder,
        &[&["generate", "model.onnx", "--loss", "none", "--output-dir", "out"]],
        1,
        "Gradient",
        &["scalar"],
    );
    refused(&folder, &[GENERATE, &["--betas", "0.9", "1.5"]], 1, "Graph", &["1.5"]);
    refused(
        &folder,
        &[GENERATE, &["--optimizer", "sgd", "--eps", "0.1"]],
        2,
        "Usage",
        &["--eps belongs to --optimizer adamw"],
    );
    refused(&folder, &[&["generate", "model.onnx", "--output-dir", "out"]], 2, "Usage", &["--loss"]);
    refused(&folder, &[&["generate", "model.onnx", "--loss", "hinge", "--output-dir", "out"]], 2, "Usage", &["hinge"]);
    assert!(!folder.join("out").exists(), "nothing is written");
}

#[test]
fn checkpoints() {
    let folder = prepared("bad_checkpoints");
    let resume = |name: &str, kind: &str, parts: &[&str]| {
        refused(&folder, &[TRAIN, &["data.npz", "--resume", name]], 1, kind, parts);
    };
    resume("missing", "Load", &["missing"]);
    let checkpoint = std::fs::read(folder.join("a/checkpoint")).unwrap();
    std::fs::write(folder.join("half"), &checkpoint[..checkpoint.len() / 2]).unwrap();
    resume("half", "Checkpoint", &["half"]);
    std::fs::write(folder.join("noise"), noise(3000)).unwrap();
    resume("noise", "Load", &["noise"]);
    for cut in (0..checkpoint.len()).step_by(checkpoint.len() / 40 + 1) {
        std::fs::write(folder.join("cut"), &checkpoint[..cut]).unwrap();
        let ran = ontrain(&folder, &["eval", "--artifacts", "a", "--data", "data.npz", "--checkpoint", "cut"]);
        assert_eq!(ran.code, Some(1), "cut at {cut}: {}", ran.stderr);
    }
    resume(&fixture("checkpoint/bnnet"), "Checkpoint", &["another model"]);
    std::fs::write(folder.join("wide.onnx"), classifier(FEATURES + 1)).unwrap();
    ontrain(&folder, &["generate", "wide.onnx", "--loss", "cross-entropy", "--output-dir", "wide"]).ok();
    resume("wide/checkpoint", "Checkpoint", &["\"fc1.weight\"", "float32[8,4]", "float32[8,5]"]);
    ontrain(&folder, &[GENERATE, &["--nominal-checkpoint"]].concat()).ok();
    resume("out/nominal_checkpoint", "State", &["nominal"]);
    assert!(!folder.join("c").exists(), "nothing is saved");
}

#[test]
fn resuming_otherwise_within_an_epoch() {
    let folder = prepared("bad_resume");
    let training = [TRAIN, &["data.npz", "--batch-size", "20", "--save-every", "1", "--epochs", "1000000"]].concat();
    let mut child = command(&folder, &training).stdout(std::process::Stdio::null()).spawn().unwrap();
    // A position within an epoch is two of three; look until one comes by.
    let within = (0..2000).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let copied = std::fs::copy(folder.join("c"), folder.join("within"));
        copied.is_ok() && {
            let seen = ontrain(&folder, &["inspect", "within", "--json"]).ok().json().remove(0);
            seen["properties"]["ontrain.batch"].as_u64() > Some(0)
        }
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(within);
    let resume = |more: &[&str], parts: &[&str]| {
        refused(&folder, &[TRAIN, &["data.npz", "--resume", "within"], more], 1, "State", parts)
    };
    resume(&["--batch-size", "15"], &["--batch-size must stay; expected 20; found 15"]);
    resume(&["--seed", "1"], &["--seed must stay"]);
    resume(&["--no-shuffle"], &["--shuffle must stay"]);
}

#[test]
fn data_files() {
    let folder = prepared("bad_data");
    let (x, labels) = data();
    let write = |name: &str, arrays: &[(&str, &Tensor)]| npz(&folder.join(name), arrays);
    for verb in [TRAIN, EVAL] {
        let fails = |file: &str, kind: &str, parts: &[&str]| refused(&folder, &[verb, &[file]], 1, kind, parts);
        fails("missing.npz", "Load", &["missing.npz"]);
        std::fs::write(folder.join("noise.npz"), noise(3000)).unwrap();
        fails("noise.npz", "Load", &["noise.npz", ".npz archive"]);
        write("names.npz", &[("x", &x), ("y", &labels)]);
        fails("names.npz", "Input", &["no array \"labels\" for input \"labels\"", "found \"x\", \"y\""]);
        write("rank.npz", &[("x", &x.clone().reshaped(&[SAMPLES, 2, 2]).unwrap()), ("labels", &labels)]);
        fails("rank.npz", "Input", &["input \"x\" has the wrong rank", "float32[batch,4]"]);
        write(
            "shape.npz",
            &[("x", &x.clone().reshaped(&[SAMPLES * 2, 2]).unwrap()), ("labels", &Tensor::ints(&[0; SAMPLES * 2]))],
        );
        fails("shape.npz", "Input", &["input \"x\" has the wrong shape", "float32[batch,4]"]);
        write("dtype.npz", &[("x", &x), ("labels", &Tensor::new(&[SAMPLES], &[0.5f32; SAMPLES]).unwrap())]);
        fails("dtype.npz", "Input", &["input \"labels\" has the wrong dtype", "expected int64; found float32"]);
        write("short.npz", &[("x", &x), ("labels", &Tensor::ints(&[0; 7]))]);
        fails("short.npz", "Input", &["\"labels\" has another number of samples than \"x\"", "expected 60; found 7"]);
        write("none.npz", &[("x", &Tensor::new::<f32>(&[0, 4], &[]).unwrap()), ("labels", &Tensor::ints(&[]))]);
        fails("none.npz", "Input", &["no samples"]);
        write("label.npz", &[("x", &x), ("labels", &Tensor::ints(&[3; SAMPLES]))]);
        fails("label.npz", "Input", &["label", "3"]);
    }
    write("nan.npz", &[("x", &Tensor::new(x.shape(), &[f32::NAN; SAMPLES * FEATURES]).unwrap()), ("labels", &labels)]);
    refused(&folder, &[TRAIN, &["nan.npz"]], 1, "State", &["the loss is NaN at train step 1"]);
    let whole = std::fs::read(folder.join("data.npz")).unwrap();
    for cut in (0..whole.len()).step_by(whole.len() / 25 + 1) {
        std::fs::write(folder.join("cut.npz"), &whole[..cut]).unwrap();
        let ran = ontrain(&folder, &[EVAL, &["cut.npz"]].concat());
        assert_eq!(ran.code, Some(1), "cut at {cut}: {}", ran.stderr);
    }
    assert!(!folder.join("c").exists(), "nothing is saved");
}

#[test]
fn images() {
    let folder = prepared("bad_images");
    let labels = Tensor::new(&[SAMPLES], &[0u8; SAMPLES]).unwrap();
    std::fs::write(folder.join("labels"), idx(&labels)).unwrap();
    std::fs::write(folder.join("large"), idx(&Tensor::new(&[SAMPLES, 3, 3], &[0u8; SAMPLES * 9]).unwrap())).unwrap();
    std::fs::write(folder.join("half"), &idx(&labels)[..20]).unwrap();
    let fails = |images: &str, labels: &str, kind: &str, parts: &[&str]| {
        refused(&folder, &[&["eval", "--artifacts", "a", "--images", images, "--labels", labels]], 1, kind, parts);
    };
    fails("missing", "labels", "Load", &["missing"]);
    fails("large", "labels", "Input", &["the images do not fit input \"x\"", "[batch,4]", "[60,3,3]"]);
    fails("half", "labels", "Load", &["half"]);
    fails("data.npz", "labels", "Load", &["not an IDX file"]);
}

#[test]
fn command_lines() {
    let folder = prepared("bad_lines");
    let usage = |args: &[&str], parts: &[&str]| refused(&folder, &[args], 2, "Usage", parts);
    usage(&["fly"], &["fly"]);
    usage(&["train", "--artifacts", "a", "--save", "c"], &["--data"]);
    usage(&["train", "--artifacts", "a", "--data", "data.npz"], &["--save"]);
    usage(&["eval", "--artifacts", "a", "--images", "x"], &["--labels"]);
    usage(&[TRAIN, &["data.npz", "--batch-size", "0"]].concat(), &["--batch-size"]);
    usage(&[TRAIN, &["data.npz", "--accumulate", "0"]].concat(), &["--accumulate"]);
    usage(&[TRAIN, &["data.npz", "--warmup", "3"]].concat(), &["--schedule linear"]);
    usage(&[TRAIN, &["data.npz", "--inputs", "x"]].concat(), &["INPUT=ARRAY"]);
    usage(&[TRAIN, &["data.npz", "--inputs", "x=x", "x=y"]].concat(), &["twice"]);
    usage(&["plan", "model.onnx", "--shape", "x=a,b"], &["INPUT=SIZES"]);
}

#[test]
fn the_rest() {
    let folder = prepared("bad_rest");
    let fails = |args: &[&str], kind: &str, parts: &[&str]| refused(&folder, &[args], 1, kind, parts);
    fails(&["train", "--artifacts", "nowhere", "--data", "data.npz", "--save", "c"], "Load", &["nowhere/checkpoint"]);
    fails(
        &["train", "--artifacts", "a", "--data", "data.npz", "--save", "no/folder/c"],
        "Device",
        &["no/folder/c", "folder does not exist"],
    );
    fails(&["train", "--artifacts", "a", "--data", "data.npz", "--save", "a"], "Device", &["it is a folder"]);
    fails(&[TRAIN, &["data.npz", "--lr", "NaN"]].concat(), "Input", &["learning rate"]);
    fails(
        &[TRAIN, &["data.npz", "--inputs", "images=x"]].concat(),
        "Input",
        &["no input \"images\"", "\"labels\" int64"],
    );
    let export = ["export", "--artifacts", "a", "--checkpoint", "a/checkpoint", "-o", "o.onnx", "--output-names"];
    fails(&[&export[..], &["logits"]].concat(), "Graph", &["no value \"logits\"", "\"scores\""]);
    fails(&["plan", "model.onnx"], "Input", &["input \"x\" open", "--shape x=SIZES"]);
    fails(&["plan", "model.onnx", "--shape", "x=2,5"], "Input", &["does not fit input \"x\""]);
    fails(&["plan", "model.onnx", "--shape", "y=2,4"], "Input", &["no input \"y\""]);
    fails(&["plan", "a/optimizer_model.onnx"], "Unsupported", &["optimizer model"]);
    ontrain(&folder, &[GENERATE, &["--optimizer", "none"]].concat()).ok();
    fails(&["train", "--artifacts", "out", "--data", "data.npz", "--save", "c"], "Load", &["optimizer_model.onnx"]);
    assert!(!folder.join("c").exists() && !folder.join("o.onnx").exists());
}
