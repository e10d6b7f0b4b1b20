//! Steps that the GPU cannot compute (float64): they run on the host through the reference kernels. Where the host knows all
//! that they read (an optimizer's learning rate and step), nothing waits; else they run between two submissions.

use super::layout::{Place, Places, Slot, storage};
use super::memory::{GpuBuffer, to_device, to_host};
use super::stream::{Source, Stream};
use crate::error::{Result, err};
use crate::kernel::reference::{self, HostBuffers};
use crate::kernel::{BufferId, Buffers, RunContext, Step, View};
use crate::plan::{Placement, Plan};
use crate::tensor::{DType, Tensor};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A step for the host, on copies of its buffers.
pub(super) struct HostStep {
    step: Step,
    /// The buffers that it touches; their positions are the ids in `step`.
    buffers: Vec<HostBuffer>,
}

struct HostBuffer {
    place: Place,
    dtype: DType,
    len: usize,
    origin: Origin,
    /// Does the step see what was there before?
    read: bool,
    written: bool,
}

/// Where a buffer's bytes may be known without asking the device.
enum Origin {
    Arena,
    Input(GpuBuffer),
    Constant(Arc<Tensor>),
}

impl HostBuffer {
    /// Bytes on the device.
    fn stored(&self, stream: &Stream) -> usize {
        (storage(self.dtype, stream.halves).bytes() * self.len).next_multiple_of(4)
    }

    /// The elements, if the host knows them.
    fn known(&self) -> Option<Result<Tensor>> {
        let lasting = self.written && self.place.lasting; // may be written only if no check has failed
        match &self.origin {
            _ if lasting => None,
            Origin::Constant(tensor) => Some(Tensor::from_bytes(self.dtype, &[self.len], tensor.bytes())),
            Origin::Input(buffer) if self.read => {
                buffer.0.known().map(|bytes| Tensor::from_bytes(self.dtype, &[self.len], &bytes))
            }
            _ if self.read => None,
            _ => Some(Tensor::zeros(self.dtype, &[self.len])),
        }
    }
}

impl HostStep {
    pub(super) fn new(step: &Step, halves: bool, plan: &Plan, inputs: &[GpuBuffer], places: &Places) -> Result<Self> {
        let (mut step, mut buffers, mut ids) = (step.clone(), Vec::new(), Vec::<BufferId>::new());
        let from = step.from.clone();
        let mut localize = |view: &mut View, write: bool| -> Result<()> {
            let at = match ids.iter().position(|id| *id == view.buffer) {
                Some(at) => at,
                None => {
                    let size = storage(view.dtype, halves).bytes();
                    let (origin, len) = match &plan.buffers[view.buffer.index()] {
                        Placement::Arena { bytes, .. } => (Origin::Arena, bytes / size),
                        Placement::Input(k) => (Origin::Input(inputs[*k].clone()), inputs[*k].0.len),
                        Placement::Constant(tensor) => (Origin::Constant(tensor.clone()), tensor.len()),
                        Placement::Unused => return Err(err!(Plan, "a step uses a buffer without a place").at(&*from)),
                    };
                    ids.push(view.buffer);
                    let (place, dtype) = (places.of(view.buffer), view.dtype);
                    buffers.push(HostBuffer { place, dtype, len, origin, read: false, written: false });
                    buffers.len() - 1
                }
            };
            let buffer = &mut buffers[at];
            buffer.written |= write;
            // What a write leaves of the buffer must be known to be given back.
            buffer.read |= !write || !view.is_contiguous() || view.len() != buffer.len;
            view.buffer = BufferId(at as u32);
            Ok(())
        };
        step.reads.iter_mut().try_for_each(|view| localize(view, false))?;
        step.writes.iter_mut().try_for_each(|view| localize(view, true))?;
        Ok(Self { step, buffers })
    }

    /// Computes, after waiting for the device if need be, and hands the results to it. `used` is the last submission whose
    /// commands use the program's memory.
    pub(super) async fn run<'a>(
        &self,
        stream: &Stream,
        buffer: impl Fn(Slot) -> &'a wgpu::Buffer,
        used: u64,
        cx: &RunContext,
    ) -> Result<()> {
        let mut host = HostBuffers::new();
        match self.buffers.iter().map(HostBuffer::known).collect::<Option<Result<Vec<Tensor>>>>() {
            Some(known) => known?.iter().for_each(|tensor| {
                host.add(tensor);
            }),
            None => self.fetch(stream, &buffer, &mut host).await?,
        }
        reference::run(&self.step, &mut host, cx)?;
        // Writes go to the queue at once: commands that were asked for before must be there already.
        if used == stream.batch() {
            stream.submit();
        }
        for (i, b) in self.buffers.iter().enumerate().filter(|(_, b)| b.written) {
            if let Origin::Input(input) = &b.origin {
                input.0.forget();
                if input.0.used.load(Ordering::Relaxed) == stream.batch() {
                    stream.submit();
                }
            }
            let stored = to_device(b.dtype, stream.halves, host.bytes(BufferId(i as u32)));
            if !stored.is_empty() {
                stream.queue.write_buffer(buffer(b.place.slot), b.place.offset as u64, &stored);
            }
        }
        Ok(())
    }

    /// Copies of the buffers, from the device.
    async fn fetch<'a>(
        &self,
        stream: &Stream,
        buffer: &impl Fn(Slot) -> &'a wgpu::Buffer,
        host: &mut HostBuffers,
    ) -> Result<()> {
        let source =
            |b: &HostBuffer| Source { buffer: buffer(b.place.slot), offset: b.place.offset, bytes: b.stored(stream) };
        let sources: Vec<Source<'_>> = self.buffers.iter().map(source).collect();
        let mut filled = Ok(());
        let fill = |mut data: &[u8]| {
            for b in &self.buffers {
                let (own, rest) = data.split_at(b.stored(stream));
                data = rest;
                match Tensor::zeros(b.dtype, &[b.len]) {
                    Ok(mut tensor) => {
                        let size = storage(b.dtype, stream.halves).bytes();
                        to_host(b.dtype, stream.halves, &own[..size * b.len], tensor.bytes_mut());
                        host.add(&tensor);
                    }
                    Err(e) => filled = Err(e),
                }
            }
        };
        stream.fetch(&sources, fill).await?;
        filled
    }
}
