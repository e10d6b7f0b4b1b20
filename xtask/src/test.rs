//! `cargo xtask test`: every check there is, cheapest first.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::setup::{self, Gpu};
use crate::{features, node_suite, pack, replay, sh};

/// Run every check, cheapest first; ends with a summary and fails if one of them failed
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run only this stage (may be given several times)
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
}

/// One check. A stage whose input is missing fails: nothing is skipped in silence.
struct Stage {
    name: &'static str,
    run: fn() -> Result<()>,
}

/// The stages, cheapest first. Adding one is one line here.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", run: fmt },
    Stage { name: "clippy", run: clippy },
    Stage { name: "features", run: features::check },
    Stage { name: "unit", run: unit },
    Stage { name: "traces", run: replay::test },
    Stage { name: "node-suite", run: node_suite::test },
    Stage { name: "webgpu", run: webgpu },
    Stage { name: "wasm-node", run: wasm_node },
    Stage { name: "chromium", run: chromium },
];

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let names = || STAGES.iter().map(|stage| stage.name).collect::<Vec<_>>().join(", ");
        if let Some(unknown) = self.only.iter().find(|name| STAGES.iter().all(|stage| stage.name != **name)) {
            bail!("there is no stage {unknown:?}; the stages are {}", names());
        }
        let chosen = |stage: &&Stage| self.only.is_empty() || self.only.iter().any(|name| name == stage.name);

        // Results must not depend on the machine's GPU, if it has one. Without any, the stage webgpu fails and says why.
        match setup::gpu(Gpu::Software) {
            Ok(gpu) => println!("GPU: {gpu}"),
            Err(error) => println!("no GPU: {error:#}"),
        }
        let mut results: Vec<(&str, Duration, bool)> = Vec::new();
        for stage in STAGES.iter().filter(chosen) {
            println!("\n=== {}", stage.name);
            let start = Instant::now();
            let result = (stage.run)();
            if let Err(error) = &result {
                println!("=== {} failed: {error:#}", stage.name);
            }
            results.push((stage.name, start.elapsed(), result.is_ok()));
        }
        summarize(&results)
    }
}

fn summarize(results: &[(&str, Duration, bool)]) -> Result<()> {
    println!("\n=== summary");
    for (name, time, ok) in results {
        println!("{name:<12} {:>8.1} s  {}", time.as_secs_f64(), if *ok { "ok" } else { "FAILED" });
    }
    let failed: Vec<&str> = results.iter().filter(|(_, _, ok)| !ok).map(|(name, _, _)| *name).collect();
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn fmt() -> Result<()> {
    sh::run(sh::cargo().args(["fmt", "--all", "--check"]))
}

/// Also for wasm32, where clippy can: it needs a standard library of its own version.
fn clippy() -> Result<()> {
    let lint = |which: &[&str]| {
        let mut cargo = sh::cargo();
        sh::run(cargo.args(["clippy", "--quiet"]).args(which).args(["--", "-Dwarnings"]))
    };
    lint(&["--workspace", "--all-targets"])?;
    if !setup::toolchain()?.in_use() {
        println!("the wasm32 code is not linted: clippy cannot use a standard library of another version");
        return Ok(());
    }
    lint(&["--package", "ontrain", "--lib", "--target", setup::WASM_TARGET])
}

/// Unit, integration and documentation tests. xtask-bindgen has none, and is built with its own profile. On a machine that
/// is to have a GPU, tests that find none fail.
fn unit() -> Result<()> {
    let mut cargo = sh::cargo();
    cargo.env("ONTRAIN_NEED_WEBGPU", "1");
    sh::run(cargo.args(["test", "--quiet", "--workspace", "--exclude", "xtask-bindgen"]))
}

/// Recorded trainings and the node suite on the native GPU, in processes of their own: a driver may crash.
fn webgpu() -> Result<()> {
    let xtask = || std::env::current_exe().map(Command::new);
    let fixtures = sh::root().join("tests").join("fixtures");
    let cases = ["golden", "torch"].map(|name| fixtures.join(name));
    sh::run(xtask()?.arg("replay").args(cases).args(["--backend", "webgpu"]))?;
    sh::run(xtask()?.args(["node-suite", "--grad", "--backend", "webgpu"]))
}

/// The npm package in Node, on the processor and on the GPU that another package brings.
fn wasm_node() -> Result<()> {
    let project = pack::pack_and_install()?;
    pack::run_tests(&project)?;
    replay::test_in_node(&project)
}

/// The npm package in a page, on the processor and on Chromium's GPU.
fn chromium() -> Result<()> {
    let project = pack::pack_and_install()?;
    pack::run_in_chromium(&project)?;
    replay::test_in_chromium(&project)
}
