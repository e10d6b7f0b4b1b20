//! How much rounding may matter: the same training from parameters that are moved by about what rounding moves the values
//! of a deep model. In one with kinks (ReLU6 and its like) a value that lies next to a kink may be on another side of it in
//! every order of summation, and then a gradient changes by more than rounding.

use anyhow::Result;
use ontrain::checkpoint::CheckpointState;
use ontrain::tensor::Tensor;

use super::engine::{Engine, Trained, Training};
use super::verdict::elements;

/// Trainings from moved parameters.
const COUNT: u64 = 5;
/// How far each parameter is moved, relative.
const SIZE: f64 = 1e-6;
/// What is allowed, as a multiple of the largest difference that a move made.
pub(super) const ALLOWED: f64 = 3.0;

/// `job` from moved parameters, a few times.
pub(super) fn trainings(job: &Training<'_>, engine: &mut dyn Engine) -> Result<Vec<Trained>> {
    let run = |seed| {
        let checkpoint = moved(job.checkpoint, seed)?;
        engine.train(&Training { checkpoint: &checkpoint, ..job.clone() })
    };
    (1..=COUNT).map(run).collect()
}

/// How far a number of those trainings is from the one found.
pub(super) fn spread(trainings: &[Trained], found: f64, value: &dyn Fn(&Trained) -> Option<f64>) -> f64 {
    trainings.iter().filter_map(value).fold(0.0, |most, x| (x - found).abs().max(most))
}

/// How far the elements of a tensor of those trainings are from those found, at most.
pub(super) fn apart<'t>(
    trainings: &'t [Trained],
    found: Option<&Tensor>,
    tensor: impl Fn(&'t Trained) -> Option<&'t Tensor>,
) -> f64 {
    let found = elements(found);
    let others = trainings.iter().map(|trained| elements(tensor(trained)));
    let distance = |other: Vec<f64>| found.iter().zip(&other).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
    others.map(distance).fold(0.0, f64::max)
}

/// A checkpoint whose trained parameters are multiplied by 1 + SIZE r, r uniform of variance 1.
fn moved(checkpoint: &[u8], seed: u64) -> Result<Vec<u8>> {
    let mut state = CheckpointState::from_bytes(checkpoint)?;
    let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    for p in state.parameters().to_vec() {
        let Some(value) = p.value.filter(|_| p.requires_grad) else { continue };
        let mut values = value.to_f64s();
        for x in &mut values {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let unit = (random >> 11) as f64 / (1u64 << 53) as f64;
            *x *= 1.0 + SIZE * (2.0 * unit - 1.0) * 3f64.sqrt();
        }
        state.set_parameter(&p.name, Tensor::from_f64s(value.dtype(), value.shape(), &values)?)?;
    }
    Ok(state.to_bytes(false)?)
}
