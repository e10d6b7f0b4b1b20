//! `cargo xtask bench`: the time of a training step, natively and on wasm, beside ONNX Runtime's.
//!
//! A step is forward and backward, the optimizer's step and the reset, on one fixed batch. ontrain and its peers run in
//! processes of their own that are asked for a few steps in turns, so that all see the same machine; their times are
//! medians over all rounds. On WebGPU the peers are libraries that load no ONNX models; there both sides read the loss
//! of every step, and it must be the same.
//!
//! | field | meaning |
//! | --- | --- |
//! | `ours_ms`, `peer_ms` | milliseconds of a step |
//! | `ratio` | `ours_ms / peer_ms`: below 1, ontrain is faster |
//! | `floor_fraction` | not on WebGPU: the part of `ours_ms` in which the step's matrix products and convolutions would be done at the rate of ontrain's own product of 1024×1024 matrices in the same environment |

mod cases;
mod runner;

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde_json::json;

use crate::build::{WASM, sizes};
use crate::{build, readme, setup, sh};
use cases::{BATCH, CASES, Case, Prepared};
use runner::{Env, Peer, Programs, Runner};

/// Time training steps of four models natively, in Node and in Chromium
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Also time ONNX Runtime 1.19.2 (Python natively, onnxruntime-web elsewhere), in turns; on WebGPU TensorFlow.js
    /// and jax-js
    #[arg(long)]
    peers: bool,
    /// Print a line of JSON per measurement instead of a table
    #[arg(long)]
    json: bool,
    /// Write the table into README.md
    #[arg(long)]
    write: bool,
    /// Only this model: mlp, lenet, mnv2 or tfm (may be given several times)
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Only this environment (may be given several times). Default: all but chromium-webgpu
    #[arg(long = "env", value_name = "NAME")]
    envs: Vec<Env>,
}

/// The name of the table's markers in README.md.
const PART: &str = "bench";

/// How often the sides take turns.
const ROUNDS: usize = 9;

/// About how long a turn takes, and the most and fewest steps in it. More would let a fixed batch be learned until
/// its gradients are denormal numbers, which are slow.
const TURN_MS: f64 = 300.0;
const TURN_STEPS: (f64, f64) = (3.0, 60.0);

/// A pause between turns: threads of the other side may spin for a while before they sleep.
const PAUSE: Duration = Duration::from_millis(40);

impl Args {
    pub(crate) fn run(self) -> Result<()> {
        let known = CASES.map(|case| case.name);
        for name in &self.cases {
            ensure!(known.contains(&&**name), "there is no case {name:?}; the cases are {}", known.join(", "));
        }
        let envs = if self.envs.is_empty() { vec![Env::Native, Env::Node, Env::Chromium] } else { self.envs.clone() };
        let wanted = |case: &&Case| self.cases.is_empty() || self.cases.iter().any(|name| name == case.name);
        let cases: Vec<&Case> = CASES.iter().filter(wanted).collect();
        let programs = Programs::prepare(&envs, self.peers)?;
        let package = sizes(&build::package(build::Mode::Release)?.join("dist").join(WASM))?;
        let prepared = sh::step("artifacts of the models", || {
            cases.iter().map(|case| case.prepare()).collect::<Result<Vec<_>>>()
        })?;

        let mut rows = Vec::new();
        let mut show = |row: Row| {
            println!("{}", if self.json { row.json() } else { row.markdown() });
            rows.push(row);
        };
        if !self.json {
            println!("{HEADER}");
        }
        for program in &programs {
            for &threads in program.env.threads() {
                for (case, files) in cases.iter().zip(&prepared) {
                    measure(program, threads, case, files)?.into_iter().for_each(&mut show);
                }
            }
        }
        if !self.json {
            println!("{WASM}: {package}");
        }
        if self.write {
            readme::write(PART, &section(&rows, &package)?)?;
        }
        Ok(())
    }
}

/// The rows of a case: one per peer, or one.
fn measure(program: &Programs, threads: usize, case: &Case, files: &Prepared) -> Result<Vec<Row>> {
    let same_models = program.env.peers_load_models();
    let peers: &[Peer] = if same_models || case.by_hand { &program.peers } else { &[] };
    let mut ours = program.start(&files.ours, threads)?;
    let others: Result<Vec<Runner>> =
        peers.iter().map(|&peer| program.start_peer(peer, &files.peer, threads)).collect();
    let times = in_turns(&mut ours, &mut others?, !same_models)?;
    let row = |peer: Option<(&Peer, &f64)>| Row {
        case: case.name,
        env: program.env.name(),
        threads,
        peer: peer.map(|(peer, _)| peer.name),
        ours_ms: times.ours_ms,
        peer_ms: peer.map(|(_, ms)| *ms),
        floor_fraction: times.rate.map(|rate| files.flops as f64 / rate / 1e6 / times.ours_ms),
    };
    if peers.is_empty() {
        return Ok(vec![row(None)]);
    }
    Ok(peers.iter().zip(&times.peers_ms).map(|pair| row(Some(pair))).collect())
}

/// What was measured in turns; medians.
struct Times {
    /// Milliseconds of a step.
    ours_ms: f64,
    peers_ms: Vec<f64>,
    /// GFLOP/s of ontrain's large matrix product.
    rate: Option<f64>,
}

/// How far losses may be apart, relative, where peers have models of their own: their Adam adds its epsilon elsewhere in
/// the formula than ONNX Runtime's AdamW, which ontrain follows.
const SAME_LOSS: f64 = 1e-2;

/// Times all sides, which take turns. On WebGPU they must come to the same loss, and no rate is measured: an emulated GPU
/// would take minutes.
fn in_turns(ours: &mut Runner, peers: &mut [Runner], webgpu: bool) -> Result<Times> {
    let ours_turn = turn(ours)?;
    let peer_turns: Vec<usize> = peers.iter_mut().map(turn).collect::<Result<_>>()?;
    if webgpu {
        let loss = ours.loss()?;
        for peer in &mut *peers {
            let theirs = peer.loss()?;
            ensure!((loss - theirs).abs() <= SAME_LOSS * loss.abs(), "a loss of {loss}; the peer's is {theirs}");
        }
    } else {
        ours.rate()?; // its plan is made
    }
    let (mut ours_ms, mut rates) = (Vec::new(), Vec::new());
    let mut peers_ms = vec![Vec::new(); peers.len()];
    for _ in 0..ROUNDS {
        sleep(PAUSE);
        ours_ms.extend(ours.steps(ours_turn)?);
        if !webgpu {
            rates.push(ours.rate()?);
        }
        for ((peer, turn), times) in peers.iter_mut().zip(&peer_turns).zip(&mut peers_ms) {
            sleep(PAUSE);
            times.extend(peer.steps(*turn)?);
        }
    }
    let peers_ms = peers_ms.iter_mut().map(|times| median(times)).collect();
    let rate = (!webgpu).then(|| median(&mut rates));
    Ok(Times { ours_ms: median(&mut ours_ms), peers_ms, rate })
}

/// Warms a side up; the number of its steps in a turn.
fn turn(runner: &mut Runner) -> Result<usize> {
    runner.steps(3)?; // plans, pages, caches
    let step = median(&mut runner.steps(3)?);
    Ok((TURN_MS / step).clamp(TURN_STEPS.0, TURN_STEPS.1) as usize)
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A measurement.
struct Row {
    case: &'static str,
    env: &'static str,
    threads: usize,
    peer: Option<&'static str>,
    ours_ms: f64,
    peer_ms: Option<f64>,
    floor_fraction: Option<f64>,
}

const HEADER: &str = "\
| case  | where           | threads | ontrain, ms | peer, ms | ratio | floor | peer |
| ----- | --------------- | ------- | ----------- | -------- | ----- | ----- | ---- |";

impl Row {
    fn ratio(&self) -> Option<f64> {
        self.peer_ms.map(|peer| self.ours_ms / peer)
    }

    fn json(&self) -> String {
        let round = |value: f64| (value * 1e4).round() / 1e4;
        json!({
            "case": self.case,
            "env": self.env,
            "threads": self.threads,
            "batch": BATCH,
            "peer": self.peer,
            "ours_ms": round(self.ours_ms),
            "peer_ms": self.peer_ms.map(round),
            "ratio": self.ratio().map(round),
            "floor_fraction": self.floor_fraction.map(round),
        })
        .to_string()
    }

    fn markdown(&self) -> String {
        let or_dash = |value: Option<String>| value.unwrap_or_else(|| "–".into());
        format!(
            "| {:<5} | {:<15} | {:>7} | {:>11} | {:>8} | {:>5} | {:>5} | {} |",
            self.case,
            self.env,
            self.threads,
            figures(self.ours_ms),
            or_dash(self.peer_ms.map(figures)),
            or_dash(self.ratio().map(|ratio| format!("{ratio:.2}"))),
            or_dash(self.floor_fraction.map(|part| format!("{:.0}%", part * 100.0))),
            self.peer.unwrap_or("–"),
        )
    }
}

/// Three figures.
fn figures(ms: f64) -> String {
    let decimals = if ms < 10.0 { 2 } else { usize::from(ms < 100.0) };
    format!("{ms:.decimals$}")
}

/// The part of README.md: sizes, where and when, the table.
fn section(rows: &[Row], package: &build::Sizes) -> Result<String> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let date = sh::read(std::process::Command::new("node").args(["-p", "new Date().toISOString().slice(0, 10)"]))?;
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpu.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let cpu = cpu.map_or(std::env::consts::ARCH, |(_, model)| model);
    let mut text = format!("The engine in the package, `{WASM}`: {package}.\n\n{HEADER}\n");
    for row in rows {
        text += &row.markdown();
        text.push('\n');
    }
    text += &format!("\nMeasured on {}: {cores} cores of {cpu}, Node {}.\n", date.trim(), setup::node()?);
    Ok(text)
}
