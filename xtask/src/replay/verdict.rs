//! Comparing numbers, and what comes of it: the line of a run.

use ontrain::tensor::Tensor;
use serde_json::{Value, json};

/// What has been compared so far.
#[derive(Default)]
pub(crate) struct Verdict {
    /// Steps (or values) that were compared.
    pub(crate) steps: usize,
    /// Error and tolerance of the comparison that came closest to failing, or failed worst.
    worst: Option<(f64, f64)>,
    reasons: Vec<String>,
}

impl Verdict {
    /// A run that did not get as far as a comparison.
    pub(crate) fn failed(reason: impl std::fmt::Display) -> Self {
        Self { reasons: vec![reason.to_string()], ..Self::default() }
    }

    /// Notes a failure that is not one of numbers.
    pub(crate) fn fail(&mut self, reason: impl Into<String>) {
        self.reasons.push(reason.into());
    }

    /// Fails with `reason` unless `fine`.
    pub(crate) fn require(&mut self, fine: bool, reason: impl FnOnce() -> String) {
        if !fine {
            self.fail(reason());
        }
    }

    /// Did everything agree?
    pub(crate) fn ok(&self) -> bool {
        self.reasons.is_empty()
    }

    /// Two numbers may differ by `tolerance`; NaN agrees with nothing.
    pub(crate) fn near(&mut self, what: impl FnOnce() -> String, found: f64, expected: f64, tolerance: f64) {
        let error = if found == expected { 0.0 } else { (found - expected).abs() };
        self.measured(|| format!("{}: {found} for {expected}", what()), error, tolerance);
    }

    /// A measured error may be `tolerance` at most.
    pub(crate) fn measured(&mut self, what: impl FnOnce() -> String, error: f64, tolerance: f64) {
        let rank = |(error, tolerance): (f64, f64)| match error / tolerance {
            ratio if error == 0.0 || ratio.is_finite() => ratio,
            _ => f64::INFINITY,
        };
        if self.worst.is_none_or(|worst| rank((error, tolerance)) > rank(worst)) {
            self.worst = Some((error, tolerance));
        }
        if error.is_nan() || error > tolerance {
            self.fail(format!("{} (off by {error:.3e}, tolerance {tolerance:.3e})", what()));
        }
    }

    /// All elements of two lists may differ by `tolerance`.
    pub(crate) fn all_near(&mut self, what: &str, found: &[f64], expected: &[f64], tolerance: f64) {
        if found.len() != expected.len() {
            return self.fail(format!("{what}: {} elements, expected {}", found.len(), expected.len()));
        }
        let differences = found.iter().zip(expected).map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() });
        let worst = differences
            .enumerate()
            .max_by(|a, b| (a.1.is_nan(), a.1).partial_cmp(&(b.1.is_nan(), b.1)).unwrap_or(std::cmp::Ordering::Equal));
        if let Some((at, error)) = worst {
            self.measured(|| format!("{what}[{at}]: {} for {}", found[at], expected[at]), error, tolerance);
        }
    }

    /// The line of the run; it spells out `reasons` of what differs.
    pub(crate) fn line(&self, case: &str, run: &str, source: &str, backend: &str, reasons: usize) -> Value {
        let reason = match self.reasons.len() {
            0 => None,
            n if n <= reasons => Some(self.reasons.join("; ")),
            n => Some(format!("{}; … ({n} in all)", self.reasons[..reasons].join("; "))),
        };
        json!({
            "case": case, "run": run, "source": source, "backend": backend, "steps": self.steps,
            "max_error": self.worst.map(|w| w.0), "tolerance": self.worst.map(|w| w.1),
            "ok": self.ok(), "reason": reason,
        })
    }
}

/// Largest magnitude.
pub(crate) fn largest(values: &[f64]) -> f64 {
    values.iter().fold(0.0, |max, x| x.abs().max(max))
}

/// Euclidean norm.
pub(crate) fn norm(values: &[f64]) -> f64 {
    values.iter().map(|x| x * x).sum::<f64>().sqrt()
}

/// The elements of a tensor that may be missing.
pub(crate) fn elements(tensor: Option<&Tensor>) -> Vec<f64> {
    tensor.map(Tensor::to_f64s).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::Verdict;

    fn ok(compare: impl FnOnce(&mut Verdict)) -> bool {
        let mut verdict = Verdict::default();
        compare(&mut verdict);
        verdict.ok()
    }

    #[test]
    fn what_agrees() {
        assert!(ok(|v| v.near(String::new, 1.0, 1.5, 0.5)));
        assert!(ok(|v| v.all_near("x", &[1.0, 2.0], &[1.0, 2.0], 0.0)));
        assert!(!ok(|v| v.near(String::new, 1.0, 1.5, 0.4)));
        assert!(!ok(|v| v.near(String::new, f64::NAN, f64::NAN, 1.0)));
        assert!(!ok(|v| v.all_near("x", &[1.0, f64::NAN, 1.0], &[1.0; 3], 0.5)));
        assert!(!ok(|v| v.all_near("x", &[1.0], &[1.0; 2], 0.5)));
    }

    #[test]
    fn the_worst_comparison_is_shown() {
        let mut verdict = Verdict::default();
        verdict.near(String::new, 1.0, 1.1, 1.0);
        verdict.near(String::new, 1.0, 3.0, 4.0);
        verdict.near(String::new, 1.0, 1.2, 1.0);
        let line = verdict.line("c", "r", "ort", "cpu", 3);
        assert_eq!((&line["max_error"], &line["tolerance"], &line["ok"]), (&2.0.into(), &4.0.into(), &true.into()));
    }
}
