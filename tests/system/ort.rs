//! The way back to ONNX Runtime 1.19.2: it trains on from ontrain's artifacts and checkpoint, with the same losses.
//!
//! `tests/ort_checkpoint.py` does ONNX Runtime's part, in the Python that `ONTRAIN_ORT_PYTHON` names (else `python3`). Where the
//! package onnxruntime-training-cpu 1.19.2 is not installed it says so and passes.

use super::support::{Case, case};
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::CheckpointState;
use ontrain::tensor::{DType, Tensor, show_dims};
use ontrain::train::{Module, Optimizer};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Steps before the checkpoint and after it.
const BEFORE: usize = 3;
const AFTER: usize = 10;
const RATE: f32 = 1e-3;

/// A tensor as .npy, as one batch of one.
fn write_npy(path: &Path, tensor: &Tensor) {
    let descr = match tensor.dtype() {
        DType::F32 => "<f4",
        DType::I64 => "<i8",
        other => panic!("{other}"),
    };
    let dims: Vec<usize> = [1].iter().chain(tensor.shape()).copied().collect();
    let shape = show_dims(&dims).replace('[', "(").replace(']', ",)");
    let mut header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    while (10 + header.len() + 1) % 64 != 0 {
        header.push(' ');
    }
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(tensor.bytes());
    std::fs::write(path, bytes).unwrap();
}

/// Losses of some steps.
fn train(case: &Case, module: &mut Module<Cpu>, optimizer: &mut Optimizer<Cpu>, steps: usize) -> Vec<f32> {
    let step = |_| {
        let loss = module.train_step(&case.inputs()).unwrap();
        optimizer.step(module).unwrap();
        module.lazy_reset_grad();
        loss
    };
    (0..steps).map(step).collect()
}

/// Trains, saves, trains on; leaves all that ONNX Runtime needs to do the second half itself.
fn folder(name: &str, case: &Case) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ort").join(name);
    std::fs::create_dir_all(&folder).unwrap();
    let (mut module, mut optimizer) = case.start();
    optimizer.set_learning_rate(RATE).unwrap();
    train(case, &mut module, &mut optimizer, BEFORE);
    let mut state = CheckpointState::from_bytes(&case.artifacts.checkpoint).unwrap();
    module.save_parameters(&mut state).unwrap();
    optimizer.save(module.backend(), &mut state).unwrap();
    let losses = train(case, &mut module, &mut optimizer, AFTER);
    let eval = module.eval_step(&case.inputs()).unwrap();
    case.artifacts.save(&folder, "").unwrap();
    state.save(folder.join("checkpoint"), true).unwrap();
    for (k, input) in case.inputs.iter().enumerate() {
        write_npy(&folder.join(format!("input_{k}.npy")), input);
    }
    let json = format!("{{\"first_step\": {BEFORE}, \"lr\": {RATE}, \"losses\": {losses:?}, \"eval_loss\": {eval}}}");
    std::fs::write(folder.join("losses.json"), json).unwrap();
    folder
}

#[test]
fn onnx_runtime_trains_on() {
    let python = std::env::var("ONTRAIN_ORT_PYTHON").unwrap_or_else(|_| "python3".into());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ort_checkpoint.py");
    for name in ["mlp", "lenet", "bnnet", "regression"] {
        let folder = folder(name, &case(name));
        let Ok(output) = Command::new(&python).arg(&script).arg(&folder).output() else {
            println!("skipped: there is no {python}");
            return;
        };
        let said = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        println!("{name}: {}", said.trim());
        assert!(output.status.success(), "{name}: {said}");
    }
}
