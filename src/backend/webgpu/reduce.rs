//! Reductions: a result by one invocation, by a workgroup, or, where results are few and long, in parts that a second
//! dispatch puts together.

use super::layout::{Place, Places, Slot};
use super::lower::Lower;
use super::rows::{Form, Rows};
use super::shader::{Dispatch, Shader, value_type};
use super::walks::ordered;
use crate::error::Result;
use crate::kernel::reference::whole;
use crate::kernel::{Binary, BufferId, Expr, Program, Reduce, ReduceOp, Scalar, Step, View};
use crate::tensor::{DType, contiguous_strides};

pub(super) fn lower(kernel: &Reduce, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let Reduce { shape, reduced, program, op, scale } = kernel;
    let (row, outer): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|&a| reduced[a]);
    let strides: Vec<&[isize]> = step.reads.iter().map(|r| &*r.strides).collect();
    let all: Vec<usize> = (0..shape.len()).collect();
    let columns = ordered(&all, shape, &strides).last().is_some_and(|&a| !reduced[a]);
    let (outer, row) = (ordered(&outer, shape, &strides), ordered(&row, shape, &strides));
    let (sum, whole) = (reducing(program, *op), scaled(reducing(program, *op), *scale)?);
    let rows = Rows { program: &whole, shape, reads: &step.reads, writes: &step.writes, outer, row };
    let form = choose((rows.count(), rows.len()), rows.width(cx.places), columns, cx.places.software);
    if form.parts == 1 {
        // Lowered even if there is nothing to compute, so that what is not defined is an error for any shape.
        let dispatch = rows.lower(form, Shader::new(cx.places))?;
        return Ok(if step.writes[0].is_empty() { Vec::new() } else { vec![dispatch] });
    }

    // Partial results are kept as they are computed, those of 16-bit floats in f32.
    let dtype = program.dtype(program.outputs[0]);
    let kept = if dtype.is_float() { DType::F32 } else { dtype };
    let mut places: Places = cx.places.clone();
    let scratch = BufferId(places.places.len() as u32);
    places.places.push(Some(Place { slot: Slot::SCRATCH, offset: 0, lasting: false }));
    let units = rows.count() * form.parts;
    let words = if value_type(kept) == "vec2<u32>" { 2 } else { 1 };
    cx.scratch = cx.scratch.max(units * words);
    let partial = View::contiguous(scratch, kept, &[units]);
    let rows = Rows { program: &sum, writes: &[], ..rows };
    let first = rows.lower_partial(form, &partial, Shader::new(&places))?;
    let second = together(&rows, form, &partial, &step.writes[0], (dtype, *op, *scale), &places)?;
    Ok(vec![first, second])
}

/// The reduction of a program's output.
fn reducing(program: &Program, op: ReduceOp) -> Program {
    let mut reducing = program.clone();
    let result = reducing.row(op, reducing.outputs[0]);
    reducing.outputs[0] = result;
    reducing
}

/// A program whose output is multiplied with a factor.
fn scaled(mut program: Program, scale: f64) -> Result<Program> {
    let output = program.outputs[0];
    let dtype = program.dtype(output);
    let factor = match dtype.is_float() {
        true => Scalar::Float(scale),
        false => Scalar::Int(whole(scale)?),
    };
    if scale != 1.0 {
        // 16-bit floats are rounded when all is done; the factor is not.
        let computed = if dtype.is_float() { DType::F32 } else { dtype };
        let factor = program.push(Expr::Const(factor), computed);
        program.outputs[0] = program.push(Expr::Binary(Binary::Mul, output, factor), computed);
    }
    Ok(program)
}

/// The dispatch that reduces partial results.
fn together(
    rows: &Rows<'_>,
    form: Form,
    partial: &View,
    write: &View,
    (dtype, op, scale): (DType, ReduceOp, f64),
    places: &Places,
) -> Result<Dispatch> {
    let mut program = Program::new();
    let input = program.input(0, dtype);
    program.output(input);
    let program = scaled(reducing(&program, op), scale)?;
    // The rows as they were numbered; then their parts.
    let mut shape: Vec<usize> = rows.outer.iter().map(|&a| rows.shape[a]).collect();
    let (count, outer) = (rows.count(), shape.len());
    let mut strides: Vec<isize> = contiguous_strides(&shape);
    match form.columns {
        true => strides.push(count as isize),
        false => {
            strides.iter_mut().for_each(|s| *s *= form.parts as isize);
            strides.push(1);
        }
    }
    shape.push(form.parts);
    let read = View { shape: shape.clone(), strides, ..partial.clone() };
    let mut strides: Vec<isize> = rows.outer.iter().map(|&a| write.strides[a]).collect();
    strides.push(0);
    let mut one_each = shape.clone();
    one_each[outer] = 1;
    let write = View { shape: one_each, strides, ..write.clone() };
    let (reads, writes) = ([read], [write]);
    let rows = Rows {
        program: &program,
        shape: &shape,
        reads: &reads,
        writes: &writes,
        outer: (0..outer).collect(),
        row: vec![outer],
    };
    let lanes = if form.columns || places.software || form.parts < 64 { 1 } else { 64 };
    rows.lower(Form { lanes, parts: 1, columns: form.columns, width: 1 }, Shader::new(places))
}

/// How to compute `count` reductions over `len` elements; in `columns`, neighbours in memory belong to different ones.
fn choose((count, len): (usize, usize), width: usize, columns: bool, software: bool) -> Form {
    let count = count.max(1);
    // As many parts as give `units` altogether, none of which is shorter than `shortest`.
    let parts = |units: usize, shortest: usize| (units / count).min(len / shortest).max(1);
    let (lanes, parts, width) = match (software, columns) {
        (true, _) if len < 1024 => (1, 1, width),
        (true, _) => (1, parts(512, 64 * width), width),
        (false, _) if len <= 32 => (1, 1, 1),
        (false, true) => (1, parts(1 << 14, 16), 1),
        (false, false) if len < 256 => (64, 1, 1),
        (false, false) if len <= 512 * width => (64, 1, width),
        (false, false) if len < 8192 => (256, 1, width),
        (false, false) => (256, parts(512, 2048 * width), width),
    };
    Form { lanes, parts, columns, width }
}
