//! Pooling and its gradient.

use super::window::{Slide, Window};
use super::*;
use crate::error::bail;
use crate::graph::{Attribute, ValueId, ValueType};
use crate::kernel::{Binary, Kernel, Pool as PoolKernel, PoolKind, Program, Reduce, ReduceOp, View};
use crate::tensor::{DType, Dim, known_shape, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "MaxPool" [1, 8, 10, 11, 12, 22] d => MaxPool::parse,
    "AveragePool" [7, 10, 11, 19, 22] d => AveragePool::parse,
    "GlobalAveragePool" [1, 22] d => |_| Ok(Global { max: false }),
    "GlobalMaxPool" [1, 22] d => |_| Ok(Global { max: true }),
    // ONNX Runtime writes these two into ai.onnx, where ONNX does not have them (it knows them from
    // opset 9 on), with all attributes of the forward operator.
    "MaxPoolGrad" [1] - => |spec| Ok(MaxPoolGrad(MaxPool::with_all_attributes(spec)?)),
    "AveragePoolGrad" [1] - => |spec| Ok(AveragePoolGrad(AveragePool::with_all_attributes(spec)?)),
};

/// The shape of X `[N, C, spatial…]`, rank checked.
fn pooled(cx: &InferCx<'_>) -> Result<Vec<Dim>> {
    let x = cx.shape(0)?;
    if x.len() < 3 {
        return Err(err!(Shape, "input 0 has no spatial axes").expected("rank at least 3").found(show_dims(&x)));
    }
    Ok(x)
}

fn window(window: &Window) -> Result<Slide> {
    match window.kernel_shape() {
        Some(kernel) => window.slide(kernel),
        None => bail!(Graph, "attribute kernel_shape is required and missing"),
    }
}

/// Fails unless the window has as many axes as the shape has spatial ones.
fn same_rank(slide: &Slide, shape: &[Dim]) -> Result<()> {
    if slide.kernel.len() + 2 != shape.len() {
        let error = err!(Shape, "attribute kernel_shape does not fit input 0");
        return Err(error.expected(format!("{} sizes", shape.len() - 2)).found(slide.kernel.len()));
    }
    Ok(())
}

/// The shape of a forward pooling's output.
fn forward_shape(cx: &InferCx<'_>, slide: &Slide) -> Result<Vec<Dim>> {
    let x = pooled(cx)?;
    same_rank(slide, &x)?;
    let mut shape = x[..2].to_vec();
    shape.extend(slide.dims(cx, &x[2..])?);
    Ok(shape)
}

/// The shape of a gradient's dX. Its batch and channels are those of dY; no input tells the spatial sizes,
/// which therefore stand in the declared type of the output (ONNX Runtime reads them there as well).
fn gradient_shape(cx: &InferCx<'_>, slide: &Slide) -> Result<Vec<Dim>> {
    let dy = pooled(cx)?;
    same_rank(slide, &dy)?;
    let Some(declared) = cx.declared(0) else {
        bail!(Shape, "the shape of dX does not follow from dY, and the graph does not declare it");
    };
    if declared.len() != dy.len() {
        let error = err!(Shape, "the declared shape of dX has not the rank of dY");
        return Err(error.expected(dy.len()).found(show_dims(&declared)));
    }
    if let (Some(x), Some(y)) = (known_shape(&declared[2..]), known_shape(&dy[2..])) {
        let sizes = slide.extent(&x)?.sizes;
        if sizes != y {
            let error = err!(Shape, "dY has not the spatial sizes that dX, as declared {}, has", show_dims(&declared));
            return Err(error.expected(show_dims(&sizes)).found(show_dims(&y)));
        }
    }
    Ok([&dy[..2], &declared[2..]].concat())
}

/// A node whose one result has the type of `x`, declared because nothing else tells it.
fn gradient_node(
    cx: &mut GradCx<'_>,
    op_type: &str,
    inputs: &[ValueId],
    x: ValueId,
    attributes: Vec<(&str, Attribute)>,
) -> Result<ValueId> {
    let ty = cx.ty(x)?.clone();
    let stem = format!("{}/{op_type}", cx.stem);
    let dx = cx.graph.fresh_value(&stem, Some(ValueType::Tensor(ty)));
    let node = Node {
        name: cx.graph.name_of(dx).to_owned(),
        domain: String::new(),
        op_type: op_type.into(),
        inputs: inputs.iter().copied().map(Some).collect(),
        outputs: vec![Some(dx)],
        attributes: attributes.into_iter().map(|(name, value)| (name.to_owned(), value)).collect(),
    };
    cx.add(node)?;
    Ok(dx)
}

/// The kernel for X of these sizes.
fn kernel(slide: Slide, kind: PoolKind, gradient: bool, x: &[usize]) -> Result<Kernel> {
    let extent = slide.extent(&x[2..])?;
    let Slide { kernel, strides, dilations, .. } = slide;
    let (pads_begin, pads_end) = (extent.begin, extent.end);
    Ok(Kernel::Pool(PoolKernel { kind, gradient, window: kernel, strides, dilations, pads_begin, pads_end }))
}

/// The maximum of each window; its second output says where each maximum is, counted through all of X,
/// row by row or, with `storage_order` 1, column by column inside each plane.
#[derive(Debug)]
struct MaxPool {
    window: Window,
    columns: bool,
}

impl MaxPool {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let columns = spec.since() >= 8 && spec.flag("storage_order", false)?;
        Ok(Self { window: Window::parse(spec, spec.since() >= 10, spec.since() >= 10)?, columns })
    }

    /// For the gradient, which has no versions.
    fn with_all_attributes(spec: &Spec<'_>) -> Result<Self> {
        Ok(Self { window: Window::parse(spec, true, true)?, columns: spec.flag("storage_order", false)? })
    }
}

impl Operator for MaxPool {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.dtype(0)?;
        let shape = forward_shape(cx, &window(&self.window)?)?;
        cx.set(0, dtype, shape.clone());
        cx.set(1, DType::I64, shape);
        Ok(())
    }

    /// dX = dY added up at the positions of the maxima. The positions are asked for here: output 1 is
    /// made visible (at opset 7, where ONNX's MaxPool has no such output, only ontrain can run that).
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let indices = cx.output(1)?;
        let slide = window(&self.window)?;
        let mut attributes = slide.attributes(&cx.dims(x)?[2..])?;
        attributes.push(("ceil_mode", Attribute::Int(slide.ceil.into())));
        attributes.push(("storage_order", Attribute::Int(self.columns.into())));
        let dx = gradient_node(cx, "MaxPoolGrad", &[dy, indices], x, attributes)?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let x = cx.contiguous(x);
        let kernel = kernel(window(&self.window)?, PoolKind::Max, false, &x.shape)?;
        let (_, shape) = cx.output_type(if cx.has_output(0) { 0 } else { 1 })?;
        let mut writes = vec![cx.output_or_temp(0, x.dtype, &shape)?];
        if cx.has_output(1) {
            let indices = cx.output(1)?;
            if self.columns {
                let rows = cx.temp(DType::I64, &shape);
                writes.push(rows.clone());
                cx.push(kernel, vec![x.clone()], writes);
                reorder(cx, rows, indices, &x.shape[2..], true);
                return Ok(());
            }
            writes.push(indices);
        }
        cx.push(kernel, vec![x], writes);
        Ok(())
    }
}

/// Rewrites positions counted row by row inside planes of these sizes to positions counted column by
/// column (the first axis runs fastest), or back.
fn reorder(cx: &mut LowerCx<'_>, from: View, to: View, plane: &[usize], to_columns: bool) {
    let rows: Vec<usize> = (0..plane.len()).rev().collect(); // the last axis runs fastest
    let columns: Vec<usize> = (0..plane.len()).collect();
    let (fast_from, fast_to) = if to_columns { (rows, columns) } else { (columns, rows) };
    let mut strides = vec![0; plane.len()];
    let mut step = 1;
    for axis in fast_to {
        strides[axis] = step;
        step *= plane[axis];
    }
    cx.map(&[from], to, |p, x| {
        // Peel the coordinates off, the fastest first; what is left counts planes.
        let split = |p: &mut Program, value, size: usize| {
            let n = p.constant_like(size.max(1) as f64, value);
            let rest = p.div(value, n);
            let whole = p.mul(rest, n);
            (p.sub(value, whole), rest)
        };
        let (mut rest, mut position) = (x[0], p.constant_like(0.0, x[0]));
        for axis in fast_from {
            let (coordinate, next) = split(p, rest, plane[axis]);
            let part = p.scale(coordinate, strides[axis] as f64);
            position = p.add(position, part);
            rest = next;
        }
        let planes = p.scale(rest, step as f64);
        let position = p.add(position, planes);
        // A window that lies in the padding altogether has no maximum: -1 stays -1.
        let zero = p.constant_like(0.0, x[0]);
        let nowhere = p.binary(Binary::Less, x[0], zero);
        p.select(nowhere, x[0], position)
    });
}

/// The gradient of [`MaxPool`]: reads dY and the positions of the maxima, writes dX.
#[derive(Debug)]
struct MaxPoolGrad(MaxPool);

impl Operator for MaxPoolGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.float(0)?;
        if cx.dtype(1)? != DType::I64 {
            return Err(err!(Shape, "input 1 must hold positions").expected(DType::I64).found(cx.dtype(1)?));
        }
        let shape = gradient_shape(cx, &window(&self.0.window)?)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (dy, indices) = (cx.input(0)?, cx.input(1)?);
        if dy.shape != indices.shape {
            let error = err!(Shape, "input 1 has not the shape of dY");
            return Err(error.expected(show_dims(&dy.shape)).found(show_dims(&indices.shape)));
        }
        let dx = cx.output(0)?;
        let dy = cx.contiguous(dy);
        let indices = if self.0.columns {
            let rows = cx.temp(DType::I64, &dy.shape);
            reorder(cx, indices, rows.clone(), &dx.shape[2..], false);
            rows
        } else {
            cx.contiguous(indices)
        };
        let kernel = kernel(window(&self.0.window)?, PoolKind::Max, true, &dx.shape)?;
        cx.push(kernel, vec![dy, indices], vec![dx]);
        Ok(())
    }
}

/// The mean of each window, over its elements in the input or, with `count_include_pad`, in input and padding.
#[derive(Debug)]
struct AveragePool {
    window: Window,
    include_pad: bool,
}

impl AveragePool {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let window = Window::parse(spec, spec.since() >= 19, spec.since() >= 10)?;
        Ok(Self { window, include_pad: spec.flag("count_include_pad", false)? })
    }

    /// For the gradient, which has no versions.
    fn with_all_attributes(spec: &Spec<'_>) -> Result<Self> {
        Ok(Self { window: Window::parse(spec, true, true)?, include_pad: spec.flag("count_include_pad", false)? })
    }

    fn kind(&self) -> PoolKind {
        PoolKind::Average { include_pad: self.include_pad }
    }
}

impl Operator for AveragePool {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.float(0)?;
        let shape = forward_shape(cx, &window(&self.window)?)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dX = dY / count, spread over each window. ONNX Runtime's AveragePoolGrad needs all of X's shape
    /// to be known, does not know dilations, and counts windows beyond the padding (`ceil_mode`) whole.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let slide = window(&self.window)?;
        let mut attributes = slide.attributes(&cx.dims(x)?[2..])?;
        attributes.push(("ceil_mode", Attribute::Int(slide.ceil.into())));
        attributes.push(("count_include_pad", Attribute::Int(self.include_pad.into())));
        let dx = gradient_node(cx, "AveragePoolGrad", &[dy], x, attributes)?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let x = cx.contiguous(x);
        let kernel = kernel(window(&self.window)?, self.kind(), false, &x.shape)?;
        let y = cx.output(0)?;
        cx.push(kernel, vec![x], vec![y]);
        Ok(())
    }
}

/// The gradient of [`AveragePool`]: reads dY, writes dX.
#[derive(Debug)]
struct AveragePoolGrad(AveragePool);

impl Operator for AveragePoolGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.float(0)?;
        let shape = gradient_shape(cx, &window(&self.0.window)?)?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let dy = cx.input(0)?;
        let dy = cx.contiguous(dy);
        let dx = cx.output(0)?;
        let kernel = kernel(window(&self.0.window)?, self.0.kind(), true, &dx.shape)?;
        cx.push(kernel, vec![dy], vec![dx]);
        Ok(())
    }
}

/// The mean or maximum of each plane: X `[N, C, spatial…]` to Y `[N, C, 1…]`.
#[derive(Debug)]
struct Global {
    max: bool,
}

impl Global {
    /// How many elements of X make one of Y, in the dtype of `dy`.
    fn count(cx: &mut GradCx<'_>, x: ValueId, dy: ValueId) -> Result<ValueId> {
        if let Some(sizes) = known_shape(&cx.dims(x)?[2..]) {
            return cx.scalar_like(dy, sizes.iter().map(|&n| n as f64).product());
        }
        let (all, kept) = (cx.op("Size", &[x])?, cx.op("Size", &[dy])?);
        let (all, kept) = (cx.op_cast(all, dy)?, cx.op_cast(kept, dy)?);
        cx.div(all, kept)
    }
}

impl Operator for Global {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.float(0)?;
        let mut shape = pooled(cx)?;
        shape[2..].fill(Dim::Known(1));
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// Mean: dX = dY / count everywhere. Maximum: dX = [X = Y] dY / (how many elements of the plane
    /// equal Y): ties share evenly.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let dx = if self.max {
            let y = cx.output(0)?;
            let wins = super::logic::equal(cx, x, y)?;
            let wins = cx.op_cast(wins, dy)?;
            let axes: Vec<i64> = (2..cx.dims(x)?.len() as i64).collect();
            let ties = cx.reduce_sum(wins, &axes, true)?;
            let share = cx.div(dy, ties)?;
            cx.mul(wins, share)?
        } else {
            let count = Self::count(cx, x, dy)?;
            let share = cx.div(dy, count)?;
            cx.expand_like(share, x)?
        };
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let y = cx.output(0)?;
        let mut program = Program::new();
        let value = program.input(0, x.dtype);
        program.output(value);
        let count: f64 = x.shape[2..].iter().map(|&n| n as f64).product();
        let (op, scale) = if self.max { (ReduceOp::Max, 1.0) } else { (ReduceOp::Sum, 1.0 / count) };
        let reduced = (0..x.rank()).map(|axis| axis >= 2).collect();
        let kernel = Reduce { shape: x.shape.clone(), reduced, program, op, scale };
        cx.push(Kernel::Reduce(kernel), vec![x], vec![y]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, TensorType};
    use crate::ops::testing::Case;
    use crate::tensor::Tensor;

    fn case(op: &'static str, x: &[usize], kernel: &[i64]) -> Case {
        Case::op(op).random("x", x, -1.0, 1.0).ints("kernel_shape", kernel)
    }

    fn count(case: Case) -> Case {
        case.int("count_include_pad", 1)
    }

    /// Every attribute that changes the gradient, for both kinds of pooling.
    fn gradients_of(op: &'static str, with: fn(Case) -> Case) {
        let check = |x: &[usize], kernel: &[i64], more: fn(Case) -> Case| more(with(case(op, x, kernel))).check();
        check(&[2, 3, 7], &[2], |c| c);
        check(&[2, 2, 5, 6], &[3, 2], |c| c);
        check(&[2, 2, 5, 6], &[2, 2], |c| c.ints("strides", &[2, 2]));
        check(&[2, 2, 5, 6], &[3, 3], |c| c.ints("strides", &[2, 3]).ints("pads", &[1, 0, 1, 2]));
        check(&[1, 2, 6, 6], &[2, 3], |c| c.ints("dilations", &[2, 1]));
        check(&[1, 2, 6, 5], &[3, 3], |c| c.ints("strides", &[2, 2]).int("ceil_mode", 1));
        check(&[1, 1, 6, 6], &[3, 3], |c| c.ints("strides", &[3, 2]).ints("pads", &[1, 1, 1, 1]).int("ceil_mode", 1));
        check(&[1, 2, 3, 4, 3], &[2, 2, 2], |c| c.ints("pads", &[1, 0, 1, 0, 1, 0]));
        check(&[1, 2, 5, 6], &[3, 2], |c| {
            c.attr("auto_pad", Attribute::String("SAME_UPPER".into())).ints("strides", &[2, 1])
        });
        check(&[1, 2, 5, 6], &[2, 2], |c| c.attr("auto_pad", Attribute::String("SAME_LOWER".into())));
        check(&[1, 2, 5, 6], &[2, 2], |c| {
            c.attr("auto_pad", Attribute::String("VALID".into())).ints("strides", &[2, 2])
        });
    }

    #[test]
    fn max_gradients() {
        gradients_of("MaxPool", |case| case);
        gradients_of("MaxPool", |case| case.int("storage_order", 1));
        case("MaxPool", &[1, 1, 4, 4], &[2, 2]).opset(8).check();
    }

    #[test]
    fn average_gradients() {
        gradients_of("AveragePool", |case| case);
        gradients_of("AveragePool", count);
        case("AveragePool", &[1, 1, 4, 4], &[2, 2]).opset(8).ints("pads", &[1, 1, 1, 1]).check();
    }

    #[test]
    fn global() {
        for op in ["GlobalAveragePool", "GlobalMaxPool"] {
            for x in [&[2, 3, 4][..], &[2, 3, 4, 5], &[1, 2, 2, 3, 2]] {
                Case::op(op).random("x", x, -1.0, 1.0).check();
                Case::op(op).opset(10).random("x", x, -1.0, 1.0).check();
            }
            let case = Case::op(op).input("x", &[1, 2, 2], &[1.0, 3.0, -2.0, -4.0]);
            case.gives(&[1, 2, 1], if op == "GlobalMaxPool" { &[3.0, -2.0] } else { &[2.0, -3.0] });
            assert!(Case::op(op).random("x", &[2, 3], 0.0, 1.0).fails().contains("rank at least 3"));
        }
    }

    #[test]
    fn values() {
        let x = |op| Case::op(op).input("x", &[1, 1, 5], &[1.0, 5.0, 2.0, 4.0, 3.0]).ints("kernel_shape", &[2]);
        x("MaxPool").gives(&[1, 1, 4], &[5.0, 5.0, 4.0, 4.0]);
        x("MaxPool").ints("strides", &[2]).gives(&[1, 1, 2], &[5.0, 4.0]);
        x("MaxPool").ints("strides", &[2]).int("ceil_mode", 1).gives(&[1, 1, 3], &[5.0, 4.0, 3.0]);
        // The last window would start in the padding: it is dropped.
        x("MaxPool").ints("strides", &[5]).ints("pads", &[0, 1]).int("ceil_mode", 1).gives(&[1, 1, 1], &[5.0]);
        x("AveragePool").ints("strides", &[2]).int("ceil_mode", 1).gives(&[1, 1, 3], &[3.0, 3.0, 3.0]);
        let padded = || x("AveragePool").ints("strides", &[2]).ints("pads", &[1, 0]);
        padded().gives(&[1, 1, 3], &[1.0, 3.5, 3.5]);
        count(padded()).gives(&[1, 1, 3], &[0.5, 3.5, 3.5]);
        // Beyond the padding nothing counts, included or not.
        count(x("AveragePool")).ints("strides", &[2]).int("ceil_mode", 1).gives(&[1, 1, 3], &[3.0, 3.0, 3.0]);
        let bytes = Tensor::from_f64s(DType::I8, &[1, 1, 3], &[-3.0, -1.0, -2.0]).unwrap();
        let bytes = Case::op("MaxPool").tensor("x", bytes, false).ints("kernel_shape", &[2]).run();
        assert_eq!((bytes[0].dtype(), bytes[0].to_f64s()), (DType::I8, vec![-1.0, -1.0]));
    }

    #[test]
    fn positions() {
        let x = [0.0, 1.0, 2.0, 3.0, 9.0, 5.0];
        let twice = [x, x].concat();
        let case = || Case::op("MaxPool").outputs(2).input("x", &[1, 2, 2, 3], &twice).ints("kernel_shape", &[2, 2]);
        assert_eq!(case().run()[1].to_f64s(), [4.0, 4.0, 10.0, 10.0]);
        // (1, 1) is element 1 + 1 · 2 of a plane read column by column.
        assert_eq!(case().int("storage_order", 1).run()[1].to_f64s(), [3.0, 3.0, 9.0, 9.0]);
    }

    #[test]
    fn errors() {
        assert!(Case::op("MaxPool").random("x", &[1, 1, 4], 0.0, 1.0).fails().contains("kernel_shape is required"));
        assert!(case("MaxPool", &[1, 1, 4], &[2, 2]).fails().contains("kernel_shape does not fit"));
        assert!(case("AveragePool", &[1, 1, 4], &[5]).fails().contains("larger than the padded input"));
        assert!(case("AveragePool", &[1, 1, 4], &[2]).opset(11).ints("dilations", &[2]).fails().contains("dilations"));
        assert!(case("MaxPool", &[1, 1, 4], &[2]).opset(9).int("ceil_mode", 1).fails().contains("ceil_mode"));
        assert!(case("MaxPool", &[1, 4], &[2]).fails().contains("no spatial axes"));
        let gradient = case("AveragePoolGrad", &[1, 1, 4], &[2]).fails();
        assert!(gradient.contains("dX"), "{gradient}");
    }

    /// The gradient of a pooling of unknown sizes: they are symbols while the graph is made, and found
    /// by name when the sizes are known.
    #[test]
    fn symbolic_sizes() {
        for op in ["MaxPool", "AveragePool"] {
            let mut graph = Graph::new("symbols", 17);
            let dims = [Dim::symbol("batch"), 1.into(), Dim::symbol("width")];
            let x = graph.add_input("x", TensorType::new(DType::F32, dims.clone())).unwrap();
            let y = graph.add_value("y", None).unwrap();
            let loss = graph.add_value("loss", None).unwrap();
            let node = |op: &str, from, to, attributes: &[(&str, Attribute)]| Node {
                name: op.into(),
                domain: String::new(),
                op_type: op.into(),
                inputs: vec![Some(from)],
                outputs: vec![Some(to)],
                attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
            };
            let same = Attribute::String("SAME_UPPER".into());
            let window =
                [("kernel_shape", Attribute::Ints(vec![2])), ("strides", Attribute::Ints(vec![2])), ("auto_pad", same)];
            graph.nodes.push(node(op, x, y, &window));
            graph.nodes.push(node("ReduceSum", y, loss, &[("keepdims", Attribute::Int(0))]));
            let mut facts = infer_graph(&mut graph).unwrap();
            let dx = crate::grad::differentiate(&mut graph, &mut facts, loss, &[x]).unwrap();
            assert_eq!(facts.ty(dx[0]).unwrap().shape, Some(dims.to_vec()));
            graph.outputs = dx;
            let x = Tensor::new(&[2, 1, 3], &[1.0f32, 2.0, 3.0, 6.0, 5.0, 4.0]).unwrap();
            let dx = interpret(&graph, &[Some(x)], &Default::default()).unwrap();
            let want = if op == "MaxPool" { [0.0, 1.0, 1.0, 1.0, 0.0, 1.0] } else { [0.5, 0.5, 1.0, 0.5, 0.5, 1.0] };
            assert_eq!(dx[0].to_f64s(), want, "{op}");
        }
    }
}
