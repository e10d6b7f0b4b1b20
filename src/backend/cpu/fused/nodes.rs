//! From a program to instructions: classes of values, how often each must be computed, and
//! composites for patterns that are common.

use crate::kernel::reference::round;
use crate::kernel::{Binary, Expr, ExprId, Program, ReduceOp, Scalar, Unary};
use crate::tensor::DType;

/// How a value is held in a tile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// f32; serves float32, float16 and bfloat16.
    F,
    /// i64; serves every integer but uint64.
    I,
    /// u8, 0 or 1; serves bool.
    B,
}

impl Class {
    /// The class of a dtype, if it has one.
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 | DType::F16 | DType::BF16 => Some(Class::F),
            DType::Bool => Some(Class::B),
            DType::F64 | DType::U64 => None,
            DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::I32 | DType::I64 | DType::U32 => Some(Class::I),
        }
    }

    /// Bytes per element.
    pub(crate) fn size(self) -> usize {
        match self {
            Class::F => 4,
            Class::I => 8,
            Class::B => 1,
        }
    }

    /// Are elements of `dtype` in memory just as they are in a tile?
    pub(crate) fn native(dtype: DType) -> bool {
        matches!(dtype, DType::F32 | DType::I64 | DType::Bool)
    }
}

/// What an instruction computes, elementwise unless it says otherwise. Classes of operands are
/// part of the name where an operation has several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Op {
    /// Bits of a constant of the node's class.
    Const(u64),
    /// Read `k`, converted or gathered.
    Load(usize),
    /// Index along an axis: `position / stride % size`, position counted in rows at row level.
    Coordinate {
        stride: usize,
        size: usize,
        kept: u8,
    },
    Random(u32),
    F1(Unary),
    F2(Binary),
    FCompare(Binary),
    FSelect,
    /// `a * b + c`
    MulAdd,
    /// `a * b - c`
    MulSub,
    /// `c - a * b`
    NegMulAdd,
    /// `(a - b) * c`
    SubMul,
    /// `a * b + c * c * d`
    MulAddSquare,
    /// `sqrt(a) * b + c`
    SqrtMulAdd,
    /// `a - b * c / d`
    SubMulDiv,
    /// `((a - b) - (c - d) * e) * f`
    NormGrad,
    /// `(a - b) * c + d`
    SubMulAdd,
    /// `a` times 1 where `b < c`, else times 0
    MulIfLess,
    /// `a` times 1 where `b <= c`, else times 0
    MulIfLessOrEqual,
    /// `a` times 1 where `b <= c` and `d <= e`, else times 0
    MulIfBoth,
    /// `a * b + c * d`
    MulMulAdd,
    /// `a / (sqrt(b) + c)`
    DivSqrtAdd,
    /// `exp(a - b)`
    ExpSub,
    /// `erf(a * b)`
    ErfMul,
    /// The lesser of `a` and the number `b`.
    MinNumber,
    /// The greater of `a` and the number `b`.
    MaxNumber,
    /// `a` between the numbers `b` and `c`.
    Clamp,
    /// `a + b` between the numbers `c` and `d`.
    AddClamp,
    /// `a * b + c` between the numbers `d` and `e`.
    MulAddClamp,
    /// `a < b ? c : d`
    SelectLess,
    /// `a <= b ? c : d`
    SelectLessOrEqual,
    I1(Unary),
    I2(Binary),
    ICompare(Binary),
    ISelect,
    /// To a narrower integer and back.
    Wrap(DType),
    BNot,
    B2(Binary),
    BSelect,
    /// f32 to an integer dtype, saturating.
    FToI(DType),
    FToB,
    /// Rounded to f16 or bf16.
    FRound(DType),
    IToF,
    IToB,
    BToF,
    BToI,
    /// A row value along its row.
    Expand,
    /// A copy of a tile.
    Copy,
    /// Over the row.
    Reduce(ReduceOp),
    /// Over the row, of `a * b`.
    ReduceDot,
    /// To access `k`.
    Store(usize),
    /// Adds to what the register holds (or keeps the greater, the lesser).
    Accumulate(ReduceOp),
    /// Adds `a * b` to what the register holds.
    AccumulateDot,
}

/// Of no operand.
pub(crate) const NONE: u32 = u32::MAX;

/// A value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node {
    pub(crate) op: Op,
    pub(crate) args: [u32; 6],
    pub(crate) class: Class,
    /// 0: one number, 1: one per row, 2: one per element.
    pub(crate) level: u8,
    /// Row reductions on the longest way to it.
    pub(crate) depth: u8,
}

/// What the builder must know about the reads and the space.
pub(crate) struct Shapes<'a> {
    /// Level of each read.
    pub(crate) levels: &'a [u8],
    /// The kernel's shape before axes were merged.
    pub(crate) shape: &'a [usize],
    /// Elements of a row.
    pub(crate) row_len: usize,
}

/// The nodes of a program, operands first, and its results.
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    pub(crate) outputs: Vec<u32>,
    /// A node that is needed for what it leaves in its register.
    pub(crate) sink: Option<u32>,
}

impl Graph {
    /// Translates what the outputs need, or `None` if a dtype has no class or an operation none for it.
    pub(crate) fn build(program: &Program, shapes: &Shapes) -> Option<Self> {
        let mut needed = vec![false; program.exprs.len()];
        for id in &program.outputs {
            needed[id.index()] = true;
        }
        for i in (0..program.exprs.len()).rev() {
            if needed[i] {
                Program::operands(program.exprs[i].expr).for_each(|o| needed[o.index()] = true);
            }
        }
        let mut graph = Self { nodes: Vec::new(), outputs: Vec::new(), sink: None };
        let mut ids = vec![NONE; program.exprs.len()];
        for i in 0..program.exprs.len() {
            if needed[i] {
                ids[i] = graph.translate(program, ExprId(i as u32), &ids, shapes)?;
            }
        }
        graph.outputs = program.outputs.iter().map(|o| ids[o.index()]).collect();
        graph.fuse();
        Some(graph)
    }

    /// Makes the reduction of `value` over all tiles the only thing that the program does.
    pub(crate) fn accumulate(&mut self, op: ReduceOp, value: u32) {
        let node = self.nodes[value as usize];
        let dot = op == ReduceOp::Sum && node.op == Op::F2(Binary::Mul) && node.level == 2;
        let id = match dot {
            true => self.push(Op::AccumulateDot, Class::F, &node.args[..2]),
            false => self.push(Op::Accumulate(op), Class::F, &[value]),
        };
        self.nodes[id as usize].level = 2;
        self.sink = Some(id);
    }

    pub(crate) fn push(&mut self, op: Op, class: Class, args: &[u32]) -> u32 {
        let mut node = Node { op, args: [NONE; 6], class, level: 0, depth: 0 };
        for (slot, &a) in node.args.iter_mut().zip(args) {
            *slot = a;
            node.level = node.level.max(self.nodes[a as usize].level);
            node.depth = node.depth.max(self.nodes[a as usize].depth);
        }
        self.nodes.push(node);
        self.nodes.len() as u32 - 1
    }

    fn constant(&mut self, value: Scalar, dtype: DType) -> Option<u32> {
        let class = Class::of(dtype)?;
        let bits = match class {
            Class::F => (round(value.as_f64(), dtype) as f32).to_bits() as u64,
            Class::I => {
                let i = match value {
                    Scalar::Int(i) => i,
                    Scalar::Float(x) => x as i64,
                };
                wrap(i, dtype) as u64
            }
            Class::B => (value.as_f64() != 0.0) as u64,
        };
        Some(self.push(Op::Const(bits), class, &[]))
    }

    fn translate(&mut self, program: &Program, id: ExprId, ids: &[u32], shapes: &Shapes) -> Option<u32> {
        let typed = program.exprs[id.index()];
        let class = Class::of(typed.dtype)?;
        let at = |id: ExprId| ids[id.index()];
        let class_at = |id: ExprId| Class::of(program.dtype(id));
        Some(match typed.expr {
            Expr::Input(k) => {
                let node = self.push(Op::Load(k), class, &[]);
                self.nodes[node as usize].level = *shapes.levels.get(k)?;
                node
            }
            Expr::Const(value) => self.constant(value, typed.dtype)?,
            Expr::Unary(op, a) => self.unary(op, at(a), class, typed.dtype)?,
            Expr::Binary(op, a, b) => self.binary(op, at(a), at(b), class_at(a)?, program.dtype(a))?,
            Expr::Select(c, a, b) => {
                let op = match class {
                    Class::F => Op::FSelect,
                    Class::I => Op::ISelect,
                    Class::B => Op::BSelect,
                };
                self.push(op, class, &[at(c), at(a), at(b)])
            }
            Expr::Cast(a) => self.cast(at(a), program.dtype(a), typed.dtype)?,
            Expr::RowReduce(op, a) => self.reduce(op, at(a), class, typed.dtype, shapes)?,
            Expr::Coordinate(axis) => {
                let size = *shapes.shape.get(axis)?;
                let stride: usize = shapes.shape[axis + 1..].iter().product();
                let rows = stride.is_multiple_of(shapes.row_len) && size != 1;
                let (stride, level) = match size {
                    1 => return Some(self.push(Op::Const(0), Class::I, &[])),
                    _ if rows => (stride / shapes.row_len, 1),
                    _ => (stride, 2),
                };
                let node = self.push(Op::Coordinate { stride, size, kept: 0 }, class, &[]);
                self.nodes[node as usize].level = level;
                node
            }
            Expr::Random(stream) => {
                let node = self.push(Op::Random(stream), class, &[]);
                self.nodes[node as usize].level = 2;
                node
            }
        })
    }

    fn unary(&mut self, op: Unary, a: u32, class: Class, dtype: DType) -> Option<u32> {
        match (class, op) {
            (Class::B, Unary::Not) => Some(self.push(Op::BNot, class, &[a])),
            (Class::F, Unary::Not) | (Class::I | Class::B, _)
                if !matches!(op, Unary::Neg | Unary::Abs | Unary::Sign) =>
            {
                None
            }
            (Class::B, _) => None,
            (Class::F, _) => Some(self.push(Op::F1(op), class, &[a])),
            (Class::I, _) => {
                let node = self.push(Op::I1(op), class, &[a]);
                Some(self.wrapped(node, dtype))
            }
        }
    }

    fn binary(&mut self, op: Binary, a: u32, b: u32, class: Class, dtype: DType) -> Option<u32> {
        let logical = matches!(op, Binary::And | Binary::Or);
        match class {
            Class::B if logical || op.compares() => Some(self.push(Op::B2(op), Class::B, &[a, b])),
            Class::B => None,
            _ if logical => None,
            Class::F if op.compares() => Some(self.push(Op::FCompare(op), Class::B, &[a, b])),
            Class::I if op.compares() => Some(self.push(Op::ICompare(op), Class::B, &[a, b])),
            Class::F => {
                let number = |id: u32| self.number(id);
                let op = match (op, number(a), number(b)) {
                    (Binary::Min, _, Some(x)) if !x.is_nan() => return Some(self.push(Op::MinNumber, class, &[a, b])),
                    (Binary::Max, _, Some(x)) if !x.is_nan() => return Some(self.push(Op::MaxNumber, class, &[a, b])),
                    (Binary::Min, Some(x), _) if !x.is_nan() => return Some(self.push(Op::MinNumber, class, &[b, a])),
                    (Binary::Max, Some(x), _) if !x.is_nan() => return Some(self.push(Op::MaxNumber, class, &[b, a])),
                    (Binary::Pow, _, Some(1.0)) => return Some(a),
                    (Binary::Pow, _, Some(2.0)) => return Some(self.push(Op::F2(Binary::Mul), class, &[a, a])),
                    (Binary::Pow, _, Some(-1.0)) => return Some(self.push(Op::F1(Unary::Reciprocal), class, &[a])),
                    (Binary::Pow, _, Some(3.0)) => {
                        let square = self.push(Op::F2(Binary::Mul), class, &[a, a]);
                        return Some(self.push(Op::F2(Binary::Mul), class, &[square, a]));
                    }
                    _ => op,
                };
                Some(self.push(Op::F2(op), class, &[a, b]))
            }
            Class::I => {
                let node = self.push(Op::I2(op), class, &[a, b]);
                Some(if matches!(op, Binary::Min | Binary::Max) { node } else { self.wrapped(node, dtype) })
            }
        }
    }

    /// The value of an f32 constant.
    pub(super) fn number(&self, id: u32) -> Option<f32> {
        match self.nodes[id as usize] {
            Node { op: Op::Const(bits), class: Class::F, .. } => Some(f32::from_bits(bits as u32)),
            _ => None,
        }
    }

    fn wrapped(&mut self, node: u32, dtype: DType) -> u32 {
        if dtype == DType::I64 { node } else { self.push(Op::Wrap(dtype), Class::I, &[node]) }
    }

    fn cast(&mut self, a: u32, from: DType, to: DType) -> Option<u32> {
        let class = Class::of(to)?;
        let op = match (Class::of(from)?, class) {
            (Class::F, Class::F) | (Class::I, Class::F) | (Class::B, Class::F) => {
                let a = match Class::of(from)? {
                    Class::I => self.push(Op::IToF, class, &[a]),
                    Class::B => self.push(Op::BToF, class, &[a]),
                    Class::F => a,
                };
                return Some(if to == DType::F32 { a } else { self.push(Op::FRound(to), class, &[a]) });
            }
            (Class::F, Class::I) => Op::FToI(to),
            (Class::F, Class::B) => Op::FToB,
            (Class::I, Class::I) => return Some(self.wrapped(a, to)),
            (Class::I, Class::B) => Op::IToB,
            (Class::B, Class::I) => Op::BToI,
            (Class::B, Class::B) => return Some(a),
        };
        Some(self.push(op, class, &[a]))
    }

    fn reduce(&mut self, op: ReduceOp, a: u32, class: Class, dtype: DType, shapes: &Shapes) -> Option<u32> {
        if class == Class::B {
            return None;
        }
        let Node { level, depth, .. } = self.nodes[a as usize];
        if level < 2 {
            // The same along the row.
            if op != ReduceOp::Sum {
                return Some(a);
            }
            let n = self.constant(Scalar::Int(shapes.row_len as i64), dtype)?;
            let mul = if class == Class::F { Op::F2(Binary::Mul) } else { Op::I2(Binary::Mul) };
            let node = self.push(mul, class, &[a, n]);
            return Some(if class == Class::I { self.wrapped(node, dtype) } else { node });
        }
        let node = self.push(Op::Reduce(op), class, &[a]);
        (self.nodes[node as usize].level, self.nodes[node as usize].depth) = (1, depth.checked_add(1)?);
        Some(if class == Class::I && op == ReduceOp::Sum { self.wrapped(node, dtype) } else { node })
    }
}

/// `value` wrapped to an integer dtype.
pub(crate) fn wrap(value: i64, dtype: DType) -> i64 {
    match dtype {
        DType::U8 => value as u8 as i64,
        DType::I8 => value as i8 as i64,
        DType::U16 => value as u16 as i64,
        DType::I16 => value as i16 as i64,
        DType::I32 => value as i32 as i64,
        DType::U32 => value as u32 as i64,
        _ => value,
    }
}
