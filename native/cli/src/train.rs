//! `ontrain train`: artifacts, data, epochs; a checkpoint comes out.

use crate::data::{self, DataArgs, note_left_out};
use crate::folder::{Folder, Loaded};
use crate::output::{Result, Stop, complain};
use crate::progress::{EpochEnd, Progress};
use crate::settings::{Running, Saved, Schedule, Settings};
use clap::Args as ClapArgs;
use ontrain::backend::Any;
use ontrain::checkpoint::CheckpointState;
use ontrain::err;
use ontrain::train::data::Dataset;
use ontrain::train::{
    Evaluation, LinearLRScheduler, Module, Optimizer, Position, TrainStep, Trainer, TrainerOptions, evaluate,
};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(ClapArgs)]
pub(crate) struct Args {
    #[command(flatten)]
    folder: Folder,
    #[command(flatten)]
    data: DataArgs,
    /// Data to evaluate on after each epoch, as .npz
    #[arg(long, value_name = "FILE.npz", conflicts_with_all = ["eval_images", "eval_labels"])]
    eval_data: Option<PathBuf>,
    /// The same as IDX
    #[arg(long, value_name = "FILE", requires = "eval_labels")]
    eval_images: Option<PathBuf>,
    /// Labels of --eval-images
    #[arg(long, value_name = "FILE", requires = "eval_images")]
    eval_labels: Option<PathBuf>,
    /// How often the data is gone through, what was done before --resume included [default: 1]
    #[arg(long)]
    epochs: Option<u64>,
    /// Samples in a batch [default: 32]
    #[arg(long)]
    batch_size: Option<usize>,
    /// The learning rate [default: 0.001]
    #[arg(long)]
    lr: Option<f32>,
    /// The course of the learning rate [default: constant]
    #[arg(long, value_enum)]
    schedule: Option<Schedule>,
    /// Optimizer steps over which a linear schedule rises to the learning rate
    #[arg(long, value_name = "STEPS")]
    warmup: Option<u32>,
    /// Seed of the samples' order and of Dropout [default: 0]
    #[arg(long)]
    seed: Option<u64>,
    /// A new order of the samples in each epoch (the default)
    #[arg(long, overrides_with = "no_shuffle")]
    shuffle: bool,
    /// The samples in their own order
    #[arg(long)]
    no_shuffle: bool,
    /// Sum the gradients of so many batches for one optimizer step [default: 1]
    #[arg(long, value_name = "N")]
    accumulate: Option<u64>,
    /// Where the checkpoint goes, with the optimizer's memory
    #[arg(long, value_name = "FILE")]
    save: PathBuf,
    /// Save after every so many optimizer steps too, not only at the end
    #[arg(long, value_name = "STEPS")]
    save_every: Option<u64>,
    /// Go on from a checkpoint; options that are not given are the ones it was trained with
    #[arg(long, value_name = "FILE")]
    resume: Option<PathBuf>,
    /// Show every so many batches (off a terminal) [default: every 10 seconds]
    #[arg(long, value_name = "BATCHES", default_value_t = 0, hide_default_value = true)]
    log_every: u64,
}

impl Args {
    /// The options given, over those of the training that is resumed, over the defaults.
    fn settings(&self, saved: Option<&Settings>, loaded: &Loaded) -> Result<(Settings, bool)> {
        let batch = data::batch_size(self.batch_size.or(saved.map(|s| s.batch_size)), &loaded.inputs)?;
        let shuffle = match (self.shuffle, self.no_shuffle) {
            (true, _) => true,
            (_, true) => false,
            _ => saved.is_none_or(|s| s.shuffle),
        };
        let settings = Settings {
            epochs: self.epochs.or(saved.map(|s| s.epochs)).unwrap_or(1),
            batch_size: batch.size,
            accumulate: self.accumulate.or(saved.map(|s| s.accumulate)).unwrap_or(1),
            shuffle,
            seed: self.seed.or(saved.map(|s| s.seed)).unwrap_or(0),
            learning_rate: self.lr.or(saved.map(|s| s.learning_rate)).unwrap_or(1e-3),
            schedule: self.schedule.or(saved.map(|s| s.schedule)).unwrap_or_default(),
            warmup: self.warmup.or(saved.map(|s| s.warmup)).unwrap_or(0),
        };
        if settings.accumulate == 0 || self.save_every == Some(0) {
            return Err(Stop::Usage("--accumulate and --save-every must be 1 or more".into()));
        }
        if settings.warmup > 0 && settings.schedule == Schedule::Constant {
            return Err(Stop::Usage("--warmup needs --schedule linear".into()));
        }
        Ok((settings, batch.fixed))
    }

    /// The data to evaluate on, if there is any.
    fn eval_data(&self, loaded: &Loaded) -> Result<Option<Dataset>> {
        let (images, labels) = (self.eval_images.as_deref(), self.eval_labels.as_deref());
        self.data.load_from(self.eval_data.as_deref(), images, labels, &loaded.inputs)
    }
}

/// Set by Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C asks the training to save and stop; a second one stops it at once.
fn listen() -> Result {
    let handler = || {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
        complain("interrupted: saving after this step (Ctrl-C again stops at once)");
    };
    Ok(ctrlc::set_handler(handler).map_err(|e| err!(Device, "cannot listen for Ctrl-C: {e}"))?)
}

pub(crate) fn run(args: Args, json: bool) -> Result {
    check_writable(&args.save)?;
    let state = args.folder.checkpoint(args.resume.as_ref())?;
    let saved = if args.resume.is_some() { Saved::load(&state)? } else { None };
    let mut loaded = args.folder.module(&state)?;
    let mut optimizer = args.folder.optimizer(&loaded.module, &state)?;
    let (settings, fixed) = args.settings(saved.as_ref().map(|s| &s.settings), &loaded)?;
    let dataset = args.data.load(&loaded.inputs)?;
    let eval_data = args.eval_data(&loaded)?;
    let batch = data::BatchSize { size: settings.batch_size, fixed };
    note_left_out(&dataset, batch, "training samples");
    if let Some(eval_data) = &eval_data {
        note_left_out(eval_data, batch, "samples to evaluate on");
    }
    let (position, running) = match &saved {
        Some(saved) => {
            saved.check_goes_on(&settings, dataset.len() as u64)?;
            (saved.position, saved.running)
        }
        None => (Position::default(), Running::default()),
    };
    let trainer = trainer(dataset, &settings, fixed, position)?;
    let scheduler = scheduler(&mut optimizer, &settings, &trainer)?;
    listen()?;
    let done = position.epoch.saturating_mul(trainer.batches()).saturating_add(position.batch);
    let progress = Progress::new(json, args.log_every, settings.epochs, trainer.batches(), done);
    let mut training =
        Training { trainer, optimizer, scheduler, settings, fixed, running, state, save: args.save, progress };
    let result = training.run(&mut loaded, eval_data.as_ref(), args.save_every);
    training.progress.finish();
    result
}

fn trainer(dataset: Dataset, settings: &Settings, fixed: bool, position: Position) -> Result<Trainer> {
    let options = TrainerOptions {
        epochs: settings.epochs,
        batch_size: settings.batch_size,
        accumulate: settings.accumulate,
        shuffle: settings.shuffle,
        drop_last: fixed,
        seed: settings.seed,
    };
    Ok(Trainer::new(dataset, options, position)?)
}

/// Sets the learning rate, and how it goes on.
fn scheduler(
    optimizer: &mut Optimizer<Any>,
    settings: &Settings,
    trainer: &Trainer,
) -> Result<Option<LinearLRScheduler>> {
    optimizer.set_learning_rate(settings.learning_rate)?;
    match settings.schedule {
        Schedule::Constant => Ok(None),
        Schedule::Linear => {
            let total = trainer.optimizer_steps();
            let total =
                total.try_into().map_err(|_| err!(Input, "too many optimizer steps for a schedule").found(total))?;
            Ok(Some(LinearLRScheduler::new(optimizer, settings.warmup, total, settings.learning_rate)?))
        }
    }
}

/// A mistyped path should not cost a training: what can be seen before, is.
fn check_writable(path: &Path) -> Result {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fails = |why: &str| Err(err!(Device, "cannot save to {}: {why}", path.display()).into());
    if !folder.is_dir() {
        return fails("its folder does not exist");
    }
    if path.is_dir() { fails("it is a folder") } else { Ok(()) }
}

struct Training {
    trainer: Trainer,
    optimizer: Optimizer<Any>,
    scheduler: Option<LinearLRScheduler>,
    settings: Settings,
    fixed: bool,
    running: Running,
    state: CheckpointState,
    save: PathBuf,
    progress: Progress,
}

impl Training {
    fn run(&mut self, loaded: &mut Loaded, eval_data: Option<&Dataset>, save_every: Option<u64>) -> Result {
        let mut fresh = false; // is everything that was done in the file?
        while let Some(step) = self.trainer.step(&mut loaded.module, &mut self.optimizer, self.scheduler.as_ref())? {
            fresh = false;
            self.count(&step, loaded)?;
            self.progress.step(&step, &self.running);
            if step.ends_epoch() {
                self.end_epoch(&step, loaded, eval_data)?;
            }
            if !step.stepped {
                continue; // gradients wait on the device: a checkpoint would lose them
            }
            if INTERRUPTED.load(Ordering::Relaxed) {
                self.save(&loaded.module)?;
                let Position { epoch, batch } = self.trainer.position();
                self.progress.finish();
                self.progress.saved(&self.save, true, epoch, batch);
                return Err(Stop::Interrupted);
            }
            if save_every.is_some_and(|n| self.optimizer.steps().unsigned_abs().is_multiple_of(n)) {
                self.save(&loaded.module)?;
                fresh = true;
            }
        }
        if !fresh {
            self.save(&loaded.module)?;
        }
        let Position { epoch, batch } = self.trainer.position();
        self.progress.finish();
        self.progress.saved(&self.save, false, epoch, batch);
        Ok(())
    }

    /// Takes a step into the epoch's means.
    fn count(&mut self, step: &TrainStep, loaded: &Loaded) -> Result {
        self.running.loss += step.loss as f64 * step.samples as f64;
        self.running.samples += step.samples as u64;
        if let Some(classes) = &loaded.train_classes {
            let names = self.trainer.dataset().names();
            self.running.answers += classes.tally(loaded.module.train_outputs(), names, self.trainer.batch())?;
        }
        Ok(())
    }

    fn end_epoch(&mut self, step: &TrainStep, loaded: &mut Loaded, eval_data: Option<&Dataset>) -> Result {
        let evaluation = match eval_data {
            Some(data) => self.evaluate(loaded, data)?,
            None => None,
        };
        let end = EpochEnd { step, running: &self.running, evaluation, optimizer_steps: self.optimizer.steps() };
        self.progress.epoch(&end);
        self.running = Running::default();
        Ok(())
    }

    /// `None` if Ctrl-C came in between.
    fn evaluate(&self, loaded: &mut Loaded, data: &Dataset) -> Result<Option<Evaluation>> {
        let go_on =
            |_| if INTERRUPTED.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
        let classes = loaded.eval_classes.as_ref();
        Ok(evaluate(&mut loaded.module, data, self.settings.batch_size, self.fixed, classes, go_on)?)
    }

    fn save(&mut self, module: &Module<Any>) -> Result {
        module.save_parameters(&mut self.state)?;
        self.optimizer.save(module.backend(), &mut self.state)?;
        let saved = Saved {
            settings: self.settings,
            position: self.trainer.position(),
            running: self.running,
            dataset: self.trainer.dataset().len() as u64,
        };
        saved.store(&mut self.state);
        Ok(self.state.save(&self.save, true)?)
    }
}
