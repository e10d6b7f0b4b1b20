//! `cargo xtask replay`: trains what another engine has trained, and compares every number that it wrote down.
//!
//! A case is a folder with a trace.json, laid out in one of two ways:
//!
//! | layout | trace.json has | written by | what is compared |
//! | --- | --- | --- | --- |
//! | golden | `runs` | ONNX Runtime On-Device Training, with its own artifacts | losses, rates, gradients, parameters of a training |
//! | torch | `traces` | PyTorch, with its own ONNX exports | outputs, losses, gradients, short trainings |
//!
//! Everything about a case comes from its files.

pub(crate) mod data;
pub(crate) mod engine;
mod golden;
mod losses;
mod nudge;
mod package;
mod torch;
mod verdict;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use engine::{Engine, Target, Where};
use verdict::Verdict;

/// Replay trainings recorded by ONNX Runtime or PyTorch: one JSON line per run, fails if one of them is not ok
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folders of cases, or cases
    #[arg(required = true, value_name = "DIR")]
    dirs: Vec<PathBuf>,
    #[command(flatten)]
    place: Where,
    /// How many differences a line spells out
    #[arg(long, default_value_t = 3)]
    reasons: usize,
}

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let mut engine = self.place.engine()?;
        let failed = replay(&self.dirs, &mut *engine, self.reasons)?;
        ensure!(failed.is_empty(), "{} runs are not ok: {}", failed.len(), failed.join(", "));
        Ok(())
    }
}

/// The cases in tests/fixtures, natively and on the npm package.
pub(crate) fn test() -> Result<()> {
    let dirs: Vec<PathBuf> = ["golden", "torch"].map(|name| crate::sh::root().join("tests/fixtures").join(name)).into();
    for backend in [Target::Cpu, Target::Wasm] {
        Args { dirs: dirs.clone(), place: Where::at(backend), reasons: 3 }.run()?;
    }
    Ok(())
}

/// Cases of all kinds of kernels, for the GPU of a page: it is an emulated one, so only a few.
const IN_CHROMIUM: [&str; 6] = [
    "golden/lenet_ce",
    "golden/bnnet_ce",
    "golden/reg_adamw_clip",
    "torch/mlp_gelu_ln",
    "torch/mobilenet_micro",
    "torch/ce_label_smoothing",
];

/// The same way to the GPU, from Node.
const IN_NODE: [&str; 2] = ["golden/bnnet_ce", "golden/reg_mse"];

/// Some cases on the GPU, by the package that is installed in `project`.
pub(crate) fn test_in_chromium(project: &Path) -> Result<()> {
    installed(&IN_CHROMIUM, Target::ChromiumWebgpu, project)
}

/// As [`test_in_chromium`], in Node.
pub(crate) fn test_in_node(project: &Path) -> Result<()> {
    installed(&IN_NODE, Target::NodeWebgpu, project)
}

fn installed(cases: &[&str], backend: Target, project: &Path) -> Result<()> {
    let fixtures = crate::sh::root().join("tests").join("fixtures");
    let dirs = cases.iter().map(|name| fixtures.join(name)).collect();
    Args { dirs, place: Where::installed(backend, project), reasons: 3 }.run()
}

/// Replays the cases in `dirs`; gives the names of the runs that are not ok.
fn replay(dirs: &[PathBuf], engine: &mut dyn Engine, reasons: usize) -> Result<Vec<String>> {
    let mut failed = Vec::new();
    for folder in cases(dirs)? {
        let trace = data::json(&folder.join("trace.json"))?;
        let name = trace["case"].as_str().map(str::to_owned);
        let name = name.unwrap_or_else(|| folder.file_name().unwrap_or_default().to_string_lossy().into_owned());
        let mut report = Report { case: &name, backend: engine.name().to_owned(), reasons, failed: &mut failed };
        let case = Case { folder: &folder, trace: &trace };
        if trace["runs"].is_object() {
            golden::replay(&case, engine, &mut report);
        } else if trace["traces"].is_object() {
            torch::replay(&case, engine, &mut report);
        } else {
            report.run("trace.json", "ontrain", || bail!("neither \"runs\" nor \"traces\" is in trace.json"));
        }
    }
    Ok(failed)
}

/// The folders with a trace.json: `dirs` themselves, or what lies directly in them.
fn cases(dirs: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let is_case = |dir: &Path| dir.join("trace.json").is_file();
    let mut cases = Vec::new();
    for dir in dirs {
        if is_case(dir) {
            cases.push(dir.clone());
            continue;
        }
        let entries = std::fs::read_dir(dir).with_context(|| format!("listing {}", dir.display()))?;
        let mut found: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
        found.retain(|path| is_case(path));
        ensure!(!found.is_empty(), "{} holds no case: no folder with a trace.json", dir.display());
        found.sort();
        cases.extend(found);
    }
    Ok(cases)
}

/// A case's folder and its trace.json.
struct Case<'a> {
    folder: &'a Path,
    trace: &'a Value,
}

impl Case<'_> {
    /// The path of a file of the case.
    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The bytes of a file of the case.
    fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        crate::sh::read_file(&self.file(name))
    }
}

/// Prints the lines of a case's runs.
struct Report<'a> {
    case: &'a str,
    backend: String,
    reasons: usize,
    failed: &'a mut Vec<String>,
}

impl Report<'_> {
    /// Does a run and prints its line. An error or a panic in it is a failure of this run alone.
    fn run(&mut self, run: &str, source: &str, work: impl FnOnce() -> Result<Verdict>) {
        let verdict = guarded(work).unwrap_or_else(|error| Verdict::failed(format!("{error:#}")));
        println!("{}", verdict.line(self.case, run, source, &self.backend, self.reasons));
        if !verdict.ok() {
            self.failed.push(format!("{}/{run}/{source}", self.case));
        }
    }
}

/// Does `work`; a panic in it becomes an error that says where it was.
pub(crate) fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    static WHERE: Mutex<String> = Mutex::new(String::new());
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        std::panic::set_hook(Box::new(|info| {
            if let Ok(mut place) = WHERE.lock() {
                *place = info.location().map_or_else(String::new, |at| format!(" at {}:{}", at.file(), at.line()));
            }
        }));
    });
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
            let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
            let place = WHERE.lock().map_or_else(|_| String::new(), |place| place.clone());
            bail!("panic{place}: {text}")
        }
    }
}
