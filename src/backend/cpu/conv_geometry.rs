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
use super::simd::Simd;

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
    pub(crate) fn axis(&self, d: usize, part: usize) -> Axis {
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

    /// Copies one channel of the source, padded and de-interleaved. The padding is written only with `clear`;
    /// once it is zero it stays so, whichever channel is copied over the last.
    ///
    /// # Safety
    /// `S` runs on this machine; `from` is good for `source_len` elements, `to` for `stored_len`.
    #[inline(always)]
    pub(crate) unsafe fn store_channel<S: Simd>(&self, from: *const f32, to: *mut f32, clear: bool) {
        if clear {
            // Safety: the caller's promise.
            unsafe { to.write_bytes(0, self.stored_len) };
        }
        let planes: usize = self.stored[..H].iter().map(|s| s.residues * s.len).product();
        let plane = self.stored[H].residues * self.residue_pitch[H];
        for p in 0..planes {
            let (mut rest, mut read, mut pitch) = (p, 0, self.stored[H].size * self.stored[W].size);
            let mut inside = true;
            if planes > 1 {
                for s in self.stored[..H].iter().rev() {
                    let x = s.source(rest % (s.residues * s.len));
                    rest /= s.residues * s.len;
                    inside &= x.is_some();
                    read += x.unwrap_or(0) * pitch;
                    pitch *= s.size;
                }
            } else {
                read = self.single_plane(pitch);
            }
            if inside {
                // Safety: plane `p` lies inside `to`, and `read` inside `from` as there is such a plane.
                unsafe { self.store_plane::<S>(from.add(read), to.add(p * plane)) };
            }
        }
    }

    /// Where the only plane stored lies in the source.
    fn single_plane(&self, mut pitch: usize) -> usize {
        let mut read = 0;
        for s in self.stored[..H].iter().rev() {
            read += s.lo.max(0).unsigned_abs() * pitch;
            pitch *= s.size;
        }
        read
    }

    /// Copies the rows of one plane of the source.
    ///
    /// # Safety
    /// `from` is good for a plane of the source, `to` for one as stored.
    #[inline(always)]
    unsafe fn store_plane<S: Simd>(&self, from: *const f32, to: *mut f32) {
        let [rows, cols] = [self.stored[H], self.stored[W]];
        for c in 0..cols.residues {
            let (left, right) = cols.inside(c);
            let start = cols.lo + c as isize + (left * cols.step) as isize;
            for r in 0..rows.residues {
                let (top, bottom) = rows.inside(r);
                let first = rows.lo + r as isize + (top * rows.step) as isize;
                let to = to.wrapping_add(r * self.residue_pitch[H] + c * self.residue_pitch[W]);
                for i in top..bottom {
                    let row = first as usize + (i - top) * rows.step;
                    // Safety: places inside the source, and as many inside the copy.
                    unsafe {
                        let from = from.offset((row * cols.size) as isize + start);
                        copy_row::<S>(from, cols.step, to.add(i * cols.len + left), right - left);
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

    /// The places of a residue that lie inside the source, first and end.
    fn inside(&self, residue: usize) -> (usize, usize) {
        let start = self.lo + residue as isize;
        let first = (-start).max(0).unsigned_abs().div_ceil(self.step).min(self.len);
        let end = (self.size as isize - start).max(0).unsigned_abs().div_ceil(self.step);
        (first, end.clamp(first, self.len))
    }
}

/// Copies `n` elements that lie `step` apart.
///
/// # Safety
/// `S` runs on this machine; the pointers are good for the elements.
#[inline(always)]
pub(crate) unsafe fn copy_row<S: Simd>(from: *const f32, step: usize, to: *mut f32, n: usize) {
    // Safety: the caller's promise; vectors stay inside the row.
    unsafe {
        match step {
            1 if n >= S::LANES => {
                let mut i = 0;
                while i + S::LANES <= n {
                    S::store(to.add(i), S::load(from.add(i)));
                    i += S::LANES;
                }
                // The rest, and some of what has been copied, again as a whole vector.
                S::store(to.add(n - S::LANES), S::load(from.add(n - S::LANES)));
            }
            1 if n >= 4 => {
                // Four and four that overlap.
                let last = n - 4;
                let (head, tail) = (*from.cast::<[f32; 4]>(), *from.add(last).cast::<[f32; 4]>());
                if S::LANES > 8 && n > 8 {
                    *to.add(4).cast::<[f32; 4]>() = *from.add(4).cast::<[f32; 4]>();
                    *to.add(last - 4).cast::<[f32; 4]>() = *from.add(last - 4).cast::<[f32; 4]>();
                }
                *to.cast::<[f32; 4]>() = head;
                *to.add(last).cast::<[f32; 4]>() = tail;
            }
            1 => {
                for i in 0..n {
                    *to.add(i) = *from.add(i);
                }
            }
            2 => {
                let mut i = 0;
                while i + S::LANES < n {
                    let p = from.add(2 * i);
                    S::store(to.add(i), S::deinterleave(S::load(p), S::load(p.add(S::LANES))).0);
                    i += S::LANES;
                }
                if i > 0 {
                    // The element after the last need not exist; the one before the first of these does.
                    i = n - S::LANES;
                    let p = from.add(2 * i - 1);
                    S::store(to.add(i), S::deinterleave(S::load(p), S::load(p.add(S::LANES))).1);
                    i = n;
                }
                for i in i..n {
                    *to.add(i) = *from.add(2 * i);
                }
            }
            _ => {
                for i in 0..n {
                    *to.add(i) = *from.add(i * step);
                }
            }
        }
    }
}

/// Writes the elements of `even` and `odd` in turn, `n` in all, first one of `even`.
///
/// # Safety
/// `S` runs on this machine; the rows are good for their share of the elements, `to` for `n`.
#[inline(always)]
pub(crate) unsafe fn interleave_rows<S: Simd>(even: *const f32, odd: *const f32, to: *mut f32, n: usize) {
    let mut i = 0;
    // Safety: the caller's promise.
    unsafe {
        while 2 * (i + S::LANES) <= n {
            let (lo, hi) = S::interleave(S::load(even.add(i)), S::load(odd.add(i)));
            S::store(to.add(2 * i), lo);
            S::store(to.add(2 * i + S::LANES), hi);
            i += S::LANES;
        }
        for j in 2 * i..n {
            *to.add(j) = if j.is_multiple_of(2) { *even.add(j / 2) } else { *odd.add(j / 2) };
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
