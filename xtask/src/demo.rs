//! `cargo xtask demo`: real digits learned in Node on the packed npm package, from a model exported by PyTorch to a model
//! that another runtime agrees with. The parts are those of tests/js/demo.mjs, each a process of its own.

use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::build::{WASM, sizes};
use crate::{pack, setup, sh};

/// Learn MNIST in Node on the packed npm package, export the model and compare it with ONNX Runtime
#[derive(clap::Args)]
pub(crate) struct Args {
    /// End with one line of JSON
    #[arg(long)]
    json: bool,
}

/// Test accuracy that one epoch must reach, in percent.
const WANTED: f64 = 97.5;

/// How far ONNX Runtime may be from ontrain on the exported model, in percentage points.
const TOLERANCE: f64 = 0.05;

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let mnist = setup::mnist()?;
        let project = pack::pack_and_install()?;
        pack::copy_tests(&project)?;
        pack::link(&project, &setup::onnxruntime_node()?)?;
        let work = sh::target().join("demo");
        sh::fresh_dir(&work)?;

        let trained = part(&project, &mnist, &work, "train", "LeNet-5, one epoch of MNIST in Node")?;
        let resumed =
            part(&project, &mnist, &work, "resume", "saved, reloaded and resumed in a new process; exported")?;
        let other = part(&project, &mnist, &work, "onnxruntime", "the exported model in onnxruntime-node")?;

        let size = sizes(&project.join("node_modules").join("ontrain").join("dist").join(WASM))?;
        let epoch = number(&trained, "accuracy")?;
        let (ours, theirs) = (number(&resumed, "accuracy")?, number(&other, "accuracy")?);
        let step = number(&trained, "ms_per_step")?;
        println!("\ntest accuracy: {ours:.2} % by ontrain, {theirs:.2} % by onnxruntime on the exported model");
        println!("time per step (batch 32): {step:.2} ms");
        println!("{WASM}: {size}");
        if self.json {
            let line = serde_json::json!({
                "accuracy": ours,
                "accuracy_onnxruntime": theirs,
                "ms_per_step": step,
                "wasm_brotli": size.brotli,
            });
            println!("{line}");
        }
        if epoch.min(ours).min(theirs) < WANTED {
            bail!(
                "the test accuracy is below {WANTED} %: {epoch:.2} % after the epoch, {ours:.2} % at the end, {theirs:.2} % exported"
            );
        }
        if (ours - theirs).abs() > TOLERANCE {
            bail!("ontrain and onnxruntime differ by more than {TOLERANCE} % on the exported model");
        }
        Ok(())
    }
}

/// Runs one part and returns what it found.
fn part(project: &Path, mnist: &Path, work: &Path, name: &str, what: &str) -> Result<Value> {
    sh::step(what, || {
        sh::run(pack::node(project).arg("js/demo.mjs").arg(name).arg(mnist).arg(work))?;
        let found = sh::read_file(&work.join(format!("{name}.json")))?;
        serde_json::from_slice(&found).with_context(|| format!("{name}.json is not JSON"))
    })
}

fn number(value: &Value, name: &str) -> Result<f64> {
    value[name].as_f64().with_context(|| format!("the demo found no {name}"))
}
