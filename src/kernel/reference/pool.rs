//! Pooling.

use super::super::{Buffers, Pool, PoolKind, Step, View};
use super::values::{Values, int_limits};
use super::window::{Tap, Window};
use super::{load, store};
use crate::error::{Result, bail, err};
use crate::tensor::DType;

pub(super) fn pool(k: &Pool, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    let (read, write) = (&step.reads[0], &step.writes[0]);
    let (x, y) = if k.gradient { (write, read) } else { (read, write) };
    let window = Window {
        input: &x.shape[2..],
        output: &y.shape[2..],
        window: &k.window,
        strides: &k.strides,
        dilations: &k.dilations,
        pads_begin: &k.pads_begin,
    };
    let planes = Planes {
        planes: x.shape[..2].iter().product(),
        x_len: x.shape[2..].iter().product(),
        y_len: y.shape[2..].iter().product(),
        taps: window.taps(),
    };
    let from = load(buffers, read)?;
    let result = match (k.kind, k.gradient) {
        (PoolKind::Max, false) => return max_forward(&planes, &from, step, buffers),
        (PoolKind::Max, true) => max_gradient(&planes, &from, &load(buffers, &step.reads[1])?)?,
        (PoolKind::Average { include_pad }, gradient) => {
            let counts = planes.counts(&window, &k.pads_end, include_pad);
            match (from, gradient) {
                (Values::Float(x), false) => Values::Float(planes.average(&x, &counts)),
                (Values::Float(dy), true) => Values::Float(planes.average_gradient(&dy, &counts)),
                (Values::Int(_), _) => bail!(Unsupported, "average pooling of {}", read.dtype),
            }
        }
    };
    store(buffers, write, &result)
}

fn max_forward(planes: &Planes, x: &Values, step: &Step, buffers: &mut dyn Buffers) -> Result<()> {
    let y: &View = &step.writes[0];
    let (values, positions) = match x {
        Values::Float(x) => {
            // NaN beats numbers, and nothing beats NaN.
            let (v, p) = planes.max(x, f64::NEG_INFINITY, |a, b| a > b || (a.is_nan() && !b.is_nan()));
            (Values::Float(v), p)
        }
        Values::Int(x) if y.dtype == DType::U64 => {
            let (v, p) = planes.max(x, 0, |a, b| a as u64 > b as u64);
            (Values::Int(v), p)
        }
        Values::Int(x) => {
            let (v, p) = planes.max(x, int_limits(y.dtype).0, |a, b| a > b);
            (Values::Int(v), p)
        }
    };
    store(buffers, y, &values)?;
    match step.writes.get(1) {
        Some(view) => store(buffers, view, &Values::Int(positions)),
        None => Ok(()),
    }
}

fn max_gradient(planes: &Planes, dy: &Values, positions: &Values) -> Result<Values> {
    let (Values::Float(dy), Values::Int(positions)) = (dy, positions) else {
        bail!(Unsupported, "the gradient of max pooling for integers");
    };
    let mut dx = vec![0.0; planes.planes * planes.x_len];
    for (&dy, &p) in dy.iter().zip(positions) {
        if p == NOWHERE {
            continue;
        }
        let len = dx.len();
        let Some(dx) = usize::try_from(p).ok().and_then(|p| dx.get_mut(p)) else {
            return Err(err!(Input, "position of a maximum").expected(format!("0..{len}")).found(p));
        };
        *dx += dy;
    }
    Ok(Values::Float(dx))
}

/// The position of the maximum of a window that lies in the padding altogether.
const NOWHERE: i64 = -1;

/// The spatial planes of all images and channels, and the taps that all of them share.
struct Planes {
    planes: usize,
    x_len: usize,
    y_len: usize,
    taps: Vec<Tap>,
}

impl Planes {
    /// Calls `visit` with the positions in x and y of every tap, plane by plane.
    fn each(&self, mut visit: impl FnMut(usize, usize)) {
        for plane in 0..self.planes {
            for tap in &self.taps {
                visit(plane * self.x_len + tap.input, plane * self.y_len + tap.output);
            }
        }
    }

    /// Maxima and where they are; the first wins.
    fn max<T: Copy>(&self, x: &[T], lowest: T, beats: impl Fn(T, T) -> bool) -> (Vec<T>, Vec<i64>) {
        let mut values = vec![lowest; self.planes * self.y_len];
        let mut positions = vec![NOWHERE; self.planes * self.y_len];
        self.each(|xi, yi| {
            if positions[yi] == NOWHERE || beats(x[xi], values[yi]) {
                values[yi] = x[xi];
                positions[yi] = xi as i64;
            }
        });
        (values, positions)
    }

    /// By how much each output element of a plane divides.
    fn counts(&self, window: &Window, pads_end: &[usize], include_pad: bool) -> Vec<f64> {
        let mut counts = vec![0.0; self.y_len];
        if include_pad {
            for (output, count) in counts.iter_mut().enumerate() {
                *count = padded_elements(window, pads_end, output);
            }
        } else {
            for tap in &self.taps {
                counts[tap.output] += 1.0;
            }
        }
        // A window with no elements has sum 0; let its average be 0 too.
        counts.iter().map(|&c: &f64| c.max(1.0)).collect()
    }

    fn average(&self, x: &[f64], counts: &[f64]) -> Vec<f64> {
        let mut y = vec![0.0; self.planes * self.y_len];
        self.each(|xi, yi| y[yi] += x[xi]);
        for (y, &count) in y.iter_mut().zip(counts.iter().cycle()) {
            *y /= count;
        }
        y
    }

    fn average_gradient(&self, dy: &[f64], counts: &[f64]) -> Vec<f64> {
        let mut dx = vec![0.0; self.planes * self.x_len];
        self.each(|xi, yi| dx[xi] += dy[yi] / counts[yi % self.y_len]);
        dx
    }
}

/// How many elements of the window of an output element lie in the input or its padding: a window
/// may reach beyond both where the output size was rounded up.
fn padded_elements(window: &Window, pads_end: &[usize], mut output: usize) -> f64 {
    let mut count = 1;
    for axis in (0..window.output.len()).rev() {
        let o = output % window.output[axis];
        output /= window.output[axis];
        let end = (window.input[axis] + pads_end[axis]) as isize;
        count *= (0..window.window[axis]).filter(|&w| window.position(axis, o, w) < end).count();
    }
    count as f64
}
