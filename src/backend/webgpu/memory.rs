//! Tensors on the device: allocation, and the change between ONNX's bytes and the device's.

use super::device::lock;
use super::layout::{Storage, storage};
use super::program::Launch;
use super::stream::Stream;
use crate::tensor::DType;
use half::{bf16, f16};
use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// A tensor on the GPU. A clone is the same memory.
#[derive(Clone)]
pub struct GpuBuffer(pub(super) Arc<Memory>);

/// A GPU buffer that holds one tensor.
pub(super) struct Memory {
    pub(super) raw: wgpu::Buffer,
    /// The stream whose commands use it.
    pub(super) stream: Weak<Stream>,
    pub(super) dtype: DType,
    pub(super) len: usize,
    /// The last submission whose commands use it.
    pub(super) used: AtomicU64,
    /// Copies from here to other buffers, ready to be run again.
    pub(super) copies: Mutex<Vec<(Weak<Memory>, Launch)>>,
    /// What a small tensor holds, as long as the host was the last to write it: a step on the host need not wait for the
    /// device then.
    pub(super) known: Mutex<Known>,
}

#[derive(Default)]
pub(super) struct Known {
    bytes: Vec<u8>,
    valid: bool,
}

/// Tensors of more bytes are not remembered.
const REMEMBERED: usize = 64;

impl Memory {
    /// The host has written `bytes`.
    pub(super) fn remember(&self, bytes: &[u8]) {
        if bytes.len() <= REMEMBERED {
            let mut known = lock(&self.known);
            known.bytes.clear();
            known.bytes.extend_from_slice(bytes);
            known.valid = true;
        }
    }

    /// The device writes it.
    pub(super) fn forget(&self) {
        lock(&self.known).valid = false;
    }

    /// Its bytes, as ONNX has them, if they are known.
    pub(super) fn known(&self) -> Option<Vec<u8>> {
        let known = lock(&self.known);
        known.valid.then(|| known.bytes.clone())
    }
}

impl GpuBuffer {
    /// Says that the submission being gathered uses this buffer.
    pub(super) fn touch(&self, stream: &Stream) {
        self.0.used.store(stream.batch(), Ordering::Relaxed);
    }
}

impl Drop for Memory {
    /// Browsers free a buffer when their garbage collector gets to it, which may be too late: so it is destroyed here, after
    /// commands that use it are on their way.
    fn drop(&mut self) {
        if let Some(stream) = self.stream.upgrade()
            && self.used.load(Ordering::Relaxed) == stream.batch()
        {
            stream.submit();
        }
        self.raw.destroy();
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
