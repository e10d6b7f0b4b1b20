//! The texts of Fused, Reduce and Copy kernels: naga takes each of them, and kernels that differ in sizes share one. That they
//! compute the right thing is for the table of all backends to say.

use super::expr::on_host;
use super::lower::{Lower, lower};
use super::shader::Dispatch;
use super::status::Checks;
use super::testing::{places, validate};
use crate::error::{Kind, Result};
use crate::kernel::{
    Binary, BufferId, Expr, ExprId, Fused, Gather, Gemm, Kernel, Program, Reduce, ReduceOp, Scalar, Scatter, Step,
    Unary, View,
};
use crate::tensor::DType;
use std::cell::RefCell;
use std::collections::HashSet;

const UNARIES: [Unary; 11] = [
    Unary::Not,
    Unary::Neg,
    Unary::Abs,
    Unary::Sign,
    Unary::Exp,
    Unary::Log,
    Unary::Sqrt,
    Unary::Reciprocal,
    Unary::Erf,
    Unary::Tanh,
    Unary::Sigmoid,
];
const BINARIES: [Binary; 12] = [
    Binary::Add,
    Binary::Sub,
    Binary::Mul,
    Binary::Div,
    Binary::Pow,
    Binary::Min,
    Binary::Max,
    Binary::And,
    Binary::Or,
    Binary::Equal,
    Binary::Less,
    Binary::LessOrEqual,
];
const REDUCTIONS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min];

/// Every dtype that is computed on the GPU.
fn dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&d| d != DType::F64)
}

/// Operands on buffers of their own.
#[derive(Default)]
struct Memory {
    buffers: Vec<(DType, usize)>,
}

impl Memory {
    fn view(&mut self, dtype: DType, shape: &[usize]) -> View {
        let view = View::contiguous(BufferId(self.buffers.len() as u32), dtype, shape);
        self.buffers.push((dtype, view.len()));
        view
    }

    /// The dispatches of a step on devices of all kinds. All texts are valid; gives those of real hardware.
    fn lower(&self, kernel: Kernel, reads: Vec<View>, writes: Vec<View>) -> Result<Vec<Dispatch>> {
        let step = Step { kernel, reads, writes, from: "the case".into() };
        let mut result = Ok(Vec::new());
        let kinds = [(true, false, false), (false, true, true), (true, true, true), (false, false, false)];
        // Where there is no float16, two say it all.
        let of_halves = self.buffers.iter().any(|b| b.0 == DType::F16);
        for &(halves, software, lasting) in kinds.iter().skip(if of_halves { 0 } else { 2 }) {
            let mut places = places(&self.buffers, halves);
            places.software = software;
            places.places.iter_mut().flatten().for_each(|p| p.lasting = lasting);
            let mut checks = Checks::default();
            let mut cx = Lower::new(&places, &mut checks);
            result = lower(&step, &mut cx);
            for dispatch in result.iter().flatten() {
                // Most texts are those of earlier cases.
                thread_local!(static KNOWN: RefCell<HashSet<String>> = RefCell::default());
                if KNOWN.with_borrow_mut(|known| known.insert(dispatch.source.clone())) {
                    validate(dispatch);
                }
            }
        }
        result
    }
}

/// Over whole tensors of `shape`, one for each of `inputs`.
fn fused(inputs: &[DType], shape: &[usize], row_axes: usize, program: Program) -> Result<Vec<Dispatch>> {
    let mut memory = Memory::default();
    let reads = inputs.iter().map(|&d| memory.view(d, shape)).collect();
    let writes = program.outputs.iter().map(|&id| memory.view(program.dtype(id), shape)).collect();
    memory.lower(Kernel::Fused(Fused { shape: shape.to_vec(), row_axes, program }), reads, writes)
}

fn program(inputs: &[DType], make: impl FnOnce(&mut Program, &[ExprId]) -> Vec<ExprId>) -> Program {
    let mut p = Program::new();
    let x: Vec<ExprId> = inputs.iter().enumerate().map(|(k, &d)| p.input(k, d)).collect();
    make(&mut p, &x).into_iter().for_each(|id| p.output(id));
    p
}

/// Is it unsupported?
fn refused(result: &Result<Vec<Dispatch>>) -> bool {
    match result {
        Ok(_) => false,
        Err(e) => {
            assert_eq!(e.kind(), Kind::Unsupported, "{e}");
            true
        }
    }
}

#[test]
fn every_function_of_every_dtype() {
    for dtype in dtypes() {
        for op in UNARIES {
            let of_floats = !matches!(op, Unary::Not | Unary::Neg | Unary::Abs | Unary::Sign);
            let defined = match dtype {
                DType::Bool => op == Unary::Not,
                _ if dtype.is_float() => op != Unary::Not,
                _ => op != Unary::Not && !of_floats,
            };
            for shape in [&[5][..], &[0]] {
                let result = fused(&[dtype], shape, 0, program(&[dtype], |p, x| vec![p.unary(op, x[0])]));
                assert_eq!(refused(&result), !defined, "{op:?} of {dtype}");
            }
        }
        for op in BINARIES {
            let logical = matches!(op, Binary::And | Binary::Or);
            let of_all = op.compares() || matches!(op, Binary::Min | Binary::Max);
            let defined = of_all || logical == (dtype == DType::Bool);
            let result = fused(&[dtype; 2], &[5], 0, program(&[dtype; 2], |p, x| vec![p.binary(op, x[0], x[1])]));
            assert_eq!(refused(&result), !defined, "{op:?} of {dtype}");
        }
        for to in dtypes() {
            let cast = program(&[dtype], |p, x| vec![p.cast(x[0], to)]);
            assert!(!refused(&fused(&[dtype], &[5], 0, cast)));
            // Of something that is computed in f32 and not rounded yet.
            let cast = program(&[dtype; 2], |p, x| {
                let least = p.binary(Binary::Min, x[0], x[1]);
                vec![p.cast(least, to)]
            });
            assert!(!refused(&fused(&[dtype; 2], &[5], 0, cast)));
        }
    }
}

#[test]
fn every_constant() {
    let floats = [0.0, -0.0, 1.0, -1.0, 2.5, 1e-30, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
    let ints = [0, 1, -1, 2, 3, 255, 65535, i32::MIN.into(), u32::MAX.into(), i64::MIN, i64::MAX];
    let scalars = floats.map(Scalar::Float).into_iter().chain(ints.map(Scalar::Int));
    for (scalar, dtype) in scalars.flat_map(|s| DType::ALL.map(|d| (s, d))) {
        let constant = program(&[DType::Bool, dtype], |p, x| {
            let c = p.push(Expr::Const(scalar), dtype);
            vec![p.select(x[0], x[1], c)]
        });
        assert!(!refused(&fused(&[DType::Bool, dtype], &[5], 0, constant)), "{scalar:?} of {dtype}");
    }
}

/// Rows reduced in two passes, the second of which needs what the first gives; with places and random numbers.
fn rows(dtype: DType, op: ReduceOp) -> Program {
    program(&[dtype; 2], |p, x| {
        let (most, other) = (p.row(op, x[0]), p.row(op, x[1]));
        let less = p.binary(Binary::Less, x[0], most);
        let chosen = p.select(less, x[1], other);
        let again = p.row(op, chosen);
        let random = p.push(Expr::Random(3), DType::F32);
        let coordinate = p.coordinate(1);
        let place = p.cast(coordinate, DType::F32);
        let random = p.add(random, place);
        let sum = p.row(ReduceOp::Sum, random);
        vec![chosen, again, sum]
    })
}

#[test]
fn rows_of_every_length() {
    for dtype in dtypes() {
        for op in REDUCTIONS {
            for (shape, row_axes) in [
                (&[6, 10][..], 1),
                (&[6, 300], 1),
                (&[3, 9000], 1),
                (&[2, 3, 4000], 2),
                (&[4, 0], 1),
                (&[0, 4], 1),
                (&[4, 1], 1),
            ] {
                let program = rows(dtype, op);
                let mut memory = Memory::default();
                let first = shape.len() - row_axes;
                let narrow: Vec<usize> = (0..shape.len()).map(|a| if a < first { shape[a] } else { 1 }).collect();
                let a = memory.view(dtype, shape);
                let b = memory.view(dtype, &narrow).broadcast_to(shape);
                // The last axis first in memory.
                let mut axes: Vec<usize> = (0..shape.len()).collect();
                axes.rotate_right(1);
                let turned: Vec<usize> = axes.iter().map(|&a| shape[a]).collect();
                axes.rotate_left(2);
                let wide = memory.view(dtype, &turned).permuted(&axes);
                assert_eq!(wide.shape, shape);
                let writes = vec![wide, memory.view(dtype, &narrow), memory.view(DType::F32, &narrow)];
                let kernel = Fused { shape: shape.to_vec(), row_axes, program };
                let result = memory.lower(Kernel::Fused(kernel), vec![a, b], writes);
                assert_eq!(refused(&result), dtype == DType::Bool && op == ReduceOp::Sum);
                if let Ok(dispatches) = result {
                    assert_eq!(dispatches.len(), !shape[..first].contains(&0) as usize);
                }
            }
        }
    }
}

#[test]
fn reductions_over_every_axis() {
    for shape in [&[7][..], &[100_000], &[6, 40_000], &[40_000, 6], &[3, 700, 50], &[4, 0]] {
        for (mask, dtype) in (0..1usize << shape.len()).flat_map(|m| dtypes().map(move |d| (m, d))) {
            let reduced: Vec<bool> = (0..shape.len()).map(|a| mask >> a & 1 == 1).collect();
            let narrow: Vec<usize> = shape.iter().zip(&reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
            let mut memory = Memory::default();
            let (read, write) = (memory.view(dtype, shape), memory.view(dtype, &narrow));
            let scale = if dtype.is_float() {
                0.3
            } else if dtype == DType::Bool {
                1.0
            } else {
                3.0
            };
            let op = REDUCTIONS[mask % 3];
            let program = program(&[dtype], |_, x| vec![x[0]]);
            let kernel = Reduce { shape: shape.to_vec(), reduced, program, op, scale };
            let result = memory.lower(Kernel::Reduce(kernel), vec![read], vec![write]);
            let defined = dtype != DType::Bool || op != ReduceOp::Sum;
            assert_eq!(refused(&result), !defined, "{shape:?} {mask} {dtype}");
        }
    }
    let whole = |scale| {
        let mut memory = Memory::default();
        let (read, write) = (memory.view(DType::I32, &[9]), memory.view(DType::I32, &[1]));
        let program = program(&[DType::I32], |_, x| vec![x[0]]);
        let kernel = Reduce { shape: vec![9], reduced: vec![true], program, op: ReduceOp::Sum, scale };
        memory.lower(Kernel::Reduce(kernel), vec![read], vec![write])
    };
    assert!(!refused(&whole(2.0)) && refused(&whole(0.5)));
}

#[test]
fn copies_of_every_dtype() {
    for dtype in DType::ALL {
        for shape in [&[][..], &[7], &[40, 50, 60], &[3, 0]] {
            let mut memory = Memory::default();
            let mut turned = shape.to_vec();
            turned.reverse();
            let back: Vec<usize> = (0..shape.len()).rev().collect();
            let (read, write) = (memory.view(dtype, &turned).permuted(&back), memory.view(dtype, shape));
            let dispatches = memory.lower(Kernel::Copy, vec![read], vec![write]).unwrap();
            assert_eq!(dispatches.len(), !shape.contains(&0) as usize);
        }
    }
}

/// Numbers are parameters, so that one pipeline serves kernels of many sizes.
#[test]
fn kernels_of_other_sizes_share_a_text() {
    let text = |n: usize, m: usize, factor: f64| {
        let mut memory = Memory::default();
        let (a, b) = (memory.view(DType::F32, &[n, m]), memory.view(DType::F32, &[m]).broadcast_to(&[n, m]));
        let out = memory.view(DType::F32, &[n, m]);
        let program = program(&[DType::F32; 2], |p, x| {
            let sum = p.add(x[0], x[1]);
            vec![p.scale(sum, factor)]
        });
        let kernel = Fused { shape: vec![n, m], row_axes: 0, program };
        memory.lower(Kernel::Fused(kernel), vec![a, b], vec![out]).unwrap().remove(0).source
    };
    assert_eq!(text(3, 4, 0.3), text(500, 76, 0.7));
    // A contiguous operand needs no coordinates; the broadcast one does.
    assert_eq!(text(3, 4, 0.3).matches(" / ").count(), 1);
}

/// float64 is moved on the GPU, and computed on the host.
#[test]
fn arithmetic_of_float64_is_for_the_host() {
    let f64s = |op: &dyn Fn(&mut Program, ExprId, ExprId) -> ExprId| {
        let program = program(&[DType::Bool, DType::F64], |p, x| vec![op(p, x[0], x[1])]);
        Kernel::Fused(Fused { shape: vec![3], row_axes: 1, program })
    };
    let reduced = |dtype| {
        let program = program(&[dtype], |_, x| vec![x[0]]);
        Kernel::Reduce(Reduce { shape: vec![3], reduced: vec![true], program, op: ReduceOp::Sum, scale: 1.0 })
    };
    let of = |kernel: Kernel, dtype: DType| {
        let mut memory = Memory::default();
        let view = memory.view(dtype, &[3]);
        on_host(&Step { kernel, reads: vec![view.clone()], writes: vec![view], from: "the case".into() })
    };
    let zero = |p: &mut Program| p.constant(0.0, DType::F64);
    assert!(!of(f64s(&|_, _, x| x), DType::F64));
    assert!(!of(
        f64s(&|p, c, x| {
            let z = zero(p);
            p.select(c, x, z)
        }),
        DType::F64
    ));
    assert!(of(f64s(&|p, _, x| p.unary(Unary::Neg, x)), DType::F64));
    assert!(of(
        f64s(&|p, _, x| {
            let z = zero(p);
            p.binary(Binary::Less, x, z)
        }),
        DType::F64
    ));
    assert!(of(f64s(&|p, _, x| p.cast(x, DType::F32)), DType::F64));
    assert!(of(f64s(&|p, c, _| p.cast(c, DType::F64)), DType::F64));
    assert!(of(f64s(&|p, _, x| p.row(ReduceOp::Max, x)), DType::F64));
    assert!(of(reduced(DType::F64), DType::F64) && !of(reduced(DType::F32), DType::F32));
    let gemm = Kernel::Gemm(Gemm { alpha: 1.0, beta: 0.0 });
    assert!(of(gemm.clone(), DType::F64) && !of(gemm, DType::F32));
    assert!(!of(Kernel::Copy, DType::F64) && !of(Kernel::Gather(Gather { axis: 0 }), DType::F64));
    assert!(of(Kernel::Scatter(Scatter { axis: 0 }), DType::F64));
}
