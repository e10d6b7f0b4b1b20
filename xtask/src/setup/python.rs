//! Python, for the few things that exist only there.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::{cache, sh};

/// The last release of ONNX Runtime with On-Device Training.
const ONNXRUNTIME_TRAINING: &str = "1.19.2";

/// The Python on PATH.
pub(crate) fn python() -> Option<&'static str> {
    ["python3", "python"].into_iter().find(|program| sh::on_path(program).is_some())
}

/// A Python that has ONNX Runtime with On-Device Training: the native peer. It fails where its makers published no wheel
/// for the machine or for the Python on PATH.
pub(crate) fn onnxruntime_training() -> Result<PathBuf> {
    let name = format!("onnxruntime-training-{ONNXRUNTIME_TRAINING}");
    let program = |dir: &Path| {
        dir.join(if cfg!(windows) { "Scripts" } else { "bin" }).join(if cfg!(windows) {
            "python.exe"
        } else {
            "python"
        })
    };
    let what = format!("Python package onnxruntime-training-cpu {ONNXRUNTIME_TRAINING}");
    let place = cache::entry(&name, "1", &what, |dir| {
        let python = python().context("python3 must be on PATH")?;
        sh::read(Command::new(python).args(["-m", "venv"]).arg(dir.join("venv")))?;
        let mut pip = Command::new(program(&dir.join("venv")));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--only-binary=:all:", "numpy<2"]);
        sh::read(pip.arg(format!("onnxruntime-training-cpu=={ONNXRUNTIME_TRAINING}")))?;
        Ok(())
    })?;
    Ok(program(&place.join("venv")))
}
