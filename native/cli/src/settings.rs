//! How a training runs, and how far it has come: what `--resume` finds in the checkpoint's properties.

use ontrain::checkpoint::{CheckpointState, Property};
use ontrain::error::{Result, err};
use ontrain::train::Position;
use ontrain::train::metrics::Tally;

/// What names in a checkpoint begin with, so that a program's own properties stay apart.
const PREFIX: &str = "ontrain.";

/// The course of the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Schedule {
    /// The same rate at every step
    #[default]
    Constant,
    /// Up to the rate during the warm-up, then down to zero at the last step
    Linear,
}

/// How a training runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Settings {
    pub(crate) epochs: u64,
    pub(crate) batch_size: usize,
    pub(crate) accumulate: u64,
    pub(crate) shuffle: bool,
    pub(crate) seed: u64,
    pub(crate) learning_rate: f32,
    pub(crate) schedule: Schedule,
    pub(crate) warmup: u32,
}

/// The epoch that has begun, so far.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Running {
    /// Losses times samples.
    pub(crate) loss: f64,
    pub(crate) samples: u64,
    pub(crate) answers: Tally,
}

impl Running {
    /// The mean loss so far.
    pub(crate) fn mean_loss(&self) -> Option<f64> {
        (self.samples > 0).then(|| self.loss / self.samples as f64)
    }
}

/// What a checkpoint says of the training that wrote it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Saved {
    pub(crate) settings: Settings,
    pub(crate) position: Position,
    pub(crate) running: Running,
    /// Samples of its data.
    pub(crate) dataset: u64,
}

impl Saved {
    /// Writes the properties.
    pub(crate) fn store(&self, state: &mut CheckpointState) {
        let s = &self.settings;
        let whole = [
            ("epoch", self.position.epoch),
            ("batch", self.position.batch),
            ("epochs", s.epochs),
            ("batch_size", s.batch_size as u64),
            ("accumulate", s.accumulate),
            ("shuffle", s.shuffle.into()),
            ("seed", s.seed),
            ("warmup", s.warmup.into()),
            ("dataset", self.dataset),
            ("running.samples", self.running.samples),
            ("running.correct", self.running.answers.correct),
            ("running.answers", self.running.answers.total),
        ];
        for (name, value) in whole {
            state.add_property(format!("{PREFIX}{name}"), value as i64); // a seed keeps its bits
        }
        state.add_property(format!("{PREFIX}learning_rate"), s.learning_rate);
        let schedule = if s.schedule == Schedule::Linear { "linear" } else { "constant" };
        state.add_property(format!("{PREFIX}schedule"), schedule);
        // The file keeps 32 bits of a number; as text all of them come back.
        state.add_property(format!("{PREFIX}running.loss"), Property::String(self.running.loss.to_string()));
    }

    /// Reads the properties; `None` if the checkpoint is not from `ontrain train`.
    ///
    /// Errors: `Checkpoint` if one is missing or makes no sense.
    pub(crate) fn load(state: &CheckpointState) -> Result<Option<Self>> {
        if state.property(&format!("{PREFIX}epoch")).is_none() {
            return Ok(None);
        }
        let wrong = |name: &str, expected: &str| {
            let found = state.property(&format!("{PREFIX}{name}"));
            let found = found.map_or_else(|| "nothing".into(), |p| format!("{p:?}"));
            err!(Checkpoint, "property \"{PREFIX}{name}\" of the checkpoint makes no sense")
                .expected(expected)
                .found(found)
        };
        let int = |name: &str| match state.property(&format!("{PREFIX}{name}")) {
            Some(Property::Int(value)) => Ok(*value),
            _ => Err(wrong(name, "a whole number")),
        };
        let whole = |name: &str| u64::try_from(int(name)?).map_err(|_| wrong(name, "0 or more"));
        let text = |name: &str| match state.property(&format!("{PREFIX}{name}")) {
            Some(Property::String(text)) => Ok(text),
            _ => Err(wrong(name, "a text")),
        };
        let settings = Settings {
            epochs: whole("epochs")?,
            batch_size: whole("batch_size")?.try_into().map_err(|_| wrong("batch_size", "a size"))?,
            accumulate: whole("accumulate")?,
            shuffle: int("shuffle")? != 0,
            seed: int("seed")? as u64,
            learning_rate: match state.property(&format!("{PREFIX}learning_rate")) {
                Some(Property::Float(rate)) => *rate,
                _ => return Err(wrong("learning_rate", "a number")),
            },
            schedule: match text("schedule")?.as_str() {
                "linear" => Schedule::Linear,
                "constant" => Schedule::Constant,
                _ => return Err(wrong("schedule", "linear or constant")),
            },
            warmup: whole("warmup")?.try_into().map_err(|_| wrong("warmup", "a number of steps"))?,
        };
        let answers = Tally { correct: whole("running.correct")?, total: whole("running.answers")? };
        let loss = text("running.loss")?.parse().map_err(|_| wrong("running.loss", "a number"))?;
        let running = Running { loss, samples: whole("running.samples")?, answers };
        let position = Position { epoch: whole("epoch")?, batch: whole("batch")? };
        Ok(Some(Self { settings, position, running, dataset: whole("dataset")? }))
    }

    /// Fails if the order of the samples would change within an epoch that has begun.
    pub(crate) fn check_goes_on(&self, settings: &Settings, dataset: u64) -> Result<()> {
        if self.position.batch == 0 {
            return Ok(());
        }
        let s = &self.settings;
        let kept = [
            ("--batch-size", s.batch_size as u64, settings.batch_size as u64),
            ("--accumulate", s.accumulate, settings.accumulate),
            ("--shuffle", s.shuffle.into(), settings.shuffle.into()),
            ("--seed", s.seed, settings.seed),
            ("number of samples", self.dataset, dataset),
        ];
        for (what, was, is) in kept {
            if was != is {
                let message = format!(
                    "the checkpoint stands within epoch {}: until its end the {what} must stay",
                    self.position.epoch + 1
                );
                return Err(err!(State, "{message}").expected(was).found(is));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn saved() -> Saved {
        Saved {
            settings: Settings {
                epochs: 3,
                batch_size: 16,
                accumulate: 2,
                shuffle: true,
                seed: u64::MAX - 4,
                learning_rate: 0.1,
                schedule: Schedule::Linear,
                warmup: 5,
            },
            position: Position { epoch: 1, batch: 4 },
            running: Running { loss: 0.1 + 0.2, samples: 64, answers: Tally { correct: 3, total: 64 } },
            dataset: 100,
        }
    }

    #[test]
    fn there_and_back() {
        let mut state = CheckpointState::default();
        assert_eq!(Saved::load(&state).unwrap(), None);
        saved().store(&mut state);
        let state = CheckpointState::from_bytes(&state.to_bytes(true).unwrap()).unwrap();
        assert_eq!(Saved::load(&state).unwrap(), Some(saved()));
    }

    #[test]
    fn nonsense_is_refused() {
        for (name, value) in [
            ("ontrain.batch", Property::Int(-1)),
            ("ontrain.epochs", Property::String("many".into())),
            ("ontrain.schedule", Property::String("cosine".into())),
            ("ontrain.warmup", Property::Int(1 << 40)),
            ("ontrain.running.loss", Property::String("low".into())),
        ] {
            let mut state = CheckpointState::default();
            saved().store(&mut state);
            state.add_property(name, value);
            let message = Saved::load(&state).unwrap_err().to_string();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn an_epoch_keeps_its_order() {
        let saved = saved();
        assert!(saved.check_goes_on(&saved.settings, 100).is_ok());
        assert!(saved.check_goes_on(&Settings { epochs: 9, learning_rate: 0.5, ..saved.settings }, 100).is_ok());
        let e = saved.check_goes_on(&Settings { batch_size: 8, ..saved.settings }, 100).unwrap_err();
        assert_eq!(
            e.to_string(),
            "the checkpoint stands within epoch 2: until its end the --batch-size must stay; expected 16; found 8"
        );
        assert!(saved.check_goes_on(&saved.settings, 99).is_err());
        let border = Saved { position: Position { epoch: 1, batch: 0 }, ..saved };
        assert!(border.check_goes_on(&Settings { batch_size: 8, ..saved.settings }, 99).is_ok());
    }
}
