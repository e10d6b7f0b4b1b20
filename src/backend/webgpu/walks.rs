//! How the operands of a kernel over rows are walked.

use super::axes::Axes;
use super::expr::rounding;
use super::facts::Facts;
use super::layout::{Places, Slot, Storage, storage};
use super::rows::Rows;
use super::shader::{Library, Operand, Shader};
use crate::error::Result;
use crate::kernel::{Expr, ExprId, View};
use crate::tensor::contiguous_strides;
use std::cmp::Reverse;

/// `axes` by how far apart neighbours along them lie in the largest of some operands (the first of several), far ones first.
pub(super) fn ordered(axes: &[usize], shape: &[usize], operands: &[&[isize]]) -> Vec<usize> {
    let extent = |strides: &&&[isize]| axes.iter().filter(|&&a| strides[a] != 0).map(|&a| shape[a]).product::<usize>();
    let mut ordered = axes.to_vec();
    if let Some(main) = operands.iter().rev().max_by_key(extent) {
        ordered.sort_by_key(|&a| match main[a].unsigned_abs() {
            _ if shape[a] == 1 => Reverse(usize::MAX),
            0 => Reverse(usize::MAX - 1),
            stride => Reverse(stride),
        });
    }
    ordered
}

/// How operands and what else goes by places move along the axes of rows: first the reads, then the writes, then coordinates and
/// (as one) random numbers, which go by the kernel's axes, in whatever order these are walked.
pub(super) struct Layout {
    spots: Vec<Expr>,
    outer: Axes,
    pub(super) row: Axes,
    /// Along the last axis of the row.
    along: Vec<Along>,
}

/// How something moves along the last axis of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Along {
    /// Not at all.
    Still,
    /// By one, and every 4 elements from a multiple of 4 on lie at a multiple of 4.
    Quads,
    /// By so much.
    Apart(isize),
}

impl Layout {
    pub(super) fn new(rows: &Rows<'_>, facts: &Facts<'_>, places: &Places) -> Self {
        let mut spots: Vec<Expr> = Vec::new();
        for id in facts.needed() {
            match facts.expr(id) {
                coordinate @ Expr::Coordinate(_) => spots.push(coordinate),
                Expr::Random(_) if !spots.contains(&Expr::Random(0)) => spots.push(Expr::Random(0)),
                _ => {}
            }
        }
        let mut strides: Vec<Vec<isize>> = rows.reads.iter().map(|v| v.strides.clone()).collect();
        for write in rows.writes {
            let mut of = write.strides.clone();
            if rows.is_narrow(write) {
                rows.row.iter().for_each(|&a| of[a] = 0);
            }
            strides.push(of);
        }
        for spot in &spots {
            strides.push(match spot {
                Expr::Coordinate(axis) => (0..rows.shape.len()).map(|a| (a == *axis) as isize).collect(),
                _ => contiguous_strides(rows.shape),
            });
        }
        let axes = |axes: &[usize]| {
            let sizes: Vec<usize> = axes.iter().map(|&a| rows.shape[a]).collect();
            let strides: Vec<Vec<isize>> = strides.iter().map(|of| axes.iter().map(|&a| of[a]).collect()).collect();
            Axes::merged(&sizes, &strides.iter().map(|s| &**s).collect::<Vec<_>>())
        };
        let (outer, row) = (axes(&rows.outer), axes(&rows.row));
        let views: Vec<&View> = rows.reads.iter().chain(rows.writes).collect();
        let along = |walk: usize| {
            // Of the first element, and whether elements are single.
            let (offset, single) = views.get(walk).map_or((0, true), |view| {
                let storage = storage(view.dtype, places.halves);
                (places.of(view.buffer).offset / storage.bytes() + view.offset, storage != Storage::Pair)
            });
            let Some((&last, before)) = row.strides[walk].split_last() else { return Along::Still };
            let aligned = || before.iter().chain(&outer.strides[walk]).all(|s| s % 4 == 0);
            match last {
                0 => Along::Still,
                1 if single && offset % 4 == 0 && aligned() => Along::Quads,
                stride => Along::Apart(stride),
            }
        };
        let along = (0..row.strides.len()).map(along).collect();
        Self { spots, outer, row, along }
    }

    /// How many elements of a row an invocation should compute at a time: 1, or 4.
    pub(super) fn width(&self, rows: &Rows<'_>, places: &Places) -> usize {
        if self.row.sizes.last().is_none_or(|size| size % 4 != 0) {
            return 1;
        }
        let reads = rows.reads.len();
        let operands = reads + rows.writes.len();
        let in_quads = self.in_quads(rows, places);
        // A GPU gains by wide loads and stores if all are such, software by loops with fewer turns.
        let wide = |walk: usize| match self.along[walk] {
            Along::Still => true,
            Along::Quads => in_quads[walk],
            Along::Apart(_) => false,
        };
        if places.software || (0..operands).all(wide) { 4 } else { 1 }
    }

    /// Which operands lie in memory that can be an array of vectors of 4 elements: all that is written there is such vectors.
    fn in_quads(&self, rows: &Rows<'_>, places: &Places) -> Vec<bool> {
        let slot = |view: &View| places.of(view.buffer).slot;
        let reads = rows.reads.len();
        let views: Vec<&View> = rows.reads.iter().chain(rows.writes).collect();
        let fits = |of: Slot| {
            let here = || (0..views.len()).filter(|&walk| slot(views[walk]) == of);
            here().any(|walk| self.along[walk] == Along::Quads)
                && here().filter(|&walk| walk >= reads).all(|walk| self.along[walk] == Along::Quads)
        };
        views.iter().map(|view| fits(slot(view))).collect()
    }

    fn spot(&self, rows: &Rows<'_>, spot: Expr) -> usize {
        let at = self.spots.iter().position(|p| *p == spot).expect("all that are needed are listed");
        rows.reads.len() + rows.writes.len() + at
    }

    /// Is an input, or what hangs on its place, the same for neighbours along the last axis of the row?
    pub(super) fn is_still(&self, rows: &Rows<'_>, expr: Expr) -> bool {
        let walk = match expr {
            Expr::Input(k) => k,
            Expr::Random(_) => self.spot(rows, Expr::Random(0)),
            spot => self.spot(rows, spot),
        };
        self.along[walk] == Along::Still
    }
}

/// Where in a row an element is.
#[derive(Clone, Default)]
pub(super) struct At {
    /// Its number, if it has a name.
    pub(super) number: Option<String>,
    /// Its coordinates on the row's axes; none at the row's first element.
    pub(super) coordinates: Vec<String>,
}

/// The operands of a shader, and how they are walked.
pub(super) struct Walks<'r> {
    rows: &'r Rows<'r>,
    pub(super) layout: Layout,
    /// Reads, then writes.
    operands: Vec<Operand>,
}

impl<'r> Walks<'r> {
    /// `width`: how many elements are computed at a time.
    pub(super) fn new(rows: &'r Rows<'r>, layout: Layout, width: usize, s: &mut Shader<'_>) -> Self {
        let mut operands: Vec<Operand> = rows.reads.iter().map(|v| s.reads(v)).collect();
        operands.extend(rows.writes.iter().map(|v| s.writes(v)));
        if width > 1 {
            let in_quads = layout.in_quads(rows, s.places);
            operands.iter_mut().zip(in_quads).filter(|(_, quads)| *quads).for_each(|(o, _)| s.in_quads(o));
        }
        Self { rows, layout, operands }
    }

    /// Prints the position of each operand at the first element of row `w`: `b0`, `b1`, …
    pub(super) fn print_bases(&self, s: &mut Shader<'_>) {
        let outer = &self.layout.outer;
        let at = At { number: Some("w".into()), coordinates: coordinates(outer, "w", "o", s) };
        for walk in 0..outer.strides.len() {
            let offset = self.operands.get(walk).map_or("0u", |o| &o.offset);
            let text = position(outer, walk, offset, &at, s);
            s.line(format!("let b{walk} = {text};"));
        }
    }

    /// Prints the coordinates of element `number` (a name) of the row, unless no operand needs them.
    pub(super) fn print_place(&self, number: &str, s: &mut Shader<'_>) -> At {
        At { number: Some(number.into()), coordinates: coordinates(&self.layout.row, number, "c", s) }
    }

    fn position(&self, walk: usize, at: &At, s: &mut Shader<'_>) -> String {
        position(&self.layout.row, walk, &format!("b{walk}"), at, s)
    }

    /// The position of the `k`-th of neighbours, of which the first is at `first`.
    fn apart(&self, walk: usize, first: &str, k: usize, s: &mut Shader<'_>) -> String {
        match self.layout.along[walk] {
            _ if k == 0 => first.to_owned(),
            Along::Still => first.to_owned(),
            Along::Quads | Along::Apart(1) => format!("{first} + {k}u"),
            Along::Apart(stride) => format!("{first} + {k}u * {}", s.stride(stride)),
        }
    }

    /// The text of an input, or of a value that hangs on its place (for random numbers, `run` must be known): at `at`, or for
    /// the `k`-th of 4 neighbours from there on, which are asked for in order.
    pub(super) fn leaf(&self, s: &mut Shader<'_>, id: ExprId, expr: Expr, at: &At, k: Option<usize>) -> Result<String> {
        let walk = match expr {
            Expr::Input(k) => k,
            Expr::Random(_) => self.layout.spot(self.rows, Expr::Random(0)),
            spot => self.layout.spot(self.rows, spot),
        };
        let quad = k.filter(|_| self.layout.along[walk] == Along::Quads);
        let first = format!("p{}", id.0);
        if k.is_none_or(|k| k == 0) {
            let text = self.position(walk, at, s);
            s.line(format!("let {first} = {text};"));
        }
        let here = self.apart(walk, &first, k.unwrap_or(0), s);
        Ok(match expr {
            Expr::Input(input) => {
                let operand = &self.operands[input];
                let Some(k) = quad else { return Ok(operand.load(&here)) };
                if k == 0 {
                    s.line(format!("let v{} = {};", id.0, operand.load_quad(&first)));
                }
                operand.of_quad(&format!("v{}", id.0), k)
            }
            Expr::Random(stream) => {
                s.uses(Library::Wide);
                s.uses(Library::Random);
                let Some(k) = quad else {
                    return Ok(format!("uniform_at(run, {}, {here})", s.param(stream as usize)));
                };
                if k == 0 {
                    let stream = s.param(stream as usize);
                    s.line(format!("let v{} = uniforms_at(run, {stream}, {first});", id.0));
                }
                format!("v{}.{}", id.0, ["x", "y", "z", "w"][k])
            }
            _ => format!("vec2<u32>({here}, 0u)"),
        })
    }

    /// Prints the store of the `k`-th write at an element, or at as many neighbours as there are `values`.
    pub(super) fn print_store(&self, k: usize, values: &[&str], at: &At, s: &mut Shader<'_>) {
        let walk = self.rows.reads.len() + k;
        let operand = &self.operands[walk];
        if rounding(operand.dtype()) {
            s.uses(Library::Math);
        }
        let text = self.position(walk, at, s);
        s.line(format!("let q{k} = {text};"));
        if let (&[x, y, z, w], Along::Quads) = (values, self.layout.along[walk]) {
            s.line(operand.store_quad(&format!("q{k}"), [x, y, z, w]));
            return;
        }
        for (n, value) in values.iter().enumerate() {
            let here = self.apart(walk, &format!("q{k}"), n, s);
            s.line(operand.store(&here, value));
        }
    }

    /// Prints the move of the first read to the first write, of an element or of `width` neighbours.
    pub(super) fn print_move(&self, width: usize, at: &At, s: &mut Shader<'_>) {
        let write = self.rows.reads.len();
        let (source, target) = (&self.operands[0], &self.operands[write]);
        let (from, to) = (self.position(0, at, s), self.position(write, at, s));
        s.line(format!("let p0 = {from};"));
        s.line(format!("let q0 = {to};"));
        if width == 4 && self.layout.along[write] == Along::Quads {
            let quad = match self.layout.along[0] {
                Along::Quads => source.load_quad("p0"),
                _ => source.gather_quad(&std::array::from_fn(|k| self.apart(0, "p0", k, s))),
            };
            s.line(target.move_quad("q0", &quad));
            return;
        }
        for k in 0..width {
            let (from, to) = (self.apart(0, "p0", k, s), self.apart(write, "q0", k, s));
            s.line(target.moves(&to, source, &from));
        }
    }
}

fn coordinates(axes: &Axes, number: &str, prefix: &str, s: &mut Shader<'_>) -> Vec<String> {
    if (0..axes.strides.len()).all(|walk| is_fixed(axes, walk) || is_run(axes, walk)) {
        return Vec::new();
    }
    let (lines, names) = axes.coordinates(s, number, prefix);
    lines.lines().for_each(|line| s.line(line));
    names
}

/// Does an operand stand still?
fn is_fixed(axes: &Axes, walk: usize) -> bool {
    axes.strides[walk].iter().all(|&stride| stride == 0)
}

/// Is an operand's position the number of the element?
fn is_run(axes: &Axes, walk: usize) -> bool {
    axes.strides[walk] == contiguous_strides(&axes.sizes)
}

fn position(axes: &Axes, walk: usize, base: &str, at: &At, s: &mut Shader<'_>) -> String {
    match &at.number {
        _ if is_fixed(axes, walk) => base.to_owned(),
        Some(number) if is_run(axes, walk) => format!("{base} + {number}"),
        _ => axes.position(s, walk, base, &at.coordinates),
    }
}
