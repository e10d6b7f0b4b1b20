//! Fused kernels: by elements, or by rows.

use super::lower::Lower;
use super::rows::{Form, Rows};
use super::shader::{Dispatch, Shader};
use super::walks::ordered;
use crate::error::Result;
use crate::kernel::{Fused, Program, Step, View};

pub(super) fn lower(kernel: &Fused, step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let Fused { shape, row_axes, program } = kernel;
    let first = shape.len() - row_axes;
    // Without reductions and values of rows, all elements are one long row.
    let by_elements = !program.has_row_reduce() && step.writes.iter().all(|w| w.shape == *shape);
    let (outer, row): (Vec<usize>, Vec<usize>) = (0..shape.len()).partition(|&a| !by_elements && a < first);
    // Neighbours in what is written side by side; else in what is read.
    let strides: Vec<Vec<isize>> = step.writes.iter().map(|w| along(w, shape)).collect();
    let strides: Vec<&[isize]> = strides.iter().map(|s| &**s).chain(step.reads.iter().map(|r| &*r.strides)).collect();
    let rows = Rows {
        program,
        shape,
        reads: &step.reads,
        writes: &step.writes,
        outer: ordered(&outer, shape, &strides),
        row: ordered(&row, shape, &strides),
    };
    let width = rows.width(cx.places);
    let form = match by_elements {
        true => elements(rows.len(), width, cx.places.software),
        false => {
            let all: Vec<usize> = (0..shape.len()).collect();
            let columns = ordered(&all, shape, &strides).last().is_some_and(|&a| a < first);
            of_rows((rows.count(), rows.len()), width, columns, cx.places.software)
        }
    };
    // Lowered even if there is nothing to compute, so that what is not defined is an error for any shape.
    let dispatch = rows.lower(form, Shader::new(cx.places))?;
    Ok(if step.writes.iter().all(View::is_empty) { Vec::new() } else { vec![dispatch] })
}

/// A copy is the fused kernel that computes nothing.
pub(super) fn copy(step: &Step, cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    let mut program = Program::new();
    let same = program.input(0, step.reads[0].dtype);
    program.output(same);
    lower(&Fused { shape: step.reads[0].shape.clone(), row_axes: 0, program }, step, cx)
}

/// The strides of a write along all axes of a kernel.
fn along(write: &View, shape: &[usize]) -> Vec<isize> {
    let still = |(a, &stride): (usize, &isize)| if write.shape[a] == shape[a] { stride } else { 0 };
    write.strides.iter().enumerate().map(still).collect()
}

/// How to compute `len` elements, each by itself, but `width` at a time.
fn elements(len: usize, width: usize, software: bool) -> Form {
    const LANES: usize = 64;
    let units = len / width;
    // On a CPU, an invocation costs about as much as a few elements.
    let each = if software { (units / (LANES * 32)).clamp(1, 16 / width) } else { 1 };
    match each {
        1 => Form { lanes: 1, parts: units, columns: false, width },
        each => Form { lanes: LANES, parts: units.div_ceil(LANES * each), columns: false, width },
    }
}

/// How to compute `count` rows of `len` elements; in `columns`, neighbours in memory are on different rows.
fn of_rows((count, len): (usize, usize), width: usize, columns: bool, software: bool) -> Form {
    let (lanes, width) = match software {
        // Barriers are dear, so that they have to save much.
        true if count < 16 && len >= 4096 => (64, width),
        true => (1, width),
        false if len <= 16 || (columns && count >= 2048) => (1, 1),
        false if len < 256 => (64, 1),
        false if len <= 512 * width => (64, width),
        false => (256, width),
    };
    Form { lanes, parts: 1, columns, width }
}
