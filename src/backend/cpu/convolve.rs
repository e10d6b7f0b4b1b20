//! The Conv kernel on f32 views.

use super::conv::{
    ConvDirection, ConvShape, MAX_SPATIAL, conv_forward, conv_input_gradient, conv_scratch, conv_weight_gradient,
};
use super::matmul::{slice_mut, slice_of};
use super::memory::Memory;
use crate::kernel::{self, Direction, View};
use crate::tensor::DType;

/// A prepared convolution.
pub(super) struct Convolve {
    shape: ConvShape,
    direction: ConvDirection,
    reads: Vec<View>,
    out: View,
}

impl Convolve {
    /// `None` unless all views are contiguous f32 and of at most [`MAX_SPATIAL`] spatial axes.
    pub(super) fn compile(kernel: &kernel::Conv, reads: &[View], out: &View) -> Option<Self> {
        let spatial = kernel.strides.len();
        let plain = reads.iter().chain([out]).all(|v| v.dtype == DType::F32 && v.is_contiguous());
        if !plain || !(1..=MAX_SPATIAL).contains(&spatial) {
            return None;
        }
        let (x, w, y, direction) = match kernel.direction {
            Direction::Forward => (&reads[0], &reads[1], out, ConvDirection::Forward),
            Direction::InputGrad => (out, &reads[1], &reads[0], ConvDirection::InputGradient),
            Direction::WeightGrad => (&reads[1], out, &reads[0], ConvDirection::WeightGradient),
        };
        let sizes = |from: &[usize]| {
            let mut sizes = [1; MAX_SPATIAL];
            sizes[..spatial].copy_from_slice(from);
            sizes
        };
        let mut pad = [0; MAX_SPATIAL];
        pad[..spatial].copy_from_slice(&kernel.pads_begin);
        let shape = ConvShape {
            batch: x.shape[0],
            groups: kernel.groups,
            in_channels: x.shape[1],
            out_channels: y.shape[1],
            spatial,
            input: sizes(&x.shape[2..]),
            output: sizes(&y.shape[2..]),
            kernel: sizes(&w.shape[2..]),
            stride: sizes(&kernel.strides),
            dilation: sizes(&kernel.dilations),
            pad,
        };
        Some(Self { shape, direction, reads: reads.to_vec(), out: out.clone() })
    }

    pub(super) fn scratch(&self) -> usize {
        conv_scratch(&self.shape, self.direction)
    }

    /// # Safety
    /// Every view has passed `Memory::check` for this memory, and the result overlaps no operand.
    pub(super) unsafe fn run(&self, memory: &Memory, scratch: &mut [f32]) {
        // Safety: the caller's word.
        let (first, second) = unsafe { (slice_of(memory, &self.reads[0]), slice_of(memory, &self.reads[1])) };
        // Safety: the caller's word.
        let out = unsafe { &mut slice_mut(memory, &self.out)[..self.out.len()] };
        match self.direction {
            ConvDirection::Forward => {
                // Safety: the caller's word.
                let bias = self.reads.get(2).map(|b| unsafe { slice_of(memory, b) });
                conv_forward(&self.shape, first, second, bias, out, scratch);
            }
            ConvDirection::InputGradient => conv_input_gradient(&self.shape, first, second, None, out, scratch),
            ConvDirection::WeightGradient => conv_weight_gradient(&self.shape, second, first, out, scratch),
        }
    }
}
