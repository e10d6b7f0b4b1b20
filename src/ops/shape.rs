//! Other shapes for the same elements.

use super::sizes::{Product, element_count, elements, integers, number_of};
use super::*;
use crate::error::{Kind, bail};
use crate::tensor::{Dim, checked_len, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Flatten" [1, 9, 11, 13, 21, 23, 24, 25] d => |spec| Ok(Flatten { axis: spec.int("axis", 1)? }),
    "Reshape" [5, 13, 14, 19, 21, 23, 24, 25] d => |spec| {
        Ok(Reshape { allow_zero: spec.since() >= 14 && spec.flag("allowzero", false)? })
    },
    "Transpose" [1, 13, 21, 23, 24, 25] d => |spec| Ok(Transpose { perm: spec.ints_opt("perm")? }),
    "Squeeze" [1, 11, 13, 21, 23, 24, 25] d => |spec| Ok(Squeeze(Axes::parse(spec)?)),
    "Unsqueeze" [1, 11, 13, 21, 23, 24, 25] d => |spec| Ok(Unsqueeze(Axes::parse(spec)?)),
    "Expand" [8, 13] d => |_| Ok(Expand),
};

/// Output 0 is input 0 under the shape that inference found, which must have as many elements.
fn lower_reshaped(cx: &mut LowerCx<'_>) -> Result<()> {
    let (from, (_, to)) = (cx.shape(0)?, cx.output_type(0)?);
    if checked_len(&from) != checked_len(&to) {
        let e = cx.error(Kind::Shape, "the two shapes have different numbers of elements");
        return Err(e.expected(show_dims(&to)).found(show_dims(&from)));
    }
    let view = cx.input(0)?;
    let view = cx.reshape(view, &to);
    cx.alias(0, view);
    Ok(())
}

/// dx is dy in the shape of x.
fn reshaped_gradient(cx: &mut GradCx<'_>) -> Result<()> {
    let (x, dy) = (cx.input(0)?, cx.dy(0)?);
    let dx = cx.reshape_like(dy, x)?;
    cx.set(0, dx);
    Ok(())
}

/// Integers that only change their shape, from rank 0 or 1 to rank 0 or 1, stay known.
fn keep_elements(cx: &mut InferCx<'_>, rank: usize) {
    if rank <= 1
        && let Some(dims) = elements(cx, 0)
    {
        cx.set_dims(0, dims);
    }
}

/// `[product of the axes before axis, product of the others]`.
#[derive(Debug)]
struct Flatten {
    axis: i64,
}

impl Operator for Flatten {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        // The axis may be the rank itself.
        let at = if self.axis == x.len() as i64 { x.len() } else { normalize_axis(self.axis, x.len())? };
        let size = |dims: &[Dim], axis| Product::of(dims).map_or_else(|| cx.unknown(0, axis), |p| p.dim());
        let shape = [size(&x[..at], 0), size(&x[at..], 1)];
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        reshaped_gradient(cx)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        lower_reshaped(cx)
    }
}

/// The shape that input 1 says: 0 stands for the size of `x` on this axis (unless `allow_zero`), -1 on one axis
/// for what is left.
#[derive(Debug)]
struct Reshape {
    allow_zero: bool,
}

impl Reshape {
    fn shape(&self, cx: &InferCx<'_>, x: &[Dim], target: &[Dim]) -> Result<Vec<Dim>> {
        let (mut shape, mut open) = (Vec::with_capacity(target.len()), None);
        for (axis, dim) in target.iter().enumerate() {
            shape.push(match number_of(dim) {
                Some(0) if !self.allow_zero => match x.get(axis) {
                    Some(same) => same.clone(),
                    None => bail!(
                        Shape,
                        "the 0 on axis {axis} of the target takes a size that the input, {}, does not have",
                        show_dims(x)
                    ),
                },
                Some(-1) if open.is_some() => bail!(Shape, "the target has more than one -1: {}", show_target(target)),
                Some(-1) => {
                    open = Some(axis);
                    Dim::Known(1)
                }
                Some(n) if n < 0 => bail!(Shape, "the target has a negative size: {}", show_target(target)),
                _ => dim.clone(),
            });
        }
        let (all, rest) = (Product::of(x), Product::of(&shape));
        let known = |p: &Option<Product>| p.as_ref().and_then(Product::known);
        let Some(open) = open else {
            return match (known(&all), known(&rest)) {
                (Some(a), Some(b)) if a != b => Err(mismatch(target, x)),
                _ => Ok(shape),
            };
        };
        if self.allow_zero && target.iter().any(|d| d.is(0)) {
            bail!(Shape, "with allowzero the target cannot have both 0 and -1: {}", show_target(target));
        }
        let left = all.clone().zip(rest.as_ref()).and_then(|(all, rest)| all.divided(rest));
        shape[open] = match left {
            Some(left) => left.dim(),
            None if known(&all).is_some() && known(&rest).is_some() => return Err(mismatch(target, x)),
            None => cx.unknown(0, open),
        };
        Ok(shape)
    }
}

fn mismatch(target: &[Dim], x: &[Dim]) -> crate::error::Error {
    err!(Shape, "the target does not hold the input's elements").expected(show_target(target)).found(show_dims(x))
}

fn show_target(target: &[Dim]) -> String {
    let shown: Vec<String> =
        target.iter().map(|d| number_of(d).map_or_else(|| d.to_string(), |n| n.to_string())).collect();
    show_dims(&shown)
}

impl Operator for Reshape {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let shape = match (elements(cx, 1), element_count(cx, 1)?) {
            (Some(target), _) => self.shape(cx, &x, &target)?,
            (None, Some(rank)) => (0..rank).map(|axis| cx.unknown(0, axis)).collect(),
            (None, None) => return Ok(()),
        };
        let rank = shape.len();
        cx.set(0, dtype, shape);
        keep_elements(cx, rank);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        reshaped_gradient(cx)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        lower_reshaped(cx)
    }
}

/// Axis `i` of the result is axis `perm[i]` of the input; reversed by default.
#[derive(Debug)]
struct Transpose {
    perm: Option<Vec<i64>>,
}

impl Transpose {
    fn axes(&self, rank: usize) -> Result<Vec<usize>> {
        let Some(perm) = &self.perm else { return Ok((0..rank).rev().collect()) };
        let axes: Vec<usize> = perm.iter().filter_map(|&a| usize::try_from(a).ok()).collect();
        let mut sorted = axes.clone();
        sorted.sort_unstable();
        if perm.len() != rank || !sorted.into_iter().eq(0..rank) {
            return Err(err!(Shape, "perm").expected(format!("a permutation of 0..{rank}")).found(format!("{perm:?}")));
        }
        Ok(axes)
    }
}

impl Operator for Transpose {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let shape: Vec<Dim> = self.axes(x.len())?.into_iter().map(|a| x[a].clone()).collect();
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// The inverse permutation.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (x, dy) = (cx.input(0)?, cx.dy(0)?);
        let axes = self.axes(cx.dims(x)?.len())?;
        let mut inverse = vec![0i64; axes.len()];
        for (i, &a) in axes.iter().enumerate() {
            inverse[a] = i as i64;
        }
        let dx = cx.op_with("Transpose", &[dy], &[("perm", crate::graph::Attribute::Ints(inverse))])?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let view = cx.input(0)?;
        let axes = self.axes(view.rank())?;
        cx.alias(0, view.permuted(&axes));
        Ok(())
    }
}

/// The axes of Squeeze and Unsqueeze: an attribute until opset 13, then input 1.
#[derive(Debug)]
struct Axes {
    attribute: Option<Vec<i64>>,
    by_input: bool,
}

/// What is known of the axes while inferring.
enum Found {
    Absent,
    Known(Vec<i64>),
    /// So many, of unknown value.
    Unknown(Option<usize>),
}

impl Axes {
    fn parse(spec: &Spec<'_>) -> Result<Self> {
        let by_input = spec.since() >= 13;
        Ok(Self { by_input, attribute: if by_input { None } else { spec.ints_opt("axes")? } })
    }

    fn infer(&self, cx: &InferCx<'_>) -> Result<Found> {
        Ok(match (&self.attribute, self.by_input && cx.has(1)) {
            (Some(axes), _) => Found::Known(axes.clone()),
            (None, false) => Found::Absent,
            (None, true) => match cx.constant(1) {
                Some(tensor) => Found::Known(integers(tensor, "axes")?),
                None => Found::Unknown(element_count(cx, 1)?),
            },
        })
    }

    fn lower(&self, cx: &LowerCx<'_>) -> Result<Option<Vec<i64>>> {
        if self.by_input && cx.has(1) {
            return integers(&*cx.require_constant(1)?, "axes").map(Some);
        }
        Ok(self.attribute.clone())
    }
}

/// Without axes of size 1: those named, or all.
#[derive(Debug)]
struct Squeeze(Axes);

impl Operator for Squeeze {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let gone: Vec<usize> = match self.0.infer(cx)? {
            Found::Known(axes) => normalize_axes(&axes, x.len())?,
            Found::Absent if x.iter().all(|d| d.known().is_some()) => (0..x.len()).filter(|&a| x[a].is(1)).collect(),
            Found::Unknown(Some(n)) if n <= x.len() => {
                let shape: Vec<Dim> = (0..x.len() - n).map(|axis| cx.unknown(0, axis)).collect();
                cx.set(0, dtype, shape);
                return Ok(());
            }
            // A symbol may be 1 or not: not even the rank can be told.
            Found::Absent | Found::Unknown(_) => return Ok(()),
        };
        if let Some(&axis) = gone.iter().find(|&&a| x[a].known().is_some_and(|n| n != 1)) {
            return Err(err!(Shape, "axis {axis} cannot be squeezed").expected("size 1").found(show_dims(&x)));
        }
        let shape: Vec<Dim> = (0..x.len()).filter(|a| !gone.contains(a)).map(|a| x[a].clone()).collect();
        let rank = shape.len();
        cx.set(0, dtype, shape);
        keep_elements(cx, rank);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        reshaped_gradient(cx)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut view = cx.input(0)?;
        let axes = match self.0.lower(cx)? {
            Some(axes) => normalize_axes(&axes, view.rank())?,
            None => (0..view.rank()).filter(|&a| view.shape[a] == 1).collect(),
        };
        if let Some(&axis) = axes.iter().find(|&&a| view.shape[a] != 1) {
            let e = cx.error(Kind::Shape, format!("axis {axis} cannot be squeezed"));
            return Err(e.expected("size 1").found(show_dims(&view.shape)));
        }
        for &axis in axes.iter().rev() {
            view = view.squeezed(axis);
        }
        cx.alias(0, view);
        Ok(())
    }
}

/// With new axes of size 1 at these positions of the result.
#[derive(Debug)]
struct Unsqueeze(Axes);

impl Operator for Unsqueeze {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let axes = match self.0.infer(cx)? {
            Found::Known(axes) => normalize_axes(&axes, x.len() + axes.len())?,
            Found::Absent => bail!(Graph, "the axes to insert are required and missing"),
            Found::Unknown(Some(n)) => {
                let shape: Vec<Dim> = (0..x.len() + n).map(|axis| cx.unknown(0, axis)).collect();
                cx.set(0, dtype, shape);
                return Ok(());
            }
            Found::Unknown(None) => return Ok(()),
        };
        let mut shape = x;
        for axis in axes {
            shape.insert(axis, Dim::Known(1));
        }
        let rank = shape.len();
        cx.set(0, dtype, shape);
        keep_elements(cx, rank);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        reshaped_gradient(cx)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut view = cx.input(0)?;
        let Some(axes) = self.0.lower(cx)? else { bail!(Graph, "the axes to insert are required and missing") };
        for axis in normalize_axes(&axes, view.rank() + axes.len())? {
            view = view.unsqueezed(axis);
        }
        cx.alias(0, view);
        Ok(())
    }
}

/// Repeated to the broadcast of its own shape and the one that input 1 says.
#[derive(Debug)]
struct Expand;

impl Operator for Expand {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x) = (cx.dtype(0)?, cx.shape(0)?);
        let shape = match (elements(cx, 1), element_count(cx, 1)?) {
            (Some(target), _) => {
                if target.iter().any(|d| number_of(d).is_some_and(|n| n < 0)) {
                    bail!(Shape, "the target has a negative size: {}", show_target(&target));
                }
                broadcast(&[x, target])?
            }
            (None, Some(n)) => {
                let rank = n.max(x.len());
                let own = |axis: usize| (axis + x.len()).checked_sub(rank).map(|a| &x[a]);
                let certain = |axis: usize| own(axis).filter(|d| axis + n < rank || d.known().is_some_and(|k| k != 1));
                (0..rank).map(|axis| certain(axis).cloned().unwrap_or_else(|| cx.unknown(0, axis))).collect()
            }
            (None, None) => return Ok(()),
        };
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// dy summed over the axes along which x was repeated.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        cx.set_unbroadcast(0, dy)
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (view, (_, shape)) = (cx.input(0)?, cx.output_type(0)?);
        let fits = |lead: usize| view.shape.iter().zip(&shape[lead..]).all(|(&a, &b)| a == b || a == 1);
        if !shape.len().checked_sub(view.rank()).is_some_and(fits) {
            return Err(cx
                .error(Kind::Shape, "the input does not broadcast")
                .expected(show_dims(&shape))
                .found(show_dims(&view.shape)));
        }
        cx.alias(0, view.broadcast_to(&shape));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Attribute, TensorType};
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    fn six(op: &'static str) -> Case {
        Case::op(op).random("x", &[2, 1, 3], -1.0, 1.0)
    }

    fn shape_of(case: Case) -> Vec<usize> {
        case.run()[0].shape().to_vec()
    }

    #[test]
    fn gradients() {
        for axis in [-3, -1, 0, 1, 2, 3] {
            six("Flatten").int("axis", axis).check();
        }
        six("Reshape").indices("shape", &[2], &[3, 2]).check();
        six("Reshape").indices("shape", &[3], &[0, -1, 1]).check();
        six("Reshape").indices("shape", &[1], &[6]).int("allowzero", 1).check();
        six("Transpose").check();
        six("Transpose").ints("perm", &[2, 0, 1]).check();
        six("Squeeze").check();
        six("Squeeze").indices("axes", &[1], &[-2]).check();
        six("Squeeze").opset(11).ints("axes", &[1]).check();
        six("Unsqueeze").indices("axes", &[2], &[0, -1]).check();
        six("Unsqueeze").opset(11).ints("axes", &[1, 3]).check();
        six("Expand").indices("shape", &[3], &[2, 4, 3]).check();
        six("Expand").indices("shape", &[4], &[5, 1, 4, 1]).check();
        six("Expand").indices("shape", &[1], &[1]).check();
        Case::op("Expand").random("x", &[], -1.0, 1.0).indices("shape", &[2], &[2, 3]).check();
    }

    #[test]
    fn shapes() {
        let zero = || Case::op("Reshape").random("x", &[0, 3], 0.0, 1.0);
        assert_eq!(shape_of(zero().indices("shape", &[2], &[3, 0]).int("allowzero", 1)), [3, 0]);
        assert_eq!(shape_of(zero().indices("shape", &[2], &[-1, 3])), [0, 3]);
        assert_eq!(shape_of(six("Squeeze").indices("axes", &[0], &[])), [2, 1, 3]);
        assert_eq!(shape_of(Case::op("Flatten").random("x", &[], 0.0, 1.0).int("axis", 0)), [1, 1]);
    }

    #[test]
    fn values() {
        let x = || Case::op("Transpose").input("x", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        x().gives(&[3, 2], &[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
        x().ints("perm", &[0, 1]).gives(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        Case::op("Expand")
            .input("x", &[2, 1], &[1.0, 2.0])
            .indices("shape", &[2], &[1, 2])
            .gives(&[2, 2], &[1.0, 1.0, 2.0, 2.0]);
    }

    #[test]
    fn refusals() {
        let reshape = |to: &[i64]| six("Reshape").indices("shape", &[to.len()], to).fails();
        assert!(reshape(&[4]).contains("expected [4]; found [2,1,3]"), "{}", reshape(&[4]));
        assert!(reshape(&[-1, 4]).contains("expected [-1,4]"));
        assert!(reshape(&[-1, -1]).contains("more than one -1"));
        assert!(reshape(&[6, 1, 1, 0]).contains("axis 3"));
        assert!(reshape(&[-2, 3]).contains("negative size: [-2,3]"));
        assert!(reshape(&[i64::MAX, i64::MAX, 4]).starts_with('['));
        let both = six("Reshape").indices("shape", &[2], &[0, -1]).int("allowzero", 1).fails();
        assert!(both.contains("cannot have both 0 and -1"));
        assert!(six("Flatten").int("axis", 4).fails().contains("expected -3..3; found 4"));
        assert!(six("Transpose").ints("perm", &[0, 1]).fails().contains("a permutation of 0..3"));
        assert!(six("Transpose").ints("perm", &[0, 1, 1]).fails().contains("found [0, 1, 1]"));
        assert!(six("Transpose").ints("perm", &[0, 1, -1]).fails().contains("permutation"));
        assert!(six("Squeeze").indices("axes", &[1], &[0]).fails().contains("expected size 1"));
        assert!(six("Squeeze").indices("axes", &[2], &[1, -2]).fails().contains("twice"));
        assert!(six("Squeeze").ints("axes", &[1]).fails().contains("attribute axes"));
        assert!(six("Unsqueeze").fails().contains("missing"));
        assert!(six("Unsqueeze").indices("axes", &[1], &[4]).fails().contains("out of range"));
        assert!(six("Expand").indices("shape", &[1], &[2]).fails().contains("broadcast"));
        assert!(six("Expand").indices("shape", &[1], &[-1]).fails().contains("negative"));
    }

    /// Operator, inputs, output, attributes.
    type Line<'a> = (&'a str, &'a str, &'a str, &'a [(&'a str, i64)]);

    /// A graph on `x: [batch, 16, 5, 5]` of these nodes, with integer constants by name; the type of the last
    /// node's output.
    fn inferred(constants: &[(&str, &[i64])], nodes: &[Line<'_>]) -> String {
        let mut graph = Graph::new("chain", 17);
        let dims: Vec<Dim> = vec![Dim::symbol("batch"), 16.into(), 5.into(), 5.into()];
        graph.add_input("x", TensorType::new(DType::F32, dims)).unwrap();
        graph.add_input("n", TensorType::known(DType::I64, &[3])).unwrap();
        for (name, values) in constants {
            graph.add_initializer(name, Tensor::ints(values)).unwrap();
        }
        for (op, inputs, output, attributes) in nodes {
            let inputs = inputs.split(' ').map(|n| Some(graph.find(n).unwrap())).collect();
            let id = graph.add_value(output, None).unwrap();
            graph.nodes.push(Node {
                name: (*output).into(),
                domain: String::new(),
                op_type: (*op).into(),
                inputs,
                outputs: vec![Some(id)],
                attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), Attribute::Int(*v))).collect(),
            });
            graph.outputs = vec![id];
        }
        infer_graph(&mut graph).unwrap();
        graph.show(graph.outputs[0])
    }

    #[test]
    fn symbols() {
        assert_eq!(inferred(&[], &[("Flatten", "x", "y", &[])]), "y: float32[batch,400]");
        assert_eq!(inferred(&[], &[("Flatten", "x", "y", &[("axis", 2)])]), "y: float32[16*batch,25]");
        let reshape: &[Line<'_>] = &[("Reshape", "x s", "y", &[])];
        assert_eq!(inferred(&[("s", &[0, -1])], reshape), "y: float32[batch,400]");
        assert_eq!(inferred(&[("s", &[-1, 400])], reshape), "y: float32[batch,400]");
        assert_eq!(inferred(&[("s", &[-1, 5])], reshape), "y: float32[80*batch,5]");
        assert_eq!(inferred(&[("s", &[-1, 7])], reshape), "y: float32[y.0,7]");
        assert_eq!(inferred(&[], &[("Reshape", "x n", "y", &[])]), "y: float32[y.0,y.1,y.2]");
        assert_eq!(inferred(&[], &[("Expand", "x n", "y", &[])]), "y: float32[batch,16,5,5]");
        assert_eq!(
            inferred(&[], &[("Shape", "x", "s", &[]), ("Reshape", "x s", "y", &[])]),
            "y: float32[batch,16,5,5]"
        );
        let size: &[Line<'_>] =
            &[("Size", "x", "s", &[]), ("Unsqueeze", "s zero", "v", &[]), ("Reshape", "x v", "y", &[])];
        assert_eq!(inferred(&[("zero", &[0])], size), "y: float32[400*batch]");
    }
}
