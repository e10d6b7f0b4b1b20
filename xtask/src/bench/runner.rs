//! The programs that time steps: each is started once per case and answers line by line, so that two of them can be asked
//! in turns.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{pack, setup, sh};

/// Where steps are run.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Env {
    Native,
    Node,
    Chromium,
    /// On Chromium's GPU, which is an emulated one unless ONTRAIN_GPU is hardware
    ChromiumWebgpu,
}

impl Env {
    /// As the output has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Env::Native => "native",
            Env::Node => "node",
            Env::Chromium => "chromium",
            Env::ChromiumWebgpu => "chromium-webgpu",
        }
    }

    /// The numbers of threads to measure: wasm has one.
    pub(super) fn threads(self) -> &'static [usize] {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if self == Env::Native && cores > 1 { &[1, 2] } else { &[1] }
    }

    /// Are models and artifacts the same on both sides? Otherwise only those can be compared that the peers have by hand.
    pub(super) fn peers_load_models(self) -> bool {
        self != Env::ChromiumWebgpu
    }

    fn in_browser(self) -> bool {
        matches!(self, Env::Chromium | Env::ChromiumWebgpu)
    }
}

/// What ontrain is compared with.
#[derive(Clone, Copy)]
pub(super) struct Peer {
    /// As the output has it.
    pub(super) name: &'static str,
    /// As the scripts in benches/ have it.
    script: &'static str,
}

const PYTHON: Peer = Peer { name: "onnxruntime-training 1.19.2 (Python)", script: "ort.py" };
const ONNXRUNTIME_WEB: Peer = Peer { name: "onnxruntime-web 1.19.2", script: "onnxruntime-web" };
const WEBGPU: [Peer; 2] = [
    Peer { name: "tfjs-webgpu 4.22.0", script: "tfjs-webgpu" },
    Peer { name: "jax-js 0.1.25 on WebGPU", script: "jax-js-webgpu" },
];

/// The programs of one environment.
pub(super) struct Programs {
    pub(super) env: Env,
    /// Natively the benchmark's executable, else the project where the packages are installed.
    ours: PathBuf,
    /// The Python that has the native peer.
    python: Option<PathBuf>,
    /// What there is to compare with.
    pub(super) peers: Vec<Peer>,
}

/// Files of benches/ that run in the project.
const SCRIPTS: [&str; 4] = ["session.mjs", "peers.mjs", "node.mjs", "chromium.mjs"];

impl Programs {
    /// Builds and installs what `envs` need. A native peer that cannot be installed is left out with a word.
    pub(super) fn prepare(envs: &[Env], peers: bool) -> Result<Vec<Self>> {
        let mut programs = Vec::new();
        let mut project = None;
        for &env in envs {
            if env == Env::Native {
                programs.push(Self::native(peers)?);
                continue;
            }
            let ours = match &project {
                Some(made) => PathBuf::clone(made),
                None => project.insert(install(peers, envs)?).clone(),
            };
            let of_env: &[Peer] = if env == Env::ChromiumWebgpu { &WEBGPU } else { &[ONNXRUNTIME_WEB] };
            let peers = if peers { of_env.to_vec() } else { Vec::new() };
            programs.push(Self { env, ours, python: None, peers });
        }
        Ok(programs)
    }

    fn native(peers: bool) -> Result<Self> {
        let ours = sh::step("the native benchmark", executable)?;
        let python = match peers.then(setup::onnxruntime_training).transpose() {
            Ok(python) => python,
            Err(error) => {
                eprintln!("skipped: the native peer cannot be installed: {error:#}");
                None
            }
        };
        let peers = python.iter().map(|_| PYTHON).collect();
        Ok(Self { env: Env::Native, ours, python, peers })
    }

    /// Starts ontrain on a case's folder.
    pub(super) fn start(&self, folder: &Path, threads: usize) -> Result<Runner> {
        let command = match self.env {
            Env::Native => {
                let mut program = Command::new(&self.ours);
                program.arg(folder).env("RAYON_NUM_THREADS", threads.to_string());
                program
            }
            Env::Node | Env::Chromium => self.script("ontrain", folder)?,
            Env::ChromiumWebgpu => self.script("ontrain-webgpu", folder)?,
        };
        Runner::start(command, format!("ontrain ({})", self.env.name()))
    }

    /// Starts a peer.
    pub(super) fn start_peer(&self, peer: Peer, folder: &Path, threads: usize) -> Result<Runner> {
        let command = match &self.python {
            Some(python) => {
                let mut program = Command::new(python);
                program.arg(sh::root().join("benches").join(peer.script)).arg(folder).arg(threads.to_string());
                program
            }
            None => self.script(peer.script, folder)?,
        };
        Runner::start(command, format!("{} ({})", peer.name, self.env.name()))
    }

    fn script(&self, which: &str, folder: &Path) -> Result<Command> {
        let mut node = pack::node(&self.ours);
        if self.env.in_browser() {
            node.env("CHROME_PATH", setup::chromium()?);
        }
        let script = if self.env.in_browser() { "chromium" } else { "node" };
        node.arg(format!("bench/{script}.mjs")).arg(which).arg(folder);
        Ok(node)
    }
}

/// Makes the project where the npm package, the peers and the scripts are installed.
fn install(peers: bool, envs: &[Env]) -> Result<PathBuf> {
    let project = pack::pack_and_install()?;
    let mut packages = Vec::new();
    if envs.iter().any(|env| env.in_browser()) {
        packages.push(setup::playwright()?);
        pack::copy_tests(&project)?;
    }
    if peers && envs.iter().any(|env| matches!(env, Env::Node | Env::Chromium)) {
        packages.push(setup::onnxruntime_web()?);
    }
    if peers && envs.contains(&Env::ChromiumWebgpu) {
        packages.extend(setup::tfjs()?);
        packages.push(setup::jax_js()?);
    }
    for package in packages {
        pack::link(&project, &package)?;
    }
    for name in SCRIPTS {
        let script = sh::read_file(&sh::root().join("benches").join(name))?;
        sh::write_file(&project.join("bench").join(name), script)?;
    }
    Ok(project)
}

/// Builds benches/step.rs and returns the program.
fn executable() -> Result<PathBuf> {
    let mut cargo = sh::cargo();
    cargo.args(["bench", "--quiet", "--package", "ontrain", "--bench", "step", "--no-run", "--message-format=json"]);
    let messages = sh::read(&mut cargo)?;
    let built = messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let mut programs = built.filter_map(|message| message["executable"].as_str().map(PathBuf::from));
    programs.next().context("cargo built no benchmark")
}

/// A program at work.
pub(super) struct Runner {
    what: String,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Runner {
    fn start(mut command: Command, what: String) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().context("starting a benchmark")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a benchmark without pipes")
        };
        Ok(Self { what, child, input: Some(input), output: BufReader::new(output) })
    }

    /// Milliseconds of each of `count` steps.
    pub(super) fn steps(&mut self, count: usize) -> Result<Vec<f64>> {
        let answer = self.ask(&format!("steps {count}"))?;
        let times: Result<Vec<f64>, _> = answer.split_whitespace().map(str::parse).collect();
        let times = times.with_context(|| format!("{} answered {answer:?}", self.what))?;
        if times.len() != count {
            bail!("{} timed {} steps instead of {count}", self.what, times.len());
        }
        Ok(times)
    }

    /// GFLOP/s of a large matrix product.
    pub(super) fn rate(&mut self) -> Result<f64> {
        let answer = self.ask("rate")?;
        answer.parse().with_context(|| format!("{} answered {answer:?}", self.what))
    }

    /// The loss of the last step.
    pub(super) fn loss(&mut self) -> Result<f64> {
        let answer = self.ask("loss")?;
        answer.parse().with_context(|| format!("{} answered {answer:?}", self.what))
    }

    fn ask(&mut self, line: &str) -> Result<String> {
        let input = self.input.as_mut().context("its input is open until it is dropped")?;
        let mut answer = String::new();
        let talked = writeln!(input, "{line}").and_then(|()| self.output.read_line(&mut answer));
        if talked.is_err() || answer.is_empty() {
            bail!("{} ended in the middle of a measurement", self.what);
        }
        Ok(answer.trim().to_owned())
    }
}

impl Drop for Runner {
    /// The end of its input ends it.
    fn drop(&mut self) {
        drop(self.input.take());
        sh::end(&mut self.child);
    }
}
