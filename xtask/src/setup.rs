//! `cargo xtask setup`, and the functions by which other verbs get what they need when they need it.
//! Everything lands in the cache folder (see `cache`), outside the checkout, once.

mod apt;
mod chromium;
mod data;
mod gpu;
mod npm;
mod python;
mod wasm;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cache, sh};

pub(crate) use chromium::chromium;
pub(crate) use data::{mnist, node_suite};
pub(crate) use gpu::{Gpu, chromium_gpu, gpu};
pub(crate) use npm::{install as npm_install, package as npm_package};
pub(crate) use python::onnxruntime_training;
pub(crate) use wasm::{TARGET as WASM_TARGET, toolchain};

/// Fetch everything that build, test and demo need: a wasm32 standard library, the npm tools, a
/// browser, a driver for the GPU. Each of them also fetches what it lacks by itself.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also fetch the test data and the runtimes that results are compared with
    #[arg(long)]
    data: bool,
    /// Print only the cache folder
    #[arg(long)]
    print_cache: bool,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let cache = cache::dir()?;
        if self.print_cache {
            println!("{}", cache.display());
            return Ok(());
        }
        println!("cache: {}", cache.display());
        ready("Node", node()?);
        ready("wasm32 standard library", toolchain()?.describe());
        ready("wasm-opt", wasm_opt()?.display());
        ready("tsc", tsc()?.display());
        ready("Node's types", node_types()?.display());
        ready("playwright-core", playwright()?.display());
        ready("Chromium", chromium()?.display());
        match gpu(Gpu::Hardware) {
            Ok(gpu) => ready("GPU", gpu),
            Err(error) => ready("GPU, which only the backend webgpu uses", format!("missing: {error:#}")),
        }
        if self.data {
            ready("MNIST", mnist()?.display());
            ready("ONNX node suite", node_suite()?.display());
            ready("onnxruntime-web", onnxruntime_web()?.display());
            ready("onnxruntime-node", onnxruntime_node()?.display());
            for package in tfjs()? {
                ready("TensorFlow.js", package.display());
            }
            ready("jax-js", jax_js()?.display());
            match onnxruntime_training() {
                Ok(python) => ready("onnxruntime-training", python.display()),
                Err(error) => {
                    ready("onnxruntime-training, which only bench --peers uses", format!("missing: {error:#}"));
                }
            }
        }
        Ok(())
    }
}

fn ready(what: &str, place: impl std::fmt::Display) {
    println!("{what}: {place}");
}

/// The version of Node.js on PATH, which must be at least 18.
pub(crate) fn node() -> Result<String> {
    let version = sh::read(Command::new("node").arg("--version")).context("Node.js 18 or newer is needed")?;
    let version = version.trim();
    let major: u32 = version.trim_start_matches('v').split('.').next().unwrap_or_default().parse().unwrap_or(0);
    if major < 18 {
        bail!("Node.js 18 or newer is needed; `node --version` says {version:?}");
    }
    Ok(version.to_owned())
}

/// The script of binaryen's `wasm-opt`, to be run by Node.
pub(crate) fn wasm_opt() -> Result<PathBuf> {
    Ok(npm_package("binaryen", "132.0.0")?.join("bin").join("wasm-opt"))
}

/// The script of TypeScript's compiler, to be run by Node.
pub(crate) fn tsc() -> Result<PathBuf> {
    Ok(npm_package("typescript", "5.9.3")?.join("bin").join("tsc"))
}

/// The `node_modules/@types` folder with Node's declarations.
pub(crate) fn node_types() -> Result<PathBuf> {
    let node = npm_package("@types/node", "20.19.43")?;
    Ok(node.parent().context("an npm package has a folder above it")?.to_owned())
}

/// The package that drives Chromium in tests. It brings no browser.
pub(crate) fn playwright() -> Result<PathBuf> {
    npm_package("playwright-core", "1.65.1")
}

/// Chromium's WebGPU for Node.
pub(crate) fn node_webgpu() -> Result<PathBuf> {
    npm_package("webgpu", "0.6.2")
}

/// The last onnxruntime-web that could train: the peer in the browser and in Node.
pub(crate) fn onnxruntime_web() -> Result<PathBuf> {
    npm_package("onnxruntime-web", "1.19.2")
}

/// TensorFlow.js and its WebGPU backend: a peer on WebGPU.
pub(crate) fn tfjs() -> Result<[PathBuf; 2]> {
    Ok([npm_package("@tensorflow/tfjs", "4.22.0")?, npm_package("@tensorflow/tfjs-backend-webgpu", "4.22.0")?])
}

/// jax-js: a peer on WebGPU.
pub(crate) fn jax_js() -> Result<PathBuf> {
    npm_package("@jax-js/jax", "0.1.25")
}

/// ONNX Runtime's native inference for Node, to run what ontrain exports.
pub(crate) fn onnxruntime_node() -> Result<PathBuf> {
    npm_package("onnxruntime-node", "1.19.2")
}
