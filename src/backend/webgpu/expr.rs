//! A program of expressions as WGSL: one `let` for each expression, in the types of [`value_type`].
//!
//! What each function gives is fixed by the reference kernels. Floats of 16 bits are computed in f32 and rounded by a Cast and
//! where they are stored; integers wrap to the width of their dtype after each operation; 64-bit ones are pairs of words.

use super::shader::{Library, Shader};
use crate::error::{Error, Result, bail, err};
use crate::kernel::reference::{int_limits, round, truncate, wrap};
use crate::kernel::{Binary, Expr, ExprId, Kernel, Program, ReduceOp, Scalar, Step, Unary};
use crate::tensor::DType;

/// Does a step's arithmetic need float64, which GPUs lack? Moving such numbers does not.
pub(super) fn on_host(step: &Step) -> bool {
    let computes = |p: &Program| {
        let is_f64 = |id: ExprId| p.dtype(id) == DType::F64;
        let moves = |e: Expr| matches!(e, Expr::Input(_) | Expr::Const(_) | Expr::Select(..));
        p.exprs.iter().any(|t| !moves(t.expr) && (t.dtype == DType::F64 || Program::operands(t.expr).any(is_f64)))
    };
    let touches = || step.reads.iter().chain(&step.writes).any(|v| v.dtype == DType::F64);
    match &step.kernel {
        Kernel::Fused(k) => computes(&k.program),
        Kernel::Reduce(k) => computes(&k.program) || touches(),
        Kernel::Gemm(_) | Kernel::Conv(_) | Kernel::Pool(_) | Kernel::Scatter(_) => touches(),
        Kernel::Copy | Kernel::Gather(_) | Kernel::Check(_) => false,
    }
}

/// How values of a dtype are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// f32.
    Float,
    /// i32.
    Int,
    /// u32.
    Word,
    /// A pair of words, signed.
    Long,
    /// A pair of words, unsigned.
    LongWord,
    Bool,
    /// Cannot be computed.
    Double,
}

fn class(dtype: DType) -> Class {
    match dtype {
        DType::F32 | DType::F16 | DType::BF16 => Class::Float,
        DType::I8 | DType::I16 | DType::I32 => Class::Int,
        DType::U8 | DType::U16 | DType::U32 => Class::Word,
        DType::I64 => Class::Long,
        DType::U64 => Class::LongWord,
        DType::Bool => Class::Bool,
        DType::F64 => Class::Double,
    }
}

fn undefined(op: impl std::fmt::Debug, dtype: DType) -> Error {
    err!(Unsupported, "{op:?} of {dtype}")
}

/// Names of a program's values at one place of a text. A clone goes on from there, in a block within.
#[derive(Clone)]
pub(super) struct Scope<'p> {
    program: &'p Program,
    names: Vec<Option<String>>,
}

impl<'p> Scope<'p> {
    pub(super) fn new(program: &'p Program) -> Self {
        Self { program, names: vec![None; program.exprs.len()] }
    }

    /// Tells what a value is called.
    pub(super) fn set(&mut self, id: ExprId, name: impl Into<String>) {
        self.names[id.index()] = Some(name.into());
    }

    /// The name of a value that has been printed.
    pub(super) fn name(&self, id: ExprId) -> Result<&str> {
        self.names[id.index()].as_deref().ok_or_else(|| err!(Plan, "an expression is used before it is computed"))
    }

    /// Prints what `wanted` need and has no name yet; the names end in `suffix`. `leaf` gives the text of inputs, coordinates
    /// and random numbers.
    pub(super) fn print(
        &mut self,
        wanted: &[ExprId],
        suffix: &str,
        s: &mut Shader<'_>,
        mut leaf: impl FnMut(&mut Shader<'_>, ExprId, Expr) -> Result<String>,
    ) -> Result<()> {
        let mut needed = vec![false; self.names.len()];
        wanted.iter().for_each(|id| needed[id.index()] = true);
        for at in (0..needed.len()).rev() {
            needed[at] &= self.names[at].is_none();
            if needed[at] {
                Program::operands(self.program.exprs[at].expr).for_each(|id| needed[id.index()] = true);
            }
        }
        for at in (0..needed.len()).filter(|&at| needed[at]) {
            let text = self.text(ExprId(at as u32), s, &mut leaf)?;
            s.line(format!("let e{at}{suffix} = {text};"));
            self.names[at] = Some(format!("e{at}{suffix}"));
        }
        Ok(())
    }

    fn text(
        &self,
        id: ExprId,
        s: &mut Shader<'_>,
        leaf: &mut impl FnMut(&mut Shader<'_>, ExprId, Expr) -> Result<String>,
    ) -> Result<String> {
        let dtype = self.program.dtype(id);
        match self.program.exprs[id.index()].expr {
            Expr::Const(scalar) => Ok(constant(scalar, dtype, s)),
            Expr::Unary(op, a) => unary(op, dtype, self.name(a)?, s),
            Expr::Binary(op, a, b) => binary(op, self.program.dtype(a), self.name(a)?, self.name(b)?, s),
            Expr::Select(c, a, b) => Ok(format!("select({}, {}, {})", self.name(b)?, self.name(a)?, self.name(c)?)),
            Expr::Cast(a) => {
                let (from, name) = (self.program.dtype(a), self.name(a)?);
                // What nothing has changed since it was loaded is a value of its dtype.
                let exact =
                    matches!(self.program.exprs[a.index()].expr, Expr::Input(_) | Expr::Const(_) | Expr::Cast(_));
                let name = if exact { name.to_owned() } else { rounded(name, from, s) };
                cast(&name, from, dtype, s)
            }
            Expr::RowReduce(..) => bail!(Plan, "a reduction within an expression of one element"),
            other @ (Expr::Input(_) | Expr::Coordinate(_) | Expr::Random(_)) => leaf(s, id, other),
        }
    }
}

/// Are floats of a dtype rounded where they are stored?
pub(super) fn rounding(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A float in f32 as its dtype has it.
pub(super) fn rounded(x: &str, dtype: DType, s: &mut Shader<'_>) -> String {
    let round = match dtype {
        DType::F16 => "round_f16",
        DType::BF16 => "round_bf16",
        _ => return x.to_owned(),
    };
    s.uses(Library::Math);
    format!("{round}({x})")
}

/// An integer modulo the width of its dtype.
fn wrapped(x: String, dtype: DType) -> String {
    match dtype {
        DType::I8 => format!("(({x}) << 24u) >> 24u"),
        DType::I16 => format!("(({x}) << 16u) >> 16u"),
        DType::U8 => format!("({x}) & 0xffu"),
        DType::U16 => format!("({x}) & 0xffffu"),
        _ => x,
    }
}

/// A call of a library's function.
fn call(library: Library, function: &str, arguments: &[&str], s: &mut Shader<'_>) -> String {
    s.uses(library);
    format!("{function}({})", arguments.join(", "))
}

/// A pair of words.
fn pair(bits: u64) -> String {
    format!("vec2<u32>({:#x}u, {:#x}u)", bits as u32, bits >> 32)
}

/// A constant. Numbers that models have in common are part of the text, others parameters, so that they share it.
fn constant(scalar: Scalar, dtype: DType, s: &mut Shader<'_>) -> String {
    let int = match scalar {
        Scalar::Float(x) => truncate(x, dtype),
        Scalar::Int(x) => wrap(x, dtype),
    };
    match class(dtype) {
        Class::Float => number(round(scalar.as_f64(), dtype) as f32, s),
        Class::Int if (-2..=2).contains(&int) => format!("i32({int})"),
        Class::Int => format!("bitcast<i32>({})", s.param(int as u32 as usize)),
        Class::Word if (0..=2).contains(&int) => format!("{int}u"),
        Class::Word => s.param(int as u32 as usize),
        Class::Long | Class::LongWord if (-2..=2).contains(&int) => pair(int as u64),
        Class::Long | Class::LongWord => words(int as u64, s),
        Class::Bool => (int != 0).to_string(),
        Class::Double => words(scalar.as_f64().to_bits(), s),
    }
}

/// A pair of words as parameters.
fn words(bits: u64, s: &mut Shader<'_>) -> String {
    format!("vec2<u32>({}, {})", s.param(bits as u32 as usize), s.param((bits >> 32) as usize))
}

/// A float constant.
fn number(x: f32, s: &mut Shader<'_>) -> String {
    const COMMON: [f32; 6] = [0.0, 1.0, -1.0, 0.5, 2.0, -2.0];
    match COMMON.iter().any(|c| c.to_bits() == x.to_bits()) {
        true => format!("f32({x:?})"),
        false => s.float(x),
    }
}

/// What a reduction over nothing gives.
pub(super) fn identity(op: ReduceOp, dtype: DType, s: &mut Shader<'_>) -> String {
    let scalar = match (op, dtype.is_float()) {
        (ReduceOp::Sum, true) => Scalar::Float(0.0),
        (ReduceOp::Max, true) => Scalar::Float(f64::NEG_INFINITY),
        (ReduceOp::Min, true) => Scalar::Float(f64::INFINITY),
        (ReduceOp::Sum, false) => Scalar::Int(0),
        (ReduceOp::Max, false) => Scalar::Int(int_limits(dtype).0),
        (ReduceOp::Min, false) => Scalar::Int(int_limits(dtype).1),
    };
    constant(scalar, dtype, s)
}

/// Two partial results of a reduction as one.
pub(super) fn combined(op: ReduceOp, dtype: DType, a: &str, b: &str, s: &mut Shader<'_>) -> Result<String> {
    let as_binary = match op {
        ReduceOp::Sum => Binary::Add,
        ReduceOp::Max => Binary::Max,
        ReduceOp::Min => Binary::Min,
    };
    binary(as_binary, dtype, a, b, s).map_err(|_| undefined(op, dtype))
}

fn unary(op: Unary, dtype: DType, a: &str, s: &mut Shader<'_>) -> Result<String> {
    use Class::*;
    let class = class(dtype);
    let mut float = |function| (class == Float).then(|| call(Library::Math, function, &[a], s));
    let text = match op {
        Unary::Not => (class == Bool).then(|| format!("!{a}")),
        Unary::Neg => match class {
            Float | Int => Some(wrapped(format!("-{a}"), dtype)),
            Word => Some(wrapped(format!("0u - {a}"), dtype)),
            Long | LongWord => Some(call(Library::Wide, "wide_neg", &[a], s)),
            Bool | Double => None,
        },
        Unary::Abs => match class {
            Float | Int => Some(wrapped(format!("abs({a})"), dtype)),
            Word | LongWord => Some(a.to_owned()),
            Long => Some(call(Library::Wide, "wide_abs", &[a], s)),
            Bool | Double => None,
        },
        Unary::Sign => match class {
            Float => float("float_sign"),
            Int => Some(format!("sign({a})")),
            Word => Some(format!("min({a}, 1u)")),
            Long => Some(call(Library::Wide, "wide_sign", &[a], s)),
            LongWord => Some(format!("vec2<u32>(min({a}.x | {a}.y, 1u), 0u)")),
            Bool | Double => None,
        },
        Unary::Exp => float("float_exp"),
        Unary::Log => float("float_log"),
        Unary::Sqrt => float("float_sqrt"),
        Unary::Reciprocal => (class == Float).then(|| format!("1.0 / {a}")),
        Unary::Erf => float("float_erf"),
        Unary::Tanh => float("float_tanh"),
        Unary::Sigmoid => float("float_sigmoid"),
    };
    text.ok_or_else(|| undefined(op, dtype))
}

/// A function of two operands of `dtype`.
fn binary(op: Binary, dtype: DType, a: &str, b: &str, s: &mut Shader<'_>) -> Result<String> {
    let text = match op {
        Binary::Add => arithmetic(dtype, "+", "wide_add", a, b, s),
        Binary::Sub => arithmetic(dtype, "-", "wide_sub", a, b, s),
        Binary::Mul => arithmetic(dtype, "*", "wide_mul", a, b, s),
        Binary::Div => match class(dtype) {
            Class::Float => Some(format!("{a} / {b}")),
            _ => function(dtype, ["", "int_div", "word_div", "wide_div", "wide_div_u"], a, b, s),
        },
        Binary::Pow => function(dtype, ["float_pow", "int_pow", "word_pow", "wide_pow", "wide_pow_u"], a, b, s),
        Binary::Min => match class(dtype) {
            Class::Bool => Some(format!("{a} && {b}")),
            _ => function(dtype, ["float_min", "min", "min", "wide_min", "wide_min_u"], a, b, s),
        },
        Binary::Max => match class(dtype) {
            Class::Bool => Some(format!("{a} || {b}")),
            _ => function(dtype, ["float_max", "max", "max", "wide_max", "wide_max_u"], a, b, s),
        },
        Binary::And => (dtype == DType::Bool).then(|| format!("{a} && {b}")),
        Binary::Or => (dtype == DType::Bool).then(|| format!("{a} || {b}")),
        Binary::Equal => match class(dtype) {
            Class::Float | Class::Int | Class::Word | Class::Bool => Some(format!("{a} == {b}")),
            _ => function(dtype, ["", "", "", "wide_equal", "wide_equal"], a, b, s),
        },
        Binary::Less => match class(dtype) {
            Class::Float | Class::Int | Class::Word => Some(format!("{a} < {b}")),
            Class::Bool => Some(format!("!{a} && {b}")),
            _ => function(dtype, ["", "", "", "wide_less", "wide_less_u"], a, b, s),
        },
        Binary::LessOrEqual => match class(dtype) {
            Class::Float | Class::Int | Class::Word => Some(format!("{a} <= {b}")),
            Class::Bool => Some(format!("!{a} || {b}")),
            _ => {
                function(dtype, ["", "", "", "wide_less", "wide_less_u"], b, a, s).map(|greater| format!("!{greater}"))
            }
        },
    };
    text.ok_or_else(|| undefined(op, dtype))
}

/// An operator, or the function that stands for it on pairs of words, signed or not.
fn arithmetic(dtype: DType, op: &str, wide: &str, a: &str, b: &str, s: &mut Shader<'_>) -> Option<String> {
    match class(dtype) {
        Class::Float | Class::Int | Class::Word => Some(wrapped(format!("{a} {op} {b}"), dtype)),
        Class::Long | Class::LongWord => Some(call(Library::Wide, wide, &[a, b], s)),
        Class::Bool | Class::Double => None,
    }
}

/// The function for the class of a dtype: floats, ints, words, pairs of words, unsigned ones.
fn function(dtype: DType, names: [&str; 5], a: &str, b: &str, s: &mut Shader<'_>) -> Option<String> {
    let (library, name) = match class(dtype) {
        Class::Float => (Library::Math, names[0]),
        Class::Int => (Library::Wide, names[1]),
        Class::Word => (Library::Wide, names[2]),
        Class::Long => (Library::Wide, names[3]),
        Class::LongWord => (Library::Wide, names[4]),
        Class::Bool | Class::Double => return None,
    };
    Some(wrapped(call(library, name, &[a, b], s), dtype))
}

/// A value of dtype `from` as one of `to`. Floats are values that `from` has.
fn cast(x: &str, from: DType, to: DType, s: &mut Shader<'_>) -> Result<String> {
    use Class::*;
    if from == DType::F64 || to == DType::F64 {
        bail!(Plan, "float64 is not for the GPU");
    }
    let wide = |function, s: &mut Shader<'_>| call(Library::Wide, function, &[x], s);
    Ok(match (class(from), class(to)) {
        (_, Double) | (Double, _) => unreachable!("excluded above"),
        (Float, Float) => rounded(x, to, s),
        (Float, Int) => clamped(call(Library::Math, "float_to_int", &[x], s), to),
        (Float, Word) => clamped(call(Library::Math, "float_to_word", &[x], s), to),
        (Float, Long) => wide("wide_of_float", s),
        (Float, LongWord) => wide("wide_of_float_u", s),
        // By its bits: NaN is not 0, which some devices do not see.
        (Float, Bool) => format!("(bitcast<u32>({x}) & 0x7fffffffu) != 0u"),
        (Int | Word | Long | LongWord, Float) => to_float(x, from, to, s),
        (Int, Int) | (Word, Word) => wrapped(x.to_owned(), to),
        (Int, Word) => wrapped(format!("bitcast<u32>({x})"), to),
        (Word, Int) => wrapped(format!("bitcast<i32>({x})"), to),
        (Int, Long | LongWord) => wide("wide_of_int", s),
        (Word, Long | LongWord) => wide("wide_of_word", s),
        (Long | LongWord, Int) => wrapped(format!("bitcast<i32>({x}.x)"), to),
        (Long | LongWord, Word) => wrapped(format!("{x}.x"), to),
        (Long | LongWord, Long | LongWord) | (Bool, Bool) => x.to_owned(),
        (Int, Bool) => format!("{x} != 0"),
        (Word, Bool) => format!("{x} != 0u"),
        (Long | LongWord, Bool) => format!("!{}", wide("wide_is_zero", s)),
        (Bool, Float) => format!("select(0.0, 1.0, {x})"),
        (Bool, Int) => format!("select(0, 1, {x})"),
        (Bool, Word) => format!("select(0u, 1u, {x})"),
        (Bool, Long | LongWord) => format!("vec2<u32>(select(0u, 1u, {x}), 0u)"),
    })
}

/// An i32 or u32, saturated to the range of a narrower dtype.
fn clamped(x: String, dtype: DType) -> String {
    let (low, high) = int_limits(dtype);
    match dtype {
        DType::I8 | DType::I16 => format!("clamp({x}, {low}, {high})"),
        DType::U8 | DType::U16 => format!("min({x}, {high}u)"),
        _ => x,
    }
}

/// An integer, rounded once to a float dtype.
fn to_float(x: &str, from: DType, to: DType, s: &mut Shader<'_>) -> String {
    let wide = |function, s: &mut Shader<'_>| call(Library::Wide, function, &[x], s);
    if to == DType::F32 || from.size() < 4 {
        let float = match from {
            DType::I64 => wide("wide_to_float", s),
            DType::U64 => wide("wide_to_float_u", s),
            DType::U32 => wide("word_to_float", s),
            _ => format!("f32({x})"),
        };
        return rounded(&float, to, s);
    }
    // f32 does not hold all of these: on the way to 16 bits they are not to be rounded to nearest twice.
    let float = match from {
        DType::I64 => wide("wide_to_float_odd", s),
        DType::U64 => wide("wide_to_float_odd_u", s),
        DType::I32 => wide("int_to_float_odd", s),
        _ => wide("word_to_float_odd", s),
    };
    rounded(&float, to, s)
}
