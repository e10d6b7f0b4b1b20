//! Joining and splitting.

use super::sizes::{dim_of, elements, integers, number_of};
use super::*;
use crate::error::{Kind, bail};
use crate::graph::{Attribute, ValueId};
use crate::kernel::View;
use crate::tensor::{DType, Dim, Tensor, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "Concat" [4, 11, 13] d => |spec| match spec.int_opt("axis")? {
        Some(axis) => Ok(Concat { axis, training: false }),
        None => Err(err!(Graph, "attribute axis is required and missing")),
    },
    "Split" [2, 11, 13, 18] d => |spec| Ok(Split {
        axis: spec.int("axis", 0)?,
        sizes: if spec.since() < 13 { spec.ints_opt("split")? } else { None },
        count: if spec.since() >= 18 { spec.int_opt("num_outputs")? } else { None },
        rule: match spec.since() {
            2..13 => Rule::Attribute,
            13..18 => Rule::Even,
            _ => Rule::Counted,
        },
    }),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "ConcatTraining" [1] d => |spec| match spec.int_opt("axis")? {
        Some(axis) => Ok(Concat { axis, training: true }),
        None => Err(err!(Graph, "attribute axis is required and missing")),
    },
    "SplitTraining" [1] d => |spec| Ok(Split { axis: spec.int("axis", 0)?, sizes: None, count: None, rule: Rule::Required }),
};

/// The operands one after the other along an axis. `ConcatTraining` also gives the size of each on that axis.
#[derive(Debug)]
struct Concat {
    axis: i64,
    training: bool,
}

impl Concat {
    /// Shape of the result; the sizes of the operands along the axis.
    fn shape(&self, cx: &InferCx<'_>) -> Result<(Vec<Dim>, Vec<Dim>)> {
        if cx.input_count() == 0 {
            bail!(Graph, "there is nothing to join");
        }
        let first = cx.shape(0)?;
        let axis = normalize_axis(self.axis, first.len())?;
        let (mut shape, mut lengths) = (first, Vec::new());
        for i in 0..cx.input_count() {
            cx.same_dtype(0, i)?;
            let other = cx.shape(i)?;
            let fits =
                |(a, (s, o)): (usize, (&Dim, &Dim))| a == axis || s.known().is_none() || o.known().is_none() || s == o;
            if other.len() != shape.len() || !shape.iter().zip(&other).enumerate().all(fits) {
                let e = err!(Shape, "input {i} does not fit the others on axes other than {axis}");
                return Err(e.expected(show_dims(&shape)).found(show_dims(&other)));
            }
            for (s, o) in shape.iter_mut().zip(&other) {
                if o.known().is_some() {
                    *s = o.clone();
                }
            }
            lengths.push(other[axis].clone());
        }
        shape[axis] = self.total(cx, &lengths, axis)?;
        Ok((shape, lengths))
    }

    fn total(&self, cx: &InferCx<'_>, lengths: &[Dim], axis: usize) -> Result<Dim> {
        let sum = lengths.iter().filter_map(Dim::known).try_fold(0usize, usize::checked_add);
        let Some(sum) = sum else { bail!(Shape, "the result is too large on axis {axis}") };
        let mut symbols = lengths.iter().filter(|d| d.known().is_none());
        Ok(match (symbols.next(), symbols.next()) {
            (None, _) => Dim::Known(sum),
            (Some(only), None) if sum == 0 => only.clone(),
            _ => cx.unknown(0, axis),
        })
    }
}

impl Operator for Concat {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (shape, lengths) = self.shape(cx)?;
        let (dtype, rank) = (cx.dtype(0)?, shape.len());
        cx.set(0, dtype, shape);
        if rank == 1
            && let Some(all) = (0..cx.input_count()).map(|i| elements(cx, i)).collect::<Option<Vec<_>>>()
        {
            cx.set_dims(0, all.concat());
        }
        if self.training {
            cx.set(1, DType::I64, [lengths.len().into()]);
            cx.set_dims(1, lengths);
        }
        Ok(())
    }

    /// Each operand gets its part of dy.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        let axis = normalize_axis(self.axis, cx.dims(dy)?.len())?;
        let inputs = (0..cx.input_count()).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
        let parts = if self.training {
            let lengths = cx.output(1)?;
            split_by(cx, dy, lengths, axis, inputs.len())?
        } else {
            split_like(cx, dy, &inputs, axis)?
        };
        for (i, part) in parts.into_iter().enumerate() {
            if cx.needs(i) {
                cx.set(i, part);
            }
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let parts = (0..cx.input_count()).map(|i| cx.input(i)).collect::<Result<Vec<_>>>()?;
        let (_, shape) = cx.output_type(0)?;
        let axis = normalize_axis(self.axis, shape.len())?;
        let fits = |p: &View| p.rank() == shape.len() && (0..p.rank()).all(|a| a == axis || p.shape[a] == shape[a]);
        if !parts.iter().all(fits) || parts.iter().map(|p| p.shape[axis]).sum::<usize>() != shape[axis] {
            let found: Vec<String> = parts.iter().map(|p| show_dims(&p.shape)).collect();
            return Err(cx
                .error(Kind::Shape, "the operands do not make up the result")
                .expected(show_dims(&shape))
                .found(found.join(", ")));
        }
        if self.training {
            let lengths: Vec<i64> = parts.iter().map(|p| p.shape[axis] as i64).collect();
            cx.set_constant(1, Tensor::ints(&lengths));
        }
        if let [only] = parts.as_slice() {
            cx.alias(0, only.clone());
            return Ok(());
        }
        let (to, mut at) = (cx.output(0)?, 0);
        for part in parts {
            let size = part.shape[axis];
            let place = to.sliced(axis, at, 1, size);
            cx.copy(part, place);
            at += size;
        }
        Ok(())
    }
}

/// The parts of `x` along `axis`, of the sizes that the integer list `lengths` says.
fn split_by(cx: &mut GradCx<'_>, x: ValueId, lengths: ValueId, axis: usize, count: usize) -> Result<Vec<ValueId>> {
    let axis = [("axis", Attribute::Int(axis as i64))];
    cx.node(MS, "SplitTraining", &[Some(x), Some(lengths)], &axis, count)
}

/// The parts of `x` along `axis`, of the sizes that `likes` have there. Sizes that only a run knows are
/// read from shapes (`SplitTraining`).
fn split_like(cx: &mut GradCx<'_>, x: ValueId, likes: &[ValueId], axis: usize) -> Result<Vec<ValueId>> {
    let mut sizes = Vec::with_capacity(likes.len());
    for &like in likes {
        sizes.push(cx.dims(like)?.get(axis).and_then(Dim::known).map(|n| n as i64));
    }
    let axis_attr = ("axis", Attribute::Int(axis as i64));
    if let Some(known) = sizes.iter().copied().collect::<Option<Vec<i64>>>() {
        if cx.opset() < 13 {
            return cx.node("", "Split", &[Some(x)], &[axis_attr, ("split", Attribute::Ints(known))], likes.len());
        }
        let known = cx.ints(&known);
        return cx.node("", "Split", &[Some(x), Some(known)], &[axis_attr], likes.len());
    }
    let mut lengths = Vec::with_capacity(likes.len());
    for (&like, size) in likes.iter().zip(sizes) {
        lengths.push(match size {
            Some(n) => cx.ints(&[n]),
            None => {
                let (shape, at) = (cx.op("Shape", &[like])?, cx.ints(&[axis as i64]));
                cx.op("Gather", &[shape, at])?
            }
        });
    }
    let lengths = cx.op_with("Concat", &lengths, &[("axis", Attribute::Int(0))])?;
    split_by(cx, x, lengths, axis, likes.len())
}

/// Where Split takes the sizes of its parts from.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rule {
    /// The attribute `split`, else even parts.
    Attribute,
    /// Input 1, else even parts.
    Even,
    /// Input 1, or as many as `num_outputs`, of which the last may be smaller.
    Counted,
    /// Input 1, always.
    Required,
}

/// Consecutive parts along an axis.
#[derive(Debug)]
struct Split {
    axis: i64,
    sizes: Option<Vec<i64>>,
    count: Option<i64>,
    rule: Rule,
}

impl Split {
    /// The size of each of `outputs` parts of an axis of size `whole`; `given` is input 1.
    fn parts(
        &self,
        whole: &Dim,
        given: Option<Vec<Dim>>,
        outputs: usize,
        unknown: impl Fn(usize) -> Dim,
    ) -> Result<Vec<Dim>> {
        let given = given.or_else(|| self.sizes.as_ref().map(|s| s.iter().copied().map(dim_of).collect()));
        let Some(sizes) = given else { return self.even(whole, outputs, unknown) };
        if sizes.len() != outputs {
            return Err(err!(Shape, "number of sizes to split into")
                .expected(format!("{outputs}, one for each output"))
                .found(sizes.len()));
        }
        if let Some(n) = sizes.iter().filter_map(number_of).find(|n| *n < 0) {
            bail!(Shape, "a part cannot have the size {n}");
        }
        let sum = sizes.iter().map(Dim::known).try_fold(Some(0usize), |sum, n| match (sum, n) {
            (Some(sum), Some(n)) => sum.checked_add(n).map(Some),
            _ => Some(None),
        });
        match (whole.known(), sum) {
            (_, None) => bail!(Shape, "the parts are too large"),
            (Some(whole), Some(Some(sum))) if sum != whole => {
                Err(err!(Shape, "the sizes of the parts must add up to that of the axis")
                    .expected(whole)
                    .found(show_dims(&sizes)))
            }
            _ => Ok(sizes),
        }
    }

    fn even(&self, whole: &Dim, outputs: usize, unknown: impl Fn(usize) -> Dim) -> Result<Vec<Dim>> {
        match (self.rule, self.count) {
            (Rule::Required, _) => bail!(Graph, "the sizes to split into (input 1) are required and missing"),
            (Rule::Counted, None) => {
                bail!(Graph, "either the sizes to split into (input 1) or num_outputs must be given")
            }
            (Rule::Counted, Some(n)) if usize::try_from(n) != Ok(outputs) => {
                return Err(err!(Graph, "num_outputs").expected(outputs).found(n));
            }
            _ => {}
        }
        let Some(n) = whole.known() else {
            return Ok(if outputs == 1 { vec![whole.clone()] } else { (0..outputs).map(unknown).collect() });
        };
        let size = n.div_ceil(outputs.max(1));
        let last = size.checked_mul(outputs.saturating_sub(1)).and_then(|others| n.checked_sub(others));
        match last {
            Some(last) if last == size || self.rule == Rule::Counted => {
                let mut sizes = vec![Dim::Known(size); outputs];
                if let Some(end) = sizes.last_mut() {
                    *end = Dim::Known(last);
                }
                Ok(sizes)
            }
            _ => Err(err!(Shape, "an axis of size {n} cannot be split into {outputs} even parts")),
        }
    }
}

impl Operator for Split {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let (dtype, x, outputs) = (cx.dtype(0)?, cx.shape(0)?, cx.output_count());
        let axis = normalize_axis(self.axis, x.len())?;
        let sizes = if cx.has(1) && elements(cx, 1).is_none() {
            // A list that only a run knows.
            (0..outputs).map(|o| cx.unknown(o, axis)).collect()
        } else {
            let given = if cx.has(1) { elements(cx, 1) } else { None };
            self.parts(&x[axis], given, outputs, |o| cx.unknown(o, axis))?
        };
        for (o, size) in sizes.into_iter().enumerate() {
            let mut shape = x.clone();
            shape[axis] = size;
            cx.set(o, dtype, shape);
        }
        Ok(())
    }

    /// The parts' gradients joined; zeros for parts that the loss does not use.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let axis = normalize_axis(self.axis, cx.dims(x)?.len())?;
        let mut dys = Vec::with_capacity(cx.output_count());
        for o in 0..cx.output_count() {
            dys.push(match cx.dy_opt(o) {
                Some(dy) => dy,
                None => {
                    let (y, zero) = (cx.output(o)?, cx.scalar_like(x, 0.0)?);
                    cx.expand_like(zero, y)?
                }
            });
        }
        let dx = cx.op_with("Concat", &dys, &[("axis", Attribute::Int(axis as i64))])?;
        cx.set(0, dx);
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let x = cx.input(0)?;
        let axis = normalize_axis(self.axis, x.rank())?;
        let given = match cx.has(1) {
            true => {
                Some(integers(&*cx.require_constant(1)?, "the sizes to split into")?.into_iter().map(dim_of).collect())
            }
            false => None,
        };
        let sizes = self.parts(&Dim::Known(x.shape[axis]), given, cx.output_count(), |_| Dim::Known(0))?;
        let mut at = 0;
        for (o, size) in sizes.iter().filter_map(Dim::known).enumerate() {
            cx.alias(o, x.sliced(axis, at, 1, size));
            at += size;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::TensorType;
    use crate::ops::testing::Case;

    fn case(op: &'static str, shape: &[usize]) -> Case {
        Case::op(op).random("x", shape, -1.0, 1.0)
    }

    #[test]
    fn concat() {
        for (opset, op, domain) in [(21, "Concat", ""), (11, "Concat", ""), (21, "ConcatTraining", MS)] {
            for axis in [1, -2] {
                let new = || case(op, &[2, 1, 2]).opset(opset).domain(domain).int("axis", axis);
                new().random("y", &[2, 3, 2], -1.0, 1.0).random("z", &[2, 0, 2], -1.0, 1.0).check();
                new().check();
            }
        }
        let two = Case::op("Concat").input("a", &[1, 2], &[1.0, 2.0]).input("b", &[1, 2], &[3.0, 4.0]);
        two.int("axis", 1).gives(&[1, 4], &[1.0, 2.0, 3.0, 4.0]);
        let training =
            case("ConcatTraining", &[2, 3]).random("y", &[5, 3], 0.0, 1.0).domain(MS).int("axis", 0).outputs(2).run();
        assert_eq!(training[1].to_i64s().unwrap(), [2, 5]);
        assert!(case("Concat", &[2]).fails().contains("axis is required"));
        assert!(case("Concat", &[2]).int("axis", 1).fails().contains("axis out of range"));
        let other = case("Concat", &[2, 3]).random("y", &[2, 4], 0.0, 1.0).int("axis", 0).fails();
        assert!(other.contains("expected [2,3]; found [2,4]"), "{other}");
        assert!(case("Concat", &[2, 3]).random("y", &[2], 0.0, 1.0).int("axis", 0).fails().contains("found [2]"));
        assert!(case("Concat", &[2]).indices("i", &[1], &[1]).int("axis", 0).fails().contains("dtype"));
    }

    #[test]
    fn split() {
        let new = |opset| case("Split", &[2, 6]).opset(opset).int("axis", -1);
        for opset in [7, 11, 13] {
            new(opset).outputs(3).check();
        }
        new(11).ints("split", &[1, 5]).outputs(2).check();
        new(13).indices("split", &[3], &[1, 0, 5]).outputs(3).check();
        new(18).indices("split", &[2], &[4, 2]).outputs(2).check();
        new(18).int("num_outputs", 4).outputs(4).check();
        case("SplitTraining", &[2, 6]).domain(MS).int("axis", 1).indices("split", &[2], &[4, 2]).outputs(2).check();
        let sizes = |out: Vec<crate::tensor::Tensor>| out.iter().map(|t| t.shape()[1]).collect::<Vec<_>>();
        assert_eq!(sizes(new(18).int("num_outputs", 4).outputs(4).run()), [2, 2, 2, 0]);
        assert_eq!(sizes(case("Split", &[2, 7]).int("axis", 1).int("num_outputs", 3).outputs(3).run()), [3, 3, 1]);
        assert!(new(13).outputs(4).fails().contains("size 6 cannot be split into 4 even parts"));
        assert!(new(18).outputs(3).fails().contains("num_outputs must be given"));
        assert!(new(18).int("num_outputs", 2).outputs(3).fails().contains("expected 3; found 2"));
        assert!(new(18).int("num_outputs", 5).outputs(5).fails().contains("cannot be split"));
        assert!(new(18).indices("split", &[2], &[4, 3]).outputs(2).fails().contains("expected 6; found [4,3]"));
        assert!(new(18).indices("split", &[2], &[7, -1]).outputs(2).fails().contains("size -1"));
        assert!(new(18).indices("split", &[2], &[4, 2]).outputs(3).fails().contains("one for each output"));
        assert!(case("SplitTraining", &[2, 6]).domain(MS).outputs(2).fails().contains("required"));
    }

    #[test]
    fn split_gradient_with_an_unused_part() {
        // Only the middle part reaches the loss: the others count as zeros.
        let mut graph = Graph::new("unused", 17);
        let x = graph.add_input("x", crate::graph::TensorType::known(DType::F64, &[6])).unwrap();
        let parts: Vec<_> = ["a", "b", "c"].iter().map(|n| graph.add_value(n, None).unwrap()).collect();
        graph.nodes.push(Node {
            name: "split".into(),
            domain: String::new(),
            op_type: "Split".into(),
            inputs: vec![Some(x)],
            outputs: parts.iter().copied().map(Some).collect(),
            attributes: Default::default(),
        });
        graph.outputs = vec![parts[1]];
        let x = Tensor::from_f64s(DType::F64, &[6], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        let checks = crate::grad::check_gradients(&graph, &[x], &["x"], 64).unwrap();
        assert!(checks[0].error < 1e-9, "{checks:?}");
    }

    /// The gradient by `x`, of shape `[3, 4]`, of the sum of squares of the first output of a node, with the sizes
    /// of `x` known or not.
    fn gradient(known: bool, op: &str, more: &[(&str, Tensor)], attributes: &[(&str, Attribute)]) -> Vec<f64> {
        let mut graph = Graph::new("symbols", 17);
        let dims: Vec<Dim> = if known { vec![3.into(), 4.into()] } else { vec![Dim::symbol("a"), Dim::symbol("b")] };
        let x = graph.add_input("x", TensorType::new(DType::F64, dims)).unwrap();
        let mut facts = infer_graph(&mut graph).unwrap();
        let mut cx = Builder { graph: &mut graph, facts: &mut facts, stem: "case".into() };
        let twice = cx.add_(x, x).unwrap();
        let others = match more {
            [] => vec![twice],
            more => more.iter().map(|(_, t)| cx.tensor(t.clone())).collect(),
        };
        let inputs: Vec<_> = [x].into_iter().chain(others).map(Some).collect();
        let y = cx.node("", op, &inputs, attributes, 1).unwrap()[0];
        let square = cx.mul(y, y).unwrap();
        let loss = cx.op_with("ReduceSum", &[square], &[("keepdims", Attribute::Int(0))]).unwrap();
        let dx = crate::grad::differentiate(&mut graph, &mut facts, loss, &[x]).unwrap();
        graph.outputs = dx;
        let values: Vec<f64> = (0..12).map(|i| 0.25 * i as f64 - 1.0).collect();
        let x = Tensor::from_f64s(DType::F64, &[3, 4], &values).unwrap();
        interpret(&graph, &[Some(x)], &crate::kernel::RunContext::new(1, 1)).unwrap()[0].to_f64s()
    }

    #[test]
    fn gradients_do_not_need_known_sizes() {
        let int = |name, value| (name, Attribute::Int(value));
        let ints = |values: &[i64]| ("list", Tensor::ints(values));
        type NodeCase<'a> = (&'a str, &'a [(&'a str, Tensor)], &'a [(&'a str, Attribute)]);
        let cases: [NodeCase<'_>; 10] = [
            ("Concat", &[], &[int("axis", 0)]),
            ("Concat", &[], &[int("axis", -1)]),
            ("Split", &[ints(&[4])], &[int("axis", 1)]),
            ("Slice", &[ints(&[1]), ints(&[3]), ints(&[1])], &[]),
            ("Gather", &[ints(&[2, 0, 2])], &[int("axis", 1)]),
            ("Expand", &[ints(&[2, 1, 4])], &[]),
            ("Tile", &[ints(&[2, 3])], &[]),
            ("Pad", &[ints(&[1, -1, 0, 2])], &[]),
            ("Reshape", &[ints(&[2, -1])], &[]),
            ("Unsqueeze", &[ints(&[1, -1])], &[]),
        ];
        for (op, more, attributes) in cases {
            let (known, symbols) = (gradient(true, op, more, attributes), gradient(false, op, more, attributes));
            assert_eq!(known, symbols, "{op}");
            assert!(known.iter().any(|&g| g != 0.0), "{op}");
        }
    }
}
