use super::*;
use crate::backend::cpu::gemm::tests::{measure, noise};
use crate::backend::cpu::threads::set_threads;

/// Every (y, x, w) index triple that multiplies, one by one, as the definition says.
fn each_term(s: &ConvShape, mut f: impl FnMut(usize, usize, usize)) {
    let n = s.spatial;
    let (into, from) = (s.in_channels / s.groups, s.out_channels / s.groups);
    let unflatten = |mut i: usize, size: &[usize; MAX_SPATIAL]| {
        let mut at = [0; MAX_SPATIAL];
        for d in (0..n).rev() {
            at[d] = i % size[d];
            i /= size[d];
        }
        at
    };
    let (outs, ins, taps) = (s.product(&s.output), s.product(&s.input), s.product(&s.kernel));
    for b in 0..s.batch {
        for o in 0..s.out_channels {
            for p in 0..outs {
                let at = unflatten(p, &s.output);
                for c in 0..into {
                    for t in 0..taps {
                        let tap = unflatten(t, &s.kernel);
                        let mut x = Some(0);
                        for d in 0..n {
                            let i = (at[d] * s.stride[d] + tap[d] * s.dilation[d]).checked_sub(s.pad[d]);
                            let i = i.filter(|&i| i < s.input[d]);
                            x = x.zip(i).map(|(x, i)| x * s.input[d] + i);
                        }
                        if let Some(x) = x {
                            let channel = b * s.in_channels + o / from * into + c;
                            f((b * s.out_channels + o) * outs + p, channel * ins + x, (o * into + c) * taps + t);
                        }
                    }
                }
            }
        }
    }
}

fn check_close(got: &[f32], want: &[f64], scale: f64, what: &str) {
    assert_eq!(got.len(), want.len());
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= 1e-6 * scale, "{what}: element {i} is {g}, not {w}");
    }
}

/// Runs `f` with NaN for scratch, of the size asked for and no more.
fn with_scratch(isa: Isa, s: &ConvShape, direction: ConvDirection, f: impl FnOnce(&mut [f32])) {
    let len = conv_scratch_on(isa, s, direction);
    let mut room = vec![f32::NAN; len + 64];
    room[len..].fill(123.0);
    f(&mut room[..len]);
    assert!(room[len..].iter().all(|&v| v == 123.0), "{isa:?} {direction:?} {s:?} wrote past its scratch");
}

fn check(s: &ConvShape) {
    let (x, w, dy) = (noise(s.input_len(), 1), noise(s.weight_len(), 2), noise(s.output_len(), 3));
    let (out_bias, in_bias) = (noise(s.out_channels, 4), noise(s.in_channels, 5));
    let widen = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
    let (x64, w64, dy64) = (widen(&x), widen(&w), widen(&dy));
    let (mut y, mut dx, mut dw) = (vec![0.0; dy.len()], vec![0.0; x.len()], vec![0.0; w.len()]);
    let mut terms = (vec![0u32; y.len()], vec![0u32; x.len()], vec![0u32; w.len()]);
    each_term(s, |yi, xi, wi| {
        y[yi] += x64[xi] * w64[wi];
        dx[xi] += dy64[yi] * w64[wi];
        dw[wi] += dy64[yi] * x64[xi];
        terms.0[yi] += 1;
        terms.1[xi] += 1;
        terms.2[wi] += 1;
    });
    let scale = |terms: &[u32]| 8.0 + f64::from(*terms.iter().max().unwrap_or(&0)).sqrt() * 2.0;
    let biased = |v: &[f64], bias: &[f32]| {
        let each = v.len() / (s.batch * bias.len()).max(1);
        v.iter().enumerate().map(|(i, v)| v + f64::from(bias[i / each % bias.len()])).collect::<Vec<_>>()
    };
    for isa in Isa::available() {
        let what = |direction: &str| format!("{isa:?} {direction} {s:?}");
        // NaN in the results and the scratch shows what is not written, or read without being written.
        use ConvDirection::{Forward, InputGradient, WeightGradient};
        let mut got = vec![f32::NAN; y.len()];
        with_scratch(isa, s, Forward, |room| forward_on(isa, s, &x, &w, None, &mut got, room));
        check_close(&got, &y, scale(&terms.0), &what("forward"));
        with_scratch(isa, s, Forward, |room| forward_on(isa, s, &x, &w, Some(&out_bias), &mut got, room));
        check_close(&got, &biased(&y, &out_bias), scale(&terms.0), &what("forward with bias"));
        let mut got = vec![f32::NAN; dx.len()];
        with_scratch(isa, s, InputGradient, |room| input_gradient_on(isa, s, &dy, &w, None, &mut got, room));
        check_close(&got, &dx, scale(&terms.1), &what("input gradient"));
        with_scratch(isa, s, InputGradient, |room| input_gradient_on(isa, s, &dy, &w, Some(&in_bias), &mut got, room));
        check_close(&got, &biased(&dx, &in_bias), scale(&terms.1), &what("input gradient with bias"));
        let mut got = vec![f32::NAN; dw.len()];
        with_scratch(isa, s, WeightGradient, |room| weight_gradient_on(isa, s, &x, &dy, &mut got, room));
        check_close(&got, &dw, scale(&terms.2), &what("weight gradient"));
    }
}

/// A shape from slices; the output is what fits with `end` pads.
#[allow(clippy::type_complexity)]
fn shape(
    (batch, groups, in_channels, out_channels): (usize, usize, usize, usize),
    input: &[usize],
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    (pad, end): (&[usize], &[usize]),
) -> ConvShape {
    let array = |v: &[usize]| core::array::from_fn(|d| v.get(d).copied().unwrap_or(77));
    let mut output = [99; MAX_SPATIAL];
    for d in 0..input.len() {
        let reach = (kernel[d] - 1) * dilation[d] + 1;
        output[d] = ((input[d] + pad[d] + end[d] + stride[d]).saturating_sub(reach)) / stride[d];
    }
    ConvShape {
        batch,
        groups,
        in_channels,
        out_channels,
        spatial: input.len(),
        input: array(input),
        output,
        kernel: array(kernel),
        stride: array(stride),
        dilation: array(dilation),
        pad: array(pad),
    }
}

/// A 2-D shape with one number for both axes.
fn square(
    sizes: (usize, usize, usize, usize),
    input: usize,
    kernel: usize,
    stride: usize,
    dil: usize,
    pad: usize,
) -> ConvShape {
    shape(sizes, &[input; 2], &[kernel; 2], &[stride; 2], &[dil; 2], (&[pad; 2], &[pad; 2]))
}

#[test]
fn kernels_strides_dilations_pads() {
    for kernel in [1, 2, 3, 5] {
        for stride in [1, 2, 3] {
            for dilation in [1, 2, 3] {
                for pad in [0, 1, 3] {
                    check(&square((2, 1, 3, 5), 13, kernel, stride, dilation, pad));
                    check(&square((2, 3, 3, 3), 13, kernel, stride, dilation, pad));
                }
            }
        }
    }
}

#[test]
fn channels_and_groups() {
    for sizes in
        [(1, 1, 1, 1), (2, 1, 1, 6), (1, 1, 6, 16), (3, 2, 4, 6), (1, 4, 8, 4), (2, 2, 40, 52), (1, 1, 30, 200)]
    {
        check(&square(sizes, 7, 3, 1, 1, 1));
        check(&square(sizes, 9, 3, 2, 1, 1));
        check(&square(sizes, 6, 1, 1, 1, 0));
        check(&square(sizes, 6, 1, 2, 1, 0));
    }
}

#[test]
fn depthwise_with_multipliers() {
    for multiplier in [1, 2, 3, 4, 5] {
        for (size, kernel, stride) in
            [(24, 3, 1), (24, 3, 2), (12, 5, 1), (12, 5, 2), (6, 3, 1), (7, 3, 2), (3, 3, 1), (37, 3, 1)]
        {
            check(&square((2, 5, 5, 5 * multiplier), size, kernel, stride, 1, kernel / 2));
        }
        check(&square((3, 4, 4, 4 * multiplier), 8, 3, 1, 1, 0));
    }
}

#[test]
fn one_and_three_and_four_dimensions() {
    check(&shape((2, 1, 3, 4), &[40], &[5], &[1], &[1], (&[2], &[2])));
    check(&shape((2, 1, 3, 4), &[40], &[4], &[3], &[2], (&[1], &[4])));
    check(&shape((2, 3, 3, 6), &[40], &[3], &[2], &[1], (&[1], &[1])));
    check(&shape((2, 1, 3, 4), &[5, 6, 7], &[3, 3, 3], &[1, 1, 1], &[1, 1, 1], (&[1, 1, 1], &[1, 1, 1])));
    check(&shape((1, 2, 4, 6), &[7, 6, 9], &[3, 2, 3], &[2, 1, 2], &[1, 2, 1], (&[1, 0, 2], &[0, 1, 1])));
    check(&shape((2, 3, 3, 3), &[5, 6, 7], &[3, 3, 3], &[1, 2, 1], &[1, 1, 2], (&[1, 1, 1], &[1, 1, 1])));
    check(&shape((2, 1, 2, 3), &[5, 6, 7], &[1, 1, 1], &[1, 1, 1], &[1, 1, 1], (&[0, 0, 0], &[0, 0, 0])));
    check(&shape(
        (1, 1, 2, 3),
        &[4, 3, 5, 4],
        &[2, 3, 2, 3],
        &[2, 1, 1, 2],
        &[1, 1, 2, 1],
        (&[1, 1, 0, 1], &[0, 1, 1, 1]),
    ));
}

#[test]
fn uneven_pads() {
    for (pad, end) in [([0, 2], [3, 0]), ([2, 0], [0, 1]), ([4, 4], [4, 4]), ([0, 0], [5, 5])] {
        for stride in [1, 2] {
            check(&shape((2, 1, 3, 4), &[9, 11], &[3, 3], &[stride; 2], &[1, 1], (&pad, &end)));
            check(&shape((2, 4, 4, 4), &[9, 11], &[3, 3], &[stride; 2], &[1, 1], (&pad, &end)));
            check(&shape((1, 1, 2, 3), &[9, 11], &[1, 1], &[stride; 2], &[1, 1], (&pad, &end)));
        }
    }
}

#[test]
fn kernels_that_see_everything() {
    check(&square((5, 1, 3, 7), 4, 4, 1, 1, 0));
    check(&square((5, 1, 3, 7), 1, 1, 1, 1, 0));
    check(&square((5, 1, 3, 7), 1, 1, 2, 3, 0));
    check(&square((1, 1, 3, 7), 5, 3, 1, 2, 0));
    check(&square((3, 2, 4, 6), 4, 4, 1, 1, 0));
}

#[test]
fn more_than_one_block_of_k_and_wave() {
    check(&square((1, 1, 40, 9), 10, 3, 1, 1, 1));
    check(&square((9, 1, 70, 13), 20, 3, 1, 1, 1));
    check(&square((5, 1, 90, 8), 24, 1, 1, 1, 0));
    check(&shape((9, 1, 300, 5), &[6, 50], &[1, 3], &[1, 1], &[1, 1], (&[0, 1], &[0, 1])));
    check(&square((2, 1, 2, 3), 60, 3, 1, 1, 1));
    check(&square((3, 2, 2, 2), 80, 3, 1, 1, 1));
}

#[test]
fn empty_shapes() {
    check(&square((0, 1, 3, 4), 5, 3, 1, 1, 1));
    check(&square((2, 1, 0, 4), 5, 3, 1, 1, 1));
    check(&square((2, 1, 3, 0), 5, 3, 1, 1, 1));
    check(&square((2, 1, 3, 2), 2, 3, 1, 1, 0));
    check(&square((2, 3, 3, 3), 2, 3, 1, 1, 0));
    check(&square((2, 1, 3, 2), 0, 3, 1, 1, 2));
}

#[test]
fn same_bits_whatever_the_threads() {
    for s in [
        square((8, 1, 6, 16), 14, 5, 1, 1, 0),
        square((2, 1, 40, 48), 17, 3, 2, 1, 1),
        square((4, 32, 32, 32), 24, 3, 1, 1, 1),
    ] {
        let (x, w, dy) = (noise(s.input_len(), 1), noise(s.weight_len(), 2), noise(s.output_len(), 3));
        let run = |threads| {
            set_threads(threads);
            let room = |direction| vec![f32::NAN; conv_scratch(&s, direction)];
            let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
            conv_forward(&s, &x, &w, None, &mut y, &mut room(ConvDirection::Forward));
            conv_input_gradient(&s, &dy, &w, None, &mut dx, &mut room(ConvDirection::InputGradient));
            conv_weight_gradient(&s, &x, &dy, &mut dw, &mut room(ConvDirection::WeightGradient));
            set_threads(0);
            [y, dx, dw].iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(2));
    }
}

#[test]
#[should_panic(expected = "image of 74 elements")]
fn a_slice_of_the_wrong_size_is_refused() {
    let s = square((1, 1, 3, 2), 5, 3, 1, 1, 1);
    conv_forward(&s, &[0.0; 74], &[0.0; 54], None, &mut [0.0; 50], &mut [0.0; 10000]);
}

/// `cargo test --release conv::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "measures, checks nothing"]
fn speed() {
    set_threads(1);
    for (name, s) in [
        ("LeNet c1 1>6 5x5 @28 b32", square((32, 1, 1, 6), 28, 5, 1, 1, 0)),
        ("LeNet c2 6>16 5x5 @12 b32", square((32, 1, 6, 16), 12, 5, 1, 1, 0)),
        ("pw 16>96 @24 b32", square((32, 1, 16, 96), 24, 1, 1, 1, 0)),
        ("pw 96>24 @12 b32", square((32, 1, 96, 24), 12, 1, 1, 1, 0)),
        ("pw 96>576 @6 b32", square((32, 1, 96, 576), 6, 1, 1, 1, 0)),
        ("3x3 64>64 @56 b4", square((4, 1, 64, 64), 56, 3, 1, 1, 1)),
        ("3x3 256>256 @14 b8", square((8, 1, 256, 256), 14, 3, 1, 1, 1)),
        ("3x3 s2 64>128 @28 b8", square((8, 1, 64, 128), 28, 3, 2, 1, 1)),
        ("dw 96 @24 s1 b32", square((32, 96, 96, 96), 24, 3, 1, 1, 1)),
        ("dw 96 @24 s2 b32", square((32, 96, 96, 96), 24, 3, 2, 1, 1)),
        ("dw 192 @12 s1 b32", square((32, 192, 192, 192), 12, 3, 1, 1, 1)),
        ("dw 192 @12 s2 b32", square((32, 192, 192, 192), 12, 3, 2, 1, 1)),
        ("dw 576 @6 s1 b32", square((32, 576, 576, 576), 6, 3, 1, 1, 1)),
        ("dw 96 @24 5x5 b32", square((32, 96, 96, 96), 24, 5, 1, 1, 2)),
    ] {
        let (x, w, dy) = (noise(s.input_len(), 1), noise(s.weight_len(), 2), noise(s.output_len(), 3));
        let (mut y, mut dx, mut dw) = (dy.clone(), x.clone(), w.clone());
        let flops = 2.0 * s.multiply_adds() as f64;
        let mut line = format!("{name:26}");
        for direction in [ConvDirection::Forward, ConvDirection::InputGradient, ConvDirection::WeightGradient] {
            let mut scratch = vec![0.0; conv_scratch(&s, direction)];
            let best = measure(|| match direction {
                ConvDirection::Forward => conv_forward(&s, &x, &w, None, &mut y, &mut scratch),
                ConvDirection::InputGradient => conv_input_gradient(&s, &dy, &w, None, &mut dx, &mut scratch),
                ConvDirection::WeightGradient => conv_weight_gradient(&s, &x, &dy, &mut dw, &mut scratch),
            });
            line += &format!(" {:6.1} GFLOP/s ({:5.0} us)", flops / best * 1e-9, best * 1e6);
        }
        println!("{line}");
    }
    set_threads(0);
}
