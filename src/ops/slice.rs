//! Parts of tensors by start, end and step.

use super::sizes::{element_count, elements, integers};
use super::*;
use crate::error::{Kind, bail};
use crate::kernel::View;
use crate::tensor::{Dim, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Slice" [1, 10, 11, 13] d => |spec| Ok(Slice(if spec.since() < 10 {
        let required = |v: Option<Vec<i64>>| v.ok_or_else(|| err!(Graph, "attributes starts and ends are required"));
        Some(Bounds {
            starts: required(spec.ints_opt("starts")?)?,
            ends: required(spec.ints_opt("ends")?)?,
            axes: spec.ints_opt("axes")?,
            steps: None,
        })
    } else {
        None
    })),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "SliceGrad" [1] - => |_| Ok(SliceGrad),
};

/// What a Slice takes, axis by axis.
#[derive(Clone, Debug)]
struct Bounds {
    starts: Vec<i64>,
    ends: Vec<i64>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
}

/// `start, start + step, …` along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Part {
    axis: usize,
    start: i64,
    end: i64,
    step: i64,
}

impl Bounds {
    /// The bounds by axis; axes that are not named are whole.
    fn parts(&self, rank: usize) -> Result<Vec<Part>> {
        let n = self.starts.len();
        let lens = [self.ends.len(), self.axes.as_ref().map_or(n, Vec::len), self.steps.as_ref().map_or(n, Vec::len)];
        if lens != [n; 3] {
            return Err(err!(Shape, "starts, ends, axes and steps must have one length")
                .expected(n)
                .found(format!("{lens:?}")));
        }
        if self.axes.is_none() && n > rank {
            return Err(err!(Shape, "more starts than axes").expected(format!("at most {rank}")).found(n));
        }
        let mut parts: Vec<Part> = Vec::with_capacity(n);
        for i in 0..n {
            let axis = self.axes.as_ref().map_or(Ok(i), |axes| normalize_axis(axes[i], rank))?;
            let step = self.steps.as_ref().map_or(1, |steps| steps[i]);
            if step == 0 {
                bail!(Shape, "a step of 0 along axis {axis}");
            }
            if parts.iter().any(|p| p.axis == axis) {
                bail!(Shape, "axis {axis} is sliced twice");
            }
            parts.push(Part { axis, start: self.starts[i], end: self.ends[i], step });
        }
        Ok(parts)
    }
}

impl Part {
    /// First element and number of elements on an axis of size `n`, clamped as ONNX says.
    fn on(self, n: usize) -> (usize, usize) {
        let n = n as i64;
        let from_front = |at: i64| if at < 0 { at.saturating_add(n) } else { at };
        let (start, end) = (from_front(self.start), from_front(self.end));
        let step = self.step.unsigned_abs();
        let (start, span) = if self.step > 0 {
            let (start, end) = (start.clamp(0, n), end.clamp(0, n));
            (start, end - start)
        } else {
            let (start, end) = (start.clamp(0, (n - 1).max(0)), end.clamp(-1, n - 1));
            (start, start - end)
        };
        let count = if span <= 0 || n == 0 { 0 } else { 1 + (span as u64 - 1) / step };
        (start as usize, count as usize)
    }

    /// Does it take the whole of an axis, whatever its size?
    fn whole(self) -> bool {
        self.start == 0 && self.end >= i32::MAX as i64 && self.step == 1
    }

    /// This part of a view.
    fn of(self, view: &View) -> View {
        let (start, count) = self.on(view.shape[self.axis]);
        let step = if count > 1 { self.step as isize } else { 1 };
        view.sliced(self.axis, start, step, count)
    }
}

/// Part of a tensor: starts, ends, axes and steps are attributes (before opset 10) or inputs 1 to 4.
#[derive(Debug)]
struct Slice(Option<Bounds>);

/// The bounds in inputs `first..first + 4`, if they are constants.
fn bounds_from(
    mut get: impl FnMut(usize, &'static str) -> Result<Option<Vec<i64>>>,
    first: usize,
) -> Result<Option<Bounds>> {
    let (Some(starts), Some(ends)) = (get(first, "starts")?, get(first + 1, "ends")?) else { return Ok(None) };
    Ok(Some(Bounds { starts, ends, axes: get(first + 2, "axes")?, steps: get(first + 3, "steps")? }))
}

/// The bounds that a lowered node reads from input `first` on.
fn lowered_bounds(cx: &LowerCx<'_>, first: usize) -> Result<Bounds> {
    let get = |i: usize, what: &'static str| match cx.has(i) {
        true => integers(&*cx.require_constant(i)?, what).map(Some),
        false => Ok(None),
    };
    bounds_from(get, first)?.ok_or_else(|| cx.error(Kind::Graph, "starts and ends are required"))
}

impl Slice {
    /// The bounds, if they are known while inferring.
    fn known(&self, cx: &InferCx<'_>) -> Result<Option<Bounds>> {
        if let Some(bounds) = &self.0 {
            return Ok(Some(bounds.clone()));
        }
        if (3..5).any(|i| cx.has(i) && cx.constant(i).is_none()) {
            return Ok(None);
        }
        bounds_from(|i, what| cx.constant(i).map(|t| integers(t, what)).transpose(), 1)
    }

    /// Without constant starts or ends only the axes may be known: sizes on these cannot be told.
    fn unknown(cx: &InferCx<'_>, x: &[Dim]) -> Result<Vec<Dim>> {
        let axes = match (cx.has(3), cx.ints(3)) {
            (true, Some(axes)) => normalize_axes(&axes, x.len())?,
            (true, None) => (0..x.len()).collect(),
            (false, _) => (0..element_count(cx, 1)?.unwrap_or(x.len()).min(x.len())).collect(),
        };
        Ok(x.iter().enumerate().map(|(a, d)| if axes.contains(&a) { cx.unknown(0, a) } else { d.clone() }).collect())
    }
}

impl Operator for Slice {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let Some(bounds) = self.known(cx)? else {
            let shape = Self::unknown(cx, &x)?;
            cx.set(0, dtype, shape);
            return Ok(());
        };
        let mut shape = x.clone();
        let parts = bounds.parts(x.len())?;
        for part in &parts {
            shape[part.axis] = match &x[part.axis] {
                Dim::Known(n) => Dim::Known(part.on(*n).1),
                symbol if part.whole() => symbol.clone(),
                _ => cx.unknown(0, part.axis),
            };
        }
        cx.set(0, dtype, shape);
        if let ([_], [part], Some(all)) = (x.as_slice(), parts.as_slice(), elements(cx, 0)) {
            let (start, count) = part.on(all.len());
            let at = |i: usize| all.get((start as i64 + i as i64 * part.step) as usize).cloned();
            if let Some(taken) = (0..count).map(at).collect() {
                cx.set_dims(0, taken);
            }
        }
        Ok(())
    }

    /// dy put back where it was taken from, zeros elsewhere.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let mut inputs = vec![Some(dy), Some(cx.shape(x)?)];
        match &self.0 {
            None => inputs.extend((1..cx.input_count()).map(|i| cx.input_opt(i))),
            Some(bounds) => {
                let lists = [Some(&bounds.starts), Some(&bounds.ends), bounds.axes.as_ref()];
                inputs.extend(lists.into_iter().flatten().map(|list| Some(cx.ints(list))));
            }
        }
        let dx = cx.node(MS, "SliceGrad", &inputs, &[], 1)?[0];
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut view = cx.input(0)?;
        let bounds = match &self.0 {
            Some(bounds) => bounds.clone(),
            None => lowered_bounds(cx, 1)?,
        };
        for part in bounds.parts(view.rank())? {
            view = part.of(&view);
        }
        cx.alias(0, view);
        Ok(())
    }
}

/// The gradient of Slice: inputs dY, the shape of what was sliced, then starts, ends, axes, steps.
#[derive(Debug)]
struct SliceGrad;

impl Operator for SliceGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.dtype(0)?;
        match (elements(cx, 1), element_count(cx, 1)?) {
            (Some(shape), _) => cx.set(0, dtype, shape),
            (None, Some(rank)) => {
                let shape: Vec<Dim> = (0..rank).map(|axis| cx.unknown(0, axis)).collect();
                cx.set(0, dtype, shape);
            }
            (None, None) => {}
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let bounds = lowered_bounds(cx, 2)?;
        let (dy, to) = (cx.input(0)?, cx.output(0)?);
        let mut place = to.clone();
        for part in bounds.parts(to.rank())? {
            place = part.of(&place);
        }
        if place.shape != dy.shape {
            let e = cx.error(Kind::Shape, "dY is not of the shape of the slice");
            return Err(e.expected(show_dims(&place.shape)).found(show_dims(&dy.shape)));
        }
        if place.len() != to.len() {
            cx.fill(to, 0.0);
        }
        cx.copy(dy, place);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Case;

    fn case(op: &'static str, shape: &[usize]) -> Case {
        Case::op(op).random("x", shape, -1.0, 1.0)
    }

    fn ints(case: Case, lists: &[&[i64]]) -> Case {
        let names = ["a", "b", "c", "d"];
        lists.iter().zip(names).fold(case, |case, (list, name)| case.indices(name, &[list.len()], list))
    }

    #[test]
    fn slice() {
        let line = |starts: i64, ends: i64, step: i64| {
            ints(Case::op("Slice").input("x", &[5], &[0.0, 1.0, 2.0, 3.0, 4.0]), &[&[starts], &[ends], &[0], &[step]])
        };
        for (start, end, step, want) in [
            (1, 3, 1, vec![1.0, 2.0]),
            (0, i64::MAX, 2, vec![0.0, 2.0, 4.0]),
            (-2, 99, 1, vec![3.0, 4.0]),
            (-99, 2, 1, vec![0.0, 1.0]),
            (4, 0, -2, vec![4.0, 2.0]),
            (99, i64::MIN, -1, vec![4.0, 3.0, 2.0, 1.0, 0.0]),
            (-1, -99, -3, vec![4.0, 1.0]),
            (3, 1, 1, vec![]),
            (1, 3, -1, vec![]),
            (-99, -99, -1, vec![0.0]),
            (2, 99, i64::MAX, vec![2.0]),
            (2, -99, i64::MIN, vec![2.0]),
        ] {
            line(start, end, step).gives(&[want.len()], &want);
            line(start, end, step).check();
        }
        line(-99, 0, -1).gives(&[0], &[]);
        let new = || case("Slice", &[4, 3, 5]);
        ints(new(), &[&[1], &[3]]).check();
        ints(new(), &[&[1, -3], &[3, -1], &[0, -1]]).check();
        ints(new(), &[&[3, 0], &[0, 5], &[0, 2], &[-2, 2]]).check();
        new().opset(9).ints("starts", &[1, 0]).ints("ends", &[9, -1]).check();
        new().opset(9).ints("starts", &[1, 0]).ints("ends", &[9, -1]).ints("axes", &[2, 0]).check();
        Case::op("Slice")
            .random("x", &[0, 2], 0.0, 1.0)
            .indices("s", &[1], &[3])
            .indices("e", &[1], &[-9])
            .gives(&[0, 2], &[]);
        assert!(line(0, 1, 0).fails().contains("step of 0"));
        assert!(ints(new(), &[&[0], &[1], &[3]]).fails().contains("axis out of range"));
        assert!(ints(new(), &[&[0, 0], &[1]]).fails().contains("one length"));
        assert!(ints(new(), &[&[0, 0], &[1, 1], &[1, -2]]).fails().contains("sliced twice"));
        assert!(ints(new(), &[&[0; 4], &[1; 4]]).fails().contains("at most 3"));
        assert!(new().opset(9).fails().contains("required"));
        assert!(new().constant("s", &[1], &[1.0]).constant("e", &[1], &[1.0]).fails().contains("must be integers"));
    }

    #[test]
    fn slice_grad() {
        let grad = Case::op("SliceGrad").domain(MS).input("dy", &[2], &[1.0, 2.0]).indices("shape", &[1], &[5]);
        ints(grad, &[&[3], &[0], &[0], &[-2]]).gives(&[5], &[0.0, 2.0, 0.0, 1.0, 0.0]);
        let wrong = Case::op("SliceGrad").domain(MS).input("dy", &[2], &[1.0, 2.0]).indices("shape", &[1], &[5]);
        assert!(ints(wrong, &[&[0], &[3]]).fails().contains("expected [3]; found [2]"));
    }
}
