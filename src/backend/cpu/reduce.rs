//! The Reduce kernel: along rows where the innermost axis is reduced, in columns where it stays.
//! Axes are first put in the order in which the largest operand lies in memory.

use super::fused::{Columns, FusedOp};
use super::memory::Memory;
use crate::kernel::{Expr, ExprId, Fused, Program, Reduce, ReduceOp, RunContext, View};
use std::cmp::Reverse;

/// Runs of fewer elements are too short to be rows.
const SHORT: usize = 128;

/// A [`Reduce`] kernel, ready to run on any memory that its views fit.
#[derive(Debug)]
pub struct Reducer(Way);

#[derive(Debug)]
enum Way {
    Rows(FusedOp),
    Columns(Columns),
}

impl Reducer {
    /// Prepares a kernel, or gives `None` where there is no fast path for it: as for [`FusedOp`],
    /// and for reductions over nothing.
    pub fn compile(kernel: &Reduce, reads: &[View], write: &View) -> Option<Self> {
        let Reduce { shape, reduced, program, op, scale } = kernel;
        if shape.contains(&0) {
            return None;
        }
        let order = order(shape, reads);
        // Trailing axes that stay make columns. So do those that stay around a few innermost ones
        // that are reduced, as in N x C x (H x W) by channel: their runs are too short for rows.
        let size = |axes: &[usize]| axes.iter().map(|&a| shape[a]).product::<usize>();
        let trailing = |axes: &[usize], kept: bool| {
            axes.iter().rev().take_while(|a| shape[**a] == 1 || reduced[**a] != kept).count()
        };
        let mut inner = trailing(&order, false);
        let mut trail = trailing(&order[..order.len() - inner], true);
        let (body, rest) = order.split_at(order.len() - inner - trail);
        let short = size(&rest[trail..]) < SHORT && body.iter().any(|&a| reduced[a] && shape[a] > 1);
        if size(&rest[..trail]) == 1 || !(short || size(&rest[trail..]) == 1) {
            (inner, trail) = (0, 0);
        }
        let (body, tail) = order.split_at(order.len() - inner - trail);
        let (lead, middle): (Vec<usize>, Vec<usize>) = body.iter().partition(|a| !reduced[**a]);
        let order = [&lead[..], &middle, tail].concat();

        let program = permuted(program, &order)?;
        let shape: Vec<usize> = order.iter().map(|&a| shape[a]).collect();
        let reads: Vec<View> = reads.iter().map(|v| v.permuted(&order)).collect();
        let write = write.permuted(&order);
        if trail > 0 {
            let axes = (lead.len(), trail, inner);
            return Columns::compile(&shape, axes, &program, (*op, *scale), &reads, &write)
                .map(|c| Self(Way::Columns(c)));
        }
        let row_axes = shape.len() - lead.len();
        let fused = Fused { shape, row_axes, program: reducing(program, *op, *scale)? };
        Some(Self(Way::Rows(FusedOp::compile(&fused, &reads, &[write])?)))
    }

    /// f32 elements of scratch memory that a run needs.
    pub fn scratch(&self) -> usize {
        match &self.0 {
            Way::Rows(_) => 0,
            Way::Columns(columns) => columns.scratch(),
        }
    }

    /// Runs the kernel.
    ///
    /// # Safety
    /// [`Memory::check`] must have passed for every view it was compiled with; `scratch` has
    /// [`Reducer::scratch`] elements or more and is aligned to 8.
    pub unsafe fn run(&self, memory: &Memory, scratch: &mut [f32], cx: &RunContext) {
        // Safety: the caller's promise.
        unsafe {
            match &self.0 {
                Way::Rows(op) => op.run(memory, cx),
                Way::Columns(columns) => columns.run(memory, scratch, cx),
            }
        }
    }
}

/// The axes by how far apart the neighbours along them lie in the largest operand, far ones
/// first; those that it repeats along, and axes of size 1, first of all.
fn order(shape: &[usize], reads: &[View]) -> Vec<usize> {
    let size = |v: &&View| (0..shape.len()).filter(|&a| v.strides[a] != 0).map(|a| shape[a]).product::<usize>();
    let mut order: Vec<usize> = (0..shape.len()).collect();
    if let Some(main) = reads.iter().rev().max_by_key(size) {
        order.sort_by_key(|&a| match main.strides[a].unsigned_abs() {
            _ if shape[a] == 1 => Reverse(usize::MAX),
            0 => Reverse(usize::MAX - 1),
            stride => Reverse(stride),
        });
    }
    order
}

/// The program over axes in another order: axis `i` is the old `order[i]`. `None` if it draws
/// random numbers, which go by the old order.
fn permuted(program: &Program, order: &[usize]) -> Option<Program> {
    let moved = order.iter().enumerate().any(|(i, &a)| i != a);
    let mut new = Program::new();
    let mut ids: Vec<ExprId> = Vec::with_capacity(program.exprs.len());
    for typed in &program.exprs {
        let of = |id: ExprId| ids[id.index()];
        let expr = match typed.expr {
            Expr::Random(_) if moved => return None,
            Expr::Coordinate(axis) => Expr::Coordinate(order.iter().position(|&a| a == axis)?),
            same @ (Expr::Input(_) | Expr::Const(_) | Expr::Random(_)) => same,
            Expr::Unary(op, a) => Expr::Unary(op, of(a)),
            Expr::Binary(op, a, b) => Expr::Binary(op, of(a), of(b)),
            Expr::Select(c, a, b) => Expr::Select(of(c), of(a), of(b)),
            Expr::Cast(a) => Expr::Cast(of(a)),
            Expr::RowReduce(op, a) => Expr::RowReduce(op, of(a)),
        };
        let id = new.push(expr, typed.dtype);
        ids.push(id);
    }
    program.outputs.iter().for_each(|o| new.output(ids[o.index()]));
    Some(new)
}

/// `scale * op over the row of program`. Only floats have a scale.
fn reducing(mut program: Program, op: ReduceOp, scale: f64) -> Option<Program> {
    let output = program.outputs.pop()?;
    let sum = program.row(op, output);
    if scale != 1.0 && !program.dtype(sum).is_float() {
        return None;
    }
    let scaled = if scale == 1.0 { sum } else { program.scale(sum, scale) };
    program.output(scaled);
    Some(program)
}

#[cfg(test)]
mod tests {
    use super::super::fused::testing::{Rng, close, memory};
    use super::super::threads::set_threads;
    use super::*;
    use crate::kernel::reference::{self, HostBuffers};
    use crate::kernel::{Binary, Kernel, Step};
    use crate::tensor::{DType, Tensor};

    /// Runs a kernel with one thread and two, and plainly. Gives its result and whether it went in columns.
    fn check(kernel: &Reduce, buffers: &HostBuffers, reads: &[View], write: &View, tolerance: f64) -> (Tensor, bool) {
        let op = Reducer::compile(kernel, reads, write).unwrap_or_else(|| panic!("no fast path: {kernel:?}"));
        let run = |threads: usize| {
            let mut mine = buffers.clone();
            let table = memory(&mut mine);
            reads.iter().chain([write]).for_each(|v| table.check(v).unwrap());
            let mut scratch = vec![0u64; op.scratch().div_ceil(2)];
            set_threads(threads);
            // Safety: every view was checked.
            unsafe { op.run(&table, bytemuck::cast_slice_mut(&mut scratch), &RunContext::default()) };
            set_threads(0);
            mine
        };
        let mut want = buffers.clone();
        let kernel = Kernel::Reduce(kernel.clone());
        let step = Step { kernel, reads: reads.to_vec(), writes: vec![write.clone()], from: "n".into() };
        reference::run(&step, &mut want, &RunContext::default()).unwrap();
        let got = run(1).read(write).unwrap();
        assert!(got == run(2).read(write).unwrap(), "one and two threads differ: {step:?}");
        if let Err(e) = close(&got, &want.read(write).unwrap(), tolerance) {
            panic!("{e}: {step:?} {op:#?}");
        }
        (got, matches!(op.0, Way::Columns(_)))
    }

    #[test]
    fn against_the_reference() {
        let mut rng = Rng(9);
        let mut columns = [0, 0];
        for shape in [
            vec![],
            vec![1],
            vec![70],
            vec![100_000],
            vec![33, 10],
            vec![3000, 10],
            vec![200, 600],
            vec![40, 3000],
            vec![2, 60_000],
            vec![5, 6, 7],
            vec![4, 20, 36],
            vec![8, 300, 9],
            vec![3, 20, 5, 7],
            vec![3, 2, 700],
            vec![700, 3, 2],
            vec![6, 5, 4, 3, 2],
            vec![2, 1, 50, 1, 30],
        ] {
            let rank = shape.len();
            for mask in 0..1 << rank {
                let reduced: Vec<bool> = (0..rank).map(|a| mask >> a & 1 == 1).collect();
                for turn in [0, 1, 2] {
                    let mut buffers = HostBuffers::new();
                    let x = rng.tensor(DType::F32, &shape);
                    let x = View::contiguous(buffers.add(&x), DType::F32, &shape);
                    // As it lies, turned around, and with another operand that repeats.
                    let axes: Vec<usize> = if turn == 1 { (0..rank).rev().collect() } else { (0..rank).collect() };
                    let x = x.permuted(&axes);
                    let y_shape: Vec<usize> =
                        (0..rank).map(|a| if turn == 2 && a % 2 == 0 { 1 } else { x.shape[a] }).collect();
                    let y = rng.tensor(DType::F32, &y_shape);
                    let y = View::contiguous(buffers.add(&y), DType::F32, &y_shape).broadcast_to(&x.shape);
                    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min][turn];
                    let out: Vec<usize> = x.shape.iter().zip(&reduced).map(|(n, r)| if *r { 1 } else { *n }).collect();
                    let dtype = if mask == 1 { DType::F16 } else { DType::F32 };
                    let write = View::contiguous(buffers.add_zeros(dtype, &out).unwrap(), dtype, &out);
                    let mut program = Program::new();
                    let (a, b) = (program.input(0, DType::F32), program.input(1, DType::F32));
                    let ab = if turn == 0 { program.mul(a, b) } else { program.binary(Binary::Sub, a, b) };
                    let ab = program.cast(ab, dtype);
                    program.output(ab);
                    let kernel = Reduce { shape: x.shape.clone(), reduced: reduced.clone(), program, op, scale: 0.5 };
                    let tolerance = if mask == 1 { 1e-3 } else { 2e-6 };
                    let (_, way) =
                        check(&kernel, &buffers, &[x, y], &write, tolerance * if turn == 0 { 50.0 } else { 1.0 });
                    columns[way as usize] += 1;
                }
            }
        }
        assert!(columns[0] > 50 && columns[1] > 50, "{columns:?}");
    }

    /// What differs by coordinate, from integers, into a turned write.
    #[test]
    fn coordinates_and_integers() {
        let mut rng = Rng(2);
        for reduced in [[true, false, false], [false, true, false], [false, true, true], [true, false, true]] {
            let mut buffers = HostBuffers::new();
            let shape = [30, 20, 25];
            let x = View::contiguous(buffers.add(&rng.tensor(DType::I32, &shape)), DType::I32, &shape);
            let out: Vec<usize> = (0..3).map(|a| if reduced[a] { 1 } else { shape[a] }).collect();
            let lying: Vec<usize> = out.iter().rev().copied().collect();
            for dtype in [DType::F32, DType::I32] {
                let write =
                    View::contiguous(buffers.add_zeros(dtype, &lying).unwrap(), dtype, &lying).permuted(&[2, 1, 0]);
                let mut program = Program::new();
                let (x_id, c) = (program.input(0, DType::I32), program.coordinate(1));
                let c = program.cast(c, DType::I32);
                let sum = program.add(x_id, c);
                let sum = program.cast(sum, dtype);
                program.output(sum);
                let kernel =
                    Reduce { shape: shape.to_vec(), reduced: reduced.to_vec(), program, op: ReduceOp::Sum, scale: 1.0 };
                if dtype == DType::I32 && Reducer::compile(&kernel, std::slice::from_ref(&x), &write).is_none() {
                    continue;
                }
                check(&kernel, &buffers, std::slice::from_ref(&x), &write, 1e-6);
            }
        }
    }

    /// A million elements keep an f32's accuracy, in rows and in columns.
    #[test]
    fn long_sums_are_accurate() {
        let mut rng = Rng(7);
        let values: Vec<f32> = (0..1 << 20).map(|_| rng.unit() as f32 + 0.5).collect();
        for (shape, reduced) in
            [(vec![1 << 20], vec![true]), (vec![1 << 18, 4], vec![true, false]), (vec![4, 1 << 18], vec![false, true])]
        {
            let mut buffers = HostBuffers::new();
            let x = View::contiguous(buffers.add(&Tensor::new(&shape, &values).unwrap()), DType::F32, &shape);
            let out: Vec<usize> = shape.iter().zip(&reduced).map(|(n, r)| if *r { 1 } else { *n }).collect();
            let write = View::contiguous(buffers.add_zeros(DType::F32, &out).unwrap(), DType::F32, &out);
            let mut program = Program::new();
            let x_id = program.input(0, DType::F32);
            program.output(x_id);
            let kernel = Reduce { shape, reduced, program, op: ReduceOp::Sum, scale: 1.0 };
            check(&kernel, &buffers, &[x], &write, 2e-7);
        }
    }

    #[test]
    fn over_nothing_is_left_to_the_reference() {
        let x = View::contiguous(crate::kernel::BufferId(0), DType::F32, &[0, 3]);
        let write = View::contiguous(crate::kernel::BufferId(1), DType::F32, &[1, 3]);
        let mut program = Program::new();
        let x_id = program.input(0, DType::F32);
        program.output(x_id);
        let kernel = Reduce { shape: vec![0, 3], reduced: vec![true, false], program, op: ReduceOp::Sum, scale: 1.0 };
        assert!(Reducer::compile(&kernel, &[x], &write).is_none());
    }
}
