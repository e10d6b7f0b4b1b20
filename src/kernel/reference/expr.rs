//! Expression programs: Fused and Reduce. Each expression is computed over the whole iteration
//! space before the next one, and dropped after its last use.

use super::super::philox;
use super::super::{
    Binary, Buffers, Expr, ExprId, Fused, Program, Reduce, ReduceOp, RunContext, Scalar, Step, Unary, View,
};
use super::values::{Values, int_limits, round, truncate, whole, wrap};
use super::{erf, load, store, walk};
use crate::error::{Error, Result, err};
use crate::tensor::{DType, contiguous_strides};

pub(super) fn fused(k: &Fused, step: &Step, buffers: &mut dyn Buffers, cx: &RunContext) -> Result<()> {
    let space = Space::new(&k.shape, k.row_axes);
    let values = evaluate(&k.program, &space, step, buffers, cx)?;
    for (id, view) in k.program.outputs.iter().zip(&step.writes) {
        let value = computed(&values, *id)?;
        if view.shape == space.shape {
            store(buffers, view, value)?;
        } else if !view.is_empty() {
            store(buffers, view, &value.every(space.row))?;
        }
    }
    Ok(())
}

pub(super) fn reduce(k: &Reduce, step: &Step, buffers: &mut dyn Buffers, cx: &RunContext) -> Result<()> {
    let space = Space::new(&k.shape, 0);
    let output = k.program.outputs[0];
    let dtype = k.program.dtype(output);
    let values = evaluate(&k.program, &space, step, buffers, cx)?;

    // Walk the results alongside: they stand still along the reduced axes.
    let kept: Vec<usize> = k.shape.iter().zip(&k.reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
    let mut strides = contiguous_strides(&kept);
    for (stride, &reduced) in strides.iter_mut().zip(&k.reduced) {
        if reduced {
            *stride = 0;
        }
    }
    let len = kept.iter().product();
    let result = match computed(&values, output)? {
        Values::Float(v) => {
            let op = float_binary(as_binary(k.op)).ok_or_else(|| undefined(k.op, dtype))?;
            let sums = accumulate(v, &k.shape, &strides, len, float_identity(k.op), op);
            Values::Float(sums.into_iter().map(|x| x * k.scale).collect())
        }
        Values::Int(v) => {
            let op = int_binary(as_binary(k.op), dtype).ok_or_else(|| undefined(k.op, dtype))?;
            let scale = whole(k.scale)?;
            let sums = accumulate(v, &k.shape, &strides, len, int_identity(k.op, dtype), |a, b| wrap(op(a, b), dtype));
            Values::Int(sums.into_iter().map(|x| x.wrapping_mul(scale)).collect())
        }
    };
    store(buffers, &step.writes[0], &result)
}

fn accumulate<T: Copy>(
    values: &[T],
    shape: &[usize],
    strides: &[isize],
    len: usize,
    identity: T,
    op: impl Fn(T, T) -> T,
) -> Vec<T> {
    let mut results = vec![identity; len];
    let mut values = values.iter();
    walk(shape, 0, strides, |p| {
        if let Some(&v) = values.next() {
            results[p] = op(results[p], v);
        }
    });
    results
}

/// Where a program is evaluated.
struct Space {
    shape: Vec<usize>,
    /// How many trailing axes form a row.
    row_axes: usize,
    len: usize,
    /// Elements of a row.
    row: usize,
    /// Rows have no elements, but values that are the same along a row are still due: each row
    /// stands for one coordinate, at which row reductions give their identity.
    empty_rows: bool,
}

impl Space {
    fn new(shape: &[usize], row_axes: usize) -> Self {
        let mut shape = shape.to_vec();
        let first = shape.len() - row_axes;
        let empty_rows = shape[first..].contains(&0);
        if empty_rows {
            shape[first..].fill(1);
        }
        let len = shape.iter().product();
        let row = shape[first..].iter().product();
        Self { shape, row_axes, len, row, empty_rows }
    }

    fn load(&self, buffers: &dyn Buffers, view: &View) -> Result<Values> {
        if !self.empty_rows {
            return load(buffers, view);
        }
        let first = view.rank() - self.row_axes;
        if view.strides[first..].iter().all(|&s| s == 0) {
            return load(buffers, &View { shape: self.shape.clone(), ..view.clone() });
        }
        // It varies along the rows, so that no value that is the same along a row depends on it.
        Ok(splat(Scalar::Int(0), view.dtype, self.len))
    }
}

/// The values of all outputs, by expression; those of other expressions may have been dropped.
fn evaluate(
    program: &Program,
    space: &Space,
    step: &Step,
    buffers: &dyn Buffers,
    cx: &RunContext,
) -> Result<Vec<Option<Values>>> {
    let mut uses = vec![0usize; program.exprs.len()];
    for id in program.exprs.iter().flat_map(|t| Program::operands(t.expr)).chain(program.outputs.iter().copied()) {
        uses[id.index()] += 1;
    }
    let mut values: Vec<Option<Values>> = Vec::with_capacity(program.exprs.len());
    for (at, typed) in program.exprs.iter().enumerate() {
        if uses[at] == 0 {
            values.push(None);
            continue;
        }
        let of = |id: ExprId| computed(&values, id);
        let dtype = typed.dtype;
        let value = match typed.expr {
            Expr::Input(k) => space.load(buffers, &step.reads[k])?,
            Expr::Const(scalar) => splat(scalar, dtype, space.len),
            Expr::Unary(op, a) => unary(op, of(a)?, dtype)?,
            Expr::Binary(op, a, b) => binary(op, of(a)?, of(b)?, program.dtype(a))?,
            Expr::Select(c, a, b) => select(of(c)?, of(a)?, of(b)?)?,
            Expr::Cast(a) => of(a)?.cast(program.dtype(a), dtype),
            Expr::RowReduce(op, a) => row_reduce(op, of(a)?, space, dtype)?,
            Expr::Coordinate(axis) => coordinate(axis, &space.shape),
            Expr::Random(stream) => {
                Values::Float((0..space.len as u64).map(|i| philox::uniform(cx, stream, i) as f64).collect())
            }
        };
        values.push(Some(value));
        for id in Program::operands(typed.expr) {
            uses[id.index()] -= 1;
            if uses[id.index()] == 0 {
                values[id.index()] = None;
            }
        }
    }
    Ok(values)
}

/// The value of an expression. Operands stand before their users and live until the last of them.
fn computed(values: &[Option<Values>], id: ExprId) -> Result<&Values> {
    values
        .get(id.index())
        .and_then(Option::as_ref)
        .ok_or_else(|| err!(Plan, "an expression is used before it is computed"))
}

fn splat(scalar: Scalar, dtype: DType, len: usize) -> Values {
    match scalar {
        s if dtype.is_float() => Values::Float(vec![round(s.as_f64(), dtype); len]),
        Scalar::Float(x) => Values::Int(vec![truncate(x, dtype); len]),
        Scalar::Int(x) => Values::Int(vec![wrap(x, dtype); len]),
    }
}

fn coordinate(axis: usize, shape: &[usize]) -> Values {
    let mut strides = vec![0; shape.len()];
    strides[axis] = 1;
    let mut values = Vec::with_capacity(shape.iter().product());
    walk(shape, 0, &strides, |p| values.push(p as i64));
    Values::Int(values)
}

pub(super) fn undefined(op: impl std::fmt::Debug, dtype: DType) -> Error {
    err!(Unsupported, "{op:?} of {dtype}")
}

fn unary(op: Unary, a: &Values, dtype: DType) -> Result<Values> {
    match a {
        Values::Float(a) => {
            let f = float_unary(op).ok_or_else(|| undefined(op, dtype))?;
            Ok(Values::Float(a.iter().map(|&x| f(x)).collect()))
        }
        Values::Int(a) => {
            let f = int_unary(op, dtype).ok_or_else(|| undefined(op, dtype))?;
            Ok(Values::Int(a.iter().map(|&x| wrap(f(x), dtype)).collect()))
        }
    }
}

/// `dtype` is that of the operands.
fn binary(op: Binary, a: &Values, b: &Values, dtype: DType) -> Result<Values> {
    fn map<T: Copy, R>(a: &[T], b: &[T], f: impl Fn(T, T) -> R) -> Vec<R> {
        a.iter().zip(b).map(|(&a, &b)| f(a, b)).collect()
    }
    let none = || undefined(op, dtype);
    Ok(match (a, b) {
        (Values::Float(a), Values::Float(b)) if op.compares() => {
            let f = float_compare(op).ok_or_else(none)?;
            Values::Int(map(a, b, |a, b| f(&a, &b) as i64))
        }
        (Values::Float(a), Values::Float(b)) => Values::Float(map(a, b, float_binary(op).ok_or_else(none)?)),
        (Values::Int(a), Values::Int(b)) => {
            let f = int_binary(op, dtype).ok_or_else(none)?;
            // A comparison's 0 or 1 is not changed by wrapping.
            Values::Int(map(a, b, |a, b| wrap(f(a, b), dtype)))
        }
        _ => return Err(super::mixed_operands("an elementwise function")),
    })
}

fn select(c: &Values, a: &Values, b: &Values) -> Result<Values> {
    fn map<T: Copy>(c: &[i64], a: &[T], b: &[T]) -> Vec<T> {
        c.iter().zip(a).zip(b).map(|((&c, &a), &b)| if c != 0 { a } else { b }).collect()
    }
    match (c, a, b) {
        (Values::Int(c), Values::Float(a), Values::Float(b)) => Ok(Values::Float(map(c, a, b))),
        (Values::Int(c), Values::Int(a), Values::Int(b)) => Ok(Values::Int(map(c, a, b))),
        _ => Err(super::mixed_operands("Select")),
    }
}

fn row_reduce(op: ReduceOp, a: &Values, space: &Space, dtype: DType) -> Result<Values> {
    fn rows<T: Copy>(a: &[T], space: &Space, identity: T, op: impl Fn(T, T) -> T) -> Vec<T> {
        let row = |row: &[T]| if space.empty_rows { identity } else { row.iter().fold(identity, |s, &x| op(s, x)) };
        a.chunks_exact(space.row).flat_map(|r| std::iter::repeat_n(row(r), space.row)).collect()
    }
    let none = || undefined(op, dtype);
    Ok(match a {
        Values::Float(a) => {
            Values::Float(rows(a, space, float_identity(op), float_binary(as_binary(op)).ok_or_else(none)?))
        }
        Values::Int(a) => {
            let f = int_binary(as_binary(op), dtype).ok_or_else(none)?;
            Values::Int(rows(a, space, int_identity(op, dtype), |x, y| wrap(f(x, y), dtype)))
        }
    })
}

pub(super) fn as_binary(op: ReduceOp) -> Binary {
    match op {
        ReduceOp::Sum => Binary::Add,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    }
}

pub(super) fn float_identity(op: ReduceOp) -> f64 {
    match op {
        ReduceOp::Sum => 0.0,
        ReduceOp::Max => f64::NEG_INFINITY,
        ReduceOp::Min => f64::INFINITY,
    }
}

pub(super) fn int_identity(op: ReduceOp, dtype: DType) -> i64 {
    let (low, high) = int_limits(dtype);
    match op {
        ReduceOp::Sum => 0,
        ReduceOp::Max => low,
        ReduceOp::Min => high,
    }
}

pub(super) fn float_unary(op: Unary) -> Option<fn(f64) -> f64> {
    Some(match op {
        Unary::Neg => |x| -x,
        Unary::Abs => f64::abs,
        Unary::Sign => |x| if x == 0.0 || x.is_nan() { x } else { x.signum() },
        Unary::Exp => f64::exp,
        Unary::Log => f64::ln,
        Unary::Sqrt => f64::sqrt,
        Unary::Reciprocal => f64::recip,
        Unary::Erf => erf,
        Unary::Tanh => f64::tanh,
        // exp of nothing positive, so that it never overflows.
        Unary::Sigmoid => |x| {
            let e = (-x.abs()).exp();
            if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
        },
        Unary::Not => return None,
    })
}

pub(super) fn int_unary(op: Unary, dtype: DType) -> Option<fn(i64) -> i64> {
    Some(match (op, dtype) {
        (Unary::Not, DType::Bool) => |x| (x == 0) as i64,
        (_, DType::Bool) => return None,
        (Unary::Neg, _) => i64::wrapping_neg,
        (Unary::Abs, DType::U64) => |x| x,
        (Unary::Abs, _) => i64::wrapping_abs,
        (Unary::Sign, DType::U64) => |x| (x != 0) as i64,
        (Unary::Sign, _) => i64::signum,
        _ => return None,
    })
}

pub(super) fn float_compare(op: Binary) -> Option<fn(&f64, &f64) -> bool> {
    Some(match op {
        Binary::Equal => PartialEq::eq,
        Binary::Less => PartialOrd::lt,
        Binary::LessOrEqual => PartialOrd::le,
        _ => return None,
    })
}

pub(super) fn float_binary(op: Binary) -> Option<fn(f64, f64) -> f64> {
    Some(match op {
        Binary::Add => |a, b| a + b,
        Binary::Sub => |a, b| a - b,
        Binary::Mul => |a, b| a * b,
        Binary::Div => |a, b| a / b,
        Binary::Pow => f64::powf,
        // `a` if it is the one or is NaN; else `b`, which may be NaN.
        Binary::Min => |a, b| if a < b || a.is_nan() { a } else { b },
        Binary::Max => |a, b| if a > b || a.is_nan() { a } else { b },
        _ => return None,
    })
}

/// On `u64` by bits; on the others `i64` holds every value, so that signed arithmetic is right.
pub(super) fn int_binary(op: Binary, dtype: DType) -> Option<fn(i64, i64) -> i64> {
    let (bool, u64) = (dtype == DType::Bool, dtype == DType::U64);
    Some(match op {
        Binary::And if bool => |a, b| a & b,
        Binary::Or if bool => |a, b| a | b,
        Binary::Equal => |a, b| (a == b) as i64,
        Binary::Less if u64 => |a, b| ((a as u64) < b as u64) as i64,
        Binary::Less => |a, b| (a < b) as i64,
        Binary::LessOrEqual if u64 => |a, b| (a as u64 <= b as u64) as i64,
        Binary::LessOrEqual => |a, b| (a <= b) as i64,
        Binary::Min if u64 => |a, b| (a as u64).min(b as u64) as i64,
        Binary::Min => Ord::min,
        Binary::Max if u64 => |a, b| (a as u64).max(b as u64) as i64,
        Binary::Max => Ord::max,
        _ if bool => return None,
        Binary::Add => i64::wrapping_add,
        Binary::Sub => i64::wrapping_sub,
        Binary::Mul => i64::wrapping_mul,
        Binary::Div if u64 => |a, b| (a as u64).checked_div(b as u64).unwrap_or(0) as i64,
        Binary::Div => |a, b| if b == 0 { 0 } else { a.wrapping_div(b) },
        Binary::Pow if u64 => |a, b| power(a, b as u64),
        Binary::Pow => |a, b| match (a, b) {
            (_, 0..) => power(a, b as u64),
            // A negative exponent: the reciprocal, truncated.
            (1, _) => 1,
            (-1, _) => 1 - 2 * (b & 1),
            _ => 0,
        },
        Binary::And | Binary::Or => return None,
    })
}

/// Modulo 2^64.
fn power(mut base: i64, mut exponent: u64) -> i64 {
    let mut result = 1i64;
    while exponent > 0 {
        if exponent & 1 == 1 {
            result = result.wrapping_mul(base);
        }
        base = base.wrapping_mul(base);
        exponent >>= 1;
    }
    result
}
