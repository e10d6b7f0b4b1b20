//! One template of products for Gemm and Conv:
//! `C[z, m, n] = alpha * (sum over k of A[z, m, k] * B[z, k, n]) + beta * D[z, m, n]`.
//!
//! Each of the four indices is a number whose digits (in mixed radix, slowest first) are what a kernel knows as image, channel,
//! row of pixels and so on; an element's position in memory is a sum of digits times strides. A matrix product has one digit
//! for each of m, n and k; a convolution is the same with more of them ("implicit GEMM"). Where padding may be met, a *window*
//! says which sum of digits must be inside the input: elements outside count as zero.
//!
//! Which loop nest computes it ([`plain`], [`block`], [`tiled`]) is chosen by [`choose`]. If outputs are few and sums long, the sum
//! is split into ranges whose partial sums go to scratch, and a second dispatch adds them up in order.

use super::access::{Arithmetic, Number, unravel};
use super::layout::{Places, Slot};
use super::lower::Lower;
use super::shader::{Dispatch, Shader};
use super::sink::Sink;
use super::tiles::{Shape, Variant, choose};
use super::{block, tiled};

use crate::error::{Result, err};
use crate::kernel::View;

/// Steps of a loop that are too few to be worth the loop.
const SHORT: usize = 8;

/// A digit of an index: its size, and how far a step of it leads in each tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Digit {
    pub(super) size: usize,
    /// Strides: A, B, C, D.
    pub(super) left: isize,
    pub(super) right: isize,
    pub(super) out: isize,
    pub(super) added: isize,
    /// A window that it moves, and how far.
    pub(super) window: Option<(usize, isize)>,
    /// A phase that depends on it, or that it depends on.
    pub(super) phase: Option<usize>,
}

/// A tensor, and where in it digits of 0 are, counted from its first element.
#[derive(Clone, Copy, Debug)]
pub(super) struct Term<'a> {
    pub(super) view: &'a View,
    pub(super) start: isize,
}

/// Elements of a factor that lie at `start` plus the steps of its digits must be inside `0..size`, or they are zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Window {
    /// Of A, or else of B?
    pub(super) left: bool,
    pub(super) start: isize,
    pub(super) size: usize,
    /// If set, `start` comes from this phase.
    pub(super) phase: Option<usize>,
}

/// The gradient of a convolution with stride s treats pixels by their residue modulo s, because each residue meets taps of
/// its own. A phase is the residue along one axis, as a digit of z; its table says for each residue what depends on it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phase {
    /// Outputs are at residue + step * digit of n, which must be less than `size`.
    pub(super) step: usize,
    pub(super) size: usize,
    pub(super) residues: Vec<Residue>,
}

/// What depends on a residue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Residue {
    /// Size of the digit of k.
    pub(super) count: usize,
    /// To add to positions in A and in B.
    pub(super) left: isize,
    pub(super) right: isize,
    /// Start of the window.
    pub(super) start: isize,
}

/// A product: see the module.
#[derive(Clone, Debug)]
pub(super) struct Contraction<'a> {
    pub(super) batch: Vec<Digit>,
    pub(super) rows: Vec<Digit>,
    pub(super) cols: Vec<Digit>,
    pub(super) sum: Vec<Digit>,
    pub(super) left: Term<'a>,
    pub(super) right: Term<'a>,
    pub(super) out: &'a View,
    pub(super) alpha: f32,
    /// beta and D.
    pub(super) added: Option<(f32, &'a View)>,
    pub(super) windows: Vec<Window>,
    pub(super) phases: Vec<Phase>,
}

impl Contraction<'_> {
    /// How its numbers are computed. Operands are all floats, or of one dtype.
    fn arithmetic(&self) -> Result<Arithmetic> {
        let out = self.out.dtype;
        for view in [self.left.view, self.right.view].into_iter().chain(self.added.map(|(_, view)| view)) {
            if view.dtype != out && !(view.dtype.is_float() && out.is_float()) {
                return Err(err!(Unsupported, "a product of dtypes that differ").expected(out).found(view.dtype));
            }
        }
        let arithmetic = Arithmetic::of(out);
        for factor in [self.alpha, self.added.map_or(1.0, |(beta, _)| beta)] {
            if arithmetic != Arithmetic::Float && (factor as i64) as f32 != factor {
                return Err(err!(Unsupported, "scaling integers").expected("a whole factor").found(factor));
            }
        }
        Ok(arithmetic)
    }

    /// Drops digits that are always 0, and merges those that every tensor walks as one.
    fn simplify(&mut self) {
        for digits in [&mut self.batch, &mut self.rows, &mut self.cols, &mut self.sum] {
            digits.retain(|d| d.size != 1 || d.phase.is_some());
            let mut merged: Vec<Digit> = Vec::new();
            for &digit in &*digits {
                match merged.last_mut() {
                    Some(outer) if outer.merges(&digit) => *outer = Digit { size: outer.size * digit.size, ..digit },
                    _ => merged.push(digit),
                }
            }
            *digits = merged;
        }
    }

    pub(super) fn shape(&self) -> Shape {
        let size = |digits: &[Digit]| digits.iter().map(|d| d.size).product();
        Shape { batch: size(&self.batch), m: size(&self.rows), n: size(&self.cols), k: size(&self.sum) }
    }

    /// Exchanges the factors, and rows with columns.
    fn transpose(&mut self) {
        std::mem::swap(&mut self.rows, &mut self.cols);
        std::mem::swap(&mut self.left, &mut self.right);
        for digits in [&mut self.batch, &mut self.rows, &mut self.cols, &mut self.sum] {
            digits.iter_mut().for_each(|d| std::mem::swap(&mut d.left, &mut d.right));
        }
        self.windows.iter_mut().for_each(|w| w.left = !w.left);
        let residues = self.phases.iter_mut().flat_map(|p| &mut p.residues);
        residues.for_each(|r| std::mem::swap(&mut r.left, &mut r.right));
    }

    /// Is k better one loop that takes k apart than loops in loops? Each loop costs much where the one in it is short.
    pub(super) fn is_flat(&self) -> bool {
        self.phases.is_empty() && self.sum.len() > 1 && self.sum.last().is_some_and(|d| d.size < SHORT)
    }

    /// Makes that digit of k the last which the innermost loop counts best: a long one, or if the last is short (the taps of a
    /// kernel) one that moves no window, so that what is outside is the same for the whole loop.
    fn order_sum(&mut self) {
        let Some(last) = self.sum.last().filter(|last| last.size < SHORT) else { return };
        let free = self.sum.iter().enumerate().filter(|(_, d)| d.window.is_none() && d.phase.is_none());
        // Even a short one, if there has to be a loop for each digit.
        let least = if self.phases.is_empty() { SHORT } else { last.size + 1 };
        if let Some((at, _)) = free.max_by_key(|(_, d)| d.size).filter(|(_, d)| d.size >= least) {
            let digit = self.sum.remove(at);
            self.sum.push(digit);
        }
    }
}

impl Digit {
    pub(super) fn of(size: usize) -> Self {
        Self { size, ..Self::default() }
    }

    pub(super) fn left(self, left: isize) -> Self {
        Self { left, ..self }
    }

    pub(super) fn right(self, right: isize) -> Self {
        Self { right, ..self }
    }

    pub(super) fn out(self, out: isize) -> Self {
        Self { out, ..self }
    }

    pub(super) fn added(self, added: isize) -> Self {
        Self { added, ..self }
    }

    /// Is this digit and the next faster one, in every tensor, one walk?
    fn merges(&self, inner: &Digit) -> bool {
        let free = |d: &Digit| d.window.is_none() && d.phase.is_none();
        let size = inner.size as isize;
        let strides =
            [(self.left, inner.left), (self.right, inner.right), (self.out, inner.out), (self.added, inner.added)];
        free(self) && free(inner) && strides.iter().all(|&(outer, inner)| outer == inner * size)
    }
}

/// The dispatches of a product; none if it has no outputs.
pub(super) fn lower(mut product: Contraction<'_>, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let arithmetic = product.arithmetic()?;
    product.simplify();
    if product.shape().outputs() == 0 {
        return Ok(Vec::new());
    }
    if product.shape().k == 0 {
        return Ok(vec![finish(&product, arithmetic, 0, cx.places)]);
    }
    let software = cx.places.software;
    let mut choice = choose(&product.shape(), arithmetic == Arithmetic::Float, software);
    if choice.transposed {
        product.transpose();
    }
    if software {
        product.order_sum();
    }
    // Loops are split by the outermost.
    let longest = match choice.variant {
        Variant::Tile(_) => product.shape().k,
        Variant::Block(_) if software && product.is_flat() => product.shape().k,
        Variant::Plain | Variant::Block(_) => {
            product.sum.first().map_or(1, |d| if d.phase.is_some() { 1 } else { d.size })
        }
    };
    choice.splits = choice.splits.min(longest);
    let mut dispatches = vec![match choice.variant {
        Variant::Plain => block::plain(&product, arithmetic, &choice, cx.places),
        Variant::Block(b) => block::block(&product, b, &choice, cx.places),
        Variant::Tile(t) => tiled::tiled(&product, t, &choice, cx.places),
    }];
    if choice.splits > 1 {
        cx.scratch = cx.scratch.max(choice.splits * product.shape().outputs());
        dispatches.push(finish(&product, arithmetic, choice.splits, cx.places));
    }
    Ok(dispatches)
}

/// Adds up partial sums from scratch, one output per invocation. Without any the sums are 0.
fn finish(product: &Contraction<'_>, arithmetic: Arithmetic, splits: usize, places: &Places) -> Dispatch {
    let mut s = Shader::new(places);
    let sink = Sink::last(product, arithmetic, &mut s);
    let outputs = product.shape().outputs();
    s.line(format!("var sum = {};", arithmetic.zero()));
    if splits > 0 {
        let memory = s.bind(Slot::SCRATCH, false);
        let (count, size) = (s.param(splits), s.param(outputs));
        s.line(format!("for (var p = 0u; p < {count}; p++) {{ sum += bitcast<f32>(m{memory}[p * {size} + i]); }}"));
    }
    let batch = Number::batch(product, &mut s);
    let (rows, cols) = (Number::rows(product, &mut s), Number::cols(product, &mut s));
    unravel(&mut s, "i", &[&batch, &rows, &cols]);
    sink.batch(&mut s);
    sink.row(&mut s, "");
    sink.col(&mut s, "");
    sink.store(&mut s, ["", ""], "sum", None);
    s.launch_threads(outputs)
}
