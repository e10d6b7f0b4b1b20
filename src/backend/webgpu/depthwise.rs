//! Depthwise convolutions: one input channel per group. They have too few products for each element loaded to be worth tiles; an
//! invocation computes a small block of neighbouring outputs, so that what it loads serves several of them. Window, stride,
//! dilation and padding are part of the text, which is a straight line without loops: which input meets which output by which
//! tap is known when it is written.

use super::conv::{Axis, Geometry};
use super::layout::Slot;
use super::lower::Lower;
use super::shader::{Dispatch, Library, Operand, Shader};
use crate::kernel::{Direction, View};
use crate::tensor::DType;

/// The most outputs, products and loads of a block.
const OUTPUTS: usize = 32;
const PRODUCTS: usize = 200;
const LOADS: usize = 64;

/// The dispatches, if the convolution is of the kind that is computed here.
pub(super) fn lower(
    g: &Geometry<'_>,
    direction: Direction,
    bias: Option<&View>,
    cx: &mut Lower<'_>,
) -> Option<Vec<Dispatch>> {
    let [x, w, y] = [g.x, g.w, g.y];
    let simple = [x, w, y].iter().all(|v| v.is_contiguous() && v.dtype.is_float() && !v.is_empty());
    if g.inside != 1 || !simple || !(1..=2).contains(&g.axes.len()) {
        return None;
    }
    let unit = Axis { input: 1, output: 1, window: 1, stride: 1, dilation: 1, pad: 0, x: 0, w: 0, y: 0 };
    let [down, across] = [if g.axes.len() == 2 { g.axes[0] } else { unit }, g.axes[g.axes.len() - 1]];
    let block = Block::new(down, across, direction)?;
    let planes = Planes { x, w, y, multiplier: g.outside };
    match direction {
        Direction::Forward => Some(vec![planes.forward(&block, bias, cx)]),
        Direction::InputGrad => Some(vec![planes.input_gradient(&block, cx)]),
        Direction::WeightGrad => Some(planes.weight_gradient(&block, cx)),
    }
}

/// Which inputs the outputs of a block meet along one axis. Input and output are x and y, or dy and dx of the input gradient.
struct Line {
    /// Outputs, and outputs and inputs of the whole axis.
    block: usize,
    output: usize,
    input: usize,
    taps: usize,
    /// Inputs from a block to the next are `block * step / part`.
    step: usize,
    part: usize,
    /// Output, tap, and input counted from the first one of the block.
    meetings: Vec<(usize, usize, isize)>,
    /// The inputs that are met, in order.
    inputs: Vec<isize>,
    /// Can an input lie outside?
    leaves: bool,
}

impl Line {
    fn new(a: &Axis, block: usize, gradient: bool) -> Self {
        let (stride, dilation, pad) = (a.stride as isize, a.dilation as isize, a.pad as isize);
        let meet = |o: usize, t: usize| {
            let (o, t) = (o as isize, t as isize);
            if !gradient {
                return Some(o * stride + t * dilation - pad);
            }
            let at = o + pad - t * dilation;
            (at % stride == 0).then_some(at / stride)
        };
        let pairs = (0..block).flat_map(|o| (0..a.window).map(move |t| (o, t)));
        let meetings: Vec<_> = pairs.filter_map(|(o, t)| Some((o, t, meet(o, t)?))).collect();
        let mut inputs: Vec<isize> = meetings.iter().map(|&(_, _, input)| input).collect();
        inputs.sort_unstable();
        inputs.dedup();
        let (output, input) = if gradient { (a.input, a.output) } else { (a.output, a.input) };
        let (step, part) = if gradient { (1, a.stride) } else { (a.stride, 1) };
        let single = a.window == 1 && a.stride == 1 && a.input == a.output;
        let leaves = !a.is_inside() || gradient && !single;
        Self { block, output, input, taps: a.window, step, part, meetings, inputs, leaves }
    }

    fn blocks(&self) -> usize {
        self.output.div_ceil(self.block)
    }

    /// Is the last block shorter than the others?
    fn ragged(&self) -> bool {
        !self.output.is_multiple_of(self.block)
    }

    /// Lines for the inputs that the block with number `{name}b` meets: `{name}{i}` are their coordinates, `{name}{i}_in` whether
    /// they are inside. `checked` if they may not be.
    fn coordinates(&self, s: &mut Shader<'_>, name: char, checked: bool) {
        let size = s.param(self.input);
        s.line(format!("let {name}first = {name}b * {}u;", self.block * self.step / self.part));
        for (i, &input) in self.inputs.iter().enumerate() {
            s.line(format!("let {name}{i} = {name}first + {}u;", input as i32 as u32));
            if checked {
                s.line(format!("let {name}{i}_in = {name}{i} < {size};"));
            }
        }
    }

    /// Whether outputs of the block exist, `o{name}{i}_in`, where not all do.
    fn outputs(&self, s: &mut Shader<'_>, name: char) {
        if self.ragged() {
            let size = s.param(self.output);
            for o in 0..self.block {
                s.line(format!("let o{name}{o}_in = {name}b * {}u + {o}u < {size};", self.block));
            }
        }
    }

    fn number(&self, input: isize) -> usize {
        self.inputs.binary_search(&input).expect("meetings are with inputs")
    }
}

/// A block of outputs: what it meets down and across.
struct Block {
    down: Line,
    across: Line,
}

impl Block {
    fn new(down: Axis, across: Axis, direction: Direction) -> Option<Self> {
        let gradient = direction == Direction::InputGrad;
        // A block of a gradient is whole strides long, so that residues are the same in all.
        let sizes = |a: &Axis| {
            let unit = if gradient { a.stride } else { 1 };
            let most = if gradient { a.input } else { a.output };
            [4, 2, 1].map(|n: usize| n.next_multiple_of(unit)).into_iter().filter(move |&n| n <= most.max(unit))
        };
        let blocks = sizes(&across).flat_map(|wide| sizes(&down).map(move |tall| (wide, tall)));
        let blocks = blocks.filter(|(wide, tall)| wide * tall <= OUTPUTS);
        let blocks = blocks.map(|(wide, tall)| Self {
            down: Line::new(&down, tall, gradient),
            across: Line::new(&across, wide, gradient),
        });
        blocks.into_iter().find(|b| b.products() <= PRODUCTS && b.loads() <= LOADS)
    }

    fn products(&self) -> usize {
        self.down.meetings.len() * self.across.meetings.len()
    }

    fn loads(&self) -> usize {
        self.down.inputs.len() * self.across.inputs.len()
    }

    fn blocks(&self) -> usize {
        self.down.blocks() * self.across.blocks()
    }

    fn taps(&self) -> usize {
        self.down.taps * self.across.taps
    }

    fn leaves(&self) -> bool {
        self.down.leaves || self.across.leaves
    }

    fn ragged(&self) -> bool {
        self.down.ragged() || self.across.ragged()
    }

    /// Takes the number `name` of a block apart: `yb`, `xb`, and what remains.
    fn place(&self, s: &mut Shader<'_>, name: &str, rest: &str) {
        let (down, across) = (s.param(self.down.blocks()), s.param(self.across.blocks()));
        s.line(format!("let {rest}_y = {name} / {across};"));
        s.line(format!("let xb = {name} - {rest}_y * {across};"));
        s.line(format!("let {rest} = {rest}_y / {down};"));
        s.line(format!("let yb = {rest}_y - {rest} * {down};"));
    }

    /// Coordinates of inputs; `checked` as in [`Line::coordinates`].
    fn coordinates(&self, s: &mut Shader<'_>, checked: bool) {
        self.down.coordinates(s, 'y', checked);
        self.across.coordinates(s, 'x', checked);
        self.down.outputs(s, 'y');
        self.across.outputs(s, 'x');
    }

    /// Loads input row after input row of the plane that begins at `start`, and hands its products on: output row and column,
    /// tap down and across, and the name of the input.
    fn meet(
        &self,
        s: &mut Shader<'_>,
        operand: &Operand,
        start: &str,
        checked: bool,
        mut product: impl FnMut(&mut Shader<'_>, [usize; 2], [usize; 2], &str),
    ) {
        let width = s.param(self.across.input);
        for (r, &row) in self.down.inputs.iter().enumerate() {
            s.line(format!("let row{r} = {start} + y{r} * {width};"));
            for c in 0..self.across.inputs.len() {
                let value = operand.load(&format!("row{r} + x{c}"));
                let value = if checked { format!("select(0.0, {value}, y{r}_in & x{c}_in)") } else { value };
                s.line(format!("let v{r}_{c} = {value};"));
            }
            for &(i, down, _) in self.down.meetings.iter().filter(|m| m.2 == row) {
                for &(j, across, column) in &self.across.meetings {
                    let value = format!("v{r}_{}", self.across.number(column));
                    product(s, [i, j], [down, across], &value);
                }
            }
        }
    }

    /// Outputs as row, column and the condition under which they exist.
    fn outputs(&self) -> impl Iterator<Item = (usize, usize, Option<String>)> {
        let condition = |i: usize, j: usize| match (self.down.ragged(), self.across.ragged()) {
            (false, false) => None,
            (true, false) => Some(format!("oy{i}_in")),
            (false, true) => Some(format!("ox{j}_in")),
            (true, true) => Some(format!("oy{i}_in & ox{j}_in")),
        };
        (0..self.down.block).flat_map(move |i| (0..self.across.block).map(move |j| (i, j, condition(i, j))))
    }
}

/// The tensors: planes of pixels in a row. Channel m of y belongs to channel m / multiplier of x.
struct Planes<'a> {
    x: &'a View,
    w: &'a View,
    y: &'a View,
    multiplier: usize,
}

fn plane(view: &View) -> usize {
    view.shape[2..].iter().product()
}

/// Rounding, if `view` has floats of 16 bits.
fn rounds(s: &mut Shader<'_>, view: &View) {
    if matches!(view.dtype, DType::F16 | DType::BF16) {
        s.uses(Library::Math);
    }
}

impl Planes<'_> {
    fn weights(s: &mut Shader<'_>, w: &Operand, block: &Block) {
        for down in 0..block.down.taps {
            for across in 0..block.across.taps {
                let at = format!("taps + {}u", down * block.across.taps + across);
                s.line(format!("let w{down}_{across} = {};", w.load(&at)));
            }
        }
    }

    /// Adds the products of a block to `s{i}_{j}`.
    fn accumulate(s: &mut Shader<'_>, input: &Operand, block: &Block) {
        block.meet(s, input, "start", block.leaves(), |s, [i, j], [down, across], value| {
            s.line(format!("s{i}_{j} += {value} * w{down}_{across};"));
        });
    }

    /// Stores `s{i}_{j}` in plane `plane`.
    fn store(s: &mut Shader<'_>, out: &Operand, block: &Block, size: usize) {
        let (size, width) = (s.param(size), s.param(block.across.output));
        let (tall, wide) = (block.down.block, block.across.block);
        s.line(format!("let corner = {} + plane * {size} + yb * {tall}u * {width} + xb * {wide}u;", out.offset));
        for (i, j, condition) in block.outputs() {
            let store = out.store(&format!("corner + {i}u * {width} + {j}u"), &format!("s{i}_{j}"));
            s.line(match condition {
                Some(condition) => format!("if ({condition}) {{ {store} }}"),
                None => store,
            });
        }
    }

    fn forward(&self, block: &Block, bias: Option<&View>, cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        rounds(&mut s, self.y);
        let (x, w, y) = (s.reads(self.x), s.reads(self.w), s.writes(self.y));
        let channels = s.param(self.y.shape[1]);
        let size = s.param(plane(self.x));
        block.place(&mut s, "i", "plane");
        block.coordinates(&mut s, block.leaves());
        s.line(format!("let channel = plane % {channels};"));
        s.line(format!("let taps = {} + channel * {}u;", w.offset, block.taps()));
        let of_x = if self.multiplier == 1 { "plane".into() } else { format!("plane / {}", s.param(self.multiplier)) };
        s.line(format!("let start = {} + {of_x} * {size};", x.offset));
        let initial = bias.map(|bias| {
            let (operand, stride) = (s.reads(bias), s.stride(bias.strides[0]));
            operand.load(&format!("{} + channel * {stride}", operand.offset))
        });
        s.line(format!("let initial = {};", initial.as_deref().unwrap_or("0.0")));
        block.outputs().for_each(|(i, j, _)| s.line(format!("var s{i}_{j} = initial;")));
        Self::weights(&mut s, &w, block);
        Self::accumulate(&mut s, &x, block);
        Self::store(&mut s, &y, block, plane(self.y));
        s.launch_threads(self.y.shape[0] * self.y.shape[1] * block.blocks())
    }

    fn input_gradient(&self, block: &Block, cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        rounds(&mut s, self.x);
        let (dy, w, dx) = (s.reads(self.y), s.reads(self.w), s.writes(self.x));
        let channels = s.param(self.x.shape[1]);
        let size = s.param(plane(self.y));
        block.place(&mut s, "i", "plane");
        block.coordinates(&mut s, block.leaves());
        block.outputs().for_each(|(i, j, _)| s.line(format!("var s{i}_{j} = 0.0;")));
        let taps = block.taps();
        if self.multiplier == 1 {
            s.line(format!("let taps = {} + plane % {channels} * {taps}u;", w.offset));
            s.line(format!("let start = {} + plane * {size};", dy.offset));
        } else {
            let multiplier = s.param(self.multiplier);
            s.line(format!("for (var of_group = 0u; of_group < {multiplier}; of_group++) {{"));
            s.line(format!("let taps = {} + (plane % {channels} * {multiplier} + of_group) * {taps}u;", w.offset));
            s.line(format!("let start = {} + (plane * {multiplier} + of_group) * {size};", dy.offset));
        }
        Self::weights(&mut s, &w, block);
        Self::accumulate(&mut s, &dy, block);
        if self.multiplier != 1 {
            s.line("}");
        }
        Self::store(&mut s, &dx, block, plane(self.x));
        s.launch_threads(self.x.shape[0] * self.x.shape[1] * block.blocks())
    }

    /// Each invocation adds up some of the blocks of one channel, for all taps; a second dispatch adds up their sums.
    fn weight_gradient(&self, block: &Block, cx: &mut Lower<'_>) -> Vec<Dispatch> {
        /// Invocations that keep a device busy.
        const SOFTWARE: usize = 512;
        const GPU: usize = 16384;
        let (channels, taps) = (self.y.shape[1], block.taps());
        let blocks = self.x.shape[0] * block.blocks();
        let wanted = if cx.places.software { SOFTWARE } else { GPU };
        let parts = wanted.div_ceil(channels).clamp(1, blocks);
        cx.scratch = cx.scratch.max(parts * channels * taps);
        vec![self.partial_weights(block, [blocks, parts], cx), self.sum_weights(channels * taps, parts, cx)]
    }

    fn partial_weights(&self, block: &Block, [blocks, parts]: [usize; 2], cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        let (dy, x) = (s.reads(self.y), s.reads(self.x));
        let scratch = s.bind(Slot::SCRATCH, true);
        let (count, size_y, size_x) = (s.param(parts), s.param(plane(self.y)), s.param(plane(self.x)));
        let (channels, blocks, width) = (s.param(self.y.shape[1]), s.param(blocks), s.param(block.across.output));
        s.line(format!("let channel = i / {count};"));
        s.line(format!("let part = i - channel * {count};"));
        let taps = |line: &Line| 0..line.taps;
        let sums: Vec<_> = taps(&block.down).flat_map(|a| taps(&block.across).map(move |b| (a, b))).collect();
        sums.iter().for_each(|(a, b)| s.line(format!("var s{a}_{b} = 0.0;")));
        s.line(format!("for (var at = part; at < {blocks}; at += {count}) {{"));
        block.place(&mut s, "at", "image");
        // Of outputs that do not exist, neither dy nor x is to be met.
        let checked = block.leaves() || block.ragged();
        block.coordinates(&mut s, checked);
        s.line(format!("let plane = image * {channels} + channel;"));
        let of_x = if self.multiplier == 1 { "plane".into() } else { format!("plane / {}", s.param(self.multiplier)) };
        s.line(format!("let start = {} + {of_x} * {size_x};", x.offset));
        let (tall, wide) = (block.down.block, block.across.block);
        s.line(format!("let corner = {} + plane * {size_y} + yb * {tall}u * {width} + xb * {wide}u;", dy.offset));
        for (i, j, condition) in block.outputs() {
            let value = dy.load(&format!("corner + {i}u * {width} + {j}u"));
            s.line(match condition {
                Some(condition) => format!("let g{i}_{j} = select(0.0, {value}, {condition});"),
                None => format!("let g{i}_{j} = {value};"),
            });
        }
        block.meet(&mut s, &x, "start", checked, |s, [i, j], [down, across], value| {
            s.line(format!("s{down}_{across} += {value} * g{i}_{j};"));
        });
        s.line("}");
        s.line(format!("let sums = channel * {}u * {count} + part;", block.taps()));
        for (t, (down, across)) in sums.iter().enumerate() {
            s.line(format!("m{scratch}[sums + {t}u * {count}] = bitcast<u32>(s{down}_{across});"));
        }
        s.launch_threads(self.y.shape[1] * parts)
    }

    fn sum_weights(&self, weights: usize, parts: usize, cx: &Lower<'_>) -> Dispatch {
        let mut s = Shader::new(cx.places);
        rounds(&mut s, self.w);
        let dw = s.writes(self.w);
        let scratch = s.bind(Slot::SCRATCH, false);
        let count = s.param(parts);
        s.line("var sum = 0.0;");
        s.line(format!("for (var p = 0u; p < {count}; p++) {{ sum += bitcast<f32>(m{scratch}[i * {count} + p]); }}"));
        s.line(dw.store(&format!("{} + i", dw.offset), "sum"));
        s.launch_threads(weights)
    }
}
