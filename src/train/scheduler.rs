//! Learning-rate schedules.

use super::Optimizer;
use crate::backend::Backend;
use crate::error::Result;

/// Linear warm-up, then linear decay to zero: at optimizer step t the rate is
/// `initial * t / max(1, warmup)` for `t < warmup`, else `initial * max(0, (total - t) / max(1, total - warmup))`
/// (ONNX Runtime's documented meaning; its Python binding swaps the two counts).
#[derive(Clone, Debug)]
pub struct LinearLRScheduler {
    warmup_step_count: i64,
    total_step_count: i64,
    initial_lr: f32,
}

impl LinearLRScheduler {
    /// A schedule for `optimizer`, whose learning rate it sets at once.
    pub fn new<B: Backend>(
        optimizer: &mut Optimizer<B>,
        warmup_step_count: u32,
        total_step_count: u32,
        initial_lr: f32,
    ) -> Result<Self> {
        let scheduler =
            Self { warmup_step_count: warmup_step_count.into(), total_step_count: total_step_count.into(), initial_lr };
        scheduler.step(optimizer)?;
        Ok(scheduler)
    }

    /// Sets the learning rate for the optimizer steps taken so far. Call it after each optimizer step.
    pub fn step<B: Backend>(&self, optimizer: &mut Optimizer<B>) -> Result<()> {
        optimizer.set_learning_rate(self.rate_at(optimizer.steps()))
    }

    fn rate_at(&self, t: i64) -> f32 {
        let (warmup, total) = (self.warmup_step_count, self.total_step_count);
        let factor = if t < warmup {
            t as f64 / warmup.max(1) as f64
        } else {
            ((total - t) as f64 / (total - warmup).max(1) as f64).max(0.0)
        };
        (self.initial_lr as f64 * factor) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::LinearLRScheduler;

    #[test]
    fn warms_up_and_decays() {
        let s = LinearLRScheduler { warmup_step_count: 2, total_step_count: 6, initial_lr: 0.8 };
        let rates: Vec<f32> = (0..8).map(|t| s.rate_at(t)).collect();
        assert_eq!(rates, [0.0, 0.4, 0.8, 0.6, 0.4, 0.2, 0.0, 0.0]);
        let flat = LinearLRScheduler { warmup_step_count: 0, total_step_count: 0, initial_lr: 0.8 };
        assert_eq!(flat.rate_at(0), 0.0);
    }
}
