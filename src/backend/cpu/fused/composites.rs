//! Patterns of nodes that are one instruction: each saves a walk over a tile.

use super::nodes::{Class, Graph, NONE, Node, Op};
use crate::kernel::{Binary, ReduceOp, Unary};

impl Graph {
    /// Uses of each node by nodes that are themselves used, and as outputs.
    fn uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.nodes.len()];
        for &o in &self.outputs {
            uses[o as usize] += 1;
        }
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if uses[i] > 0 {
                for &a in node.args.iter().filter(|&&a| a != NONE) {
                    uses[a as usize] += 1;
                }
            }
        }
        uses
    }

    /// Replaces a node and an operand that only it uses by one composite, operands first. A
    /// composite never draws work from a lower level to a higher one.
    pub(super) fn fuse(&mut self) {
        for i in 0..self.nodes.len() {
            // Several rounds at one node: a clamp may take in an addition that came before.
            while let Some(node) = self.composite(i, &self.uses()) {
                self.nodes[i] = node;
            }
        }
    }

    fn composite(&self, i: usize, uses: &[u32]) -> Option<Node> {
        let node = self.nodes[i];
        if uses[i] == 0 {
            return None;
        }
        let [a, b, c, ..] = node.args;
        // The operand, if it is an `op` that only this node uses, at this level.
        let inner = |id: u32, op: Op| {
            let n = &self.nodes[*Some(&id).filter(|id| **id != NONE)? as usize];
            (n.op == op && uses[id as usize] == 1 && n.level == node.level).then_some(n.args)
        };
        const ADD: Op = Op::F2(Binary::Add);
        const SUB: Op = Op::F2(Binary::Sub);
        const MUL: Op = Op::F2(Binary::Mul);
        let make = |op, operands: &[u32]| {
            let mut args = [NONE; 6];
            args[..operands.len()].copy_from_slice(operands);
            Some(Node { op, args, ..node })
        };
        match node.op {
            ADD => {
                if let (Some([x, y, ..]), Some([z, w, ..])) = (inner(a, MUL), inner(b, MUL)) {
                    return make(Op::MulMulAdd, &[x, y, z, w]);
                }
                if let Some([x, y, ..]) = inner(a, MUL) {
                    return make(Op::MulAdd, &[x, y, b]);
                }
                if let Some([x, y, ..]) = inner(b, MUL) {
                    return make(Op::MulAdd, &[x, y, a]);
                }
                if let Some([x, y, z, ..]) = inner(a, Op::SubMul) {
                    return make(Op::SubMulAdd, &[x, y, z, b]);
                }
                let [x, y, z, ..] = inner(b, Op::SubMul)?;
                make(Op::SubMulAdd, &[x, y, z, a])
            }
            SUB => {
                if let Some([x, y, ..]) = inner(a, MUL) {
                    return make(Op::MulSub, &[x, y, b]);
                }
                if let Some([quotient, d, ..]) = inner(b, Op::F2(Binary::Div))
                    && let Some([x, y, ..]) = inner(quotient, MUL)
                {
                    return make(Op::SubMulDiv, &[a, x, y, d]);
                }
                let [x, y, ..] = inner(b, MUL)?;
                make(Op::NegMulAdd, &[x, y, a])
            }
            MUL => {
                if let Some([x, y, ..]) = inner(a, SUB) {
                    return make(Op::SubMul, &[x, y, b]);
                }
                if let Some([x, y, ..]) = inner(b, SUB) {
                    return make(Op::SubMul, &[x, y, a]);
                }
                // The gradients of Relu and Clip: times a condition as a number.
                let (value, [mask, ..]) = match inner(b, Op::BToF) {
                    Some(args) => (a, args),
                    None => (b, inner(a, Op::BToF)?),
                };
                if let Some([x, y, ..]) = inner(mask, Op::FCompare(Binary::Less)) {
                    return make(Op::MulIfLess, &[value, x, y]);
                }
                if let Some([x, y, ..]) = inner(mask, Op::FCompare(Binary::LessOrEqual)) {
                    return make(Op::MulIfLessOrEqual, &[value, x, y]);
                }
                let [first, second, ..] = inner(mask, Op::B2(Binary::And))?;
                let [x, y, ..] = inner(first, Op::FCompare(Binary::LessOrEqual))?;
                let [z, w, ..] = inner(second, Op::FCompare(Binary::LessOrEqual))?;
                make(Op::MulIfBoth, &[value, x, y, z, w])
            }
            // The gradient of a normalisation: ((a - b) - (c - d) * e) * f.
            Op::SubMul => {
                let ([x, y, ..], [z, w, v, ..]) = (inner(a, SUB)?, inner(b, Op::SubMul)?);
                make(Op::NormGrad, &[x, y, z, w, v, c])
            }
            Op::MulMulAdd => {
                let [x, y, ..] = inner(c, MUL)?;
                if x == y { make(Op::MulAddSquare, &[a, b, x, node.args[3]]) } else { None }
            }
            Op::MulAdd => {
                let root = Op::F1(Unary::Sqrt);
                if let Some([x, ..]) = inner(a, root) {
                    return make(Op::SqrtMulAdd, &[x, b, c]);
                }
                let [x, ..] = inner(b, root)?;
                make(Op::SqrtMulAdd, &[x, a, c])
            }
            Op::F2(Binary::Div) => {
                let [x, y, ..] = inner(b, ADD)?;
                if let Some([x, ..]) = inner(x, Op::F1(Unary::Sqrt)) {
                    return make(Op::DivSqrtAdd, &[a, x, y]);
                }
                let [y, ..] = inner(y, Op::F1(Unary::Sqrt))?;
                make(Op::DivSqrtAdd, &[a, y, x])
            }
            Op::F1(Unary::Exp) => {
                let [x, y, ..] = inner(a, SUB)?;
                make(Op::ExpSub, &[x, y])
            }
            Op::F1(Unary::Erf) => {
                let [x, y, ..] = inner(a, MUL)?;
                make(Op::ErfMul, &[x, y])
            }
            // min(max(x, low), high) and max(min(x, high), low) agree where low <= high.
            Op::MinNumber => {
                let [x, low, ..] = inner(a, Op::MaxNumber)?;
                if self.number(low)? <= self.number(b)? { make(Op::Clamp, &[x, low, b]) } else { None }
            }
            Op::MaxNumber => {
                let [x, high, ..] = inner(a, Op::MinNumber)?;
                if self.number(b)? <= self.number(high)? { make(Op::Clamp, &[x, b, high]) } else { None }
            }
            Op::Clamp => {
                if let Some([x, y, z, ..]) = inner(a, Op::MulAdd) {
                    return make(Op::MulAddClamp, &[x, y, z, b, c]);
                }
                let [x, y, ..] = inner(a, ADD)?;
                make(Op::AddClamp, &[x, y, b, c])
            }
            Op::FSelect => {
                if let Some([x, y, ..]) = inner(a, Op::FCompare(Binary::Less)) {
                    return make(Op::SelectLess, &[x, y, b, c]);
                }
                let [x, y, ..] = inner(a, Op::FCompare(Binary::LessOrEqual))?;
                make(Op::SelectLessOrEqual, &[x, y, b, c])
            }
            Op::Reduce(ReduceOp::Sum) if node.class == Class::F => {
                let n = &self.nodes[a as usize];
                let [x, y, ..] = n.args;
                if n.op == MUL && uses[a as usize] == 1 { make(Op::ReduceDot, &[x, y]) } else { None }
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::FusedOp;
    use super::super::testing::Case;
    use super::*;
    use crate::kernel::{Binary::*, ExprId, Program, Unary::*};
    use crate::tensor::DType::F32;

    /// Common patterns become one instruction each.
    #[test]
    fn composites_are_found() {
        type Build = fn(&mut Program, [ExprId; 4]) -> ExprId;
        let cases: [(Op, Build); 12] = [
            (Op::NormGrad, |p, [a, b, c, d]| {
                let (x, y) = (p.sub(a, b), p.sub(c, d));
                let y = p.mul(y, a);
                let x = p.sub(x, y);
                p.mul(b, x)
            }),
            (Op::MulAddSquare, |p, [a, b, c, d]| {
                let (x, square) = (p.mul(a, b), p.mul(c, c));
                let y = p.mul(square, d);
                p.add(x, y)
            }),
            (Op::SqrtMulAdd, |p, [a, b, c, _]| {
                let root = p.unary(Sqrt, a);
                let x = p.mul(root, b);
                p.add(x, c)
            }),
            (Op::SubMulDiv, |p, [a, b, c, d]| {
                let x = p.mul(b, c);
                let x = p.div(x, d);
                p.sub(a, x)
            }),
            (Op::SubMulAdd, |p, [a, b, c, d]| {
                let x = p.sub(a, b);
                let x = p.mul(x, c);
                p.add(x, d)
            }),
            (Op::MulMulAdd, |p, [a, b, c, d]| {
                let (x, y) = (p.mul(a, b), p.mul(c, d));
                p.add(x, y)
            }),
            (Op::MulAddClamp, |p, [a, b, c, _]| {
                let x = p.mul(a, b);
                let x = p.add(x, c);
                let (low, high) = (p.constant(0.0, F32), p.constant(6.0, F32));
                let x = p.binary(Max, x, low);
                p.binary(Min, x, high)
            }),
            (Op::MulIfLess, |p, [a, b, ..]| {
                let zero = p.constant(0.0, F32);
                let mask = p.binary(Less, zero, a);
                let mask = p.cast(mask, F32);
                p.mul(b, mask)
            }),
            (Op::MulIfBoth, |p, [a, b, c, d]| {
                let (x, y) = (p.binary(LessOrEqual, b, a), p.binary(LessOrEqual, a, c));
                let mask = p.binary(And, x, y);
                let mask = p.cast(mask, F32);
                p.mul(mask, d)
            }),
            (Op::SelectLess, |p, [a, b, c, d]| {
                let x = p.binary(Less, a, b);
                p.select(x, c, d)
            }),
            (Op::DivSqrtAdd, |p, [a, b, c, _]| {
                let x = p.unary(Sqrt, b);
                let x = p.add(x, c);
                p.div(a, x)
            }),
            (Op::ExpSub, |p, [a, b, ..]| {
                let x = p.sub(a, b);
                p.unary(Exp, x)
            }),
        ];
        for (op, build) in cases {
            let mut c = Case::new(&[100], 0);
            let reads = [(); 4].map(|_| c.read(F32, &[]));
            let result = build(&mut c.program, reads);
            c.program.output(result);
            let write = c.write(F32, false);
            let compiled = FusedOp::compile(&c.fused(), &c.reads, &[write]).unwrap();
            let ops: Vec<Op> = compiled.machine.code.passes[0].tile.iter().map(|i| i.op).collect();
            assert_eq!(ops, [op]);
            c.finish(&[false]);
        }
    }
}
