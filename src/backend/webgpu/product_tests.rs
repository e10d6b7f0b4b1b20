//! The texts of Gemm and Conv, checked by naga: every variant, dtype and direction.

use super::layout::{Places, Slot};
use super::lower::{Lower, lower};
use super::shader::Dispatch;
use super::status::Checks;
use super::testing::{places, validate};
use super::tiles::{Block, Choice, Shape, TILES, Variant, choose};
use crate::kernel::{BufferId, Conv, Direction, Gemm, Kernel, Step, View};
use crate::tensor::DType;

/// The dispatches of a step with all tensors contiguous in buffers of their own, reads before the write, and the scratch it wants.
fn lowered(kernel: Kernel, dtype: DType, shapes: &[&[usize]], software: bool, halves: bool) -> (Vec<Dispatch>, usize) {
    let buffers: Vec<(DType, usize)> = shapes.iter().map(|s| (dtype, s.iter().product())).collect();
    let memory = Places { software, ..places(&buffers, halves) };
    let mut views: Vec<View> =
        shapes.iter().enumerate().map(|(i, s)| View::contiguous(BufferId(i as u32), dtype, s)).collect();
    let writes = views.split_off(shapes.len() - 1);
    let step = Step { kernel, reads: views, writes, from: "the case".into() };
    let mut checks = Checks::default();
    let mut cx = Lower::new(&memory, &mut checks);
    let dispatches = lower(&step, &mut cx).unwrap();
    dispatches.iter().for_each(validate);
    (dispatches, cx.scratch)
}

const DTYPES: [DType; 12] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::I8,
    DType::I16,
    DType::I32,
    DType::I64,
    DType::U8,
    DType::U16,
    DType::U32,
    DType::U64,
    DType::Bool,
];

#[test]
fn texts_of_matrix_products() {
    for (m, k, n) in
        [(1, 1, 1), (5, 7, 3), (3, 0, 2), (64, 64, 64), (300, 20, 500), (4, 5000, 6), (1, 64, 40), (9, 600, 9)]
    {
        for dtype in DTYPES {
            for (software, halves) in [(false, false), (false, true), (true, false), (true, true)] {
                for (alpha, beta) in [(1.0, 0.0), (2.0, 1.0), (-1.0, -3.0)] {
                    let kernel = Kernel::Gemm(Gemm { alpha, beta });
                    let mut shapes: Vec<&[usize]> = Vec::new();
                    let (a, b, c) = ([2, m, k], [2, k, n], [2, m, n]);
                    shapes.extend([&a[..], &b]);
                    shapes.extend((beta != 0.0).then_some(&c[..]));
                    shapes.push(&c);
                    let (dispatches, scratch) = lowered(kernel, dtype, &shapes, software, halves);
                    assert!(!dispatches.is_empty());
                    let partial = dispatches[0].slots.iter().any(|(slot, _)| *slot == Slot::SCRATCH);
                    assert_eq!((dispatches.len() == 2, scratch > 0), (partial, partial), "{m} {k} {n}");
                }
            }
        }
    }
}

#[test]
fn no_outputs_no_dispatches() {
    let kernel = Kernel::Gemm(Gemm { alpha: 1.0, beta: 0.0 });
    assert!(lowered(kernel, DType::F32, &[&[0, 3], &[3, 2], &[0, 2]], false, false).0.is_empty());
}

struct Case {
    groups: usize,
    /// Per group.
    channels: [usize; 2],
    image: &'static [usize],
    window: &'static [usize],
    stride: usize,
    dilation: usize,
    pad: usize,
}

const CASES: [Case; 10] = [
    Case { groups: 1, channels: [3, 8], image: &[20], window: &[3], stride: 1, dilation: 1, pad: 1 },
    Case { groups: 1, channels: [3, 8], image: &[20, 18], window: &[3, 3], stride: 1, dilation: 1, pad: 1 },
    Case { groups: 1, channels: [3, 40], image: &[20, 18], window: &[3, 3], stride: 2, dilation: 1, pad: 1 },
    Case { groups: 1, channels: [16, 24], image: &[9, 9], window: &[1, 1], stride: 1, dilation: 1, pad: 0 },
    Case { groups: 1, channels: [16, 24], image: &[9, 9], window: &[1, 1], stride: 2, dilation: 1, pad: 0 },
    Case { groups: 2, channels: [4, 6], image: &[9, 9], window: &[3, 2], stride: 2, dilation: 2, pad: 2 },
    Case { groups: 12, channels: [1, 1], image: &[12, 12], window: &[3, 3], stride: 1, dilation: 1, pad: 1 },
    Case { groups: 12, channels: [1, 2], image: &[12, 12], window: &[5, 5], stride: 2, dilation: 1, pad: 2 },
    Case { groups: 1, channels: [2, 4], image: &[6, 5, 7], window: &[3, 2, 3], stride: 2, dilation: 1, pad: 1 },
    Case { groups: 1, channels: [2, 3], image: &[4, 5, 4, 6], window: &[2, 2, 1, 3], stride: 1, dilation: 1, pad: 1 },
];

#[test]
fn texts_of_convolutions() {
    for case in &CASES {
        let output =
            |i: usize| (case.image[i] + 2 * case.pad - (case.window[i] - 1) * case.dilation - 1) / case.stride + 1;
        let rank = case.image.len();
        let pixels: Vec<usize> = (0..rank).map(output).collect();
        let (inside, outside) = (case.groups * case.channels[0], case.groups * case.channels[1]);
        let x = [&[4, inside], case.image].concat();
        let w = [&[outside, case.channels[0]], case.window].concat();
        let y = [&[4, outside], &pixels[..]].concat();
        let bias = [outside];
        for direction in [Direction::Forward, Direction::InputGrad, Direction::WeightGrad] {
            let shapes: Vec<&[usize]> = match direction {
                Direction::Forward => vec![&x, &w, &bias, &y],
                Direction::InputGrad => vec![&y, &w, &x],
                Direction::WeightGrad => vec![&y, &x, &w],
            };
            for dtype in DTYPES {
                for (software, halves) in [(false, false), (false, true), (true, false), (true, true)] {
                    let kernel = Kernel::Conv(Conv {
                        direction,
                        groups: case.groups,
                        strides: vec![case.stride; rank],
                        dilations: vec![case.dilation; rank],
                        pads_begin: vec![case.pad; rank],
                    });
                    assert!(!lowered(kernel, dtype, &shapes, software, halves).0.is_empty());
                }
            }
        }
    }
}

/// Each variant is chosen for some shape; blocks have as many lanes as vectors of 4 need.
#[test]
fn every_variant_is_chosen() {
    let shape = |m, n, k| Shape { batch: 1, m, n, k };
    for tile in &TILES {
        assert!(tile.invocations() <= 256);
        for size in [tile.rows, tile.cols] {
            assert!((size / 4 * tile.depth).is_multiple_of(tile.invocations()), "{tile:?}");
            assert!(tile.invocations().is_multiple_of(tile.depth), "{tile:?}");
        }
        let found = (3..22usize).map(|p| choose(&shape(1 << (p / 2), 1 << p.div_ceil(2), 256), true, false));
        assert!(found.into_iter().any(|c| c.variant == Variant::Tile(tile)), "{tile:?}");
    }
    let large = choose(&shape(512, 512, 512), true, true).variant;
    assert_eq!(large, Variant::Block(Block { lanes: 16, rows: 8, cols: 8 }));
    assert_eq!(choose(&shape(50, 3, 100), true, false).variant, Variant::Plain);
    let thin = choose(&shape(100, 3, 100), true, false);
    assert_eq!((thin.variant, thin.transposed), (Variant::Block(Block { lanes: 64, rows: 3, cols: 1 }), true));
    assert_eq!(choose(&shape(100, 100, 100), false, false).variant, Variant::Plain);
    for (m, n) in [(1, 1), (1, 10), (10, 1), (32, 10), (7, 49), (64, 100), (1000, 17), (8, 64), (9, 65)] {
        let Choice { variant: Variant::Block(b), transposed, .. } = choose(&shape(m, n, 50), true, true) else {
            panic!("no block for {m} x {n}");
        };
        let (m, n) = if transposed { (n, m) } else { (m, n) };
        assert!(
            b.rows <= 8 && b.cols <= 8 && b.rows * b.cols <= 32 && b.lanes <= 16 && b.lanes.is_multiple_of(4),
            "{b:?}"
        );
        assert!(m.div_ceil(b.rows) * b.rows < m + 8 && b.lanes * b.cols < n + 16, "{m} x {n}: {b:?}");
    }
}
