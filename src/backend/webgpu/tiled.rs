//! Products tile by tile through workgroup memory: for GPUs.

use super::access::{Access, Arithmetic, Divisor, Number, Side};
use super::block::place;
use super::contraction::Contraction;
use super::layout::Places;
use super::shader::{Dispatch, Shader};
use super::sink::Sink;
use super::tiles::{Choice, Tile};

/// A workgroup computes a tile of the result. Step by step along k it copies a tile of either factor to workgroup memory, as
/// vectors of 4 rows (or columns) that every invocation then multiplies from there.
pub(super) fn tiled(product: &Contraction<'_>, t: &Tile, choice: &Choice, places: &Places) -> Dispatch {
    let mut s = Shader::new(places);
    let access = Access::new(product, Arithmetic::Float, &mut s);
    let sink = Sink::new(product, Arithmetic::Float, choice.splits, &mut s);
    let shape = product.shape();
    let (down, across) = (shape.m.div_ceil(t.rows), shape.n.div_ceil(t.cols));
    place(&mut s, &access, &shape, [down, across], choice);
    access.bases(product, &mut s);
    let left = Loader::new(&access.left, &access.rows, "tile_l", ["y", "gy"], t.rows, t);
    let right = Loader::new(&access.right, &access.cols, "tile_r", ["x", "gx"], t.cols, t);
    left.declare(&mut s);
    right.declare(&mut s);
    let size = if access.sum.is_empty() { "1u".into() } else { access.sum.join(" * ") };
    s.line(format!("let size = {size};"));
    let digits = access.sum_sizes(&mut s);
    let (mut begin, mut end) = ("0u", "size");
    if choice.splits > 1 {
        let chunk = s.param(chunk(shape.k, choice.splits, t));
        s.line(format!("let begin = split * {chunk};"));
        s.line(format!("let end = min(begin + {chunk}, size);"));
        (begin, end) = ("begin", "end");
    }
    let (tall, wide) = (t.tall / 4, t.wide / 4);
    for (row, col) in (0..t.tall).flat_map(|row| (0..wide).map(move |col| (row, col))) {
        s.line(format!("var s{row}_{col} = vec4<f32>();"));
    }
    s.line(format!("let tx = lane % {}u;", t.cols / t.wide));
    s.line(format!("let ty = lane / {}u;", t.cols / t.wide));
    s.line(format!("for (var kt = {begin}; kt < {end}; kt += {}u) {{", t.depth));
    left.load(&mut s, &access, &digits, end);
    right.load(&mut s, &access, &digits, end);
    s.line("workgroupBarrier();");
    left.keep(&mut s);
    right.keep(&mut s);
    s.line("workgroupBarrier();");
    s.line(format!("for (var k = 0u; k < {}u; k++) {{", t.depth));
    for col in 0..wide {
        s.line(format!("let b{col} = tile_r[k * {}u + {}u + tx];", right.pitch, col * (t.cols / t.wide)));
    }
    for quad in 0..tall {
        s.line(format!("let a{quad} = tile_l[k * {}u + {}u + ty];", left.pitch, quad * (t.rows / t.tall)));
    }
    for (row, col) in (0..t.tall).flat_map(|row| (0..wide).map(move |col| (row, col))) {
        s.line(format!("s{row}_{col} += a{}.{} * b{col};", row / 4, part(row)));
    }
    s.line("}");
    s.line("}");
    results(&mut s, &access, &sink, t);
    s.launch_groups(t.invocations(), down * across * shape.batch * choice.splits)
}

/// How much of k a workgroup adds up.
fn chunk(k: usize, splits: usize, t: &Tile) -> usize {
    k.div_ceil(splits).next_multiple_of(t.depth)
}

fn part(i: usize) -> &'static str {
    ["x", "y", "z", "w"][i % 4]
}

/// Stores what an invocation has computed: vectors of 4 rows, `rows / tall` vectors apart, and columns likewise.
fn results(s: &mut Shader<'_>, access: &Access, sink: &Sink, t: &Tile) {
    sink.batch(s);
    let numbers = [
        (&access.rows, "y", format!("gy * {}u", t.rows), "ty", t.tall, t.rows),
        (&access.cols, "x", format!("gx * {}u", t.cols), "tx", t.wide, t.cols),
    ];
    for (number, name, first, at, count, size) in numbers {
        for i in 0..count {
            let apart = i / 4 * 4 * (size / count);
            s.line(format!("let {name}{i}_at = {first} + {at} * 4u + {}u;", apart + i % 4));
            s.line(format!("let {name}{i}_in = {name}{i}_at < {};", number.size));
            s.line(format!("let {name}{i} = min({name}{i}_at, {} - 1u);", number.size));
            number.split(s, &i.to_string());
            if name == "y" { sink.row(s, &i.to_string()) } else { sink.col(s, &i.to_string()) }
        }
    }
    for row in 0..t.tall {
        for col in 0..t.wide {
            let sum = format!("s{row}_{}.{}", col / 4, part(col));
            let condition = format!("y{row}_in & x{col}_in");
            sink.store(s, [&row.to_string(), &col.to_string()], &sum, Some(&condition));
        }
    }
}

/// Copies tiles of one factor.
struct Loader<'a> {
    side: &'a Side,
    number: &'a Number,
    array: &'static str,
    /// Names of the index, and of which tile it is.
    names: [&'static str; 2],
    /// Rows (or columns) of a tile, in vectors.
    vectors: usize,
    /// Vectors from one k to the next in workgroup memory: one more than there are, so that stores along k meet other banks.
    pitch: usize,
    depth: usize,
    invocations: usize,
}

impl<'a> Loader<'a> {
    fn new(
        side: &'a Side,
        number: &'a Number,
        array: &'static str,
        names: [&'static str; 2],
        size: usize,
        t: &Tile,
    ) -> Self {
        let vectors = size / 4;
        Self { side, number, array, names, vectors, pitch: vectors + 1, depth: t.depth, invocations: t.invocations() }
    }

    /// Vectors that an invocation copies at a time.
    fn slots(&self) -> usize {
        self.vectors * self.depth / self.invocations
    }

    /// Workgroup memory, and what is known before the loop: which rows an invocation loads, and which k's.
    fn declare(&self, s: &mut Shader<'_>) {
        let Self { array, names: [index, which], .. } = self;
        s.declare(format!("var<workgroup> {array}: array<vec4<f32>, {}>;", self.depth * self.pitch));
        for slot in 0..self.slots() {
            let number = format!("(lane + {}u)", slot * self.invocations);
            // Neighbouring invocations load what lies together in memory.
            let (quad, k) = if self.side.sum_is_fast() {
                (format!("{number} / {}u", self.depth), format!("{number} % {}u", self.depth))
            } else {
                (format!("{number} % {}u", self.vectors), format!("{number} / {}u", self.vectors))
            };
            s.line(format!("let {array}_quad{slot} = {quad};"));
            s.line(format!("let {array}_k{slot} = {k};"));
            for i in 0..4 {
                let suffix = format!("s{slot}i{i}");
                let at = format!("{which} * {}u + {array}_quad{slot} * 4u + {i}u", self.vectors * 4);
                s.line(format!("let {index}{suffix} = min({at}, {} - 1u);", self.number.size));
                self.number.split(s, &suffix);
                self.side.own(s, &suffix);
            }
        }
    }

    /// Loads from memory to registers. Beyond the end of k is 0.
    fn load(&self, s: &mut Shader<'_>, access: &Access, digits: &[Divisor], end: &str) {
        let array = self.array;
        for slot in 0..self.slots() {
            s.line(format!("var {array}_v{slot} = vec4<f32>();"));
            s.line("{");
            s.line(format!("let k_at = kt + {array}_k{slot};"));
            s.line("let k = min(k_at, size - 1u);");
            access.split_sum(s, digits);
            let levels = access.sum.len();
            (1..=levels).for_each(|level| self.side.step(s, level));
            let values = (0..4).map(|i| {
                let suffix = format!("s{slot}i{i}");
                (1..=levels).for_each(|level| self.side.check(s, level, &suffix));
                self.side.value(&suffix)
            });
            let values = values.collect::<Vec<_>>().join(", ");
            s.line(format!("{array}_v{slot} = select(vec4<f32>(), vec4<f32>({values}), k_at < {end});"));
            s.line("}");
        }
    }

    /// Stores the registers to workgroup memory.
    fn keep(&self, s: &mut Shader<'_>) {
        let array = self.array;
        for slot in 0..self.slots() {
            s.line(format!("{array}[{array}_k{slot} * {}u + {array}_quad{slot}] = {array}_v{slot};", self.pitch));
        }
    }
}
