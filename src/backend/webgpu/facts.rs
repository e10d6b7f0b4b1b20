//! What is known of a program over rows before it is printed.

use crate::kernel::{Expr, ExprId, Program, View};

/// By expression.
pub(super) struct Facts<'p> {
    program: &'p Program,
    /// Does an output depend on it?
    needed: Vec<bool>,
    /// Is it the same along a row?
    narrow: Vec<bool>,
    /// How many passes over the row come before it is known; for a reduction, which pass computes it, from 1.
    level: Vec<usize>,
    /// How many passes reduce.
    pub(super) levels: usize,
}

impl<'p> Facts<'p> {
    /// Of a program that reads `reads`, views of `shape`, of which the axes `row` form a row.
    pub(super) fn new(program: &'p Program, reads: &[View], shape: &[usize], row: &[usize]) -> Self {
        let count = program.exprs.len();
        let mut needed = vec![false; count];
        program.outputs.iter().for_each(|id| needed[id.index()] = true);
        for at in (0..count).rev() {
            if needed[at] {
                Program::operands(program.exprs[at].expr).for_each(|id| needed[id.index()] = true);
            }
        }
        let still = |strides: &[isize]| row.iter().all(|&a| strides[a] == 0 || shape[a] == 1);
        let (mut narrow, mut level) = (vec![false; count], vec![0; count]);
        for (at, typed) in program.exprs.iter().enumerate() {
            let below = || Program::operands(typed.expr).map(ExprId::index);
            level[at] = below().map(|id| level[id]).max().unwrap_or(0);
            narrow[at] = match typed.expr {
                Expr::Input(k) => still(&reads[k].strides),
                Expr::Const(_) => true,
                Expr::Unary(..) | Expr::Binary(..) | Expr::Select(..) | Expr::Cast(_) => below().all(|id| narrow[id]),
                Expr::RowReduce(..) => {
                    level[at] += 1;
                    true
                }
                Expr::Coordinate(axis) => !row.contains(&axis) || shape[axis] == 1,
                Expr::Random(_) => row.iter().all(|&a| shape[a] == 1),
            };
        }
        let levels = (0..count).filter(|&at| needed[at]).map(|at| level[at]).max().unwrap_or(0);
        Self { program, needed, narrow, level, levels }
    }

    /// The expressions that are needed.
    pub(super) fn needed(&self) -> impl Iterator<Item = ExprId> {
        (0..self.needed.len()).filter(|&at| self.needed[at]).map(|at| ExprId(at as u32))
    }

    /// An expression.
    pub(super) fn expr(&self, id: ExprId) -> Expr {
        self.program.exprs[id.index()].expr
    }

    /// Is it the same along a row?
    pub(super) fn is_narrow(&self, id: ExprId) -> bool {
        self.narrow[id.index()]
    }

    /// The reductions that a pass computes.
    pub(super) fn reductions(&self, level: usize) -> Vec<ExprId> {
        let of_pass = |id: &ExprId| matches!(self.expr(*id), Expr::RowReduce(..)) && self.level[id.index()] == level;
        self.needed().filter(of_pass).collect()
    }

    /// Those of `wanted` and what they need that are the same along a row, as far up as they are.
    pub(super) fn narrow_under(&self, wanted: &[ExprId]) -> Vec<ExprId> {
        self.under(wanted, &self.narrow)
    }

    /// Those of `wanted` and what they need that `chosen` holds for, as far up as it does.
    pub(super) fn under(&self, wanted: &[ExprId], chosen: &[bool]) -> Vec<ExprId> {
        let mut seen = vec![false; self.needed.len()];
        let mut stack = wanted.to_vec();
        let mut found = Vec::new();
        while let Some(id) = stack.pop() {
            if !std::mem::replace(&mut seen[id.index()], true) {
                match chosen[id.index()] {
                    true => found.push(id),
                    false => stack.extend(Program::operands(self.expr(id))),
                }
            }
        }
        found
    }

    /// Which expressions hang on nothing but inputs and places that `alike` holds for, and on what is the same along a row.
    pub(super) fn alike(&self, alike: impl Fn(Expr) -> bool) -> Vec<bool> {
        let mut found = vec![false; self.needed.len()];
        for id in self.needed() {
            let leaf = matches!(self.expr(id), Expr::Input(_) | Expr::Coordinate(_) | Expr::Random(_));
            let below = || Program::operands(self.expr(id)).all(|operand| found[operand.index()]);
            found[id.index()] = self.is_narrow(id) || if leaf { alike(self.expr(id)) } else { below() };
        }
        found
    }
}
