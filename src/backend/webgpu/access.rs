//! The text of a product's operands: indices taken apart into digits, positions, windows, results.
//!
//! Names in the texts: `z`, `y`, `x` and `k` are the indices z, m, n and k of a product; `y` and `x` have a suffix where several
//! rows and columns are at hand. `_0`, `_1`, … behind them are digits. What depends on one index only is computed where that
//! index is known: for each row, each column, each step of a loop.

use super::contraction::{Contraction, Digit, Phase, Residue};
use super::shader::{Library, Operand, Shader};
use crate::tensor::DType;

/// How numbers are multiplied and added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arithmetic {
    /// Floats of any width, in f32.
    Float,
    /// Signed integers of up to 32 bits.
    Signed,
    /// Unsigned ones, and bool as 0 and 1.
    Unsigned,
    /// 64-bit integers.
    Wide,
}

impl Arithmetic {
    pub(super) fn of(dtype: DType) -> Self {
        match dtype {
            DType::F64 | DType::F32 | DType::F16 | DType::BF16 => Arithmetic::Float,
            DType::I8 | DType::I16 | DType::I32 => Arithmetic::Signed,
            DType::Bool | DType::U8 | DType::U16 | DType::U32 => Arithmetic::Unsigned,
            DType::I64 | DType::U64 => Arithmetic::Wide,
        }
    }

    pub(super) fn zero(self) -> &'static str {
        match self {
            Arithmetic::Float => "0.0",
            Arithmetic::Signed => "0i",
            Arithmetic::Unsigned => "0u",
            Arithmetic::Wide => "vec2<u32>(0u, 0u)",
        }
    }

    /// `sum + a * b`.
    pub(super) fn accumulate(self, sum: &str, a: &str, b: &str) -> String {
        match self {
            Arithmetic::Wide => format!("wide_add({sum}, wide_mul({a}, {b}))"),
            _ => format!("{sum} + {a} * {b}"),
        }
    }

    /// `number`, or zero unless `condition` holds.
    pub(super) fn only_if(self, condition: Option<&str>, number: String) -> String {
        match condition {
            Some(condition) => format!("select({}, {number}, {condition})", self.zero()),
            None => number,
        }
    }

    pub(super) fn product(self, a: &str, b: &str) -> String {
        match self {
            Arithmetic::Wide => format!("wide_mul({a}, {b})"),
            _ => format!("{a} * {b}"),
        }
    }

    pub(super) fn sum(self, a: &str, b: &str) -> String {
        match self {
            Arithmetic::Wide => format!("wide_add({a}, {b})"),
            _ => format!("{a} + {b}"),
        }
    }

    /// A factor as a parameter; whole for integers.
    pub(super) fn factor(self, s: &mut Shader<'_>, factor: f32) -> String {
        let whole = factor as i64;
        match self {
            Arithmetic::Float => s.float(factor),
            Arithmetic::Signed => format!("bitcast<i32>({})", s.stride(whole as isize)),
            Arithmetic::Unsigned => s.stride(whole as isize),
            Arithmetic::Wide => {
                let (low, high) = (s.stride(whole as isize), s.stride((whole >> 32) as isize));
                format!("vec2<u32>({low}, {high})")
            }
        }
    }

    /// A loaded element as a number of this arithmetic.
    pub(super) fn number(self, operand: &Operand, at: &str) -> String {
        let element = operand.load(at);
        if operand.dtype() == DType::Bool { format!("select(0u, 1u, {element})") } else { element }
    }

    /// A number as an element of `dtype`, of which integers wrap.
    pub(super) fn element(self, dtype: DType, number: &str) -> String {
        match dtype {
            DType::Bool => format!("({number}) != 0u"),
            DType::I8 => format!("(({number}) << 24u) >> 24u"),
            DType::I16 => format!("(({number}) << 16u) >> 16u"),
            DType::U8 => format!("({number}) & 0xffu"),
            DType::U16 => format!("({number}) & 0xffffu"),
            _ => number.into(),
        }
    }
}

/// A stride as text.
#[derive(Clone, Debug)]
pub(super) enum Stride {
    Zero,
    One,
    By(String),
}

impl Stride {
    pub(super) fn new(s: &mut Shader<'_>, stride: isize) -> Self {
        match stride {
            0 => Stride::Zero,
            1 => Stride::One,
            _ => Stride::By(s.stride(stride)),
        }
    }

    /// `base + digit * stride`.
    fn add(&self, base: &str, digit: &str) -> String {
        match self {
            Stride::Zero => base.into(),
            Stride::One => format!("{base} + {digit}"),
            Stride::By(stride) => format!("{base} + {digit} * {stride}"),
        }
    }
}

/// `base` plus digits times strides. Digits are named `{name}_0`, …
pub(super) fn walk(base: String, strides: &[Stride], name: &str) -> String {
    strides.iter().enumerate().fold(base, |sum, (i, stride)| stride.add(&sum, &format!("{name}_{i}")))
}

/// What numbers are divided by. Integers are divided by many instructions (on software, one invocation at a time); floats multiply
/// by one.
pub(super) struct Divisor {
    size: String,
    inverse: Option<String>,
}

impl Divisor {
    /// A whole number and a half, divided by `size`, is at least 0.5 / size away from a whole number. Rounding makes less of a
    /// difference than that to quotients of numbers below this.
    const RANGE: usize = 1 << 21;

    /// For numbers less than `range`.
    pub(super) fn new(s: &mut Shader<'_>, size: usize, range: usize) -> Self {
        let inverse = (range < Self::RANGE).then(|| s.float(1.0 / size as f32));
        Self { size: s.param(size), inverse }
    }

    /// Lines that divide `number` (a name): names of the quotient and of the remainder.
    pub(super) fn divide(&self, s: &mut Shader<'_>, number: &str, quotient: &str, remainder: &str) {
        match &self.inverse {
            Some(inverse) => s.line(format!("let {quotient} = u32((f32({number}) + 0.5) * {inverse});")),
            None => s.line(format!("let {quotient} = {number} / {};", self.size)),
        }
        s.line(format!("let {remainder} = {number} - {quotient} * {};", self.size));
    }
}

/// Takes the number `name` apart into digits `{name}_0`, …, whose sizes, but for the first, are `sizes`.
fn split(s: &mut Shader<'_>, name: &str, sizes: &[Divisor]) {
    let mut rest = name.to_owned();
    for (i, size) in sizes.iter().enumerate().rev().map(|(i, size)| (i + 1, size)) {
        let quotient = format!("{name}_r{i}");
        size.divide(s, &rest, &quotient, &format!("{name}_{i}"));
        rest = quotient;
    }
    s.line(format!("let {name}_0 = {rest};"));
}

/// An index that is taken apart into digits.
pub(super) struct Number {
    name: char,
    /// How many values it has, and that as text.
    count: usize,
    pub(super) size: String,
    /// Sizes of all digits but the first.
    sizes: Vec<Divisor>,
}

impl Number {
    fn new(name: char, digits: &[Digit], s: &mut Shader<'_>) -> Self {
        let count = digits.iter().map(|d| d.size).product();
        let size = s.param(count);
        let sizes = digits.iter().skip(1).map(|d| Divisor::new(s, d.size, count)).collect();
        Self { name, count, size, sizes }
    }

    pub(super) fn batch(product: &Contraction<'_>, s: &mut Shader<'_>) -> Self {
        Self::new('z', &product.batch, s)
    }

    pub(super) fn rows(product: &Contraction<'_>, s: &mut Shader<'_>) -> Self {
        Self::new('y', &product.rows, s)
    }

    pub(super) fn cols(product: &Contraction<'_>, s: &mut Shader<'_>) -> Self {
        Self::new('x', &product.cols, s)
    }

    /// The lines that take the index `{name}{suffix}` apart.
    pub(super) fn split(&self, s: &mut Shader<'_>, suffix: &str) {
        split(s, &format!("{}{suffix}", self.name), &self.sizes);
    }
}

/// Takes a number (a name) apart into indices, slowest first, and those into digits.
pub(super) fn unravel(s: &mut Shader<'_>, name: &str, numbers: &[&Number]) {
    let mut range = numbers.iter().map(|n| n.count).product();
    let mut rest = name.to_owned();
    for (i, number) in numbers.iter().enumerate().rev() {
        let name = number.name.to_string();
        if i > 0 {
            let quotient = format!("{name}_rest");
            Divisor::new(s, number.count, range).divide(s, &rest, &quotient, &name);
            rest = quotient;
            range /= number.count;
        } else {
            s.line(format!("let {name} = {rest};"));
        }
        number.split(s, "");
    }
}

/// One factor of a product.
pub(super) struct Side {
    /// `l` or `r`, which its names begin with, and the index that it depends on beside k.
    tag: char,
    index: char,
    operand: Operand,
    arithmetic: Arithmetic,
    start: Option<String>,
    batch: Vec<Stride>,
    own: Vec<Stride>,
    sum: Vec<Stride>,
    windows: Vec<Edge>,
}

/// A window of a factor.
struct Edge {
    start: String,
    size: String,
    /// Per digit of the own index and of k.
    own: Vec<Stride>,
    sum: Vec<Stride>,
    /// The loop in which all that it depends on is known, counted from 1; 0 is before the first.
    level: usize,
}

impl Side {
    fn new(product: &Contraction<'_>, left: bool, arithmetic: Arithmetic, s: &mut Shader<'_>) -> Self {
        let (term, own, index) =
            if left { (product.left, &product.rows, 'y') } else { (product.right, &product.cols, 'x') };
        let of = |d: &Digit| if left { d.left } else { d.right };
        let operand = s.reads(term.view);
        let start = (term.start != 0).then(|| s.stride(term.start));
        let mut strides = |digits: &[Digit]| digits.iter().map(|d| Stride::new(s, of(d))).collect();
        let (batch, own_strides, sum) = (strides(&product.batch), strides(own), strides(&product.sum));
        let windows = product.windows.iter().enumerate().filter(|(_, w)| w.left == left);
        let mut windows: Vec<Edge> = windows.map(|(w, _)| Edge::new(product, w, own, s)).collect();
        windows.sort_by_key(|w| w.level);
        let tag = if left { 'l' } else { 'r' };
        Self { tag, index, operand, arithmetic, start, batch, own: own_strides, sum, windows }
    }

    /// The position where the other indices are 0, as `{tag}b`.
    fn base(&self, product: &Contraction<'_>, s: &mut Shader<'_>) {
        let mut base = self.operand.offset.clone();
        if let Some(start) = &self.start {
            base = format!("{base} + {start}");
        }
        for phase in 0..product.phases.len() {
            base = format!("{base} + p{phase}.{}", if self.tag == 'l' { 'y' } else { 'z' });
        }
        s.line(format!("let {}b = {};", self.tag, walk(base, &self.batch, "z")));
    }

    /// What depends on the row or column `{index}{suffix}`, whose digits are known.
    pub(super) fn own(&self, s: &mut Shader<'_>, suffix: &str) {
        let (tag, name) = (self.tag, format!("{}{suffix}", self.index));
        s.line(format!("let {tag}{suffix} = {};", walk(format!("{tag}b"), &self.own, &name)));
        for (w, edge) in self.windows.iter().enumerate() {
            s.line(format!("let {tag}{suffix}_w{w} = {};", walk(edge.start.clone(), &edge.own, &name)));
        }
        self.check(s, 0, suffix);
    }

    /// Which windows hold as soon as the loop `level` (counted from 1) has begun a step.
    pub(super) fn check(&self, s: &mut Shader<'_>, level: usize, suffix: &str) {
        let tag = self.tag;
        for (w, edge) in self.windows.iter().enumerate().filter(|(_, edge)| edge.level == level) {
            let at = walk(format!("{tag}{suffix}_w{w}"), &edge.sum, "k");
            let before = if w > 0 { format!("{tag}{suffix}_in{} & ", w - 1) } else { String::new() };
            s.line(format!("let {tag}{suffix}_in{w} = {before}({at} < {});", edge.size));
        }
    }

    /// The part of positions that the loops up to `level` know, as `{tag}k{level}`.
    pub(super) fn step(&self, s: &mut Shader<'_>, level: usize) {
        let before = if level > 1 { format!("{}k{}", self.tag, level - 1) } else { "0u".into() };
        let position = self.sum[level - 1].add(&before, &format!("k_{}", level - 1));
        s.line(format!("let {}k{level} = {};", self.tag, position.trim_start_matches("0u + ")));
    }

    /// The element at `{index}{suffix}` and k, or zero outside the windows.
    pub(super) fn value(&self, suffix: &str) -> String {
        let (tag, levels) = (self.tag, self.sum.len());
        let at = if levels > 0 { format!("{tag}{suffix} + {tag}k{levels}") } else { format!("{tag}{suffix}") };
        let value = self.arithmetic.number(&self.operand, &at);
        match self.windows.len() {
            0 => value,
            n => format!("select({}, {value}, {tag}{suffix}_in{})", self.arithmetic.zero(), n - 1),
        }
    }

    /// Does k run through memory faster than the own index?
    pub(super) fn sum_is_fast(&self) -> bool {
        let fast = |strides: &[Stride]| matches!(strides.last(), Some(Stride::One));
        fast(&self.sum) && !fast(&self.own)
    }
}

impl Edge {
    fn new(product: &Contraction<'_>, number: usize, own: &[Digit], s: &mut Shader<'_>) -> Self {
        let window = &product.windows[number];
        let start = match window.phase {
            Some(phase) => format!("p{phase}.w"),
            None => s.stride(window.start),
        };
        let size = s.param(window.size);
        let mut steps = |digits: &[Digit]| {
            let step = |d: &Digit| d.window.map_or(0, |(w, step)| if w == number { step } else { 0 });
            digits.iter().map(|d| Stride::new(s, step(d))).collect::<Vec<_>>()
        };
        let (own, sum) = (steps(own), steps(&product.sum));
        let level = sum.iter().rposition(|step| !matches!(step, Stride::Zero)).map_or(0, |at| at + 1);
        Self { start, size, own, sum, level }
    }
}

/// Both factors, and the indices.
pub(super) struct Access {
    pub(super) left: Side,
    pub(super) right: Side,
    pub(super) batch: Number,
    pub(super) rows: Number,
    pub(super) cols: Number,
    /// Sizes of the digits of k: texts that may name a phase, and numbers where they don't.
    pub(super) sum: Vec<String>,
    pub(super) counts: Vec<Option<usize>>,
    /// The phases' residues.
    tables: Vec<(usize, usize)>,
}

impl Access {
    pub(super) fn new(product: &Contraction<'_>, arithmetic: Arithmetic, s: &mut Shader<'_>) -> Self {
        if arithmetic == Arithmetic::Wide {
            s.uses(Library::Wide);
        }
        let left = Side::new(product, true, arithmetic, s);
        let right = Side::new(product, false, arithmetic, s);
        let size = |d: &Digit| d.phase.map_or_else(|| s.param(d.size), |phase| format!("p{phase}.x"));
        let sum = product.sum.iter().map(size).collect();
        let counts = product.sum.iter().map(|d| d.phase.is_none().then_some(d.size)).collect();
        let (batch, rows, cols) = (Number::batch(product, s), Number::rows(product, s), Number::cols(product, s));
        let table = |(number, phase): (usize, &Phase)| {
            let row =
                |r: &Residue| [r.count as u32, r.left as i32 as u32, r.right as i32 as u32, r.start as i32 as u32];
            let rows: Vec<[u32; 4]> = phase.residues.iter().map(row).collect();
            let digit = product.batch.iter().position(|d| d.phase == Some(number));
            (digit.expect("a phase is a digit of z"), s.table(&rows))
        };
        let tables = product.phases.iter().enumerate().map(table).collect();
        Self { left, right, batch, rows, cols, sum, counts, tables }
    }

    /// What depends on `z`, whose digits are known.
    pub(super) fn bases(&self, product: &Contraction<'_>, s: &mut Shader<'_>) {
        for (phase, (digit, table)) in self.tables.iter().enumerate() {
            s.line(format!("let p{phase} = P[{table}u + z_{digit}];"));
        }
        self.left.base(product, s);
        self.right.base(product, s);
    }

    /// What both factors know as soon as the loop `level` (counted from 1) has begun a step.
    pub(super) fn enter(&self, s: &mut Shader<'_>, level: usize) {
        self.left.step(s, level);
        self.right.step(s, level);
    }

    /// Takes `k` apart into digits. Sizes that are the same for all of the product are numbers of `sizes`.
    pub(super) fn split_sum(&self, s: &mut Shader<'_>, sizes: &[Divisor]) {
        if !self.sum.is_empty() {
            split(s, "k", sizes);
        }
    }

    /// What `k` is divided by to take it apart.
    pub(super) fn sum_sizes(&self, s: &mut Shader<'_>) -> Vec<Divisor> {
        let range = self.counts.iter().map(|count| count.unwrap_or(1)).product();
        let size = |(text, count): (&String, &Option<usize>)| match count {
            Some(count) => Divisor::new(s, *count, range),
            None => Divisor { size: text.clone(), inverse: None },
        };
        self.sum.iter().zip(&self.counts).skip(1).map(size).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::Divisor;

    /// Every quotient by every size that matters, on both sides of where it changes.
    #[test]
    fn quotients_by_floats_are_exact() {
        let sizes = (1..300).chain((9..21).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1, (1 << p) * 4 / 3]));
        for size in sizes {
            let inverse = 1.0 / size as f32;
            for multiple in (0..Divisor::RANGE).step_by(size) {
                for n in [multiple.saturating_sub(1), multiple, multiple + size / 2] {
                    assert_eq!(((n as f32 + 0.5) * inverse) as usize, n / size, "{n} / {size}");
                }
            }
        }
    }
}
