//! A convolution, seen as stride-1 correlations over a padded, de-interleaved copy of its source.
//!
//! Along each axis, position g of a grid of results sums taps i of the source at `at + i * spacing + g * step`.
//! Forward, there is one such correlation, with `step` the stride. The input gradient is one for each residue
//! of the input position modulo the stride, each with the taps that reach it, and `step` 1.
//!
//! The copy of a channel holds what lies at distance `step` side by side: position x of the source goes to
//! residue `(x - lo) % step`, place `(x - lo) / step`. So a tap is an offset, and neighbouring results read
//! neighbouring elements, whatever the stride. Last come the rows and columns of one residue; a row of results
//! is a stretch of the copy, and so are all rows of a plane, but for the few places between one row and the next.

use super::conv::{ConvDirection, ConvShape, MAX_SPATIAL};

/// Axes of a plan: the spatial dimensions, with axes of size 1 put before them.
pub(crate) const D: usize = MAX_SPATIAL;
/// The axis of rows.
pub(crate) const H: usize = D - 2;
/// The axis of columns.
pub(crate) const W: usize = D - 1;

/// A correlation along one axis.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Axis {
    /// Results.
    pub(crate) grid: usize,
    /// Taps summed for each.
    pub(crate) taps: usize,
    /// Source position of tap 0 for result 0.
    at: isize,
    /// Source positions from tap to tap.
    spacing: isize,
    /// Kernel index of tap 0, and from tap to tap.
    kernel: (usize, usize),
    /// Where result 0 goes in the output, and from result to result.
    pub(crate) out: (usize, usize),
}

impl Axis {
    /// First and last source position that the correlation reads; None if it reads nothing.
    fn reach(&self, step: usize) -> Option<(isize, isize)> {
        let (grid, taps) = (self.grid.checked_sub(1)?, self.taps.checked_sub(1)?);
        let across = taps as isize * self.spacing;
        Some((self.at + across.min(0), self.at + across.max(0) + (grid * step) as isize))
    }
}

/// The copy of the source along one axis.
#[derive(Clone, Copy, Debug, Default)]
struct Stored {
    /// Positions of the source.
    size: usize,
    /// Source position of the first element.
    lo: isize,
    /// Distance that becomes neighbourhood.
    step: usize,
    /// Residues held, of `step`.
    residues: usize,
    /// Places for each residue.
    len: usize,
}

/// One direction of a convolution. Source and output are the tensors read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) shape: ConvShape,
    pub(crate) direction: ConvDirection,
    /// Channels of one group in source and output.
    pub(crate) source_channels: usize,
    pub(crate) out_channels: usize,
    /// Elements of one channel of source and output.
    pub(crate) source_len: usize,
    pub(crate) out_len: usize,
    /// Elements of the output from one position to the next along each axis.
    out_pitch: [usize; D],
    /// Elements of the weight from one tap to the next along each axis.
    weight_pitch: [usize; D],
    /// Correlations along each axis: more than one where residues are apart.
    pub(crate) parts: [usize; D],
    stored: [Stored; D],
    /// Whether the source must be copied; otherwise it is read in place.
    pub(crate) copied: bool,
    /// Elements of one channel as stored.
    pub(crate) stored_len: usize,
    /// Elements from one place to the next along each axis, as stored.
    pub(crate) pitch: [usize; D],
    /// Elements from one residue to the next along each axis, as stored.
    residue_pitch: [usize; D],
}

impl Plan {
    /// The plan of a forward convolution or an input gradient. For the weight gradient take the forward one:
    /// it reads the image the same way.
    pub(crate) fn new(shape: &ConvShape, direction: ConvDirection) -> Plan {
        let (mut input, mut output, mut kernel) = ([1; D], [1; D], [1; D]);
        let (mut stride, mut dilation, mut pad) = ([1; D], [1; D], [0; D]);
        for d in 0..shape.spatial {
            let to = D - shape.spatial + d;
            input[to] = shape.input[d];
            output[to] = shape.output[d];
            kernel[to] = shape.kernel[d];
            stride[to] = shape.stride[d];
            dilation[to] = shape.dilation[d];
            pad[to] = shape.pad[d];
        }
        if input == output && kernel == [1; D] && stride == [1; D] && pad == [0; D] {
            // Position by position: the whole image is one row.
            let positions = input.iter().product();
            input = [1; D];
            input[W] = positions;
            output = input;
        }
        let mut spatial = *shape;
        (spatial.spatial, spatial.input, spatial.output, spatial.kernel) = (D, input, output, kernel);
        (spatial.stride, spatial.dilation, spatial.pad) = (stride, dilation, pad);
        Plan::of(spatial, direction)
    }

    fn of(shape: ConvShape, direction: ConvDirection) -> Plan {
        let backward = direction == ConvDirection::InputGradient;
        let (source, out) = if backward { (shape.output, shape.input) } else { (shape.input, shape.output) };
        let (into, from) = (shape.in_channels / shape.groups, shape.out_channels / shape.groups);
        let mut plan = Plan {
            shape,
            direction,
            source_channels: if backward { from } else { into },
            out_channels: if backward { into } else { from },
            source_len: source.iter().product(),
            out_len: out.iter().product(),
            out_pitch: pitches(&out),
            weight_pitch: pitches(&shape.kernel),
            parts: if backward { shape.stride } else { [1; D] },
            stored: [Stored::default(); D],
            copied: false,
            stored_len: 0,
            pitch: [0; D],
            residue_pitch: [0; D],
        };
        for d in 0..D {
            plan.stored[d] = plan.store(d, source[d], if backward { 1 } else { shape.stride[d] });
            let s = plan.stored[d];
            plan.copied |= s.step > 1 || s.lo < 0 || s.lo + s.len as isize > s.size as isize;
        }
        plan.lay_out(&source);
        plan
    }

    /// What must be stored along axis `d`: all that any part reads.
    fn store(&self, d: usize, size: usize, step: usize) -> Stored {
        let (mut lo, mut hi, mut len) = (isize::MAX, isize::MIN, 0);
        for part in 0..self.parts[d] {
            let axis = self.axis(d, part);
            len = len.max(axis.grid);
            if let Some((first, last)) = axis.reach(step) {
                (lo, hi) = (lo.min(first), hi.max(last));
            }
        }
        if lo > hi {
            return Stored { size, lo: 0, step: 1, residues: 1, len };
        }
        let axis = self.axis(d, 0);
        // Parts are apart only where `step` is 1, and then there is one residue.
        let residues = (0..axis.taps).map(|i| (axis.position(i) - lo) as usize % step + 1).max().unwrap_or(1);
        Stored { size, lo, step, residues, len: len.max((hi - lo) as usize / step + 1) }
    }

    fn lay_out(&mut self, source: &[usize; D]) {
        if !self.copied {
            self.pitch = pitches(source);
            self.stored_len = self.source_len;
            return;
        }
        let [rows, cols] = [self.stored[H], self.stored[W]];
        self.pitch[W] = 1;
        self.pitch[H] = cols.len;
        self.residue_pitch[W] = rows.len * cols.len;
        self.residue_pitch[H] = cols.residues * rows.len * cols.len;
        let mut len = rows.residues * self.residue_pitch[H];
        for d in (0..H).rev() {
            self.pitch[d] = len;
            self.residue_pitch[d] = len * self.stored[d].len;
            len = self.residue_pitch[d] * self.stored[d].residues;
        }
        self.stored_len = len;
    }

    /// The correlation of part `part` along axis `d`.
    fn axis(&self, d: usize, part: usize) -> Axis {
        let s = &self.shape;
        let (stride, dilation, pad) = (s.stride[d], s.dilation[d], s.pad[d]);
        if self.direction != ConvDirection::InputGradient {
            return Axis {
                grid: s.output[d],
                taps: s.kernel[d],
                at: -(pad as isize),
                spacing: dilation as isize,
                kernel: (0, 1),
                out: (0, 1),
            };
        }
        // Input position q * stride + part - pad gets what output q - tap * dilation / stride sent it through
        // the taps with tap * dilation = part modulo stride.
        let common = gcd(stride, dilation);
        let every = stride / common;
        let first = (0..s.kernel[d].min(every)).find(|tap| tap * dilation % stride == part);
        let taps = first.map_or(0, |first| (s.kernel[d] - 1 - first) / every + 1);
        let q = pad.saturating_sub(part).div_ceil(stride);
        let out = q * stride + part - pad;
        Axis {
            grid: s.input[d].saturating_sub(out).div_ceil(stride),
            taps,
            at: q as isize - (first.unwrap_or(0) * dilation / stride) as isize,
            spacing: -((dilation / common) as isize),
            kernel: (first.unwrap_or(0), every),
            out: (out, stride),
        }
    }

    /// The correlation of part `index` of all axes; there are as many as the product of `parts`.
    pub(crate) fn part(&self, mut index: usize) -> [Axis; D] {
        let mut axes = [Axis::default(); D];
        for d in (0..D).rev() {
            axes[d] = self.axis(d, index % self.parts[d]);
            index /= self.parts[d];
        }
        axes
    }

    /// Elements that the weight moves from one channel of the output to the next, from one of the source to
    /// the next, and from one group to the next.
    pub(crate) fn weight_steps(&self) -> (usize, usize, usize) {
        let taps: usize = self.shape.kernel.iter().product();
        let into = self.shape.in_channels / self.shape.groups * taps;
        let group = self.shape.out_channels / self.shape.groups * into;
        if self.direction == ConvDirection::InputGradient { (taps, into, group) } else { (into, taps, group) }
    }

    /// For each tap, and each channel after the other, what it adds to the place of a result in the stored
    /// source and to the place in the weight: written to `read` and `weight` (both `channels * taps` long).
    pub(crate) fn offsets(&self, axes: &[Axis; D], read: &mut [isize], weight: &mut [isize]) {
        let taps: usize = axes.iter().map(|a| a.taps).product();
        if taps == 0 || read.is_empty() {
            return;
        }
        let mut at = [0; D];
        for i in 0..taps {
            (read[i], weight[i]) = (0, 0);
            for d in 0..D {
                let index = axes[d].kernel.0 + at[d] * axes[d].kernel.1;
                weight[i] += (index * self.weight_pitch[d]) as isize;
                read[i] += self.place(d, axes[d].position(at[d]));
            }
            advance(&mut at, |d| axes[d].taps);
        }
        let channel = self.weight_steps().1 as isize;
        for i in taps..read.len() {
            read[i] = read[i - taps] + self.stored_len as isize;
            weight[i] = weight[i - taps] + channel;
        }
    }

    /// The place of source position `x` along axis `d`, as stored.
    fn place(&self, d: usize, x: isize) -> isize {
        let s = self.stored[d];
        if !self.copied {
            return x * self.pitch[d] as isize;
        }
        let from = (x - s.lo) as usize;
        (from % s.step * self.residue_pitch[d] + from / s.step * self.pitch[d]) as isize
    }

    /// Planes of results: the grid without its rows and columns.
    pub(crate) fn planes(axes: &[Axis; D]) -> usize {
        axes[..H].iter().map(|a| a.grid).product()
    }

    /// Where plane `index` starts, in the stored source and in the output.
    pub(crate) fn plane(&self, axes: &[Axis; D], mut index: usize) -> (usize, usize) {
        let (mut read, mut write) = (0, 0);
        for d in (0..H).rev() {
            let g = index % axes[d].grid;
            index /= axes[d].grid;
            read += g * self.pitch[d];
            write += (axes[d].out.0 + g * axes[d].out.1) * self.out_pitch[d];
        }
        let corner = |d: usize| axes[d].out.0 * self.out_pitch[d];
        (read, write + corner(H) + corner(W))
    }

    /// Elements of the output from one row of results to the next, and from one column to the next.
    pub(crate) fn out_steps(&self, axes: &[Axis; D]) -> (usize, usize) {
        (axes[H].out.1 * self.out_pitch[H], axes[W].out.1 * self.out_pitch[W])
    }

    /// Places of a plane from the first result to the last, those between rows included.
    pub(crate) fn extent(&self, axes: &[Axis; D]) -> usize {
        if axes[H].grid == 0 || axes[W].grid == 0 { 0 } else { (axes[H].grid - 1) * self.pitch[H] + axes[W].grid }
    }

    /// Copies one channel of the source, padded and de-interleaved.
    ///
    /// # Safety
    /// `from` is good for `source_len` elements, `to` for `stored_len`.
    pub(crate) unsafe fn store_channel(&self, from: *const f32, to: *mut f32) {
        let planes: usize = self.stored[..H].iter().map(|s| s.residues * s.len).product();
        let plane = self.stored[H].residues * self.residue_pitch[H];
        for p in 0..planes {
            let (mut rest, mut read, mut pitch) = (p, 0, self.stored[H].size * self.stored[W].size);
            let mut inside = true;
            for s in self.stored[..H].iter().rev() {
                let x = s.source(rest % (s.residues * s.len));
                rest /= s.residues * s.len;
                inside &= x.is_some();
                read += x.unwrap_or(0) * pitch;
                pitch *= s.size;
            }
            // Safety: plane `p` lies inside `to`, and `read` inside `from` if there is such a plane.
            unsafe {
                let to = to.add(p * plane);
                if inside { self.store_plane(from.add(read), to) } else { to.write_bytes(0, plane) }
            }
        }
    }

    /// Copies the rows of one plane of the source.
    ///
    /// # Safety
    /// `from` is good for a plane of the source, `to` for one as stored.
    unsafe fn store_plane(&self, from: *const f32, to: *mut f32) {
        let [rows, cols] = [self.stored[H], self.stored[W]];
        for residue in 0..rows.residues {
            for i in 0..rows.len {
                let row = rows.source(residue * rows.len + i);
                for c in 0..cols.residues {
                    // Safety: a row of `to`, and a row of `from` where there is one.
                    unsafe {
                        let to = to.add(residue * self.residue_pitch[H] + c * self.residue_pitch[W] + i * cols.len);
                        match row {
                            Some(row) => cols.copy(from.add(row * cols.size), c, to),
                            None => to.write_bytes(0, cols.len),
                        }
                    }
                }
            }
        }
    }
}

impl Axis {
    fn position(&self, tap: usize) -> isize {
        self.at + tap as isize * self.spacing
    }
}

impl Stored {
    /// The source position at place `i`, counted through all residues; None in the padding.
    fn source(&self, i: usize) -> Option<usize> {
        let x = self.lo + (i % self.len * self.step + i / self.len) as isize;
        (x >= 0 && x < self.size as isize).then_some(x as usize)
    }

    /// Copies the elements of one residue out of a row.
    ///
    /// # Safety
    /// `from` is good for `size` elements, `to` for `len`.
    #[inline(always)]
    unsafe fn copy(&self, from: *const f32, residue: usize, to: *mut f32) {
        let (start, step) = (self.lo + residue as isize, self.step as isize);
        // Places before the image, then up to its end.
        let before = (-start).max(0).unsigned_abs().div_ceil(self.step).min(self.len);
        let end = (self.size as isize - start).max(0).unsigned_abs().div_ceil(self.step).clamp(before, self.len);
        // Safety: the places from `before` to `end` lie inside the row.
        unsafe {
            let from = from.wrapping_offset(start);
            // Rows are short: plain loops beat calls.
            for i in 0..before {
                *to.add(i) = 0.0;
            }
            match step {
                1 => {
                    for i in before..end {
                        *to.add(i) = *from.add(i);
                    }
                }
                2 => {
                    for i in before..end {
                        *to.add(i) = *from.add(2 * i);
                    }
                }
                _ => {
                    for i in before..end {
                        *to.add(i) = *from.offset(i as isize * step);
                    }
                }
            }
            for i in end..self.len {
                *to.add(i) = 0.0;
            }
        }
    }
}

/// Steps a counter with a digit per axis, last axis fastest.
pub(crate) fn advance(at: &mut [usize; D], size: impl Fn(usize) -> usize) {
    for d in (0..D).rev() {
        at[d] += 1;
        if at[d] < size(d) {
            return;
        }
        at[d] = 0;
    }
}

/// Row-major strides.
fn pitches(size: &[usize; D]) -> [usize; D] {
    let mut pitch = [1; D];
    for d in (0..W).rev() {
        pitch[d] = pitch[d + 1] * size[d + 1];
    }
    pitch
}

fn gcd(mut a: usize, mut b: usize) -> usize {
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}
