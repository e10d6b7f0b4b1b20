//! Elementwise work as data: a DAG of scalar expressions over broadcast operands. The CPU runs it
//! a tile at a time, a GPU backend prints it as shader text, the reference walks it.

use crate::tensor::DType;
use std::collections::HashMap;

/// A scalar constant, exact for every dtype.
#[derive(Clone, Copy, Debug)]
pub enum Scalar {
    /// A floating-point value.
    Float(f64),
    /// An integer or bool (0, 1) value; `u64` by its bits.
    Int(i64),
}

impl Scalar {
    /// The value as `f64`.
    pub fn as_f64(self) -> f64 {
        match self {
            Scalar::Float(x) => x,
            Scalar::Int(i) => i as f64,
        }
    }

    /// Bits that tell two constants apart (so that NaN equals itself and 0 differs from -0).
    fn bits(self) -> (bool, u64) {
        match self {
            Scalar::Float(x) => (true, x.to_bits()),
            Scalar::Int(i) => (false, i as u64),
        }
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.bits() == other.bits()
    }
}
impl Eq for Scalar {}
impl std::hash::Hash for Scalar {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.bits().hash(state);
    }
}

/// Functions of one operand. Those from `Exp` on are defined for floats only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "ONNX's names are the documentation")]
pub enum Unary {
    /// Logical not, on bool.
    Not,
    Neg,
    Abs,
    /// -1, 0 or 1; NaN stays NaN.
    Sign,
    Exp,
    Log,
    Sqrt,
    Reciprocal,
    Erf,
    Tanh,
    /// 1 / (1 + exp(-x)).
    Sigmoid,
}

/// Functions of two operands of one dtype.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "ONNX's names are the documentation")]
pub enum Binary {
    Add,
    Sub,
    Mul,
    /// For integers: rounds towards zero; by zero gives 0.
    Div,
    Pow,
    /// NaN if either operand is.
    Min,
    /// NaN if either operand is.
    Max,
    /// Logical, on bool.
    And,
    /// Logical, on bool.
    Or,
    /// These give bool.
    Equal,
    Less,
    LessOrEqual,
}

impl Binary {
    /// Does it give bool whatever its operands are?
    pub fn compares(self) -> bool {
        matches!(self, Binary::Equal | Binary::Less | Binary::LessOrEqual)
    }
}

/// How many values become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "ONNX's names are the documentation")]
pub enum ReduceOp {
    Sum,
    /// NaN if any value is.
    Max,
    /// NaN if any value is.
    Min,
}

/// An expression of a [`Program`], by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExprId(pub u32);

impl ExprId {
    /// As an index into the program's expressions.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One expression. Operands stand before it in the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Expr {
    /// The element of the kernel's read `k` at this coordinate.
    Input(usize),
    /// The same value everywhere.
    Const(Scalar),
    /// A function of one operand.
    Unary(Unary, ExprId),
    /// A function of two operands of one dtype.
    Binary(Binary, ExprId, ExprId),
    /// `Select(c, a, b)`: `a` where the bool `c` holds, else `b`.
    Select(ExprId, ExprId, ExprId),
    /// Conversion to this expression's dtype as ONNX's Cast does: float to integer truncates
    /// and saturates, to bool is `!= 0`.
    Cast(ExprId),
    /// Over the row that this coordinate lies in; the same value along the whole row. In
    /// [`Fused`](super::Fused) kernels only.
    RowReduce(ReduceOp, ExprId),
    /// Index along an axis of the kernel's shape, as int64.
    Coordinate(usize),
    /// Uniform in [0, 1), f32: Philox keyed by the run's seed, counted by this stream, the run's
    /// step and the row-major position in the kernel's shape.
    Random(u32),
}

/// An expression and its dtype. Floats of 16 bits are computed in f32 and rounded where they are
/// stored, and by a Cast from them or to them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Typed {
    /// What it computes.
    pub expr: Expr,
    /// Of which dtype.
    pub dtype: DType,
}

/// A DAG of expressions in topological order, without duplicates, and its results.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Program {
    /// The expressions; operands come first.
    pub exprs: Vec<Typed>,
    /// The results, in the order of the kernel's writes.
    pub outputs: Vec<ExprId>,
    known: HashMap<Typed, ExprId>,
}

impl Program {
    /// An empty program.
    pub fn new() -> Self {
        Self::default()
    }

    /// The dtype of an expression.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.exprs[id.index()].dtype
    }

    /// Adds an expression, or finds it if it is there.
    pub fn push(&mut self, expr: Expr, dtype: DType) -> ExprId {
        let typed = Typed { expr, dtype };
        *self.known.entry(typed).or_insert_with(|| {
            self.exprs.push(typed);
            ExprId(self.exprs.len() as u32 - 1)
        })
    }

    /// The kernel's read `k`.
    pub fn input(&mut self, k: usize, dtype: DType) -> ExprId {
        self.push(Expr::Input(k), dtype)
    }

    /// A constant of `dtype`; rounded to it when it is computed.
    pub fn constant(&mut self, value: f64, dtype: DType) -> ExprId {
        let scalar = if dtype.is_float() { Scalar::Float(value) } else { Scalar::Int(value as i64) };
        self.push(Expr::Const(scalar), dtype)
    }

    /// A constant of the dtype of `like`.
    pub fn constant_like(&mut self, value: f64, like: ExprId) -> ExprId {
        self.constant(value, self.dtype(like))
    }

    /// `op(a)`.
    pub fn unary(&mut self, op: Unary, a: ExprId) -> ExprId {
        self.push(Expr::Unary(op, a), self.dtype(a))
    }

    /// `op(a, b)`; the operands have one dtype.
    pub fn binary(&mut self, op: Binary, a: ExprId, b: ExprId) -> ExprId {
        debug_assert_eq!(self.dtype(a), self.dtype(b), "{op:?}");
        let dtype = if op.compares() { DType::Bool } else { self.dtype(a) };
        self.push(Expr::Binary(op, a, b), dtype)
    }

    /// `c ? a : b`.
    pub fn select(&mut self, c: ExprId, a: ExprId, b: ExprId) -> ExprId {
        debug_assert_eq!((self.dtype(c), self.dtype(a)), (DType::Bool, self.dtype(b)));
        self.push(Expr::Select(c, a, b), self.dtype(a))
    }

    /// `a` as `dtype`.
    pub fn cast(&mut self, a: ExprId, dtype: DType) -> ExprId {
        if self.dtype(a) == dtype { a } else { self.push(Expr::Cast(a), dtype) }
    }

    /// Over the row.
    pub fn row(&mut self, op: ReduceOp, a: ExprId) -> ExprId {
        self.push(Expr::RowReduce(op, a), self.dtype(a))
    }

    /// Index along `axis`.
    pub fn coordinate(&mut self, axis: usize) -> ExprId {
        self.push(Expr::Coordinate(axis), DType::I64)
    }

    /// `a + b`.
    pub fn add(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(Binary::Add, a, b)
    }

    /// `a - b`.
    pub fn sub(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(Binary::Sub, a, b)
    }

    /// `a * b`.
    pub fn mul(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(Binary::Mul, a, b)
    }

    /// `a / b`.
    pub fn div(&mut self, a: ExprId, b: ExprId) -> ExprId {
        self.binary(Binary::Div, a, b)
    }

    /// `a * c` for a number `c`.
    pub fn scale(&mut self, a: ExprId, c: f64) -> ExprId {
        let c = self.constant_like(c, a);
        self.mul(a, c)
    }

    /// Declares a result.
    pub fn output(&mut self, id: ExprId) {
        self.outputs.push(id);
    }

    /// The operands of an expression.
    pub fn operands(expr: Expr) -> impl Iterator<Item = ExprId> {
        let (a, b, c) = match expr {
            Expr::Input(_) | Expr::Const(_) | Expr::Coordinate(_) | Expr::Random(_) => (None, None, None),
            Expr::Unary(_, a) | Expr::Cast(a) | Expr::RowReduce(_, a) => (Some(a), None, None),
            Expr::Binary(_, a, b) => (Some(a), Some(b), None),
            Expr::Select(c, a, b) => (Some(c), Some(a), Some(b)),
        };
        [a, b, c].into_iter().flatten()
    }

    /// Copies `other`'s expressions into this program, reading `input(k)` for its input `k`.
    /// Gives the new ids of its expressions.
    pub fn append(&mut self, other: &Program, mut input: impl FnMut(&mut Program, usize) -> ExprId) -> Vec<ExprId> {
        let mut ids: Vec<ExprId> = Vec::with_capacity(other.exprs.len());
        for typed in &other.exprs {
            let of = |id: ExprId| ids[id.index()];
            let expr = match typed.expr {
                Expr::Input(k) => {
                    let id = input(self, k);
                    ids.push(id);
                    continue;
                }
                same @ (Expr::Const(_) | Expr::Coordinate(_) | Expr::Random(_)) => same,
                Expr::Unary(op, a) => Expr::Unary(op, of(a)),
                Expr::Binary(op, a, b) => Expr::Binary(op, of(a), of(b)),
                Expr::Select(c, a, b) => Expr::Select(of(c), of(a), of(b)),
                Expr::Cast(a) => Expr::Cast(of(a)),
                Expr::RowReduce(op, a) => Expr::RowReduce(op, of(a)),
            };
            let id = self.push(expr, typed.dtype);
            ids.push(id);
        }
        ids
    }

    /// Does any expression reduce over rows?
    pub fn has_row_reduce(&self) -> bool {
        self.exprs.iter().any(|t| matches!(t.expr, Expr::RowReduce(..)))
    }
}

impl Program {
    /// How many expressions compute something.
    pub fn arithmetic(&self) -> usize {
        self.exprs.iter().filter(|t| !matches!(t.expr, Expr::Input(_) | Expr::Const(_) | Expr::Coordinate(_))).count()
    }

    /// The program without expressions that no output needs, and which of the old inputs the new
    /// ones are.
    pub fn pruned(&self) -> (Program, Vec<usize>) {
        let mut needed = vec![false; self.exprs.len()];
        for id in &self.outputs {
            needed[id.index()] = true;
        }
        for i in (0..self.exprs.len()).rev() {
            if needed[i] {
                for operand in Self::operands(self.exprs[i].expr) {
                    needed[operand.index()] = true;
                }
            }
        }
        let mut kept = Program::new();
        let mut inputs: Vec<usize> = Vec::new();
        let mut ids: Vec<ExprId> = Vec::with_capacity(self.exprs.len());
        for (typed, needed) in self.exprs.iter().zip(needed) {
            let of = |id: ExprId| ids[id.index()];
            let expr = match typed.expr {
                _ if !needed => {
                    ids.push(ExprId(u32::MAX));
                    continue;
                }
                Expr::Input(k) => {
                    inputs.push(k);
                    Expr::Input(inputs.len() - 1)
                }
                same @ (Expr::Const(_) | Expr::Coordinate(_) | Expr::Random(_)) => same,
                Expr::Unary(op, a) => Expr::Unary(op, of(a)),
                Expr::Binary(op, a, b) => Expr::Binary(op, of(a), of(b)),
                Expr::Select(c, a, b) => Expr::Select(of(c), of(a), of(b)),
                Expr::Cast(a) => Expr::Cast(of(a)),
                Expr::RowReduce(op, a) => Expr::RowReduce(op, of(a)),
            };
            ids.push(kept.push(expr, typed.dtype));
        }
        kept.outputs = self.outputs.iter().map(|id| ids[id.index()]).collect();
        (kept, inputs)
    }
}

/// `Mul(x0, 2)`: the outputs, written out.
impl std::fmt::Display for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (i, &id) in self.outputs.iter().enumerate() {
            if i > 0 {
                f.write_str("; ")?;
            }
            self.show(id, f, 0)?;
        }
        Ok(())
    }
}

impl Program {
    fn show(&self, id: ExprId, f: &mut std::fmt::Formatter<'_>, depth: usize) -> std::fmt::Result {
        // A DAG written as a tree can be long: what lies deep is named by its number.
        if depth > 6 {
            return write!(f, "e{}", id.0);
        }
        let typed = self.exprs[id.index()];
        match typed.expr {
            Expr::Input(k) => return write!(f, "x{k}"),
            Expr::Const(Scalar::Float(x)) => return write!(f, "{x}"),
            Expr::Const(Scalar::Int(i)) => return write!(f, "{i}"),
            Expr::Coordinate(axis) => return write!(f, "i{axis}"),
            Expr::Random(stream) => return write!(f, "random{stream}"),
            Expr::Unary(op, _) => write!(f, "{op:?}")?,
            Expr::Binary(op, ..) => write!(f, "{op:?}")?,
            Expr::Select(..) => f.write_str("Select")?,
            Expr::Cast(_) => write!(f, "{}", typed.dtype)?,
            Expr::RowReduce(op, _) => write!(f, "Row{op:?}")?,
        }
        f.write_str("(")?;
        for (i, operand) in Self::operands(typed.expr).enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            self.show(operand, f, depth + 1)?;
        }
        f.write_str(")")
    }
}
