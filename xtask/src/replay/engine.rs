//! What a replay asks of a backend: to train with artifacts, and to run a model.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use ontrain::artifacts::{Artifacts, Options, generate};
use ontrain::backend::{Any, Backend, cpu::Cpu, now};
use ontrain::checkpoint::CheckpointState;
use ontrain::onnx::{NoExternalData, read};
use ontrain::tensor::Tensor;
use ontrain::train::{LinearLRScheduler, Module, NonFinite, Optimizer, Session};

use super::package::{Host, Package};
use crate::setup::{self, Gpu};

/// Tensors by the name of the input that they are for.
pub(crate) type Feed = BTreeMap<String, Tensor>;

/// How the learning rate goes.
#[derive(Clone, Copy)]
pub(crate) enum Rate {
    Constant(f32),
    /// ORT's LinearLRScheduler.
    Linear {
        warmup: u32,
        total: u32,
        initial: f32,
    },
}

/// A training to be done.
#[derive(Clone)]
pub(crate) struct Training<'a> {
    pub(crate) training_model: &'a [u8],
    pub(crate) eval_model: Option<&'a [u8]>,
    pub(crate) optimizer_model: Option<&'a [u8]>,
    pub(crate) checkpoint: &'a [u8],
    /// Step i takes batch `(first + i) % batches.len()`.
    pub(crate) batches: &'a [Feed],
    pub(crate) first: usize,
    pub(crate) steps: usize,
    /// Train steps per optimizer step.
    pub(crate) accumulate: usize,
    pub(crate) rate: Rate,
    /// Go on when a loss is NaN.
    pub(crate) non_finite: bool,
    /// One more train step at the end, for its loss only.
    pub(crate) closing: bool,
}

/// What came of it.
#[derive(Default)]
pub(crate) struct Trained {
    /// Optimizer steps that the checkpoint had behind it.
    pub(crate) resumed_at: i64,
    /// The loss of each step, before its update; cut short where a step failed.
    pub(crate) losses: Vec<f64>,
    /// The learning rate of each optimizer step.
    pub(crate) rates: Vec<f64>,
    /// Loss of the eval model on batch 0, before and after.
    pub(crate) eval: Option<(f64, f64)>,
    pub(crate) closing_loss: Option<f64>,
    /// Additional outputs of the first step.
    pub(crate) extra_outputs: Vec<Tensor>,
    /// Gradients of the first step.
    pub(crate) gradients: Feed,
    /// Parameters after the first train step and before the first optimizer step.
    pub(crate) first_parameters: Feed,
    /// Parameters at the end.
    pub(crate) parameters: Feed,
    /// Why it ended early.
    pub(crate) stopped: Option<String>,
}

/// A backend, and how it is reached.
pub(crate) trait Engine {
    /// As `--backend` has it.
    fn name(&self) -> &str;

    /// Trains. An error is one of making the session; that of a step goes into `stopped`.
    fn train(&mut self, job: &Training<'_>) -> Result<Trained>;

    /// The outputs of a model without external data.
    fn forward(&mut self, model: &[u8], inputs: &Feed) -> Result<Vec<Tensor>>;

    /// Generates artifacts of a model without external data. Losses that are made by the caller exist only here, in
    /// Rust.
    fn generate(&mut self, model: &[u8], options: &Options) -> Result<Artifacts> {
        Ok(generate(&read(model, &NoExternalData)?, options)?)
    }
}

/// A backend of this process.
pub(crate) struct Native<B>(pub(crate) B);

/// Where to run.
#[derive(clap::Args, Clone)]
pub(crate) struct Where {
    /// Where to run
    #[arg(long, default_value = "cpu")]
    backend: Target,
    /// A project in which the npm package is installed, instead of building and installing it
    #[arg(long, value_name = "DIR")]
    project: Option<PathBuf>,
}

/// The backends.
#[derive(clap::ValueEnum, Clone, Copy)]
pub(crate) enum Target {
    /// This process
    Cpu,
    /// This process, on the machine's GPU: see ONTRAIN_GPU
    Webgpu,
    /// The npm package in Node
    Wasm,
    /// The npm package in Node, on the GPU that the package webgpu brings
    NodeWebgpu,
    /// The npm package in a page of Chromium
    ChromiumWasm,
    /// The npm package in a page of Chromium, on its GPU
    ChromiumWebgpu,
}

impl Where {
    /// That backend, built as it is needed.
    pub(crate) fn at(backend: Target) -> Self {
        Self { backend, project: None }
    }

    /// That backend, in a project that has the package.
    pub(crate) fn installed(backend: Target, project: &Path) -> Self {
        Self { backend, project: Some(project.to_owned()) }
    }

    /// The engine that is meant.
    pub(crate) fn engine(&self) -> Result<Box<dyn Engine>> {
        let package = |name, host, device| -> Result<Box<dyn Engine>> {
            Ok(Box::new(Package::new(name, host, device, self.project.as_deref())?))
        };
        match self.backend {
            Target::Cpu => Ok(Box::new(Native(Cpu))),
            Target::Webgpu => {
                setup::gpu(Gpu::Hardware)?;
                Ok(Box::new(Native(now(Any::open("webgpu"))?)))
            }
            Target::Wasm => package("wasm", Host::Node, "wasm"),
            Target::NodeWebgpu => package("node-webgpu", Host::Node, "webgpu"),
            Target::ChromiumWasm => package("chromium-wasm", Host::Chromium, "wasm"),
            Target::ChromiumWebgpu => package("chromium-webgpu", Host::Chromium, "webgpu"),
        }
    }
}

impl<B: Backend + Clone> Engine for Native<B> {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn train(&mut self, job: &Training<'_>) -> Result<Trained> {
        let graph = |bytes: &[u8]| read(bytes, &NoExternalData);
        let state = CheckpointState::from_bytes(job.checkpoint).context("checkpoint")?;
        let eval = job.eval_model.map(graph).transpose().context("eval model")?;
        let training = graph(job.training_model).context("training model")?;
        let mut module = Module::new(training, eval, &state, self.0.clone())?;
        if job.non_finite {
            module.set_non_finite(NonFinite::Return);
        }
        let optimizer = job.optimizer_model.map(graph).transpose().context("optimizer model")?;
        let optimizer = optimizer.map(|g| Optimizer::new(g, &module, &state)).transpose()?;
        let mut session = Live { module, optimizer, trained: Trained::default() };
        if let Err(error) = session.run(job) {
            session.trained.stopped = Some(error.to_string());
        }
        Ok(session.trained)
    }

    fn forward(&mut self, model: &[u8], inputs: &Feed) -> Result<Vec<Tensor>> {
        let mut session = Session::new(read(model, &NoExternalData)?, self.0.clone());
        let inputs = ordered(&session.input_names(), inputs)?;
        Ok(session.run(&inputs)?.to_vec())
    }
}

/// A training in this process, as far as it got.
struct Live<B: Backend> {
    module: Module<B>,
    optimizer: Option<Optimizer<B>>,
    trained: Trained,
}

impl<B: Backend> Live<B> {
    fn run(&mut self, job: &Training<'_>) -> Result<()> {
        ensure!(!job.batches.is_empty(), "there is no batch to train on");
        let names = self.module.input_names(true)?;
        let batches: Vec<Vec<&Tensor>> = job.batches.iter().map(|b| ordered(&names, b)).collect::<Result<_>>()?;
        let mut scheduler = None;
        if let Some(optimizer) = &mut self.optimizer {
            self.trained.resumed_at = optimizer.steps();
            match job.rate {
                Rate::Constant(rate) => optimizer.set_learning_rate(rate)?,
                Rate::Linear { warmup, total, initial } => {
                    scheduler = Some(LinearLRScheduler::new(optimizer, warmup, total, initial)?);
                }
            }
        }
        let before = self.eval(job)?;
        for i in 0..job.steps {
            let loss = self.module.train_step(&batches[(job.first + i) % batches.len()])?;
            self.trained.losses.push(loss as f64);
            if i == 0 {
                self.look()?;
            }
            if (i + 1) % job.accumulate == 0
                && let Some(optimizer) = &mut self.optimizer
            {
                self.trained.rates.push(optimizer.learning_rate() as f64);
                optimizer.step(&mut self.module)?;
                self.module.lazy_reset_grad();
                if let Some(scheduler) = &scheduler {
                    scheduler.step(optimizer)?;
                }
            }
        }
        self.trained.parameters = self.parameters()?;
        let after = self.eval(job)?;
        self.trained.eval = before.zip(after);
        if job.closing {
            let loss = self.module.train_step(&batches[(job.first + job.steps) % batches.len()])?;
            self.trained.closing_loss = Some(loss as f64);
        }
        Ok(())
    }

    /// Loss of the eval model on batch 0.
    fn eval(&mut self, job: &Training<'_>) -> Result<Option<f64>> {
        if job.eval_model.is_none() {
            return Ok(None);
        }
        let names = self.module.input_names(false)?;
        let loss = self.module.eval_step(&ordered(&names, &job.batches[0])?)?;
        Ok(Some(loss as f64))
    }

    /// Notes what there is to see after the first train step.
    fn look(&mut self) -> Result<()> {
        self.trained.extra_outputs = self.module.train_outputs().iter().skip(1).cloned().collect();
        self.trained.first_parameters = self.parameters()?;
        for name in self.module.parameter_names() {
            // Frozen ones have none.
            if let Ok(gradient) = self.module.gradient(name) {
                self.trained.gradients.insert(name.to_owned(), gradient);
            }
        }
        Ok(())
    }

    fn parameters(&self) -> Result<Feed> {
        let names = self.module.parameter_names();
        names.map(|name| Ok((name.to_owned(), self.module.parameter(name)?))).collect()
    }
}

/// The tensors that the inputs `names` are fed with.
fn ordered<'a>(names: &[String], feed: &'a Feed) -> Result<Vec<&'a Tensor>> {
    let known = || feed.keys().cloned().collect::<Vec<_>>().join(", ");
    let find =
        |name| feed.get(name).with_context(|| format!("the model has an input \"{name}\"; the case has {}", known()));
    names.iter().map(find).collect()
}
