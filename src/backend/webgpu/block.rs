//! Products as loops without barriers: one output per invocation ([`plain`]), or a block of them ([`block`]): on software, and where
//! one side of the result is thin.

use super::access::{Access, Arithmetic, Divisor, unravel};
use super::contraction::Contraction;
use super::layout::Places;
use super::shader::{Dispatch, Shader};
use super::sink::Sink;
use super::tiles::{Block, Choice, Shape};

/// One output per invocation.
pub(super) fn plain(product: &Contraction<'_>, arithmetic: Arithmetic, choice: &Choice, places: &Places) -> Dispatch {
    let mut s = Shader::new(places);
    let access = Access::new(product, arithmetic, &mut s);
    let sink = Sink::new(product, arithmetic, choice.splits, &mut s);
    let outputs = product.shape().outputs();
    let mut number = "i";
    if choice.splits > 1 {
        Divisor::new(&mut s, outputs, outputs * choice.splits).divide(&mut s, "i", "split", "at");
        number = "at";
    }
    unravel(&mut s, number, &[&access.batch, &access.rows, &access.cols]);
    access.bases(product, &mut s);
    access.left.own(&mut s, "");
    access.right.own(&mut s, "");
    s.line(format!("var sum = {};", arithmetic.zero()));
    let own = [String::new()];
    nest(&mut s, &access, choice, false, [&own, &own], |s, condition| {
        s.line(format!("let a = {};", arithmetic.only_if(condition, access.left.value(""))));
        s.line(format!("let b = {};", arithmetic.only_if(condition, access.right.value(""))));
        s.line(format!("sum = {};", arithmetic.accumulate("sum", "a", "b")));
    });
    sink.batch(&mut s);
    sink.row(&mut s, "");
    sink.col(&mut s, "");
    sink.store(&mut s, ["", ""], "sum", None);
    s.launch_threads(outputs * choice.splits)
}

/// A block of outputs per invocation, of floats. Invocations that run together have neighbouring columns, and the columns of
/// one invocation lie `lanes` apart: so what they load from B lies together, and what they load from A is the same.
pub(super) fn block(product: &Contraction<'_>, b: Block, choice: &Choice, places: &Places) -> Dispatch {
    let mut s = Shader::new(places);
    let access = Access::new(product, Arithmetic::Float, &mut s);
    let sink = Sink::new(product, Arithmetic::Float, choice.splits, &mut s);
    let shape = product.shape();
    let width = b.lanes * b.cols;
    let (down, across) = (shape.m.div_ceil(b.rows), shape.n.div_ceil(width));
    place(&mut s, &access, &shape, [down, across], choice);
    access.bases(product, &mut s);
    let rows: Vec<String> = (0..b.rows).map(|i| i.to_string()).collect();
    let cols: Vec<String> = (0..b.cols).map(|j| j.to_string()).collect();
    for (i, row) in rows.iter().enumerate() {
        s.line(format!("let y{row} = min(gy * {}u + {i}u, {} - 1u);", b.rows, access.rows.size));
        access.rows.split(&mut s, row);
        access.left.own(&mut s, row);
    }
    for (j, col) in cols.iter().enumerate() {
        s.line(format!("let x{col} = min(gx * {width}u + {}u + lane, {} - 1u);", j * b.lanes, access.cols.size));
        access.cols.split(&mut s, col);
        access.right.own(&mut s, col);
    }
    let sums = rows.iter().flat_map(|row| cols.iter().map(move |col| (row, col)));
    sums.clone().for_each(|(row, col)| s.line(format!("var s{row}_{col} = 0.0;")));
    let flat = places.software && product.is_flat();
    nest(&mut s, &access, choice, flat, [&rows, &cols], |s, condition| {
        for col in &cols {
            s.line(format!("let b{col} = {};", Arithmetic::Float.only_if(condition, access.right.value(col))));
        }
        for row in &rows {
            s.line(format!("let a{row} = {};", Arithmetic::Float.only_if(condition, access.left.value(row))));
            cols.iter().for_each(|col| s.line(format!("s{row}_{col} += a{row} * b{col};")));
        }
    });
    // As a loop over rows, because the text of a store takes software longest to compile.
    s.line(format!(
        "var sums = array<f32, {}>({});",
        b.rows * b.cols,
        sums.map(|(row, col)| format!("s{row}_{col}")).collect::<Vec<_>>().join(", ")
    ));
    sink.batch(&mut s);
    for (j, col) in cols.iter().enumerate() {
        s.line(format!("let x{col}_in = gx * {width}u + {}u + lane < {};", j * b.lanes, access.cols.size));
        sink.col(&mut s, col);
    }
    s.line(format!("for (var row = 0u; row < {}u; row++) {{", b.rows));
    s.line(format!("let y_at = gy * {}u + row;", b.rows));
    s.line(format!("let y = min(y_at, {} - 1u);", access.rows.size));
    s.line(format!("let y_in = y_at < {};", access.rows.size));
    access.rows.split(&mut s, "");
    sink.row(&mut s, "");
    let (whole_down, whole_across) = (shape.m.is_multiple_of(b.rows), shape.n.is_multiple_of(width));
    for (j, col) in cols.iter().enumerate() {
        let condition = match (whole_down, whole_across) {
            (true, true) => None,
            (true, false) => Some(format!("x{col}_in")),
            (false, true) => Some("y_in".into()),
            (false, false) => Some(format!("y_in & x{col}_in")),
        };
        sink.store(&mut s, ["", col], &format!("sums[row * {}u + {j}u]", b.cols), condition.as_deref());
    }
    s.line("}");
    s.launch_groups(b.lanes, down * across * shape.batch * choice.splits)
}

/// Takes the number `g` of the workgroup apart: `gy` and `gx` (which block of rows, of columns), `z` and its digits, `split`.
pub(super) fn place(s: &mut Shader<'_>, access: &Access, shape: &Shape, [down, across]: [usize; 2], choice: &Choice) {
    let range = down * across * shape.batch * choice.splits;
    Divisor::new(s, across, range).divide(s, "g", "g_y", "gx");
    Divisor::new(s, down, range / across).divide(s, "g_y", "g_z", "gy");
    if choice.splits > 1 {
        Divisor::new(s, shape.batch, range / across / down).divide(s, "g_z", "split", "z");
    } else {
        s.line("let z = g_z;");
    }
    access.batch.split(s, "");
}

/// Loops over k, and in them `body`, which is told the condition (if there is any) without which its factors count as zero. A
/// loop for each digit, or if `flat` one loop. `suffixes` are those of rows and columns.
fn nest(
    s: &mut Shader<'_>,
    access: &Access,
    choice: &Choice,
    flat: bool,
    suffixes: [&[String]; 2],
    body: impl Fn(&mut Shader<'_>, Option<&str>),
) {
    let levels = access.sum.len();
    if levels == 0 {
        return body(s, None);
    }
    let digits = if flat { access.sum_sizes(s) } else { Vec::new() };
    let mut counts = access.counts.clone();
    let mut sizes = access.sum.clone();
    if flat {
        let size = counts.iter().flatten().product();
        (counts, sizes) = (vec![Some(size)], vec![s.param(size)]);
    }
    let (mut begin, mut end) = ("0u".to_owned(), sizes[0].clone());
    if choice.splits > 1 {
        let count = counts[0].expect("a phase is not split");
        let chunk = count.div_ceil(choice.splits).next_multiple_of(2);
        counts[0] = Some(if count.is_multiple_of(2) { chunk } else { chunk + 1 });
        let chunk = s.param(chunk);
        s.line(format!("let begin = split * {chunk};"));
        s.line(format!("let end = min(begin + {chunk}, {end});"));
        (begin, end) = ("begin".into(), "end".into());
    }
    let enter = |s: &mut Shader<'_>, level: usize| {
        access.enter(s, level);
        suffixes[0].iter().for_each(|suffix| access.left.check(s, level, suffix));
        suffixes[1].iter().for_each(|suffix| access.right.check(s, level, suffix));
    };
    let last = sizes.len() - 1;
    for outer in 0..last {
        s.line(format!("for (var k_{outer} = {begin}; k_{outer} < {end}; k_{outer}++) {{"));
        enter(s, outer + 1);
        (begin, end) = ("0u".into(), sizes[outer + 1].clone());
    }
    let step = |s: &mut Shader<'_>, k: &str, condition: Option<&str>| {
        if flat {
            s.line(format!("let k = {k};"));
            access.split_sum(s, &digits);
            (1..=levels).for_each(|level| enter(s, level));
        } else {
            s.line(format!("let k_{last} = {k};"));
            enter(s, levels);
        }
        body(s, condition);
    };
    match counts[last] {
        // A step of a loop costs as much as several products, so that two at a time are faster.
        Some(count) if count > 1 => {
            s.line(format!("for (var pair = {begin}; pair < {end}; pair += 2u) {{"));
            s.line("{");
            step(s, "pair", None);
            s.line("}");
            if count.is_multiple_of(2) {
                s.line("{");
                step(s, "pair + 1u", None);
            } else {
                s.line(format!("{{ let is_pair = pair + 1u < {end};"));
                step(s, "select(pair, pair + 1u, is_pair)", Some("is_pair"));
            }
            s.line("}");
        }
        _ => {
            s.line(format!("for (var single = {begin}; single < {end}; single++) {{"));
            step(s, "single", None);
        }
    }
    s.line("}".repeat(sizes.len()));
}
