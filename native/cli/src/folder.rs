//! A folder of artifacts, under the names that ONNX Runtime gives them.

use clap::Args;
use ontrain::backend::{Any, now};
use ontrain::checkpoint::CheckpointState;
use ontrain::error::Result;
use ontrain::graph::{Graph, TensorType};
use ontrain::onnx::read_file;
use ontrain::train::metrics::Classification;
use ontrain::train::{Module, Optimizer};
use std::path::PathBuf;

/// Where the artifacts are.
#[derive(Args)]
pub(crate) struct Folder {
    /// Folder with the artifacts
    #[arg(long, value_name = "FOLDER")]
    artifacts: PathBuf,
    /// What the names of the artifacts begin with
    #[arg(long, default_value = "", hide_default_value = true)]
    prefix: String,
    /// What computes
    #[arg(long, value_name = "DEVICE", default_value = "cpu", value_parser = ["cpu", "webgpu"])]
    device: String,
}

/// A module and what the command line needs to know of its models.
pub(crate) struct Loaded {
    pub(crate) module: Module<Any>,
    /// Names of the inputs that a step takes, and their declared types.
    pub(crate) inputs: Vec<(String, Option<TensorType>)>,
    /// Where accuracy comes from in the training model, if there are classes.
    pub(crate) train_classes: Option<Classification>,
    /// The same in the eval model.
    pub(crate) eval_classes: Option<Classification>,
}

impl Folder {
    fn path(&self, name: &str) -> PathBuf {
        self.artifacts.join(format!("{}{name}", self.prefix))
    }

    /// The checkpoint at `path`, else the generated one.
    pub(crate) fn checkpoint(&self, path: Option<&PathBuf>) -> Result<CheckpointState> {
        match path {
            Some(path) => CheckpointState::load(path),
            None => CheckpointState::load(self.path("checkpoint")),
        }
    }

    /// The training and eval models over the parameters of `state`.
    pub(crate) fn module(&self, state: &CheckpointState) -> Result<Loaded> {
        let mut train = read_file(self.path("training_model.onnx"))?;
        let mut eval = read_file(self.path("eval_model.onnx"))?;
        let train_classes = Classification::expose(&mut train);
        let eval_classes = Classification::expose(&mut eval);
        let types: Vec<(String, Option<TensorType>)> = declared(&train);
        let module = Module::new(train, Some(eval), state, now(Any::open(&self.device))?)?;
        let names = module.input_names(true)?;
        let inputs = types.into_iter().filter(|(name, _)| names.contains(name)).collect();
        Ok(Loaded { module, inputs, train_classes, eval_classes })
    }

    /// The optimizer, with the memory that `state` has of it.
    pub(crate) fn optimizer(&self, module: &Module<Any>, state: &CheckpointState) -> Result<Optimizer<Any>> {
        Optimizer::new(read_file(self.path("optimizer_model.onnx"))?, module, state)
    }
}

fn declared(graph: &Graph) -> Vec<(String, Option<TensorType>)> {
    graph.inputs.iter().map(|&id| (graph.name_of(id).to_owned(), graph.tensor_type(id).cloned())).collect()
}
