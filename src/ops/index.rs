//! Elements by index.

use super::sizes::{element_count, elements};
use super::*;
use crate::error::Kind;
use crate::graph::Attribute;
use crate::kernel::Kernel;
use crate::tensor::{Dim, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Gather" [1, 11, 13] d => |spec| Ok(Gather { axis: spec.int("axis", 0)? }),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "GatherGrad" [1] d => |spec| Ok(GatherGrad { axis: spec.int("axis", 0)? }),
};

/// `data[…, indices, …]`: slices of the data along an axis, which the axes of the indices replace. Negative
/// indices count from the end.
#[derive(Debug)]
struct Gather {
    axis: i64,
}

/// The position that an index means on an axis of size `n`.
fn position(index: i64, n: usize) -> Result<usize> {
    let at = if index < 0 { index.saturating_add(n as i64) } else { index };
    let at = usize::try_from(at).ok().filter(|&at| at < n);
    at.ok_or_else(|| err!(Shape, "an index out of range").expected(format!("-{n} to {}", n as i64 - 1)).found(index))
}

impl Operator for Gather {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.index(1)?;
        let (dtype, data, indices) = (cx.dtype(0)?, cx.shape(0)?, cx.shape(1)?);
        let axis = normalize_axis(self.axis, data.len())?;
        let shape = [&data[..axis], &indices, &data[axis + 1..]].concat();
        cx.set(0, dtype, shape);
        // Sizes taken out of a shape.
        if let (1, true, Some(all), Some(at)) = (data.len(), indices.len() <= 1, elements(cx, 0), cx.ints(1)) {
            let taken = at.into_iter().map(|i| Ok(all[position(i, all.len())?].clone())).collect::<Result<_>>()?;
            cx.set_dims(0, taken);
        }
        Ok(())
    }

    /// dy added up by index.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (data, indices, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        let shape = cx.shape(data)?;
        let dx = cx.ms("GatherGrad", &[shape, indices, dy], &[("axis", Attribute::Int(self.axis))])?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let data = cx.input(0)?;
        let axis = normalize_axis(self.axis, data.rank())?;
        // One constant index is a view.
        let only = cx.constant(1).filter(|t| t.shape().is_empty()).and_then(|t| t.to_i64s()?.first().copied());
        if let Some(index) = only {
            let at = position(index, data.shape[axis])?;
            cx.alias(0, data.sliced(axis, at, 1, 1).squeezed(axis));
            return Ok(());
        }
        let (indices, to) = (cx.input(1)?, cx.output(0)?);
        let shape = gathered(&data.shape, axis, &indices.shape);
        if to.shape != shape {
            return Err(cx
                .error(Kind::Shape, "the result's shape")
                .expected(show_dims(&shape))
                .found(show_dims(&to.shape)));
        }
        cx.push(Kernel::Gather(crate::kernel::Gather { axis }), vec![data, indices], vec![to]);
        Ok(())
    }
}

fn gathered(data: &[usize], axis: usize, indices: &[usize]) -> Vec<usize> {
    [&data[..axis], indices, &data[axis + 1..]].concat()
}

/// The gradient of Gather by its data: inputs the shape of the data, indices, dY. Slices of dY whose index
/// is the same are added.
#[derive(Debug)]
struct GatherGrad {
    axis: i64,
}

impl Operator for GatherGrad {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        cx.index(1)?;
        let dtype = cx.float(2)?;
        let shape: Vec<Dim> = match (elements(cx, 0), element_count(cx, 0)?) {
            (Some(shape), _) => shape,
            (None, Some(rank)) => (0..rank).map(|axis| cx.unknown(0, axis)).collect(),
            (None, None) => return Ok(()),
        };
        normalize_axis(self.axis, shape.len())?;
        cx.set(0, dtype, shape);
        Ok(())
    }

    /// The gradient by dY gathers.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        if cx.needs(2) {
            let (indices, dy) = (cx.input(1)?, cx.dy(0)?);
            let d = cx.op_with("Gather", &[dy, indices], &[("axis", Attribute::Int(self.axis))])?;
            cx.set(2, d);
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (indices, dy, to) = (cx.input(1)?, cx.input(2)?, cx.output(0)?);
        let axis = normalize_axis(self.axis, to.rank())?;
        let shape = gathered(&to.shape, axis, &indices.shape);
        if dy.shape != shape {
            return Err(cx.error(Kind::Shape, "dY's shape").expected(show_dims(&shape)).found(show_dims(&dy.shape)));
        }
        cx.push(Kernel::Scatter(crate::kernel::Scatter { axis }), vec![indices, dy], vec![to]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorType;
    use crate::ops::testing::Case;
    use crate::tensor::{DType, Tensor};

    #[test]
    fn gather() {
        let new = || Case::op("Gather").random("data", &[3, 4, 2], -1.0, 1.0);
        new().indices("i", &[2], &[2, 0]).check();
        new().indices("i", &[2, 3], &[0, -1, 1, 1, -4, 3]).int("axis", 1).check();
        new().indices("i", &[3], &[1, 1, -1]).int("axis", -1).check();
        new().indices("i", &[], &[-2]).int("axis", 1).check();
        new().tensor("i", Tensor::new(&[2], &[2i32, 2]).unwrap(), false).opset(7).check();
        new().indices("i", &[0], &[]).check();
        let line = || Case::op("Gather").input("data", &[3], &[1.0, 2.0, 3.0]);
        line().indices("i", &[2, 2], &[2, 0, -1, 1]).gives(&[2, 2], &[3.0, 1.0, 3.0, 2.0]);
        line().indices("i", &[], &[-1]).gives(&[], &[3.0]);
        assert!(line().indices("i", &[], &[3]).fails().contains("expected -3 to 2; found 3"));
        assert!(line().indices("i", &[1], &[-4]).fails().contains("out of range"));
        assert!(line().constant("i", &[1], &[0.0]).fails().contains("must hold indices"));
        assert!(line().indices("i", &[1], &[0]).int("axis", 1).fails().contains("axis out of range"));
        assert!(
            Case::op("Gather")
                .random("data", &[], 0.0, 1.0)
                .indices("i", &[], &[0])
                .fails()
                .contains("axis out of range")
        );
    }

    #[test]
    fn gather_grad() {
        let new = |dy: &[usize], i: &[i64]| {
            let case = Case::op("GatherGrad").domain(MS).indices("shape", &[2], &[2, 3]).indices("i", &[i.len()], i);
            case.random("dy", dy, -1.0, 1.0)
        };
        new(&[4, 3], &[0, 1, 1, -1]).check();
        new(&[2, 2], &[2, 2]).int("axis", 1).check();
        let case = Case::op("GatherGrad").domain(MS).indices("shape", &[1], &[3]).indices("i", &[3], &[1, -1, 1]);
        case.input("dy", &[3], &[1.0, 2.0, 4.0]).gives(&[3], &[0.0, 5.0, 2.0]);
        assert!(new(&[4, 2], &[0, 1, 1, 0]).fails().contains("expected [4,3]; found [4,2]"));
        assert!(new(&[1, 3], &[2]).fails().contains("out of range"));
    }

    /// The chain that PyTorch writes for `x.view(x.size(0), -1)` and its like.
    #[test]
    fn sizes_out_of_shapes_stay_symbols() {
        let mut graph = Graph::new("chain", 17);
        let dims: Vec<Dim> = vec![Dim::symbol("batch"), 16.into(), 5.into(), 5.into()];
        graph.add_input("x", TensorType::new(DType::F32, dims)).unwrap();
        graph.add_initializer("zero", Tensor::scalar(0i64)).unwrap();
        graph.add_initializer("axes", Tensor::ints(&[0])).unwrap();
        graph.add_initializer("rest", Tensor::ints(&[-1])).unwrap();
        graph.add_initializer("from", Tensor::ints(&[2])).unwrap();
        graph.add_initializer("to", Tensor::ints(&[i64::MAX])).unwrap();
        let nodes = [
            ("Shape", "x", "shape"),
            ("Gather", "shape zero", "size"),
            ("Unsqueeze", "size axes", "list"),
            ("Concat", "list rest", "target"),
            ("Reshape", "x target", "y"),
            ("Slice", "shape from to", "tail"),
            ("Concat", "list rest tail", "target2"),
            ("Reshape", "x target2", "z"),
        ];
        for (op, inputs, output) in nodes {
            let inputs = inputs.split(' ').map(|n| Some(graph.find(n).unwrap())).collect();
            let outputs = vec![Some(graph.add_value(output, None).unwrap())];
            let axis = (op == "Concat").then(|| ("axis".to_owned(), Attribute::Int(0)));
            let (name, domain, op_type) = (output.into(), String::new(), op.into());
            graph.nodes.push(Node { name, domain, op_type, inputs, outputs, attributes: axis.into_iter().collect() });
        }
        graph.outputs = ["y", "z"].map(|n| graph.find(n).unwrap()).to_vec();
        infer_graph(&mut graph).unwrap();
        assert_eq!(graph.show(graph.outputs[0]), "y: float32[batch,400]");
        assert_eq!(graph.show(graph.outputs[1]), "z: float32[batch,16,5,5]");
    }
}
