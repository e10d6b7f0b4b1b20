//! Products as loops without barriers: one output per invocation ([`plain`]), or a block of them ([`block`]): on software, and where
//! one side of the result is thin.

use super::access::{Access, Arithmetic};
use super::contraction::Contraction;
use super::layout::Places;
use super::shader::{Dispatch, Shader};
use super::sink::Sink;
use super::tiles::{Block, Choice};

/// One output per invocation.
pub(super) fn plain(product: &Contraction<'_>, arithmetic: Arithmetic, choice: &Choice, places: &Places) -> Dispatch {
    let mut s = Shader::new(places);
    let access = Access::new(product, arithmetic, &mut s);
    let sink = Sink::new(product, arithmetic, choice.splits, &mut s);
    let outputs = product.shape().outputs();
    let mut number = "i";
    if choice.splits > 1 {
        let size = s.param(outputs);
        s.line(format!("let split = i / {size};"));
        s.line(format!("let at = i - split * {size};"));
        number = "at";
    }
    super::access::unravel(&mut s, number, &[&access.batch, &access.rows, &access.cols]);
    access.bases(product, &mut s);
    access.left.own(&mut s, "");
    access.right.own(&mut s, "");
    s.line(format!("var sum = {};", arithmetic.zero()));
    let own = [String::new()];
    nest(&mut s, product, &access, choice, [&own, &own], |s| {
        s.line(format!("let a = {};", access.left.value("")));
        s.line(format!("let b = {};", access.right.value("")));
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
    place(&mut s, &access, [down, across], choice);
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
    nest(&mut s, product, &access, choice, [&rows, &cols], |s| {
        cols.iter().for_each(|col| s.line(format!("let b{col} = {};", access.right.value(col))));
        for row in &rows {
            s.line(format!("let a{row} = {};", access.left.value(row)));
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
pub(super) fn place(s: &mut Shader<'_>, access: &Access, [down, across]: [usize; 2], choice: &Choice) {
    let mut rest = "g";
    let mut next = |name: &str, before: &'static str, size: &str, s: &mut Shader<'_>| {
        s.line(format!("let {before} = {rest} / {size};"));
        s.line(format!("let {name} = {rest} - {before} * {size};"));
        rest = before;
    };
    let (down, across) = (s.param(down), s.param(across));
    next("gx", "g_y", &across, s);
    next("gy", "g_z", &down, s);
    if choice.splits > 1 {
        next("z", "split", &access.batch.size, s);
    } else {
        s.line("let z = g_z;");
    }
    access.batch.split(s, "");
}

/// Loops over the digits of k, and in them `body`. `suffixes` are those of rows and columns.
fn nest(
    s: &mut Shader<'_>,
    product: &Contraction<'_>,
    access: &Access,
    choice: &Choice,
    suffixes: [&[String]; 2],
    body: impl Fn(&mut Shader<'_>),
) {
    let levels = access.sum.len();
    if levels == 0 {
        return body(s);
    }
    let chunk = (choice.splits > 1).then(|| product.sum[0].size.div_ceil(choice.splits));
    let (mut begin, mut end) = ("0u".to_owned(), access.sum[0].clone());
    if let Some(chunk) = chunk {
        let chunk = s.param(chunk);
        s.line(format!("let begin = split * {chunk};"));
        s.line(format!("let end = min(begin + {chunk}, {end});"));
        (begin, end) = ("begin".into(), "end".into());
    }
    // A loop step costs about as much as a few products, so that two at a time are faster.
    let last = product.sum[levels - 1];
    let counted = if levels == 1 { chunk.unwrap_or(last.size) } else { last.size };
    let pairs = last.phase.is_none() && last.size.is_multiple_of(2) && counted.is_multiple_of(2);
    for level in 1..=levels {
        let k = level - 1;
        if level > 1 {
            (begin, end) = ("0u".into(), access.sum[k].clone());
        }
        let step = |s: &mut Shader<'_>| {
            access.enter(s, level);
            suffixes[0].iter().for_each(|suffix| access.left.check(s, level, suffix));
            suffixes[1].iter().for_each(|suffix| access.right.check(s, level, suffix));
            if level == levels {
                body(s);
            }
        };
        if level == levels && pairs {
            s.line(format!("for (var k = {begin}; k < {end}; k += 2u) {{"));
            for half in 0..2 {
                s.line(format!("{{ let k_{k} = k + {half}u;"));
                step(s);
                s.line("}");
            }
        } else {
            s.line(format!("for (var k_{k} = {begin}; k_{k} < {end}; k_{k}++) {{"));
            step(s);
        }
    }
    s.line("}".repeat(levels));
}
