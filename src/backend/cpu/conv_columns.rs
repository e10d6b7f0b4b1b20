//! The input gradient as a matrix product and a scatter: for each image, what every tap of every channel gets
//! from `dy` in one product, then added where the taps lie. For kernels that are large against the result and
//! not padded, where correlating a padded `dy` would mostly multiply zeros.

use super::conv::{ConvDirection, ConvShape};
use super::conv_geometry::{H, Plan};
use super::conv_tiles::parts;
use super::gemm::{Gemm, Matrix, gemm_in_task, gemm_scratch};
use super::pool::PoolShape;
use super::simd::{Isa, Simd, SimdOp, dispatch_on};
use super::threads::{Shared, parallel_for};

/// Tasks of one call, each with columns of its own.
const TASKS: usize = 16;
/// Most elements of the columns of one image.
const COLUMNS: usize = 1 << 17;

/// Rows, columns and summed channels of the product for one image and group.
fn sizes(shape: &ConvShape) -> (usize, usize, usize) {
    let product = |of: &[usize]| of[..shape.spatial].iter().product::<usize>();
    let rows = shape.in_channels / shape.groups * product(&shape.kernel);
    (rows, product(&shape.output), shape.out_channels / shape.groups)
}

/// Whether this way is the better one for an input gradient. Wide vectors multiply zeros faster than they scatter.
pub(crate) fn suits(isa: Isa, shape: &ConvShape) -> bool {
    let (m, n, k) = sizes(shape);
    if shape.batch * shape.groups < 4 || m * n > COLUMNS || m * n * k == 0 {
        return false;
    }
    let plan = Plan::new(shape, ConvDirection::InputGradient);
    let correlated: usize =
        parts(&plan).map(|p| p.axes[..H].iter().map(|a| a.grid).product::<usize>() * plan.extent(&p.axes) * p.k).sum();
    plan.out_channels * correlated > isa.registers().0 / 2 * m * n * k
}

fn each(shape: &ConvShape) -> usize {
    let (m, n, k) = sizes(shape);
    m * n + gemm_scratch(m, n, k)
}

/// f32 elements of scratch for [`input_gradient`].
pub(crate) fn scratch(shape: &ConvShape) -> usize {
    (shape.batch * shape.groups).min(TASKS) * each(shape)
}

/// Computes `dx`; the scratch has at least [`scratch`] elements.
pub(crate) fn input_gradient(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    let (m, n, k) = sizes(shape);
    let units = shape.batch * shape.groups;
    let tasks = units.min(TASKS);
    let channels = shape.in_channels / shape.groups;
    let plane = dx.len() / (shape.batch * shape.in_channels).max(1);
    let (dx, scratch) = (Shared::new(dx), Shared::new(scratch));
    parallel_for(tasks, |t| {
        let columns = scratch.moved(t * each(shape));
        for unit in t * units / tasks..(t + 1) * units / tasks {
            let group = unit % shape.groups;
            let p = Gemm {
                m,
                n,
                k,
                alpha: 1.0,
                beta: 0.0,
                a: Matrix { data: w, offset: group * k * m, row: 1, col: m as isize },
                b: Matrix { data: dy, offset: unit * k * n, row: n as isize, col: 1 },
                row_bias: None,
                col_bias: None,
            };
            // Safety: the product's sizes follow from the shape, and each task has scratch of its own.
            unsafe { gemm_in_task(isa, &p, columns, n, columns.moved(m * n).get()) };
            for c in 0..channels {
                // Safety: each channel of `dx` belongs to one task, and the columns are written.
                let (to, from) = unsafe {
                    let rows = m / channels * n;
                    (dx.slice((unit * channels + c) * plane, plane), columns.slice(c * rows, rows))
                };
                let bias = bias.map_or(0.0, |bias| bias[group * channels + c]);
                dispatch_on(isa, Scatter { shape, from, bias, to });
            }
        }
    });
}

/// Adds the columns of one channel to where its taps lie.
struct Scatter<'a> {
    shape: &'a ConvShape,
    from: &'a [f32],
    bias: f32,
    to: &'a mut [f32],
}

impl SimdOp for Scatter<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let s = self.shape;
        let window = PoolShape {
            planes: 1,
            spatial: s.spatial,
            input: s.input,
            output: s.output,
            kernel: s.kernel,
            stride: s.stride,
            dilation: s.dilation,
            pad: s.pad,
            pad_end: [0; super::conv::MAX_SPATIAL],
        };
        let d = s.spatial - 1;
        let (width, taps) = (s.output[d], s.kernel[d]);
        self.to.fill(self.bias);
        let (rows, stride) = (window.rows(), s.stride[d]);
        for tap_row in 0..window.tap_rows() {
            for row in 0..rows {
                let Some(input_row) = window.meet(row, tap_row) else { continue };
                for tap in 0..taps {
                    let (first, last, at) = window.along(tap);
                    if first == last {
                        continue;
                    }
                    let from = &self.from[((tap_row * taps + tap) * rows + row) * width..][first..last];
                    let to = &mut self.to[input_row * s.input[d] + at..];
                    // Safety: rows of both.
                    unsafe { add_row::<S>(from, to, stride) };
                }
            }
        }
    }
}

/// Adds a row to elements that lie `step` apart.
///
/// # Safety
/// `S` runs on this machine.
#[inline(always)]
unsafe fn add_row<S: Simd>(from: &[f32], to: &mut [f32], step: usize) {
    if step != 1 {
        to.iter_mut().step_by(step).zip(from).for_each(|(to, from)| *to += from);
        return;
    }
    let n = from.len().min(to.len());
    let mut i = 0;
    while i + S::LANES <= n {
        // Safety: the elements exist.
        unsafe {
            let to = to.as_mut_ptr().add(i);
            S::store(to, S::add(S::load(to), S::load(from.as_ptr().add(i))));
        }
        i += S::LANES;
    }
    for i in i..n {
        to[i] += from[i];
    }
}
