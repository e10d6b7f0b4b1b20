//! A plan compiled for the GPU: memory, pipelines and bind groups, all made once.

use super::device::{Shared, count, lock};
use super::expr::on_host;
use super::host::HostStep;
use super::layout::{Place, Places, Slot, storage};
use super::lower::{Lower, lower};
use super::memory::{GpuBuffer, to_device};
use super::pipelines::Pipeline;
use super::shader::Dispatch;
use super::status;
use super::stream::{Source, Stream};
use crate::error::{Error, Result, err};
use crate::kernel::reference::{self, HostBuffers};
use crate::kernel::{RunContext, View};
use crate::plan::{Output, Placement, Plan};
use crate::tensor::{DType, Tensor};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wgpu::BufferUsages;

/// A compiled plan.
pub struct GpuProgram {
    stream: Arc<Stream>,
    actions: Vec<Action>,
    places: Places,
    slots: Slots,
    /// Buffers that a run uses and that others may use, too.
    inputs: Vec<GpuBuffer>,
    /// Those that a run writes.
    written: Vec<GpuBuffer>,
    /// Dispatches of one run.
    dispatches: usize,
}

impl Drop for GpuProgram {
    /// Commands that use its buffers must be on their way before those are destroyed.
    fn drop(&mut self) {
        if self.slots.run.0.used.load(Ordering::Relaxed) == self.stream.batch() {
            self.stream.submit();
        }
    }
}

/// What a run does, in order.
enum Action {
    /// Kernels, in one compute pass.
    Pass(Vec<Launch>),
    /// A kernel on the host.
    Host(Box<HostStep>),
}

/// A dispatch that is ready.
pub(super) struct Launch {
    pipeline: Arc<Pipeline>,
    bind_group: wgpu::BindGroup,
    groups: [u32; 2],
}

impl Launch {
    pub(super) fn encode(&self, pass: &mut wgpu::ComputePass<'_>) {
        pass.set_pipeline(&self.pipeline.pipeline);
        pass.set_bind_group(0, &self.bind_group, &[]);
        pass.dispatch_workgroups(self.groups[0], self.groups[1], 1);
    }
}

/// The GPU buffers of a program, by slot. The first three are `Slot::STATUS`, `Slot::RUN` and `Slot::SCRATCH`.
struct Slots {
    list: Vec<wgpu::Buffer>,
    /// What the run is told; `RUN`.
    run: GpuBuffer,
    /// Those that nobody else uses.
    own: Vec<wgpu::Buffer>,
}

impl Drop for Slots {
    /// As for [`Memory`](super::memory::Memory): browsers would free the memory late.
    fn drop(&mut self) {
        self.own.iter().for_each(wgpu::Buffer::destroy);
    }
}

/// Words of the run's context: seed, step (each low word first), 1 if a loss must be finite.
const RUN_WORDS: usize = 5;

impl GpuProgram {
    pub(super) async fn compile(stream: &Arc<Stream>, plan: &Plan, inputs: &[GpuBuffer]) -> Result<Self> {
        let (mut slots, places) = place(stream, plan, inputs)?;
        let (steps, scratch) = {
            let mut known = lock(&stream.checks);
            let mut cx = Lower::new(&places, &mut known);
            let steps = plan.steps.iter().map(|step| {
                if on_host(step) {
                    cx.forget(&step.writes);
                    return HostStep::new(step, stream.halves, plan, inputs, &places)
                        .map(|step| Work::Host(Box::new(step)));
                }
                lower(step, &mut cx).map(|dispatches| Work::Device(dispatches, step.from.clone()))
            });
            let mut steps = steps.collect::<Result<Vec<_>>>()?;
            if let Some(loss) = loss_of(plan) {
                steps.push(Work::Device(vec![status::finite(loss, &mut cx)?], "the loss".into()));
            }
            (steps, cx.scratch)
        };
        let scratch = stream.buffer("scratch", scratch * 4, BufferUsages::STORAGE)?;
        slots.own.push(scratch.clone());
        slots.list[Slot::SCRATCH.index as usize] = scratch;
        let mut program = Self {
            stream: stream.clone(),
            actions: Vec::new(),
            places,
            slots,
            inputs: inputs.to_vec(),
            written: written(plan, inputs),
            dispatches: 0,
        };
        program.prepare(steps).await?;
        Ok(program)
    }

    /// Makes pipelines and bind groups.
    async fn prepare(&mut self, steps: Vec<Work>) -> Result<()> {
        let shared = self.stream.clone();
        let all = || steps.iter().flat_map(|w| if let Work::Device(list, _) = w { &**list } else { &[] });
        let (params, mut offsets) = pack_params(&shared, all())?;
        self.slots.own.push(params.clone());
        shared.prepare_pipelines(all()).await;
        for work in steps {
            let (dispatches, from) = match work {
                Work::Host(step) => {
                    self.actions.push(Action::Host(step));
                    continue;
                }
                Work::Device(dispatches, from) => (dispatches, from),
            };
            for dispatch in dispatches {
                let offset = offsets.next().expect("one for each dispatch");
                let at = |e: Error| e.at(&*from);
                if dispatch.slots.len() > shared.bindings {
                    return Err(at(err!(Unsupported, "a kernel reads and writes too many tensors for this GPU")
                        .expected(format!("at most {} GPU buffers", shared.bindings))
                        .found(dispatch.slots.len())));
                }
                let pipeline = shared.pipeline(&dispatch).await.map_err(at)?;
                let buffer = |slot: Slot| &self.slots.list[slot.index as usize];
                let bind_group = bind(&shared, &pipeline, &params, offset, &dispatch, buffer);
                let launch = Launch { pipeline, bind_group, groups: dispatch.groups };
                self.dispatches += 1;
                match self.actions.last_mut() {
                    Some(Action::Pass(pass)) => pass.push(launch),
                    _ => self.actions.push(Action::Pass(vec![launch])),
                }
            }
        }
        shared.check()
    }

    pub(super) async fn run(&mut self, cx: &RunContext) -> Result<()> {
        let stream = self.stream.clone();
        stream.check()?;
        let words = [cx.seed as u32, (cx.seed >> 32) as u32, cx.step as u32, (cx.step >> 32) as u32, cx.finite as u32];
        stream.upload(&self.slots.run, bytemuck::cast_slice(&words))?;
        for action in &mut self.actions {
            match action {
                Action::Pass(launches) => {
                    stream.record(|encoder| {
                        let mut pass = encoder.begin_compute_pass(&Default::default());
                        launches.iter().for_each(|launch| launch.encode(&mut pass));
                    });
                    self.inputs.iter().chain([&self.slots.run]).for_each(|buffer| buffer.touch(&stream));
                    self.written.iter().for_each(|buffer| buffer.0.forget());
                }
                Action::Host(step) => {
                    let buffer = |slot: Slot| &self.slots.list[slot.index as usize];
                    let used = self.slots.run.0.used.load(Ordering::Relaxed);
                    step.run(&stream, buffer, used, cx).await?;
                }
            }
        }
        count(&stream.made.dispatches, self.dispatches);
        Ok(())
    }

    pub(super) async fn read(&self, outputs: &[(String, Output)], tensors: &mut [Tensor]) -> Result<()> {
        let mut parts: Vec<(Part, &mut Tensor)> = Vec::new();
        for ((_, output), tensor) in outputs.iter().zip(tensors) {
            if let Output::View(view) = output
                && !view.is_empty()
            {
                parts.push((self.part(view), tensor));
            }
        }
        let sources: Vec<Source<'_>> = parts
            .iter()
            .map(|(part, _)| Source {
                buffer: &self.slots.list[part.slot.index as usize],
                offset: part.offset,
                bytes: part.bytes,
            })
            .collect();
        let halves = self.stream.halves;
        let mut result = Ok(());
        self.stream
            .fetch(&sources, |mut data| {
                for (part, tensor) in &mut parts {
                    let (own, rest) = data.split_at(part.bytes);
                    data = rest;
                    if let Err(e) = part.unpack(own, halves, tensor) {
                        result = Err(e);
                    }
                }
            })
            .await?;
        result
    }

    /// The bytes that hold what a view sees.
    fn part(&self, view: &View) -> Part {
        let place = self.places.of(view.buffer);
        let size = storage(view.dtype, self.stream.halves).bytes();
        let (low, high) = view.span().expect("views of no elements are not read");
        // From a multiple of 4 to a multiple of 4.
        let start = (place.offset + low * size) / 4 * 4;
        let end = (place.offset + (high + 1) * size).next_multiple_of(4);
        // Elements that stand before the first one that is wanted.
        let skipped = (place.offset + low * size - start) / size;
        let view = View { offset: view.offset - low + skipped, ..view.clone() };
        Part { slot: place.slot, offset: start, bytes: end - start, view }
    }
}

/// A step as dispatches with the name of its node, or for the host.
enum Work {
    Device(Vec<Dispatch>, Arc<str>),
    Host(Box<HostStep>),
}

/// Bytes of a GPU buffer, and the view of the elements in them.
struct Part {
    slot: Slot,
    offset: usize,
    bytes: usize,
    view: View,
}

impl Part {
    fn unpack(&self, data: &[u8], halves: bool, tensor: &mut Tensor) -> Result<()> {
        let dtype = self.view.dtype;
        let len = data.len() / storage(dtype, halves).bytes();
        let mut all = Tensor::zeros(dtype, &[len])?;
        super::memory::to_host(dtype, halves, data, all.bytes_mut());
        let mut buffers = HostBuffers::new();
        let view = View { buffer: buffers.add(&all), ..self.view.clone() };
        let values = reference::read(&buffers, &view)?;
        tensor.bytes_mut().copy_from_slice(values.bytes());
        Ok(())
    }
}

/// The inputs that a plan writes.
fn written(plan: &Plan, inputs: &[GpuBuffer]) -> Vec<GpuBuffer> {
    let mut written: Vec<usize> = Vec::new();
    for view in plan.steps.iter().flat_map(|step| &step.writes) {
        if let Placement::Input(k) = plan.buffers[view.buffer.index()]
            && !written.contains(&k)
        {
            written.push(k);
        }
    }
    written.into_iter().map(|k| inputs[k].clone()).collect()
}

/// The first output, if it is one floating number that the device computes.
fn loss_of(plan: &Plan) -> Option<&View> {
    match plan.outputs.first() {
        Some((_, Output::View(view))) if view.len() == 1 && view.dtype.is_float() && view.dtype != DType::F64 => {
            Some(view)
        }
        _ => None,
    }
}

/// The GPU buffers of a plan, and where its tensors lie in them.
fn place(shared: &Arc<Stream>, plan: &Plan, inputs: &[GpuBuffer]) -> Result<(Slots, Places)> {
    const USE: BufferUsages = BufferUsages::STORAGE.union(BufferUsages::COPY_SRC).union(BufferUsages::COPY_DST);
    let run = shared.alloc(DType::U32, RUN_WORDS)?;
    // The third is replaced when the need of scratch is known.
    let mut list = vec![shared.status.clone(), run.0.raw.clone(), shared.status.clone()];
    fn add(buffer: wgpu::Buffer, halves: bool, list: &mut Vec<wgpu::Buffer>) -> Slot {
        list.push(buffer);
        Slot { index: list.len() as u32 - 1, halves }
    }
    let (mut arenas, mut own) = (Vec::new(), Vec::new());
    for arena in &plan.arenas {
        own.push(shared.buffer("arena", arena.bytes, USE)?);
        arenas.push(add(own[own.len() - 1].clone(), arena.halves, &mut list));
    }
    let half = |dtype: DType| shared.halves && dtype == DType::F16;
    let mut lasting: Vec<Slot> = Vec::new();
    for (i, input) in inputs.iter().enumerate() {
        // One buffer bound to two inputs is one slot: no kernel may see it twice.
        let same = inputs[..i].iter().position(|other| Arc::ptr_eq(&other.0, &input.0));
        lasting.push(same.map_or_else(|| add(input.0.raw.clone(), half(input.0.dtype), &mut list), |at| lasting[at]));
    }
    let mut places = Vec::with_capacity(plan.buffers.len());
    let mut constants: Vec<Constants> = Vec::new();
    for placement in &plan.buffers {
        places.push(match placement {
            Placement::Unused => None,
            Placement::Arena { arena, offset, .. } => {
                Some(Place { slot: arenas[*arena], offset: *offset, lasting: false })
            }
            Placement::Input(k) => {
                let slot = *lasting.get(*k).ok_or_else(|| err!(Plan, "input {k} of the plan is not bound"))?;
                Some(Place { slot, offset: 0, lasting: true })
            }
            Placement::Constant(tensor) => Some(constant(shared, tensor, list.len(), &mut constants)?),
        });
    }
    for constants in constants {
        let buffer = shared.buffer("constants", constants.bytes.len(), USE)?;
        shared.queue.write_buffer(&buffer, 0, &constants.bytes);
        own.push(buffer.clone());
        add(buffer, constants.halves, &mut list);
    }
    Ok((Slots { list, run, own }, Places { places, halves: shared.halves, software: shared.software }))
}

/// Constants that share a GPU buffer.
struct Constants {
    bytes: Vec<u8>,
    halves: bool,
}

/// Adds a constant to the last buffer of its kind, or to a new one. Their slots follow `first`.
fn constant(shared: &Shared, tensor: &Tensor, first: usize, constants: &mut Vec<Constants>) -> Result<Place> {
    let halves = shared.halves && tensor.dtype() == DType::F16;
    let stored = to_device(tensor.dtype(), shared.halves, tensor.bytes());
    let piece = shared.layout().piece;
    if stored.len() > piece {
        return Err(err!(Plan, "a constant of the model does not fit one buffer of the GPU")
            .expected(format!("at most {piece} bytes"))
            .found(stored.len()));
    }
    let fits = |c: &Constants| c.halves == halves && c.bytes.len() + stored.len() <= piece;
    let at = constants.iter().rposition(fits).unwrap_or_else(|| {
        constants.push(Constants { bytes: Vec::new(), halves });
        constants.len() - 1
    });
    let bytes = &mut constants[at].bytes;
    let offset = bytes.len();
    bytes.extend_from_slice(&stored);
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    Ok(Place { slot: Slot { index: (first + at) as u32, halves }, offset, lasting: false })
}

/// One uniform buffer for the parameters of all dispatches, and where those of each begin.
fn pack_params<'a>(
    shared: &Shared,
    dispatches: impl Iterator<Item = &'a Dispatch>,
) -> Result<(wgpu::Buffer, std::vec::IntoIter<u64>)> {
    let align = shared.device.limits().min_uniform_buffer_offset_alignment as usize;
    let (mut bytes, mut offsets) = (Vec::new(), Vec::new());
    for dispatch in dispatches {
        offsets.push(bytes.len() as u64);
        bytes.extend_from_slice(bytemuck::cast_slice(&dispatch.params));
        bytes.resize((bytes.len().max(1)).next_multiple_of(align), 0);
    }
    let buffer = shared.buffer("parameters", bytes.len(), BufferUsages::UNIFORM | BufferUsages::COPY_DST)?;
    if !bytes.is_empty() {
        shared.queue.write_buffer(&buffer, 0, &bytes);
    }
    Ok((buffer, offsets.into_iter()))
}

fn bind<'a>(
    shared: &Shared,
    pipeline: &Pipeline,
    params: &wgpu::Buffer,
    offset: u64,
    dispatch: &Dispatch,
    buffer: impl Fn(Slot) -> &'a wgpu::Buffer,
) -> wgpu::BindGroup {
    let size = (dispatch.params.len().div_ceil(4).max(1) * 16) as u64;
    let params = wgpu::BufferBinding { buffer: params, offset, size: wgpu::BufferSize::new(size) };
    let mut entries = vec![wgpu::BindGroupEntry { binding: 0, resource: wgpu::BindingResource::Buffer(params) }];
    for (i, (slot, _)) in dispatch.slots.iter().enumerate() {
        let resource = buffer(*slot).as_entire_binding();
        entries.push(wgpu::BindGroupEntry { binding: i as u32 + 1, resource });
    }
    count(&shared.made.bind_groups, 1);
    shared.device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.layout,
        entries: &entries,
    })
}

/// A dispatch by itself, ready to be encoded.
pub(super) async fn launch<'a>(
    shared: &Shared,
    dispatch: &Dispatch,
    buffer: impl Fn(Slot) -> &'a wgpu::Buffer,
) -> Result<Launch> {
    let pipeline = shared.pipeline(dispatch).await?;
    let (params, mut offsets) = pack_params(shared, std::iter::once(dispatch))?;
    let offset = offsets.next().expect("one for the dispatch");
    let bind_group = bind(shared, &pipeline, &params, offset, dispatch, buffer);
    Ok(Launch { pipeline, bind_group, groups: dispatch.groups })
}
