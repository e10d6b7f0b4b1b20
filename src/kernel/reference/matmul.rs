//! Batched matrix product.

use super::super::{Buffers, Gemm, Step};
use super::values::{Number, Values, whole};
use super::{load, mixed_operands, store};
use crate::error::{Result, bail};

pub(super) fn gemm(k: &Gemm, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    let out = &step.writes[0];
    let ([batch @ .., m, n], [.., k_inner]) = (&out.shape[..], &step.reads[0].shape[..]) else {
        bail!(Plan, "a matrix product of rank {}", out.rank());
    };
    let sizes = Sizes { batch: batch.iter().product(), m: *m, k: *k_inner, n: *n };
    let a = load(buffers, &step.reads[0])?;
    let b = load(buffers, &step.reads[1])?;
    let c = if k.beta == 0.0 { None } else { Some(load(buffers, &step.reads[2])?) };
    let (alpha, beta) = (k.alpha as f64, k.beta as f64);
    let result = match (&a, &b, &c) {
        (Values::Float(a), Values::Float(b), None) => Values::Float(product(&sizes, a, b, None, alpha, beta)),
        (Values::Float(a), Values::Float(b), Some(Values::Float(c))) => {
            Values::Float(product(&sizes, a, b, Some(c), alpha, beta))
        }
        (Values::Int(a), Values::Int(b), None) => Values::Int(product(&sizes, a, b, None, whole(alpha)?, whole(beta)?)),
        (Values::Int(a), Values::Int(b), Some(Values::Int(c))) => {
            Values::Int(product(&sizes, a, b, Some(c), whole(alpha)?, whole(beta)?))
        }
        _ => return Err(mixed_operands("Gemm")),
    };
    store(buffers, out, &result)
}

struct Sizes {
    batch: usize,
    m: usize,
    k: usize,
    n: usize,
}

fn product<T: Number>(sizes: &Sizes, a: &[T], b: &[T], c: Option<&[T]>, alpha: T, beta: T) -> Vec<T> {
    let &Sizes { batch, m, k, n } = sizes;
    let mut out = vec![T::ZERO; batch * m * n];
    for i in 0..batch * m {
        // Row `i` of all matrices together is row i % m of matrix i / m.
        let sums = &mut out[i * n..][..n];
        for l in 0..k {
            let factor = a[i * k + l];
            let row = &b[(i / m * k + l) * n..][..n];
            for (sum, &b) in sums.iter_mut().zip(row) {
                *sum = sum.plus(factor.times(b));
            }
        }
        for j in 0..n {
            sums[j] = alpha.times(sums[j]);
            if let Some(c) = c {
                sums[j] = sums[j].plus(beta.times(c[i * n + j]));
            }
        }
    }
    out
}
