//! `ontrain generate`: artifacts from a model.

use crate::output::{Result, Stop, bytes, count, say, say_json};
use clap::{Args as ClapArgs, ValueEnum};
use ontrain::artifacts::{Artifacts, Loss, Optimizer, Options, generate};
use ontrain::checkpoint::CheckpointState;
use ontrain::err;
use ontrain::onnx::read_file;
use serde_json::json;
use std::path::PathBuf;

#[derive(ClapArgs)]
pub(crate) struct Args {
    /// The ONNX model
    model: PathBuf,
    /// Parameters to train: names or globs (* and ?)
    #[arg(long, value_name = "GLOB", num_args = 1.., default_value = "*")]
    requires_grad: Vec<String>,
    /// Parameters that stay as they are: names or globs
    #[arg(long, value_name = "GLOB", num_args = 1..)]
    frozen: Vec<String>,
    /// The loss between the model's first output and the labels or targets
    #[arg(long, value_enum)]
    loss: LossName,
    /// The optimizer
    #[arg(long, value_enum, default_value = "adamw")]
    optimizer: OptimizerName,
    /// AdamW: weight decay [default: 0]
    #[arg(long)]
    weight_decay: Option<f32>,
    /// AdamW: decay of the first and second moments [default: 0.9 0.999]
    #[arg(long, num_args = 2, value_delimiter = ',', value_names = ["BETA1", "BETA2"])]
    betas: Option<Vec<f32>>,
    /// AdamW: added to the root of the second moment [default: 1e-6]
    #[arg(long)]
    eps: Option<f32>,
    /// AdamW: leave the moments' bias as it is
    #[arg(long)]
    no_bias_correction: bool,
    /// Scale all gradients down together when their L2 norm is above this
    #[arg(long, value_name = "NORM")]
    clip_grad_norm: Option<f32>,
    /// Where the files go; made if it is not there
    #[arg(long, value_name = "FOLDER")]
    output_dir: PathBuf,
    /// What the names of the files begin with
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// Values of the model that become outputs after the loss
    #[arg(long, value_name = "NAME", num_args = 1..)]
    additional_output: Vec<String>,
    /// Also write a checkpoint of names and dtypes alone
    #[arg(long)]
    nominal_checkpoint: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum LossName {
    /// Mean squared error
    Mse,
    /// Softmax cross entropy of scores and int64 labels
    CrossEntropy,
    /// Binary cross entropy of logits
    BceWithLogits,
    /// Mean absolute error
    L1,
    /// The model's first output is the loss
    None,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OptimizerName {
    Adamw,
    Sgd,
    /// No optimizer model
    None,
}

impl Args {
    fn optimizer(&self) -> Result<Option<Optimizer>> {
        let only_adamw = [
            ("--weight-decay", self.weight_decay.is_some()),
            ("--betas", self.betas.is_some()),
            ("--eps", self.eps.is_some()),
            ("--no-bias-correction", self.no_bias_correction),
        ];
        if let Some((flag, _)) = only_adamw.iter().find(|f| f.1).filter(|_| self.optimizer != OptimizerName::Adamw) {
            return Err(Stop::Usage(format!("{flag} belongs to --optimizer adamw")));
        }
        let betas = match self.betas.as_deref() {
            Some(&[first, second]) => (first, second),
            _ => (0.9, 0.999),
        };
        Ok(match self.optimizer {
            OptimizerName::Adamw => Some(Optimizer::AdamW {
                betas,
                eps: self.eps.unwrap_or(1e-6),
                weight_decay: self.weight_decay.unwrap_or(0.0),
                bias_correction: !self.no_bias_correction,
                clip_grad_norm: self.clip_grad_norm,
            }),
            OptimizerName::Sgd => Some(Optimizer::SGD { clip_grad_norm: self.clip_grad_norm }),
            OptimizerName::None if self.clip_grad_norm.is_some() => {
                return Err(Stop::Usage("--clip-grad-norm needs an optimizer".into()));
            }
            OptimizerName::None => None,
        })
    }
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    let optimizer = args.optimizer()?;
    let options = Options {
        requires_grad: args.requires_grad,
        frozen_params: args.frozen,
        loss: match args.loss {
            LossName::Mse => Loss::MSELoss(Default::default()),
            LossName::CrossEntropy => Loss::cross_entropy(),
            LossName::BceWithLogits => Loss::bce_with_logits(),
            LossName::L1 => Loss::L1Loss(Default::default()),
            LossName::None => Loss::None,
        },
        optimizer,
        additional_output_names: args.additional_output,
        nominal_checkpoint: args.nominal_checkpoint,
        ..Options::default()
    };
    let artifacts = generate(&read_file(&args.model)?, &options)?;
    let folder = &args.output_dir;
    std::fs::create_dir_all(folder).map_err(|e| err!(Device, "cannot make the folder {}: {e}", folder.display()))?;
    artifacts.save(folder, &args.prefix)?;
    report(&artifacts, &args.output_dir, &args.prefix, json)
}

fn report(artifacts: &Artifacts, folder: &std::path::Path, prefix: &str, json: bool) -> Result {
    let files = [
        ("training_model.onnx", Some(&artifacts.training_model)),
        ("eval_model.onnx", Some(&artifacts.eval_model)),
        ("optimizer_model.onnx", artifacts.optimizer_model.as_ref()),
        ("checkpoint", Some(&artifacts.checkpoint)),
        ("nominal_checkpoint", artifacts.nominal_checkpoint.as_ref()),
    ];
    let files =
        files.iter().filter_map(|(name, data)| Some((folder.join(format!("{prefix}{name}")), data.as_ref()?.len())));
    let state = CheckpointState::from_bytes(&artifacts.checkpoint)?;
    let of = |trained: bool| {
        let sizes = state.parameters().iter().filter(|p| p.requires_grad == trained);
        sizes.fold((0, 0), |(n, elements), p| (n + 1, elements + p.value.as_ref().map_or(0, |v| v.len())))
    };
    let ((trained, trained_elements), (frozen, frozen_elements)) = (of(true), of(false));
    if json {
        say_json(&json!({
            "files": files.map(|(path, bytes)| json!({"path": path, "bytes": bytes})).collect::<Vec<_>>(),
            "trained": {"parameters": trained, "elements": trained_elements},
            "frozen": {"parameters": frozen, "elements": frozen_elements},
        }));
        return Ok(());
    }
    for (path, size) in files {
        say(format!("{}  {}", path.display(), bytes(size)));
    }
    let part = |n, elements: usize| format!("{} ({})", count(n, "parameter"), count(elements, "element"));
    say(format!("trained: {}, frozen: {}", part(trained, trained_elements), part(frozen, frozen_elements)));
    Ok(())
}
