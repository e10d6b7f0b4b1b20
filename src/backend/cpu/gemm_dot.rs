//! Matrix products whose summed index is contiguous in both factors: tiles of dot products, vectors along
//! the sum, nothing packed. Serves small products with a transposed B and every weight gradient.

use super::simd::Simd;

/// Stretches of the summed index: stretch `s` starts at `a + table[s][0]` and `b + table[s][1]` and has
/// `len` elements. The sum runs over all of them.
#[derive(Clone, Copy)]
pub(crate) struct Stretches<'a> {
    pub(crate) table: &'a [[isize; 2]],
    pub(crate) len: usize,
}

/// Every pair of a row of `a` and a row of `b`, multiplied and summed over the stretches.
///
/// # Safety
/// `S` runs on this machine; each pointer is good for every stretch.
// In wasm a function of its own: engines compile a huge function badly or late. Elsewhere it must be inlined into
// the function that has the instruction set.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn dots<S: Simd, const R: usize, const C: usize>(
    a: [*const f32; R],
    b: [*const f32; C],
    over: Stretches<'_>,
) -> [[f32; C]; R] {
    // Safety: the caller's promise.
    unsafe {
        let mut acc = [[S::splat(0.0); C]; R];
        let whole = over.len / S::LANES * S::LANES;
        let rest = over.len - whole;
        for &[in_a, in_b] in over.table {
            let (a, b) = (a.map(|p| p.offset(in_a)), b.map(|p| p.offset(in_b)));
            let mut i = 0;
            while i < whole {
                let mut x = [S::splat(0.0); R];
                for r in 0..R {
                    x[r] = S::load(a[r].add(i));
                }
                for c in 0..C {
                    let y = S::load(b[c].add(i));
                    for r in 0..R {
                        acc[r][c] = S::mul_add(x[r], y, acc[r][c]);
                    }
                }
                i += S::LANES;
            }
            if rest > 0 {
                let mut x = [S::splat(0.0); R];
                for r in 0..R {
                    x[r] = S::load_partial(a[r].add(i), rest);
                }
                for c in 0..C {
                    let y = S::load_partial(b[c].add(i), rest);
                    for r in 0..R {
                        acc[r][c] = S::mul_add(x[r], y, acc[r][c]);
                    }
                }
            }
        }
        let mut sums = [[0.0; C]; R];
        for r in 0..R {
            for c in 0..C {
                sums[r][c] = S::sum(acc[r][c]);
            }
        }
        sums
    }
}

/// Dot products of `rows` rows of `a` (each `stride` apart) with the rows `b_row(first)`, `b_row(first + 1)`,
/// … `b_row(last - 1)`; each goes to `put(row, column, sum)`.
///
/// # Safety
/// As for [`dots`], for every row named.
#[inline(always)]
pub(crate) unsafe fn dot_block<S: Simd>(
    a: *const f32,
    (first_row, last_row): (usize, usize),
    stride: isize,
    (first, last): (usize, usize),
    b_row: impl Fn(usize) -> *const f32,
    over: Stretches<'_>,
    mut put: impl FnMut(usize, usize, f32),
) {
    macro_rules! tiles {
        ($r:literal, $c:literal) => {{
            let mut col = first;
            while col < last {
                let cols = (last - col).min($c);
                // A short tile repeats its last column and drops the copies.
                let mut b = [b_row(col); $c];
                for c in 1..cols {
                    b[c] = b_row(col + c);
                }
                let mut row = first_row;
                while row < last_row {
                    let rows = (last_row - row).min($r);
                    let mut at = [a.wrapping_offset(row as isize * stride); $r];
                    for r in 1..rows {
                        at[r] = a.wrapping_offset((row + r) as isize * stride);
                    }
                    // Safety: the caller's promise.
                    let sums = unsafe { dots::<S, $r, $c>(at, b, over) };
                    for r in 0..rows {
                        for c in 0..cols {
                            put(row + r, col + c, sums[r][c]);
                        }
                    }
                    row += rows;
                }
                col += cols;
            }
        }};
    }
    match (last_row - first_row, S::DOT) {
        (1, _) => tiles!(1, 9),
        (2, _) => tiles!(2, 4),
        (_, (2, _)) => tiles!(2, 4),
        (_, (3, _)) => tiles!(3, 4),
        _ => tiles!(5, 4),
    }
}
