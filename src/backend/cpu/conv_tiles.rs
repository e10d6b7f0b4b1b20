//! Forward convolution and input gradient as register tiles: rows are channels of the output, columns places of
//! the stored source, k runs over channels of the source and taps. What the source holds at the places of a
//! panel for one k is a contiguous stretch, found through a table: nothing is unrolled into columns. Places
//! between two rows of results are computed and dropped.

use super::conv_geometry::{Axis, D, H, Plan, W};
use super::gemm::cut;
use super::gemm_kernel::{Block, KC, Lhs, PANEL, PanelBuffer, Rhs, RowTiles, pack_lhs_by, sweep};
use super::simd::{Isa, MAX_LANES, Simd, SimdOp, dispatch_on};
use super::threads::{Shared, parallel_for};
use core::mem::MaybeUninit;
use core::ops::Range;

/// Elements of stored source that are worked on at once: what stays in the second-level cache.
const WAVE: usize = 1 << 17;
/// Output channels that share a packed panel.
const BAND: usize = 192;
/// Elements that a panel may read past the last result.
const SLACK: usize = PANEL * MAX_LANES;
/// f32 elements in one offset.
const OFFSET: usize = size_of::<isize>() / size_of::<f32>();
/// f32 elements that alignment may cost.
const ALIGN: usize = 16;

/// Images of which the source is stored at once.
pub(crate) fn wave(plan: &Plan, elements: usize) -> usize {
    let image = plan.shape.groups * plan.source_channels * plan.stored_len;
    let images = if plan.copied { (elements / image.max(1)).max(1) } else { plan.shape.batch };
    images.min(plan.shape.batch)
}

fn stored_elements(plan: &Plan) -> usize {
    let image = plan.shape.groups * plan.source_channels * plan.stored_len;
    if plan.copied { wave(plan, WAVE) * image + SLACK } else { 0 }
}

fn offsets(plan: &Plan) -> usize {
    plan.source_channels * plan.shape.kernel.iter().product::<usize>()
}

/// f32 elements that the two tables of offsets take.
fn tables(plan: &Plan) -> usize {
    (2 * OFFSET * offsets(plan)).next_multiple_of(ALIGN)
}

/// f32 elements of scratch for [`correlate`].
pub(crate) fn scratch(_isa: Isa, plan: &Plan) -> usize {
    ALIGN + tables(plan) + plan.shape.weight_len().next_multiple_of(ALIGN) + stored_elements(plan)
}

/// The parts of the scratch.
#[derive(Clone, Copy)]
struct Room {
    read: *mut isize,
    weight: *mut isize,
    packed: *mut f32,
    stored: *mut f32,
}

// Safety: tasks write parts of their own, or only read.
unsafe impl Sync for Room {}

impl Room {
    fn new(plan: &Plan, scratch: &mut [f32]) -> Room {
        let start = scratch.as_mut_ptr();
        let start = start.wrapping_add(start.align_offset(4 * ALIGN).min(ALIGN));
        let packed = start.wrapping_add(tables(plan));
        let read = start.cast::<isize>();
        Room {
            read,
            weight: read.wrapping_add(offsets(plan)),
            packed,
            stored: packed.wrapping_add(plan.shape.weight_len().next_multiple_of(ALIGN)),
        }
    }
}

/// One of the plan's correlations.
#[derive(Clone, Copy, Default)]
pub(crate) struct Part {
    pub(crate) axes: [Axis; D],
    /// Source channels times taps.
    pub(crate) k: usize,
    /// The `k` of the parts before it.
    pub(crate) before: usize,
}

/// The plan's parts that have results. An iterator, not a function taking a closure: what stands in the body of a
/// `for` is compiled with the instructions of the function around it.
pub(crate) fn parts(plan: &Plan) -> impl Iterator<Item = Part> {
    let mut before = 0;
    (0..plan.parts.iter().product()).filter_map(move |index| {
        let axes = plan.part(index);
        if axes.iter().any(|a| a.grid == 0) {
            return None;
        }
        let k = plan.source_channels * axes.iter().map(|a| a.taps).product::<usize>();
        before += k;
        Some(Part { axes, k, before: before - k })
    })
}

/// Runs the plan: sizes are those of its shape, `scratch` at least [`scratch`] elements.
pub(crate) fn correlate(
    isa: Isa,
    plan: &Plan,
    source: &[f32],
    weight: &[f32],
    bias: Option<&[f32]>,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let room = Room::new(plan, scratch);
    let (_, accumulators) = isa.registers();
    let tiles = RowTiles::new(plan.out_channels, accumulators / PANEL);
    for part in parts(plan) {
        // Safety: the tables, the packed weight and the stored source each have their room in the scratch.
        unsafe { pack_weight(plan, part, tiles, weight, room) };
    }
    let wave = wave(plan, WAVE);
    let out = Shared::new(out);
    for first in (0..plan.shape.batch).step_by(wave.max(1)) {
        let images = first..plan.shape.batch.min(first + wave);
        let source = &source[first * plan.shape.groups * plan.source_channels * plan.source_len..];
        if plan.copied {
            let channels = images.len() * plan.shape.groups * plan.source_channels;
            // Safety: there is room for a wave, and the source holds as many channels.
            unsafe { store(isa, plan, source, channels, room.stored) };
        }
        for part in parts(plan) {
            let launch = Launch {
                plan,
                part,
                tiles,
                source: if plan.copied { room.stored } else { source.as_ptr() },
                read: room.read.wrapping_add(part.before),
                packed: room.packed.wrapping_add(part.before * plan.out_channels * plan.shape.groups),
                bias: bias.map_or(core::ptr::null(), <[f32]>::as_ptr),
                out: out.moved(first * plan.shape.groups * plan.out_channels * plan.out_len),
            };
            launch.run(isa, images.len());
        }
    }
}

/// Copies `channels` channels of the source into `to`, each padded as the plan wants it.
///
/// # Safety
/// `source` holds them, and `to` has room for them and the slack.
pub(crate) unsafe fn store(isa: Isa, plan: &Plan, source: &[f32], channels: usize, to: *mut f32) {
    let (from, to) = (source.as_ptr().cast_mut(), Shared::from_ptr(to));
    let from = Shared::from_ptr(from);
    let tasks = cut(channels, 1, channels * plan.stored_len * 16);
    parallel_for(tasks, |t| {
        let channels = (t * channels / tasks, (t + 1) * channels / tasks);
        dispatch_on(isa, Store { plan, from, to, channels });
    });
}

/// Copies some channels of the source.
struct Store<'a> {
    plan: &'a Plan,
    from: Shared<f32>,
    to: Shared<f32>,
    channels: (usize, usize),
}

impl SimdOp for Store<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for c in self.channels.0..self.channels.1 {
            let from = self.from.get().wrapping_add(c * self.plan.source_len);
            let to = self.to.get().wrapping_add(c * self.plan.stored_len);
            // Safety: promised to `store`; every channel has its own place.
            unsafe { self.plan.store_channel::<S>(from, to, true) };
        }
    }
}

/// Writes the offset tables of a part and packs its weight, block of k by block of k.
///
/// # Safety
/// `room` has the sizes of the plan's scratch.
unsafe fn pack_weight(plan: &Plan, part: Part, tiles: RowTiles, weight: &[f32], room: Room) {
    let (row, _, group) = plan.weight_steps();
    // Safety: the tables hold the offsets of all parts.
    let (read, offsets) = unsafe {
        let read = core::slice::from_raw_parts_mut(room.read.add(part.before), part.k);
        (read, core::slice::from_raw_parts_mut(room.weight.add(part.before), part.k))
    };
    plan.offsets(&part.axes, read, offsets);
    let offsets: &[isize] = offsets;
    let units = plan.shape.groups * tiles.count;
    let tasks = cut(units, 1, plan.shape.groups * plan.out_channels * part.k * 16);
    let (room, per_group) = (&room, part.k * plan.out_channels);
    parallel_for(tasks, |t| {
        for unit in t * units / tasks..(t + 1) * units / tasks {
            let (g, tile) = (unit / tiles.count, unit % tiles.count);
            for k0 in (0..part.k).step_by(KC) {
                let kc = KC.min(part.k - k0);
                let k_offset = |k: usize| offsets[k0 + k];
                // Safety: each tile has its own room, and the offsets stay inside the group's weight.
                unsafe {
                    let to = room.packed.add(part.before * plan.out_channels * plan.shape.groups + g * per_group);
                    let from = weight.as_ptr().add(g * group);
                    let to = to.add(k0 * plan.out_channels);
                    pack_lhs_by(tiles, tile..tile + 1, kc, from, (row as isize, k_offset), to);
                }
            }
        }
    });
}

/// One part of the plan over the images of a wave.
#[derive(Clone, Copy)]
struct Launch<'a> {
    plan: &'a Plan,
    part: Part,
    tiles: RowTiles,
    source: *const f32,
    read: *const isize,
    packed: *const f32,
    bias: *const f32,
    out: Shared<f32>,
}

// Safety: sources are only read, and tasks write no element in common.
unsafe impl Sync for Launch<'_> {}

impl Launch<'_> {
    fn run(&self, isa: Isa, images: usize) {
        let (lanes, _) = isa.registers();
        let (extent, planes) = (self.plan.extent(&self.part.axes), Plan::planes(&self.part.axes));
        let panels = extent.div_ceil(PANEL * lanes);
        let units = images * self.plan.shape.groups * planes * panels;
        let work = units * PANEL * lanes * self.plan.out_channels * self.part.k.max(1);
        let tasks = cut(units, 1, work);
        parallel_for(tasks, |t| {
            let units = t * units / tasks..(t + 1) * units / tasks;
            dispatch_on(isa, Task { launch: *self, extent, planes, panels, units });
        });
    }
}

/// Some panels of a launch: unit `u` is panel `u % panels` of plane `u / panels`, planes counted through the
/// groups and images.
struct Task<'a> {
    launch: Launch<'a>,
    extent: usize,
    planes: usize,
    panels: usize,
    units: Range<usize>,
}

impl SimdOp for Task<'_> {
    type Out = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let mut buffer: PanelBuffer = MaybeUninit::uninit();
        let Launch { plan, part, tiles, .. } = self.launch;
        let (channels, groups) = (plan.out_channels, plan.shape.groups);
        let bands = channels.div_ceil(BAND);
        let (out_row, out_col) = plan.out_steps(&part.axes);
        let mut unit = self.units.start;
        while unit < self.units.end {
            let (item, first) = (unit / self.panels, unit % self.panels);
            let panels = first..self.panels.min(first + self.units.end - unit);
            unit += panels.len();
            let (of_group, plane) = (item / self.planes, item % self.planes);
            let (read, write) = plan.plane(&part.axes, plane);
            let group = of_group % groups;
            for band in 0..bands {
                let rows = band * tiles.count / bands..(band + 1) * tiles.count / bands;
                // A convolution without taps still writes: zeros, or its bias.
                for k0 in (0..part.k.max(1)).step_by(KC) {
                    let kc = KC.min(part.k - k0);
                    // Safety: all these lie inside the tensors and tables of the plan.
                    unsafe {
                        let packed = self.launch.packed.add(group * part.k * channels + k0 * channels);
                        let lhs = Lhs { ptr: packed, strides: None, tiles };
                        let bias = self.launch.bias;
                        let mut block = PlaneBlock {
                            source: self.launch.source.add(of_group * plan.source_channels * plan.stored_len + read),
                            table: self.launch.read.add(k0),
                            kc,
                            copied: plan.copied,
                            share: rows.len() >= 4,
                            extent: self.extent,
                            pitch: plan.pitch[H],
                            row_len: part.axes[W].grid,
                            out: self.launch.out.get().add(of_group * channels * plan.out_len + write),
                            out_channel: plan.out_len,
                            out_row,
                            out_col,
                            bias: if bias.is_null() { bias } else { bias.add(group * channels) },
                            first: k0 == 0,
                            runs: [Run::default(); PANEL * MAX_LANES],
                            count: 0,
                        };
                        sweep::<S, PANEL, _>(&lhs, rows.clone(), kc, panels.clone(), &mut block, &mut buffer);
                    }
                }
            }
        }
    }
}

/// Results of one panel that lie in one row of the output.
#[derive(Clone, Copy, Default)]
struct Run {
    /// First column of the panel.
    lane: usize,
    len: usize,
    /// Where it goes, within a channel of the output.
    to: usize,
}

/// One plane of results for one block of k.
struct PlaneBlock {
    source: *const f32,
    table: *const isize,
    kc: usize,
    copied: bool,
    /// Enough tiles share a panel to pay for packing it.
    share: bool,
    extent: usize,
    pitch: usize,
    row_len: usize,
    out: *mut f32,
    out_channel: usize,
    out_row: usize,
    out_col: usize,
    bias: *const f32,
    first: bool,
    runs: [Run; PANEL * MAX_LANES],
    count: usize,
}

impl PlaneBlock {
    /// Finds the results among the places of a panel.
    #[inline(always)]
    fn find_runs(&mut self, start: usize, width: usize) {
        let (mut row, mut col) = (start / self.pitch, start % self.pitch);
        let mut lane = 0;
        self.count = 0;
        while lane < width {
            if col < self.row_len {
                let len = (self.row_len - col).min(width - lane);
                self.runs[self.count] = Run { lane, len, to: row * self.out_row + col * self.out_col };
                self.count += 1;
            }
            lane += self.pitch - col;
            row += 1;
            col = 0;
        }
    }
}

impl Block for PlaneBlock {
    const TABLE: bool = true;

    #[inline(always)]
    unsafe fn rows<S: Simd, const W: usize>(&mut self, panel: usize, buffer: *mut f32) -> Rhs {
        let lanes = W * S::LANES;
        let start = panel * lanes;
        let width = lanes.min(self.extent - start);
        self.find_runs(start, width);
        // Safety: places up to `extent` exist for every offset; a copy has slack behind them.
        unsafe {
            let from = self.source.add(start);
            let whole = self.copied || width == lanes;
            if whole && !self.share {
                return Rhs::Table(from, self.table);
            }
            for k in 0..self.kc {
                let (from, to) = (from.offset(*self.table.add(k)), buffer.add(k * lanes));
                for w in 0..W {
                    let n = if whole { S::LANES } else { width.saturating_sub(w * S::LANES).min(S::LANES) };
                    let v = if n == S::LANES {
                        S::load(from.add(w * S::LANES))
                    } else if n == 0 {
                        S::splat(0.0)
                    } else {
                        S::load_partial(from.add(w * S::LANES), n)
                    };
                    S::store(to.add(w * S::LANES), v);
                }
            }
            Rhs::Even(buffer, lanes as isize)
        }
    }

    #[inline(always)]
    unsafe fn put<S: Simd, const R: usize, const W: usize>(
        &mut self,
        row: usize,
        _panel: usize,
        tile: &[[S::V; W]; R],
    ) {
        let lanes = W * S::LANES;
        // Safety: the runs lie inside the output, the rows are channels of it.
        unsafe {
            if self.count != 1 || self.runs[0].len != lanes || self.out_col != 1 {
                let mut values = MaybeUninit::<[f32; EDGE]>::uninit();
                let values = values.as_mut_ptr().cast::<f32>();
                for r in 0..R {
                    for w in 0..W {
                        S::store(values.add(r * lanes + w * S::LANES), tile[r][w]);
                    }
                }
                return self.put_runs((row, R), values, lanes);
            }
            for r in 0..R {
                let bias = if self.first && !self.bias.is_null() { *self.bias.add(row + r) } else { 0.0 };
                let out = self.out.add((row + r) * self.out_channel + self.runs[0].to);
                for w in 0..W {
                    let to = out.add(w * S::LANES);
                    let old = if self.first { S::splat(bias) } else { S::load(to) };
                    S::store(to, S::add(old, tile[r][w]));
                }
            }
        }
    }
}

/// Elements of the largest tile.
const EDGE: usize = 24 * MAX_LANES;

impl PlaneBlock {
    /// Stores a tile run by run: `rows` rows of `values`, `lanes` apart.
    ///
    /// # Safety
    /// The rows are channels of the output.
    #[inline(never)]
    unsafe fn put_runs(&self, (row, rows): (usize, usize), values: *const f32, lanes: usize) {
        for r in 0..rows {
            // Safety: the caller's promise, and the runs lie inside a channel.
            unsafe {
                let bias = if self.first && !self.bias.is_null() { *self.bias.add(row + r) } else { 0.0 };
                let (out, values) = (self.out.add((row + r) * self.out_channel), values.add(r * lanes));
                for run in &self.runs[..self.count] {
                    let (to, values) = (out.add(run.to), values.add(run.lane));
                    match (self.first, self.out_col) {
                        (true, 1) => {
                            for i in 0..run.len {
                                *to.add(i) = *values.add(i) + bias;
                            }
                        }
                        (true, step) => {
                            for i in 0..run.len {
                                *to.add(i * step) = *values.add(i) + bias;
                            }
                        }
                        (false, step) => {
                            for i in 0..run.len {
                                *to.add(i * step) += *values.add(i);
                            }
                        }
                    }
                }
            }
        }
    }
}
