//! The table of backend_table.rs for products: Gemm, Conv.

use crate::backend_table::Case;
use ontrain::kernel::{Conv, Direction, Gemm, Kernel};
use ontrain::tensor::DType;

#[test]
fn gemm() {
    let sizes = [
        (1, 1, 1),
        (5, 7, 3),
        (16, 16, 16),
        (33, 20, 18),
        (3, 0, 2),
        (0, 3, 2),
        (3, 4, 0),
        (65, 130, 47),
        (1, 64, 40),
        (40, 64, 1),
        (2, 300, 2),
    ];
    let batches: [&[usize]; 4] = [&[], &[3], &[2, 2], &[0]];
    let mut n = 0;
    for (m, k, cols) in sizes {
        for batch in batches {
            for layout in 0..8 {
                n += 1;
                let dtype = if n % 11 == 0 { DType::F64 } else { DType::F32 };
                let mut case = Case::new(format!("gemm {m}x{k}x{cols} batch {batch:?} layout {layout} {dtype}"));
                let rank = batch.len() + 2;
                let plain: Vec<usize> = (0..rank).collect();
                let mut turned = plain.clone();
                turned.swap(rank - 1, rank - 2);
                let shape = |a: usize, b: usize| [batch, &[a, b]].concat();
                let order = |bit: usize| if layout >> bit & 1 == 1 { &turned } else { &plain };
                let step = [1, 1, 2, -1][n % 4];
                let mut a = case.strided(dtype, &shape(m, k), order(0), step);
                let mut b = case.strided(dtype, &shape(k, cols), order(1), [1, -1, 1, 3][n % 4]);
                // One of the operands is the same for the whole batch, now and then.
                match n % 5 {
                    1 if !batch.is_empty() => b.strides[0] = 0,
                    2 if !batch.is_empty() => a.strides[..batch.len()].fill(0),
                    _ => {}
                }
                let out = case.strided(dtype, &shape(m, cols), order(2), if n % 7 == 0 { 2 } else { 1 });
                let bias = match n % 6 {
                    0 => None,
                    1 => Some(case.numbers(dtype, &[cols])),
                    2 => Some(case.numbers(dtype, &[m, 1])),
                    3 => Some(case.numbers(dtype, &[1])),
                    4 => Some(case.strided(dtype, &[m, cols], &[1, 0], 1)),
                    _ => Some(case.strided(dtype, &shape(m, cols), &plain, 1)),
                };
                let beta = if bias.is_none() { 0.0 } else { [1.0, -0.5, 2.0][n % 3] };
                let mut case = case.read(a).read(b);
                if let Some(bias) = bias {
                    case = case.read(bias.broadcast_to(&shape(m, cols)));
                }
                let kernel = Gemm { alpha: [1.0, 0.25, -2.0][n / 2 % 3], beta };
                case.write(out).check(Kernel::Gemm(kernel), 2e-5);
            }
        }
    }
}

/// One shape for each loop nest of the GPU's two sets of kernels: tiles of every size, blocks of every size, one output per
/// invocation; rows, columns and sums that do not fill them; sums in parts.
#[test]
fn gemm_of_every_variant() {
    // batch, m, k, n
    let sizes = [
        (64, 70, 9, 70),
        (128, 40, 5, 37),
        (1, 40, 600, 40),
        (1, 4, 1000, 5),
        (1, 20, 2000, 30),
        (1, 72, 450, 260),
        (2, 9, 33, 65),
        (1, 100, 17, 3),
        (1, 200, 1000, 2),
    ];
    for (batch, m, k, n) in sizes {
        for layout in 0..4 {
            let mut case = Case::new(format!("gemm {batch}x{m}x{k}x{n} layout {layout}"));
            let order = |bit: usize| if layout >> bit & 1 == 1 { [0, 2, 1] } else { [0, 1, 2] };
            let a = case.strided(DType::F32, &[batch, m, k], &order(0), 1);
            let b = case.strided(DType::F32, &[batch, k, n], &order(1), 1);
            let c = case.numbers(DType::F32, &[n]).broadcast_to(&[batch, m, n]);
            let out = case.numbers(DType::F32, &[batch, m, n]);
            let kernel = Gemm { alpha: 1.0, beta: [1.0, 0.5][layout / 2] };
            case.read(a).read(b).read(c).write(out).check(Kernel::Gemm(kernel), 2e-5);
        }
    }
}

#[test]
fn gemm_of_every_dtype() {
    for dtype in DType::ALL {
        for (m, k, n) in [(4, 5, 3), (33, 70, 20)] {
            for (alpha, beta) in [(1.0, 0.0), (-2.0, 0.0), (1.0, 1.0), (3.0, -2.0)] {
                let mut case = Case::new(format!("gemm {m}x{k}x{n} of {dtype}, alpha {alpha}, beta {beta}"));
                let (a, b) = (case.numbers(dtype, &[2, m, k]), case.numbers(dtype, &[2, k, n]));
                let (c, out) = (case.numbers(dtype, &[n]).broadcast_to(&[2, m, n]), case.numbers(dtype, &[2, m, n]));
                let case = case.read(a).read(b);
                let case = if beta != 0.0 { case.read(c) } else { case };
                // Rounding to a float of 16 bits, of sums that differ a little.
                let tolerance = if dtype.size() == 2 { 1e-2 } else { 2e-5 };
                case.write(out).check(Kernel::Gemm(Gemm { alpha, beta }), tolerance);
            }
        }
    }
}

struct Convolution {
    batch: usize,
    /// Per group: channels in, channels out.
    channels: (usize, usize),
    groups: usize,
    image: &'static [usize],
    window: &'static [usize],
    strides: &'static [usize],
    dilations: &'static [usize],
    pads: &'static [(usize, usize)],
}

impl Convolution {
    fn output(&self) -> Vec<usize> {
        let axis = |i: usize| {
            let (begin, end) = self.pads[i];
            (self.image[i] + begin + end - (self.window[i] - 1) * self.dilations[i] - 1) / self.strides[i] + 1
        };
        (0..self.image.len()).map(axis).collect()
    }
}

#[test]
fn conv() {
    type C = Convolution;
    let table = [
        C {
            batch: 2,
            channels: (3, 5),
            groups: 1,
            image: &[9],
            window: &[3],
            strides: &[1],
            dilations: &[1],
            pads: &[(1, 1)],
        },
        C {
            batch: 1,
            channels: (1, 1),
            groups: 1,
            image: &[1],
            window: &[1],
            strides: &[1],
            dilations: &[1],
            pads: &[(0, 0)],
        },
        C {
            batch: 2,
            channels: (2, 3),
            groups: 2,
            image: &[17],
            window: &[4],
            strides: &[2],
            dilations: &[3],
            pads: &[(2, 5)],
        },
        C {
            batch: 2,
            channels: (3, 8),
            groups: 1,
            image: &[10, 11],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 3,
            channels: (16, 24),
            groups: 1,
            image: &[7, 5],
            window: &[1, 1],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(0, 0), (0, 0)],
        },
        C {
            batch: 2,
            channels: (4, 9),
            groups: 1,
            image: &[9, 8],
            window: &[1, 1],
            strides: &[2, 2],
            dilations: &[1, 1],
            pads: &[(0, 0), (0, 0)],
        },
        C {
            batch: 2,
            channels: (5, 7),
            groups: 1,
            image: &[12, 13],
            window: &[5, 2],
            strides: &[3, 2],
            dilations: &[1, 2],
            pads: &[(0, 3), (2, 0)],
        },
        C {
            batch: 2,
            channels: (1, 1),
            groups: 9,
            image: &[8, 19],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 1,
            channels: (1, 1),
            groups: 16,
            image: &[9, 9],
            window: &[3, 3],
            strides: &[2, 2],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 1,
            channels: (1, 2),
            groups: 4,
            image: &[9, 7],
            window: &[3, 2],
            strides: &[1, 2],
            dilations: &[2, 1],
            pads: &[(2, 2), (1, 0)],
        },
        C {
            batch: 2,
            channels: (1, 1),
            groups: 6,
            image: &[7, 7],
            window: &[7, 7],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(3, 3), (3, 3)],
        },
        C {
            batch: 1,
            channels: (3, 2),
            groups: 3,
            image: &[6, 6],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(0, 0), (0, 0)],
        },
        C {
            batch: 1,
            channels: (2, 3),
            groups: 1,
            image: &[3, 3],
            window: &[2, 2],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(4, 4), (3, 5)],
        },
        C {
            batch: 2,
            channels: (2, 4),
            groups: 1,
            image: &[5, 6, 4],
            window: &[3, 2, 3],
            strides: &[1, 2, 1],
            dilations: &[1, 1, 1],
            pads: &[(1, 1), (0, 1), (1, 0)],
        },
        C {
            batch: 1,
            channels: (1, 1),
            groups: 3,
            image: &[4, 5, 6],
            window: &[2, 3, 2],
            strides: &[2, 1, 2],
            dilations: &[1, 2, 1],
            pads: &[(0, 0), (2, 2), (1, 1)],
        },
        C {
            batch: 0,
            channels: (3, 4),
            groups: 1,
            image: &[6, 6],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 1,
            channels: (40, 33),
            groups: 1,
            image: &[6, 6],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 4,
            channels: (16, 40),
            groups: 1,
            image: &[14, 14],
            window: &[3, 3],
            strides: &[2, 2],
            dilations: &[1, 1],
            pads: &[(1, 1), (1, 1)],
        },
        C {
            batch: 3,
            channels: (70, 66),
            groups: 1,
            image: &[9, 9],
            window: &[1, 1],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(0, 0), (0, 0)],
        },
        C {
            batch: 2,
            channels: (12, 20),
            groups: 1,
            image: &[23],
            window: &[5],
            strides: &[4],
            dilations: &[2],
            pads: &[(3, 4)],
        },
        C {
            batch: 2,
            channels: (3, 4),
            groups: 1,
            image: &[11, 10],
            window: &[2, 4],
            strides: &[3, 2],
            dilations: &[1, 3],
            pads: &[(0, 1), (4, 4)],
        },
        C {
            batch: 8,
            channels: (2, 3),
            groups: 1,
            image: &[28, 30],
            window: &[5, 5],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(2, 2), (2, 2)],
        },
        C {
            batch: 2,
            channels: (1, 2),
            groups: 5,
            image: &[13, 11],
            window: &[5, 5],
            strides: &[2, 2],
            dilations: &[1, 1],
            pads: &[(2, 2), (2, 2)],
        },
        C {
            batch: 3,
            channels: (1, 1),
            groups: 7,
            image: &[21],
            window: &[4],
            strides: &[3],
            dilations: &[2],
            pads: &[(2, 1)],
        },
        C {
            batch: 2,
            channels: (1, 3),
            groups: 4,
            image: &[10, 9],
            window: &[3, 3],
            strides: &[1, 1],
            dilations: &[2, 2],
            pads: &[(2, 2), (1, 3)],
        },
        C {
            batch: 1,
            channels: (1, 1),
            groups: 3,
            image: &[30, 30],
            window: &[9, 9],
            strides: &[1, 1],
            dilations: &[1, 1],
            pads: &[(4, 4), (4, 4)],
        },
        C {
            batch: 2,
            channels: (1, 1),
            groups: 4,
            image: &[16, 15],
            window: &[2, 3],
            strides: &[5, 4],
            dilations: &[1, 1],
            pads: &[(0, 0), (1, 1)],
        },
        C {
            batch: 1,
            channels: (70, 3),
            groups: 1,
            image: &[5],
            window: &[3],
            strides: &[2],
            dilations: &[1],
            pads: &[(1, 1)],
        },
        C {
            batch: 2,
            channels: (2, 3),
            groups: 1,
            image: &[6, 50],
            window: &[2, 3],
            strides: &[9, 40],
            dilations: &[1, 2],
            pads: &[(1, 0), (0, 2)],
        },
        C {
            batch: 2,
            channels: (1, 1),
            groups: 3,
            image: &[70],
            window: &[3],
            strides: &[50],
            dilations: &[1],
            pads: &[(0, 0)],
        },
    ];
    for (i, c) in table.iter().enumerate() {
        for direction in [Direction::Forward, Direction::InputGrad, Direction::WeightGrad] {
            for bias in [false, true] {
                if bias && direction != Direction::Forward {
                    continue;
                }
                let others = [DType::F64, DType::F16, DType::I32, DType::BF16, DType::I64, DType::U8];
                for dtype in [DType::F32, others[i % others.len()]] {
                    let mut case = Case::new(format!("conv {i} {direction:?} {dtype}"));
                    let spatial = c.output();
                    let (inside, outside) = (c.channels.0 * c.groups, c.channels.1 * c.groups);
                    let x = case.numbers(dtype, &[&[c.batch, inside], c.image].concat());
                    let w = case.numbers(dtype, &[&[outside, c.channels.0], c.window].concat());
                    let y = case.numbers(dtype, &[&[c.batch, outside], &spatial[..]].concat());
                    let (first, second, out) = match direction {
                        Direction::Forward => (x, w, y),
                        Direction::InputGrad => (y, w, x),
                        Direction::WeightGrad => (y, x, w),
                    };
                    let b = bias.then(|| case.numbers(dtype, &[outside]));
                    let mut case = case.read(first).read(second);
                    if let Some(b) = b {
                        case = case.read(b);
                    }
                    let kernel = Conv {
                        direction,
                        groups: c.groups,
                        strides: c.strides.to_vec(),
                        dilations: c.dilations.to_vec(),
                        pads_begin: c.pads.iter().map(|p| p.0).collect(),
                    };
                    let tolerance = if dtype.size() == 2 { 1e-2 } else { 3e-5 };
                    case.write(out).check(Kernel::Conv(kernel), tolerance);
                }
            }
        }
    }
}
