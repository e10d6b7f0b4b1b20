//! How a training shows itself: a bar on a terminal, lines elsewhere, JSON lines for machines.

use crate::output::{say, say_json};
use crate::settings::Running;
use indicatif::{ProgressBar, ProgressStyle};
use ontrain::train::{Evaluation, TrainStep};
use serde_json::json;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long plain and JSON output is silent when no number of steps is asked for.
const SILENCE: Duration = Duration::from_secs(10);

/// The end of an epoch.
pub(crate) struct EpochEnd<'a> {
    pub(crate) step: &'a TrainStep,
    pub(crate) running: &'a Running,
    pub(crate) evaluation: Option<Evaluation>,
    pub(crate) optimizer_steps: i64,
}

pub(crate) struct Progress {
    mode: Mode,
    epochs: u64,
    /// Show every so many train steps; 0: from time to time.
    every: u64,
    steps: u64,
    last: Instant,
    epoch_began: Instant,
}

enum Mode {
    Bar(ProgressBar),
    Lines,
    Json,
}

impl Progress {
    /// `done` of `epochs * batches` train steps are done.
    pub(crate) fn new(json: bool, every: u64, epochs: u64, batches: u64, done: u64) -> Self {
        let terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let mode = match (json, terminal) {
            (true, _) => Mode::Json,
            (false, false) => Mode::Lines,
            (false, true) => {
                let bar = ProgressBar::new(epochs.saturating_mul(batches)).with_position(done);
                let style = ProgressStyle::with_template("{prefix} {wide_bar} {pos}/{len} {msg} {elapsed} ETA {eta}");
                bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
                bar.reset_eta();
                Mode::Bar(bar)
            }
        };
        Self { mode, epochs, every, steps: 0, last: Instant::now(), epoch_began: Instant::now() }
    }

    /// After a train step.
    pub(crate) fn step(&mut self, step: &TrainStep, running: &Running) {
        self.steps += 1;
        let due = match self.every {
            0 => self.last.elapsed() >= SILENCE,
            every => self.steps.is_multiple_of(every),
        };
        let accuracy = running.answers.accuracy();
        let mean = running.mean_loss().unwrap_or(f64::NAN);
        match &self.mode {
            Mode::Bar(bar) => {
                bar.set_prefix(format!("epoch {}/{}", step.epoch + 1, self.epochs));
                bar.set_message(format!("loss {mean:.4}{}", percent(", accuracy", accuracy)));
                bar.inc(1);
                return;
            }
            _ if !due => return,
            Mode::Lines => say(format!(
                "epoch {}/{}, batch {}/{}: loss {:.6}, mean {mean:.6}{}, lr {}",
                step.epoch + 1,
                self.epochs,
                step.batch + 1,
                step.batches,
                step.loss,
                percent(", accuracy", accuracy),
                step.learning_rate
            )),
            Mode::Json => say_json(&json!({
                "event": "step", "epoch": step.epoch + 1, "batch": step.batch + 1, "batches": step.batches,
                "loss": step.loss, "mean_loss": mean, "accuracy": accuracy, "learning_rate": step.learning_rate,
            })),
        }
        self.last = Instant::now();
    }

    /// At the end of an epoch.
    pub(crate) fn epoch(&mut self, end: &EpochEnd<'_>) {
        let seconds = self.epoch_began.elapsed().as_secs_f64();
        (self.epoch_began, self.last) = (Instant::now(), Instant::now());
        let EpochEnd { step, running, evaluation, optimizer_steps } = end;
        let loss = running.mean_loss().unwrap_or(f64::NAN);
        let accuracy = running.answers.accuracy();
        let eval_loss = evaluation.map(|e| e.loss);
        let eval_accuracy = evaluation.and_then(|e| e.answers?.accuracy());
        if let Mode::Json = self.mode {
            say_json(&json!({
                "event": "epoch", "epoch": step.epoch + 1, "epochs": self.epochs, "loss": loss, "accuracy": accuracy,
                "eval_loss": eval_loss, "eval_accuracy": eval_accuracy, "learning_rate": step.learning_rate,
                "optimizer_steps": optimizer_steps, "seconds": seconds,
            }));
            return;
        }
        self.line(&format!(
            "epoch {}/{}: loss {loss:.6}{}{}{}, lr {}, {seconds:.1} s",
            step.epoch + 1,
            self.epochs,
            percent(", accuracy", accuracy),
            eval_loss.map_or_else(String::new, |loss| format!(", eval loss {loss:.6}")),
            percent(", eval accuracy", eval_accuracy),
            step.learning_rate
        ));
    }

    /// The checkpoint lies at `path`.
    pub(crate) fn saved(&self, path: &Path, interrupted: bool, epoch: u64, batch: u64) {
        if let Mode::Json = self.mode {
            let event = if interrupted { "interrupted" } else { "saved" };
            return say_json(&json!({"event": event, "path": path, "epochs_done": epoch, "batches_done": batch}));
        }
        let path = path.display();
        self.line(&if interrupted {
            format!("interrupted after {epoch} epochs and {batch} batches; saved {path}: go on with --resume {path}")
        } else {
            format!("saved {path}")
        });
    }

    fn line(&self, text: &str) {
        match &self.mode {
            Mode::Bar(bar) => bar.suspend(|| say(text)),
            Mode::Lines | Mode::Json => say(text),
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Mode::Bar(bar) = &self.mode {
            bar.finish_and_clear();
        }
    }
}

fn percent(label: &str, share: Option<f64>) -> String {
    share.map_or_else(String::new, |share| format!("{label} {:.2} %", share * 100.0))
}
