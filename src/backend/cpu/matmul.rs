//! The Gemm kernel on f32 views.

use super::gemm::{Gemm, Matrix, gemm_batched, gemm_batched_scratch};
use super::memory::Memory;
use crate::kernel::{self, BufferId, View};
use crate::tensor::DType;

/// A factor: where its matrices begin and how they are walked.
struct Factor {
    buffer: BufferId,
    offset: usize,
    row: isize,
    col: isize,
}

/// What is added to the product.
enum Addend {
    Nothing,
    /// A vector that every row (or, for `rows`, every column) gets.
    Vector {
        view: View,
        rows: bool,
    },
    /// Any view, and where each product's part begins: put into C beforehand.
    Full(View, Vec<isize>),
}

/// A prepared batched product.
pub(super) struct MatMul {
    m: usize,
    n: usize,
    k: usize,
    alpha: f32,
    beta: f32,
    a: Factor,
    b: Factor,
    addend: Addend,
    out: View,
    ldc: usize,
    c_stride: usize,
    /// How far product i takes A and B.
    moves: Vec<(isize, isize)>,
}

impl MatMul {
    /// `None` unless all views are f32 and the result is rows of neighbouring elements, evenly spaced.
    pub(super) fn compile(kernel: &kernel::Gemm, reads: &[View], out: &View) -> Option<Self> {
        let (a, b) = (&reads[0], &reads[1]);
        if reads.iter().chain([out]).any(|v| v.dtype != DType::F32) {
            return None;
        }
        let r = out.rank();
        let (m, n, k) = (out.shape[r - 2], out.shape[r - 1], a.shape[r - 1]);
        let c_rows = if m > 1 { out.strides[r - 2] } else { n as isize };
        if (n > 1 && out.strides[r - 1] != 1) || c_rows < n as isize {
            return None;
        }
        let moves = products(&out.shape[..r - 2], &[a, b, out])?;
        let c_stride = moves.get(1).map_or(m * n, |m| m[2].max(0) as usize);
        let even = moves.iter().enumerate().all(|(i, m)| m[2] == (i * c_stride) as isize);
        if !even || moves.len() > 1 && c_stride < (m.max(1) - 1) * c_rows as usize + n {
            return None;
        }
        let factor =
            |v: &View| Factor { buffer: v.buffer, offset: v.offset, row: v.strides[r - 2], col: v.strides[r - 1] };
        let addend = match reads.get(2) {
            Some(c) if kernel.beta != 0.0 => addend(c, kernel.beta, &out.shape[..r - 2]),
            _ => Addend::Nothing,
        };
        let beta = if matches!(addend, Addend::Full(..)) { kernel.beta } else { 0.0 };
        Some(Self {
            m,
            n,
            k,
            alpha: kernel.alpha,
            beta,
            a: factor(a),
            b: factor(b),
            addend,
            out: out.clone(),
            ldc: c_rows as usize,
            c_stride,
            moves: moves.iter().map(|m| (m[0], m[1])).collect(),
        })
    }

    pub(super) fn scratch(&self) -> usize {
        gemm_batched_scratch(self.moves.len(), self.m, self.n, self.k)
    }

    /// # Safety
    /// Every view has passed `Memory::check` for this memory, and the result overlaps no operand.
    pub(super) unsafe fn run(&self, memory: &Memory, scratch: &mut [f32]) {
        if self.out.is_empty() {
            return;
        }
        // Safety: the caller's word; the slices cover whole buffers, which are disjoint or shared for reading.
        let (a, b, c) =
            unsafe { (slice(memory, self.a.buffer), slice(memory, self.b.buffer), slice_mut(memory, &self.out)) };
        let (mut row_bias, mut col_bias) = (None, None);
        match &self.addend {
            Addend::Nothing => {}
            Addend::Vector { view, rows } => {
                // Safety: as above; the view is a run of neighbouring elements.
                let values = unsafe { &slice(memory, view.buffer)[view.offset..] };
                *(if *rows { &mut row_bias } else { &mut col_bias }) = Some(values);
            }
            // Safety: as above.
            Addend::Full(view, moves) => unsafe { self.put(view, moves, memory, c) },
        }
        // A product's factors may lie before the first one's (a negative batch stride): count from the lowest.
        let low = |pick: fn(&(isize, isize)) -> isize| self.moves.iter().map(pick).min().unwrap_or(0).min(0);
        let (low_a, low_b) = (low(|m| m.0), low(|m| m.1));
        let factor = |f: &Factor, data, low: isize| Matrix {
            data,
            offset: (f.offset as isize + low) as usize,
            row: f.row,
            col: f.col,
        };
        let problem = Gemm {
            m: self.m,
            n: self.n,
            k: self.k,
            alpha: self.alpha,
            beta: self.beta,
            a: factor(&self.a, a, low_a),
            b: factor(&self.b, b, low_b),
            row_bias,
            col_bias,
        };
        let moved = |i: usize| ((self.moves[i].0 - low_a) as usize, (self.moves[i].1 - low_b) as usize);
        gemm_batched(&problem, self.moves.len(), moved, c, self.ldc, self.c_stride, scratch);
    }

    /// Puts the addend into C.
    ///
    /// # Safety
    /// As [`Self::run`].
    unsafe fn put(&self, view: &View, moves: &[isize], memory: &Memory, c: &mut [f32]) {
        let r = view.rank();
        // Safety: the caller's word.
        let from = unsafe { slice(memory, view.buffer) };
        for (p, moved) in moves.iter().enumerate() {
            let base = view.offset as isize + moved;
            for i in 0..self.m {
                let row = &mut c[p * self.c_stride + i * self.ldc..][..self.n];
                for (j, out) in row.iter_mut().enumerate() {
                    *out = from[(base + i as isize * view.strides[r - 2] + j as isize * view.strides[r - 1]) as usize];
                }
            }
        }
    }
}

/// The addend, as a bias vector where it is one.
fn addend(c: &View, beta: f32, batch: &[usize]) -> Addend {
    let r = c.rank();
    let (m, n) = (c.shape[r - 2], c.shape[r - 1]);
    let full = || Addend::Full(c.clone(), products(batch, &[c]).into_iter().flatten().map(|[m]| m).collect());
    let one = c.strides[..r - 2].iter().zip(&c.shape).all(|(&s, &d)| s == 0 || d == 1);
    let (row, col) = (c.strides[r - 2], c.strides[r - 1]);
    match () {
        () if beta != 1.0 || !one => full(),
        () if (row == 0 || m == 1) && (col == 1 || n == 1) => Addend::Vector { view: c.clone(), rows: false },
        () if (col == 0 || n == 1) && (row == 1 || m == 1) => Addend::Vector { view: c.clone(), rows: true },
        () => full(),
    }
}

/// How far each product of the batch takes each view, in row-major order of the batch.
fn products<const N: usize>(batch: &[usize], views: &[&View; N]) -> Option<Vec<[isize; N]>> {
    let count = batch.iter().product::<usize>();
    let mut moves = Vec::with_capacity(count);
    let mut at = vec![0usize; batch.len()];
    for _ in 0..count {
        moves.push(views.map(|v| at.iter().zip(&v.strides).map(|(&i, &s)| i as isize * s).sum()));
        count_up(&mut at, batch);
    }
    (count > 0).then_some(moves)
}

/// The next coordinate in row-major order.
fn count_up(at: &mut [usize], shape: &[usize]) {
    for (i, &size) in at.iter_mut().zip(shape).rev() {
        *i += 1;
        if *i < size {
            return;
        }
        *i = 0;
    }
}

/// A buffer as f32s.
///
/// # Safety
/// Nobody writes to the buffer meanwhile.
pub(super) unsafe fn slice(memory: &Memory, id: BufferId) -> &[f32] {
    let (start, len) = memory.buffer(id);
    if len == 0 {
        return &[];
    }
    // Safety: the table's buffers are valid for their length; the caller answers for writers.
    unsafe { std::slice::from_raw_parts(start.cast(), len / 4) }
}

/// What a contiguous view sees, as f32s.
///
/// # Safety
/// As [`slice`]; the view has passed `Memory::check`.
pub(super) unsafe fn slice_of<'a>(memory: &'a Memory, view: &View) -> &'a [f32] {
    if view.is_empty() {
        return &[];
    }
    // Safety: the caller's word.
    unsafe { &slice(memory, view.buffer)[view.offset..view.offset + view.len()] }
}

/// A buffer from a view's first element on, as f32s to write.
///
/// # Safety
/// Nobody else uses the buffer meanwhile; the view has passed `Memory::check`.
#[allow(clippy::mut_from_ref, reason = "the table holds raw pointers; the caller answers for disjointness")]
pub(super) unsafe fn slice_mut<'a>(memory: &'a Memory, view: &View) -> &'a mut [f32] {
    let (start, len) = memory.buffer(view.buffer);
    if view.is_empty() {
        return &mut [];
    }
    // Safety: the caller's word; the offset lies inside, as `check` saw.
    unsafe { std::slice::from_raw_parts_mut(start.cast::<f32>().add(view.offset), len / 4 - view.offset) }
}
