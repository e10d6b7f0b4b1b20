//! How a device keeps tensors, as far as planning must know it.

use crate::tensor::DType;

/// What a device's memory is like.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    /// Bytes of one element of a dtype.
    pub size: fn(DType) -> usize,
    /// The most bytes that one piece of memory holds: an arena, and so a tensor.
    pub piece: usize,
    /// Do float16 tensors lie in memory of their own?
    pub halves_apart: bool,
}

impl Layout {
    /// Host memory: elements as ONNX has them, one piece as large as can be addressed.
    pub const HOST: Layout = Layout { size: DType::size, piece: isize::MAX as usize, halves_apart: false };

    /// Bytes of a tensor of `len` elements; `None` if that cannot be addressed.
    pub fn bytes(&self, dtype: DType, len: usize) -> Option<usize> {
        len.checked_mul((self.size)(dtype)).filter(|&bytes| bytes <= isize::MAX as usize)
    }

    /// Which kind of memory a dtype lies in, by number.
    pub(super) fn kind(&self, dtype: DType) -> usize {
        (self.halves_apart && dtype == DType::F16) as usize
    }

    /// How many kinds there are.
    pub(super) fn kinds(&self) -> usize {
        1 + self.halves_apart as usize
    }
}
