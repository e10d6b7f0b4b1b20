//! Convolutions with one channel per group: each plane by itself, a vector of neighbouring results at a time.
//!
//! A plane is padded and de-interleaved into a buffer that stays in the first-level cache, after which every
//! stride, dilation and direction is the same loop: a result is a sum of taps times stretches of the buffer.

use super::conv::{ConvDirection, ConvShape};
use super::conv_geometry::{Axis, D, H, Plan, W, copy_row, interleave_rows};
use super::conv_tiles::{Part, parts};
use super::gemm_dot::{Stretches, dot_block};
use super::simd::{Isa, MAX_LANES, Simd, SimdOp, dispatch_on};
use super::threads::{Shared, parallel_for};

/// Tasks of one call, each with buffers of its own.
const TASKS: usize = 32;
/// Parts of a plan that are worked out once per call and not once per plane.
const KNOWN: usize = 9;
/// Vectors of results computed at once.
const VECTORS: usize = 6;
/// Elements of image that a weight gradient gathers before it multiplies.
const GATHER: usize = 4096;
/// f32 elements in one offset.
const OFFSET: usize = size_of::<isize>() / size_of::<f32>();
/// f32 elements that alignment may cost.
const ALIGN: usize = 16;

/// What one task keeps in scratch.
#[derive(Clone, Copy)]
struct Room {
    tasks: usize,
    /// Offsets of all parts, twice: into the source and into the weight.
    table: usize,
    /// Weights of one result channel, for all parts.
    weights: usize,
    /// Source planes as stored, with what a vector may read past them.
    stored: usize,
    /// Planes of `dy` with gaps between their rows; or columns of results that are yet to be interleaved.
    spread: usize,
}

impl Room {
    fn new(plan: &Plan, units: usize, images: usize, spread: usize) -> Room {
        let k = plan.source_channels * plan.shape.kernel.iter().product::<usize>();
        Room {
            tasks: units.clamp(1, TASKS),
            table: 2 * OFFSET * k,
            weights: k.next_multiple_of(ALIGN),
            stored: (images * plan.source_channels * plan.stored_len + MAX_LANES).next_multiple_of(ALIGN),
            spread: (images * spread).next_multiple_of(ALIGN),
        }
    }

    fn each(&self) -> usize {
        self.weights + self.stored + self.spread
    }

    fn total(&self) -> usize {
        ALIGN + self.table.next_multiple_of(ALIGN) + self.tasks * self.each()
    }
}

/// f32 elements of scratch for a direction.
pub(crate) fn scratch(shape: &ConvShape, direction: ConvDirection) -> usize {
    if direction == ConvDirection::WeightGradient {
        return WeightGradient::new(shape).room.total();
    }
    let plan = Plan::new(shape, direction);
    Room::new(&plan, shape.batch * shape.groups, 1, columns_apart(&plan).map_or(0, |len| 2 * len)).total()
}

/// Where results come as two sets of columns, the even and the odd ones, that must be interleaved: the elements
/// of one set.
fn columns_apart(plan: &Plan) -> Option<usize> {
    let flat = plan.shape.input[..H].iter().all(|&size| size == 1);
    if !flat || plan.parts[W] != 2 || plan.shape.input[W] < 2 {
        return None;
    }
    let rows = (0..plan.parts[H]).map(|part| plan.axis(H, part).grid).max().unwrap_or(0);
    Some(rows * column_pitch(plan))
}

/// Elements from row to row of one set of columns, with what a vector may write past a row.
fn column_pitch(plan: &Plan) -> usize {
    plan.shape.input[W].div_ceil(2).next_multiple_of(MAX_LANES)
}

/// Runs a forward or input-gradient plan, as [`super::conv_tiles::correlate`] does.
pub(crate) fn correlate(
    isa: Isa,
    plan: &Plan,
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let units = plan.shape.batch * plan.shape.groups;
    let apart = columns_apart(plan);
    let room = Room::new(plan, units, 1, apart.map_or(0, |len| 2 * len));
    let start = scratch.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(4 * ALIGN).min(ALIGN));
    let k = room.table / (2 * OFFSET);
    // Safety: the tables come first in the scratch.
    let (read, offsets) = unsafe {
        let table = start.cast::<isize>();
        (core::slice::from_raw_parts_mut(table, k), core::slice::from_raw_parts_mut(table.add(k), k))
    };
    for part in parts(plan) {
        let range = part.before..part.before + part.k;
        plan.offsets(&part.axes, &mut read[range.clone()], &mut offsets[range]);
    }
    let buffers = start.wrapping_add(room.table.next_multiple_of(ALIGN));
    let width = (0..plan.parts[W]).map(|part| plan.part(part)[W].grid).max().unwrap_or(0);
    let mut known = [Part::default(); KNOWN];
    let mut count = 0;
    for (i, part) in parts(plan).enumerate() {
        count += 1;
        if let Some(known) = known.get_mut(i) {
            *known = part;
        }
    }
    let call = Call {
        plan,
        known,
        count,
        room,
        apart,
        read,
        offsets,
        source,
        weight,
        bias,
        out: Shared::new(out),
        buffers: Shared::from_ptr(buffers),
    };
    // A launch costs more than a few small planes.
    let work = plan.shape.multiply_adds() / units.max(1) * units;
    let run = |t: usize| {
        let units = (t * units / room.tasks, (t + 1) * units / room.tasks);
        dispatch_on(isa.for_rows_of(width), Planes { call: &call, task: t, units });
    };
    if work < 1 << 15 { (0..room.tasks).for_each(run) } else { parallel_for(room.tasks, run) }
}

struct Call<'a> {
    plan: &'a Plan,
    /// The first of the plan's parts.
    known: [Part; KNOWN],
    /// All of them.
    count: usize,
    room: Room,
    apart: Option<usize>,
    read: &'a [isize],
    offsets: &'a [isize],
    source: &'a [f32],
    weight: &'a [f32],
    bias: Option<&'a [f32]>,
    out: Shared<f32>,
    buffers: Shared<f32>,
}

/// Some of the planes: unit `u` is group `u % groups` of image `u / groups`.
struct Planes<'a> {
    call: &'a Call<'a>,
    task: usize,
    units: (usize, usize),
}

impl SimdOp for Planes<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let call = self.call;
        let (plan, room) = (call.plan, call.room);
        let (row, _, group_step) = plan.weight_steps();
        // Safety: the task's part of the scratch, and offsets inside the tensors of the plan.
        unsafe {
            let weights = call.buffers.get().add(self.task * room.each());
            let stored = weights.add(room.weights);
            if plan.copied {
                stored.write_bytes(0, plan.source_channels * plan.stored_len);
            }
            for unit in self.units.0..self.units.1 {
                let group = unit % plan.shape.groups;
                let channels = unit * plan.source_channels;
                let mut from = call.source.as_ptr().add(channels * plan.source_len);
                if plan.copied {
                    for c in 0..plan.source_channels {
                        let from = from.add(c * plan.source_len);
                        plan.store_channel::<S>(from, stored.add(c * plan.stored_len), false);
                    }
                    from = stored;
                }
                for m in 0..plan.out_channels {
                    let w = call.weight.as_ptr().add(group * group_step + m * row);
                    for (k, &offset) in call.offsets.iter().enumerate() {
                        *weights.add(k) = *w.offset(offset);
                    }
                    let channel = unit * plan.out_channels + m;
                    let bias = call.bias.map_or(0.0, |bias| bias[group * plan.out_channels + m]);
                    let to = call.out.get().add(channel * plan.out_len);
                    let mut apart_rows = 0;
                    for i in 0..call.count {
                        let part = match call.known.get(i) {
                            Some(part) => *part,
                            None => parts(plan).nth(i).unwrap_or_default(),
                        };
                        let taps = Taps {
                            count: part.k,
                            weights: weights.add(part.before),
                            read: call.read.as_ptr().add(part.before),
                        };
                        let Some(len) = call.apart else {
                            let (row, col) = plan.out_steps(&part.axes);
                            // Rows come in order where there is one part.
                            let end = if plan.parts == [1; D] { plan.out_len } else { 0 };
                            let target = Target { to, plane: None, row, col, end };
                            part_of_channel::<S>(plan, &part, taps, bias, from, target);
                            continue;
                        };
                        let odd = part.axes[W].out.0;
                        let (columns, row) = (stored.add(room.stored), column_pitch(plan));
                        let target = Target { to: columns.add(odd * len), plane: Some(0), row, col: 1, end: len };
                        part_of_channel::<S>(plan, &part, taps, bias, from, target);
                        // The parts of the other columns follow those with the same rows.
                        apart_rows += 1;
                        if apart_rows % 2 == 0 {
                            interleave_columns::<S>(plan, &part, columns, len, to);
                        }
                    }
                }
            }
        }
    }
}

/// The taps of one part: weights, and what each adds to the place of a result.
#[derive(Clone, Copy)]
struct Taps {
    count: usize,
    weights: *const f32,
    read: *const isize,
}

/// Where results go.
#[derive(Clone, Copy)]
struct Target {
    to: *mut f32,
    /// Where the plane starts; by default where the plan says.
    plane: Option<usize>,
    /// From row to row and from column to column.
    row: usize,
    col: usize,
    /// Up to here a vector may reach past its row: what it writes there belongs to rows that come later.
    end: usize,
}

/// Puts two sets of columns of results together.
///
/// # Safety
/// `columns` holds both sets, `to` is a channel of the output.
#[inline(always)]
unsafe fn interleave_columns<S: Simd>(plan: &Plan, part: &Part, columns: *const f32, len: usize, to: *mut f32) {
    let (width, rows) = (plan.shape.input[W], part.axes[H]);
    for r in 0..rows.grid {
        // Safety: the caller's promise.
        unsafe {
            let even = columns.add(r * column_pitch(plan));
            interleave_rows::<S>(even, even.add(len), to.add((rows.out.0 + r * rows.out.1) * width), width);
        }
    }
}

/// The results of one part in one channel.
///
/// # Safety
/// `from` is the stored source, the target holds the part, the taps are those of the part.
// In wasm a function of its own: engines compile a huge function badly or late. Elsewhere it must be inlined into
// the function that has the instruction set.
#[cfg_attr(target_arch = "wasm32", inline(never))]
#[cfg_attr(not(target_arch = "wasm32"), inline(always))]
unsafe fn part_of_channel<S: Simd>(plan: &Plan, part: &Part, taps: Taps, bias: f32, from: *const f32, target: Target) {
    let axes = &part.axes;
    let (rows, cols) = (axes[H].grid, axes[W].grid);
    let pitch = plan.pitch[H];
    for plane in 0..Plan::planes(axes) {
        let (read, write) = plan.plane(axes, plane);
        let write = target.plane.unwrap_or(write);
        let mut c = 0;
        while c < cols {
            // The last vector of a row overlaps the one before, so that it is whole.
            let at = if cols >= S::LANES { c.min(cols - S::LANES) } else { 0 };
            let lanes = cols.min(S::LANES);
            for r in (0..rows).step_by(VECTORS) {
                let count = VECTORS.min(rows - r);
                let first = from.wrapping_add(read + r * pitch + at);
                let mut places = [first; VECTORS];
                for v in 1..VECTORS {
                    // Rows past the last compute it again and are dropped.
                    places[v] = first.wrapping_add(v.min(count - 1) * pitch);
                }
                // Safety: the caller's promise; a copy has slack for whole vectors.
                unsafe {
                    let acc = if plan.copied || lanes == S::LANES {
                        sums::<S, false>(places, taps, bias, 0)
                    } else {
                        sums::<S, true>(places, taps, bias, lanes)
                    };
                    for v in 0..count {
                        let place = write + (r + v) * target.row + at * target.col;
                        put::<S>(target, place, acc[v], lanes);
                    }
                }
            }
            c += S::LANES;
        }
    }
}

/// Stores `lanes` results from `place` on.
///
/// # Safety
/// They lie inside the target.
#[inline(always)]
unsafe fn put<S: Simd>(target: Target, place: usize, v: S::V, lanes: usize) {
    // Safety: the caller's promise.
    unsafe {
        let to = target.to.add(place);
        if target.col == 1 && (lanes == S::LANES || place + S::LANES <= target.end) {
            S::store(to, v);
        } else if target.col == 1 {
            S::store_partial(to, v, lanes);
        } else {
            let mut values = [0.0f32; MAX_LANES];
            S::store(values.as_mut_ptr(), v);
            for i in 0..lanes {
                *to.add(i * target.col) = values[i];
            }
        }
    }
}

/// Sums of taps times what they read from each of the places `from`; only `lanes` elements each if PARTIAL.
///
/// # Safety
/// The places are good for the taps and lanes.
#[inline(always)]
unsafe fn sums<S: Simd, const PARTIAL: bool>(
    from: [*const f32; VECTORS],
    taps: Taps,
    bias: f32,
    lanes: usize,
) -> [S::V; VECTORS] {
    // Safety: the caller's promise.
    unsafe {
        let mut acc = [S::splat(bias); VECTORS];
        for k in 0..taps.count {
            let (w, offset) = (S::load_splat(taps.weights.add(k)), *taps.read.add(k));
            for v in 0..VECTORS {
                let p = from[v].offset(offset);
                let x = if PARTIAL { S::load_partial(p, lanes) } else { S::load(p) };
                acc[v] = S::mul_add(w, x, acc[v]);
            }
        }
        acc
    }
}

/// A weight gradient laid out.
struct WeightGradient {
    plan: Plan,
    axes: [Axis; D],
    /// Images gathered at once.
    images: usize,
    planes: usize,
    extent: usize,
    /// Whether rows of `dy` are spread to the distance of the image's rows.
    spread: bool,
    room: Room,
}

impl WeightGradient {
    fn new(shape: &ConvShape) -> WeightGradient {
        let plan = Plan::new(shape, ConvDirection::Forward);
        let axes = plan.part(0);
        let (planes, extent) = (Plan::planes(&axes), plan.extent(&axes));
        let spread = extent != axes[H].grid * axes[W].grid;
        let results = shape.out_channels / shape.groups;
        let images = (GATHER / plan.stored_len.max(1)).clamp(1, shape.batch.max(1));
        let mut room = Room::new(&plan, shape.groups, images, if spread { results * planes * extent } else { 0 });
        // The table of stretches stands where the weights would.
        room.weights = (2 * OFFSET * images * planes).next_multiple_of(ALIGN);
        WeightGradient { plan, axes, images, planes, extent, spread, room }
    }
}

/// Computes `dw`, as [`super::conv_weight::weight_gradient`] does.
pub(crate) fn weight_gradient(isa: Isa, shape: &ConvShape, x: &[f32], dy: &[f32], dw: &mut [f32], scratch: &mut [f32]) {
    let layout = WeightGradient::new(shape);
    let room = layout.room;
    let start = scratch.as_mut_ptr();
    let start = start.wrapping_add(start.align_offset(4 * ALIGN).min(ALIGN));
    let k = room.table / (2 * OFFSET);
    // Safety: the tables come first in the scratch.
    let (read, offsets) = unsafe {
        let table = start.cast::<isize>();
        (core::slice::from_raw_parts_mut(table, k), core::slice::from_raw_parts_mut(table.add(k), k))
    };
    layout.plan.offsets(&layout.axes, read, offsets);
    let buffers = Shared::from_ptr(start.wrapping_add(room.table.next_multiple_of(ALIGN)));
    let dw = Shared::new(dw);
    let run = |t: usize| {
        let groups = (t * shape.groups / room.tasks, (t + 1) * shape.groups / room.tasks);
        let buffers = buffers.moved(t * room.each());
        let op = WeightTask { layout: &layout, read, x, dy, dw, buffers, groups };
        dispatch_on(isa.for_rows_of(layout.extent), op);
    };
    if shape.multiply_adds() < 1 << 15 { (0..room.tasks).for_each(run) } else { parallel_for(room.tasks, run) }
}

/// The weights of some groups.
struct WeightTask<'a> {
    layout: &'a WeightGradient,
    read: &'a [isize],
    x: &'a [f32],
    dy: &'a [f32],
    dw: Shared<f32>,
    buffers: Shared<f32>,
    groups: (usize, usize),
}

impl WeightTask<'_> {
    /// Copies the planes of `dy` for one image and group, its rows as far apart as those of the image. What lies
    /// between the rows is zero and stays so.
    ///
    /// # Safety
    /// `to` has room for them.
    #[inline(always)]
    unsafe fn spread<S: Simd>(&self, from: *const f32, channels: usize, to: *mut f32) {
        let layout = self.layout;
        let (rows, cols, pitch) = (layout.axes[H].grid, layout.axes[W].grid, layout.plan.pitch[H]);
        for p in 0..channels * layout.planes {
            for r in 0..rows {
                // Safety: a row of `dy`, and the room for it.
                unsafe {
                    let (from, to) = (from.add((p * rows + r) * cols), to.add(p * layout.extent + r * pitch));
                    copy_row::<S>(from, 1, to, cols);
                }
            }
        }
    }
}

impl SimdOp for WeightTask<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (layout, plan) = (self.layout, &self.layout.plan);
        let (shape, room) = (&plan.shape, layout.room);
        let (m, taps) = (plan.out_channels, self.read.len());
        let dy_channel = layout.planes * layout.extent;
        // Safety: the task's part of the scratch, and offsets inside the tensors of the shape.
        unsafe {
            let table = self.buffers.get().cast::<[isize; 2]>();
            let stored = self.buffers.get().add(room.weights);
            let spread = stored.add(room.stored);
            stored.write_bytes(0, room.stored + room.spread);
            for group in self.groups.0..self.groups.1 {
                let dw = self.dw.get().add(group * m * taps);
                for first in (0..shape.batch).step_by(layout.images) {
                    let images = layout.images.min(shape.batch - first);
                    // Sources that are read in place lie one image apart.
                    let mut x = self.x.as_ptr().add((first * shape.groups + group) * plan.source_len);
                    let mut dy = self.dy.as_ptr().add((first * shape.groups + group) * m * plan.out_len);
                    let (mut x_image, mut dy_image) = (shape.groups * plan.source_len, shape.groups * m * plan.out_len);
                    for i in 0..images {
                        if plan.copied {
                            plan.store_channel::<S>(x.add(i * x_image), stored.add(i * plan.stored_len), false);
                        }
                        if layout.spread {
                            self.spread::<S>(dy.add(i * dy_image), m, spread.add(i * m * dy_channel));
                        }
                    }
                    if plan.copied {
                        (x, x_image) = (stored, plan.stored_len);
                    }
                    if layout.spread {
                        (dy, dy_image) = (spread, m * dy_channel);
                    }
                    for plane in 0..layout.planes {
                        let b = plan.plane(&layout.axes, plane).0;
                        for i in 0..images {
                            let a = i * dy_image + plane * layout.extent;
                            *table.add(i * layout.planes + plane) = [a as isize, (i * x_image + b) as isize];
                        }
                    }
                    let table = core::slice::from_raw_parts(table, images * layout.planes);
                    let put = |row: usize, col: usize, sum: f32| {
                        let to = dw.add(row * taps + col);
                        *to = if first == 0 { sum } else { *to + sum };
                    };
                    let b_row = |tap: usize| x.wrapping_offset(self.read[tap]);
                    let over = Stretches { table, len: layout.extent };
                    dot_block::<S>(dy, (0, m), dy_channel as isize, (0, taps), b_row, over, put);
                }
            }
        }
    }
}
