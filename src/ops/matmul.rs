//! Matrix products.

use super::*;
use crate::error::bail;
use crate::graph::{Attribute, ValueId};
use crate::kernel::{Gemm as GemmKernel, Kernel, View};
use crate::tensor::{Dim, show_dims};

pub(super) const OPERATORS: &[Entry] = operators! { "";
    "MatMul" [1, 9, 13] d => |_| Ok(MatMul { alpha: 1.0, trans: [false; 2], trans_batch: [false; 2] }),
    "Gemm" [7, 9, 11, 13] d => |spec| Ok(Gemm {
        alpha: spec.float("alpha", 1.0)?,
        beta: spec.float("beta", 1.0)?,
        trans: [spec.flag("transA", false)?, spec.flag("transB", false)?],
    }),
};

pub(super) const MS_OPERATORS: &[Entry] = operators! { MS;
    "FusedMatMul" [1] d => |spec| Ok(MatMul {
        alpha: spec.float("alpha", 1.0)?,
        trans: [spec.flag("transA", false)?, spec.flag("transB", false)?],
        trans_batch: [spec.flag("transBatchA", false)?, spec.flag("transBatchB", false)?],
    }),
};

/// Fails if two sizes that a product sums over are known and differ.
fn same_inner(a: &Dim, b: &Dim, shapes: [&[Dim]; 2]) -> Result<()> {
    match (a.known(), b.known()) {
        (Some(k), Some(l)) if k != l => {
            let found = format!("{l}, of {} and {}", show_dims(shapes[0]), show_dims(shapes[1]));
            Err(err!(Shape, "the inner sizes of the product differ").expected(k).found(found))
        }
        _ => Ok(()),
    }
}

/// `alpha · op(a) op(b)`, matrix by matrix over broadcast batch axes: MatMul, and ONNX Runtime's
/// FusedMatMul, whose operands may lie transposed.
///
/// A vector on the left is a row, on the right a column; the axis of size 1 that this would leave in
/// the result is not there. `trans` swaps the last two axes; `trans_batch` says that the rows'
/// axis lies before the batch axes: `[m, batch…, k]`. Vectors have nothing to transpose.
#[derive(Debug)]
struct MatMul {
    alpha: f32,
    trans: [bool; 2],
    trans_batch: [bool; 2],
}

/// Which axis of an operand stands where in `[batch…, row, column]`.
fn axes(rank: usize, trans: bool, trans_batch: bool) -> Vec<usize> {
    let mut axes: Vec<usize> = (0..rank).collect();
    if rank >= 2 {
        if trans_batch {
            let rows = axes.remove(0);
            axes.insert(rank - 2, rows);
        }
        if trans {
            axes.swap(rank - 2, rank - 1);
        }
    }
    axes
}

/// An operand while its gradient is written: batch axes in front, perhaps transposed.
#[derive(Clone, Copy)]
struct Operand {
    value: ValueId,
    rank: usize,
    trans: bool,
}

impl MatMul {
    /// Sizes of operand `i` as `[batch…, row, column]`.
    fn arranged(&self, cx: &InferCx<'_>, i: usize) -> Result<Vec<Dim>> {
        let shape = cx.shape(i)?;
        if shape.is_empty() {
            return Err(err!(Shape, "input {i} is a scalar").expected("at least one axis").found("rank 0"));
        }
        Ok(axes(shape.len(), self.trans[i], self.trans_batch[i]).into_iter().map(|a| shape[a].clone()).collect())
    }

    /// Operand `i` as `[batch…, row, column]`.
    fn view(&self, cx: &mut LowerCx<'_>, i: usize) -> Result<View> {
        let view = cx.input(i)?;
        Ok(view.permuted(&axes(view.rank(), self.trans[i], self.trans_batch[i])))
    }

    fn operand(&self, cx: &mut GradCx<'_>, i: usize) -> Result<Operand> {
        let input = cx.input(i)?;
        let rank = cx.dims(input)?.len();
        let trans = self.trans[i] && rank > 1;
        let value =
            if self.trans_batch[i] && rank > 2 { transpose(cx, input, axes(rank, false, true))? } else { input };
        Ok(Operand { value, rank, trans })
    }

    /// Sets the gradient of operand `i` from one in the broadcast shape.
    fn set(&self, cx: &mut GradCx<'_>, i: usize, operand: Operand, d: ValueId) -> Result<()> {
        let d = cx.unbroadcast(d, operand.value)?;
        let d = if self.trans_batch[i] && operand.rank > 2 {
            let there = axes(operand.rank, false, true);
            let back = (0..operand.rank).map(|axis| there.iter().position(|&a| a == axis).unwrap_or(axis)).collect();
            transpose(cx, d, back)?
        } else {
            d
        };
        cx.set(i, d);
        Ok(())
    }

    /// Neither operand is a vector. With `A = op(a)`, `B = op(b)`: `dA = alpha dy Bᵀ`, `dB = alpha Aᵀ dy`.
    fn matrix_gradient(&self, cx: &mut GradCx<'_>, [a, b]: [Operand; 2], dy: ValueId) -> Result<()> {
        if cx.needs(0) {
            let da = left_gradient(cx, a.trans, b.value, b.trans, dy, self.alpha)?;
            self.set(cx, 0, a, da)?;
        }
        if cx.needs(1) {
            let mut rows = (a.value, dy);
            if b.rank == 2 && a.rank > 2 && !a.trans {
                // One weight for the whole batch: its rows are the rows of one large matrix, so that
                // nothing of the batch's size is made and summed.
                let axis = [("axis", Attribute::Int(a.rank as i64 - 1))];
                rows = (cx.op_with("Flatten", &[a.value], &axis)?, cx.op_with("Flatten", &[dy], &axis)?);
            }
            let db = right_gradient(cx, rows.0, a.trans, b.trans, rows.1, self.alpha)?;
            self.set(cx, 1, b, db)?;
        }
        Ok(())
    }

    /// One operand is a vector, or both are. The gradient of the vector is a product of `dy` as a row
    /// with the other operand; that of the other operand is an outer product.
    fn vector_gradient(&self, cx: &mut GradCx<'_>, [a, b]: [Operand; 2], mut dy: ValueId) -> Result<()> {
        if self.alpha != 1.0 {
            let alpha = cx.scalar_like(dy, self.alpha as f64)?;
            dy = cx.mul(dy, alpha)?;
        }
        let rank = a.rank.max(b.rank) as i64 - 1; // of dy
        let both = a.rank == 1 && b.rank == 1;
        for (i, own, other) in [(0, a, b), (1, b, a)] {
            if !cx.needs(i) {
                continue;
            }
            let d = if both {
                cx.mul(dy, other.value)?
            } else if own.rank == 1 {
                let row = cx.unsqueeze(dy, &[rank - 1])?;
                // row · op(b)ᵀ for a row vector a, row · op(a) for a column vector b.
                let trans = other.trans != (i == 0);
                product(cx, row, false, other.value, trans, 1.0)?
            } else {
                // The axis that `other` is summed with lies last where that is op's order.
                let vector_is_last = own.trans == (i == 1);
                let (dy_axis, vector) =
                    if vector_is_last { (rank, other.value) } else { (rank - 1, cx.unsqueeze(other.value, &[1])?) };
                let dy = cx.unsqueeze(dy, &[dy_axis])?;
                cx.mul(dy, vector)?
            };
            self.set(cx, i, own, d)?;
        }
        Ok(())
    }
}

impl Operator for MatMul {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        let (a, b) = (self.arranged(cx, 0)?, self.arranged(cx, 1)?);
        let (rows, columns) = (a.len().checked_sub(2), b.len().checked_sub(2));
        same_inner(&a[a.len() - 1], &b[columns.unwrap_or(0)], [&a, &b])?;
        let batch = |shape: &[Dim]| shape[..shape.len().saturating_sub(2)].to_vec();
        let mut shape = broadcast(&[batch(&a), batch(&b)])?;
        shape.extend(rows.map(|axis| a[axis].clone()));
        shape.extend(columns.map(|axis| b[axis + 1].clone()));
        cx.set(0, dtype, shape);
        Ok(())
    }

    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let dy = cx.dy(0)?;
        let operands = [self.operand(cx, 0)?, self.operand(cx, 1)?];
        if operands.iter().any(|o| o.rank == 1) {
            self.vector_gradient(cx, operands, dy)
        } else {
            self.matrix_gradient(cx, operands, dy)
        }
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let (mut a, mut b) = (self.view(cx, 0)?, self.view(cx, 1)?);
        let mut out = cx.output(0)?;
        if a.rank() == 1 {
            let row = out.rank() - usize::from(b.rank() > 1);
            (a, out) = (a.unsqueezed(0), out.unsqueezed(row));
        }
        if b.rank() == 1 {
            (b, out) = (b.unsqueezed(1), out.unsqueezed(out.rank()));
        }
        let kernel = Kernel::Gemm(GemmKernel { alpha: self.alpha, beta: 0.0 });
        let [a, b, out] = merged(&a, &b, &out).unwrap_or_else(|| batched(&a, &b, &out));
        cx.push(kernel, vec![a, b], vec![out]);
        Ok(())
    }
}

/// The operands broadcast over the batch axes of the result.
fn batched(a: &View, b: &View, out: &View) -> [View; 3] {
    let batch = &out.shape[..out.rank() - 2];
    let wide = |view: &View| view.broadcast_to(&[batch, &view.shape[view.rank() - 2..]].concat());
    [wide(a), wide(b), out.clone()]
}

/// One product of two matrices where `b` is one matrix for the whole batch and strides let the batch
/// axes of `a` count as rows.
fn merged(a: &View, b: &View, out: &View) -> Option<[View; 3]> {
    let batch = out.rank() - 2;
    if batch == 0 || b.shape[..b.rank() - 2].iter().any(|&n| n != 1) {
        return None;
    }
    let [wide, _, _] = batched(a, b, out);
    let rows = out.shape[..=batch].iter().product();
    let (inner, columns) = (wide.shape[batch + 1], out.shape[batch + 1]);
    let mut matrix = b.clone();
    while matrix.rank() > 2 {
        matrix = matrix.squeezed(0);
    }
    Some([wide.reshaped(&[rows, inner])?, matrix, out.reshaped(&[rows, columns])?])
}

fn transpose(cx: &mut GradCx<'_>, x: ValueId, perm: Vec<usize>) -> Result<ValueId> {
    let perm = perm.into_iter().map(|axis| axis as i64).collect();
    cx.op_with("Transpose", &[x], &[("perm", Attribute::Ints(perm))])
}

/// `alpha · op(a) op(b)`. For two matrices it is a Gemm, from the opset on that needs no bias for it.
fn product(cx: &mut GradCx<'_>, a: ValueId, trans_a: bool, b: ValueId, trans_b: bool, alpha: f32) -> Result<ValueId> {
    let attributes = [
        ("alpha", Attribute::Float(alpha)),
        ("transA", Attribute::Int(trans_a.into())),
        ("transB", Attribute::Int(trans_b.into())),
    ];
    if cx.opset() >= 11 && cx.dims(a)?.len() == 2 && cx.dims(b)?.len() == 2 {
        cx.op_with("Gemm", &[a, b], &attributes)
    } else {
        cx.ms("FusedMatMul", &[a, b], &attributes)
    }
}

/// The gradient of `a` in `y = alpha op(a) op(b)`: `op(a)` has `alpha dy op(b)ᵀ`, so `a` has that or its transpose.
fn left_gradient(
    cx: &mut GradCx<'_>,
    trans_a: bool,
    b: ValueId,
    trans_b: bool,
    dy: ValueId,
    alpha: f32,
) -> Result<ValueId> {
    if trans_a { product(cx, b, trans_b, dy, true, alpha) } else { product(cx, dy, false, b, !trans_b, alpha) }
}

/// The gradient of `b` in `y = alpha op(a) op(b)`: `op(b)` has `alpha op(a)ᵀ dy`, so `b` has that or its transpose.
fn right_gradient(
    cx: &mut GradCx<'_>,
    a: ValueId,
    trans_a: bool,
    trans_b: bool,
    dy: ValueId,
    alpha: f32,
) -> Result<ValueId> {
    if trans_b { product(cx, dy, true, a, trans_a, alpha) } else { product(cx, a, !trans_a, dy, false, alpha) }
}

/// `alpha · op(A) op(B) + beta · C` for matrices `op(A)` `[m, k]` and `op(B)` `[k, n]`; `C`, which may
/// be left out, broadcasts to `[m, n]`.
#[derive(Debug)]
struct Gemm {
    alpha: f32,
    beta: f32,
    trans: [bool; 2],
}

impl Gemm {
    /// Rows and columns of `op` of operand `i`.
    fn matrix(&self, cx: &InferCx<'_>, i: usize) -> Result<[Dim; 2]> {
        let shape = cx.shape(i)?;
        match <[Dim; 2]>::try_from(shape) {
            Ok([rows, columns]) => Ok(if self.trans[i] { [columns, rows] } else { [rows, columns] }),
            Err(shape) => Err(err!(Shape, "input {i} must be a matrix").expected("rank 2").found(show_dims(&shape))),
        }
    }
}

impl Operator for Gemm {
    fn infer(&self, cx: &mut InferCx<'_>) -> Result<()> {
        let dtype = cx.same_dtype(0, 1)?;
        let (a, b) = (self.matrix(cx, 0)?, self.matrix(cx, 1)?);
        same_inner(&a[1], &b[0], [&a, &b])?;
        let [[rows, _], [_, columns]] = [a, b];
        if cx.has(2) {
            cx.same_dtype(0, 2)?;
            let c = cx.shape(2)?;
            let fits = |(c, out): (&Dim, &Dim)| c.is(1) || c.known().is_none() || out.known().is_none() || c == out;
            let out = [rows.clone(), columns.clone()];
            if c.len() > 2 || !c.iter().rev().zip(out.iter().rev()).all(fits) {
                let error = err!(Shape, "input 2, the bias, does not broadcast to the product");
                return Err(error.expected(show_dims(&out)).found(show_dims(&c)));
            }
        }
        cx.set(0, dtype, [rows, columns]);
        Ok(())
    }

    /// dA, dB as of a product; dC = beta dy, summed over the axes along which C was repeated.
    fn gradient(&self, cx: &mut GradCx<'_>) -> Result<()> {
        let (a, b, dy) = (cx.input(0)?, cx.input(1)?, cx.dy(0)?);
        let [trans_a, trans_b] = self.trans;
        if cx.needs(0) {
            let da = left_gradient(cx, trans_a, b, trans_b, dy, self.alpha)?;
            cx.set(0, da);
        }
        if cx.needs(1) {
            let db = right_gradient(cx, a, trans_a, trans_b, dy, self.alpha)?;
            cx.set(1, db);
        }
        if cx.needs(2) && self.beta != 0.0 {
            let mut d = dy;
            if self.beta != 1.0 {
                let beta = cx.scalar_like(dy, self.beta as f64)?;
                d = cx.mul(dy, beta)?;
            }
            cx.set_unbroadcast(2, d)?;
        }
        Ok(())
    }

    fn lower(&self, cx: &mut LowerCx<'_>) -> Result<()> {
        let mut reads = Vec::new();
        for i in [0, 1] {
            let view = cx.input(i)?;
            reads.push(if self.trans[i] { view.permuted(&[1, 0]) } else { view });
        }
        let out = cx.output(0)?;
        let c = cx.input_opt(2)?.filter(|_| self.beta != 0.0);
        let beta = if c.is_some() { self.beta } else { 0.0 };
        if let Some(c) = c {
            if c.shape.iter().rev().zip(out.shape.iter().rev()).any(|(&c, &out)| c != 1 && c != out) {
                bail!(
                    Shape,
                    "input 2, the bias, of shape {} does not broadcast to {}",
                    show_dims(&c.shape),
                    show_dims(&out.shape)
                );
            }
            reads.push(c.broadcast_to(&out.shape));
        }
        cx.push(Kernel::Gemm(GemmKernel { alpha: self.alpha, beta }), reads, vec![out]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Graph, Node, TensorType};
    use crate::ops::testing::Case;
    use crate::tensor::DType;

    fn case(op: &'static str, a: &[usize], b: &[usize]) -> Case {
        Case::op(op).random("a", a, -1.0, 1.0).random("b", b, -1.0, 1.0)
    }

    #[test]
    fn matmul_gradients() {
        let shapes: &[[&[usize]; 2]] = &[
            [&[2, 3], &[3, 4]],
            [&[3], &[3]],
            [&[3], &[3, 4]],
            [&[3], &[2, 3, 4]],
            [&[2, 3], &[3]],
            [&[5, 2, 3], &[3]],
            [&[2, 2, 3], &[3, 4]],
            [&[2, 2, 2, 3], &[3, 2]],
            [&[2, 3], &[4, 3, 2]],
            [&[2, 2, 3], &[2, 3, 2]],
            [&[1, 2, 3], &[4, 3, 2]],
            [&[2, 1, 2, 3], &[4, 3, 2]],
            [&[2, 1, 2, 3], &[1, 2, 3, 1]],
        ];
        for [a, b] in shapes {
            for opset in [10, 21] {
                case("MatMul", a, b).opset(opset).check();
            }
        }
    }

    #[test]
    fn fused_matmul_gradients() {
        let swap = |shape: &[usize], yes: bool| {
            let mut shape = shape.to_vec();
            if let (true, [.., m, n]) = (yes, &mut shape[..]) {
                std::mem::swap(m, n);
            }
            shape
        };
        let shapes: &[[&[usize]; 2]] = &[
            [&[2, 3], &[3, 4]],
            [&[2, 2, 3], &[3, 2]],
            [&[2, 2, 3], &[1, 3, 2]],
            [&[3], &[2, 3, 4]],
            [&[2, 5, 3], &[3]],
        ];
        for [a, b] in shapes {
            for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
                let case = case("FusedMatMul", &swap(a, trans_a), &swap(b, trans_b)).domain(MS);
                let case = case.int("transA", trans_a.into()).int("transB", trans_b.into());
                case.attr("alpha", Attribute::Float(-0.5)).check();
            }
        }
        // Rows before the batch: [m, batch…, k], and columns last.
        let both = case("FusedMatMul", &[4, 2, 3], &[3, 2, 5]).domain(MS).int("transBatchA", 1).int("transBatchB", 1);
        assert_eq!(both.run()[0].shape(), [2, 4, 5]);
        both.check();
        case("FusedMatMul", &[4, 2, 3, 2], &[5, 2, 3, 2])
            .domain(MS)
            .int("transBatchA", 1)
            .int("transBatchB", 1)
            .int("transB", 1)
            .check();
        case("FusedMatMul", &[3, 2, 2, 4], &[2, 2, 3, 5]).domain(MS).int("transBatchA", 1).int("transA", 1).check();
    }

    #[test]
    fn gemm_gradients() {
        for (trans_a, trans_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let a: &[usize] = if trans_a { &[3, 2] } else { &[2, 3] };
            let b: &[usize] = if trans_b { &[4, 3] } else { &[3, 4] };
            for opset in [8, 13] {
                let case =
                    || case("Gemm", a, b).opset(opset).int("transA", trans_a.into()).int("transB", trans_b.into());
                case().check();
                for c in [&[][..], &[1], &[4], &[2, 1], &[1, 4], &[2, 4]] {
                    let case = case().random("c", c, -1.0, 1.0);
                    case.attr("alpha", Attribute::Float(0.5)).attr("beta", Attribute::Float(-2.0)).check();
                }
            }
        }
    }

    #[test]
    fn values() {
        let matmul = |a: &[usize], b: &[usize]| {
            let run = |n: usize| (0..n).map(|i| i as f64).collect::<Vec<_>>();
            Case::op("MatMul").input("a", a, &run(a.iter().product())).input("b", b, &run(b.iter().product()))
        };
        matmul(&[3], &[3]).gives(&[], &[5.0]);
        matmul(&[2, 2], &[2]).gives(&[2], &[1.0, 3.0]);
        matmul(&[2], &[2, 2]).gives(&[2], &[2.0, 3.0]);
        matmul(&[2, 1, 2], &[2, 2]).gives(&[2, 1, 2], &[2.0, 3.0, 6.0, 11.0]);
        matmul(&[1, 2], &[2, 2, 1]).gives(&[2, 1, 1], &[1.0, 3.0]);
        matmul(&[2, 0], &[0, 2]).gives(&[2, 2], &[0.0; 4]);
        matmul(&[0, 2, 3], &[3, 2]).gives(&[0, 2, 2], &[]);
        let ints = Case::op("MatMul").indices("a", &[1, 2], &[2, 3]).indices("b", &[2, 1], &[4, 5]);
        ints.gives(&[1, 1], &[23.0]);
        let gemm = Case::op("Gemm").input("a", &[1, 2], &[1.0, 2.0]).input("b", &[2, 1], &[3.0, 4.0]);
        gemm.input("c", &[], &[5.0]).attr("beta", Attribute::Float(2.0)).gives(&[1, 1], &[21.0]);
        let gemm = Case::op("Gemm").indices("a", &[1, 2], &[1, 2]).indices("b", &[2, 1], &[3, 4]);
        gemm.indices("c", &[1], &[5]).attr("alpha", Attribute::Float(2.0)).gives(&[1, 1], &[27.0]);
        // C is not read where beta is 0, not even a NaN.
        let gemm = Case::op("Gemm").input("a", &[1, 1], &[1.0]).input("b", &[1, 1], &[3.0]);
        gemm.input("c", &[], &[f64::NAN]).attr("beta", Attribute::Float(0.0)).gives(&[1, 1], &[3.0]);
    }

    #[test]
    fn errors() {
        assert!(case("MatMul", &[2, 3], &[2, 3]).fails().contains("expected 3; found 2"));
        assert!(case("MatMul", &[], &[2, 3]).fails().contains("scalar"));
        assert!(case("MatMul", &[2, 2, 3], &[3, 3, 2]).fails().contains("do not broadcast"));
        assert!(case("Gemm", &[2, 2, 3], &[3, 3]).fails().contains("rank 2"));
        assert!(case("Gemm", &[2, 3], &[3, 3]).int("transA", 1).fails().contains("inner sizes"));
        assert!(case("Gemm", &[2, 3], &[3, 4]).random("c", &[3], 0.0, 1.0).fails().contains("bias"));
        assert!(case("Gemm", &[2, 3], &[3, 4]).random("c", &[1, 1, 4], 0.0, 1.0).fails().contains("bias"));
        let mixed = Case::op("MatMul").indices("a", &[1, 1], &[1]).input("b", &[1, 1], &[1.0]);
        assert!(mixed.fails().contains("differ in dtype"));
    }

    /// A batch of unknown size stays a symbol, in the value and in the gradients.
    #[test]
    fn symbolic_batch() {
        let mut graph = Graph::new("symbols", 17);
        let batch = Dim::symbol("batch");
        let x = graph.add_input("x", TensorType::new(DType::F32, [batch.clone(), 5.into(), 3.into()])).unwrap();
        let w = graph.add_input("w", TensorType::known(DType::F32, &[3, 4])).unwrap();
        let y = graph.add_value("y", None).unwrap();
        graph.nodes.push(Node {
            name: "matmul".into(),
            domain: String::new(),
            op_type: "MatMul".into(),
            inputs: vec![Some(x), Some(w)],
            outputs: vec![Some(y)],
            attributes: Default::default(),
        });
        let mut facts = infer_graph(&mut graph).unwrap();
        assert_eq!(facts.ty(y).unwrap().shape, Some(vec![batch.clone(), 5.into(), 4.into()]));
        let builder = Builder { graph: &mut graph, facts: &mut facts, stem: "grad".into() };
        let op = resolve(builder.graph, &builder.graph.nodes[0]).unwrap();
        let mut cx = GradCx::new(builder, 0, vec![Some(y)], vec![true, true]);
        op.gradient(&mut cx).unwrap();
        let dxs: Vec<_> = cx.finish().into_iter().flatten().collect();
        assert_eq!(facts.ty(dxs[0]).unwrap().shape, Some(vec![batch, 5.into(), 3.into()]));
        assert_eq!(facts.ty(dxs[1]).unwrap().shape, Some(vec![3.into(), 4.into()]));
        let ops: Vec<_> = graph.nodes.iter().map(|n| &*n.op_type).collect();
        assert_eq!(ops, ["MatMul", "FusedMatMul", "Flatten", "Flatten", "Gemm"]);
    }
}
