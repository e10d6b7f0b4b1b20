//! Matrix products: `C = alpha A B + beta C + bias`, f32 in register tiles, f64 in a plain loop.

use super::gemm_dot::{Stretches, dot_block};
pub use super::gemm_f64::gemm_f64;
use super::gemm_kernel::{Block, KC, Lhs, PANEL, PanelBuffer, Rhs, RowTiles, pack_lhs, pack_rhs, sweep};
use super::simd::{Isa, MAX_LANES, Simd, SimdOp, dispatch_on, isa};
use super::threads::{Shared, parallel_for};
use core::mem::MaybeUninit;
use core::ops::Range;

/// A matrix inside a slice: element (i, j) is `data[offset + i * row + j * col]`.
#[derive(Clone, Copy, Debug)]
pub struct Matrix<'a, T = f32> {
    /// The elements.
    pub data: &'a [T],
    /// Where element (0, 0) lies.
    pub offset: usize,
    /// Elements from one row to the next; may be negative or 0.
    pub row: isize,
    /// Elements from one column to the next; may be negative or 0.
    pub col: isize,
}

impl<'a, T> Matrix<'a, T> {
    /// A row-major matrix of `cols` columns.
    pub fn row_major(data: &'a [T], cols: usize) -> Self {
        Matrix { data, offset: 0, row: cols as isize, col: 1 }
    }

    /// The transpose, on the same elements.
    pub fn transposed(self) -> Self {
        Matrix { row: self.col, col: self.row, ..self }
    }

    /// Panics unless `rows` x `cols` elements from `extra` more on lie inside the slice.
    fn check(&self, rows: usize, cols: usize, extra: usize) {
        if rows == 0 || cols == 0 {
            return;
        }
        let (i, j) = ((rows - 1) as i128 * self.row as i128, (cols - 1) as i128 * self.col as i128);
        let start = self.offset as i128 + extra as i128;
        let (low, high) = (start + i.min(0) + j.min(0), start + i.max(0) + j.max(0));
        assert!(low >= 0 && high < self.data.len() as i128, "matrix reaches outside its slice");
    }
}

/// A matrix product `C[m, n] = alpha * A[m, k] * B[k, n] + beta * C + bias`.
///
/// `beta` 0 never reads C. C has column stride 1 and its own row stride.
#[derive(Clone, Copy, Debug)]
pub struct Gemm<'a, T = f32> {
    /// Rows of A and C.
    pub m: usize,
    /// Columns of B and C.
    pub n: usize,
    /// Columns of A, rows of B; 0 gives `beta * C + bias`.
    pub k: usize,
    /// Factor of the product.
    pub alpha: T,
    /// Factor of what C holds.
    pub beta: T,
    /// The left factor.
    pub a: Matrix<'a, T>,
    /// The right factor.
    pub b: Matrix<'a, T>,
    /// `m` values; value i is added to row i.
    pub row_bias: Option<&'a [T]>,
    /// `n` values; value j is added to column j.
    pub col_bias: Option<&'a [T]>,
}

impl<T: Copy> Gemm<'_, T> {
    pub(super) fn check(&self, c: &[T], ldc: usize, extra_a: usize, extra_b: usize, extra_c: usize) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        self.a.check(self.m, self.k, extra_a);
        self.b.check(self.k, self.n, extra_b);
        assert!(self.row_bias.is_none_or(|b| b.len() >= self.m), "row bias shorter than m");
        assert!(self.col_bias.is_none_or(|b| b.len() >= self.n), "column bias shorter than n");
        assert!(self.m == 1 || ldc >= self.n, "rows of C overlap");
        let last = (self.m - 1).checked_mul(ldc).and_then(|x| x.checked_add(self.n)?.checked_add(extra_c));
        assert!(last.is_some_and(|last| last <= c.len()), "C reaches outside its slice");
    }
}

/// Rows of A that are packed at once.
const ROWS_AT_ONCE: usize = 2048;
/// Columns of B that are packed at once for all tasks.
const COLUMNS_AT_ONCE: usize = 1024;
/// Rows of C in one task.
const TASK_ROWS: usize = 96;
/// Multiply-adds below which a task is not worth handing to another thread.
const TASK_WORK: usize = 1 << 18;
/// Most tasks into which one launch is cut.
const TASKS: usize = 64;
/// Most tasks of a batch that runs product beside product.
const BATCH_TASKS: usize = 16;
/// Most elements of k in one stretch of dot products: eight rows of it stay in the first-level cache.
const STRETCH: usize = 1024;

/// Elements of A packed at once.
fn packed_rows(m: usize, k: usize) -> usize {
    m.min(ROWS_AT_ONCE).saturating_mul(k.min(KC))
}

/// f32 elements of scratch that [`gemm`] needs.
pub fn gemm_scratch(m: usize, n: usize, k: usize) -> usize {
    let panels = n.next_multiple_of(PANEL * MAX_LANES).min(COLUMNS_AT_ONCE);
    packed_rows(m, k).saturating_add(if m > TASK_ROWS { panels.saturating_mul(k.min(KC)) } else { 0 })
}

/// f32 elements of scratch that [`gemm_batched`] needs.
pub fn gemm_batched_scratch(batch: usize, m: usize, n: usize, k: usize) -> usize {
    gemm_scratch(m, n, k).saturating_mul(batch.clamp(1, BATCH_TASKS))
}

/// One f32 product. `c` holds C with rows `ldc` apart; `scratch` at least [`gemm_scratch`] elements.
///
/// # Panics
/// If a matrix reaches outside its slice or the scratch is too small: a fault of the plan.
pub fn gemm(p: &Gemm<'_>, c: &mut [f32], ldc: usize, scratch: &mut [f32]) {
    gemm_on(isa(), p, c, ldc, scratch);
}

fn gemm_on(isa: Isa, p: &Gemm<'_>, c: &mut [f32], ldc: usize, scratch: &mut [f32]) {
    p.check(c, ldc, 0, 0, 0);
    assert!(scratch.len() >= gemm_scratch(p.m, p.n, p.k), "scratch too small");
    let job = Job::new(isa, p, Shared::new(c), ldc);
    // Safety: the checks above cover every access.
    unsafe { job.run(scratch.as_mut_ptr(), true) };
}

/// One f32 product inside a task, on one thread, without checks.
///
/// # Safety
/// The matrices lie inside their slices, `c` and `scratch` are good for the product, and no other task has them.
pub(crate) unsafe fn gemm_in_task(isa: Isa, p: &Gemm<'_>, c: Shared<f32>, ldc: usize, scratch: *mut f32) {
    // Safety: the caller's promise.
    unsafe { Job::new(isa, p, c, ldc).run(scratch, false) };
}

/// `batch` products of one shape. Product i takes A and B `offsets(i)` elements further on, and C `i * c_stride`
/// further on; `c_stride` must keep the products apart.
///
/// # Panics
/// As [`gemm`], for any product.
pub fn gemm_batched(
    p: &Gemm<'_>,
    batch: usize,
    offsets: impl Fn(usize) -> (usize, usize) + Sync,
    c: &mut [f32],
    ldc: usize,
    c_stride: usize,
    scratch: &mut [f32],
) {
    if p.m == 0 || p.n == 0 || batch == 0 {
        return;
    }
    assert!(batch == 1 || c_stride >= (p.m - 1) * ldc + p.n, "products of the batch overlap in C");
    for i in 0..batch {
        let (a, b) = offsets(i);
        p.check(c, ldc, a, b, i * c_stride);
    }
    let each = gemm_scratch(p.m, p.n, p.k);
    assert!(scratch.len() >= gemm_batched_scratch(batch, p.m, p.n, p.k), "scratch too small");
    let (c, scratch) = (Shared::new(c), Shared::new(scratch));
    let base = Job::new(isa(), p, c, ldc);
    let product = |i: usize, scratch: *mut f32, parallel: bool| {
        let (a, b) = offsets(i);
        // Safety: every product has been checked above, and no two share elements of C or scratch.
        unsafe { base.moved(a, b, i * c_stride).run(scratch, parallel) };
    };
    // A few large products are cut up one after the other, many or small ones run side by side.
    if batch < BATCH_TASKS && p.m * p.n * p.k >= 8 * TASK_WORK {
        for i in 0..batch {
            product(i, scratch.get(), true);
        }
        return;
    }
    let tasks = batch.min(BATCH_TASKS);
    let run = |t: usize| {
        // Safety: each task has its own part.
        let scratch = unsafe { scratch.get().add(t * each) };
        for i in t * batch / tasks..(t + 1) * batch / tasks {
            product(i, scratch, false);
        }
    };
    if batch * p.m * p.n * p.k < TASK_WORK { (0..tasks).for_each(run) } else { parallel_for(tasks, run) }
}

/// A product as pointers, ready to run.
#[derive(Clone, Copy)]
struct Job {
    isa: Isa,
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    beta: f32,
    a: *const f32,
    a_strides: (isize, isize),
    b: *const f32,
    b_strides: (isize, isize),
    row_bias: *const f32,
    col_bias: *const f32,
    c: Shared<f32>,
    ldc: usize,
}

// Safety: A, B and the biases are only read; C is written by tasks that share no element.
unsafe impl Sync for Job {}

impl Job {
    fn new(isa: Isa, p: &Gemm<'_>, c: Shared<f32>, ldc: usize) -> Job {
        let pointer = |bias: Option<&[f32]>| bias.map_or(core::ptr::null(), <[f32]>::as_ptr);
        Job {
            isa,
            m: p.m,
            n: p.n,
            k: p.k,
            alpha: p.alpha,
            beta: p.beta,
            a: p.a.data.as_ptr().wrapping_add(p.a.offset),
            a_strides: (p.a.row, p.a.col),
            b: p.b.data.as_ptr().wrapping_add(p.b.offset),
            b_strides: (p.b.row, p.b.col),
            row_bias: pointer(p.row_bias),
            col_bias: pointer(p.col_bias),
            c,
            ldc,
        }
    }

    /// C transposed, for a contiguous column as for a row.
    fn transposed(self) -> Job {
        let swap = |(row, col): (isize, isize)| (col, row);
        Job {
            m: self.n,
            n: self.m,
            a: self.b,
            a_strides: swap(self.b_strides),
            b: self.a,
            b_strides: swap(self.a_strides),
            row_bias: self.col_bias,
            col_bias: self.row_bias,
            ldc: self.m,
            ..self
        }
    }

    /// The same product on other elements.
    fn moved(self, a: usize, b: usize, c: usize) -> Job {
        Job { a: self.a.wrapping_add(a), b: self.b.wrapping_add(b), c: self.c.moved(c), ..self }
    }

    /// # Safety
    /// The pointers are good for the shape, `scratch` for [`gemm_scratch`] elements.
    unsafe fn run(&self, scratch: *mut f32, parallel: bool) {
        if self.m == 0 || self.n == 0 {
            return;
        }
        if self.n == 1 && self.m > 1 && self.ldc == 1 {
            // Safety: the same elements, and one row of A needs less scratch.
            return unsafe { self.transposed().run(scratch, parallel) };
        }
        let long = self.k >= if self.m <= 4 { 16 } else { 96 };
        // Safety: the caller's promise.
        unsafe {
            if self.a_strides.1 == 1 && self.b_strides.0 == 1 && long && (self.m <= 48 || self.n <= 12) {
                self.run_dots(parallel);
            } else {
                self.run_tiles(scratch, parallel);
            }
        }
    }

    /// Both factors contiguous along k and one of them too short to pay for packing.
    ///
    /// # Safety
    /// As for [`Job::run`].
    unsafe fn run_dots(&self, parallel: bool) {
        let tasks = cut(self.n.div_ceil(4), 1, self.m * self.n * self.k);
        let columns = |t: usize| (t * self.n / tasks, (t + 1) * self.n / tasks);
        each(parallel, tasks, |t| dispatch_on(self.isa, Dots { job: self, columns: columns(t) }));
    }

    /// # Safety
    /// As for [`Job::run`].
    unsafe fn run_tiles(&self, scratch: *mut f32, parallel: bool) {
        let (lanes, accumulators) = self.isa.registers();
        let width = if self.m <= accumulators / 8 && self.n > 4 * lanes {
            8
        } else if self.m <= accumulators / 4 && self.n > 2 * lanes {
            4
        } else if self.n <= lanes {
            1
        } else {
            PANEL
        };
        let kc = (KC * PANEL / width).min(KC);
        let each_panel = width * lanes;
        // Where several bands of rows meet the same columns, those are packed for all of them.
        let shared = self.m > TASK_ROWS;
        let columns = if shared { COLUMNS_AT_ONCE } else { self.n };
        let scratch_b = Shared::from_ptr(scratch.wrapping_add(packed_rows(self.m, self.k)));
        for first_row in (0..self.m).step_by(ROWS_AT_ONCE) {
            let rows = (self.m - first_row).min(ROWS_AT_ONCE);
            let tiles = RowTiles::new(rows, accumulators / width);
            for k0 in (0..self.k.max(1)).step_by(kc) {
                let kc = kc.min(self.k - k0);
                let lhs = self.lhs(first_row, k0, kc, tiles, scratch, parallel);
                for first_col in (0..self.n).step_by(columns) {
                    let first_panel = first_col / each_panel;
                    let panels = (self.n - first_col).min(columns).div_ceil(each_panel);
                    let base = Tiles {
                        job: self,
                        width,
                        first_row,
                        k0,
                        kc,
                        lhs: lhs.get(),
                        tiles: 0..tiles.count,
                        panels: first_panel..first_panel + panels,
                        packed: shared.then_some((scratch_b, first_panel)),
                    };
                    // Safety: the caller's promise.
                    unsafe { base.launch(parallel) };
                }
            }
        }
    }

    /// The rows of A for one block of k: in place where they are contiguous along k, else packed.
    fn lhs(&self, row: usize, k0: usize, kc: usize, tiles: RowTiles, scratch: *mut f32, parallel: bool) -> SharedLhs {
        let strides = self.a_strides;
        let a = self.a.wrapping_offset(row as isize * strides.0 + k0 as isize * strides.1);
        if strides.1 == 1 && (tiles.rows <= TASK_ROWS || self.n < 256) {
            return SharedLhs(Lhs { ptr: a, strides: Some(strides), tiles });
        }
        let tasks = cut(tiles.count, 1, tiles.rows * kc * 16);
        let (from, to) = (SharedLhs(Lhs { ptr: a, strides: None, tiles }), Shared::from_ptr(scratch));
        each(parallel, tasks, |t| {
            let which = t * tiles.count / tasks..(t + 1) * tiles.count / tasks;
            // Safety: each task packs tiles of its own into room that is there for all.
            unsafe { pack_lhs(tiles, which, kc, from.get().ptr, strides, to.get()) };
        });
        SharedLhs(Lhs { ptr: scratch, strides: None, tiles })
    }
}

/// [`Lhs`] that tasks may share: they only read through it.
#[derive(Clone, Copy)]
struct SharedLhs(Lhs);
// Safety: see above.
unsafe impl Sync for SharedLhs {}
impl SharedLhs {
    fn get(self) -> Lhs {
        self.0
    }
}

/// Into how many parts to cut `units`, when they are already cut `bands` times: by the work alone.
pub(crate) fn cut(units: usize, bands: usize, work: usize) -> usize {
    (work / TASK_WORK).clamp(1, TASKS).div_ceil(bands.max(1)).clamp(1, units.max(1))
}

fn each(parallel: bool, tasks: usize, f: impl Fn(usize) + Sync) {
    if parallel { parallel_for(tasks, f) } else { (0..tasks).for_each(f) }
}

/// Some columns of C by dot products.
struct Dots<'a> {
    job: &'a Job,
    columns: (usize, usize),
}

impl SimdOp for Dots<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let job = self.job;
        for k0 in (0..job.k).step_by(STRETCH) {
            let len = STRETCH.min(job.k - k0);
            let (first, last) = (k0 == 0, k0 + len == job.k);
            let put = |row: usize, col: usize, sum: f32| {
                // Safety: a row and column of C.
                unsafe {
                    let c = job.c.get().add(row * job.ldc + col);
                    let mut value = job.alpha * sum;
                    if !first {
                        value += *c;
                    } else if job.beta != 0.0 {
                        value += job.beta * *c;
                    }
                    if last && !job.row_bias.is_null() {
                        value += *job.row_bias.add(row);
                    }
                    if last && !job.col_bias.is_null() {
                        value += *job.col_bias.add(col);
                    }
                    *c = value;
                }
            };
            let b = job.b.wrapping_add(k0);
            let b_row = |j: usize| b.wrapping_offset(j as isize * job.b_strides.1);
            let over = Stretches { table: &[[0, 0]], len };
            // Safety: the job's pointers are good for its shape.
            unsafe {
                dot_block::<S>(job.a.add(k0), (0, job.m), job.a_strides.0, self.columns, b_row, over, put);
            }
        }
    }
}

/// Some tiles of C for one block of k.
#[derive(Clone)]
struct Tiles<'a> {
    job: &'a Job,
    width: usize,
    first_row: usize,
    k0: usize,
    kc: usize,
    lhs: Lhs,
    tiles: Range<usize>,
    panels: Range<usize>,
    /// Where panels are packed for all tasks, and the first of them.
    packed: Option<(Shared<f32>, usize)>,
}

// Safety: A, B and the packed panels are only read, C is written by tasks that share no element.
unsafe impl Sync for Tiles<'_> {}

impl Tiles<'_> {
    /// Packs the panels if they are shared, then computes the tiles, both in tasks.
    ///
    /// # Safety
    /// The job's pointers are good for its shape, the scratch for what is packed.
    unsafe fn launch(&self, parallel: bool) {
        let isa = self.job.isa;
        let (tiles, panels) = (self.tiles.len(), self.panels.len());
        let part = |range: &Range<usize>, i: usize, of: usize| {
            range.start + i * range.len() / of..range.start + (i + 1) * range.len() / of
        };
        if self.packed.is_some() {
            let tasks = cut(panels, 1, self.job.n * self.kc * 16);
            each(parallel, tasks, |t| {
                dispatch_on(isa, PackTiles(Tiles { panels: part(&self.panels, t, tasks), ..self.clone() }));
            });
        }
        let rows = self.lhs.tiles.rows;
        let bands = rows.div_ceil(TASK_ROWS).min(tiles);
        let cuts = cut(panels, bands, rows * self.job.n * self.kc);
        each(parallel, bands * cuts, |t| {
            let (tiles, panels) = (part(&self.tiles, t % bands, bands), part(&self.panels, t / bands, cuts));
            dispatch_on(isa, Tiles { tiles, panels, ..self.clone() });
        });
    }

    /// Packs a panel.
    ///
    /// # Safety
    /// `S` runs on this machine, `to` has room.
    #[inline(always)]
    unsafe fn pack<S: Simd, const W: usize>(&self, panel: usize, to: *mut f32) {
        let (job, first) = (self.job, panel * W * S::LANES);
        let (row, col) = job.b_strides;
        let b = job.b.wrapping_offset(self.k0 as isize * row + first as isize * col);
        // Safety: the job's pointers are good for its shape.
        unsafe { pack_rhs::<S, W>(self.kc, (W * S::LANES).min(job.n - first), b, (row, col), to) };
    }
}

impl SimdOp for Tiles<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(mut self) {
        let mut buffer: PanelBuffer = MaybeUninit::uninit();
        let (lhs, tiles, panels) = (self.lhs, self.tiles.clone(), self.panels.clone());
        macro_rules! of_width {
            ($w:literal) => {
                // Safety: the job's pointers are good for its shape.
                unsafe { sweep::<S, $w, _>(&lhs, tiles, self.kc, panels, &mut self, &mut buffer) }
            };
        }
        match self.width {
            8 => of_width!(8),
            4 => of_width!(4),
            2 => of_width!(2),
            _ => of_width!(1),
        }
    }
}

/// Packs the panels instead of multiplying them.
struct PackTiles<'a>(Tiles<'a>);

impl SimdOp for PackTiles<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Some((to, first)) = self.0.packed else { return };
        for panel in self.0.panels.clone() {
            let to = to.moved((panel - first) * self.0.kc * self.0.width * S::LANES).get();
            // Safety: the scratch holds all panels; many rows are never multiplied one or two vectors wide.
            unsafe {
                match self.0.width {
                    1 => self.0.pack::<S, 1>(panel, to),
                    _ => self.0.pack::<S, PANEL>(panel, to),
                }
            }
        }
    }
}

impl Block for Tiles<'_> {
    const TABLE: bool = false;

    #[inline(always)]
    unsafe fn rows<S: Simd, const W: usize>(&mut self, panel: usize, buffer: *mut f32) -> Rhs {
        let lanes = W * S::LANES;
        if let Some((packed, first)) = self.packed {
            return Rhs::Even(packed.moved((panel - first) * self.kc * lanes).get(), lanes as isize);
        }
        let (row, col) = self.job.b_strides;
        let first = panel * lanes;
        // Packing pays once a few tiles share the panel; rows far apart would evict each other.
        if col == 1 && first + lanes <= self.job.n && self.tiles.len() < 4 {
            let b = self.job.b.wrapping_offset(self.k0 as isize * row + first as isize);
            return Rhs::Even(b, row);
        }
        // Safety: the job's pointers are good for its shape, the buffer by the caller's promise.
        unsafe { self.pack::<S, W>(panel, buffer) };
        Rhs::Even(buffer, lanes as isize)
    }

    #[inline(always)]
    unsafe fn put<S: Simd, const R: usize, const W: usize>(&mut self, row: usize, panel: usize, tile: &[[S::V; W]; R]) {
        let job = self.job;
        let (row, col) = (self.first_row + row, panel * W * S::LANES);
        let beta = if self.k0 == 0 { job.beta } else { 1.0 };
        let last = self.k0 + self.kc == job.k;
        let row_bias = if last { job.row_bias } else { core::ptr::null() };
        let col_bias = if last { job.col_bias } else { core::ptr::null() };
        // Safety: the tile lies in C, of which only the columns that exist are touched.
        unsafe {
            let c = job.c.get().add(row * job.ldc + col);
            if job.n - col < W * S::LANES {
                let mut values = MaybeUninit::<[f32; EDGE]>::uninit();
                let values = values.as_mut_ptr().cast::<f32>();
                for r in 0..R {
                    for w in 0..W {
                        S::store(values.add((r * W + w) * S::LANES), tile[r][w]);
                    }
                }
                return job.put_edge((row, R), col, values, W * S::LANES, (beta, row_bias, col_bias));
            }
            let (alpha, beta_v) = (S::splat(job.alpha), S::splat(beta));
            for r in 0..R {
                for w in 0..W {
                    let at = c.add(r * job.ldc + w * S::LANES);
                    let mut v = S::mul(tile[r][w], alpha);
                    if beta != 0.0 {
                        v = S::mul_add(S::load(at), beta_v, v);
                    }
                    if !row_bias.is_null() {
                        v = S::add(v, S::load_splat(row_bias.add(row + r)));
                    }
                    if !col_bias.is_null() {
                        v = S::add(v, S::load(col_bias.add(col + w * S::LANES)));
                    }
                    S::store(at, v);
                }
            }
        }
    }
}

/// Elements of the largest tile.
const EDGE: usize = 24 * MAX_LANES;

impl Job {
    /// Stores a tile that reaches past the last column: `rows` rows of `values`, `lanes` apart.
    ///
    /// # Safety
    /// The rows are rows of C.
    #[inline(never)]
    unsafe fn put_edge(
        &self,
        (row, rows): (usize, usize),
        col: usize,
        values: *const f32,
        lanes: usize,
        (beta, row_bias, col_bias): (f32, *const f32, *const f32),
    ) {
        let width = self.n - col;
        for r in 0..rows {
            // Safety: the caller's promise.
            unsafe {
                let (c, values) = (self.c.get().add((row + r) * self.ldc + col), values.add(r * lanes));
                let bias = if row_bias.is_null() { 0.0 } else { *row_bias.add(row + r) };
                for j in 0..width {
                    let mut v = self.alpha * *values.add(j);
                    if beta != 0.0 {
                        v += beta * *c.add(j);
                    }
                    v += bias;
                    if !col_bias.is_null() {
                        v += *col_bias.add(col + j);
                    }
                    *c.add(j) = v;
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "gemm_tests.rs"]
pub(crate) mod tests;
