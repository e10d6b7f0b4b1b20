//! The register tile of a matrix product, and the sweep of it over a block of C.
//!
//! C is cut into tiles of R rows and one panel of W vectors. A comes either packed (tile after tile, within
//! one the R elements of each k side by side) or straight from memory; a panel of B is a run of rows, read in
//! place or packed into a buffer on the stack. Which of these holds never changes an element's sum: it is
//! always taken over k in rising order, block of [`KC`] after block.

use super::simd::{MAX_LANES, Simd, transpose4};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Elements of k in one block: a packed panel of B then takes half of the first-level cache.
pub(crate) const KC: usize = 256;

/// The most rows of a tile, however many accumulators there are: each height is code of its own.
const MOST_ROWS: usize = 12;

/// Vectors in a panel where nothing calls for another width.
pub(crate) const PANEL: usize = 2;

/// Room for one packed panel of B.
pub(crate) type PanelBuffer = MaybeUninit<AlignedPanel>;

/// See [`PanelBuffer`]; aligned so that no vector of it crosses a cache line.
#[repr(align(64))]
pub(crate) struct AlignedPanel(#[allow(dead_code, reason = "only its address is used")] [f32; KC * PANEL * MAX_LANES]);

/// `m` rows cut into as few tiles of at most `most` rows (and [`MOST_ROWS`]) as will do, of equal height or nearly.
#[derive(Clone, Copy)]
pub(crate) struct RowTiles {
    pub(crate) rows: usize,
    pub(crate) count: usize,
}

impl RowTiles {
    pub(crate) fn new(rows: usize, most: usize) -> RowTiles {
        RowTiles { rows, count: rows.div_ceil(most.min(MOST_ROWS)) }
    }

    /// First row of tile `i`; `i` may be `count`.
    #[inline(always)]
    pub(crate) fn start(self, i: usize) -> usize {
        (i * self.rows).checked_div(self.count).unwrap_or(0)
    }
}

/// The rows of A for one block of k.
#[derive(Clone, Copy)]
pub(crate) struct Lhs {
    /// Packed: the block's first panel. Otherwise element (0, first k).
    pub(crate) ptr: *const f32,
    /// From row to row and from k to k; None where A is packed.
    pub(crate) strides: Option<(isize, isize)>,
    pub(crate) tiles: RowTiles,
}

/// The rows of B for one panel and one block of k.
#[derive(Clone, Copy)]
pub(crate) enum Rhs {
    /// Row k at `.0 + k * .1`.
    Even(*const f32, isize),
    /// Row k at `.0 + .1[k]`.
    Table(*const f32, *const isize),
}

/// A block of C: where its panels of B come from and where its finished tiles go.
pub(crate) trait Block {
    /// Whether [`Rhs::Table`] can occur: leaves out its code otherwise.
    const TABLE: bool;

    /// Panel `panel` for the current block of k, packed into `buffer` unless it can be read in place. The
    /// tiles that follow are of this panel.
    ///
    /// # Safety
    /// `S` runs on this machine; the panel exists; `buffer` holds `kc * W * LANES` elements.
    unsafe fn rows<S: Simd, const W: usize>(&mut self, panel: usize, buffer: *mut f32) -> Rhs;

    /// Adds what belongs there and stores the tile whose first row is `row`.
    ///
    /// # Safety
    /// `S` runs on this machine; rows and panel exist; no other task writes them.
    unsafe fn put<S: Simd, const R: usize, const W: usize>(&mut self, row: usize, panel: usize, tile: &[[S::V; W]; R]);
}

/// Steps through the rows of a panel.
trait Walk {
    /// # Safety
    /// Another row exists.
    unsafe fn next(&mut self) -> *const f32;
}

struct Even(*const f32, isize);

impl Walk for Even {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const f32 {
        let row = self.0;
        self.0 = row.wrapping_offset(self.1);
        row
    }
}

struct Table(*const f32, *const isize);

impl Walk for Table {
    #[inline(always)]
    unsafe fn next(&mut self) -> *const f32 {
        // Safety: the caller's promise.
        unsafe {
            let row = self.0.offset(*self.1);
            self.1 = self.1.add(1);
            row
        }
    }
}

/// The product of R rows of A and a panel of W vectors of B.
///
/// # Safety
/// `S` runs on this machine; the pointers are good for `kc` steps.
#[inline(always)]
unsafe fn multiply<S: Simd, const R: usize, const W: usize>(
    kc: usize,
    mut a: *const f32,
    row: isize,
    step: isize,
    mut rows: impl Walk,
) -> [[S::V; W]; R] {
    // Safety: the caller's promise.
    unsafe {
        let mut acc = [[S::splat(0.0); W]; R];
        for _ in 0..kc {
            let from = rows.next();
            let mut b = [S::splat(0.0); W];
            for w in 0..W {
                b[w] = S::load(from.add(w * S::LANES));
            }
            for r in 0..R {
                let x = S::load_splat(a.offset(r as isize * row));
                for w in 0..W {
                    acc[r][w] = S::mul_add(x, b[w], acc[r][w]);
                }
            }
            a = a.wrapping_offset(step);
        }
        acc
    }
}

/// One tile: picks the loop for how A and B lie, runs it, hands the tile on.
///
/// # Safety
/// As for [`sweep`].
// In wasm a function of its own: engines compile a huge function badly or late. Elsewhere it must be inlined into
// the function that has the instruction set.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn tile<S: Simd, const R: usize, const W: usize, B: Block>(
    lhs: &Lhs,
    row: usize,
    kc: usize,
    panel: usize,
    rhs: Rhs,
    block: &mut B,
) {
    // Safety: the caller's promise; a packed tile starts after `row` rows of `kc` elements.
    unsafe {
        let (a, strides) = match lhs.strides {
            None => (lhs.ptr.add(row * kc), None),
            Some(strides) => (lhs.ptr.offset(row as isize * strides.0), Some(strides)),
        };
        let acc = match (rhs, strides) {
            (Rhs::Even(b, step), None) => multiply::<S, R, W>(kc, a, 1, R as isize, Even(b, step)),
            (Rhs::Even(b, step), Some((row, col))) => multiply::<S, R, W>(kc, a, row, col, Even(b, step)),
            // Only convolutions read through a table, and they always pack A.
            (Rhs::Table(b, table), _) if B::TABLE => multiply::<S, R, W>(kc, a, 1, R as isize, Table(b, table)),
            (Rhs::Table(..), _) => return,
        };
        block.put::<S, R, W>(row, panel, &acc);
    }
}

/// Computes the tiles of `tiles` x `panels` for one block of `kc` elements of k and hands each to `block`.
///
/// # Safety
/// `S` runs on this machine; `lhs` covers the tiles and `kc` steps, `block` the panels; tiles have at most
/// `ACCUMULATORS / W` rows; `kc <= KC * PANEL / W`.
#[inline(always)]
pub(crate) unsafe fn sweep<S: Simd, const W: usize, B: Block>(
    lhs: &Lhs,
    tiles: Range<usize>,
    kc: usize,
    panels: Range<usize>,
    block: &mut B,
    buffer: &mut PanelBuffer,
) {
    let buffer = buffer.as_mut_ptr().cast::<f32>();
    for panel in panels {
        // Safety: the caller's promise.
        let rhs = unsafe { block.rows::<S, W>(panel, buffer) };
        for i in tiles.clone() {
            let row = lhs.tiles.start(i);
            let rows = lhs.tiles.start(i + 1) - row;
            macro_rules! of_height {
                ($($r:literal)*) => { match rows {
                    $($r if const { $r * W <= S::ACCUMULATORS } => {
                        // Safety: the caller's promise.
                        unsafe { tile::<S, $r, W, B>(lhs, row, kc, panel, rhs, block) }
                    },)*
                    _ => unreachable!("a tile of {rows} rows, {W} vectors wide"),
                } };
            }
            // Up to MOST_ROWS.
            of_height!(1 2 3 4 5 6 7 8 9 10 11 12);
        }
    }
}

/// Packs the tiles `which` of A for one block of k: where tile `i` goes follows from its first row.
///
/// # Safety
/// `a` (element (0, first k)) and `to` are good for all rows of the tiles and `kc` steps.
pub(crate) unsafe fn pack_lhs(
    tiles: RowTiles,
    which: Range<usize>,
    kc: usize,
    a: *const f32,
    (row, col): (isize, isize),
    to: *mut f32,
) {
    if col != 1 {
        // Safety: the caller's promise.
        return unsafe { pack_lhs_by(tiles, which, kc, a, (row, |k| k as isize * col), to) };
    }
    for i in which {
        let first = tiles.start(i);
        let rows = tiles.start(i + 1) - first;
        let (whole, whole_k) = (rows / 4 * 4, kc / 4 * 4);
        // Safety: the caller's promise.
        unsafe {
            let (a, to) = (a.offset(first as isize * row), to.add(first * kc));
            for r in (0..whole).step_by(4) {
                for k in (0..whole_k).step_by(4) {
                    transpose4(a.offset(r as isize * row).add(k), row, to.add(k * rows + r), rows);
                }
            }
            for r in 0..rows {
                for k in if r < whole { whole_k } else { 0 }..kc {
                    *to.add(k * rows + r) = *a.offset(r as isize * row).add(k);
                }
            }
        }
    }
}

/// As [`pack_lhs`], with the place of each k given by a function.
///
/// # Safety
/// As for [`pack_lhs`].
pub(crate) unsafe fn pack_lhs_by(
    tiles: RowTiles,
    which: Range<usize>,
    kc: usize,
    a: *const f32,
    (row_stride, k_offset): (isize, impl Fn(usize) -> isize),
    to: *mut f32,
) {
    for i in which {
        let first = tiles.start(i);
        let rows = tiles.start(i + 1) - first;
        // Safety: the caller's promise.
        unsafe {
            let from = a.offset(first as isize * row_stride);
            let mut to = to.add(first * kc);
            for k in 0..kc {
                let column = from.offset(k_offset(k));
                for r in 0..rows {
                    *to.add(r) = *column.offset(r as isize * row_stride);
                }
                to = to.add(rows);
            }
        }
    }
}

/// Packs `width` columns and `kc` rows of B into rows of `W` vectors, filled up with zeros.
///
/// # Safety
/// `b` is good for the block, `to` for `kc * W * LANES` elements; `S` runs on this machine.
// In wasm a function of its own: engines compile a huge function badly or late. Elsewhere it must be inlined into
// the function that has the instruction set.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
pub(crate) unsafe fn pack_rhs<S: Simd, const W: usize>(
    kc: usize,
    width: usize,
    b: *const f32,
    (row, col): (isize, isize),
    to: *mut f32,
) {
    let lanes = W * S::LANES;
    // Safety: the caller's promise.
    unsafe {
        if col == 1 && width == lanes {
            for k in 0..kc {
                let from = b.offset(k as isize * row);
                for w in 0..W {
                    S::store(to.add(k * lanes + w * S::LANES), S::load(from.add(w * S::LANES)));
                }
            }
            return;
        }
        if width < lanes {
            for i in 0..kc * W {
                S::store(to.add(i * S::LANES), S::splat(0.0));
            }
        }
        if row != 1 {
            for k in 0..kc {
                for j in 0..width {
                    *to.add(k * lanes + j) = *b.offset(k as isize * row + j as isize * col);
                }
            }
            return;
        }
        // Columns are contiguous in k: transpose four by four.
        let (k4, j4) = (kc / 4 * 4, width / 4 * 4);
        for j in (0..j4).step_by(4) {
            for k in (0..k4).step_by(4) {
                S::transpose4(b.offset(k as isize + j as isize * col), col, to.add(k * lanes + j), lanes);
            }
        }
        for j in 0..width {
            for k in if j < j4 { k4 } else { 0 }..kc {
                *to.add(k * lanes + j) = *b.offset(k as isize + j as isize * col);
            }
        }
    }
}
