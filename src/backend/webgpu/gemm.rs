//! Matrix products.

use super::contraction::{self, Contraction, Digit, Term};
use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::{Result, bail};
use crate::kernel::{Gemm, Step};

pub(super) fn lower(kernel: &Gemm, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let (a, b, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    let ([batch @ .., m, n], [.., k]) = (&out.shape[..], &a.shape[..]) else {
        bail!(Plan, "a matrix product of rank {}", out.rank());
    };
    let c = if kernel.beta == 0.0 { None } else { Some(&step.reads[2]) };
    let rank = batch.len();
    let added = |axis: usize| c.map_or(0, |c| c.strides[axis]);
    let axis =
        |i: usize| Digit::of(batch[i]).left(a.strides[i]).right(b.strides[i]).out(out.strides[i]).added(added(i));
    let row = Digit::of(*m).left(a.strides[rank]).out(out.strides[rank]).added(added(rank));
    let col = Digit::of(*n).right(b.strides[rank + 1]).out(out.strides[rank + 1]).added(added(rank + 1));
    let product = Contraction {
        batch: (0..rank).map(axis).collect(),
        rows: vec![row],
        cols: vec![col],
        sum: vec![Digit::of(*k).left(a.strides[rank + 1]).right(b.strides[rank])],
        left: Term { view: a, start: 0 },
        right: Term { view: b, start: 0 },
        out,
        alpha: kernel.alpha,
        added: c.map(|c| (kernel.beta, c)),
        windows: Vec::new(),
        phases: Vec::new(),
    };
    contraction::lower(product, cx)
}
