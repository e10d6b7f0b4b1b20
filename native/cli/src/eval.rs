//! `ontrain eval`: how good a checkpoint is on some data.

use crate::data::{DataArgs, batch_size, note_left_out};
use crate::folder::Folder;
use crate::output::{Result, say, say_json};
use clap::Args as ClapArgs;
use ontrain::err;
use ontrain::train::{Evaluation, evaluate};
use serde_json::json;
use std::ops::ControlFlow;
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
    /// The checkpoint; without it the generated one
    #[arg(long, value_name = "FILE")]
    checkpoint: Option<PathBuf>,
    #[command(flatten)]
    data: DataArgs,
    /// Samples at a time [default: 32]
    #[arg(long)]
    batch_size: Option<usize>,
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    let state = args.folder.checkpoint(args.checkpoint.as_ref())?;
    let mut loaded = args.folder.module(&state)?;
    let batch = batch_size(args.batch_size, &loaded.inputs)?;
    let data = args.data.load(&loaded.inputs)?;
    note_left_out(&data, batch, "samples");
    let never = |_| ControlFlow::Continue(());
    let result = evaluate(&mut loaded.module, &data, batch.size, batch.fixed, loaded.eval_classes.as_ref(), never)?;
    let Evaluation { loss, answers, samples } = result.ok_or_else(|| err!(State, "the evaluation was broken off"))?;
    let accuracy = answers.and_then(|a| a.accuracy());
    if json {
        let correct = answers.map(|a| a.correct);
        say_json(
            &json!({"loss": loss, "accuracy": accuracy, "correct": correct, "answers": answers.map(|a| a.total), "samples": samples}),
        );
    } else if let (Some(answers), Some(accuracy)) = (answers, accuracy) {
        say(format!("loss {loss:.6}, accuracy {:.2} % ({} of {})", accuracy * 100.0, answers.correct, answers.total));
    } else {
        say(format!("loss {loss:.6} ({samples} samples)"));
    }
    Ok(())
}
