//! A stream of commands: what is asked for gathers here until somebody waits for a result or lets the device begin. Uploads,
//! copies and reads keep their place in it, and so does the record of checks that fail.

use super::device::{Shared, count, lock};
use super::layout::{Place, Places, Slot, Storage, storage};
use super::memory::{GpuBuffer, Memory, to_device, to_host};
use super::program::{Launch, launch};
use super::shader::Shader;
use crate::error::{Error, Result, err};
use crate::kernel::{BufferId, View};
use crate::tensor::DType;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use wgpu::BufferUsages;

/// Bytes of the status words.
const STATUS: usize = 16;

/// Commands on their way to a device.
pub(super) struct Stream {
    pub(super) shared: Arc<Shared>,
    /// See `Slot::STATUS`.
    pub(super) status: wgpu::Buffer,
    pending: Mutex<Option<wgpu::CommandEncoder>>,
    /// The number of the submission that is being gathered; no other submission of the device has it.
    batch: AtomicU64,
    /// Failed checks that have been reported.
    failures: AtomicU64,
}

impl Deref for Stream {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

/// Where bytes are read from.
pub(super) struct Source<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    /// Bytes from its start: a multiple of 4, as the count.
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.submit();
        self.status.destroy();
    }
}

impl Stream {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let status = shared.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("status"),
            size: STATUS as u64,
            usage: BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        count(&shared.made.buffers, 1);
        let batch = AtomicU64::new(shared.next_batch());
        Self { shared, status, pending: Mutex::default(), batch, failures: AtomicU64::new(0) }
    }

    /// How many failed checks have been reported.
    pub(super) fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// The number of the submission that commands are gathered for.
    pub(super) fn batch(&self) -> u64 {
        self.batch.load(Ordering::Relaxed)
    }

    /// Adds commands to the next submission.
    pub(super) fn record(&self, commands: impl FnOnce(&mut wgpu::CommandEncoder)) {
        let mut pending = lock(&self.pending);
        commands(pending.get_or_insert_with(|| self.device.create_command_encoder(&Default::default())));
    }

    /// Submits what has been gathered.
    pub(super) fn submit(&self) {
        // Held to the end: what another thread gathers next is submitted after this.
        let mut pending = lock(&self.pending);
        if let Some(encoder) = pending.take() {
            self.queue.submit([encoder.finish()]);
            self.batch.store(self.next_batch(), Ordering::Relaxed);
            count(&self.made.submissions, 1);
        }
    }

    /// The error of the check that failed first, if one has. It is reported once: the stream goes on after that.
    fn verdict(&self, status: [u32; 4]) -> Result<()> {
        let failure: Option<Error> = lock(&self.checks).failure(status);
        match failure {
            None => Ok(()),
            Some(error) => {
                self.submit(); // what came after the failure still sees it
                self.queue.write_buffer(&self.status, 0, &[0; STATUS]);
                self.failures.fetch_add(1, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    pub(super) fn alloc(self: &Arc<Self>, dtype: DType, len: usize) -> Result<GpuBuffer> {
        let bytes = self.layout().bytes(dtype, len);
        let bytes = bytes.ok_or_else(|| err!(Device, "{len} elements of {dtype} cannot be addressed"))?;
        let usage = BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST;
        let raw = self.buffer("tensor", bytes, usage)?;
        #[allow(clippy::arc_with_non_send_sync, reason = "as in device.rs")]
        let memory = Arc::new(Memory {
            raw,
            stream: Arc::downgrade(self),
            dtype,
            len,
            used: AtomicU64::new(0),
            copies: Mutex::default(),
            known: Mutex::default(),
        });
        Ok(GpuBuffer(memory))
    }

    pub(super) fn upload(&self, buffer: &GpuBuffer, bytes: &[u8]) -> Result<()> {
        self.check()?;
        let memory = &*buffer.0;
        let wanted = memory.len * memory.dtype.size();
        if bytes.len() != wanted {
            return Err(err!(Device, "a transfer does not fill its buffer").expected(wanted).found(bytes.len()));
        }
        // Writes go to the queue at once: commands that were asked for before must be there already.
        if memory.used.load(Ordering::Relaxed) == self.batch() {
            self.submit();
        }
        let stored = to_device(memory.dtype, self.halves, bytes);
        if !stored.is_empty() {
            self.queue.write_buffer(&memory.raw, 0, &stored);
        }
        memory.remember(bytes);
        Ok(())
    }

    /// Copies a tensor; like all that outlives a run, only while no check has failed.
    pub(super) async fn copy(&self, from: &GpuBuffer, to: &GpuBuffer) -> Result<()> {
        self.check()?;
        let (source, target) = (&from.0, &to.0);
        if (source.dtype, source.len) != (target.dtype, target.len) {
            return Err(err!(Device, "a copy between buffers of different kinds")
                .expected(format!("{} of {}", target.len, target.dtype))
                .found(format!("{} of {}", source.len, source.dtype)));
        }
        let is_target = |(other, _): &(Weak<Memory>, Launch)| std::ptr::eq(other.as_ptr(), Arc::as_ptr(target));
        if !lock(&source.copies).iter().any(is_target) {
            let launch = self.copy_launch(source, target).await?;
            let mut copies = lock(&source.copies);
            copies.retain(|(other, _)| other.strong_count() > 0);
            copies.push((Arc::downgrade(target), launch));
        }
        if let Some((_, launch)) = lock(&source.copies).iter().find(|c| is_target(c)) {
            self.record(|encoder| launch.encode(&mut encoder.begin_compute_pass(&Default::default())));
        }
        from.touch(self);
        to.touch(self);
        to.0.forget();
        count(&self.made.dispatches, 1);
        Ok(())
    }

    async fn copy_launch(&self, source: &Memory, target: &Memory) -> Result<Launch> {
        let slot = |index| Slot { index, halves: storage(source.dtype, self.halves) == Storage::Half };
        let place = |index, lasting| Some(Place { slot: slot(index), offset: 0, lasting });
        let places =
            Places { places: vec![place(1, false), place(2, true)], halves: self.halves, software: self.software };
        let view = |id| View::contiguous(BufferId(id), source.dtype, &[source.len]);
        let mut shader = Shader::new(&places);
        let (read, write) = (shader.reads(&view(0)), shader.writes(&view(1)));
        shader.line(write.moves("i", &read, "i"));
        let dispatch = shader.launch_threads(source.len);
        let buffer = |slot: Slot| match slot.index {
            0 => &self.status,
            1 => &source.raw,
            _ => &target.raw,
        };
        launch(self, &dispatch, buffer).await
    }

    pub(super) async fn download(&self, buffer: &GpuBuffer, bytes: &mut [u8]) -> Result<()> {
        let memory = &*buffer.0;
        let wanted = memory.len * memory.dtype.size();
        if bytes.len() != wanted {
            return Err(err!(Device, "a transfer does not fill its buffer").expected(wanted).found(bytes.len()));
        }
        let stored = storage(memory.dtype, self.halves).bytes() * memory.len;
        let source = Source { buffer: &memory.raw, offset: 0, bytes: stored.next_multiple_of(4) };
        self.fetch(&[source], |data| to_host(memory.dtype, self.halves, &data[..stored], bytes)).await
    }

    /// Submits what has been asked for, waits for it, and hands over the bytes of `sources`, one after the other. Fails with
    /// the error of a check that has failed.
    pub(super) async fn fetch(&self, sources: &[Source<'_>], take: impl FnOnce(&[u8])) -> Result<()> {
        self.check()?;
        let total = STATUS + sources.iter().map(|s| s.bytes).sum::<usize>();
        let kept = lock(&self.readback).take().filter(|b| b.size() >= total as u64);
        let readback = match kept {
            Some(buffer) => buffer,
            None => {
                count(&self.made.buffers, 1);
                self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("readback"),
                    size: (total as u64).next_multiple_of(256),
                    usage: BufferUsages::MAP_READ | BufferUsages::COPY_DST,
                    mapped_at_creation: false,
                })
            }
        };
        self.record(|encoder| {
            encoder.copy_buffer_to_buffer(&self.status, 0, &readback, 0, STATUS as u64);
            let mut at = STATUS as u64;
            for source in sources.iter().filter(|s| s.bytes > 0) {
                encoder.copy_buffer_to_buffer(source.buffer, source.offset as u64, &readback, at, source.bytes as u64);
                at += source.bytes as u64;
            }
        });
        self.submit();
        count(&self.made.maps, 1);
        self.map(&readback, total).await?;
        let status = {
            let data = readback
                .get_mapped_range(..total as u64)
                .map_err(|e| err!(Device, "the GPU's memory cannot be read: {e}"))?;
            let words: [u32; 4] = std::array::from_fn(|i| {
                u32::from_le_bytes([data[4 * i], data[4 * i + 1], data[4 * i + 2], data[4 * i + 3]])
            });
            take(&data[STATUS..]);
            words
        };
        readback.unmap();
        *lock(&self.readback) = Some(readback);
        self.verdict(status)
    }

    /// Waits until a buffer can be read.
    async fn map(&self, buffer: &wgpu::Buffer, bytes: usize) -> Result<()> {
        type Answer = (Option<std::result::Result<(), wgpu::BufferAsyncError>>, Option<Waker>);
        let answer: Arc<Mutex<Answer>> = Arc::default();
        let said = answer.clone();
        buffer.map_async(wgpu::MapMode::Read, ..bytes as u64, move |result| {
            let mut answer = lock(&said);
            answer.0 = Some(result);
            if let Some(waker) = answer.1.take() {
                waker.wake();
            }
        });
        // Natively this waits (for another thread, too, that may be about to call back); a browser calls back later.
        let polled = loop {
            let polled = self.device.poll(wgpu::PollType::wait_indefinitely());
            if cfg!(target_arch = "wasm32") || polled.is_err() || lock(&answer).0.is_some() {
                break polled;
            }
            std::thread::yield_now();
        };
        let result = std::future::poll_fn(|cx| {
            let mut answer = lock(&answer);
            if let Some(result) = answer.0.take() {
                return Poll::Ready(result);
            }
            answer.1 = Some(cx.waker().clone());
            Poll::Pending
        });
        let result = match polled {
            Ok(_) => result.await,
            Err(_) => Err(wgpu::BufferAsyncError),
        };
        self.check()?;
        result.map_err(|e| err!(Device, "the GPU does not answer: {e}"))
    }
}
