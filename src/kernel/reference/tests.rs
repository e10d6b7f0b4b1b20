//! Hand-computed values of every kernel, and the adjoint identities of the linear ones.

use super::super::*;
use super::{HostBuffers, run};
use crate::error::{Kind, Result};
use crate::tensor::{DType, Tensor};

/// Runs `kernel` on tensors seen through views; `view` may bend each read's contiguous view.
struct Case {
    buffers: HostBuffers,
    reads: Vec<View>,
}

impl Case {
    fn new(reads: &[&Tensor]) -> Self {
        let mut buffers = HostBuffers::new();
        let reads = reads.iter().map(|t| View::contiguous(buffers.add(t), t.dtype(), t.shape())).collect();
        Self { buffers, reads }
    }

    fn bend(mut self, k: usize, view: impl FnOnce(&View) -> View) -> Self {
        self.reads[k] = view(&self.reads[k]);
        self
    }

    fn try_run(mut self, kernel: Kernel, outs: &[(DType, &[usize])]) -> Result<Vec<Tensor>> {
        let mut writes = Vec::new();
        for &(dtype, shape) in outs {
            let id = self.buffers.add_zeros(dtype, shape)?;
            // Kernels must not rely on cleared memory.
            self.buffers.bytes_mut(id).fill(1);
            writes.push(View::contiguous(id, dtype, shape));
        }
        let step = Step { kernel, reads: self.reads, writes, from: "Node \"n\"".into() };
        run(&step, &mut self.buffers, &RunContext::new(5, 2))?;
        step.writes.iter().map(|w| self.buffers.read(w)).collect()
    }

    fn run(self, kernel: Kernel, dtype: DType, shape: &[usize]) -> Tensor {
        self.try_run(kernel, &[(dtype, shape)]).unwrap().remove(0)
    }
}

fn f32s(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::new(shape, values).unwrap()
}

/// Deterministic numbers in -1..1.
fn noise(dtype: DType, shape: &[usize], stream: u32) -> Tensor {
    let len: usize = shape.iter().product();
    let values: Vec<f64> =
        (0..len).map(|i| philox::uniform(&RunContext::new(1, 0), stream, i as u64) as f64 * 2.0 - 1.0).collect();
    Tensor::from_f64s(dtype, shape, &values).unwrap()
}

fn dot(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.shape(), b.shape());
    a.to_f64s().iter().zip(b.to_f64s()).map(|(a, b)| a * b).sum()
}

fn assert_close(a: f64, b: f64) {
    assert!((a - b).abs() <= 1e-12 * a.abs().max(1.0), "{a} and {b}");
}

fn fused(shape: &[usize], row_axes: usize, build: impl FnOnce(&mut Program)) -> Kernel {
    let mut program = Program::new();
    build(&mut program);
    Kernel::Fused(Fused { shape: shape.to_vec(), row_axes, program })
}

/// The values of a function of two tensors of one dtype.
fn apply2(op: Binary, a: &Tensor, b: &Tensor) -> Tensor {
    let kernel = fused(a.shape(), 0, |p| {
        let (a, b) = (p.input(0, a.dtype()), p.input(1, b.dtype()));
        let y = p.binary(op, a, b);
        p.output(y);
    });
    let out = if op.compares() { DType::Bool } else { a.dtype() };
    Case::new(&[a, b]).run(kernel, out, a.shape())
}

fn apply1(op: Unary, a: &Tensor) -> Result<Tensor> {
    let kernel = fused(a.shape(), 0, |p| {
        let a = p.input(0, a.dtype());
        let y = p.unary(op, a);
        p.output(y);
    });
    Ok(Case::new(&[a]).try_run(kernel, &[(a.dtype(), a.shape())])?.remove(0))
}

fn cast(a: &Tensor, dtype: DType) -> Tensor {
    let kernel = fused(a.shape(), 0, |p| {
        let a = p.input(0, a.dtype());
        let y = p.cast(a, dtype);
        p.output(y);
    });
    Case::new(&[a]).run(kernel, dtype, a.shape())
}

#[test]
fn fused_reads_backwards_and_broadcast() {
    let a = f32s(&[2, 3], &[1., 2., 3., 4., 5., 6.]);
    let b = f32s(&[3], &[10., 20., 30.]);
    let kernel = fused(&[2, 3], 0, |p| {
        let (a, b) = (p.input(0, DType::F32), p.input(1, DType::F32));
        let sum = p.add(a, b);
        let rows = p.coordinate(0);
        let columns = p.coordinate(1);
        let index = p.binary(Binary::Mul, rows, columns);
        p.output(sum);
        p.output(index);
    });
    let case = Case::new(&[&a, &b]).bend(0, |v| v.sliced(0, 1, -1, 2).sliced(1, 2, -1, 3));
    let outs = case
        .bend(1, |v| v.broadcast_to(&[2, 3]))
        .try_run(kernel, &[(DType::F32, &[2, 3]), (DType::I64, &[2, 3])])
        .unwrap();
    assert_eq!(outs[0], f32s(&[2, 3], &[16., 25., 34., 13., 22., 31.]));
    assert_eq!(outs[1], Tensor::new(&[2, 3], &[0i64, 0, 0, 0, 1, 2]).unwrap());
}

#[test]
fn fused_writes_in_place_and_through_strides() {
    let mut buffers = HostBuffers::new();
    let id = buffers.add(&f32s(&[2, 2], &[1., 2., 3., 4.]));
    let whole = View::contiguous(id, DType::F32, &[2, 2]);
    // Transposed onto itself: right only if everything is read first.
    let kernel = fused(&[2, 2], 0, |p| {
        let a = p.input(0, DType::F32);
        let y = p.scale(a, 10.0);
        p.output(y);
    });
    let step = Step { kernel, reads: vec![whole.permuted(&[1, 0])], writes: vec![whole.clone()], from: "n".into() };
    run(&step, &mut buffers, &RunContext::default()).unwrap();
    assert_eq!(buffers.read(&whole).unwrap(), f32s(&[2, 2], &[10., 30., 20., 40.]));
    let copy = Step {
        kernel: Kernel::Copy,
        reads: vec![whole.sliced(0, 1, 1, 1)],
        writes: vec![whole.sliced(0, 0, 1, 1).sliced(1, 1, -1, 2)],
        ..step
    };
    run(&copy, &mut buffers, &RunContext::default()).unwrap();
    assert_eq!(buffers.read(&whole).unwrap(), f32s(&[2, 2], &[40., 20., 20., 40.]));
}

fn softmax(p: &mut Program) -> ExprId {
    let x = p.input(0, DType::F64);
    let max = p.row(ReduceOp::Max, x);
    let shifted = p.sub(x, max);
    let exp = p.unary(Unary::Exp, shifted);
    let sum = p.row(ReduceOp::Sum, exp);
    p.div(exp, sum)
}

#[test]
fn softmax_over_rows() {
    let ln = |x: f64| x.ln() + 1000.0;
    let x = Tensor::new(&[2, 3], &[ln(1.), ln(2.), ln(5.), ln(3.), ln(1.), ln(4.)]).unwrap();
    let kernel = fused(&[2, 3], 1, |p| {
        let y = softmax(p);
        p.output(y);
    });
    let y = Case::new(&[&x]).run(kernel, DType::F64, &[2, 3]).to_f64s();
    for (y, want) in y.iter().zip([0.125, 0.25, 0.625, 0.375, 0.125, 0.5]) {
        assert!((y - want).abs() < 1e-12);
    }
}

#[test]
fn rows_of_two_axes_give_reduced_writes() {
    let x = f32s(&[2, 2, 3], &[1., -2., 3., 4., 5., 6., -1., -1., -1., -1., -7., -1.]);
    let kernel = fused(&[2, 2, 3], 2, |p| {
        let x = p.input(0, DType::F32);
        let sum = p.row(ReduceOp::Sum, x);
        let min = p.row(ReduceOp::Min, x);
        let centred = p.sub(x, min);
        p.output(sum);
        p.output(centred);
    });
    let outs = Case::new(&[&x]).try_run(kernel, &[(DType::F32, &[2, 1, 1]), (DType::F32, &[2, 2, 3])]).unwrap();
    assert_eq!(outs[0], f32s(&[2, 1, 1], &[17., -12.]));
    assert_eq!(outs[1], f32s(&[2, 2, 3], &[3., 0., 5., 6., 7., 8., 6., 6., 6., 6., 0., 6.]));
}

/// log(sum(exp(x))) + g over rows of no elements is -inf + g.
#[test]
fn empty_rows_reduce_to_the_identity() {
    let (x, g) = (f32s(&[2, 0], &[]), f32s(&[2, 1], &[1., 2.]));
    let kernel = fused(&[2, 0], 1, |p| {
        let (x, g) = (p.input(0, DType::F32), p.input(1, DType::F32));
        let sum = p.row(ReduceOp::Sum, x);
        let log = p.unary(Unary::Log, sum);
        let both = p.add(sum, g);
        for y in [log, both, x] {
            p.output(y);
        }
    });
    let outs: [(DType, &[usize]); 3] = [(DType::F32, &[2, 1]), (DType::F32, &[2, 1]), (DType::F32, &[2, 0])];
    let outs = Case::new(&[&x, &g]).bend(1, |v| v.broadcast_to(&[2, 0])).try_run(kernel, &outs).unwrap();
    assert_eq!(outs[0], f32s(&[2, 1], &[f32::NEG_INFINITY; 2]));
    assert_eq!(outs[1], g);
    assert!(outs[2].is_empty());
}

#[test]
fn float_functions() {
    let x = Tensor::new(&[4], &[-800.0, -0.5, 0.0, 800.0]).unwrap();
    let sigmoid = apply1(Unary::Sigmoid, &x).unwrap().to_f64s();
    assert_eq!((sigmoid[0], sigmoid[2], sigmoid[3]), (0.0, 0.5, 1.0));
    assert_close(sigmoid[1], 1.0 / (1.0 + 0.5f64.exp()));
    assert_eq!(apply1(Unary::Sign, &x).unwrap().to_f64s(), [-1.0, -1.0, 0.0, 1.0]);
    let nan = Tensor::new(&[3], &[f64::NAN, 1.0, f64::NAN]).unwrap();
    let one = Tensor::new(&[3], &[1.0, f64::NAN, 2.0]).unwrap();
    for op in [Binary::Min, Binary::Max] {
        assert!(apply2(op, &nan, &one).to_f64s().iter().all(|x| x.is_nan()), "{op:?}");
    }
    assert!(apply1(Unary::Sign, &nan).unwrap().to_f64s()[0].is_nan());
    assert_eq!(apply2(Binary::LessOrEqual, &nan, &one).to_f64s(), [0.0; 3]);
    let (a, b) = (f32s(&[2], &[2.0, 9.0]), f32s(&[2], &[-1.0, 0.5]));
    assert_eq!(apply2(Binary::Pow, &a, &b), f32s(&[2], &[0.5, 3.0]));
    assert_eq!(apply2(Binary::Max, &a, &b), a);
    assert_eq!(apply2(Binary::Min, &a, &b), b);
}

#[test]
fn sixteen_bits_round_where_stored() {
    // 2048 + 1 + 1 in f16: 2050 unless the sum is rounded in between.
    let one = Tensor::from_f64s(DType::F16, &[1], &[1.0]).unwrap();
    let kernel = fused(&[1], 0, |p| {
        let one = p.input(0, DType::F16);
        let big = p.constant(2048.0, DType::F16);
        let once = p.add(big, one);
        let twice = p.add(once, one);
        let wide = p.cast(once, DType::F32);
        p.output(twice);
        p.output(wide);
    });
    let outs = Case::new(&[&one]).try_run(kernel, &[(DType::F16, &[1]), (DType::F32, &[1])]).unwrap();
    assert_eq!((outs[0].to_f64s()[0], outs[1].to_f64s()[0]), (2050.0, 2048.0));
    // Just above a tie, by less than what an f32 holds.
    let above = Tensor::new(&[2], &[1.0 + 2f64.powi(-11) + 2f64.powi(-40), 1.0 + 2f64.powi(-11)]).unwrap();
    assert_eq!(cast(&above, DType::F16).to_f64s(), [1.0 + 2f64.powi(-10), 1.0]);
    let above = Tensor::new(&[2], &[1.0 + 2f64.powi(-8) + 2f64.powi(-40), 1.0 + 2f64.powi(-8)]).unwrap();
    assert_eq!(cast(&above, DType::BF16).to_f64s(), [1.0 + 2f64.powi(-7), 1.0]);
}

#[test]
fn casts_are_those_of_onnx() {
    let x = f32s(&[6], &[-1.9, 1.9, 300.0, f32::NAN, -3e20, f32::INFINITY]);
    let cases: [(DType, [i64; 6]); 6] = [
        (DType::U8, [0, 1, 255, 0, 0, 255]),
        (DType::I8, [-1, 1, 127, 0, -128, 127]),
        (DType::U32, [0, 1, 300, 0, 0, u32::MAX as i64]),
        (DType::I64, [-1, 1, 300, 0, i64::MIN, i64::MAX]),
        (DType::U64, [0, 1, 300, 0, 0, -1]),
        (DType::Bool, [1, 1, 1, 1, 1, 1]),
    ];
    for (dtype, want) in cases {
        assert_eq!(cast(&x, dtype).to_i64s().unwrap(), want, "{dtype}");
    }
    let ints = Tensor::new(&[3], &[-1i32, 0, 257]).unwrap();
    assert_eq!(cast(&ints, DType::U8).to_i64s().unwrap(), [255, 0, 1]);
    assert_eq!(cast(&ints, DType::U64).to_f64s()[0], u64::MAX as f64);
    assert_eq!(cast(&ints, DType::Bool).to_i64s().unwrap(), [1, 0, 1]);
    let large = Tensor::new(&[1], &[u64::MAX]).unwrap();
    assert_eq!(cast(&large, DType::F32), f32s(&[1], &[18446744073709551615.0]));
    // i64 to f32 rounds once: through f64 this would become a tie and round down.
    let once = Tensor::new(&[1], &[(1i64 << 60) + (1 << 36) + 1]).unwrap();
    assert_eq!(cast(&once, DType::F32).to_f64s(), [(1u64 << 60) as f64 + (1u64 << 37) as f64]);
    let bools = Tensor::from_bools(&[2], &[true, false]).unwrap();
    assert_eq!(cast(&bools, DType::F32), f32s(&[2], &[1.0, 0.0]));
}

#[test]
fn integers_wrap_and_divide() {
    fn of<T: crate::tensor::Element>(op: Binary, a: T, b: T) -> i64 {
        let (a, b) = (Tensor::new(&[1], &[a]).unwrap(), Tensor::new(&[1], &[b]).unwrap());
        apply2(op, &a, &b).to_i64s().unwrap()[0]
    }
    assert_eq!(of(Binary::Add, 200u8, 100), 44);
    assert_eq!(of(Binary::Sub, 1u16, 2), 65535);
    assert_eq!(of(Binary::Mul, 100i8, 2), -56);
    assert_eq!(of(Binary::Add, i64::MAX, 1), i64::MIN);
    assert_eq!(
        (of(Binary::Div, -7i32, 2), of(Binary::Div, 7i32, 0), of(Binary::Div, i32::MIN, -1)),
        (-3, 0, i32::MIN as i64)
    );
    assert_eq!((of(Binary::Div, u64::MAX, 2), of(Binary::Div, 3u64, 0)), (i64::MAX, 0));
    assert_eq!((of(Binary::Less, 1u64, u64::MAX), of(Binary::LessOrEqual, u64::MAX, 1)), (1, 0));
    assert_eq!((of(Binary::Max, 1u64, u64::MAX), of(Binary::Min, 1u64, u64::MAX)), (-1, 1));
    assert_eq!((of(Binary::Pow, 3i32, 4), of(Binary::Pow, 2i32, -1), of(Binary::Pow, -1i32, -3)), (81, 0, -1));
    assert_eq!((of(Binary::Pow, 1i32, -5), of(Binary::Pow, 2u8, 9), of(Binary::Pow, -1i64, -2)), (1, 0, 1));
    let x = Tensor::new(&[2], &[-128i8, 5]).unwrap();
    assert_eq!(apply1(Unary::Abs, &x).unwrap().to_i64s().unwrap(), [-128, 5]);
    assert_eq!(apply1(Unary::Sign, &x).unwrap().to_i64s().unwrap(), [-1, 1]);
    let error = apply1(Unary::Exp, &x).unwrap_err();
    assert_eq!((error.kind(), error.place()), (Kind::Unsupported, Some("Node \"n\"")));
}

#[test]
fn bools_and_select() {
    let (a, b) = ([true, true, false, false], [true, false, true, false]);
    let (a, b) = (Tensor::from_bools(&[4], &a).unwrap(), Tensor::from_bools(&[4], &b).unwrap());
    assert_eq!(apply2(Binary::And, &a, &b).to_i64s().unwrap(), [1, 0, 0, 0]);
    assert_eq!(apply2(Binary::Or, &a, &b).to_i64s().unwrap(), [1, 1, 1, 0]);
    assert_eq!(apply1(Unary::Not, &a).unwrap().to_i64s().unwrap(), [0, 0, 1, 1]);
    let x = f32s(&[4], &[1., 2., 3., f32::NAN]);
    let kernel = fused(&[4], 0, |p| {
        let (c, x) = (p.input(0, DType::Bool), p.input(1, DType::F32));
        let zero = p.constant(0.0, DType::F32);
        let y = p.select(c, x, zero);
        p.output(y);
    });
    assert_eq!(Case::new(&[&a, &x]).run(kernel, DType::F32, &[4]), f32s(&[4], &[1., 2., 0., 0.]));
}

#[test]
fn random_is_philox() {
    let kernel = fused(&[2, 3], 0, |p| {
        let y = p.push(Expr::Random(4), DType::F32);
        p.output(y);
    });
    let cx = RunContext::new(5, 2);
    let want: Vec<f32> = (0..6).map(|i| philox::uniform(&cx, 4, i)).collect();
    assert_eq!(Case::new(&[]).run(kernel, DType::F32, &[2, 3]), f32s(&[2, 3], &want));
}

fn reduce(shape: &[usize], reduced: &[bool], op: ReduceOp, scale: f64, dtype: DType) -> Kernel {
    let mut program = Program::new();
    let x = program.input(0, dtype);
    let squared = program.mul(x, x);
    program.output(if op == ReduceOp::Sum { squared } else { x });
    Kernel::Reduce(Reduce { shape: shape.to_vec(), reduced: reduced.to_vec(), program, op, scale })
}

#[test]
fn reductions() {
    let x = f32s(&[2, 2, 2], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    let kernel = reduce(&[2, 2, 2], &[true, false, true], ReduceOp::Sum, 0.5, DType::F32);
    assert_eq!(Case::new(&[&x]).run(kernel, DType::F32, &[1, 2, 1]), f32s(&[1, 2, 1], &[33., 69.]));
    let kernel = reduce(&[2, 2, 2], &[false, true, false], ReduceOp::Max, 1.0, DType::F32);
    let y = Case::new(&[&x]).bend(0, |v| v.permuted(&[2, 0, 1])).run(kernel, DType::F32, &[2, 1, 2]);
    assert_eq!(y, f32s(&[2, 1, 2], &[5., 7., 6., 8.]));
    let bytes = Tensor::new(&[3], &[10u8, 12, 3]).unwrap();
    let kernel = reduce(&[3], &[true], ReduceOp::Sum, 1.0, DType::U8);
    assert_eq!(Case::new(&[&bytes]).run(kernel, DType::U8, &[1]).to_i64s().unwrap(), [253]);
    // Of nothing.
    for (op, dtype, want) in [
        (ReduceOp::Sum, DType::F32, 0.0),
        (ReduceOp::Max, DType::F32, f64::NEG_INFINITY),
        (ReduceOp::Min, DType::I8, 127.0),
        (ReduceOp::Max, DType::I32, i32::MIN as f64),
        (ReduceOp::Min, DType::U64, u64::MAX as f64),
    ] {
        let none = Tensor::zeros(dtype, &[2, 0]).unwrap();
        let y = Case::new(&[&none]).run(reduce(&[2, 0], &[false, true], op, 1.0, dtype), dtype, &[2, 1]);
        assert_eq!(y.to_f64s(), [want; 2], "{op:?} {dtype}");
    }
}

#[test]
fn matrix_products() {
    let a = f32s(&[2, 2, 3], &[1., 2., 3., 4., 5., 6., 0., 1., 0., 1., 0., 1.]);
    let b = f32s(&[2, 3], &[1., 0., 2., -1., 1., 1.]);
    let c = f32s(&[2], &[100., 200.]);
    let gemm = Kernel::Gemm(Gemm { alpha: 2.0, beta: 0.5 });
    // b is transposed by strides and repeated over the batch; c is repeated over rows and batch.
    let y = Case::new(&[&a, &b, &c])
        .bend(1, |v| v.permuted(&[1, 0]).broadcast_to(&[2, 3, 2]))
        .bend(2, |v| v.broadcast_to(&[2, 2, 2]))
        .run(gemm, DType::F32, &[2, 2, 2]);
    assert_eq!(y, f32s(&[2, 2, 2], &[64., 108., 82., 114., 50., 102., 56., 100.]));
    // 16 * 16 = 256 wraps; uint8 into int32 does not.
    let bytes = Tensor::new(&[1, 1], &[16u8]).unwrap();
    let plain = Kernel::Gemm(Gemm { alpha: 1.0, beta: 0.0 });
    assert_eq!(Case::new(&[&bytes, &bytes]).run(plain.clone(), DType::U8, &[1, 1]).to_i64s().unwrap(), [0]);
    assert_eq!(Case::new(&[&bytes, &bytes]).run(plain.clone(), DType::I32, &[1, 1]).to_i64s().unwrap(), [256]);
    // An inner size of 0 gives zeros.
    let (a, b) = (f32s(&[2, 0], &[]), f32s(&[0, 1], &[]));
    assert_eq!(Case::new(&[&a, &b]).run(plain, DType::F32, &[2, 1]), f32s(&[2, 1], &[0., 0.]));
}

fn conv(direction: Direction, groups: usize, strides: &[usize], dilations: &[usize], pads: &[usize]) -> Kernel {
    let (strides, dilations, pads_begin) = (strides.to_vec(), dilations.to_vec(), pads.to_vec());
    Kernel::Conv(Conv { direction, groups, strides, dilations, pads_begin })
}

#[test]
fn convolution_by_hand() {
    let x = f32s(&[1, 1, 3, 3], &[1., 2., 3., 4., 5., 6., 7., 8., 9.]);
    let w = f32s(&[1, 1, 2, 2], &[1., 0., 0., -1.]);
    let bias = f32s(&[1], &[10.]);
    let kernel = conv(Direction::Forward, 1, &[1, 2], &[1, 1], &[1, 0]);
    // Pads 1 row above and none elsewhere: rows -1..2, columns 0 and (past the end) none.
    let y = Case::new(&[&x, &w, &bias]).run(kernel, DType::F32, &[1, 1, 3, 1]);
    assert_eq!(y, f32s(&[1, 1, 3, 1], &[8., 6., 6.]));
}

/// `<conv(x, w), dy> = <x, dx> = <w, dw>`, and conv itself against a definition spelled out in 2-d.
#[test]
fn convolution_directions_are_adjoint() {
    let (xs, ws, ys) = ([2, 4, 7, 6], [6, 2, 3, 2], [2, 6, 3, 5]);
    let (groups, strides, dilations, pads) = (2, [2, 1], [1, 3], [0, 1]);
    let (x, w, dy) = (noise(DType::F64, &xs, 1), noise(DType::F64, &ws, 2), noise(DType::F64, &ys, 3));
    let kernel = |direction| conv(direction, groups, &strides, &dilations, &pads);
    let y = Case::new(&[&x, &w]).run(kernel(Direction::Forward), DType::F64, &ys);
    let dx = Case::new(&[&dy, &w]).run(kernel(Direction::InputGrad), DType::F64, &xs);
    let dw = Case::new(&[&dy, &x]).run(kernel(Direction::WeightGrad), DType::F64, &ws);
    assert!(dot(&y, &dy).abs() > 1e-3);
    assert_close(dot(&y, &dy), dot(&x, &dx));
    assert_close(dot(&y, &dy), dot(&w, &dw));

    let (xv, wv, yv) = (x.to_f64s(), w.to_f64s(), y.to_f64s());
    let mut at = 0;
    for n in 0..2 {
        for m in 0..6 {
            for oh in 0..3 {
                for ow in 0..5 {
                    let mut sum = 0.0;
                    for c in 0..2 {
                        for kh in 0..3 {
                            for kw in 0..2 {
                                let (h, v) = (oh * 2 + kh, (ow + kw * 3) as isize - 1);
                                if (0..6).contains(&v) {
                                    let channel = m / 3 * 2 + c;
                                    sum += xv[((n * 4 + channel) * 7 + h) * 6 + v as usize]
                                        * wv[((m * 2 + c) * 3 + kh) * 2 + kw];
                                }
                            }
                        }
                    }
                    assert_close(yv[at], sum);
                    at += 1;
                }
            }
        }
    }
}

#[test]
fn convolution_in_one_and_three_dimensions() {
    for (xs, ws, ys) in
        [(vec![1, 2, 9], vec![3, 2, 3], vec![1, 3, 4]), (vec![1, 1, 4, 3, 5], vec![2, 1, 2, 3, 2], vec![1, 2, 2, 1, 2])]
    {
        let axes = xs.len() - 2;
        let kernel = |d| conv(d, 1, &vec![2; axes], &vec![1; axes], &vec![0; axes]);
        let (x, w, dy) = (noise(DType::F64, &xs, 1), noise(DType::F64, &ws, 2), noise(DType::F64, &ys, 3));
        let y = Case::new(&[&x, &w]).run(kernel(Direction::Forward), DType::F64, &ys);
        let dx = Case::new(&[&dy, &w]).run(kernel(Direction::InputGrad), DType::F64, &xs);
        let dw = Case::new(&[&dy, &x]).run(kernel(Direction::WeightGrad), DType::F64, &ws);
        assert_close(dot(&y, &dy), dot(&x, &dx));
        assert_close(dot(&y, &dy), dot(&w, &dw));
    }
}

fn pool(kind: PoolKind, window: &[usize], strides: &[usize], pads: (&[usize], &[usize])) -> Pool {
    let (pads_begin, pads_end) = (pads.0.to_vec(), pads.1.to_vec());
    let dilations = vec![1; window.len()];
    Pool { kind, gradient: false, window: window.to_vec(), strides: strides.to_vec(), dilations, pads_begin, pads_end }
}

#[test]
fn max_pooling() {
    let x = f32s(&[1, 2, 4], &[1., 3., 3., f32::NAN, -5., -6., -7., -8.]);
    let kernel = pool(PoolKind::Max, &[2], &[1], (&[1], &[0]));
    let outs: [(DType, &[usize]); 2] = [(DType::F32, &[1, 2, 4]), (DType::I64, &[1, 2, 4])];
    let outs = Case::new(&[&x]).try_run(Kernel::Pool(kernel.clone()), &outs).unwrap();
    let y = outs[0].to_f64s();
    assert_eq!((&y[..3], &y[4..]), (&[1., 3., 3.][..], &[-5., -5., -6., -7.][..]));
    assert!(y[3].is_nan());
    assert_eq!(outs[1].to_i64s().unwrap(), [0, 1, 1, 3, 4, 4, 5, 6]);
    let dy = f32s(&[1, 2, 4], &[1., 2., 3., 4., 5., 6., 7., 8.]);
    let gradient = Kernel::Pool(Pool { gradient: true, ..kernel.clone() });
    let dx = Case::new(&[&dy, &outs[1]]).run(gradient, DType::F32, &[1, 2, 4]);
    assert_eq!(dx, f32s(&[1, 2, 4], &[1., 5., 0., 4., 11., 7., 8., 0.]));
    let bytes = Tensor::new(&[1, 1, 3], &[-128i8, -100, 5]).unwrap();
    let y = Case::new(&[&bytes]).run(Kernel::Pool(kernel.clone()), DType::I8, &[1, 1, 3]);
    assert_eq!(y.to_i64s().unwrap(), [-128, -100, 5]);
    let large = Tensor::new(&[1, 1, 2], &[u64::MAX, 1]).unwrap();
    let y = Case::new(&[&large]).run(Kernel::Pool(kernel), DType::U64, &[1, 1, 2]);
    assert_eq!(y.to_i64s().unwrap(), [-1, -1]);
}

#[test]
fn average_pooling() {
    let x = f32s(&[1, 1, 5], &[1., 2., 3., 4., 5.]);
    // Window 3, stride 2, one zero on each side, size rounded up: the last window reaches past
    // the padding.
    let shape = [1, 1, 4];
    let kernel = |include_pad| Kernel::Pool(pool(PoolKind::Average { include_pad }, &[3], &[2], (&[1], &[1])));
    let with = Case::new(&[&x]).run(kernel(true), DType::F32, &shape);
    assert_eq!(with, f32s(&shape, &[1., 3., 3., 0.]));
    let without = Case::new(&[&x]).run(kernel(false), DType::F32, &shape);
    assert_eq!(without, f32s(&shape, &[1.5, 3., 4.5, 0.]));
    let long = f32s(&[1, 1, 6], &[1., 2., 3., 4., 5., 6.]);
    let with = Case::new(&[&long]).run(kernel(true), DType::F32, &shape);
    assert_eq!(with, f32s(&shape, &[1., 3., 5., 3.]));
}

#[test]
fn average_pooling_is_adjoint() {
    let (xs, ys) = ([2, 3, 6, 5], [2, 3, 3, 5]);
    let (x, dy) = (noise(DType::F64, &xs, 1), noise(DType::F64, &ys, 2));
    for include_pad in [false, true] {
        let forward = pool(PoolKind::Average { include_pad }, &[3, 2], &[2, 1], (&[1, 1], &[0, 0]));
        let y = Case::new(&[&x]).run(Kernel::Pool(forward.clone()), DType::F64, &ys);
        let gradient = Kernel::Pool(Pool { gradient: true, ..forward });
        let dx = Case::new(&[&dy]).run(gradient, DType::F64, &xs);
        assert_close(dot(&y, &dy), dot(&x, &dx));
    }
}

#[test]
fn gather_and_scatter_are_adjoint() {
    let data = noise(DType::F64, &[2, 3, 2], 1);
    let indices = Tensor::new(&[2, 2], &[0i32, -1, 2, -3]).unwrap();
    let gathered = Case::new(&[&data, &indices]).run(Kernel::Gather(Gather { axis: 1 }), DType::F64, &[2, 2, 2, 2]);
    let d = data.to_f64s();
    let want = [0, 1, 4, 5, 4, 5, 0, 1, 6, 7, 10, 11, 10, 11, 6, 7].map(|i| d[i]);
    assert_eq!(gathered.to_f64s(), want);
    let updates = noise(DType::F64, &[2, 2, 2, 2], 2);
    let scattered = Case::new(&[&indices, &updates]).run(Kernel::Scatter(Scatter { axis: 1 }), DType::F64, &[2, 3, 2]);
    assert_close(dot(&gathered, &updates), dot(&data, &scattered));
    // Rows that no index names are cleared.
    assert_eq!(scattered.to_f64s()[2..4], [0.0, 0.0]);
}

#[test]
fn indices_out_of_range_are_named() {
    let data = noise(DType::F32, &[3, 2], 1);
    for bad in [3i64, -4] {
        let indices = Tensor::new(&[1, 2], &[0, bad]).unwrap();
        let error = Case::new(&[&data, &indices])
            .try_run(Kernel::Gather(Gather { axis: 0 }), &[(DType::F32, &[1, 2, 2])])
            .unwrap_err();
        assert_eq!(error.kind(), Kind::Input);
        let text = error.to_string();
        assert!(text.contains(&bad.to_string()) && text.contains("[0,1]") && text.contains("-3 to 2"), "{text}");
        assert!(text.starts_with("Node \"n\""), "{text}");
    }
    let updates = noise(DType::F32, &[1, 2], 1);
    let index = Tensor::new(&[1], &[u64::MAX]).unwrap();
    let outs: [(DType, &[usize]); 1] = [(DType::F32, &[3, 2])];
    let error = Case::new(&[&index, &updates]).try_run(Kernel::Scatter(Scatter { axis: 0 }), &outs).unwrap_err();
    assert!(error.to_string().contains(&u64::MAX.to_string()), "{error}");
}

#[test]
fn checks() {
    let check = |ignore| Kernel::Check(Check { what: "label", low: 0, high: 10, ignore });
    let labels = Tensor::new(&[2, 2], &[0i32, 9, -100, 3]).unwrap();
    assert!(Case::new(&[&labels]).try_run(check(Some(-100)), &[]).is_ok());
    let error = Case::new(&[&labels]).try_run(check(None), &[]).unwrap_err();
    assert_eq!(error.kind(), Kind::Input);
    let text = error.to_string();
    assert!(text.contains("label -100") && text.contains("[1,0]") && text.contains("0 to 9"), "{text}");
}

#[test]
fn a_view_outside_its_buffer_is_an_error() {
    let x = f32s(&[3], &[1., 2., 3.]);
    let case = Case::new(&[&x]).bend(0, |v| View { offset: 1, ..v.clone() });
    let error = case.try_run(Kernel::Copy, &[(DType::F32, &[3])]).unwrap_err();
    assert_eq!((error.kind(), error.place()), (Kind::Plan, Some("Node \"n\"")));
}
