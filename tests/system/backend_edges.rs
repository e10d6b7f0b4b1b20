//! The table of backend_table.rs for what lies at the edges: numbers at the ends of their dtypes, NaN and infinities, long and
//! few reductions, places and random numbers of axes in another order, results in place of operands.

use crate::backend_table::{Case, program};
use ontrain::kernel::{Binary, Expr, Fused, Kernel, Program, Reduce, ReduceOp, Unary, View};
use ontrain::tensor::{DType, Tensor};

/// An integer tensor; values are cut to the width of the dtype.
fn ints(dtype: DType, values: &[i64]) -> Tensor {
    let cut = |v: &i64| match dtype {
        DType::Bool => vec![(*v != 0) as u8],
        _ => v.to_le_bytes()[..dtype.size()].to_vec(),
    };
    Tensor::from_bytes(dtype, &[values.len()], &values.iter().flat_map(cut).collect::<Vec<u8>>()).unwrap()
}

/// All pairs.
fn pairs<T: Copy>(values: &[T]) -> (Vec<T>, Vec<T>) {
    values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b))).unzip()
}

fn whole(program: Program, len: usize) -> Kernel {
    Kernel::Fused(Fused { shape: vec![len], row_axes: 0, program })
}

const INTS: [DType; 8] = [DType::I8, DType::U8, DType::I16, DType::U16, DType::I32, DType::U32, DType::I64, DType::U64];

/// Values near the ends of every width and around 0.
fn extremes() -> Vec<i64> {
    let mut values = vec![0, 1, -1, 2, -2, 3, 7, -10, 63, 64, 0x1234_5678_9ABC_DEF0, -0x0FED_CBA9_8765_4321];
    for bits in [7, 8, 15, 16, 31, 32, 33, 62] {
        let end = 1i64 << bits;
        values.extend([end - 1, end, end + 1, -end, -end - 1]);
    }
    values.extend([i64::MIN, i64::MIN + 1, i64::MAX, i64::MAX - 1]);
    values
}

#[test]
fn integers_at_their_ends() {
    use Binary::*;
    let (left, right) = pairs(&extremes());
    for dtype in INTS {
        for op in [Add, Sub, Mul, Div, Pow, Min, Max, Equal, Less, LessOrEqual] {
            let mut case = Case::new(format!("{op:?} of {dtype} at the ends"));
            let (a, b) = (case.buffer(&ints(dtype, &left)), case.buffer(&ints(dtype, &right)));
            let out = case.numbers(if op.compares() { DType::Bool } else { dtype }, &[left.len()]);
            let p = program(dtype, 2, |p, x| vec![p.binary(op, x[0], x[1])]);
            case.read(a).read(b).write(out).check(whole(p, left.len()), 0.0);
        }
        for op in [Unary::Neg, Unary::Abs, Unary::Sign] {
            let mut case = Case::new(format!("{op:?} of {dtype} at the ends"));
            let a = case.buffer(&ints(dtype, &extremes()));
            let out = case.numbers(dtype, &a.shape.clone());
            let p = program(dtype, 1, |p, x| vec![p.unary(op, x[0])]);
            case.read(a).write(out).check(whole(p, extremes().len()), 0.0);
        }
    }
}

/// Floats where a cast to a narrower dtype turns: ties, ends of ranges, denormals.
fn turning_points() -> Vec<f64> {
    let mut values = vec![0.0, -0.0, 0.5, 0.99999994, 1.5, 2.5, 127.5, 128.9, 255.9, 256.0, 32767.5, 32768.0, 65535.9];
    for bits in [31, 32, 62, 63, 64] {
        let end = 2f64.powi(bits);
        values.extend([end, end * (1.0 - 2f64.powi(-24)), end * (1.0 + 2f64.powi(-23))]);
    }
    // float16: the end, the least normal number, the least one of all and half of it, ties.
    values.extend([65504.0, 65519.996, 65520.0, 65536.0, 2f64.powi(-14), 2f64.powi(-24), 2f64.powi(-25)]);
    values.extend([2f64.powi(-25) * 1.0001, 2f64.powi(-24) * 1.5, 2f64.powi(-14) * 0.9999, 2049.0, 2051.0, 2049.001]);
    // bfloat16: ties, and the end.
    values.extend([257.0, 259.0, 257.0001, 3.3895314e38, 3.3961775e38, 3.4e38, 1e-30]);
    values.extend([1e30, f64::INFINITY, f64::NAN]);
    values.iter().flat_map(|&v| [v, -v]).collect()
}

#[test]
fn casts_at_their_ends() {
    let floats = turning_points();
    for from in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for to in DType::ALL {
            let mut case = Case::new(format!("cast of {from} to {to} at the ends"));
            let a = case.buffer(&Tensor::from_f64s(from, &[floats.len()], &floats).unwrap());
            let out = case.numbers(to, &[floats.len()]);
            let p = program(from, 1, |p, x| vec![p.cast(x[0], to)]);
            case.read(a).write(out).relative().check(whole(p, floats.len()), 0.0);
        }
    }
    // Integers that f32 does not hold; those that 16-bit floats would round otherwise after f32 had rounded them.
    let mut values = extremes();
    for bits in [9, 12, 25, 30, 40, 53] {
        let tie = (1i64 << bits) + (1 << (bits - 9).max(0));
        values.extend([tie, tie + 1, tie - 1, -tie, -tie - 1]);
        let tie = (1i64 << bits) + (1 << (bits - 25).max(0)) + 1;
        values.extend([tie, tie + 1, tie - 1, -tie]);
    }
    for from in INTS.into_iter().chain([DType::Bool]) {
        for to in DType::ALL {
            let mut case = Case::new(format!("cast of {from} to {to} at the ends"));
            let a = case.buffer(&ints(from, &values));
            let out = case.numbers(to, &[values.len()]);
            let p = program(from, 1, |p, x| vec![p.cast(x[0], to)]);
            case.read(a).write(out).relative().check(whole(p, values.len()), 0.0);
        }
    }
    // Rounded to 16 bits on the way.
    for through in [DType::F16, DType::BF16, DType::I8, DType::U16] {
        let mut case = Case::new(format!("cast of float32 through {through}"));
        let a = case.buffer(&Tensor::from_f64s(DType::F32, &[floats.len()], &floats).unwrap());
        let out = case.numbers(DType::F32, &[floats.len()]);
        let p = program(DType::F32, 1, |p, x| {
            let narrow = p.cast(x[0], through);
            vec![p.cast(narrow, DType::F32)]
        });
        case.read(a).write(out).relative().check(whole(p, floats.len()), 0.0);
    }
}

#[test]
fn powers_at_their_ends() {
    let bases = [0.0, 1.0, 2.0, 0.5, 3.0, 0.7, 1.0000001, 0.9999999, 1e-20, 1e20, 1234.5, f64::INFINITY, f64::NAN];
    let exponents =
        [0.0, 1.0, 2.0, 3.0, 0.5, 1.0 / 3.0, 10.0, 31.0, 7.3, 100.5, 16777217.0, 1e10, f64::INFINITY, f64::NAN];
    let signed = |values: &[f64]| values.iter().flat_map(|&v| [v, -v]).collect::<Vec<f64>>();
    let (bases, exponents) = (signed(&bases), signed(&exponents));
    let shape = [bases.len(), exponents.len()];
    let mut case = Case::new("powers at the ends".into());
    let a = case.buffer(&Tensor::from_f64s(DType::F32, &[bases.len(), 1], &bases).unwrap()).broadcast_to(&shape);
    let b = case.buffer(&Tensor::from_f64s(DType::F32, &[exponents.len()], &exponents).unwrap()).broadcast_to(&shape);
    let out = case.numbers(DType::F32, &shape);
    let p = program(DType::F32, 2, |p, x| vec![p.binary(Binary::Pow, x[0], x[1])]);
    let kernel = Kernel::Fused(Fused { shape: shape.to_vec(), row_axes: 0, program: p });
    case.read(a).read(b).write(out).relative().check(kernel, 2e-6);

    // All over the range of results.
    let mut case = Case::new("powers in general".into());
    let len = 4000;
    let xs: Vec<f64> = (0..len).map(|_| (case.random.unit() * 40.0).exp()).collect();
    let ys: Vec<f64> = xs.iter().map(|x| case.random.unit() * 86.0 / x.ln().abs().max(1e-3)).collect();
    let tensor = |values: &[f64]| Tensor::from_f64s(DType::F32, &[len], values).unwrap();
    let (a, b) = (case.buffer(&tensor(&xs)), case.buffer(&tensor(&ys)));
    let out = case.numbers(DType::F32, &[len]);
    let p = program(DType::F32, 2, |p, x| vec![p.binary(Binary::Pow, x[0], x[1])]);
    case.read(a).read(b).write(out).relative().check(whole(p, len), 2e-6);
}

#[test]
fn functions_at_their_ends() {
    use Unary::*;
    let mut values = vec![0.0, 1e-30, 1e-10, 1e-4, 0.3, 0.6249, 0.625, 0.9249, 0.925, 1.0, 3.9, 4.1, 9.5, 20.0, 80.0];
    values.extend([100.0, 500.0, 1e10, 3e38, f64::INFINITY, f64::NAN]);
    let values: Vec<f64> = values.iter().flat_map(|&v| [v, -v]).collect();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        for op in [Neg, Abs, Sign, Exp, Log, Sqrt, Reciprocal, Erf, Tanh, Sigmoid] {
            let mut case = Case::new(format!("{op:?} of {dtype} at the ends"));
            let a = case.buffer(&Tensor::from_f64s(dtype, &[values.len()], &values).unwrap());
            let out = case.numbers(dtype, &[values.len()]);
            let p = program(dtype, 1, |p, x| vec![p.unary(op, x[0])]);
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 8e-3 };
            case.read(a).write(out).relative().check(whole(p, values.len()), tolerance);
        }
        let (left, right) = pairs(&values);
        for op in [Binary::Min, Binary::Max, Binary::Equal, Binary::Less, Binary::LessOrEqual, Binary::Div] {
            let mut case = Case::new(format!("{op:?} of {dtype} at the ends"));
            let a = case.buffer(&Tensor::from_f64s(dtype, &[left.len()], &left).unwrap());
            let b = case.buffer(&Tensor::from_f64s(dtype, &[left.len()], &right).unwrap());
            let out = case.numbers(if op.compares() { DType::Bool } else { dtype }, &[left.len()]);
            let p = program(dtype, 2, |p, x| vec![p.binary(op, x[0], x[1])]);
            let tolerance = if dtype == DType::F32 { 1e-6 } else { 8e-3 };
            case.read(a).read(b).write(out).relative().check(whole(p, left.len()), tolerance);
        }
    }
    // NaN wherever it stands in a row, and rows of infinities.
    for len in [5, 700] {
        for op in [ReduceOp::Max, ReduceOp::Min, ReduceOp::Sum] {
            let mut case = Case::new(format!("{op:?} of rows of {len} with NaN"));
            let mut values = vec![1.0; 5 * len];
            (values[0], values[len + len / 2], values[3 * len - 1]) = (f64::NAN, f64::NAN, f64::NAN);
            values[3 * len..4 * len].fill(f64::NEG_INFINITY);
            values[4 * len..].fill(f64::INFINITY);
            let a = case.buffer(&Tensor::from_f64s(DType::F32, &[5, len], &values).unwrap());
            let out = case.numbers(DType::F32, &[5, 1]);
            let p = program(DType::F32, 1, |p, x| vec![p.row(op, x[0])]);
            let kernel = Kernel::Fused(Fused { shape: vec![5, len], row_axes: 1, program: p });
            case.read(a).write(out).check(kernel, 0.0);
        }
    }
}

#[test]
fn constants_at_their_ends() {
    for dtype in INTS {
        for value in extremes().into_iter().step_by(3) {
            let mut case = Case::new(format!("constant {value} of {dtype}"));
            let (a, out) = (case.numbers(dtype, &[5]), case.numbers(dtype, &[5]));
            let p = program(dtype, 1, |p, x| {
                let c = p.push(Expr::Const(ontrain::kernel::Scalar::Int(value)), dtype);
                vec![p.add(x[0], c)]
            });
            case.read(a).write(out).check(whole(p, 5), 0.0);
        }
    }
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
        for value in turning_points().into_iter().step_by(3) {
            let mut case = Case::new(format!("constant {value} of {dtype}"));
            let (a, b, out) = (case.numbers(dtype, &[5]), case.numbers(DType::Bool, &[5]), case.numbers(dtype, &[5]));
            let mut p = Program::new();
            let (x, c) = (p.input(0, dtype), p.input(1, DType::Bool));
            let value = p.constant(value, dtype);
            let chosen = p.select(c, x, value);
            p.output(chosen);
            case.read(a).read(b).write(out).relative().check(whole(p, 5), 0.0);
        }
    }
}

/// Reductions that are cut into parts, in every order in which the operand may lie.
#[test]
fn long_reductions() {
    for (shape, reduced) in [
        (vec![40_003], vec![true]),
        (vec![3, 9001], vec![false, true]),
        (vec![9001, 3], vec![true, false]),
        (vec![3001, 70], vec![true, false]),
        (vec![7, 3, 1500], vec![true, false, true]),
        (vec![5, 1500, 6], vec![false, true, false]),
        (vec![2, 1100, 3, 7], vec![true, true, false, true]),
    ] {
        for (i, dtype) in [DType::F32, DType::F16, DType::I64, DType::U8, DType::Bool].into_iter().enumerate() {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
                if dtype == DType::Bool && op == ReduceOp::Sum {
                    continue;
                }
                let mut case = Case::new(format!("{op:?} of {dtype} {shape:?} over {reduced:?}"));
                let mut axes: Vec<usize> = (0..shape.len()).collect();
                if i % 2 == 1 {
                    axes.reverse();
                }
                let a = case.strided(dtype, &shape, &axes, 1);
                let narrow: Vec<usize> = shape.iter().zip(&reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
                let axes: Vec<usize> = (0..shape.len()).rev().collect();
                let out = case.strided(dtype, &narrow, &axes, 2);
                let p = program(dtype, 1, |_, x| vec![x[0]]);
                let scale = if dtype.is_float() { 0.01 } else { 1.0 };
                let kernel = Reduce { shape: shape.clone(), reduced: reduced.clone(), program: p, op, scale };
                let tolerance = if dtype == DType::F16 { 1e-3 } else { 1e-5 };
                case.read(a).write(out).check(Kernel::Reduce(kernel), tolerance);
            }
        }
    }
}

/// Random numbers and coordinates go by the kernel's axes, in whatever order it walks them.
#[test]
fn places_in_any_order() {
    let shape = vec![5, 7, 600];
    for axes in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let make = |p: &mut Program, x: ontrain::kernel::ExprId| {
            let random = p.push(Expr::Random(2), DType::F32);
            let mut sum = p.mul(random, x);
            for axis in 0..3 {
                let coordinate = p.coordinate(axis);
                let place = p.cast(coordinate, DType::F32);
                let part = p.scale(place, 0.01);
                sum = p.add(sum, part);
            }
            sum
        };
        for mask in 0..8 {
            let reduced: Vec<bool> = (0..3).map(|a| mask >> a & 1 == 1).collect();
            let narrow: Vec<usize> = shape.iter().zip(&reduced).map(|(&n, &r)| if r { 1 } else { n }).collect();
            let mut case = Case::new(format!("sums of places {axes:?} over {reduced:?}"));
            let a = case.strided(DType::F32, &shape, &axes, 1);
            let out = case.numbers(DType::F32, &narrow);
            let p = program(DType::F32, 1, |p, x| vec![make(p, x[0])]);
            let kernel = Reduce { shape: shape.clone(), reduced, program: p, op: ReduceOp::Sum, scale: 1.0 };
            case.read(a).write(out).check(Kernel::Reduce(kernel), 1e-5);
        }
        for row_axes in 0..3 {
            let mut case = Case::new(format!("places {axes:?} in rows of {row_axes} axes"));
            let a = case.strided(DType::F32, &shape, &axes, 1);
            let out = case.strided(DType::F32, &shape, &axes, 1);
            let narrow: Vec<usize> = (0..3).map(|a| if a < 3 - row_axes { shape[a] } else { 1 }).collect();
            let row = case.numbers(DType::F32, &narrow);
            let p = program(DType::F32, 1, |p, x| {
                let value = make(p, x[0]);
                match row_axes {
                    0 => vec![value, x[0]],
                    _ => {
                        let most = p.row(ReduceOp::Max, value);
                        vec![p.sub(value, most), most]
                    }
                }
            });
            let kernel = Fused { shape: shape.clone(), row_axes, program: p };
            case.read(a).write(out).write(row).check(Kernel::Fused(kernel), 1e-5);
        }
    }
}

/// A value of a row in place of one that the row is computed from; both along the row and for the row.
#[test]
fn rows_in_place() {
    for shape in [[3, 10], [40, 300], [3, 5000], [2, 20_000], [300, 10]] {
        for passes in [0, 1, 2] {
            let mut case = Case::new(format!("rows of {shape:?} in place, {passes} passes"));
            let a = case.numbers(DType::F32, &shape);
            let b = case.numbers(DType::F32, &[shape[0], 1]);
            let p = program(DType::F32, 2, |p, x| {
                let mut row = x[1];
                for _ in 0..passes {
                    let far = p.sub(x[0], row);
                    row = p.row(ReduceOp::Max, far);
                }
                let twice = p.add(row, x[1]);
                let product = p.mul(x[0], x[1]);
                vec![p.add(product, row), twice]
            });
            let (read_a, read_b) = (a.clone(), b.broadcast_to(&shape));
            let kernel = Kernel::Fused(Fused { shape: shape.to_vec(), row_axes: 1, program: p });
            case.read(read_a).read(read_b).write(a).write(b).check(kernel, 1e-6);
        }
    }
}

/// Large, with scalars, in place: as an optimizer's step is.
#[test]
fn many_elements_and_scalars() {
    for shape in [vec![100_003], vec![50, 2100], vec![33, 7, 512]] {
        let mut case = Case::new(format!("a step of {shape:?}"));
        let (w, g) = (case.numbers(DType::F32, &shape), case.numbers(DType::F32, &shape));
        let rate = case.numbers(DType::F32, &[1]).broadcast_to(&shape);
        let by_row = case.numbers(DType::F32, &shape[..1]);
        let tail = vec![1; shape.len() - 1];
        let by_row = by_row.reshaped(&[&shape[..1], &tail].concat()).unwrap().broadcast_to(&shape);
        let p = program(DType::F32, 4, |p, x| {
            let root = p.unary(Unary::Abs, x[2]);
            let root = p.unary(Unary::Sqrt, root);
            let step = p.mul(x[1], root);
            let step = p.mul(step, x[3]);
            vec![p.sub(x[0], step), x[1]]
        });
        let out = case.numbers(DType::F32, &shape);
        let kernel = Fused { shape, row_axes: 0, program: p };
        let case = case.read(w.clone()).read(g).read(rate).read(by_row).write(w).write(out);
        case.check(Kernel::Fused(kernel), 1e-6);
    }
}

/// Values for rows of a kernel that reduces nothing, and one that is the same along the row although nothing says so.
#[test]
fn values_of_rows_without_reductions() {
    for shape in [[4, 6], [40, 1], [1, 300], [1, 1]] {
        let mut case = Case::new(format!("values of rows {shape:?}"));
        let (a, b) = (case.numbers(DType::F32, &[shape[0], 1]), case.numbers(DType::F32, &shape));
        let (of_row, of_all, first) = (
            case.numbers(DType::F32, &[shape[0], 1]),
            case.numbers(DType::F32, &shape),
            case.numbers(DType::F32, &[shape[0], 1]),
        );
        let p = program(DType::F32, 2, |p, x| {
            let zero = p.scale(x[1], 0.0);
            vec![p.unary(Unary::Exp, x[0]), p.add(x[0], x[1]), p.add(zero, x[0])]
        });
        let kernel = Fused { shape: shape.to_vec(), row_axes: 1, program: p };
        let read = a.broadcast_to(&shape);
        case.read(read).read(b).write(of_row).write(of_all).write(first).check(Kernel::Fused(kernel), 1e-6);
    }
}

/// float64 is moved on every device, and computed on those that can, or on the host.
#[test]
fn float64() {
    let shape = [3, 40];
    let mut case = Case::new("select of float64".into());
    let (c, a) = (case.numbers(DType::Bool, &shape), case.strided(DType::F64, &shape, &[1, 0], -1));
    let (b, out) = (case.numbers(DType::F64, &[40]).broadcast_to(&shape), case.numbers(DType::F64, &shape));
    let mut p = Program::new();
    let (x, y, z) = (p.input(0, DType::Bool), p.input(1, DType::F64), p.input(2, DType::F64));
    let chosen = p.select(x, y, z);
    p.output(chosen);
    let kernel = Kernel::Fused(Fused { shape: shape.to_vec(), row_axes: 0, program: p });
    case.read(c).read(a).read(b).write(out).check(kernel, 0.0);

    let mut case = Case::new("sums of float64".into());
    let (a, out) = (case.numbers(DType::F64, &shape), case.numbers(DType::Bool, &[3, 1]));
    let p = program(DType::F64, 1, |p, x| {
        let sum = p.row(ReduceOp::Sum, x[0]);
        let zero = p.constant(0.0, DType::F64);
        vec![p.binary(Binary::Less, zero, sum)]
    });
    let kernel = Kernel::Fused(Fused { shape: shape.to_vec(), row_axes: 1, program: p });
    case.read(a).write(out).check(kernel, 0.0);
}

/// Shapes without elements, and operations that are not defined.
#[test]
fn nothing_and_the_undefined() {
    for dtype in [DType::F32, DType::I32, DType::Bool, DType::I64, DType::U16] {
        for op in [Unary::Exp, Unary::Not, Unary::Neg] {
            let mut case = Case::new(format!("{op:?} of {dtype}"));
            let (a, out) = (case.numbers(dtype, &[7]), case.numbers(dtype, &[7]));
            let p = program(dtype, 1, |p, x| vec![p.unary(op, x[0])]);
            case.read(a).write(out).check(whole(p, 7), 1e-5);
        }
        for shape in [[0, 3], [3, 0], [3, 4]] {
            for op in [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min] {
                if dtype == DType::Bool && op == ReduceOp::Sum {
                    continue;
                }
                let mut case = Case::new(format!("row {op:?} of {dtype} {shape:?}"));
                let a = case.numbers(dtype, &shape);
                let b = case.numbers(dtype, &[shape[0], 1]);
                let out = case.numbers(dtype, &[shape[0], 1]);
                let p = program(dtype, 2, |p, x| {
                    let row = p.row(op, x[0]);
                    vec![p.binary(Binary::Max, row, x[1])]
                });
                let kernel = Kernel::Fused(Fused { shape: shape.to_vec(), row_axes: 1, program: p });
                let read: View = b.broadcast_to(&shape);
                case.read(a).read(read).write(out).check(kernel, 1e-5);
            }
        }
    }
}
