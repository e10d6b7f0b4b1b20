//! Matrix products in f64: a plain loop, for gradient checks and models in f64.

use super::gemm::{Gemm, Matrix, cut};
use super::threads::{Shared, parallel_for};

/// One f64 product: a plain loop over rows, for gradient checks and models in f64.
///
/// # Panics
/// If a matrix reaches outside its slice: a fault of the plan.
pub fn gemm_f64(p: &Gemm<'_, f64>, c: &mut [f64], ldc: usize) {
    p.check(c, ldc, 0, 0, 0);
    let tasks = cut(p.m, 1, p.m * p.n * p.k * 4);
    let shared = Shared::new(c);
    parallel_for(tasks, |t| {
        for i in t * p.m / tasks..(t + 1) * p.m / tasks {
            // Safety: rows of C do not overlap, and each is in one task.
            row_f64(p, i, unsafe { shared.slice(i * ldc, p.n) });
        }
    });
}

/// Row `i` of the product, blocked so that a stretch of the row stays in cache while k runs.
fn row_f64(p: &Gemm<'_, f64>, i: usize, row: &mut [f64]) {
    let at = |m: &Matrix<'_, f64>, i: usize, j: usize| {
        m.data[(m.offset as isize + i as isize * m.row + j as isize * m.col) as usize]
    };
    let add = |bias: Option<&[f64]>, i: usize| bias.map_or(0.0, |b| b[i]);
    const WIDTH: usize = 512;
    for (block, c) in row.chunks_mut(WIDTH).enumerate() {
        let first = block * WIDTH;
        let mut sums = [0.0f64; WIDTH];
        let sums = &mut sums[..c.len()];
        for k in 0..p.k {
            let x = at(&p.a, i, k);
            for (j, sum) in sums.iter_mut().enumerate() {
                *sum += x * at(&p.b, k, first + j);
            }
        }
        for (j, (c, sum)) in c.iter_mut().zip(sums).enumerate() {
            let old = if p.beta == 0.0 { 0.0 } else { p.beta * *c };
            *c = p.alpha * *sum + old + add(p.row_bias, i) + add(p.col_bias, first + j);
        }
    }
}
