use super::*;
use crate::backend::cpu::gemm::tests::{measure, noise};
use crate::backend::cpu::threads::set_threads;

/// For each output, the inputs of its window in order, and the taps that an average with padding counts.
fn windows(s: &PoolShape) -> Vec<(Vec<usize>, usize)> {
    let unflatten = |mut i: usize, size: &[usize; MAX_SPATIAL]| {
        let mut at = [0; MAX_SPATIAL];
        for d in (0..s.spatial).rev() {
            at[d] = i % size[d];
            i /= size[d];
        }
        at
    };
    let (inputs, outputs) = (s.product(&s.input), s.product(&s.output));
    let mut all = Vec::new();
    for plane in 0..s.planes {
        for o in 0..outputs {
            let at = unflatten(o, &s.output);
            let (mut window, mut counted) = (Vec::new(), 0);
            for t in 0..s.product(&s.kernel) {
                let tap = unflatten(t, &s.kernel);
                let (mut x, mut inside, mut in_padding) = (0, true, true);
                for d in 0..s.spatial {
                    let i = (at[d] * s.stride[d] + tap[d] * s.dilation[d]) as isize - s.pad[d] as isize;
                    inside &= i >= 0 && i < s.input[d] as isize;
                    in_padding &= i < (s.input[d] + s.pad_end[d]) as isize;
                    x = x * s.input[d] as isize + i;
                }
                if inside {
                    window.push(plane * inputs + x as usize);
                }
                counted += usize::from(in_padding);
            }
            all.push((window, counted));
        }
    }
    all
}

fn check(s: &PoolShape) {
    let windows = windows(s);
    let mut x = noise(s.input_len(), 1);
    // Equal elements, infinities and NaN among the rest.
    for i in (0..x.len()).step_by(7) {
        x[i] = [0.5, f32::NEG_INFINITY, f32::INFINITY, f32::NAN][i / 7 % if i % 3 == 0 { 4 } else { 2 }];
    }
    let (mut y, mut indices) = (vec![0.0; windows.len()], vec![7; windows.len()]);
    for isa in Isa::available() {
        max_pool_on(isa, s, &x, &mut y, Some(&mut indices));
        let mut plain = vec![0.0; windows.len()];
        max_pool_on(isa, s, &x, &mut plain, None);
        for (o, (window, _)) in windows.iter().enumerate() {
            let (mut best, mut index) = (f32::NEG_INFINITY, -1);
            for &i in window {
                if index < 0 || x[i] > best || x[i].is_nan() {
                    (best, index) = (x[i], i as i64);
                }
            }
            assert_eq!((y[o].to_bits(), indices[o]), (best.to_bits(), index), "{isa:?} max of window {o} of {s:?}");
            assert_eq!(plain[o].to_bits(), best.to_bits(), "{isa:?} max without indices of window {o} of {s:?}");
        }
    }
    let dy = noise(windows.len(), 2);
    let mut dx = vec![f32::NAN; x.len()];
    max_pool_gradient(s, &dy, &indices, &mut dx).unwrap();
    let mut want = vec![0.0; x.len()];
    for (&dy, &index) in dy.iter().zip(&indices) {
        if index >= 0 {
            want[index as usize] += dy;
        }
    }
    assert_eq!(dx, want, "max gradient of {s:?}");
    check_average(s, &windows, &dy);
}

fn check_average(s: &PoolShape, windows: &[(Vec<usize>, usize)], dy: &[f32]) {
    let x = noise(s.input_len(), 3);
    let mut scratch = vec![f32::NAN; average_pool_gradient_scratch(s)];
    for (count_include_pad, isa) in
        [false, true].into_iter().flat_map(|c| Isa::available().into_iter().map(move |i| (c, i)))
    {
        let (mut y, mut dx) = (vec![f32::NAN; dy.len()], vec![f32::NAN; x.len()]);
        average_pool_on(isa, s, count_include_pad, &x, &mut y);
        average_pool_gradient(s, count_include_pad, dy, &mut dx, &mut scratch);
        let mut want = vec![0.0; x.len()];
        for (o, (window, counted)) in windows.iter().enumerate() {
            let count = if count_include_pad { *counted } else { window.len() }.max(1) as f64;
            let sum: f64 = window.iter().map(|&i| f64::from(x[i])).sum();
            assert!((f64::from(y[o]) - sum / count).abs() < 1e-5, "average {o} of {s:?}");
            window.iter().for_each(|&i| want[i] += f64::from(dy[o]) / count);
        }
        for (i, (&got, want)) in dx.iter().zip(want).enumerate() {
            assert!((f64::from(got) - want).abs() < 1e-5, "average gradient {i} of {s:?}");
        }
    }
}

/// A shape whose last windows may reach into the padding, or past it as `ceil` outputs do.
fn shape(
    planes: usize,
    input: &[usize],
    kernel: &[usize],
    stride: &[usize],
    dilation: &[usize],
    (pad, pad_end): (&[usize], &[usize]),
    ceil: bool,
) -> PoolShape {
    let array = |v: &[usize]| core::array::from_fn(|d| v.get(d).copied().unwrap_or(77));
    let mut output = [99; MAX_SPATIAL];
    for d in 0..input.len() {
        let room = (input[d] + pad[d] + pad_end[d] + 1).saturating_sub((kernel[d] - 1) * dilation[d] + 1);
        output[d] = room.div_ceil(stride[d]) + usize::from(ceil);
    }
    PoolShape {
        planes,
        spatial: input.len(),
        input: array(input),
        output,
        kernel: array(kernel),
        stride: array(stride),
        dilation: array(dilation),
        pad: array(pad),
        pad_end: array(pad_end),
    }
}

#[test]
fn two_dimensions() {
    for kernel in [1, 2, 3, 5] {
        for stride in [1, 2, 3] {
            for dilation in [1, 2] {
                for pad in [0, 1, 2] {
                    for ceil in [false, true] {
                        let (k, st, di) = ([kernel; 2], [stride; 2], [dilation; 2]);
                        check(&shape(3, &[11, 14], &k, &st, &di, (&[pad; 2], &[pad, 0]), ceil));
                    }
                }
            }
        }
    }
}

#[test]
fn other_ranks() {
    check(&shape(5, &[40], &[3], &[2], &[1], (&[1], &[0]), false));
    check(&shape(5, &[40], &[4], &[3], &[2], (&[2], &[3]), true));
    check(&shape(2, &[5, 6, 7], &[2, 3, 2], &[1, 2, 2], &[2, 1, 1], (&[1, 0, 1], &[0, 1, 1]), false));
    check(&shape(2, &[4, 3, 5, 4], &[2, 2, 3, 2], &[1, 2, 1, 2], &[1; 4], (&[1, 0, 1, 0], &[0; 4]), false));
}

#[test]
fn windows_of_padding_only() {
    check(&shape(2, &[3, 3], &[2, 2], &[1, 1], &[1, 1], (&[4, 0], &[0, 4]), false));
}

#[test]
fn empty_shapes() {
    check(&shape(0, &[4, 4], &[2, 2], &[2, 2], &[1, 1], (&[0; 2], &[0; 2]), false));
    check(&shape(2, &[1, 4], &[2, 2], &[2, 2], &[1, 1], (&[0; 2], &[0; 2]), false));
    check(&shape(2, &[0, 4], &[2, 2], &[1, 1], &[1, 1], (&[1; 2], &[1; 2]), false));
}

#[test]
fn wrong_indices_are_reported() {
    let s = shape(2, &[2, 2], &[2, 2], &[1, 1], &[1, 1], (&[0; 2], &[0; 2]), false);
    let mut dx = [0.0; 8];
    assert_eq!(max_pool_gradient(&s, &[1.0, 2.0], &[3, 4], &mut dx), Ok(()));
    assert_eq!(dx, [0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0]);
    for index in [3, 8, -2, i64::MIN, i64::MAX] {
        assert_eq!(max_pool_gradient(&s, &[1.0, 2.0], &[0, index], &mut dx), Err(BadIndex { at: 1, index }));
    }
}

#[test]
fn same_bits_whatever_the_threads() {
    let s = shape(100, &[24, 24], &[3, 3], &[2, 2], &[1, 1], (&[1; 2], &[1; 2]), false);
    let (x, dy) = (noise(s.input_len(), 1), noise(s.output_len(), 2));
    let run = |threads| {
        set_threads(threads);
        let (mut y, mut dx) = (dy.clone(), x.clone());
        average_pool(&s, true, &x, &mut y);
        average_pool_gradient(&s, false, &dy, &mut dx, &mut vec![0.0; average_pool_gradient_scratch(&s)]);
        set_threads(0);
        [y, dx].iter().flatten().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(2));
}

/// `cargo test --release pool::tests::speed -- --ignored --nocapture`
#[test]
#[ignore = "measures, checks nothing"]
fn speed() {
    set_threads(1);
    for (name, s) in [
        ("2x2 s2 @24, 32x6", shape(192, &[24, 24], &[2, 2], &[2, 2], &[1, 1], (&[0; 2], &[0; 2]), false)),
        ("3x3 s2 p1 @56, 4x64", shape(256, &[56, 56], &[3, 3], &[2, 2], &[1, 1], (&[1; 2], &[1; 2]), false)),
        ("3x3 s1 p1 @28, 4x64", shape(256, &[28, 28], &[3, 3], &[1, 1], &[1, 1], (&[1; 2], &[1; 2]), false)),
    ] {
        let (x, dy) = (noise(s.input_len(), 1), noise(s.output_len(), 2));
        let (mut y, mut dx, mut indices) = (dy.clone(), x.clone(), vec![0; dy.len()]);
        let mut scratch = vec![0.0; average_pool_gradient_scratch(&s)];
        let mut line = format!("{name:20} {} outputs:", dy.len());
        for what in ["max", "max+indices", "max gradient", "average", "average gradient"] {
            let best = measure(|| match what {
                "max" => max_pool(&s, &x, &mut y, None),
                "max+indices" => max_pool(&s, &x, &mut y, Some(&mut indices)),
                "max gradient" => max_pool_gradient(&s, &dy, &indices, &mut dx).unwrap(),
                "average" => average_pool(&s, false, &x, &mut y),
                _ => average_pool_gradient(&s, false, &dy, &mut dx, &mut scratch),
            });
            line += &format!(" {what} {:.0} us", best * 1e6);
        }
        println!("{line}");
    }
    set_threads(0);
}
