//! What the tests of these kernels share.

use super::super::memory::Memory;
use crate::kernel::reference::HostBuffers;
use crate::kernel::{BufferId, Buffers, RunContext, philox};
use crate::tensor::{DType, Tensor};

/// Deterministic numbers in 0..1.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn unit(&mut self) -> f64 {
        self.0 += 1;
        philox::uniform(&RunContext { seed: 99, step: 0 }, 0, self.0) as f64
    }
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.unit() * n as f64) as usize
    }
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
    pub(crate) fn tensor(&mut self, dtype: DType, shape: &[usize]) -> Tensor {
        let len = shape.iter().product();
        let scale = if dtype.is_float() { 4.0 } else { 7.0 };
        let values: Vec<f64> = (0..len).map(|_| (self.unit() - 0.4) * scale).collect();
        Tensor::from_f64s(dtype, shape, &values).unwrap()
    }
}

/// A memory table over host buffers.
pub(crate) fn memory(buffers: &mut HostBuffers) -> Memory {
    let mut memory = Memory::new(buffers.0.len());
    for i in 0..buffers.0.len() {
        let id = BufferId(i as u32);
        let bytes = buffers.bytes_mut(id);
        // Safety: the buffers outlive the table in these tests.
        unsafe { memory.bind(id, bytes.as_mut_ptr(), bytes.len()) };
    }
    memory
}

/// Are two results equal up to `tolerance`, relative and absolute?
pub(crate) fn close(got: &Tensor, want: &Tensor, tolerance: f64) -> Result<(), String> {
    for (i, (g, w)) in got.to_f64s().into_iter().zip(want.to_f64s()).enumerate() {
        let same = g == w || (g.is_nan() && w.is_nan()) || (g - w).abs() <= tolerance * (1.0 + w.abs());
        if !same {
            return Err(format!("element {i} is {g}, not {w}"));
        }
    }
    Ok(())
}
