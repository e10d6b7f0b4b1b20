//! Tensors on the device: allocation, transfers, and the change between ONNX's bytes and the device's.

use super::device::{Shared, count, lock};
use super::layout::{Place, Places, Slot, Storage, storage};
use super::program::{Launch, launch};
use super::shader::Shader;
use crate::error::{Result, err};
use crate::kernel::{BufferId, View};
use crate::tensor::DType;
use half::{bf16, f16};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::{Poll, Waker};
use wgpu::BufferUsages;

/// A tensor on the GPU. A clone is the same memory.
#[derive(Clone)]
pub struct GpuBuffer(pub(super) Arc<Memory>);

/// A GPU buffer that holds one tensor.
pub(super) struct Memory {
    pub(super) raw: wgpu::Buffer,
    pub(super) dtype: DType,
    pub(super) len: usize,
    /// The last submission whose commands use it.
    used: AtomicU64,
    /// Copies from here to other buffers, ready to be run again.
    copies: Mutex<Vec<(Weak<Memory>, Launch)>>,
}

impl GpuBuffer {
    /// Says that the submission being gathered uses this buffer.
    pub(super) fn touch(&self, shared: &Shared) {
        self.0.used.store(shared.batch(), Ordering::Relaxed);
    }
}

/// Where bytes are read from.
pub(super) struct Source<'a> {
    pub(super) buffer: &'a wgpu::Buffer,
    /// Bytes from its start: a multiple of 4, as the count.
    pub(super) offset: usize,
    pub(super) bytes: usize,
}

impl Shared {
    pub(super) fn alloc(&self, dtype: DType, len: usize) -> Result<GpuBuffer> {
        let bytes = self.layout().bytes(dtype, len);
        let bytes = bytes.ok_or_else(|| err!(Device, "{len} elements of {dtype} cannot be addressed"))?;
        let raw =
            self.buffer("tensor", bytes, BufferUsages::STORAGE | BufferUsages::COPY_SRC | BufferUsages::COPY_DST)?;
        #[allow(clippy::arc_with_non_send_sync, reason = "as in device.rs")]
        Ok(GpuBuffer(Arc::new(Memory { raw, dtype, len, used: AtomicU64::new(0), copies: Mutex::default() })))
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
        const STATUS: usize = 16;
        let total = STATUS + sources.iter().map(|s| s.bytes).sum::<usize>();
        let kept = lock(&self.readback).take().filter(|b| b.size() >= total as u64);
        let readback = match kept {
            Some(buffer) => buffer,
            None => {
                count(&self.made.buffers, 1);
                self.device.create_buffer(&wgpu::BufferDescriptor {
                    label: Some("readback"),
                    size: (total as u64).next_power_of_two(),
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

/// ONNX's bytes of elements as the device stores them.
pub(super) fn to_device(dtype: DType, halves: bool, bytes: &[u8]) -> Cow<'_, [u8]> {
    let words = |words: Vec<u32>| Cow::Owned(bytemuck::cast_slice(&words).to_vec());
    let pairs = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match (dtype, storage(dtype, halves)) {
        (_, Storage::Half) if !bytes.len().is_multiple_of(4) => {
            let mut padded = bytes.to_vec();
            padded.resize(bytes.len().next_multiple_of(4), 0);
            Cow::Owned(padded)
        }
        (_, Storage::Half | Storage::Pair) | (DType::F32 | DType::I32 | DType::U32, _) => Cow::Borrowed(bytes),
        (DType::I8, _) => words(bytes.iter().map(|&b| b as i8 as i32 as u32).collect()),
        (DType::U16, _) => words(pairs().map(u32::from).collect()),
        (DType::I16, _) => words(pairs().map(|b| b as i16 as i32 as u32).collect()),
        (DType::F16, _) => words(pairs().map(|b| f16::from_bits(b).to_f32().to_bits()).collect()),
        (DType::BF16, _) => words(pairs().map(|b| bf16::from_bits(b).to_f32().to_bits()).collect()),
        // U8, Bool; the others have been met.
        _ => words(bytes.iter().map(|&b| b.into()).collect()),
    }
}

/// The way back; `stored` holds as many elements as `bytes`.
pub(super) fn to_host(dtype: DType, halves: bool, stored: &[u8], bytes: &mut [u8]) {
    let words = || stored.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]]));
    let put = |bytes: &mut [u8], values: &mut dyn Iterator<Item = u16>| {
        bytes.chunks_exact_mut(2).zip(values).for_each(|(to, v)| to.copy_from_slice(&v.to_le_bytes()));
    };
    match (dtype, storage(dtype, halves)) {
        (_, Storage::Half | Storage::Pair) | (DType::F32 | DType::I32 | DType::U32, _) => bytes.copy_from_slice(stored),
        (DType::U16 | DType::I16, _) => put(bytes, &mut words().map(|w| w as u16)),
        (DType::F16, _) => put(bytes, &mut words().map(|w| f16::from_f32(f32::from_bits(w)).to_bits())),
        (DType::BF16, _) => put(bytes, &mut words().map(|w| bf16::from_f32(f32::from_bits(w)).to_bits())),
        // U8, I8, Bool; the others have been met.
        _ => bytes.iter_mut().zip(words()).for_each(|(to, w)| *to = w as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Tensor;

    #[test]
    fn there_and_back() {
        for dtype in DType::ALL {
            for halves in [false, true] {
                for len in [0, 1, 3, 8] {
                    let values: Vec<f64> =
                        (0..len).map(|i| if dtype == DType::Bool { (i % 2) as f64 } else { i as f64 }).collect();
                    let tensor = Tensor::from_f64s(dtype, &[len], &values).unwrap();
                    let stored = to_device(dtype, halves, tensor.bytes());
                    assert!(stored.len().is_multiple_of(4), "{dtype}: copies want multiples of 4");
                    let mut back = vec![0; tensor.bytes().len()];
                    let size = storage(dtype, halves).bytes();
                    to_host(dtype, halves, &stored[..len * size], &mut back);
                    assert_eq!(back, tensor.bytes(), "{dtype} {halves} {len}");
                }
            }
        }
    }

    #[test]
    fn negative_small_integers_keep_their_sign() {
        let stored = to_device(DType::I8, false, &[0xFF]);
        assert_eq!(&*stored, &(-1i32).to_le_bytes());
        let int = (-2i16).to_le_bytes();
        let stored = to_device(DType::I16, false, &int);
        assert_eq!(&*stored, &(-2i32).to_le_bytes());
    }
}
