//! Steps that the GPU cannot compute (float64): they run on the host through the reference kernels, between two submissions.

use super::device::Shared;
use super::layout::{Place, Places, Slot, storage};
use super::memory::{Source, to_device, to_host};
use crate::error::{Result, err};
use crate::kernel::reference::{self, HostBuffers};
use crate::kernel::{BufferId, Buffers, RunContext, Step, View};
use crate::plan::{Placement, Plan};
use crate::tensor::{DType, Tensor};

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
    written: bool,
}

impl HostStep {
    pub(super) fn new(step: &Step, shared: &Shared, plan: &Plan, places: &Places) -> Result<Self> {
        let (mut step, mut buffers, mut ids) = (step.clone(), Vec::new(), Vec::<BufferId>::new());
        let from = step.from.clone();
        let mut localize = |view: &mut View, written: bool| -> Result<()> {
            let at = match ids.iter().position(|id| *id == view.buffer) {
                Some(at) => at,
                None => {
                    let size = storage(view.dtype, shared.halves).bytes();
                    let len = match &plan.buffers[view.buffer.index()] {
                        Placement::Arena { bytes, .. } => bytes / size,
                        Placement::Input(k) => plan.inputs[*k].shape.iter().product(),
                        Placement::Constant(tensor) => tensor.len(),
                        Placement::Unused => return Err(err!(Plan, "a step uses a buffer without a place").at(&*from)),
                    };
                    ids.push(view.buffer);
                    buffers.push(HostBuffer { place: places.of(view.buffer), dtype: view.dtype, len, written: false });
                    buffers.len() - 1
                }
            };
            buffers[at].written |= written;
            view.buffer = BufferId(at as u32);
            Ok(())
        };
        step.reads.iter_mut().try_for_each(|view| localize(view, false))?;
        step.writes.iter_mut().try_for_each(|view| localize(view, true))?;
        Ok(Self { step, buffers })
    }

    /// Waits for the device, computes, and hands the results back to it.
    pub(super) async fn run<'a>(
        &self,
        shared: &Shared,
        buffer: impl Fn(Slot) -> &'a wgpu::Buffer,
        cx: &RunContext,
    ) -> Result<()> {
        let halves = shared.halves;
        let bytes = |b: &HostBuffer| b.len * storage(b.dtype, halves).bytes();
        let source = |b: &HostBuffer| Source {
            buffer: buffer(b.place.slot),
            offset: b.place.offset,
            bytes: bytes(b).next_multiple_of(4),
        };
        let sources: Vec<Source<'_>> = self.buffers.iter().map(source).collect();
        let mut host = HostBuffers::new();
        let mut filled = Ok(());
        shared
            .fetch(&sources, |mut data| {
                for b in &self.buffers {
                    let (own, rest) = data.split_at(bytes(b).next_multiple_of(4));
                    data = rest;
                    match Tensor::zeros(b.dtype, &[b.len]) {
                        Ok(mut tensor) => {
                            to_host(b.dtype, halves, &own[..bytes(b)], tensor.bytes_mut());
                            host.add(&tensor);
                        }
                        Err(e) => filled = Err(e),
                    }
                }
            })
            .await?;
        filled?;
        reference::run(&self.step, &mut host, cx)?;
        for (i, b) in self.buffers.iter().enumerate().filter(|(_, b)| b.written) {
            let stored = to_device(b.dtype, halves, host.bytes(BufferId(i as u32)));
            if !stored.is_empty() {
                shared.queue.write_buffer(buffer(b.place.slot), b.place.offset as u64, &stored);
            }
        }
        Ok(())
    }
}
