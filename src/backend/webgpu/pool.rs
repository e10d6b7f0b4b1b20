//! Pooling: an invocation for each element of the result. The gradient looks at the windows that cover its element, and takes from
//! those whose maximum it is, so that nothing is added atomically and windows are added in their order.

use super::axes::Axes;
use super::expr::{identity, rounding};
use super::lower::Lower;
use super::shader::{Dispatch, Library, Operand, Shader};
use crate::error::{Result, bail};
use crate::kernel::{Pool, PoolKind, ReduceOp, Step, View};
use crate::tensor::DType;

pub(super) fn lower(kernel: &Pool, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let (read, write) = (&step.reads[0], &step.writes[0]);
    if step.reads.iter().chain(&step.writes).any(|v| !v.is_contiguous()) {
        bail!(Unsupported, "pooling of views that are not contiguous");
    }
    match (read.dtype, kernel.kind, kernel.gradient) {
        (DType::F64, ..) => bail!(Unsupported, "pooling of float64 on a GPU"),
        (dtype, PoolKind::Average { .. }, _) if !dtype.is_float() => {
            bail!(Unsupported, "average pooling of {dtype}");
        }
        (dtype, PoolKind::Max, true) if !dtype.is_float() => {
            bail!(Unsupported, "the gradient of max pooling for integers");
        }
        _ => {}
    }
    if write.is_empty() {
        return Ok(Vec::new());
    }
    let (x, y) = if kernel.gradient { (write, read) } else { (read, write) };
    let mut s = Shader::new(cx.places);
    let slide = Slide::new(kernel, x, y, &mut s);
    let dispatch = match (kernel.kind, kernel.gradient) {
        (PoolKind::Max, false) => max(&slide, step, s),
        (PoolKind::Max, true) => max_gradient(&slide, step, s),
        (PoolKind::Average { include_pad }, false) => average(&slide, include_pad, step, s),
        (PoolKind::Average { include_pad }, true) => average_gradient(&slide, include_pad, step, s),
    };
    Ok(vec![dispatch])
}

/// A window that slides along one axis. Names of parameters, where they are not known to be 1 or unneeded.
struct Axis {
    input: String,
    output: String,
    window: String,
    stride: String,
    /// `None` for 1.
    dilation: Option<String>,
    pad: String,
    /// Size of the input with the padding at its end.
    padded: String,
    /// From the first to the last element of a window.
    span: String,
    /// Do all windows lie in the input altogether?
    inside: bool,
    /// Do all windows lie in input and padding altogether?
    inside_padded: bool,
    /// Does an element of the input lie in at most one window?
    single: bool,
}

impl Axis {
    fn new(k: &Pool, axis: usize, input: usize, output: usize, s: &mut Shader<'_>) -> Self {
        let (window, stride, dilation, begin) =
            (k.window[axis], k.strides[axis], k.dilations[axis], k.pads_begin[axis]);
        let span = window.saturating_sub(1) * dilation;
        let padded = input + k.pads_end[axis];
        let last = output.saturating_sub(1) * stride + span;
        Self {
            input: s.param(input),
            output: s.param(output),
            window: s.param(window),
            stride: s.param(stride),
            dilation: (dilation != 1).then(|| s.param(dilation)),
            pad: s.param(begin),
            padded: s.param(padded),
            span: s.param(span),
            inside: begin == 0 && last < input,
            inside_padded: last < padded + begin,
            single: span < stride,
        }
    }

    /// How many steps of the dilation it takes to get to `distance` (text of an `i32`) or beyond it; 0 if it is not positive.
    fn steps(&self, distance: &str) -> String {
        match &self.dilation {
            None => format!("u32(max({distance}, 0))"),
            Some(d) => format!("((u32(max({distance}, 0)) + {d} - 1u) / {d})"),
        }
    }

    /// Lines that name `start{n}`, where the window of the output element `o{n}` starts, an `i32`; the window's elements in the
    /// input are those from `low{n}` to before `high{n}`.
    fn extent(&self, n: usize) -> String {
        let start = format!("let start{n} = i32(o{n} * {}) - i32({});\n", self.stride, self.pad);
        if self.inside {
            return format!("{start}let low{n} = 0u; let high{n} = {};\n", self.window);
        }
        let low = self.steps(&format!("-start{n}"));
        let high = self.steps(&format!("i32({}) - start{n}", self.input));
        format!("{start}let low{n} = {low}; let high{n} = max(low{n}, min({}, {high}));\n", self.window)
    }

    /// The number of elements by which an average divides, along this axis; after [`Self::extent`].
    fn count(&self, n: usize, include_pad: bool) -> String {
        match include_pad {
            false => format!("(high{n} - low{n})"),
            true if self.inside_padded => self.window.clone(),
            true => format!("min({}, {})", self.window, self.steps(&format!("i32({}) - start{n}", self.padded))),
        }
    }
}

/// A window that slides over planes.
struct Slide {
    planes: usize,
    /// Spatial sizes.
    input: Vec<usize>,
    output: Vec<usize>,
    axes: Vec<Axis>,
}

impl Slide {
    fn new(k: &Pool, x: &View, y: &View, s: &mut Shader<'_>) -> Self {
        let (input, output) = (&x.shape[2..], &y.shape[2..]);
        let axes = (0..k.window.len()).map(|axis| Axis::new(k, axis, input[axis], output[axis], s)).collect();
        Self { planes: x.shape[..2].iter().product(), input: input.to_vec(), output: output.to_vec(), axes }
    }

    /// Takes `i` apart: `plane`, and a coordinate `{name}{axis}` for each of the spatial `sizes`.
    fn coordinates(&self, s: &mut Shader<'_>, sizes: &[usize], name: char) {
        let axes = Axes { sizes: [&[self.planes], sizes].concat(), strides: Vec::new() };
        let (lines, names) = axes.coordinates(s, "i", "c");
        s.line(lines);
        s.line(format!("let plane = {};", names[0]));
        for (axis, coordinate) in names[1..].iter().enumerate() {
            s.line(format!("let {name}{axis} = {coordinate};"));
        }
    }

    /// Begins loops over the elements of the window of an output element (`o0`, `o1`, …) that lie in the input, row by row; gives
    /// the name of the element's position in x.
    fn begin_taps(&self, s: &mut Shader<'_>) -> String {
        for (n, axis) in self.axes.iter().enumerate() {
            s.line(axis.extent(n));
        }
        let mut outer = "plane".to_owned();
        for (n, axis) in self.axes.iter().enumerate() {
            let step = axis.dilation.as_ref().map_or(String::new(), |d| format!(" * {d}"));
            s.line(format!("for (var w{n} = low{n}; w{n} < high{n}; w{n}++) {{"));
            s.line(format!("let p{n} = {outer} * {} + u32(start{n} + i32(w{n}{step}));", axis.input));
            outer = format!("p{n}");
        }
        outer
    }

    /// Begins loops over the windows in which an element of the input (`p0`, `p1`, …) lies, in order: the output elements `o0`,
    /// `o1`, …; `each` gives further lines for an axis. Gives the name of the position in y.
    fn begin_windows(&self, s: &mut Shader<'_>, each: impl Fn(&Axis, usize) -> String) -> String {
        let mut outer = "plane".to_owned();
        for (n, axis) in self.axes.iter().enumerate() {
            let Axis { stride, output, span, pad, .. } = axis;
            s.line(format!("let t{n} = p{n} + {pad};"));
            if axis.single {
                s.line(format!("let o{n} = t{n} / {stride};"));
                s.line(format!("if (o{n} < {output} && t{n} - o{n} * {stride} <= {span}) {{"));
            } else {
                s.line(format!("let begin{n} = (max(t{n}, {span}) - {span} + {stride} - 1u) / {stride};"));
                s.line(format!("let end{n} = min({output}, t{n} / {stride} + 1u);"));
                s.line(format!("for (var o{n} = begin{n}; o{n} < end{n}; o{n}++) {{"));
            }
            // Between the elements of a dilated window there are others.
            let meets = axis.dilation.as_ref().map(|d| format!("(t{n} - o{n} * {stride}) % {d} == 0u"));
            s.line(meets.map_or("{".to_owned(), |meets| format!("if ({meets}) {{")));
            s.line(each(axis, n));
            s.line(format!("let q{n} = {outer} * {output} + o{n};"));
            outer = format!("q{n}");
        }
        outer
    }

    fn end_taps(&self, s: &mut Shader<'_>) {
        s.line("}".repeat(self.axes.len()));
    }

    fn end_windows(&self, s: &mut Shader<'_>) {
        s.line("}".repeat(2 * self.axes.len()));
    }

    /// The number of elements by which the average of the window at `o0`, `o1`, … divides.
    fn count(&self, include_pad: bool) -> String {
        let counts: Vec<_> = self.axes.iter().enumerate().map(|(n, axis)| axis.count(n, include_pad)).collect();
        format!("f32(max({}, 1u))", counts.join(" * "))
    }
}

/// What 16-bit floats need where they are stored.
fn rounds(s: &mut Shader<'_>, dtype: DType) {
    if rounding(dtype) {
        s.uses(Library::Math);
    }
}

/// The text that says whether `v` comes before `best` as a maximum.
fn beats(s: &mut Shader<'_>, dtype: DType) -> &'static str {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            s.uses(Library::Math);
            "(v > best || is_nan(v)) && !is_nan(best)"
        }
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::U32 => "v > best",
        DType::Bool => "v && !best",
        DType::U64 => {
            s.uses(Library::Wide);
            "wide_less_u(best, v)"
        }
        // Float64 does not come here.
        DType::I64 | DType::F64 => {
            s.uses(Library::Wide);
            "wide_less(best, v)"
        }
    }
}

fn max(slide: &Slide, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let y = &step.writes[0];
    let (from, to) = (s.reads(&step.reads[0]), s.writes(y));
    let positions: Option<Operand> = step.writes.get(1).map(|view| s.writes(view));
    rounds(&mut s, y.dtype);
    let (lowest, beats) = (identity(ReduceOp::Max, y.dtype, &mut s), beats(&mut s, y.dtype));
    slide.coordinates(&mut s, &slide.output, 'o');
    s.line(format!("var best = {lowest};"));
    s.line("var found = 0xffffffffu;");
    let at = slide.begin_taps(&mut s);
    s.line(format!("let v = {};", from.load(&format!("{} + {at}", from.offset))));
    match &positions {
        // The first element has a position even if it is the lowest value.
        Some(_) => s.line(format!("if (found == 0xffffffffu || ({beats})) {{ best = v; found = {at}; }}")),
        None => s.line(format!("if ({beats}) {{ best = v; }}")),
    }
    slide.end_taps(&mut s);
    s.line(to.store(&format!("{} + i", to.offset), "best"));
    if let Some(positions) = positions {
        // -1 is all ones in both words.
        let position = "vec2<u32>(found, select(0u, 0xffffffffu, found == 0xffffffffu))";
        s.line(positions.store(&format!("{} + i", positions.offset), position));
    }
    s.launch_threads(y.len())
}

fn max_gradient(slide: &Slide, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let dx = &step.writes[0];
    let (dy, positions, to) = (s.reads(&step.reads[0]), s.reads(&step.reads[1]), s.writes(dx));
    rounds(&mut s, dx.dtype);
    slide.coordinates(&mut s, &slide.input, 'p');
    s.line("var sum = 0.0;");
    let at = slide.begin_windows(&mut s, |_, _| String::new());
    let position = positions.load(&format!("{} + {at}", positions.offset));
    let value = dy.load(&format!("{} + {at}", dy.offset));
    s.line(format!("if (all({position} == vec2<u32>(i, 0u))) {{ sum += {value}; }}"));
    slide.end_windows(&mut s);
    s.line(to.store(&format!("{} + i", to.offset), "sum"));
    s.launch_threads(dx.len())
}

fn average(slide: &Slide, include_pad: bool, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let y = &step.writes[0];
    let (from, to) = (s.reads(&step.reads[0]), s.writes(y));
    rounds(&mut s, y.dtype);
    slide.coordinates(&mut s, &slide.output, 'o');
    s.line("var sum = 0.0;");
    let at = slide.begin_taps(&mut s);
    s.line(format!("sum += {};", from.load(&format!("{} + {at}", from.offset))));
    slide.end_taps(&mut s);
    s.line(to.store(&format!("{} + i", to.offset), &format!("(sum / {})", slide.count(include_pad))));
    s.launch_threads(y.len())
}

fn average_gradient(slide: &Slide, include_pad: bool, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let dx = &step.writes[0];
    let (dy, to) = (s.reads(&step.reads[0]), s.writes(dx));
    rounds(&mut s, dx.dtype);
    slide.coordinates(&mut s, &slide.input, 'p');
    s.line("var sum = 0.0;");
    let at = slide.begin_windows(&mut s, |axis, n| axis.extent(n));
    let value = dy.load(&format!("{} + {at}", dy.offset));
    s.line(format!("sum += {value} / {};", slide.count(include_pad)));
    slide.end_windows(&mut s);
    s.line(to.store(&format!("{} + i", to.offset), "sum"));
    s.launch_threads(dx.len())
}

#[cfg(test)]
mod tests {
    use super::super::status::Checks;
    use super::super::testing::{places, validate};
    use super::*;
    use crate::error::Kind;
    use crate::kernel::{BufferId, Kernel};

    struct Case {
        input: &'static [usize],
        window: &'static [usize],
        strides: &'static [usize],
        dilations: &'static [usize],
        begin: &'static [usize],
        end: &'static [usize],
    }

    const CASES: [Case; 5] = [
        Case { input: &[9], window: &[2], strides: &[2], dilations: &[1], begin: &[0], end: &[0] },
        Case { input: &[8, 8], window: &[2, 2], strides: &[2, 2], dilations: &[1, 1], begin: &[0, 0], end: &[0, 0] },
        Case { input: &[7, 19], window: &[3, 2], strides: &[1, 1], dilations: &[2, 1], begin: &[2, 0], end: &[2, 1] },
        Case {
            input: &[5, 6, 7],
            window: &[2, 3, 2],
            strides: &[2, 1, 2],
            dilations: &[1, 1, 3],
            begin: &[0, 1, 1],
            end: &[1, 1, 0],
        },
        Case { input: &[3], window: &[2], strides: &[2], dilations: &[1], begin: &[3], end: &[3] },
    ];

    fn dispatch(case: &Case, kind: PoolKind, gradient: bool, dtype: DType, positions: bool) -> Result<Dispatch> {
        let output = |a: usize| {
            let reach = (case.window[a] - 1) * case.dilations[a] + 1;
            (case.input[a] + case.begin[a] + case.end[a] - reach) / case.strides[a] + 1
        };
        let output: Vec<usize> = (0..case.input.len()).map(output).collect();
        let x = View::contiguous(BufferId(0), dtype, &[&[2, 3], case.input].concat());
        let y = View::contiguous(BufferId(1), dtype, &[&[2, 3], &output[..]].concat());
        let at = View::contiguous(BufferId(2), DType::I64, &y.shape);
        let memory = places(&[(dtype, x.len()), (dtype, y.len()), (DType::I64, y.len())], dtype == DType::F16);
        let kernel = Pool {
            kind,
            gradient,
            window: case.window.to_vec(),
            strides: case.strides.to_vec(),
            dilations: case.dilations.to_vec(),
            pads_begin: case.begin.to_vec(),
            pads_end: case.end.to_vec(),
        };
        let (mut reads, mut writes) = if gradient { (vec![y], vec![x]) } else { (vec![x], vec![y]) };
        if positions {
            if gradient { &mut reads } else { &mut writes }.push(at);
        }
        let step = Step { kernel: Kernel::Pool(kernel.clone()), reads, writes, from: "here".into() };
        let mut checks = Checks::default();
        let mut dispatches = lower(&kernel, &step, &mut Lower::new(&memory, &mut checks))?;
        assert_eq!(dispatches.len(), 1);
        Ok(dispatches.remove(0))
    }

    #[test]
    fn texts_are_valid() {
        for case in &CASES {
            for dtype in DType::ALL {
                for positions in [false, true] {
                    let forward = dispatch(case, PoolKind::Max, false, dtype, positions);
                    match dtype {
                        DType::F64 => assert_eq!(forward.unwrap_err().kind(), Kind::Unsupported),
                        _ => validate(&forward.unwrap()),
                    }
                }
                let computes = dtype.is_float() && dtype != DType::F64;
                let mut others = vec![dispatch(case, PoolKind::Max, true, dtype, true)];
                for include_pad in [false, true] {
                    for gradient in [false, true] {
                        others.push(dispatch(case, PoolKind::Average { include_pad }, gradient, dtype, false));
                    }
                }
                for other in others {
                    match other {
                        Ok(dispatch) if computes => validate(&dispatch),
                        other => assert_eq!(other.unwrap_err().kind(), Kind::Unsupported),
                    }
                }
            }
        }
    }

    /// Windows that do not overlap are found by one division along each axis, without a loop.
    #[test]
    fn no_loops_for_windows_side_by_side() {
        let gradient = dispatch(&CASES[1], PoolKind::Max, true, DType::F32, true).unwrap();
        assert!(!gradient.source.contains("for ("), "{}", gradient.source);
        let overlapping = dispatch(&CASES[2], PoolKind::Max, true, DType::F32, true).unwrap();
        assert_eq!(overlapping.source.matches("for (").count(), 2);
    }
}
