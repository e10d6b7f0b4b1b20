//! The table of backend_table.rs for Pool.

use crate::backend_table::Case;
use ontrain::kernel::reference::{self, HostBuffers};
use ontrain::kernel::{Kernel, Pool, PoolKind, RunContext, Step, View};
use ontrain::tensor::{DType, Tensor};

struct Slide {
    image: &'static [usize],
    window: &'static [usize],
    strides: &'static [usize],
    dilations: &'static [usize],
    begin: &'static [usize],
    end: &'static [usize],
}

const TABLE: [Slide; 12] = [
    Slide { image: &[9], window: &[2], strides: &[2], dilations: &[1], begin: &[0], end: &[0] },
    Slide { image: &[8, 8], window: &[2, 2], strides: &[2, 2], dilations: &[1, 1], begin: &[0, 0], end: &[0, 0] },
    Slide { image: &[9, 10], window: &[3, 3], strides: &[2, 2], dilations: &[1, 1], begin: &[1, 1], end: &[1, 1] },
    Slide { image: &[7, 19], window: &[3, 2], strides: &[1, 1], dilations: &[2, 1], begin: &[2, 0], end: &[2, 1] },
    Slide { image: &[5, 4], window: &[5, 4], strides: &[1, 1], dilations: &[1, 1], begin: &[0, 0], end: &[0, 0] },
    Slide { image: &[6, 6], window: &[2, 2], strides: &[3, 1], dilations: &[1, 2], begin: &[0, 1], end: &[1, 1] },
    Slide {
        image: &[5, 6, 7],
        window: &[2, 3, 2],
        strides: &[2, 1, 2],
        dilations: &[1, 1, 1],
        begin: &[0, 1, 1],
        end: &[1, 1, 0],
    },
    Slide { image: &[3, 3], window: &[2, 2], strides: &[2, 2], dilations: &[1, 1], begin: &[1, 1], end: &[1, 1] },
    // Windows that lie in the padding altogether, before and behind; and astride a row of one element.
    Slide { image: &[3], window: &[2], strides: &[1], dilations: &[1], begin: &[3], end: &[4] },
    Slide { image: &[1, 4], window: &[2, 2], strides: &[1, 1], dilations: &[2, 3], begin: &[1, 3], end: &[1, 3] },
    // Elements between the windows.
    Slide { image: &[11, 7], window: &[2, 1], strides: &[4, 3], dilations: &[2, 1], begin: &[1, 0], end: &[0, 1] },
    Slide { image: &[4, 40], window: &[1, 25], strides: &[1, 1], dilations: &[1, 1], begin: &[0, 12], end: &[0, 12] },
];

impl Slide {
    fn output(&self) -> Vec<usize> {
        let axis = |a: usize| {
            let reach = (self.window[a] - 1) * self.dilations[a] + 1;
            (self.image[a] + self.begin[a] + self.end[a] - reach) / self.strides[a] + 1
        };
        (0..self.image.len()).map(axis).collect()
    }

    fn kernel(&self, kind: PoolKind, gradient: bool) -> Kernel {
        Kernel::Pool(Pool {
            kind,
            gradient,
            window: self.window.to_vec(),
            strides: self.strides.to_vec(),
            dilations: self.dilations.to_vec(),
            pads_begin: self.begin.to_vec(),
            pads_end: self.end.to_vec(),
        })
    }

    /// The positions of the maxima of an image in which there are many equal numbers.
    fn positions(&self, case: &mut Case, planes: [usize; 2]) -> Tensor {
        let shape = |spatial: &[usize]| [&planes, spatial].concat();
        let len = shape(self.image).iter().product();
        let x: Vec<f64> = (0..len).map(|_| case.random.below(3) as f64).collect();
        let mut host = HostBuffers::new();
        let x = Tensor::from_f64s(DType::I32, &shape(self.image), &x).unwrap();
        let x = View::contiguous(host.add(&x), DType::I32, x.shape());
        let mut result = |dtype| {
            let shape = shape(&self.output());
            View::contiguous(host.add_zeros(dtype, &shape).unwrap(), dtype, &shape)
        };
        let writes = vec![result(DType::I32), result(DType::I64)];
        let positions = writes[1].clone();
        let step = Step { kernel: self.kernel(PoolKind::Max, false), reads: vec![x], writes, from: "here".into() };
        reference::run(&step, &mut host, &RunContext::default()).unwrap();
        host.read(&positions).unwrap()
    }
}

/// Rounded once from sums of a few numbers.
fn tolerance(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 2e-3,
        DType::BF16 => 1e-2,
        _ => 1e-5,
    }
}

const KINDS: [PoolKind; 3] =
    [PoolKind::Max, PoolKind::Average { include_pad: false }, PoolKind::Average { include_pad: true }];

#[test]
fn pool() {
    for (i, slide) in TABLE.iter().enumerate() {
        for kind in KINDS {
            for planes in [[2, 3], [1, 17], [0, 2]] {
                for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                    let shape = |spatial: &[usize]| [&planes, spatial].concat();
                    let out = slide.output();
                    let what = format!("pool {i} {kind:?} planes {planes:?} {dtype}");
                    let mut case = Case::new(what.clone());
                    let x = case.numbers(dtype, &shape(slide.image));
                    let y = case.numbers(dtype, &shape(&out));
                    let positions = case.numbers(DType::I64, &shape(&out));
                    let is_max = kind == PoolKind::Max;
                    let case = case.read(x).write(y);
                    // Positions are wanted only where there is a gradient.
                    let case = if is_max && i % 2 == 0 { case.write(positions) } else { case };
                    case.check(slide.kernel(kind, false), tolerance(dtype));

                    let mut case = Case::new(format!("{what} gradient"));
                    let dy = case.numbers(dtype, &shape(&out));
                    let dx = case.numbers(dtype, &shape(slide.image));
                    let positions = slide.positions(&mut case, planes);
                    let positions = case.buffer(&positions);
                    let case = case.read(dy);
                    let case = if is_max { case.read(positions) } else { case };
                    case.write(dx).check(slide.kernel(kind, true), tolerance(dtype));
                }
            }
        }
    }
}

/// Equal numbers, of which the first wins; a NaN in each plane, which beats numbers; infinities; integers of every width.
#[test]
fn maxima_of_every_dtype() {
    for (i, slide) in TABLE.iter().enumerate() {
        for dtype in DType::ALL {
            for with_positions in [true, false] {
                let mut case = Case::new(format!("maxima {i} of {dtype}, positions {with_positions}"));
                let shape = [&[2, 2], slide.image].concat();
                let plane: usize = slide.image.iter().product();
                let strange = case.random.below(plane);
                let bits = |at: usize| match at % plane == strange && dtype.is_float() {
                    true => float(dtype, f64::NAN),
                    false => extreme(dtype, case.random.below(12)),
                };
                let bytes: Vec<u8> = (0..shape.iter().product())
                    .map(bits)
                    .flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size()))
                    .collect();
                let x = case.buffer(&Tensor::from_bytes(dtype, &shape, &bytes).unwrap());
                let out = [&[2, 2], &slide.output()[..]].concat();
                let (y, positions) = (case.numbers(dtype, &out), case.numbers(DType::I64, &out));
                let case = case.read(x).write(y);
                let case = if with_positions { case.write(positions) } else { case };
                case.check(slide.kernel(PoolKind::Max, false), 0.0);
            }
        }
    }
}

/// The bits of a number that tries a maximum.
fn extreme(dtype: DType, n: usize) -> u64 {
    let top = 1u64 << (8 * dtype.size() - 1);
    if dtype == DType::Bool {
        return n.is_multiple_of(4) as u64;
    }
    if !dtype.is_float() {
        // The lowest and highest signed and unsigned values, and their neighbours.
        return [top, top + 1, top - 1, !0, !1, 0, 1, 0, 2, 2, 3, 0][n];
    }
    let (most, least) = (f64::INFINITY, f64::NEG_INFINITY);
    float(dtype, [most, most, least, least, 0.0, -0.0, 1.0, -1.0, 1.5, -2.5, least, 1.5][n])
}

/// The bits of a float.
fn float(dtype: DType, value: f64) -> u64 {
    let one = Tensor::from_f64s(dtype, &[1], &[value]).unwrap();
    let mut bits = [0; 8];
    bits[..dtype.size()].copy_from_slice(one.bytes());
    u64::from_le_bytes(bits)
}

/// What has no average or no gradient says so, on every device.
#[test]
fn pools_of_integers() {
    for dtype in [DType::I32, DType::U64, DType::Bool] {
        for kind in KINDS {
            for gradient in [false, true] {
                let mut case = Case::new(format!("{kind:?} of {dtype}, gradient {gradient}"));
                let slide = &TABLE[0];
                let (x, y) = (case.numbers(dtype, &[1, 1, 9]), case.numbers(dtype, &[1, 1, 4]));
                let positions = slide.positions(&mut case, [1, 1]);
                let positions = case.buffer(&positions);
                let case = if gradient { case.read(y).read(positions).write(x) } else { case.read(x).write(y) };
                case.check(slide.kernel(kind, gradient), 0.0);
            }
        }
    }
}
