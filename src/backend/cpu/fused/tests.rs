//! Every program against the reference kernel, over shapes that have tails, broadcasts, bends and
//! nothing in them.

use super::FusedOp;
use super::testing::{CX, Case, Rng, check, memory};
use crate::kernel::{Binary::*, ReduceOp, ReduceOp::Sum, Unary::*};
use crate::kernel::{ExprId, View};
use crate::tensor::{DType::*, Tensor};

const SHAPES: &[&[usize]] = &[
    &[],
    &[1],
    &[7],
    &[32],
    &[1000],
    &[5000],
    &[3, 5],
    &[32, 10],
    &[9, 64],
    &[400, 10],
    &[3, 1030],
    &[5, 300],
    &[2, 3, 4, 5],
    &[4, 6, 36],
    &[2, 3, 300],
    &[2, 1, 3000],
    &[3, 2, 40, 50],
    &[0, 4],
    &[4, 0],
    &[40, 1],
];

#[test]
fn elementwise() {
    for shape in SHAPES {
        for still in [
            vec![],
            vec![0],
            vec![shape.len().saturating_sub(1)],
            vec![0, 1],
            (1..shape.len()).collect(),
            (0..shape.len()).collect(),
        ] {
            // gelu(x + bias), add + relu6
            let mut c = Case::new(shape, 0);
            let (x, b) = (c.read(F32, &[]), c.read(F32, &still));
            let p = &mut c.program;
            let y = p.add(x, b);
            let e = p.scale(y, 0.5f64.sqrt());
            let e = p.unary(Erf, e);
            let one = p.constant_like(1.0, e);
            let e = p.add(e, one);
            let half = p.scale(y, 0.5);
            let gelu = p.mul(e, half);
            let (zero, six) = (p.constant(0.0, F32), p.constant(6.0, F32));
            let relu = p.binary(Max, y, zero);
            let relu6 = p.binary(Min, relu, six);
            p.output(gelu);
            p.output(relu6);
            c.finish(&[false, false]);
        }
    }
}

#[test]
fn every_float_function() {
    for shape in [&[70][..], &[3, 1030]] {
        let mut c = Case::new(shape, 0);
        let (a, b) = (c.read(F32, &[]), c.read(F32, &[0]));
        let flag = c.read(Bool, &(0..shape.len()).collect::<Vec<_>>());
        let p = &mut c.program;
        let positive = p.unary(Abs, a);
        let mut outs: Vec<ExprId> =
            [Neg, Abs, Sign, Exp, Reciprocal, Erf, Tanh, Sigmoid].into_iter().map(|u| p.unary(u, a)).collect();
        outs.extend([Log, Sqrt].map(|u| p.unary(u, positive)));
        outs.extend([Add, Sub, Mul, Div, Min, Max, Equal, Less, LessOrEqual].map(|o| p.binary(o, a, b)));
        outs.push(p.binary(Pow, positive, b));
        for exponent in [1.0, 2.0, 3.0, -1.0, 0.5] {
            let exponent = p.constant(exponent, F32);
            outs.push(p.binary(Pow, positive, exponent));
        }
        let less = p.binary(Less, a, b);
        let or = p.binary(LessOrEqual, b, a);
        outs.push(p.select(less, a, b));
        outs.push(p.select(or, b, a));
        let number = p.constant(2.0, F32);
        outs.extend([p.select(flag, a, number), p.select(flag, number, b)]);
        outs.push(p.select(or, less, or));
        outs.push(p.binary(And, less, or));
        outs.push(p.unary(Not, less));
        // The composites that nothing above is.
        let (ab, two) = (p.mul(a, b), p.constant(2.0, F32));
        let difference = p.sub(a, two);
        outs.extend([p.add(ab, two), p.sub(two, ab), p.mul(difference, b), p.sub(ab, two)]);
        outs.push(p.unary(Exp, difference));
        let (two_b, half_b) = (p.scale(b, 2.0), p.scale(b, 0.5));
        let centred = p.sub(a, half_b);
        let scaled = p.mul(centred, two_b);
        outs.push(p.add(two_b, scaled));
        for second in [None, Some(two)] {
            for compare in [Less, LessOrEqual] {
                let first = p.binary(compare, two_b, a);
                let mask = match second {
                    None => first,
                    Some(two) => {
                        let second = p.binary(LessOrEqual, a, two);
                        p.binary(And, first, second)
                    }
                };
                let mask = p.cast(mask, F32);
                outs.push(p.mul(half_b, mask));
            }
        }
        outs.iter().for_each(|o| p.output(*o));
        let n = outs.len();
        c.finish(&vec![false; n]);
    }
}

#[test]
fn nan_passes_where_it_must() {
    let values = [f32::NAN, 1.0, -3.0, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::NAN, 9.0, 2.0, f32::NAN];
    let mut c = Case::new(&[2, 5], 1);
    let (x, y) = (Tensor::new(&[2, 5], &values).unwrap(), Tensor::new(&[2, 5], &[2f32; 10]).unwrap());
    let (x, y) = (c.view(&x, |v| v), c.view(&y, |v| v));
    let p = &mut c.program;
    let mut outs =
        vec![p.binary(Max, x, y), p.binary(Max, y, x), p.binary(Min, y, x), p.binary(Less, x, y), p.unary(Sign, x)];
    let (low, high) = (p.constant(-1.0, F32), p.constant(1.0, F32));
    let clamped = p.binary(Max, x, low);
    outs.push(p.binary(Min, clamped, high));
    outs.push(p.row(ReduceOp::Max, x));
    outs.push(p.row(ReduceOp::Min, x));
    outs.iter().for_each(|o| p.output(*o));
    let n = outs.len();
    c.finish(&vec![false; n]);
}

#[test]
fn adamw_in_place() {
    for shape in SHAPES {
        let mut c = Case::new(shape, 0);
        let [w, m, v, g] = [(); 4].map(|_| c.read(F32, &[]));
        let all: Vec<usize> = (0..shape.len()).collect();
        let (lr, t) = (c.read(F32, &all), c.read(I64, &all));
        let p = &mut c.program;
        let v = p.unary(Abs, v);
        let (lr, t) = (p.unary(Abs, lr), p.unary(Abs, t));
        let one = p.constant(1.0, I64);
        let t = p.add(t, one);
        let t = p.cast(t, F32);
        let (m1, g1) = (p.scale(m, 0.9), p.scale(g, 0.1));
        let m = p.add(m1, g1);
        let gg = p.mul(g, g);
        let (v1, g2) = (p.scale(v, 0.999), p.scale(gg, 0.001));
        let v = p.add(v1, g2);
        let (b1, one) = (p.constant(0.9, F32), p.constant(1.0, F32));
        let correction = p.binary(Pow, b1, t);
        let correction = p.sub(one, correction);
        let rate = p.div(lr, correction);
        let root = p.unary(Sqrt, v);
        let eps = p.constant(1e-8, F32);
        let root = p.add(root, eps);
        let step = p.div(m, root);
        let step = p.mul(step, rate);
        let decayed = p.scale(w, 0.99);
        let w = p.sub(decayed, step);
        p.output(w);
        p.output(m);
        p.output(v);
        c.finish(&[false; 3]);
    }
}

/// Every way to put a kernel's rows.
fn rows() -> impl Iterator<Item = (&'static [usize], usize)> {
    SHAPES.iter().flat_map(|s| (0..=s.len()).map(move |r| (*s, r)))
}

#[test]
fn softmax_and_layer_norm() {
    for (shape, row_axes) in rows() {
        let mut c = Case::new(shape, row_axes);
        let outer: Vec<usize> = (0..shape.len() - row_axes).collect();
        let (x, scale) = (c.read(F32, &[]), c.read(F32, &outer));
        let p = &mut c.program;
        let max = p.row(ReduceOp::Max, x);
        let y = p.sub(x, max);
        let e = p.unary(Exp, y);
        let sum = p.row(Sum, e);
        let softmax = p.div(e, sum);
        let n = shape[shape.len() - row_axes..].iter().product::<usize>() as f64;
        let mean = p.row(Sum, x);
        let mean = p.scale(mean, 1.0 / n.max(1.0));
        let centred = p.sub(x, mean);
        let square = p.mul(centred, centred);
        let variance = p.row(Sum, square);
        let variance = p.scale(variance, 1.0 / n.max(1.0));
        let eps = p.constant(1e-3, F32);
        let root = p.add(variance, eps);
        let root = p.unary(Sqrt, root);
        let inverse = p.unary(Reciprocal, root);
        let norm = p.mul(centred, inverse);
        let norm = p.mul(norm, scale);
        p.output(norm);
        p.output(softmax);
        if shape.contains(&0) && row_axes > 0 {
            continue;
        }
        p.output(mean);
        p.output(inverse);
        c.finish(&[false, false, row_axes > 0, row_axes > 0]);
    }
}

#[test]
fn cross_entropy_by_label() {
    for (shape, row_axes) in rows() {
        if row_axes == 0 || shape.contains(&0) {
            continue;
        }
        for labels in [I64, I32] {
            let mut c = Case::new(shape, row_axes);
            let axis = shape.len() - row_axes;
            let rows: Vec<usize> = (axis..shape.len()).collect();
            let (x, label) = (c.read(F32, &[]), c.read(labels, &rows));
            let p = &mut c.program;
            let max = p.row(ReduceOp::Max, x);
            let y = p.sub(x, max);
            let e = p.unary(Exp, y);
            let sum = p.row(Sum, e);
            let log = p.unary(Log, sum);
            let log_softmax = p.sub(y, log);
            let (class, outer) = (p.coordinate(axis), p.coordinate(0));
            let label = p.cast(label, I64);
            let hit = p.binary(Equal, class, label);
            let zero = p.constant(0.0, F32);
            let picked = p.select(hit, log_softmax, zero);
            let loss = p.row(Sum, picked);
            let loss = p.unary(Neg, loss);
            let outer = p.cast(outer, F32);
            let mixed = p.add(outer, picked);
            p.output(loss);
            p.output(mixed);
            p.output(e);
            c.finish(&[true, false, false]);
        }
    }
}

#[test]
fn dtypes_and_random() {
    for (shape, row_axes) in rows() {
        if shape.contains(&0) && row_axes > 0 {
            continue;
        }
        let mut c = Case::new(shape, row_axes);
        let (h, b) = (c.read(F16, &[]), c.read(BF16, &[0]));
        let (i, u, m) = (c.read(I32, &[]), c.read(U8, &[0]), c.read(Bool, &[]));
        let p = &mut c.program;
        let (h32, b32) = (p.cast(h, F32), p.cast(b, F32));
        let sum = p.add(h32, b32);
        let random = p.push(crate::kernel::Expr::Random(4), F32);
        let keep = p.constant(0.3, F32);
        let kept = p.binary(Less, random, keep);
        let mask = p.binary(Or, kept, m);
        let zero = p.constant(0.0, F32);
        let dropped = p.select(mask, sum, zero);
        let half = p.cast(dropped, F16);
        let brain = p.cast(dropped, BF16);
        let u32s = p.cast(u, I32);
        let huge = p.constant(1e9, I32);
        let product = p.mul(i, huge);
        let product = p.mul(product, u32s);
        let quotient = p.div(product, i);
        let byte = p.cast(product, U8);
        let back = p.cast(sum, I8);
        let flag = p.cast(i, Bool);
        let total = p.row(Sum, product);
        let most = p.row(ReduceOp::Max, i);
        let chosen = p.select(flag, total, most);
        let bits = p.cast(mask, I64);
        let outs = [dropped, mask, half, brain, quotient, byte, back, flag, chosen, bits];
        outs.iter().for_each(|o| p.output(*o));
        c.finish(&[false; 10]);
    }
}

#[test]
fn bent_views() {
    let mut rng = Rng(5);
    let x = rng.tensor(F32, &[6, 50, 40]);
    let flip = |v: View| v.sliced(2, 39, -1, 40);
    let every = |v: View| v.sliced(1, 1, 7, 7);
    let channels = |v: View| v.permuted(&[1, 0, 2]);
    let turned = |v: View| v.permuted(&[2, 0, 1]);
    type Bend<'a> = (&'a dyn Fn(View) -> View, [usize; 3]);
    let bends: [Bend; 4] =
        [(&flip, [6, 50, 40]), (&every, [6, 7, 40]), (&channels, [50, 6, 40]), (&turned, [40, 6, 50])];
    for (bend, shape) in bends {
        for row_axes in 0..=2 {
            let mut c = Case::new(&shape, row_axes);
            let x = c.view(&x, bend);
            let y = c.read(F32, &[1]);
            let p = &mut c.program;
            let z = p.add(x, y);
            let sum = p.row(Sum, z);
            let out = p.sub(z, sum);
            p.output(out);
            let write = c.write(F32, false);
            // To a fresh buffer, in place of the bent view, and to a turned write.
            assert!(check(c.fused(), &c.buffers, c.reads.clone(), vec![write.clone()]));
            assert!(check(c.fused(), &c.buffers, c.reads.clone(), vec![c.reads[0].clone()]));
            let there = View::contiguous(write.buffer, F32, &[shape[2], shape[1], shape[0]]).permuted(&[2, 1, 0]);
            assert!(check(c.fused(), &c.buffers, c.reads.clone(), vec![there]));
        }
    }
}

/// A write that lies, under another buffer's name, exactly where a read does.
#[test]
fn hidden_in_place() {
    let mut c = Case::new(&[3, 700], 1);
    let [a, b] = [(); 2].map(|_| c.read(F32, &[]));
    let p = &mut c.program;
    let difference = p.sub(a, b);
    let sum = p.row(Sum, b);
    let last = p.mul(sum, a);
    p.output(difference);
    p.output(last);
    let writes = vec![c.write(F32, false), c.write(F32, false)];
    let op = FusedOp::compile(&c.fused(), &c.reads, &writes).unwrap();
    let (mut plain, mut hidden) = (c.buffers.clone(), c.buffers.clone());
    // Safety: all views are whole buffers of one size.
    unsafe { op.run(&memory(&mut plain), &CX) };
    let mut table = memory(&mut hidden);
    for k in 0..2 {
        let (start, len) = table.buffer(c.reads[k].buffer);
        // Safety: as above.
        unsafe { table.bind(writes[k].buffer, start, len) };
    }
    // Safety: as above.
    unsafe { op.run(&table, &CX) };
    for k in 0..2 {
        assert!(plain.read(&writes[k]).unwrap() == hidden.read(&c.reads[k]).unwrap());
    }
}

#[test]
fn what_has_no_fast_path() {
    for dtype in [F64, U64] {
        let mut c = Case::new(&[3], 0);
        let x = c.read(dtype, &[]);
        c.program.output(x);
        let write = c.write(dtype, false);
        assert!(FusedOp::compile(&c.fused(), &c.reads, &[write]).is_none());
    }
}

/// Random programs over random shapes and broadcasts.
#[test]
fn random_programs() {
    for seed in 0..400 {
        let mut rng = Rng(seed << 20);
        let rank = rng.below(4);
        let shape: Vec<usize> = (0..rank).map(|_| rng.pick(&[1, 2, 3, 5, 17, 33, 130, 700])).collect();
        if shape.iter().product::<usize>() > 60_000 {
            continue;
        }
        let row_axes = rng.below(rank + 1);
        let mut c = Case::new(&shape, row_axes);
        c.rng = Rng((seed << 20) + 1000);
        let mut floats: Vec<ExprId> = Vec::new();
        for _ in 0..1 + rng.below(4) {
            let still: Vec<usize> = (0..rank).filter(|_| rng.unit() < 0.3).collect();
            floats.push(c.read(rng.pick(&[F32, F32, F16]), &still));
        }
        let p = &mut c.program;
        let mut floats: Vec<ExprId> = floats.into_iter().map(|f| p.cast(f, F32)).collect();
        let inputs = floats.clone();
        let mut bools = vec![p.binary(Less, inputs[0], inputs[inputs.len() - 1])];
        for _ in 0..rng.below(14) {
            let (a, b) = (rng.pick(&floats), rng.pick(&floats));
            let new = match rng.below(9) {
                0 => p.unary(rng.pick(&[Neg, Abs, Tanh, Sigmoid, Erf]), a),
                1 => p.select(rng.pick(&bools), a, b),
                2 => p.row(rng.pick(&[ReduceOp::Max, ReduceOp::Min]), a),
                3 => {
                    let (sum, t) = (p.unary(Tanh, a), p.scale(b, 0.5));
                    let sum = p.row(Sum, sum);
                    let sum = p.scale(sum, 1e-3);
                    p.add(sum, t)
                }
                4 => {
                    let t = p.unary(Tanh, a);
                    p.mul(t, b)
                }
                5 => {
                    let less = p.binary(LessOrEqual, rng.pick(&inputs), rng.pick(&inputs));
                    bools.push(less);
                    p.select(less, a, b)
                }
                _ => p.binary(rng.pick(&[Add, Sub, Min, Max]), a, b),
            };
            floats.push(new);
        }
        for _ in 0..1 + rng.below(3) {
            p.output(rng.pick(&floats[floats.len() / 2..]));
        }
        let n = p.outputs.len();
        c.finish(&vec![false; n]);
    }
}
