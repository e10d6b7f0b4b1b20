//! How the operands of a kernel over rows are walked.

use super::axes::Axes;
use super::facts::Facts;
use super::rows::Rows;
use super::shader::{Library, Operand, Shader};
use crate::error::Result;
use crate::kernel::Expr;
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

/// Where in a row an element is.
#[derive(Clone, Default)]
pub(super) struct At {
    /// Its number, if it has a name.
    pub(super) number: Option<String>,
    /// Its coordinates on the row's axes; none at the row's first element.
    pub(super) coordinates: Vec<String>,
}

/// Operands: first the reads, then the writes, then what expressions know of their place.
pub(super) struct Walks {
    operands: Vec<Operand>,
    /// Where the writes begin.
    reads: usize,
    /// Coordinates, and (as one) random numbers: they go by the kernel's axes, in whatever order these are walked.
    places: Vec<Expr>,
    outer: Axes,
    pub(super) row: Axes,
}

impl Walks {
    pub(super) fn new(rows: &Rows<'_>, facts: &Facts<'_>, s: &mut Shader<'_>) -> Self {
        let mut operands: Vec<Operand> = rows.reads.iter().map(|v| s.reads(v)).collect();
        operands.extend(rows.writes.iter().map(|v| s.writes(v)));
        let mut places: Vec<Expr> = Vec::new();
        for id in facts.needed() {
            match facts.expr(id) {
                coordinate @ Expr::Coordinate(_) => places.push(coordinate),
                Expr::Random(_) if !places.contains(&Expr::Random(0)) => places.push(Expr::Random(0)),
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
        for place in &places {
            strides.push(match place {
                Expr::Coordinate(axis) => (0..rows.shape.len()).map(|a| (a == *axis) as isize).collect(),
                _ => contiguous_strides(rows.shape),
            });
        }
        let axes = |axes: &[usize]| {
            let sizes: Vec<usize> = axes.iter().map(|&a| rows.shape[a]).collect();
            let strides: Vec<Vec<isize>> = strides.iter().map(|of| axes.iter().map(|&a| of[a]).collect()).collect();
            Axes::merged(&sizes, &strides.iter().map(|s| &**s).collect::<Vec<_>>())
        };
        Self { operands, reads: rows.reads.len(), places, outer: axes(&rows.outer), row: axes(&rows.row) }
    }

    /// Prints the position of each operand at the first element of row `w`: `b0`, `b1`, …
    pub(super) fn print_bases(&self, s: &mut Shader<'_>) {
        let at = At { number: Some("w".into()), coordinates: coordinates(&self.outer, "w", "o", s) };
        for walk in 0..self.outer.strides.len() {
            let offset = self.operands.get(walk).map_or("0u", |o| &o.offset);
            let text = position(&self.outer, walk, offset, &at, s);
            s.line(format!("let b{walk} = {text};"));
        }
    }

    /// Prints the coordinates of element `number` (a name) of the row, unless no operand needs them.
    pub(super) fn print_place(&self, number: &str, s: &mut Shader<'_>) -> At {
        At { number: Some(number.into()), coordinates: coordinates(&self.row, number, "c", s) }
    }

    /// The `k`-th write, and its position at an element.
    pub(super) fn write(&self, k: usize, at: &At, s: &mut Shader<'_>) -> (&Operand, String) {
        (&self.operands[self.reads + k], self.position(self.reads + k, at, s))
    }

    /// Prints the move of the first read's element to the first write's.
    pub(super) fn print_move(&self, at: &At, s: &mut Shader<'_>) {
        let (source, target) = (self.position(0, at, s), self.position(self.reads, at, s));
        s.line(self.operands[self.reads].moves(&target, &self.operands[0], &source));
    }

    fn position(&self, walk: usize, at: &At, s: &mut Shader<'_>) -> String {
        position(&self.row, walk, &format!("b{walk}"), at, s)
    }

    /// The text of an input or of a value that hangs on its place (for random numbers, `run` must be known).
    pub(super) fn leaf(&self, s: &mut Shader<'_>, expr: Expr, at: &At) -> Result<String> {
        let place = |of: Expr| self.operands.len() + self.places.iter().position(|p| *p == of).expect("listed above");
        Ok(match expr {
            Expr::Input(k) => {
                let text = self.position(k, at, s);
                s.line(format!("let p{k} = {text};"));
                self.operands[k].load(&format!("p{k}"))
            }
            Expr::Random(stream) => {
                let text = self.position(place(Expr::Random(0)), at, s);
                s.uses(Library::Wide);
                s.uses(Library::Random);
                format!("uniform_at(run, {}, {text})", s.param(stream as usize))
            }
            coordinate => format!("vec2<u32>({}, 0u)", self.position(place(coordinate), at, s)),
        })
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
