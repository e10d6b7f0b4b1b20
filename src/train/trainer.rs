//! The training loop, a step at a time, so that the caller keeps what is around it: progress, cancellation, saving, and in
//! JavaScript the event loop.
//!
//! ```text
//! while let Some(step) = trainer.step(&mut module, &mut optimizer, scheduler.as_ref())? { … }
//! ```

use super::data::{Batch, Dataset, shuffled};
use super::metrics::{Classification, Tally};
use super::{LinearLRScheduler, Module, Optimizer};
use crate::backend::Backend;
use crate::error::{Result, bail, err};
use crate::tensor::Tensor;
use std::ops::ControlFlow;

/// How a [`Trainer`] goes through the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrainerOptions {
    /// How often all samples are visited.
    pub epochs: u64,
    /// Samples in a batch, 1 or more.
    pub batch_size: usize,
    /// Train steps whose gradients are summed for one optimizer step, 1 or more. The last optimizer step of an epoch may
    /// have fewer.
    pub accumulate: u64,
    /// Visit the samples of each epoch in an order of its own? Else in theirs.
    pub shuffle: bool,
    /// Leave out the last batch of an epoch if it is not full?
    pub drop_last: bool,
    /// Seed of the order and of Dropout.
    pub seed: u64,
}

impl Default for TrainerOptions {
    fn default() -> Self {
        Self { epochs: 1, batch_size: 32, accumulate: 1, shuffle: true, drop_last: false, seed: 0 }
    }
}

/// How far a training has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Epochs done.
    pub epoch: u64,
    /// Batches done in the epoch that has begun.
    pub batch: u64,
}

/// What a [`Trainer::step`] did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainStep {
    /// The epoch of the batch, from 0.
    pub epoch: u64,
    /// The batch in the epoch, from 0.
    pub batch: u64,
    /// Batches of each epoch.
    pub batches: u64,
    /// Samples in this batch.
    pub samples: usize,
    /// The loss before the step's update.
    pub loss: f32,
    /// The learning rate of the optimizer step that this batch belongs to.
    pub learning_rate: f32,
    /// Did the optimizer step? Between such steps gradients wait on the device, and a checkpoint would lose them.
    pub stepped: bool,
}

impl TrainStep {
    /// Was it the last batch of its epoch?
    pub fn ends_epoch(&self) -> bool {
        self.batch + 1 == self.batches
    }
}

/// Trains on a dataset, batch by batch. What it does depends on dataset, options and position alone, so that a
/// training that was cut off at an optimizer step goes on as if it had not been.
#[derive(Clone, Debug)]
pub struct Trainer {
    dataset: Dataset,
    options: TrainerOptions,
    position: Position,
    /// The order of samples, and the epoch that it is for.
    order: Option<(u64, Vec<usize>)>,
    batch: Batch,
}

impl Trainer {
    /// A training from `position` on. The arrays of `dataset` are the module's inputs, in its order
    /// (see [`Dataset::ordered`]).
    ///
    /// # Errors
    /// `Input` if a batch size or accumulation is 0, or no batch is full and partial ones are dropped. `State` if the position
    /// is not one between two optimizer steps.
    pub fn new(dataset: Dataset, options: TrainerOptions, position: Position) -> Result<Self> {
        if options.batch_size == 0 || options.accumulate == 0 {
            bail!(
                Input,
                "a batch and an optimizer step need at least 1: batch size {}, accumulation {}",
                options.batch_size,
                options.accumulate
            );
        }
        let trainer = Self { dataset, options, position, order: None, batch: Batch::default() };
        let batches = trainer.batches();
        if batches == 0 {
            return Err(err!(Input, "there are fewer samples than one batch takes")
                .expected(options.batch_size)
                .found(trainer.dataset.len()));
        }
        if position.batch >= batches || !position.batch.is_multiple_of(options.accumulate) {
            return Err(err!(State, "a training cannot go on from batch {} of an epoch", position.batch)
                .expected(format!("a multiple of {} below {batches}", options.accumulate)));
        }
        Ok(trainer)
    }

    /// The data.
    pub fn dataset(&self) -> &Dataset {
        &self.dataset
    }

    /// The options.
    pub fn options(&self) -> &TrainerOptions {
        &self.options
    }

    /// How far the training has come.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The batch of the last step, in the order of the dataset's arrays.
    pub fn batch(&self) -> &[Tensor] {
        self.batch.tensors()
    }

    /// Batches of an epoch.
    pub fn batches(&self) -> u64 {
        let (len, size) = (self.dataset.len(), self.options.batch_size);
        (if self.options.drop_last { len / size } else { len.div_ceil(size) }) as u64
    }

    /// Optimizer steps of all epochs together.
    pub fn optimizer_steps(&self) -> u64 {
        self.options.epochs.saturating_mul(self.batches().div_ceil(self.options.accumulate))
    }

    /// Trains on the next batch: train step, and after `accumulate` of them optimizer step, lazy reset of the gradients and the
    /// scheduler's step. `None` when all epochs are done.
    ///
    /// # Errors
    /// Those of [`Module::train_step`] and [`Optimizer::step`]; the position stays.
    pub fn step<B: Backend>(
        &mut self,
        module: &mut Module<B>,
        optimizer: &mut Optimizer<B>,
        scheduler: Option<&LinearLRScheduler>,
    ) -> Result<Option<TrainStep>> {
        let Position { epoch, batch } = self.position;
        if epoch >= self.options.epochs {
            return Ok(None);
        }
        self.gather()?;
        let batches = self.batches();
        if batch.is_multiple_of(self.options.accumulate) {
            module.lazy_reset_grad();
        }
        module.set_random_state(self.options.seed, epoch.saturating_mul(batches).saturating_add(batch));
        let inputs: Vec<&Tensor> = self.batch.tensors().iter().collect();
        let loss = module.train_step(&inputs)?;
        let learning_rate = optimizer.learning_rate();
        let ends_epoch = batch + 1 == batches;
        let stepped = ends_epoch || (batch + 1).is_multiple_of(self.options.accumulate);
        if stepped {
            optimizer.step(module)?;
            module.lazy_reset_grad();
            if let Some(scheduler) = scheduler {
                scheduler.step(optimizer)?;
            }
        }
        self.position =
            if ends_epoch { Position { epoch: epoch + 1, batch: 0 } } else { Position { epoch, batch: batch + 1 } };
        Ok(Some(TrainStep { epoch, batch, batches, samples: self.batch.len(), loss, learning_rate, stepped }))
    }

    /// Fills the batch for the position.
    fn gather(&mut self) -> Result<()> {
        let (len, epoch) = (self.dataset.len(), self.position.epoch);
        let made = self.order.as_ref().is_some_and(|(of, _)| *of == epoch || !self.options.shuffle);
        if !made {
            let order = if self.options.shuffle { shuffled(len, self.options.seed, epoch) } else { (0..len).collect() };
            self.order = Some((epoch, order));
        }
        let Some((_, order)) = &self.order else { return Ok(()) };
        let start = self.position.batch as usize * self.options.batch_size;
        let rows = &order[start..len.min(start + self.options.batch_size)];
        self.dataset.gather(rows, &mut self.batch)
    }
}

/// What [`evaluate`] found.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evaluation {
    /// The losses of the batches, averaged by their numbers of samples.
    pub loss: f64,
    /// Right answers, if there are classes.
    pub answers: Option<Tally>,
    /// Samples evaluated.
    pub samples: usize,
}

/// Runs the eval model over a dataset in its order, `batch_size` samples at a time; the last batch may be smaller, or
/// is left out with `drop_last` (for models of a fixed batch size). `progress` gets the samples done after each batch;
/// if it breaks, the result is `None`.
///
/// # Errors
/// Those of [`Module::eval_step`]; `Input` if there is no batch.
pub fn evaluate<B: Backend>(
    module: &mut Module<B>,
    dataset: &Dataset,
    batch_size: usize,
    drop_last: bool,
    classes: Option<&Classification>,
    mut progress: impl FnMut(usize) -> ControlFlow<()>,
) -> Result<Option<Evaluation>> {
    let samples = if drop_last { dataset.len() - dataset.len() % batch_size.max(1) } else { dataset.len() };
    if batch_size == 0 || samples == 0 {
        return Err(err!(Input, "there are fewer samples than one batch takes")
            .expected(batch_size.max(1))
            .found(dataset.len()));
    }
    let (mut batch, mut rows) = (Batch::default(), Vec::with_capacity(batch_size.min(samples)));
    let (mut sum, mut answers) = (0.0, classes.map(|_| Tally::default()));
    for start in (0..samples).step_by(batch_size) {
        rows.clear();
        rows.extend(start..samples.min(start.saturating_add(batch_size)));
        dataset.gather(&rows, &mut batch)?;
        let inputs: Vec<&Tensor> = batch.tensors().iter().collect();
        sum += module.eval_step(&inputs)? as f64 * rows.len() as f64;
        if let (Some(classes), Some(answers)) = (classes, &mut answers) {
            *answers += classes.tally(module.eval_outputs(), dataset.names(), batch.tensors())?;
        }
        if progress(start + rows.len()).is_break() {
            return Ok(None);
        }
    }
    Ok(Some(Evaluation { loss: sum / samples as f64, answers, samples }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trainer(samples: usize, options: TrainerOptions, batch: u64) -> Result<Trainer> {
        let dataset = Dataset::new(vec![("x".into(), Tensor::ints(&vec![0; samples]))])?;
        Trainer::new(dataset, options, Position { epoch: 0, batch })
    }

    #[test]
    fn counts_steps() {
        let options = TrainerOptions { epochs: 3, batch_size: 4, accumulate: 2, ..TrainerOptions::default() };
        let all = trainer(18, options, 0).unwrap();
        assert_eq!(
            (all.batches(), all.optimizer_steps()),
            (5, 9),
            "the last optimizer step of an epoch sums one batch"
        );
        let full = trainer(18, TrainerOptions { drop_last: true, ..options }, 0).unwrap();
        assert_eq!((full.batches(), full.optimizer_steps()), (4, 6));
    }

    #[test]
    fn refuses_what_it_cannot_do() {
        let options = TrainerOptions { batch_size: 4, accumulate: 2, ..TrainerOptions::default() };
        let fails = |options, batch| format!("{:?}", trainer(18, options, batch).unwrap_err());
        assert!(trainer(18, options, 4).is_ok());
        assert!(fails(options, 3).contains("[State]"), "gradients of batch 2 are lost");
        assert!(fails(options, 6).contains("expected a multiple of 2 below 5"));
        assert!(fails(TrainerOptions { batch_size: 0, ..options }, 0).contains("[Input]"));
        assert!(fails(TrainerOptions { accumulate: 0, ..options }, 0).contains("[Input]"));
        assert!(
            fails(TrainerOptions { batch_size: 19, drop_last: true, ..options }, 0).contains("expected 19; found 18")
        );
    }
}
