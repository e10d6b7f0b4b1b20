//! Training artifacts from a forward model: the files that ONNX Runtime's On-Device Training calls
//! training model, eval model, optimizer model and checkpoint.
//!
//! Graph inputs and outputs, their names and order are those of ONNX Runtime 1.19.2:
//!
//! | model | inputs | outputs |
//! | --- | --- | --- |
//! | training | user inputs, `labels` or `target`, parameters, `{p}_grad.accumulation.buffer` of each trainable one, `lazy_reset_grad` | loss, additional outputs, `{p}_grad.accumulation.out` |
//! | eval | user inputs, `labels` or `target`, parameters | loss, additional outputs |
//! | optimizer | `learning_rate`, `step`, `params`, `gradients`, `first_order_moments`, `second_order_moments` | update flag |

mod loss;
mod optimizer;
mod parameters;
mod training;

pub use loss::{Custom, Loss, Reduction};
pub use optimizer::Optimizer;

use crate::checkpoint::{CheckpointState, Parameter};
use crate::error::Result;
use crate::graph::Graph;
use crate::onnx::{WriteOptions, write};

/// What to generate.
#[derive(Default)]
pub struct Options {
    /// The parameters to train: exact names, or globs (`*`, `?`). A glob takes floating initializers of at
    /// least one dimension, without running statistics and what `frozen_params` names.
    pub requires_grad: Vec<String>,
    /// Parameters that stay as they are but travel in the checkpoint: exact names or globs.
    /// Running statistics of BatchNormalization are always among them.
    pub frozen_params: Vec<String>,
    /// The loss.
    pub loss: Loss,
    /// The optimizer; `None` writes no optimizer model.
    pub optimizer: Option<Optimizer>,
    /// Values of the graph that become outputs after the loss.
    pub additional_output_names: Vec<String>,
    /// Only these outputs of the model are handed to the loss, in this order; empty: all of them.
    pub loss_input_names: Vec<String>,
    /// Also make a checkpoint without values.
    pub nominal_checkpoint: bool,
}

/// The generated files, as bytes.
#[derive(Clone, Debug)]
pub struct Artifacts {
    /// Forward, backward, accumulation.
    pub training_model: Vec<u8>,
    /// Forward and loss.
    pub eval_model: Vec<u8>,
    /// The optimizer step.
    pub optimizer_model: Option<Vec<u8>>,
    /// Parameters.
    pub checkpoint: Vec<u8>,
    /// Their names and dtypes.
    pub nominal_checkpoint: Option<Vec<u8>>,
}

/// Generates the artifacts of a forward model.
///
/// # Errors
/// `Graph`: a parameter that does not exist or stands in both lists, no trainable parameter, an unknown output
/// name. `Gradient`: a trainable parameter that the loss does not depend on, an operator without a gradient on
/// its path, a loss that is not a scalar. `Unsupported`: an operator that ontrain does not have. `Shape`: a
/// model whose types do not fit.
pub fn generate(model: &Graph, options: &Options) -> Result<Artifacts> {
    let forward = training::Forward::build(model, options)?;
    let training = forward.training()?;
    let eval = forward.eval()?;
    let optimizer = options.optimizer.as_ref().map(|o| o.graph(forward.graph.opset(""))).transpose()?;
    let options = WriteOptions::default();
    let state = CheckpointState::new(forward.parameters().collect::<Vec<Parameter>>())?;
    Ok(Artifacts {
        training_model: write(&training, &options)?,
        eval_model: write(&eval, &options)?,
        optimizer_model: optimizer.map(|g| write(&g, &options)).transpose()?,
        checkpoint: state.to_bytes(false)?,
        nominal_checkpoint: forward.nominal.then(|| state.to_nominal().to_bytes(false)).transpose()?,
    })
}

#[cfg(not(target_arch = "wasm32"))]
impl Artifacts {
    /// Writes the files into `folder`, which must exist, under ORT's names with `prefix` before them. Each
    /// file is written whole or not at all.
    pub fn save(&self, folder: impl AsRef<std::path::Path>, prefix: &str) -> Result<()> {
        let files = [
            ("training_model.onnx", Some(&self.training_model)),
            ("eval_model.onnx", Some(&self.eval_model)),
            ("optimizer_model.onnx", self.optimizer_model.as_ref()),
            ("checkpoint", Some(&self.checkpoint)),
            ("nominal_checkpoint", self.nominal_checkpoint.as_ref()),
        ];
        for (name, bytes) in files {
            if let Some(bytes) = bytes {
                crate::checkpoint::write_atomically(folder.as_ref().join(format!("{prefix}{name}")), bytes)?;
            }
        }
        Ok(())
    }
}
