//! Pooling. The gradient looks at the windows that cover an element, and takes from those whose maximum it is, so that nothing is
//! added atomically and windows are added in their order.
//!
//! How windows lie is part of the text: a model has few kinds of pools, and a division by a known stride is none.

use super::axes::{Axes, Runs};
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
    if rounding(write.dtype) {
        s.uses(Library::Math);
    }
    let slide = Slide::new(kernel, x, y, &mut s);
    let dispatch = match (kernel.kind, kernel.gradient) {
        (PoolKind::Max, false) => max(&slide, step, s),
        (PoolKind::Max, true) => max_gradient(&slide, step, s),
        (PoolKind::Average { include_pad }, false) => average(&slide, include_pad, step, s),
        (PoolKind::Average { include_pad }, true) => average_gradient(&slide, include_pad, step, s),
    };
    Ok(vec![dispatch])
}

/// A window that slides along one axis.
struct Axis {
    /// Text of the sizes.
    input: String,
    output: String,
    window: usize,
    stride: usize,
    dilation: usize,
    pad: usize,
    pad_end: usize,
    /// Do all windows lie in the input altogether?
    inside: bool,
    /// Do all windows lie in input and padding altogether?
    inside_padded: bool,
}

impl Axis {
    fn new(k: &Pool, axis: usize, input: usize, output: usize, s: &mut Shader<'_>) -> Self {
        let (window, stride, dilation) = (k.window[axis], k.strides[axis], k.dilations[axis]);
        let (pad, pad_end) = (k.pads_begin[axis], k.pads_end[axis]);
        let last = output.saturating_sub(1) * stride + window.saturating_sub(1) * dilation;
        let inside = pad == 0 && last < input;
        let inside_padded = last < pad + input + pad_end;
        let (input, output) = (s.param(input), s.param(output));
        Self { input, output, window, stride, dilation, pad, pad_end, inside, inside_padded }
    }

    /// From the first to the last element of a window.
    fn span(&self) -> usize {
        self.window.saturating_sub(1) * self.dilation
    }

    /// How many steps of the dilation it takes to get to `distance` (text of an `i32`) or beyond it; 0 if it is not positive.
    fn steps(&self, distance: &str) -> String {
        match self.dilation {
            1 => format!("u32(max({distance}, 0))"),
            d => format!("((u32(max({distance}, 0)) + {}u) / {d}u)", d - 1),
        }
    }

    /// Lines that name `start{n}`, where the window of the output element `o{n}` starts, an `i32`; and, unless it always lies in
    /// the input, the elements that do, from `low{n}` to before `high{n}`.
    fn extent(&self, n: usize) -> String {
        let start = format!("let start{n} = i32(o{n} * {}u) - {}i;\n", self.stride, self.pad);
        if self.inside {
            return start;
        }
        let low = self.steps(&format!("-start{n}"));
        let high = self.steps(&format!("i32({}) - start{n}", self.input));
        format!("{start}let low{n} = {low}; let high{n} = max(low{n}, min({}u, {high}));\n", self.window)
    }

    /// The number of elements by which an average divides, along this axis; after [`Self::extent`].
    fn count(&self, n: usize, include_pad: bool) -> String {
        let window = self.window;
        match include_pad {
            _ if self.inside => format!("{window}u"),
            false => format!("(high{n} - low{n})"),
            true if self.inside_padded => format!("{window}u"),
            true => {
                let end = format!("i32({}) + {}i - start{n}", self.input, self.pad_end);
                format!("min({window}u, {})", self.steps(&end))
            }
        }
    }

    /// Lines that find the windows in which the element `p{n}` of the input may lie: that of `o{n}`, or, if `loops`, those from
    /// `begin{n}` to before `end{n}`.
    fn windows(&self, n: usize) -> String {
        let Self { output, stride, pad, .. } = self;
        let t = format!("let t{n} = p{n} + {pad}u;");
        if !self.loops() {
            return format!("{t} let o{n} = t{n} / {stride}u;\n");
        }
        let span = self.span();
        let begin = format!("(max(t{n}, {span}u) - {span}u + {}u) / {stride}u", stride - 1);
        format!("{t} let begin{n} = {begin}; let end{n} = min({output}, t{n} / {stride}u + 1u);\n")
    }

    /// May an element of the input lie in more than one window?
    fn loops(&self) -> bool {
        self.span() >= self.stride
    }

    /// `body`, for each of these windows that does have the element.
    fn each_window(&self, n: usize, body: &str) -> String {
        let Self { output, stride, dilation, .. } = self;
        if !self.loops() {
            let covers = match self.dilation {
                1 => format!("t{n} - o{n} * {stride}u < {}u", self.window),
                d => format!("t{n} - o{n} * {stride}u <= {}u && (t{n} - o{n} * {stride}u) % {d}u == 0u", self.span()),
            };
            return format!("if (o{n} < {output} && {covers}) {{\n{body}}}\n");
        }
        let body = match dilation {
            1 => body.to_owned(),
            // Between the elements of the window there are others.
            d => format!("if ((t{n} - o{n} * {stride}u) % {d}u == 0u) {{\n{body}}}\n"),
        };
        format!("for (var o{n} = begin{n}; o{n} < end{n}; o{n}++) {{\n{body}}}\n")
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

    /// Is each element of the input in exactly one window, and are windows written out?
    fn tiles(&self) -> bool {
        let tiles = |(n, axis): (usize, &Axis)| {
            axis.dilation == 1
                && axis.window == axis.stride
                && axis.pad == 0
                && self.input[n] == self.output[n] * axis.stride
        };
        self.is_short() && self.axes.iter().enumerate().all(tiles)
    }

    /// Are windows small, and in the input altogether?
    fn is_short(&self) -> bool {
        self.axes.iter().all(|a| a.inside) && self.axes.iter().map(|a| a.window).product::<usize>() <= 16
    }

    /// Begins what is to be done for each element of planes of the spatial `sizes`, which is number `e` of all. Its coordinates
    /// are `plane` and `{name}{n}` for axis `n`; `known` gives lines to be said for an axis once its coordinate is known.
    fn begin(&self, s: &mut Shader<'_>, sizes: &[usize], name: char, known: fn(&Axis, usize) -> String) -> Runs {
        let axes = Axes { sizes: [&[self.planes], sizes].concat(), strides: Vec::new() };
        let runs = Runs::new(&axes, s.places.software);
        let mut names = runs.begin(s);
        s.line(format!("let plane = {};", names[0]));
        let mut number = "plane".to_owned();
        for (n, axis) in self.axes.iter().enumerate() {
            if n + 1 == self.axes.len() {
                runs.each(s, &mut names);
            }
            s.line(format!("let {name}{n} = {};", names[n + 1]));
            s.line(known(axis, n));
            let size = if name == 'o' { &axis.output } else { &axis.input };
            number = format!("({number} * {size} + {name}{n})");
        }
        s.line(format!("let e = {number};"));
        runs
    }

    /// `body` for each element of the window at `o0`, `o1`, … that lies in the input, row by row; its position in x is the name of
    /// [`Self::tap`]. Short windows are written out.
    fn each_tap(&self, body: &str) -> String {
        let written_out = self.is_short();
        let mut text = body.to_owned();
        for (n, axis) in self.axes.iter().enumerate().rev() {
            let Axis { input, window, dilation, .. } = axis;
            let outer = if n == 0 { "plane".to_owned() } else { format!("p{}", n - 1) };
            let at = |w: String| format!("let p{n} = {outer} * {input} + u32(start{n} + {w});");
            text = if written_out {
                (0..*window).map(|w| format!("{{ {}\n{text}}}\n", at(format!("{}i", w * dilation)))).collect()
            } else {
                let (low, high) = match axis.inside {
                    true => ("0u".to_owned(), format!("{window}u")),
                    false => (format!("low{n}"), format!("high{n}")),
                };
                let at = at(format!("i32(w{n} * {dilation}u)"));
                format!("for (var w{n} = {low}; w{n} < {high}; w{n}++) {{ {at}\n{text}}}\n")
            };
        }
        text
    }

    fn tap(&self) -> String {
        format!("p{}", self.axes.len() - 1)
    }

    /// `body` for each window in which the element at `p0`, `p1`, … of the input lies, in order; its position in y is the name of
    /// [`Self::window`]. `each` gives lines to be said for an axis of the window.
    fn each_window(&self, each: fn(&Axis, usize) -> String, body: &str) -> String {
        let mut text = body.to_owned();
        for (n, axis) in self.axes.iter().enumerate().rev() {
            let outer = if n == 0 { "plane".to_owned() } else { format!("q{}", n - 1) };
            let at = format!("let q{n} = {outer} * {} + o{n};\n", axis.output);
            text = axis.each_window(n, &[&at, &*each(axis, n), &*text].concat());
        }
        text
    }

    fn window(&self) -> String {
        format!("q{}", self.axes.len() - 1)
    }

    /// The number of elements by which the average of the window at `o0`, `o1`, … divides.
    fn count(&self, include_pad: bool) -> String {
        let counts: Vec<_> = self.axes.iter().enumerate().map(|(n, axis)| axis.count(n, include_pad)).collect();
        format!("f32(max({}, 1u))", counts.join(" * "))
    }
}

/// Texts: whether `v` comes before `best` as a maximum; and what is to be said before, when `v` is known, and when it is taken.
fn order(s: &mut Shader<'_>, dtype: DType) -> [&'static str; 4] {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => {
            s.uses(Library::Math);
            ["(v > best || nan) && !stays", "var stays = false;", "let nan = is_nan(v);", "stays = nan;"]
        }
        DType::I8 | DType::I16 | DType::I32 | DType::U8 | DType::U16 | DType::U32 => ["v > best", "", "", ""],
        DType::Bool => ["v && !best", "", "", ""],
        DType::U64 => {
            s.uses(Library::Wide);
            ["wide_less_u(best, v)", "", "", ""]
        }
        // Float64 does not come here.
        DType::I64 | DType::F64 => {
            s.uses(Library::Wide);
            ["wide_less(best, v)", "", "", ""]
        }
    }
}

/// Element `at` of a contiguous operand.
fn element(operand: &Operand, at: &str) -> String {
    format!("{} + {at}", operand.offset)
}

fn max(slide: &Slide, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let y = &step.writes[0];
    let (from, to) = (s.reads(&step.reads[0]), s.writes(y));
    let positions: Option<Operand> = step.writes.get(1).map(|view| s.writes(view));
    let lowest = identity(ReduceOp::Max, y.dtype, &mut s);
    let [beats, before, known, taken] = order(&mut s, y.dtype);
    let runs = slide.begin(&mut s, &slide.output, 'o', Axis::extent);
    s.line(format!("var best = {lowest}; var found = 0xffffffffu; {before}"));
    let at = slide.tap();
    let load = format!("let v = {}; {known}", from.load(&element(&from, &at)));
    let keep = match &positions {
        // The first element has a position even if it is the lowest value.
        Some(_) => format!("if (found == 0xffffffffu || ({beats})) {{ best = v; found = {at}; {taken} }}"),
        None => format!("if ({beats}) {{ best = v; {taken} }}"),
    };
    s.line(slide.each_tap(&format!("{load} {keep}\n")));
    s.line(to.store(&element(&to, "e"), "best"));
    if let Some(positions) = positions {
        // -1 is all ones in both words.
        let position = "vec2<u32>(found, select(0u, 0xffffffffu, found == 0xffffffffu))";
        s.line(positions.store(&element(&positions, "e"), position));
    }
    runs.end(&mut s);
    s.launch_threads(runs.threads())
}

fn max_gradient(slide: &Slide, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let (dy, positions, to) = (s.reads(&step.reads[0]), s.reads(&step.reads[1]), s.writes(&step.writes[0]));
    if slide.tiles() {
        // Each window writes all its elements.
        let runs = slide.begin(&mut s, &slide.output, 'o', Axis::extent);
        let (at, position) = (slide.tap(), positions.load(&element(&positions, "e")));
        s.line(format!("let dy = {}; let position = {position};", dy.load(&element(&dy, "e"))));
        let value = format!("select(0.0, dy, all(position == vec2<u32>({at}, 0u)))");
        s.line(slide.each_tap(&to.store(&element(&to, &at), &value)));
        runs.end(&mut s);
        return s.launch_threads(runs.threads());
    }
    let runs = slide.begin(&mut s, &slide.input, 'p', Axis::windows);
    let at = slide.window();
    let (position, value) = (positions.load(&element(&positions, &at)), dy.load(&element(&dy, &at)));
    s.line("var sum = 0.0;");
    let add = format!("if (all({position} == vec2<u32>(e, 0u))) {{ sum += {value}; }}\n");
    s.line(slide.each_window(|_, _| String::new(), &add));
    s.line(to.store(&element(&to, "e"), "sum"));
    runs.end(&mut s);
    s.launch_threads(runs.threads())
}

fn average(slide: &Slide, include_pad: bool, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let (from, to) = (s.reads(&step.reads[0]), s.writes(&step.writes[0]));
    let runs = slide.begin(&mut s, &slide.output, 'o', Axis::extent);
    s.line("var sum = 0.0;");
    s.line(slide.each_tap(&format!("sum += {};\n", from.load(&element(&from, &slide.tap())))));
    s.line(to.store(&element(&to, "e"), &format!("(sum / {})", slide.count(include_pad))));
    runs.end(&mut s);
    s.launch_threads(runs.threads())
}

fn average_gradient(slide: &Slide, include_pad: bool, step: &Step, mut s: Shader<'_>) -> Dispatch {
    let (dy, to) = (s.reads(&step.reads[0]), s.writes(&step.writes[0]));
    if slide.tiles() {
        let runs = slide.begin(&mut s, &slide.output, 'o', Axis::extent);
        s.line(format!("let share = {} / {};", dy.load(&element(&dy, "e")), slide.count(include_pad)));
        s.line(slide.each_tap(&to.store(&element(&to, &slide.tap()), "share")));
        runs.end(&mut s);
        return s.launch_threads(runs.threads());
    }
    let runs = slide.begin(&mut s, &slide.input, 'p', Axis::windows);
    s.line("var sum = 0.0;");
    let value = dy.load(&element(&dy, &slide.window()));
    s.line(slide.each_window(Axis::extent, &format!("sum += {value} / {};\n", slide.count(include_pad))));
    s.line(to.store(&element(&to, "e"), "sum"));
    runs.end(&mut s);
    s.launch_threads(runs.threads())
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
        dispatch_for(case, kind, gradient, dtype, positions, false).inspect(validate)?;
        dispatch_for(case, kind, gradient, dtype, positions, true).inspect(validate)
    }

    fn dispatch_for(
        case: &Case,
        kind: PoolKind,
        gradient: bool,
        dtype: DType,
        positions: bool,
        software: bool,
    ) -> Result<Dispatch> {
        let output = |a: usize| {
            let reach = (case.window[a] - 1) * case.dilations[a] + 1;
            (case.input[a] + case.begin[a] + case.end[a] - reach) / case.strides[a] + 1
        };
        let output: Vec<usize> = (0..case.input.len()).map(output).collect();
        let x = View::contiguous(BufferId(0), dtype, &[&[2, 3], case.input].concat());
        let y = View::contiguous(BufferId(1), dtype, &[&[2, 3], &output[..]].concat());
        let at = View::contiguous(BufferId(2), DType::I64, &y.shape);
        let mut memory = places(&[(dtype, x.len()), (dtype, y.len()), (DType::I64, y.len())], dtype == DType::F16);
        memory.software = software;
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
                        _ => drop(forward.unwrap()),
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
                        Ok(_) if computes => {}
                        other => assert_eq!(other.unwrap_err().kind(), Kind::Unsupported),
                    }
                }
            }
        }
    }

    /// Windows that do not overlap are found without a loop, and small ones in the input written out.
    #[test]
    fn no_loops_for_windows_side_by_side() {
        let text = |case, gradient| {
            dispatch_for(&CASES[case], PoolKind::Max, gradient, DType::F32, true, false).unwrap().source
        };
        for gradient in [false, true] {
            assert!(!text(1, gradient).contains("for ("), "{}", text(1, gradient));
            assert_eq!(text(2, gradient).matches("for (").count(), 2, "{}", text(2, gradient));
        }
        assert_eq!(text(1, false).matches("found = p1;").count(), 4);
    }
}
