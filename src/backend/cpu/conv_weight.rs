//! The weight gradient: for each output channel and each tap of each input channel, one dot product between a
//! channel of `dy` and the stretch of the stored image that the tap reads, over all planes and images. Results
//! and image must lie at the same places, so `dy` is copied too, with zeros between its rows, unless the rows
//! of both follow each other without a gap.

use super::conv::{ConvDirection, ConvShape};
use super::conv_geometry::{Axis, D, H, Plan, W, copy_row};
use super::conv_tiles::{store, wave};
use super::gemm::cut;
use super::gemm_dot::{Stretches, dot_block};
use super::simd::{Isa, Simd, SimdOp, dispatch_on};
use super::threads::{Shared, parallel_for};

/// Elements of stored image that are worked on at once.
const WAVE: usize = 1 << 17;
/// Elements of one dot product before the next pair of rows: a few rows of it fit the first-level cache.
const STRETCH: usize = 1024;
/// Output channels of one task: their rows of `dy` stay in the second-level cache.
const BAND: usize = 30;
/// Planes with fewer elements are gathered.
const SMALL: usize = 512;
/// Taps of one task at least.
const TAPS: usize = 4;
/// f32 elements in one offset.
const OFFSET: usize = size_of::<isize>() / size_of::<f32>();
/// f32 elements that alignment may cost.
const ALIGN: usize = 16;

/// A weight gradient laid out.
struct Layout {
    plan: Plan,
    axes: [Axis; D],
    /// Images of one wave.
    wave: usize,
    planes: usize,
    /// Places of a plane.
    extent: usize,
    /// Whether `dy` is copied, to `extent` places for each of its planes.
    spread: bool,
    /// Whether small planes are gathered, so that those of one channel follow each other.
    gathered: bool,
    /// Input channels of a group times taps.
    k: usize,
}

impl Layout {
    fn new(shape: &ConvShape) -> Layout {
        let plan = Plan::new(shape, ConvDirection::Forward);
        let axes = plan.part(0);
        let (planes, extent) = (Plan::planes(&axes), plan.extent(&axes));
        let pointwise = !plan.copied && plan.shape.kernel == [1; D] && plan.shape.input == plan.shape.output;
        let gathered = pointwise && (1..SMALL).contains(&extent) && shape.batch > 1;
        let wave = if gathered { (2 * STRETCH / extent).clamp(1, shape.batch) } else { wave(&plan, WAVE) };
        Layout {
            wave,
            planes,
            extent,
            spread: extent != axes[H].grid * axes[W].grid,
            gathered,
            k: plan.source_channels * axes.iter().map(|a| a.taps).product::<usize>(),
            plan,
            axes,
        }
    }

    /// Elements of the copies of image and `dy`.
    fn copies(&self) -> (usize, usize) {
        let s = &self.plan.shape;
        if self.gathered {
            return (self.wave * s.in_channels * self.extent, self.wave * s.out_channels * self.extent);
        }
        let image = if self.plan.copied { self.wave * s.in_channels * self.plan.stored_len } else { 0 };
        // A wave that copies nothing of the image is the whole batch; `dy` then goes in waves of its own size.
        let dy = if self.spread { self.images() * s.out_channels * self.planes * self.extent } else { 0 };
        (image, dy)
    }

    /// Images of one launch.
    fn images(&self) -> usize {
        let dy = self.plan.shape.out_channels * self.planes * self.extent;
        if self.spread { self.wave.min((2 * WAVE / dy.max(1)).max(1)) } else { self.wave }
    }

    fn table(&self) -> usize {
        2 * OFFSET * self.k + 2 * OFFSET * self.images() * self.planes
    }
}

/// f32 elements of scratch for [`weight_gradient`].
pub(crate) fn scratch(shape: &ConvShape) -> usize {
    let layout = Layout::new(shape);
    let (image, dy) = layout.copies();
    ALIGN + layout.table() + image + dy
}

/// Computes `dw`; `scratch` has at least [`scratch`] elements, `dy` is not empty.
pub(crate) fn weight_gradient(isa: Isa, shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    let layout = Layout::new(shape);
    let plan = &layout.plan;
    let start = scratch.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(4 * ALIGN).min(ALIGN));
    // Safety: the scratch has room for two tables of offsets, then the stretches, then the copies.
    let (read, weight, stretches) = unsafe {
        let table = start.cast::<isize>();
        let read = core::slice::from_raw_parts_mut(table, layout.k);
        let weight = core::slice::from_raw_parts_mut(table.add(layout.k), layout.k);
        let stretches = table.add(2 * layout.k).cast::<[isize; 2]>();
        (read, weight, core::slice::from_raw_parts_mut(stretches, layout.images() * layout.planes))
    };
    plan.offsets(&layout.axes, read, weight);
    // A result without rows in between: channel after channel, plane after plane.
    let dy_plane = if layout.spread { layout.extent } else { layout.axes[H].grid * layout.axes[W].grid };
    let mut strides = (plan.stored_len, layout.planes * dy_plane);
    if layout.gathered {
        strides = (layout.wave * layout.extent, layout.wave * layout.extent);
        read.iter_mut().enumerate().for_each(|(k, read)| *read = (k * strides.0) as isize);
    }
    for (i, stretch) in stretches.iter_mut().enumerate() {
        let (image, plane) = (i / layout.planes, i % layout.planes);
        let b = image * shape.in_channels * plan.stored_len + plan.plane(&layout.axes, plane).0;
        *stretch = [(image * shape.out_channels * strides.1 + plane * dy_plane) as isize, b as isize];
    }
    let stored = start.wrapping_add(layout.table());
    let spread = stored.wrapping_add(layout.copies().0);
    let dw = Shared::new(dw);
    for first in (0..shape.batch).step_by(layout.images()) {
        let images = layout.images().min(shape.batch - first);
        let x = &x[first * shape.in_channels * plan.source_len..];
        let dy = &dy[first * shape.out_channels * plan.out_len..];
        // Safety: the copies have room for the images of a launch.
        unsafe {
            if layout.gathered {
                gather(isa, x, (images, shape.in_channels, layout.extent), stored, strides.0);
                gather(isa, dy, (images, shape.out_channels, layout.extent), spread, strides.1);
            }
            if plan.copied {
                store(isa, plan, x, images * shape.in_channels, stored);
            }
            if layout.spread {
                spread_rows(&layout, dy, images * shape.out_channels * layout.planes, spread);
            }
        }
        let launch = Launch {
            layout: &layout,
            image: if plan.copied || layout.gathered { stored } else { x.as_ptr() },
            dy: if layout.spread || layout.gathered { spread } else { dy.as_ptr() },
            channels: strides,
            read,
            // What has been gathered is one stretch.
            len: if layout.gathered { images * layout.extent } else { layout.extent },
            stretches: if layout.gathered { &[[0, 0]] } else { &stretches[..images * layout.planes] },
            first: first == 0,
            dw,
        };
        launch.run(isa);
    }
}

/// Copies `[images, channels, len]` so that the images of one channel follow each other, channels `stride` apart.
///
/// # Safety
/// `from` holds that much, `to` has room for it.
unsafe fn gather(isa: Isa, from: &[f32], sizes: (usize, usize, usize), to: *mut f32, stride: usize) {
    let (images, channels, len) = sizes;
    let (from, to) = (Shared::from_ptr(from.as_ptr().cast_mut()), Shared::from_ptr(to));
    let tasks = cut(channels, 1, images * channels * len * 16);
    parallel_for(tasks, |t| {
        let range = (t * channels / tasks, (t + 1) * channels / tasks);
        dispatch_on(isa, Gather { from, to, sizes, stride, range });
    });
}

/// Gathers some channels.
struct Gather {
    from: Shared<f32>,
    to: Shared<f32>,
    sizes: (usize, usize, usize),
    stride: usize,
    range: (usize, usize),
}

impl SimdOp for Gather {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (images, channels, len) = self.sizes;
        for i in 0..images {
            for c in self.range.0..self.range.1 {
                let from = self.from.get().wrapping_add((i * channels + c) * len);
                let to = self.to.get().wrapping_add(c * self.stride + i * len);
                // Safety: promised to `gather`; each channel is in one task.
                unsafe { copy_row::<S>(from, 1, to, len) };
            }
        }
    }
}

/// Copies planes of `dy` so that their rows lie as far apart as those of the stored image.
///
/// # Safety
/// `to` has room for `planes` planes of `extent` elements.
unsafe fn spread_rows(layout: &Layout, dy: &[f32], planes: usize, to: *mut f32) {
    struct To(*mut f32);
    // Safety: every plane has its own place.
    unsafe impl Sync for To {}
    let to = To(to);
    let to = &to;
    let (rows, cols) = (layout.axes[H].grid, layout.axes[W].grid);
    let pitch = layout.plan.pitch[H];
    let tasks = cut(planes, 1, planes * layout.extent * 16);
    parallel_for(tasks, |t| {
        for p in t * planes / tasks..(t + 1) * planes / tasks {
            // Safety: a plane of `dy`, and the room for it.
            unsafe {
                let (from, to) = (dy.as_ptr().add(p * rows * cols), to.0.add(p * layout.extent));
                for r in 0..rows {
                    let (from, to) = (from.add(r * cols), to.add(r * pitch));
                    for c in 0..cols {
                        *to.add(c) = *from.add(c);
                    }
                    for c in cols..if r + 1 < rows { pitch } else { cols } {
                        *to.add(c) = 0.0;
                    }
                }
            }
        }
    });
}

/// The images of one wave.
#[derive(Clone, Copy)]
struct Launch<'a> {
    layout: &'a Layout,
    image: *const f32,
    dy: *const f32,
    /// Elements from channel to channel of image and `dy`.
    channels: (usize, usize),
    read: &'a [isize],
    /// Elements of a stretch.
    len: usize,
    stretches: &'a [[isize; 2]],
    first: bool,
    dw: Shared<f32>,
}

// Safety: sources are only read, and tasks write no element in common.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    fn run(&self, isa: Isa) {
        let plan = &self.layout.plan;
        let (bands, columns) = (plan.out_channels.div_ceil(BAND), self.layout.k.div_ceil(TAPS));
        let units = plan.shape.groups * bands * columns;
        let work = self.len * self.stretches.len() * plan.shape.out_channels * self.layout.k;
        let tasks = cut(units, 1, work);
        parallel_for(tasks, |t| {
            let units = (t * units / tasks, (t + 1) * units / tasks);
            dispatch_on(isa, Task { launch: *self, bands, columns, units });
        });
    }
}

/// Some of the weight's gradient: unit `u` is columns `u % columns` of a band of rows of a group.
struct Task<'a> {
    launch: Launch<'a>,
    bands: usize,
    columns: usize,
    units: (usize, usize),
}

impl SimdOp for Task<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let launch = self.launch;
        let (layout, plan) = (launch.layout, &launch.layout.plan);
        let (m, k) = (plan.out_channels, layout.k);
        let mut unit = self.units.0;
        while unit < self.units.1 {
            let (block, first) = (unit / self.columns, unit % self.columns);
            let last = self.columns.min(first + self.units.1 - unit);
            unit += last - first;
            let (group, band) = (block / self.bands, block % self.bands);
            let rows = (band * m / self.bands, (band + 1) * m / self.bands);
            let columns = (first * k / self.columns, last * k / self.columns);
            let dw = launch.dw.moved(group * m * k);
            let dy = launch.dy.wrapping_add(group * m * launch.channels.1);
            let image = launch.image.wrapping_add(group * plan.source_channels * launch.channels.0);
            // Long planes go piece by piece, short ones several at a time.
            let mut start = true;
            for p in (0..launch.len).step_by(STRETCH) {
                let len = STRETCH.min(launch.len - p);
                for table in launch.stretches.chunks((STRETCH / len).max(1)) {
                    let fresh = launch.first && start;
                    start = false;
                    let put = |row: usize, col: usize, sum: f32| {
                        // Safety: a row and column of this task.
                        unsafe {
                            let to = dw.get().add(row * k + col);
                            *to = if fresh { sum } else { *to + sum };
                        }
                    };
                    let b_row = |col: usize| image.wrapping_offset(launch.read[col]).wrapping_add(p);
                    let over = Stretches { table, len };
                    // Safety: rows, taps and stretches lie inside the tensors or their copies.
                    unsafe {
                        let dy = dy.wrapping_add(p);
                        dot_block::<S>(dy, rows, launch.channels.1 as isize, columns, b_row, over, put);
                    }
                }
            }
        }
    }
}
