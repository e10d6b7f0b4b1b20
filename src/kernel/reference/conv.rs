//! Convolution: one enumeration of all products x * w that make up y, summed three ways.

use super::super::{Buffers, Conv, Direction, Step};
use super::values::{Number, Values};
use super::window::{Tap, Window};
use super::{load, mixed_operands, store};
use crate::error::Result;

pub(super) fn conv(k: &Conv, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    let (first, second, out) = (&step.reads[0], &step.reads[1], &step.writes[0]);
    let (x, w, y) = match k.direction {
        Direction::Forward => (first, second, out),
        Direction::InputGrad => (out, second, first),
        Direction::WeightGrad => (second, out, first),
    };
    let window = Window {
        input: &x.shape[2..],
        output: &y.shape[2..],
        window: &w.shape[2..],
        strides: &k.strides,
        dilations: &k.dilations,
        pads_begin: &k.pads_begin,
    };
    let products = Products {
        batch: x.shape[0],
        groups: k.groups,
        x_channels: x.shape[1] / k.groups,
        y_channels: y.shape[1] / k.groups,
        x_len: x.shape[2..].iter().product(),
        w_len: w.shape[2..].iter().product(),
        y_len: y.shape[2..].iter().product(),
        taps: window.taps(),
    };
    let bias = match step.reads.get(2) {
        Some(view) => Some(load(buffers, view)?),
        None => None,
    };
    let result = match (&load(buffers, first)?, &load(buffers, second)?, &bias) {
        (Values::Float(a), Values::Float(b), None) => Values::Float(products.sum(k.direction, a, b, None)),
        (Values::Int(a), Values::Int(b), None) => Values::Int(products.sum(k.direction, a, b, None)),
        (Values::Float(a), Values::Float(b), Some(Values::Float(c))) => {
            Values::Float(products.sum(k.direction, a, b, Some(c)))
        }
        (Values::Int(a), Values::Int(b), Some(Values::Int(c))) => Values::Int(products.sum(k.direction, a, b, Some(c))),
        _ => return Err(mixed_operands("Conv")),
    };
    store(buffers, out, &result)
}

/// The products of a convolution.
struct Products {
    batch: usize,
    groups: usize,
    /// Per group.
    x_channels: usize,
    /// Per group.
    y_channels: usize,
    x_len: usize,
    w_len: usize,
    y_len: usize,
    taps: Vec<Tap>,
}

impl Products {
    /// Calls `visit` with the positions in x, w and y of every product.
    fn each(&self, mut visit: impl FnMut(usize, usize, usize)) {
        for image in 0..self.batch * self.groups {
            // Images and groups together: channel blocks in a row.
            let group = image % self.groups;
            for m in 0..self.y_channels {
                let y = (image * self.y_channels + m) * self.y_len;
                for c in 0..self.x_channels {
                    let x = (image * self.x_channels + c) * self.x_len;
                    let w = ((group * self.y_channels + m) * self.x_channels + c) * self.w_len;
                    for tap in &self.taps {
                        visit(x + tap.input, w + tap.window, y + tap.output);
                    }
                }
            }
        }
    }

    /// The sums of products that `direction` asks for, from its two reads and the bias.
    fn sum<T: Number>(&self, direction: Direction, a: &[T], b: &[T], bias: Option<&Vec<T>>) -> Vec<T> {
        let images = self.batch * self.groups;
        match direction {
            Direction::Forward => {
                let mut y = vec![T::ZERO; images * self.y_channels * self.y_len];
                if let Some(bias) = bias {
                    for (plane, &b) in y.chunks_exact_mut(self.y_len.max(1)).zip(bias.iter().cycle()) {
                        plane.fill(b);
                    }
                }
                self.each(|xi, wi, yi| y[yi] = y[yi].plus(a[xi].times(b[wi])));
                y
            }
            Direction::InputGrad => {
                let mut dx = vec![T::ZERO; images * self.x_channels * self.x_len];
                self.each(|xi, wi, yi| dx[xi] = dx[xi].plus(a[yi].times(b[wi])));
                dx
            }
            Direction::WeightGrad => {
                let mut dw = vec![T::ZERO; self.groups * self.y_channels * self.x_channels * self.w_len];
                self.each(|xi, wi, yi| dw[wi] = dw[wi].plus(a[yi].times(b[xi])));
                dw
            }
        }
    }
}
