//! Reductions: ReduceSum, ReduceMean, ReduceMax, ReduceMin; com.microsoft Scale and ReduceAllL2. Also
//! the helpers by which other families write Reduce kernels.

use super::infer::normalize_axes;
use super::*;
use crate::error::bail;
use crate::graph::{Attribute, ValueId};
use crate::kernel::{Binary, ExprId, Kernel, Program, Reduce, ReduceOp, Unary, View};
use crate::tensor::{DType, Dim};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "ReduceSum" [1, 11, 13] d => |s| Reduction::parse(s, How::Sum, 13),
    "ReduceMean" [1, 11, 13, 18] d => |s| Reduction::parse(s, How::Mean, 18),
    "ReduceMax" [1, 11, 12, 13, 18, 20] d => |s| Reduction::parse(s, How::Max, 18),
    "ReduceMin" [1, 11, 12, 13, 18, 20] d => |s| Reduction::parse(s, How::Min, 18),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "Scale" [1] d => |s| Ok(Scale { down: s.flag("scale_down", false)? }),
    "ReduceAllL2" [1] - => |_| Ok(ReduceAllL2),
};

/// The dtype in which sums of a dtype are held: f32 for floats of 16 bits.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype.is_float() && dtype.size() == 2 { DType::F32 } else { dtype }
}

/// Writes `scale * op over the reduced axes of write(reads)`. `reads` broadcast to `shape`; `to` holds as
/// many elements as remain, row-major, in any shape. A result of another dtype is cast.
pub(super) fn reduce(
    cx: &mut LowerCx<'_>,
    shape: &[usize],
    reduced: &[bool],
    op: ReduceOp,
    scale: f64,
    reads: &[View],
    to: View,
    write: impl FnOnce(&mut Program, &[ExprId]) -> ExprId,
) {
    let mut program = Program::new();
    let ids: Vec<_> = reads.iter().enumerate().map(|(k, r)| program.input(k, r.dtype)).collect();
    let result = write(&mut program, &ids);
    program.output(result);
    let kept: Vec<usize> = shape.iter().zip(reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
    let dtype = program.dtype(result);
    let own = if dtype == to.dtype { to.clone() } else { cx.temp(dtype, &to.shape) };
    let written = cx.reshape(own.clone(), &kept);
    let reads = reads.iter().map(|r| r.broadcast_to(shape)).collect();
    let kernel = Reduce { shape: shape.to_vec(), reduced: reduced.to_vec(), program, op, scale };
    cx.push(Kernel::Reduce(kernel), reads, vec![written]);
    if own != to {
        let dtype = to.dtype;
        cx.map(&[own], to, |p, x| p.cast(x[0], dtype));
    }
}

/// The square root of the sum of the squares of all elements of all `views`: a scalar, at least f32.
pub(super) fn global_norm(cx: &mut LowerCx<'_>, views: &[View]) -> View {
    let dtype = if views.iter().any(|v| v.dtype == DType::F64) { DType::F64 } else { DType::F32 };
    let partial = cx.temp(dtype, &[views.len()]);
    for (i, view) in views.iter().enumerate() {
        let all = vec![true; view.rank()];
        let to = partial.sliced(0, i, 1, 1);
        reduce(cx, &view.shape, &all, ReduceOp::Sum, 1.0, std::slice::from_ref(view), to, |p, x| {
            let x = p.cast(x[0], dtype);
            p.mul(x, x)
        });
    }
    let (total, norm) = (cx.temp(dtype, &[]), cx.temp(dtype, &[]));
    reduce(cx, &[views.len()], &[true], ReduceOp::Sum, 1.0, &[partial], total.clone(), |_, x| x[0]);
    cx.map(&[total], norm.clone(), |p, x| p.unary(Unary::Sqrt, x[0]));
    norm
}

/// The mean over `axes`, by ReduceMean.
pub(super) fn reduce_mean(cx: &mut Builder<'_>, x: ValueId, axes: &[i64], keepdims: bool) -> Result<ValueId> {
    let keep = ("keepdims", Attribute::Int(keepdims as i64));
    if cx.opset() >= 18 {
        let axes = cx.ints(axes);
        cx.op_with("ReduceMean", &[x, axes], &[keep])
    } else {
        cx.op_with("ReduceMean", &[x], &[("axes", Attribute::Ints(axes.to_vec())), keep])
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Sum,
    Mean,
    Max,
    Min,
}

/// A reduction over axes that an attribute or an input names; over all if none are named, or over
/// none with `noop_with_empty_axes`.
#[derive(Debug)]
struct Reduction {
    how: How,
    keepdims: bool,
    noop_with_empty_axes: bool,
    /// `None`: input 1 says which.
    axes: Option<Vec<i64>>,
}

impl Reduction {
    fn parse(spec: &Spec<'_>, how: How, axes_input_since: i64) -> Result<Self> {
        let by_input = spec.since() >= axes_input_since;
        Ok(Self {
            how,
            keepdims: spec.flag("keepdims", true)?,
            noop_with_empty_axes: by_input && spec.flag("noop_with_empty_axes", false)?,
            axes: if by_input { None } else { Some(spec.ints_opt("axes")?.unwrap_or_default()) },
        })
    }

    /// The axes, counted from the front, given those that were named.
    fn resolve(&self, named: &[i64], rank: usize) -> Result<Vec<usize>> {
        match named {
            [] if self.noop_with_empty_axes => Ok(Vec::new()),
            [] => Ok((0..rank).collect()),
            _ => normalize_axes(named, rank),
        }
    }

    /// The axes that are named while building; `None` if only a run can tell.
    fn named(&self, cx: &GradCx<'_>) -> Option<Vec<i64>> {
        match (&self.axes, cx.input_opt(1)) {
            (Some(axes), _) => Some(axes.clone()),
            (None, None) => Some(Vec::new()),
            (None, Some(id)) => cx.facts.constant(id)?.to_i64s(),
        }
    }

    /// A value in the shape of the result, with size 1 on the reduced axes (or a scalar).
    fn keep(&self, cx: &mut GradCx<'_>, value: ValueId) -> Result<ValueId> {
        if self.keepdims {
            return Ok(value);
        }
        match self.named(cx) {
            Some(axes) if axes.is_empty() => Ok(value),
            Some(axes) => cx.unsqueeze(value, &axes),
            None => {
                let axes = cx.input(1)?;
                cx.op("Unsqueeze", &[value, axes])
            }
        }
    }

    /// `dy` divided by the number of elements that each mean is of.
    fn divide(&self, cx: &mut GradCx<'_>, x: ValueId, dy: ValueId) -> Result<ValueId> {
        if let (Some(named), Ok(dims)) = (self.named(cx), cx.dims(x)) {
            let axes = self.resolve(&named, dims.len())?;
            let count = axes.iter().try_fold(1.0, |n, &a| Some(n * dims[a].known()? as f64));
            if let Some(count) = count {
                let count = cx.scalar_like(dy, count)?;
                return cx.div(dy, count);
            }
        }
        let (all, kept) = (cx.op("Size", &[x])?, cx.op("Size", &[dy])?);
        let count = cx.div(all, kept)?;
        cx.ms("Scale", &[dy, count], &[("scale_down", Attribute::Int(1))])
    }

    /// Gradient of an extremum: shared equally among the elements that attain it.
    fn share(&self, cx: &mut GradCx<'_>, x: ValueId, dy: ValueId) -> Result<ValueId> {
        let y = cx.output(0)?;
        let (y, dy) = (self.keep(cx, y)?, self.keep(cx, dy)?);
        let attained = cx.op("Equal", &[x, y])?;
        let to = ("to", Attribute::Int(cx.dtype(x)?.onnx() as i64));
        let attained = cx.op_with("Cast", &[attained], &[to])?;
        let count = match self.named(cx) {
            Some(named) => {
                let axes = self.resolve(&named, cx.dims(x)?.len())?;
                let axes: Vec<i64> = axes.into_iter().map(|a| a as i64).collect();
                cx.reduce_sum(attained, &axes, true)?
            }
            None => {
                let axes = cx.input(1)?;
                let noop = ("noop_with_empty_axes", Attribute::Int(self.noop_with_empty_axes as i64));
                cx.op_with("ReduceSum", &[attained, axes], &[("keepdims", Attribute::Int(1)), noop])?
            }
        };
        let each = cx.div(dy, count)?;
        cx.mul(attained, each)
    }

    /// The type of the result when the axes are known at run time only.
    fn infer_late(&self, cx: &mut InferCx<'_>, dtype: DType, shape: &[Dim]) -> Result<()> {
        let rank = if self.keepdims {
            Some(shape.len())
        } else {
            let count = cx.shape(1)?;
            let count = count.first().and_then(Dim::known);
            count.filter(|&n| n > 0).and_then(|n| shape.len().checked_sub(n))
        };
        if let Some(rank) = rank {
            let dims: Vec<Dim> = (0..rank).map(|axis| cx.unknown(0, axis)).collect();
            cx.set(0, dtype, dims);
        }
        Ok(())
    }
}

impl Operator for Reduction {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.dtype(0)?, cx.shape(0)?);
        if dtype == DType::Bool && matches!(self.how, How::Sum | How::Mean) {
            bail!(Shape, "sums of bool are not defined");
        }
        let named = match (&self.axes, cx.has(1)) {
            (Some(axes), _) => axes.clone(),
            (None, false) => Vec::new(),
            (None, true) => match cx.ints(1) {
                Some(axes) => axes,
                None => return self.infer_late(cx, dtype, &shape),
            },
        };
        let axes = self.resolve(&named, shape.len())?;
        let out = shape.into_iter().enumerate().filter_map(|(axis, dim)| match axes.contains(&axis) {
            false => Some(dim),
            true => self.keepdims.then_some(Dim::Known(1)),
        });
        let out: Vec<Dim> = out.collect();
        cx.set(0, dtype, out);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if !cx.needs(0) {
            return Ok(());
        }
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        if self.noop_with_empty_axes && self.named(cx).is_some_and(|axes| axes.is_empty()) {
            cx.set(0, dy);
            return Ok(());
        }
        let dy = match self.how {
            How::Sum => dy,
            How::Mean => self.divide(cx, x, dy)?,
            How::Max | How::Min => {
                let dx = self.share(cx, x, dy)?;
                cx.set(0, dx);
                return Ok(());
            }
        };
        let dy = self.keep(cx, dy)?;
        let dx = cx.expand_like(dy, x)?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let shape = cx.shape(0)?;
        let named = match &self.axes {
            Some(axes) => axes.clone(),
            None if cx.has(1) => match cx.require_constant(1)?.to_i64s() {
                Some(axes) => axes,
                None => bail!(Shape, "axes must be integers"),
            },
            None => Vec::new(),
        };
        let axes = self.resolve(&named, shape.len())?;
        let x = cx.input(0)?;
        if axes.is_empty() {
            cx.alias(0, x);
            return Ok(());
        }
        let count: usize = axes.iter().map(|&a| shape[a]).product();
        let reduced: Vec<bool> = (0..shape.len()).map(|a| axes.contains(&a)).collect();
        let to = cx.output(0)?;
        let (op, scale) = match self.how {
            How::Mean if x.dtype.is_float() => (ReduceOp::Sum, 1.0 / count as f64),
            How::Sum | How::Mean => (ReduceOp::Sum, 1.0),
            How::Max => (ReduceOp::Max, 1.0),
            How::Min => (ReduceOp::Min, 1.0),
        };
        let integer_mean = self.how == How::Mean && x.dtype.is_int();
        reduce(cx, &shape, &reduced, op, scale, &[x], to.clone(), |_, x| x[0]);
        if integer_mean {
            cx.map(std::slice::from_ref(&to), to.clone(), |p, x| {
                let count = p.constant_like(count as f64, x[0]);
                p.binary(Binary::Div, x[0], count)
            });
        }
        Ok(())
    }
}

/// `x * scale`, or `x / scale` with `scale_down`; `scale` is one number of any dtype.
#[derive(Debug)]
struct Scale {
    down: bool,
}

impl Operator for Scale {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, shape) = (cx.float(0)?, cx.shape(0)?);
        cx.one_element(1)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if cx.needs(1) {
            return Err(cx.error("the factor is taken to be a constant"));
        }
        let (dy, scale) = (cx.dy(0)?, cx.input(1)?);
        let dx = cx.ms("Scale", &[dy, scale], &[("scale_down", Attribute::Int(self.down as i64))])?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (x, scale) = (cx.input(0)?, cx.input(1)?);
        let scale = cx.reshape(scale, &[]);
        let to = cx.output(0)?;
        let (dtype, work) = (x.dtype, wide(x.dtype));
        cx.map(&[x, scale], to, |p, v| {
            let (x, s) = (p.cast(v[0], work), p.cast(v[1], work));
            let y = p.binary(if self.down { Binary::Div } else { Binary::Mul }, x, s);
            p.cast(y, dtype)
        });
        Ok(())
    }
}

/// The Euclidean norm of all elements of all inputs together.
#[derive(Debug)]
struct ReduceAllL2;

impl Operator for ReduceAllL2 {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let mut dtype = DType::F32;
        for i in 0..cx.input_count() {
            if cx.float(i)? == DType::F64 {
                dtype = DType::F64;
            }
        }
        cx.set(0, dtype, Vec::new());
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let views = (0..cx.input_count()).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
        let norm = global_norm(cx, &views);
        cx.alias(0, norm);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::grad::differentiate;
    use crate::graph::{Attribute, Graph, Node, TensorType, ValueType};
    use crate::kernel::RunContext;
    use crate::ops::testing::Case;
    use crate::ops::{infer_graph, interpret};
    use crate::tensor::{DType, Dim, Tensor};

    const X: [f64; 6] = [1.0, 5.0, -2.0, 4.0, 0.5, 3.0];

    fn reduce(op: &'static str) -> Case {
        Case::op(op).input("x", &[2, 3], &X)
    }

    #[test]
    fn values() {
        reduce("ReduceSum").indices("axes", &[1], &[1]).gives(&[2, 1], &[4.0, 7.5]);
        reduce("ReduceSum").indices("axes", &[1], &[-2]).int("keepdims", 0).gives(&[3], &[5.0, 5.5, 1.0]);
        reduce("ReduceSum").int("keepdims", 0).gives(&[], &[11.5]);
        reduce("ReduceSum").indices("axes", &[0], &[]).gives(&[1, 1], &[11.5]);
        reduce("ReduceSum").indices("axes", &[0], &[]).int("noop_with_empty_axes", 1).gives(&[2, 3], &X);
        reduce("ReduceSum").opset(11).ints("axes", &[-1]).gives(&[2, 1], &[4.0, 7.5]);
        reduce("ReduceMean").opset(7).ints("axes", &[0, 1]).gives(&[1, 1], &[11.5 / 6.0]);
        reduce("ReduceMean").indices("axes", &[1], &[0]).gives(&[1, 3], &[2.5, 2.75, 0.5]);
        reduce("ReduceMax").opset(13).ints("axes", &[1]).int("keepdims", 0).gives(&[2], &[5.0, 4.0]);
        reduce("ReduceMin").indices("axes", &[1], &[1]).gives(&[2, 1], &[-2.0, 0.5]);
        Case::op("ReduceSum").indices("x", &[3], &[1, 2, 4]).int("keepdims", 0).gives(&[], &[7.0]);
        Case::op("ReduceMean").indices("x", &[3], &[1, 2, 4]).gives(&[1], &[2.0]);
        Case::op("ReduceSum").input("x", &[2, 0], &[]).indices("axes", &[1], &[1]).gives(&[2, 1], &[0.0, 0.0]);
        let lowest = f64::NEG_INFINITY;
        Case::op("ReduceMax").input("x", &[2, 0], &[]).indices("axes", &[1], &[1]).gives(&[2, 1], &[lowest, lowest]);
        let flags = Tensor::from_bools(&[2, 2], &[false, true, false, false]).unwrap();
        let any = Case::op("ReduceMax").tensor("x", flags, false).indices("axes", &[1], &[1]).run();
        assert_eq!(any[0], Tensor::from_bools(&[2, 1], &[true, false]).unwrap());
    }

    #[test]
    fn half_sums_are_held_in_f32() {
        let x = Tensor::from_f64s(DType::F16, &[4096], &[1.0; 4096]).unwrap();
        let y = Case::op("ReduceSum").tensor("x", x, false).int("keepdims", 0).run();
        assert_eq!((y[0].dtype(), y[0].to_f64s()[0]), (DType::F16, 4096.0));
    }

    #[test]
    fn microsoft() {
        Case::op("Scale")
            .domain("com.microsoft")
            .input("x", &[2], &[3.0, 8.0])
            .indices("n", &[], &[2])
            .int("scale_down", 1)
            .gives(&[2], &[1.5, 4.0]);
        Case::op("Scale")
            .domain("com.microsoft")
            .input("x", &[2], &[3.0, 8.0])
            .constant("n", &[1], &[2.0])
            .gives(&[2], &[6.0, 16.0]);
        Case::op("Scale")
            .domain("com.microsoft")
            .input("x", &[2], &[3.0, 8.0])
            .constant("n", &[], &[2.0])
            .int("scale_down", 1)
            .check();
        Case::op("ReduceAllL2")
            .domain("com.microsoft")
            .input("a", &[2], &[3.0, 0.0])
            .input("b", &[1, 2], &[4.0, 12.0])
            .gives(&[], &[13.0]);
    }

    #[test]
    fn errors() {
        assert!(reduce("ReduceSum").indices("axes", &[1], &[2]).fails().contains("axis out of range"));
        assert!(reduce("ReduceSum").indices("axes", &[2], &[1, -1]).fails().contains("twice"));
        assert!(reduce("ReduceSum").ints("axes", &[1]).fails().contains("attribute axes"));
    }

    /// The gradient where the sizes, or the axes, are known at run time only.
    #[test]
    fn gradients_of_unknown_sizes() {
        for (op, axes, want) in [
            ("ReduceSum", None, [1.0; 6]),
            ("ReduceMean", None, [1.0 / 6.0; 6]),
            ("ReduceMean", Some([0, 1]), [1.0 / 6.0; 6]),
            ("ReduceMax", None, [0.0, 0.5, 0.0, 0.5, 0.0, 0.0]),
            ("ReduceMin", Some([0, -1]), [0.0, 0.0, 1.0, 0.0, 0.0, 0.0]),
        ] {
            let mut graph = Graph::new("symbolic", 18);
            let x = TensorType::new(DType::F32, [Dim::symbol("batch"), Dim::Known(3)]);
            let x = graph.add_input("x", x).unwrap();
            let y = graph.add_value("y", Some(ValueType::Tensor(TensorType::known(DType::F32, &[])))).unwrap();
            let mut inputs = vec![Some(Tensor::new(&[2, 3], &[1.0f32, 5.0, -2.0, 5.0, 0.5, 3.0]).unwrap())];
            let mut node_inputs = vec![Some(x)];
            if let Some(axes) = axes {
                node_inputs.push(Some(graph.add_input("axes", TensorType::known(DType::I64, &[2])).unwrap()));
                inputs.push(Some(Tensor::ints(&axes)));
            }
            graph.nodes.push(Node {
                name: "reduce".into(),
                domain: String::new(),
                op_type: op.into(),
                inputs: node_inputs,
                outputs: vec![Some(y)],
                attributes: [("keepdims".to_owned(), Attribute::Int(0))].into(),
            });
            let mut facts = infer_graph(&mut graph).unwrap();
            graph.outputs = differentiate(&mut graph, &mut facts, y, &[x]).unwrap();
            let dx = interpret(&graph, &inputs, &RunContext::default()).unwrap();
            assert_eq!(dx[0], Tensor::new(&[2, 3], &want.map(|w| w as f32)).unwrap(), "{op} {axes:?}");
        }
    }

    #[test]
    fn gradients() {
        for op in ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"] {
            for keepdims in [0, 1] {
                reduce(op).int("keepdims", keepdims).check();
                reduce(op).indices("axes", &[1], &[0]).int("keepdims", keepdims).check();
                reduce(op).indices("axes", &[1], &[-1]).int("keepdims", keepdims).check();
                reduce(op).indices("axes", &[0], &[]).int("noop_with_empty_axes", 1).int("keepdims", keepdims).check();
                reduce(op).opset(12).ints("axes", &[1]).int("keepdims", keepdims).check();
                reduce(op).opset(12).int("keepdims", keepdims).check();
            }
        }
    }
}
