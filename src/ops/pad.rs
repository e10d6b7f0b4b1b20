//! Making tensors larger: padding and tiling.

use super::sizes::{element_count, elements, integers, number_of};
use super::*;
use crate::error::{Kind, bail};
use crate::graph::{Attribute, ValueId};
use crate::kernel::View;
use crate::tensor::{Dim, Tensor, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Pad" [2, 11, 13, 18, 19, 21, 23, 24, 25] d => |spec| Pad::parse(spec),
    "Tile" [6, 13] d => |_| Ok(Tile),
};

/// A padding is made of at most this many copies.
const MAX_COPIES: usize = 1 << 12;

/// What stands outside of the data.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    /// One value.
    Constant,
    /// The data mirrored at its first and last element, which are not repeated.
    Reflect,
    /// The nearest element.
    Edge,
    /// The data again, as on a torus.
    Wrap,
}

/// Elements before and after each axis, by `mode`; negative numbers take elements away, before anything is
/// added.
#[derive(Debug)]
struct Pad {
    mode: Mode,
    /// Pads and value, if they are attributes (before opset 11).
    attributes: Option<(Vec<i64>, f32)>,
    /// Is input 3 the axes that the pads are for?
    axes: bool,
}

/// What is padded on one axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Pads {
    axis: usize,
    begin: i64,
    end: i64,
}

impl Pads {
    /// The elements of an axis of size `n` that stay: first, and one after the last.
    fn kept(self, n: usize) -> Result<(usize, usize)> {
        let n = n as i64;
        let (first, after) = ((-self.begin.clamp(-n - 1, 0)), n + self.end.clamp(-n - 1, 0));
        if first > after {
            let taken = format!("{} and {}", self.begin, self.end);
            return Err(err!(Shape, "pads take more from axis {} than it has", self.axis)
                .expected(format!("at most {n}"))
                .found(taken));
        }
        Ok((first as usize, after as usize))
    }

    /// The size of the padded axis.
    fn size(self, n: usize) -> Result<usize> {
        let (first, after) = self.kept(n)?;
        let added = [self.begin, self.end]
            .into_iter()
            .try_fold(0usize, |sum, p| sum.checked_add(usize::try_from(p.max(0)).ok()?));
        let size = added.and_then(|added| added.checked_add(after - first));
        size.ok_or_else(|| err!(Shape, "the padded axis {} is too large", self.axis))
    }

    fn none(self) -> bool {
        self.begin == 0 && self.end == 0
    }
}

/// Elements `from, from + step, …` (`len` of them) of the data at `to` and on of the result, along an axis.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Run {
    from: usize,
    step: isize,
    len: usize,
    to: usize,
}

impl Pad {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let modes =
            [("constant", Mode::Constant), ("reflect", Mode::Reflect), ("edge", Mode::Edge), ("wrap", Mode::Wrap)];
        let known = if spec.since() >= 19 { &modes[..] } else { &modes[..3] };
        let mode = spec.choice("mode", known)?;
        let attributes = if spec.since() < 11 {
            let pads = spec.ints_opt("pads")?.ok_or_else(|| err!(Graph, "attribute pads is required and missing"))?;
            Some((pads, spec.float("value", 0.0)?))
        } else {
            None
        };
        Ok(Self { mode, attributes, axes: spec.since() >= 18 })
    }

    /// The pads by axis.
    fn by_axis(pads: &[i64], axes: Option<&[i64]>, rank: usize) -> Result<Vec<Pads>> {
        let axes = match axes {
            Some(axes) => axes.iter().map(|&a| normalize_axis(a, rank)).collect::<Result<Vec<_>>>()?,
            None => (0..rank).collect(),
        };
        if pads.len() != 2 * axes.len() {
            return Err(err!(Shape, "number of pads")
                .expected(format!("{} for {} axes", 2 * axes.len(), axes.len()))
                .found(pads.len()));
        }
        let (begin, end) = pads.split_at(axes.len());
        let all: Vec<Pads> =
            axes.iter().zip(begin.iter().zip(end)).map(|(&axis, (&begin, &end))| Pads { axis, begin, end }).collect();
        match (0..all.len()).find(|&i| all[..i].iter().any(|p| p.axis == all[i].axis)) {
            Some(i) => bail!(Shape, "axis {} is padded twice", all[i].axis),
            None => Ok(all),
        }
    }

    /// The pads, as far as the tensors at inputs 1 (pads) and 3 (axes) are known.
    fn known(
        &self,
        pads: Option<&Tensor>,
        has_axes: bool,
        axes: Option<&Tensor>,
        rank: usize,
    ) -> Result<Option<Vec<Pads>>> {
        if let Some((pads, _)) = &self.attributes {
            return Self::by_axis(pads, None, rank).map(Some);
        }
        let axes = match (self.axes && has_axes, axes) {
            (true, None) => return Ok(None),
            (true, Some(axes)) => Some(integers(axes, "axes")?),
            (false, _) => None,
        };
        let Some(pads) = pads else { return Ok(None) };
        Self::by_axis(&integers(pads, "pads")?, axes.as_deref(), rank).map(Some)
    }

    /// Which element of an axis of size `n` each element of the padded axis is; -1 for the constant value.
    fn sources(&self, pads: Pads, n: usize) -> Result<Vec<i64>> {
        let (first, after) = pads.kept(n)?;
        let (size, kept) = (pads.size(n)?, (after - first) as i64);
        if kept == 0 && size > 0 && self.mode != Mode::Constant {
            bail!(Shape, "axis {} has no elements to pad with", pads.axis);
        }
        let source = |o: usize| {
            let i = o as i64 - pads.begin.max(0);
            let period = (2 * (kept - 1)).max(1);
            let inside = match self.mode {
                Mode::Constant if !(0..kept).contains(&i) => return -1,
                Mode::Constant => i,
                Mode::Edge => i.clamp(0, kept - 1),
                Mode::Wrap => i.rem_euclid(kept),
                Mode::Reflect => match i.rem_euclid(period) {
                    i if i < kept => i,
                    i => period - i,
                },
            };
            first as i64 + inside
        };
        Ok((0..size).map(source).collect())
    }
}

/// Sources as few evenly spaced runs.
fn runs(sources: &[i64]) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (to, &from) in sources.iter().enumerate() {
        let Ok(from) = usize::try_from(from) else { continue };
        match runs.last_mut().filter(|r| r.to + r.len == to) {
            Some(run) if run.len == 1 && from.abs_diff(run.from) <= 1 => {
                run.step = from as isize - run.from as isize;
                run.len = 2;
            }
            Some(run) if run.len > 1 && from as isize == run.from as isize + run.step * run.len as isize => {
                run.len += 1
            }
            _ => runs.push(Run { from, step: 1, len: 1, to }),
        }
    }
    runs
}

impl Operator for Pad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        if self.attributes.is_none() && cx.has(2) {
            cx.same_dtype(0, 2)?;
        }
        let pads = self.known(cx.constant(1).map(|t| &**t), cx.has(3), cx.constant(3).map(|t| &**t), x.len())?;
        let Some(pads) = pads else {
            let shape: Vec<Dim> = (0..x.len()).map(|axis| cx.unknown(0, axis)).collect();
            cx.set(0, dtype, shape);
            return Ok(());
        };
        let mut shape = x;
        for pads in pads {
            let size = match &shape[pads.axis] {
                Dim::Known(n) => Dim::Known(pads.size(*n)?),
                symbol if pads.none() => symbol.clone(),
                _ => cx.unknown(0, pads.axis),
            };
            shape[pads.axis] = size;
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        if self.mode == Mode::Constant { self.constant_gradient(cx, dy) } else { self.repeating_gradient(cx, dy) }
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let constant = |cx: &LowerCx<'_>, i: usize| if cx.has(i) { cx.require_constant(i).map(Some) } else { Ok(None) };
        let (pads, axes) =
            if self.attributes.is_some() { (None, None) } else { (Some(cx.require_constant(1)?), constant(cx, 3)?) };
        let pads = self.known(pads.as_deref(), axes.is_some(), axes.as_deref(), x.rank())?;
        let pads = pads.ok_or_else(|| cx.error(Kind::Plan, "the pads must be known while planning"))?;
        let to = cx.output(0)?;
        let mut padded = x.shape.clone();
        for p in &pads {
            padded[p.axis] = p.size(x.shape[p.axis])?;
        }
        if padded != to.shape {
            return Err(cx
                .error(Kind::Shape, "the padded shape")
                .expected(show_dims(&padded))
                .found(show_dims(&to.shape)));
        }
        if self.mode == Mode::Constant && pads.iter().any(|p| p.begin.max(p.end) > 0) {
            self.fill(cx, to.clone())?;
        }
        self.copies(cx, x, to, pads.iter().copied().filter(|p| !p.none()).collect())
    }
}

impl Pad {
    /// Writes the constant value everywhere.
    fn fill(&self, cx: &mut LowerCx<'_>, to: View) -> Result<()> {
        if let Some((_, value)) = &self.attributes {
            cx.fill(to, *value as f64);
            return Ok(());
        }
        match cx.input_opt(2)? {
            None => cx.fill(to, 0.0),
            Some(value) if value.len() == 1 => {
                let value = cx.reshape(value, &[]);
                cx.map(&[value], to, |_, x| x[0]);
            }
            Some(value) => {
                return Err(cx
                    .error(Kind::Shape, "the value to pad with")
                    .expected("one element")
                    .found(show_dims(&value.shape)));
            }
        }
        Ok(())
    }

    /// Copies every combination of the axes' runs.
    fn copies(&self, cx: &mut LowerCx<'_>, x: View, to: View, pads: Vec<Pads>) -> Result<()> {
        let mut pairs = vec![(x.clone(), to)];
        for p in pads {
            let runs = runs(&self.sources(p, x.shape[p.axis])?);
            if pairs.len().saturating_mul(runs.len()) > MAX_COPIES {
                let why = format!("pads that repeat the data so often (more than {MAX_COPIES} copies)");
                return Err(cx.error(Kind::Unsupported, why));
            }
            let part = |(from, to): &(View, View), r: &Run| {
                (from.sliced(p.axis, r.from, r.step, r.len), to.sliced(p.axis, r.to, 1, r.len))
            };
            pairs = pairs.iter().flat_map(|pair| runs.iter().map(move |r| part(pair, r))).collect();
        }
        for (from, to) in pairs {
            cx.copy(from, to);
        }
        Ok(())
    }

    /// dy with what was added taken away, and zeros where something was taken away. What was added has the
    /// one value, whose gradient is the rest of dy's sum.
    fn constant_gradient(&self, cx: &mut GradCx<'_>, dy: ValueId) -> Result<()> {
        let dx = match &self.attributes {
            Some((pads, _)) => {
                let negated = pads.iter().map(|p| p.saturating_neg()).collect();
                cx.op_with("Pad", &[dy], &[("pads", Attribute::Ints(negated))])?
            }
            None => {
                let pads = cx.input(1)?;
                let known = cx.facts.constant(pads).and_then(|t| t.to_i64s());
                let negated = match known {
                    Some(pads) => cx.ints(&pads.iter().map(|p| p.saturating_neg()).collect::<Vec<_>>()),
                    None => cx.neg(pads)?,
                };
                let mut inputs = vec![Some(dy), Some(negated)];
                if let Some(axes) = cx.input_opt(3) {
                    inputs.extend([None, Some(axes)]);
                }
                cx.node("", "Pad", &inputs, &[], 1)?[0]
            }
        };
        cx.set(0, dx);
        if cx.needs(2) {
            let value = cx.input(2)?;
            let keep = [("keepdims", Attribute::Int(0))];
            let (all, inner) = (cx.op_with("ReduceSum", &[dy], &keep)?, cx.op_with("ReduceSum", &[dx], &keep)?);
            let outer = cx.sub(all, inner)?;
            let d = cx.reshape_like(outer, value)?;
            cx.set(2, d);
        }
        Ok(())
    }

    /// Padding gathers along one axis after the other; its gradient adds up by the same indices, last axis
    /// first.
    fn repeating_gradient(&self, cx: &mut GradCx<'_>, dy: ValueId) -> Result<()> {
        let x = cx.input(0)?;
        let dims = cx.dims(x)?;
        let constant = |cx: &GradCx<'_>, i| cx.input_opt(i).and_then(|id| cx.facts.constant(id)).cloned();
        let (pads, axes) = (constant(cx, 1), constant(cx, 3));
        let pads = self.known(pads.as_deref(), cx.input_opt(3).is_some(), axes.as_deref(), dims.len())?;
        let Some(mut pads) = pads else {
            return Err(cx.error("pads that are not constant, in a mode other than constant"));
        };
        pads.retain(|p| !p.none());
        pads.sort_by_key(|p| std::cmp::Reverse(p.axis));
        let mut dx = dy;
        for p in pads {
            let Some(n) = dims[p.axis].known() else {
                return Err(cx.error(format!(
                    "axis {} is padded in a mode other than constant and its size is not known",
                    p.axis
                )));
            };
            let indices = self.sources(p, n)?;
            let indices = cx.ints(&indices);
            let shape = joined_shape(cx, dy, x, p.axis)?;
            dx = cx.ms("GatherGrad", &[shape, indices, dx], &[("axis", Attribute::Int(p.axis as i64))])?;
        }
        cx.set(0, dx);
        Ok(())
    }
}

/// As a list of integers, the shape that has the sizes of `a` before `axis` and those of `b` from there on.
fn joined_shape(cx: &mut GradCx<'_>, a: ValueId, b: ValueId, axis: usize) -> Result<ValueId> {
    let (of_a, of_b) = (cx.dims(a)?, cx.dims(b)?);
    let dims: Vec<Dim> = of_a[..axis].iter().chain(&of_b[axis..]).cloned().collect();
    if let Some(known) = dims.iter().map(|d| d.known().map(|n| n as i64)).collect::<Option<Vec<_>>>() {
        return Ok(cx.ints(&known));
    }
    let (a, b) = (cx.shape(a)?, cx.shape(b)?);
    let both = cx.op_with("Concat", &[a, b], &[("axis", Attribute::Int(0))])?;
    let rank = dims.len() as i64;
    let places: Vec<i64> = (0..rank).map(|i| if i < axis as i64 { i } else { rank + i }).collect();
    let places = cx.ints(&places);
    cx.op("Gather", &[both, places])
}

/// The data again and again, as often along each axis as input 1 says.
#[derive(Debug)]
struct Tile;

impl Operator for Tile {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        if let Some(n) = element_count(cx, 1)?
            && n != x.len()
        {
            return Err(err!(Shape, "number of repeats").expected(x.len()).found(n));
        }
        let repeats = elements(cx, 1);
        let mut shape = Vec::with_capacity(x.len());
        for (axis, dim) in x.iter().enumerate() {
            let times = repeats.as_ref().and_then(|r| number_of(&r[axis]));
            shape.push(match (times, dim) {
                (Some(n), _) if n < 0 => bail!(Shape, "axis {axis} is repeated {n} times"),
                (Some(1), dim) => dim.clone(),
                (Some(n), Dim::Known(size)) => match size.checked_mul(n as usize) {
                    Some(size) => Dim::Known(size),
                    None => bail!(Shape, "the repeated axis {axis} is too large"),
                },
                _ => cx.unknown(0, axis),
            });
        }
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dy as `[repeats, size, repeats, size, …]`, summed over the repeats.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, repeats, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        let rank = cx.dims(x)?.len();
        let shape = cx.shape(x)?;
        let (repeats, sizes) = (cx.unsqueeze(repeats, &[1])?, cx.unsqueeze(shape, &[1])?);
        let pairs = cx.op_with("Concat", &[repeats, sizes], &[("axis", Attribute::Int(1))])?;
        let flat = cx.ints(&[2 * rank as i64]);
        let pairs = cx.op("Reshape", &[pairs, flat])?;
        let apart = cx.op("Reshape", &[dy, pairs])?;
        let dx = match rank {
            0 => dy,
            _ => cx.reduce_sum(apart, &(0..rank as i64).map(|a| 2 * a).collect::<Vec<_>>(), false)?,
        };
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let repeats = integers(&*cx.require_constant(1)?, "repeats")?;
        let (mut view, (_, shape)) = (cx.input(0)?, cx.output_type(0)?);
        let fits = |axis: usize| {
            repeats.get(axis).is_some_and(|&n| view.shape[axis].checked_mul(n.max(0) as usize) == Some(shape[axis]))
        };
        if repeats.len() != view.rank() || shape.len() != view.rank() || !(0..view.rank()).all(fits) {
            return Err(cx
                .error(Kind::Shape, "the repeats do not give the result")
                .expected(show_dims(&shape))
                .found(show_dims(&repeats)));
        }
        let mut apart = Vec::with_capacity(2 * repeats.len());
        for (axis, &n) in repeats.iter().enumerate() {
            apart.extend([n as usize, view.shape[2 * axis]]);
            view = view.unsqueezed(2 * axis);
        }
        let view = view.broadcast_to(&apart);
        let view = cx.reshape(view, &shape);
        cx.alias(0, view);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Case;
    use crate::tensor::DType;

    fn pad(mode: &str, shape: &[usize], pads: &[i64]) -> Case {
        let case = Case::op("Pad").random("x", shape, -1.0, 1.0).indices("pads", &[pads.len()], pads);
        case.attr("mode", Attribute::String(mode.into()))
    }

    fn line(mode: &str, pads: &[i64], want: &[f64]) {
        let case = Case::op("Pad").input("x", &[4], &[1.0, 2.0, 3.0, 4.0]).indices("pads", &[2], pads);
        case.attr("mode", Attribute::String(mode.into())).gives(&[want.len()], want);
    }

    #[test]
    fn values() {
        line("constant", &[1, 2], &[0.0, 1.0, 2.0, 3.0, 4.0, 0.0, 0.0]);
        line("constant", &[-1, 2], &[2.0, 3.0, 4.0, 0.0, 0.0]);
        line("constant", &[-2, -2], &[]);
        line("constant", &[0, 0], &[1.0, 2.0, 3.0, 4.0]);
        line("reflect", &[2, 3], &[3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0]);
        line("reflect", &[0, 8], &[1.0, 2.0, 3.0, 4.0, 3.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 2.0]);
        line("reflect", &[1, -2], &[2.0, 1.0, 2.0]);
        line("edge", &[2, 1], &[1.0, 1.0, 1.0, 2.0, 3.0, 4.0, 4.0]);
        line("edge", &[-1, 1], &[2.0, 3.0, 4.0, 4.0]);
        line("wrap", &[5, 2], &[4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0, 3.0, 4.0, 1.0, 2.0]);
        let one = |mode: &str| pad(mode, &[1], &[2, 1]).run()[0].to_f64s();
        for mode in ["reflect", "edge", "wrap"] {
            assert!(one(mode).iter().all(|&v| v == one(mode)[0]), "{mode}");
        }
        let two = Case::op("Pad").input("x", &[2, 2], &[1.0, 2.0, 3.0, 4.0]).indices("pads", &[2], &[1, 1]);
        let two = two.constant("value", &[], &[9.0]).indices("axes", &[1], &[-2]);
        two.gives(&[4, 2], &[9.0, 9.0, 1.0, 2.0, 3.0, 4.0, 9.0, 9.0]);
        let ints = Case::op("Pad").tensor("x", Tensor::ints(&[1]), false).indices("pads", &[2], &[0, 1]);
        let ints = ints.tensor("value", Tensor::scalar(i64::MAX), false).run();
        assert_eq!(ints[0].to_i64s().unwrap(), [1, i64::MAX], "values are exact");
        let bools = Case::op("Pad").tensor("x", Tensor::from_bools(&[1], &[true]).unwrap(), false).indices(
            "pads",
            &[2],
            &[1, 0],
        );
        assert_eq!(bools.run()[0], Tensor::from_bools(&[2], &[false, true]).unwrap());
        let half = Case::op("Pad").tensor("x", Tensor::zeros(DType::F16, &[1]).unwrap(), false).opset(2);
        assert_eq!(half.ints("pads", &[0, 1]).attr("value", Attribute::Float(2.0)).run()[0].to_f64s(), [0.0, 2.0]);
    }

    #[test]
    fn gradients() {
        for mode in ["constant", "reflect", "edge", "wrap"] {
            pad(mode, &[2, 4, 3], &[0, 2, 1, 0, 3, 2]).check();
            pad(mode, &[2, 4, 3], &[0, -1, 0, 1, 2, -1]).check();
            pad(mode, &[4], &[5, 9]).check();
            pad(mode, &[2, 4], &[3, -1]).none().indices("axes", &[1], &[-1]).check();
            if mode != "wrap" {
                let old = Case::op("Pad").random("x", &[2, 3], -1.0, 1.0).opset(9).ints("pads", &[1, 2, 0, 1]);
                old.attr("mode", Attribute::String(mode.into())).check();
            }
        }
        pad("constant", &[2, 3], &[1, 0, -1, 2]).random("value", &[], 0.0, 1.0).check();
        Case::op("Tile").random("x", &[2, 3], -1.0, 1.0).indices("repeats", &[2], &[3, 2]).check();
        Case::op("Tile").random("x", &[2, 1, 3], -1.0, 1.0).indices("repeats", &[3], &[1, 4, 1]).opset(9).check();
        Case::op("Tile").random("x", &[], -1.0, 1.0).indices("repeats", &[0], &[]).check();
    }

    #[test]
    fn tiles() {
        let new =
            |repeats: &[i64]| Case::op("Tile").input("x", &[1, 2], &[1.0, 2.0]).indices("r", &[repeats.len()], repeats);
        new(&[2, 2]).gives(&[2, 4], &[1.0, 2.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0]);
        new(&[0, 2]).gives(&[0, 4], &[]);
        assert!(new(&[2]).fails().contains("expected 2; found 1"));
        assert!(new(&[1, -1]).fails().contains("repeated -1 times"));
        assert!(new(&[1, i64::MAX]).fails().contains("too large"));
    }

    #[test]
    fn refusals() {
        assert!(pad("constant", &[4], &[1]).fails().contains("expected 2 for 1 axes; found 1"));
        assert!(pad("constant", &[4], &[-3, -2]).fails().contains("more from axis 0"));
        assert!(pad("constant", &[4], &[i64::MAX, i64::MAX]).fails().contains("too large"));
        assert!(pad("constant", &[4], &[i64::MIN, 0]).fails().contains("more from axis 0"));
        assert!(pad("edge", &[4], &[-4, 1]).fails().contains("no elements to pad with"));
        assert!(pad("mirror", &[4], &[1, 1]).fails().contains("constant or reflect or edge or wrap; found \"mirror\""));
        assert!(pad("wrap", &[4], &[1, 1]).opset(18).fails().contains("found \"wrap\""));
        assert!(pad("wrap", &[2], &[100_000, 0]).fails().contains("[Unsupported]"));
        assert!(
            pad("constant", &[4, 4], &[1, 1, 1, 1])
                .none()
                .indices("axes", &[2], &[0, -2])
                .fails()
                .contains("padded twice")
        );
        assert!(pad("constant", &[4], &[1, 1]).constant("value", &[2], &[1.0, 2.0]).fails().contains("one element"));
        assert!(pad("constant", &[4], &[1, 1]).indices("value", &[], &[1]).fails().contains("dtype"));
        assert!(Case::op("Pad").random("x", &[2], 0.0, 1.0).opset(2).fails().contains("pads is required"));
    }
}
