//! Convolution in NCHW: N-d, grouped, strided, dilated, padded; forward and both gradients, f32.
//!
//! Forward and input gradient are one thing, a stride-1 correlation over a padded copy of the image (or the
//! image itself where nothing is padded): see `conv_tiles`. Where an input gradient would mostly see padding,
//! `conv_columns` takes over. The weight gradient is a table of dot products: see `conv_weight`. One channel per
//! group goes to `depthwise`, a convolution that sees its whole input at once is a matrix product.

use super::conv_geometry::{D, Plan};
use super::gemm::{Gemm, Matrix, gemm, gemm_scratch};
use super::simd::{Isa, isa};
use super::{conv_columns, conv_tiles, conv_weight, depthwise};

/// Most spatial dimensions of a convolution or a pool.
pub const MAX_SPATIAL: usize = 4;

/// The sizes of a convolution. Of the arrays, the first `spatial` entries count.
///
/// The image is `[batch, in_channels, input…]`, the result `[batch, out_channels, output…]`, the weight
/// `[out_channels, in_channels / groups, kernel…]`, all contiguous. Output position o reads input position
/// `o * stride + tap * dilation - pad`; outside the image it reads 0, so that the end pads follow from `output`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Groups of channels that do not see each other.
    pub groups: usize,
    /// Channels of the image, of all groups together.
    pub in_channels: usize,
    /// Channels of the result, of all groups together.
    pub out_channels: usize,
    /// Spatial dimensions, 1 to [`MAX_SPATIAL`].
    pub spatial: usize,
    /// Size of the image.
    pub input: [usize; MAX_SPATIAL],
    /// Size of the result.
    pub output: [usize; MAX_SPATIAL],
    /// Size of the kernel.
    pub kernel: [usize; MAX_SPATIAL],
    /// Input positions between neighbouring outputs, at least 1.
    pub stride: [usize; MAX_SPATIAL],
    /// Input positions between neighbouring taps, at least 1.
    pub dilation: [usize; MAX_SPATIAL],
    /// Zeros before the image.
    pub pad: [usize; MAX_SPATIAL],
}

/// What a convolution computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConvDirection {
    /// The result, from image and weight.
    Forward,
    /// The image's gradient, from the result's and the weight. Also a transposed convolution.
    InputGradient,
    /// The weight's gradient, from image and the result's gradient.
    WeightGradient,
}

impl ConvShape {
    fn product(&self, of: &[usize; MAX_SPATIAL]) -> usize {
        of[..self.spatial].iter().product()
    }

    /// Elements of the image tensor.
    pub fn input_len(&self) -> usize {
        self.batch * self.in_channels * self.product(&self.input)
    }

    /// Elements of the result tensor.
    pub fn output_len(&self) -> usize {
        self.batch * self.out_channels * self.product(&self.output)
    }

    /// Elements of the weight tensor.
    pub fn weight_len(&self) -> usize {
        self.out_channels * (self.in_channels / self.groups) * self.product(&self.kernel)
    }

    /// Multiply-adds of any direction, padding counted as data.
    pub fn multiply_adds(&self) -> usize {
        self.output_len() * (self.in_channels / self.groups) * self.product(&self.kernel)
    }

    /// Panics where the sizes contradict each other: a fault of the plan.
    fn check(&self, x: usize, w: usize, y: usize) {
        assert!((1..=MAX_SPATIAL).contains(&self.spatial), "1 to {MAX_SPATIAL} spatial dimensions");
        let divides = |n: usize| self.groups > 0 && n.is_multiple_of(self.groups);
        assert!(divides(self.in_channels) && divides(self.out_channels), "groups must divide the channels");
        for d in 0..self.spatial {
            assert!(self.stride[d] > 0 && self.dilation[d] > 0, "strides and dilations start at 1");
        }
        assert!(x == self.input_len(), "image of {x} elements for {self:?}");
        assert!(w == self.weight_len(), "weight of {w} elements for {self:?}");
        assert!(y == self.output_len(), "result of {y} elements for {self:?}");
    }

    /// The outputs are one position that reads the whole image, tap by tap.
    fn is_product(&self) -> bool {
        self.groups == 1
            && (0..self.spatial).all(|d| {
                self.output[d] == 1
                    && self.pad[d] == 0
                    && self.kernel[d] == self.input[d]
                    && (self.dilation[d] == 1 || self.kernel[d] == 1)
            })
    }

    /// The matrix product that [`Self::is_product`] stands for, as (m, n, k).
    fn product_sizes(&self, direction: ConvDirection) -> (usize, usize, usize) {
        let taps = self.in_channels * self.product(&self.kernel);
        match direction {
            ConvDirection::Forward => (self.batch, self.out_channels, taps),
            ConvDirection::InputGradient => (self.batch, taps, self.out_channels),
            ConvDirection::WeightGradient => (self.out_channels, taps, self.batch),
        }
    }

    /// One channel per group, and few results from it: too little for register tiles.
    fn is_depthwise(&self) -> bool {
        self.groups > 1 && self.in_channels == self.groups && self.out_channels <= 4 * self.groups
    }
}

/// f32 elements of scratch that the direction needs; the machine's vectors have a say, the threads have none.
pub fn conv_scratch(shape: &ConvShape, direction: ConvDirection) -> usize {
    conv_scratch_on(isa(), shape, direction)
}

fn conv_scratch_on(isa: Isa, shape: &ConvShape, direction: ConvDirection) -> usize {
    if shape.is_product() {
        let (m, n, k) = shape.product_sizes(direction);
        gemm_scratch(m, n, k)
    } else if shape.is_depthwise() {
        depthwise::scratch(shape, direction)
    } else if direction == ConvDirection::WeightGradient {
        conv_weight::scratch(shape)
    } else if direction == ConvDirection::InputGradient && conv_columns::suits(isa, shape) {
        conv_columns::scratch(shape)
    } else {
        conv_tiles::scratch(isa, &Plan::new(shape, direction))
    }
}

/// The product of `a` and `b`, plus `bias` per column, plus `beta` times what `c` holds.
fn product(
    (m, n, k): (usize, usize, usize),
    a: Matrix<'_>,
    b: Matrix<'_>,
    (bias, beta): (Option<&[f32]>, f32),
    c: &mut [f32],
    scratch: &mut [f32],
) {
    let p = Gemm { m, n, k, alpha: 1.0, beta, a, b, row_bias: None, col_bias: bias };
    gemm(&p, c, n, scratch);
}

/// `y = x * w + bias`: the convolution itself. `bias` has one value per output channel.
///
/// # Panics
/// If a slice does not have the shape's size or the scratch less than [`conv_scratch`]: a fault of the plan.
pub fn conv_forward(shape: &ConvShape, x: &[f32], w: &[f32], bias: Option<&[f32]>, y: &mut [f32], scratch: &mut [f32]) {
    forward_on(isa(), shape, x, w, bias, y, scratch);
}

fn forward_on(
    isa: Isa,
    shape: &ConvShape,
    x: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    y: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(x.len(), w.len(), y.len());
    assert!(bias.is_none_or(|b| b.len() == shape.out_channels), "bias is one value per output channel");
    assert!(scratch.len() >= conv_scratch_on(isa, shape, ConvDirection::Forward), "scratch too small");
    if y.is_empty() {
        return;
    }
    if shape.is_product() {
        let (m, n, k) = shape.product_sizes(ConvDirection::Forward);
        product((m, n, k), Matrix::row_major(x, k), Matrix::row_major(w, k).transposed(), (bias, 0.0), y, scratch);
    } else if shape.is_depthwise() {
        depthwise::correlate(isa, &Plan::new(shape, ConvDirection::Forward), x, w, bias, y, scratch);
    } else {
        conv_tiles::correlate(isa, &Plan::new(shape, ConvDirection::Forward), x, w, bias, y, scratch);
    }
}

/// `dx`, what `dy` says about the image; as a transposed convolution it takes a `bias` per channel of `dx`.
///
/// # Panics
/// As [`conv_forward`].
pub fn conv_input_gradient(
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    input_gradient_on(isa(), shape, dy, w, bias, dx, scratch);
}

fn input_gradient_on(
    isa: Isa,
    shape: &ConvShape,
    dy: &[f32],
    w: &[f32],
    bias: Option<&[f32]>,
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(dx.len(), w.len(), dy.len());
    assert!(bias.is_none_or(|b| b.len() == shape.in_channels), "bias is one value per channel of the image");
    assert!(scratch.len() >= conv_scratch_on(isa, shape, ConvDirection::InputGradient), "scratch too small");
    if dx.is_empty() {
        return;
    }
    if shape.is_product() {
        let (m, n, k) = shape.product_sizes(ConvDirection::InputGradient);
        if let Some(bias) = bias {
            // The product's columns are taps: the bias of their channel is put down first.
            let taps = n / bias.len();
            dx.chunks_exact_mut(taps).enumerate().for_each(|(i, dx)| dx.fill(bias[i % bias.len()]));
        }
        let beta = if bias.is_some() { 1.0 } else { 0.0 };
        product((m, n, k), Matrix::row_major(dy, k), Matrix::row_major(w, n), (None, beta), dx, scratch);
    } else if shape.is_depthwise() {
        depthwise::correlate(isa, &Plan::new(shape, ConvDirection::InputGradient), dy, w, bias, dx, scratch);
    } else if conv_columns::suits(isa, shape) {
        conv_columns::input_gradient(isa, shape, dy, w, bias, dx, scratch);
    } else {
        conv_tiles::correlate(isa, &Plan::new(shape, ConvDirection::InputGradient), dy, w, bias, dx, scratch);
    }
}

/// `dw`, what `dy` says about the weight.
///
/// # Panics
/// As [`conv_forward`].
pub fn conv_weight_gradient(shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    weight_gradient_on(isa(), shape, x, dy, dw, scratch);
}

fn weight_gradient_on(isa: Isa, shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    shape.check(x.len(), dw.len(), dy.len());
    assert!(scratch.len() >= conv_scratch_on(isa, shape, ConvDirection::WeightGradient), "scratch too small");
    if dw.is_empty() {
        return;
    }
    if dy.is_empty() {
        return dw.fill(0.0);
    }
    if shape.is_product() {
        let (m, n, k) = shape.product_sizes(ConvDirection::WeightGradient);
        product((m, n, k), Matrix::row_major(dy, m).transposed(), Matrix::row_major(x, n), (None, 0.0), dw, scratch);
    } else if shape.is_depthwise() {
        depthwise::weight_gradient(isa, shape, x, dy, dw, scratch);
    } else {
        conv_weight::weight_gradient(isa, shape, x, dy, dw, scratch);
    }
}

const _: () = assert!(D == MAX_SPATIAL);

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
