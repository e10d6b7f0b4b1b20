//! Max and average pools and their gradients: N-d, strided, dilated, padded, f32.
//!
//! A pool sees planes: a tensor `[N, C, spatial…]` has `N * C` of them, and no two meet. Rows of results are
//! built up tap by tap, so that the inner loop runs along the row without a test.

use super::conv::MAX_SPATIAL;
use super::simd::{Isa, MAX_LANES, Simd, SimdOp, dispatch_on, isa};
use super::threads::{Shared, parallel_for};

/// The sizes of a pool. Of the arrays, the first `spatial` entries count.
///
/// Output position o looks at input positions `o * stride + tap * dilation - pad` for every tap of the kernel;
/// those outside the input are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Batch times channels.
    pub planes: usize,
    /// Spatial dimensions, 1 to [`MAX_SPATIAL`].
    pub spatial: usize,
    /// Size of the input.
    pub input: [usize; MAX_SPATIAL],
    /// Size of the output.
    pub output: [usize; MAX_SPATIAL],
    /// Size of the window.
    pub kernel: [usize; MAX_SPATIAL],
    /// Input positions between neighbouring outputs, at least 1.
    pub stride: [usize; MAX_SPATIAL],
    /// Input positions between neighbouring taps, at least 1.
    pub dilation: [usize; MAX_SPATIAL],
    /// Padding before the input.
    pub pad: [usize; MAX_SPATIAL],
    /// Padding after it: only an average that counts padding asks.
    pub pad_end: [usize; MAX_SPATIAL],
}

/// An index of a max pool that lies outside of its plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadIndex {
    /// Position in the tensor of indices.
    pub at: usize,
    /// What stands there.
    pub index: i64,
}

impl PoolShape {
    fn product(&self, of: &[usize; MAX_SPATIAL]) -> usize {
        of[..self.spatial].iter().product()
    }

    /// Elements of the input tensor.
    pub fn input_len(&self) -> usize {
        self.planes * self.product(&self.input)
    }

    /// Elements of the output tensor.
    pub fn output_len(&self) -> usize {
        self.planes * self.product(&self.output)
    }

    /// Panics where the sizes contradict each other: a fault of the plan.
    fn check(&self, input: usize, output: usize) {
        assert!((1..=MAX_SPATIAL).contains(&self.spatial), "1 to {MAX_SPATIAL} spatial dimensions");
        for d in 0..self.spatial {
            assert!(self.stride[d] > 0 && self.dilation[d] > 0, "strides and dilations start at 1");
        }
        assert!(input == self.input_len(), "input of {input} elements for {self:?}");
        assert!(output == self.output_len(), "output of {output} elements for {self:?}");
    }

    /// Runs `f(first, last)` on ranges of planes, cut by the work in them.
    fn each_plane(&self, f: impl Fn(usize, usize) + Sync) {
        let work = self.output_len() * self.product(&self.kernel) + self.input_len();
        let tasks = (work / (1 << 15)).clamp(1, 64).min(self.planes);
        parallel_for(tasks, |t| f(t * self.planes / tasks, (t + 1) * self.planes / tasks));
    }

    /// Rows of one plane of the output.
    pub(crate) fn rows(&self) -> usize {
        self.output[..self.spatial - 1].iter().product()
    }

    /// Rows of taps in the kernel.
    pub(crate) fn tap_rows(&self) -> usize {
        self.kernel[..self.spatial - 1].iter().product()
    }

    /// For a row of the output and a row of taps: the row of the input that they meet in, if there is one.
    #[inline(always)]
    pub(crate) fn meet(&self, mut row: usize, mut tap: usize) -> Option<usize> {
        let (mut at, mut rows) = (0, 1);
        for d in (0..self.spatial - 1).rev() {
            let o = row % self.output[d];
            let k = tap % self.kernel[d];
            (row, tap) = (row / self.output[d], tap / self.kernel[d]);
            let i = (o * self.stride[d] + k * self.dilation[d]).wrapping_sub(self.pad[d]);
            if i >= self.input[d] {
                return None;
            }
            at += i * rows;
            rows *= self.input[d];
        }
        Some(at)
    }

    /// For a tap of the last axis: the outputs `first..last` for which it lies in the input, and the input
    /// position that the first of them reads.
    #[inline(always)]
    pub(crate) fn along(&self, tap: usize) -> (usize, usize, usize) {
        let d = self.spatial - 1;
        let (stride, shift) = (self.stride[d], tap * self.dilation[d]);
        if self.pad[d] == 0 && shift + (self.output[d].max(1) - 1) * stride < self.input[d] {
            // The common case, without divisions.
            return (0, self.output[d], shift);
        }
        let first = self.pad[d].saturating_sub(shift).div_ceil(stride).min(self.output[d]);
        let last = (self.input[d] + self.pad[d]).saturating_sub(shift).div_ceil(stride).clamp(first, self.output[d]);
        (first, last, (first * stride + shift).saturating_sub(self.pad[d]))
    }

    /// The outputs of the last axis whose windows lie inside the input altogether, first and end.
    fn whole(&self) -> (usize, usize) {
        let taps = self.kernel[self.spatial - 1];
        if taps == 0 {
            return (0, 0);
        }
        let (first, end) = (self.along(0).0, self.along(taps - 1).1);
        (first, end.max(first))
    }

    /// Taps of axis `d` that output `o` divides by in an average: those in the input, or in input and padding.
    fn counted(&self, d: usize, o: usize, padding: bool) -> usize {
        let (from, end) = if padding {
            (0, self.pad[d] + self.input[d] + self.pad_end[d])
        } else {
            (self.pad[d], self.pad[d] + self.input[d])
        };
        let at = |tap: usize| o * self.stride[d] + tap * self.dilation[d];
        (0..self.kernel[d]).filter(|&tap| (from..end).contains(&at(tap))).count()
    }

    /// Taps of all axes but the last that a row of the output divides by.
    fn counted_in_row(&self, mut row: usize, padding: bool) -> usize {
        let mut count = 1;
        for d in (0..self.spatial - 1).rev() {
            count *= self.counted(d, row % self.output[d], padding);
            row /= self.output[d];
        }
        count
    }
}

/// `y`: the largest element of each window. NaN wins over every number, padding over nothing; a window that holds
/// only padding gives -inf.
///
/// `indices`, if wanted, gets the place of each in the whole input tensor, counted row-major through all planes;
/// of equals the first, of several NaN the last, -1 where the window holds only padding.
///
/// # Panics
/// If a slice does not have the shape's size: a fault of the plan.
pub fn max_pool(shape: &PoolShape, x: &[f32], y: &mut [f32], indices: Option<&mut [i64]>) {
    max_pool_on(isa(), shape, x, y, indices);
}

fn max_pool_on(isa: Isa, shape: &PoolShape, x: &[f32], y: &mut [f32], indices: Option<&mut [i64]>) {
    shape.check(x.len(), y.len());
    assert!(indices.as_ref().is_none_or(|i| i.len() == y.len()), "one index per element of the output");
    if y.is_empty() {
        return;
    }
    let (inputs, outputs) = (shape.product(&shape.input), shape.product(&shape.output));
    // Places within a plane are kept in 32 bits.
    assert!(inputs <= u32::MAX as usize, "planes of {inputs} elements");
    let (y, indices) = (Shared::new(y), indices.map(Shared::new));
    let isa = isa.for_rows_of(shape.output[shape.spatial - 1]);
    shape.each_plane(|first, last| {
        for plane in first..last {
            // Safety: each plane of the results belongs to one task.
            let (y, indices) = unsafe {
                let start = plane * outputs;
                (y.slice(start, outputs), indices.map(|indices| indices.slice(start, outputs)))
            };
            let x = &x[plane * inputs..(plane + 1) * inputs];
            match indices {
                Some(indices) => {
                    dispatch_on(isa, MaxPlane::<'_, true> { shape, x, y, indices, start: (plane * inputs) as i64 })
                }
                None => dispatch_on(isa, MaxPlane::<'_, false> { shape, x, y, indices: &mut [], start: 0 }),
            }
        }
    });
}

struct MaxPlane<'a, const INDICES: bool> {
    shape: &'a PoolShape,
    x: &'a [f32],
    y: &'a mut [f32],
    indices: &'a mut [i64],
    /// Index of the first element of `x`.
    start: i64,
}

impl<const INDICES: bool> SimdOp for MaxPlane<'_, INDICES> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let s = self.shape;
        let d = s.spatial - 1;
        let (width, stride, pad) = (s.output[d], s.stride[d], s.pad[d]);
        let (first, last) = s.whole();
        for row in 0..s.rows() {
            let meeting = Meeting::new(s, row);
            let mut o = 0;
            while o < width {
                let at = row * width + o;
                if o < first || o >= last || last - first < S::LANES || meeting.count == 0 {
                    let (best, index) = meeting.largest(self.x, o);
                    self.y[at] = best;
                    if INDICES {
                        self.indices[at] = if index < 0 { -1 } else { self.start + index };
                    }
                    o += 1;
                    continue;
                }
                // The last vector overlaps the one before, so that it is whole.
                let o_at = o.min(last - S::LANES);
                // Safety: the windows from `o_at` on lie inside the row.
                unsafe {
                    let (best, taps) = meeting.largest_of_vector::<S>(self.x, o_at);
                    S::store(self.y[row * width + o_at..][..S::LANES].as_mut_ptr(), best);
                    if INDICES {
                        let mut offsets = [0.0f32; MAX_LANES];
                        S::store(offsets.as_mut_ptr(), taps);
                        let from = self.start + (o_at * stride) as i64 - pad as i64;
                        let indices = &mut self.indices[row * width + o_at..][..S::LANES];
                        for (i, index) in indices.iter_mut().enumerate() {
                            *index = from + i64::from(offsets[i].to_bits()) + (i * stride) as i64;
                        }
                    }
                }
                o = o_at + S::LANES;
            }
        }
    }
}

/// The rows of a plane of input that a row of output meets.
struct Meeting<'a> {
    shape: &'a PoolShape,
    /// The first of them, by number of elements before each.
    rows: [usize; Meeting::KNOWN],
    count: usize,
    row: usize,
}

impl<'a> Meeting<'a> {
    /// Rows that are worked out once for the whole row of output.
    const KNOWN: usize = 16;

    #[inline(always)]
    fn new(shape: &'a PoolShape, row: usize) -> Meeting<'a> {
        let mut meeting = Meeting { shape, rows: [0; Meeting::KNOWN], count: 0, row };
        for tap_row in 0..shape.tap_rows() {
            if let Some(input_row) = shape.meet(row, tap_row) {
                if let Some(known) = meeting.rows.get_mut(meeting.count) {
                    *known = input_row * shape.input[shape.spatial - 1];
                }
                meeting.count += 1;
            }
        }
        meeting
    }

    /// Elements before the `i`th row.
    #[inline(always)]
    fn start(&self, i: usize) -> usize {
        let shape = self.shape;
        let again = || (0..shape.tap_rows()).filter_map(|tap_row| shape.meet(self.row, tap_row)).nth(i);
        match self.rows.get(i) {
            Some(start) => *start,
            None => again().map_or(0, |row| row * shape.input[shape.spatial - 1]),
        }
    }

    /// The taps of the last axis that output `o` has in the input, and where tap 0 lies or would lie.
    #[inline(always)]
    fn taps(&self, o: usize) -> (usize, usize, isize) {
        let d = self.shape.spatial - 1;
        let (dilation, size) = (self.shape.dilation[d], self.shape.input[d]);
        let start = (o * self.shape.stride[d]) as isize - self.shape.pad[d] as isize;
        let first = (-start).max(0).unsigned_abs().div_ceil(dilation);
        let end = (size as isize - start).max(0).unsigned_abs().div_ceil(dilation).min(self.shape.kernel[d]);
        (first, end, start)
    }

    /// The largest element of one window and its place in the plane, -1 if it has none.
    fn largest(&self, x: &[f32], o: usize) -> (f32, i64) {
        let (first, end, start) = self.taps(o);
        let (mut best, mut index) = (f32::NEG_INFINITY, -1);
        for i in 0..self.count {
            for tap in first..end {
                let at = (self.start(i) + tap * self.shape.dilation[self.shape.spatial - 1]) as isize + start;
                let x = x[at as usize];
                // The first element of a window is taken even if it is -inf.
                if x > best || x.is_nan() || index < 0 {
                    (best, index) = (x, at as i64);
                }
            }
        }
        (best, index)
    }

    /// The sum of one window.
    fn sum(&self, x: &[f32], o: usize) -> f32 {
        let (first, end, start) = self.taps(o);
        let mut sum = 0.0;
        for i in 0..self.count {
            for tap in first..end {
                let at = (self.start(i) + tap * self.shape.dilation[self.shape.spatial - 1]) as isize + start;
                sum += x[at as usize];
            }
        }
        sum
    }

    /// The largest elements of the windows from output `o` on, and for each the bits of what its tap and row add
    /// to the place of tap 0 in the first row.
    ///
    /// # Safety
    /// `S` runs on this machine; all taps of the windows lie in the row.
    #[inline(always)]
    unsafe fn largest_of_vector<S: Simd>(&self, x: &[f32], o: usize) -> (S::V, S::V) {
        let d = self.shape.spatial - 1;
        // Safety: the caller's promise.
        unsafe {
            let (mut best, mut at) = (S::splat(f32::NEG_INFINITY), S::splat(0.0));
            for i in 0..self.count {
                for tap in 0..self.shape.kernel[d] {
                    let offset = self.start(i) + tap * self.shape.dilation[d];
                    let place = offset + o * self.shape.stride[d] - self.shape.pad[d];
                    let v = load_strided::<S>(x, place, self.shape.stride[d]);
                    let v_at = S::splat(f32::from_bits(offset as u32));
                    if i == 0 && tap == 0 {
                        // The first element of a window is taken even if it is -inf.
                        (best, at) = (v, v_at);
                    }
                    (best, at) = S::keep_larger(best, at, v, v_at);
                }
            }
            (best, at)
        }
    }

    /// The sums of the windows from output `o` on.
    ///
    /// # Safety
    /// As for [`Meeting::largest_of_vector`].
    #[inline(always)]
    unsafe fn sum_of_vector<S: Simd>(&self, x: &[f32], o: usize) -> S::V {
        let d = self.shape.spatial - 1;
        // Safety: the caller's promise.
        unsafe {
            let mut sum = S::splat(0.0);
            for i in 0..self.count {
                for tap in 0..self.shape.kernel[d] {
                    let offset = self.start(i) + tap * self.shape.dilation[d];
                    let at = offset + o * self.shape.stride[d] - self.shape.pad[d];
                    sum = S::add(sum, load_strided::<S>(x, at, self.shape.stride[d]));
                }
            }
            sum
        }
    }
}

/// `LANES` elements that lie `stride` apart.
///
/// # Safety
/// `S` runs on this machine; the elements lie in the slice.
#[inline(always)]
unsafe fn load_strided<S: Simd>(x: &[f32], at: usize, stride: usize) -> S::V {
    // Safety: the caller's promise; two vectors are loaded only where they lie in the slice.
    unsafe {
        let p = x.as_ptr().add(at);
        match stride {
            1 => S::load(p),
            2 if at + 2 * S::LANES <= x.len() => S::deinterleave(S::load(p), S::load(p.add(S::LANES))).0,
            2 if at > 0 => {
                let p = p.sub(1);
                S::deinterleave(S::load(p), S::load(p.add(S::LANES))).1
            }
            _ => {
                let mut lanes = [0.0f32; MAX_LANES];
                for i in 0..S::LANES {
                    lanes[i] = *p.add(i * stride);
                }
                S::load(lanes.as_ptr())
            }
        }
    }
}

/// `dx`: each element of `dy` added where [`max_pool`]'s `indices` say it came from. Index -1 came from nowhere.
///
/// # Errors
/// If an index lies outside of the plane it belongs to; `dx` is then unfinished.
///
/// # Panics
/// If a slice does not have the shape's size: a fault of the plan.
pub fn max_pool_gradient(shape: &PoolShape, dy: &[f32], indices: &[i64], dx: &mut [f32]) -> Result<(), BadIndex> {
    shape.check(dx.len(), dy.len());
    assert!(indices.len() == dy.len(), "one index per element of the output");
    let (inputs, outputs) = (shape.product(&shape.input), shape.product(&shape.output));
    if dx.is_empty() || dy.is_empty() {
        dx.fill(0.0);
        return indices.iter().position(|&i| i != -1).map_or(Ok(()), |at| Err(BadIndex { at, index: indices[at] }));
    }
    let bad = core::sync::atomic::AtomicUsize::new(usize::MAX);
    let dx = Shared::new(dx);
    shape.each_plane(|first, last| {
        for plane in first..last {
            // Safety: each plane of `dx` belongs to one task.
            let dx = unsafe { dx.slice(plane * inputs, inputs) };
            dx.fill(0.0);
            let range = plane * outputs..(plane + 1) * outputs;
            for (i, (&dy, &index)) in dy[range.clone()].iter().zip(&indices[range]).enumerate() {
                let local = index.wrapping_sub((plane * inputs) as i64);
                match usize::try_from(local).ok().and_then(|local| dx.get_mut(local)) {
                    Some(dx) => *dx += dy,
                    None if index == -1 => {}
                    None => {
                        bad.fetch_min(plane * outputs + i, core::sync::atomic::Ordering::Relaxed);
                    }
                }
            }
        }
    });
    match bad.into_inner() {
        usize::MAX => Ok(()),
        at => Err(BadIndex { at, index: indices[at] }),
    }
}

/// `y`: the mean of each window, over the elements it holds or, with `count_include_pad`, over its taps in input
/// and padding, those of the padding counting as 0. A window that counts nothing gives 0.
///
/// # Panics
/// If a slice does not have the shape's size: a fault of the plan.
pub fn average_pool(shape: &PoolShape, count_include_pad: bool, x: &[f32], y: &mut [f32]) {
    average_pool_on(isa(), shape, count_include_pad, x, y);
}

fn average_pool_on(isa: Isa, shape: &PoolShape, count_include_pad: bool, x: &[f32], y: &mut [f32]) {
    shape.check(x.len(), y.len());
    if y.is_empty() {
        return;
    }
    let (inputs, outputs) = (shape.product(&shape.input), shape.product(&shape.output));
    let y = Shared::new(y);
    let isa = isa.for_rows_of(shape.output[shape.spatial - 1]);
    shape.each_plane(|first, last| {
        for plane in first..last {
            // Safety: each plane of `y` belongs to one task.
            let y = unsafe { y.slice(plane * outputs, outputs) };
            let x = &x[plane * inputs..(plane + 1) * inputs];
            dispatch_on(isa, AveragePlane { shape, count_include_pad, x, y });
        }
    });
}

struct AveragePlane<'a> {
    shape: &'a PoolShape,
    count_include_pad: bool,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl SimdOp for AveragePlane<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let s = self.shape;
        let d = s.spatial - 1;
        let width = s.output[d];
        let (first, last) = s.whole();
        for row in 0..s.rows() {
            let meeting = Meeting::new(s, row);
            let y = &mut self.y[row * width..(row + 1) * width];
            let in_row = s.counted_in_row(row, self.count_include_pad);
            let share = 1.0 / (in_row * s.kernel[d]).max(1) as f32;
            let mut o = 0;
            while o < width {
                if o < first || o >= last || last - first < S::LANES {
                    let count = in_row * s.counted(d, o, self.count_include_pad);
                    y[o] = meeting.sum(self.x, o) / count.max(1) as f32;
                    o += 1;
                    continue;
                }
                // The last vector overlaps the one before, so that it is whole.
                let o_at = o.min(last - S::LANES);
                // Safety: the windows from `o_at` on lie inside the row.
                unsafe {
                    let sum = meeting.sum_of_vector::<S>(self.x, o_at);
                    S::store(y[o_at..][..S::LANES].as_mut_ptr(), S::mul(sum, S::splat(share)));
                }
                o = o_at + S::LANES;
            }
        }
    }
}

/// `dx`: each element of `dy`, divided as [`average_pool`] divides, added to every element of its window.
///
/// # Panics
/// If a slice does not have the shape's size, or `scratch` is shorter than [`average_pool_gradient_scratch`]: a
/// fault of the plan.
pub fn average_pool_gradient(
    shape: &PoolShape,
    count_include_pad: bool,
    dy: &[f32],
    dx: &mut [f32],
    scratch: &mut [f32],
) {
    shape.check(dx.len(), dy.len());
    let (inputs, outputs) = (shape.product(&shape.input), shape.product(&shape.output));
    assert!(scratch.len() >= average_pool_gradient_scratch(shape), "scratch too small");
    if dx.is_empty() || dy.is_empty() {
        return dx.fill(0.0);
    }
    // One over the count of every position of a plane, the same for all planes.
    let width = shape.output[shape.spatial - 1];
    let shares = &mut scratch[..outputs];
    for (row, shares) in shares.chunks_exact_mut(width).enumerate() {
        let in_row = shape.counted_in_row(row, count_include_pad);
        for (o, share) in shares.iter_mut().enumerate() {
            let count = in_row * shape.counted(shape.spatial - 1, o, count_include_pad);
            *share = 1.0 / count.max(1) as f32;
        }
    }
    let (shares, dx) = (&*shares, Shared::new(dx));
    shape.each_plane(|first, last| {
        for plane in first..last {
            // Safety: each plane of `dx` belongs to one task.
            let dx = unsafe { dx.slice(plane * inputs, inputs) };
            let dy = &dy[plane * outputs..(plane + 1) * outputs];
            dispatch_on(isa(), AverageGradientPlane { shape, shares, dy, dx });
        }
    });
}

/// f32 elements of scratch for [`average_pool_gradient`].
pub fn average_pool_gradient_scratch(shape: &PoolShape) -> usize {
    shape.product(&shape.output)
}

struct AverageGradientPlane<'a> {
    shape: &'a PoolShape,
    shares: &'a [f32],
    dy: &'a [f32],
    dx: &'a mut [f32],
}

impl SimdOp for AverageGradientPlane<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let s = self.shape;
        let d = s.spatial - 1;
        let (width, stride) = (s.output[d], s.stride[d]);
        self.dx.fill(0.0);
        for row in 0..s.rows() {
            let dy = &self.dy[row * width..(row + 1) * width];
            let shares = &self.shares[row * width..(row + 1) * width];
            for tap_row in 0..s.tap_rows() {
                let Some(input_row) = s.meet(row, tap_row) else { continue };
                for tap in 0..s.kernel[d] {
                    let (first, last, at) = s.along(tap);
                    if first == last {
                        continue;
                    }
                    let dx = &mut self.dx[input_row * s.input[d] + at..];
                    let terms = dy[first..last].iter().zip(&shares[first..last]);
                    if stride == 1 {
                        dx.iter_mut().zip(terms).for_each(|(dx, (dy, share))| *dx += dy * share);
                    } else {
                        dx.iter_mut().step_by(stride).zip(terms).for_each(|(dx, (dy, share))| *dx += dy * share);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "pool_tests.rs"]
mod tests;
