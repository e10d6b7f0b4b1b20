//! The `ontrain` command. Each verb is a file; none has logic of its own beyond reading files and showing what came of it.

mod data;
mod eval;
mod export;
mod folder;
mod generate;
mod idx;
mod inspect;
mod npy;
mod output;
mod plan;
mod progress;
mod settings;
mod train;

use clap::{Parser, Subcommand};
use output::Stop;
use std::process::ExitCode;

/// Train ONNX models where the data is.
#[derive(Parser)]
#[command(name = "ontrain", version, about, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
    /// Print JSON for machines, errors too
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Make training artifacts from an ONNX model
    Generate(generate::Args),
    /// Train with artifacts on a dataset
    Train(train::Args),
    /// Loss and accuracy of a checkpoint on a dataset
    Eval(eval::Args),
    /// Write a trained model for inference
    Export(export::Args),
    /// Show what a model or a checkpoint holds
    Inspect(inspect::Args),
    /// Show the plan of a model: kernels, memory, work
    Plan(plan::Args),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => return usage(&e),
    };
    let result = match cli.verb {
        Verb::Generate(args) => generate::run(args, cli.json),
        Verb::Train(args) => train::run(args, cli.json),
        Verb::Eval(args) => eval::run(args, cli.json),
        Verb::Export(args) => export::run(args, cli.json),
        Verb::Inspect(args) => inspect::run(args, cli.json),
        Verb::Plan(args) => plan::run(args, cli.json),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(stop) => stop.report(cli.json),
    }
}

/// What clap has to say: help and version on stdout, mistakes on stderr with exit code 2.
fn usage(e: &clap::Error) -> ExitCode {
    let json = std::env::args_os().any(|arg| arg == "--json");
    if e.use_stderr() && json {
        let text = e.render().to_string();
        let message = text.trim().strip_prefix("error: ").unwrap_or(text.trim());
        return Stop::Usage(message.to_owned()).report(true);
    }
    let _ = e.print(); // a closed pipe is no reason to fail
    ExitCode::from(if e.use_stderr() { 2 } else { 0 })
}
