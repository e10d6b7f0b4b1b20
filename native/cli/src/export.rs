//! `ontrain export`: a trained model for inference.

use crate::folder::Folder;
use crate::output::{Result, bytes, say, say_json};
use clap::Args as ClapArgs;
use ontrain::checkpoint::write_atomically;
use serde_json::json;
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
    /// The checkpoint with the trained parameters
    #[arg(long, value_name = "FILE")]
    checkpoint: PathBuf,
    /// Values of the eval model that the exported model gives
    #[arg(long, value_name = "NAME", num_args = 1.., required = true)]
    output_names: Vec<String>,
    /// The ONNX file to write
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    let state = args.folder.checkpoint(Some(&args.checkpoint))?;
    let module = args.folder.module(&state)?.module;
    let names: Vec<&str> = args.output_names.iter().map(String::as_str).collect();
    let model = module.export_model_for_inferencing(&names)?;
    write_atomically(&args.output, &model)?;
    if json {
        say_json(&json!({"path": args.output, "bytes": model.len()}));
    } else {
        say(format!("{}  {}", args.output.display(), bytes(model.len())));
    }
    Ok(())
}
