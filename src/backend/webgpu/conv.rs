//! Convolutions as products: a column is a pixel (of the weight gradient: a weight), a row an output channel (of the input
//! gradient: an input channel), and k counts the rest.

use super::contraction::{self, Contraction, Digit, Phase, Residue, Term, Window};
use super::depthwise;
use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::{Result, bail, err};
use crate::kernel::{Conv, Direction, Step, View};

/// The most residues of input pixels, which are listed in parameters.
const RESIDUES: usize = 2048;

pub(super) fn lower(kernel: &Conv, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let g = Geometry::new(kernel, step)?;
    if let Some(dispatches) = depthwise::lower(&g, kernel.direction, step.reads.get(2), cx) {
        return Ok(dispatches);
    }
    let product = match kernel.direction {
        Direction::Forward => g.forward(step.reads.get(2)),
        Direction::InputGrad if g.residues() > RESIDUES => {
            return Err(err!(Unsupported, "the input gradient of a convolution with such strides, on the GPU")
                .expected(format!("at most {RESIDUES} residues"))
                .found(g.residues()));
        }
        Direction::InputGrad => g.input_gradient(),
        Direction::WeightGrad => g.weight_gradient(),
    };
    contraction::lower(product, cx)
}

/// A spatial axis.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    pub(super) input: usize,
    pub(super) output: usize,
    pub(super) window: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) pad: usize,
    /// Strides in x, w and y.
    pub(super) x: isize,
    pub(super) w: isize,
    pub(super) y: isize,
}

/// The tensors of a convolution and their axes.
pub(super) struct Geometry<'a> {
    pub(super) x: &'a View,
    pub(super) w: &'a View,
    pub(super) y: &'a View,
    groups: usize,
    /// Channels of a group: in, out.
    pub(super) inside: usize,
    pub(super) outside: usize,
    pub(super) axes: Vec<Axis>,
}

impl Axis {
    /// Do windows lie inside the input altogether?
    pub(super) fn is_inside(&self) -> bool {
        let reach = self.output.saturating_sub(1) * self.stride + (self.window.max(1) - 1) * self.dilation;
        self.pad == 0 && reach < self.input
    }

    /// How many residues modulo the stride pixels of the input have.
    fn residues(&self) -> usize {
        self.stride.min(self.input)
    }

    /// Where the first window begins, in x.
    fn start(&self) -> isize {
        -(self.pad as isize)
    }
}

impl<'a> Geometry<'a> {
    fn new(kernel: &Conv, step: &'a Step) -> Result<Self> {
        let (first, second, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
        let (x, w, y) = match kernel.direction {
            Direction::Forward => (first, second, out),
            Direction::InputGrad => (out, second, first),
            Direction::WeightGrad => (second, out, first),
        };
        let rank = kernel.strides.len();
        if [x, w, y].iter().any(|view| view.rank() != rank + 2) || kernel.groups == 0 {
            bail!(Plan, "a convolution over {rank} axes of {:?}, {:?} and {:?}", x.shape, w.shape, y.shape);
        }
        let axis = |i: usize| Axis {
            input: x.shape[i + 2],
            output: y.shape[i + 2],
            window: w.shape[i + 2],
            stride: kernel.strides[i],
            dilation: kernel.dilations[i],
            pad: kernel.pads_begin[i],
            x: x.strides[i + 2],
            w: w.strides[i + 2],
            y: y.strides[i + 2],
        };
        let axes = (0..rank).map(axis).collect();
        let (inside, outside) = (x.shape[1] / kernel.groups, y.shape[1] / kernel.groups);
        Ok(Self { x, w, y, groups: kernel.groups, inside, outside, axes })
    }

    fn product(&self, left: Term<'a>, right: Term<'a>, out: &'a View) -> Contraction<'a> {
        Contraction {
            batch: Vec::new(),
            rows: Vec::new(),
            cols: Vec::new(),
            sum: Vec::new(),
            left,
            right,
            out,
            alpha: 1.0,
            added: None,
            windows: Vec::new(),
            phases: Vec::new(),
        }
    }

    fn residues(&self) -> usize {
        self.axes.iter().map(Axis::residues).sum()
    }

    /// Where x begins for windows and outputs of 0.
    fn start(&self) -> isize {
        self.axes.iter().map(|a| a.start() * a.x).sum()
    }

    /// Row: channel of y. Column: image and pixel of y. k: channel of x and tap.
    fn forward(&self, bias: Option<&'a View>) -> Contraction<'a> {
        let (x, w, y) = (&self.x.strides, &self.w.strides, &self.y.strides);
        let bias_stride = bias.map_or(0, |bias| bias.strides[0]);
        let channels = self.outside as isize;
        let x_term = Term { view: self.x, start: self.start() };
        let mut p = self.product(Term { view: self.w, start: 0 }, x_term, self.y);
        p.added = bias.map(|bias| (1.0, bias));
        let group = Digit::of(self.groups).left(channels * w[0]).right(self.inside as isize * x[1]);
        p.batch.push(group.out(channels * y[1]).added(channels * bias_stride));
        p.rows.push(Digit::of(self.outside).left(w[0]).out(y[1]).added(bias_stride));
        p.cols.push(Digit::of(self.x.shape[0]).right(x[0]).out(y[0]));
        p.sum.push(Digit::of(self.inside).left(w[1]).right(x[1]));
        for a in &self.axes {
            let window = window(&mut p, a);
            let (stride, dilation) = (a.stride as isize, a.dilation as isize);
            let pixel = Digit::of(a.output).right(stride * a.x).out(a.y);
            let tap = Digit::of(a.window).left(a.w).right(dilation * a.x);
            p.cols.push(Digit { window: window.map(|w| (w, stride)), ..pixel });
            p.sum.push(Digit { window: window.map(|w| (w, dilation)), ..tap });
        }
        p
    }

    /// Row: channel of y. Column: channel of x and tap. k: image and pixel of y.
    fn weight_gradient(&self) -> Contraction<'a> {
        let (x, w, y) = (&self.x.strides, &self.w.strides, &self.y.strides);
        let channels = self.outside as isize;
        let x_term = Term { view: self.x, start: self.start() };
        let mut p = self.product(Term { view: self.y, start: 0 }, x_term, self.w);
        let group = Digit::of(self.groups).left(channels * y[1]).right(self.inside as isize * x[1]);
        p.batch.push(group.out(channels * w[0]));
        p.rows.push(Digit::of(self.outside).left(y[1]).out(w[0]));
        p.cols.push(Digit::of(self.inside).right(x[1]).out(w[1]));
        p.sum.push(Digit::of(self.x.shape[0]).left(y[0]).right(x[0]));
        for a in &self.axes {
            let window = window(&mut p, a);
            let (stride, dilation) = (a.stride as isize, a.dilation as isize);
            let tap = Digit::of(a.window).right(dilation * a.x).out(a.w);
            let pixel = Digit::of(a.output).left(a.y).right(stride * a.x);
            p.cols.push(Digit { window: window.map(|w| (w, dilation)), ..tap });
            p.sum.push(Digit { window: window.map(|w| (w, stride)), ..pixel });
        }
        p
    }

    /// Row: channel of x. Column: image and pixel of x, of those that have one residue modulo the stride. k: channel of y and
    /// tap, of those that meet such pixels.
    fn input_gradient(&self) -> Contraction<'a> {
        let (x, w, y) = (&self.x.strides, &self.w.strides, &self.y.strides);
        let channels = self.outside as isize;
        let start = self.axes.iter().filter(|a| a.stride == 1).map(|a| a.pad as isize * a.y).sum();
        let mut p = self.product(Term { view: self.w, start: 0 }, Term { view: self.y, start }, self.x);
        let group = Digit::of(self.groups).left(channels * w[0]).right(channels * y[1]);
        p.batch.push(group.out(self.inside as isize * x[1]));
        p.rows.push(Digit::of(self.inside).left(w[1]).out(x[1]));
        p.cols.push(Digit::of(self.x.shape[0]).right(y[0]).out(x[0]));
        p.sum.push(Digit::of(self.outside).left(w[0]).right(y[1]));
        for a in &self.axes {
            if a.stride == 1 && a.window == 1 && a.is_inside() && a.input == a.output {
                p.cols.push(Digit::of(a.input).right(a.y).out(a.x));
            } else {
                transposed_axis(&mut p, a);
            }
        }
        p
    }
}

/// A window of the second factor along an axis, if it leaves the input anywhere.
fn window(p: &mut Contraction<'_>, a: &Axis) -> Option<usize> {
    if a.is_inside() {
        return None;
    }
    p.windows.push(Window { left: false, start: a.start(), size: a.input, phase: None });
    Some(p.windows.len() - 1)
}

/// One axis of the input gradient. Pixel r + s q of x (r its residue modulo the stride s) meets tap t in pixel
/// (r + s q + pad - t dilation) / s of y, if that is whole. The taps for which it is are `every` apart.
fn transposed_axis(p: &mut Contraction<'_>, a: &Axis) {
    let (stride, dilation) = (a.stride as isize, a.dilation as isize);
    let every = a.stride / gcd(a.stride, a.dilation);
    let back = (every * a.dilation / a.stride) as isize;
    let window = p.windows.len();
    let phase = (a.stride > 1).then_some(p.phases.len());
    p.windows.push(Window { left: false, start: a.pad as isize, size: a.output, phase });
    if let Some(phase) = phase {
        let residue = |r: usize| {
            let position = |t: usize| (r + a.pad) as isize - t as isize * dilation;
            let Some(first) = (0..every.min(a.window)).find(|&t| position(t) % stride == 0) else {
                return Residue { count: 0, left: 0, right: 0, start: 0 };
            };
            let start = position(first) / stride;
            let count = (a.window - first).div_ceil(every);
            Residue { count, left: first as isize * a.w, right: start * a.y, start }
        };
        let residues = (0..a.residues()).map(residue).collect();
        p.phases.push(Phase { step: a.stride, size: a.input, residues });
        p.batch.push(Digit { phase: Some(phase), ..Digit::of(a.residues()).out(a.x) });
    }
    let pixel = Digit::of(a.input.div_ceil(a.stride)).right(a.y).out(stride * a.x);
    let tap = Digit::of(a.window.div_ceil(every)).left(every as isize * a.w).right(-back * a.y);
    p.cols.push(Digit { window: Some((window, 1)), phase, ..pixel });
    p.sum.push(Digit { window: Some((window, -back)), phase, ..tap });
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
