//! Dtypes, shapes and owned tensors. Everything to the right of this folder speaks in these.

mod dtype;
mod shape;

pub use dtype::{DType, Element};
pub use shape::{Dim, checked_len, contiguous_strides, known_shape, show_dims};

use crate::error::{Result, bail, err};
use half::{bf16, f16};

/// Bytes aligned to 16, so that they may be seen as elements of any dtype.
#[derive(Clone, Default)]
pub struct AlignedBytes {
    words: Vec<u128>,
    len: usize,
}

impl AlignedBytes {
    /// `len` zero bytes.
    pub fn zeroed(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(16)], len }
    }

    /// `len` zero bytes, or `None` if there is no memory for them.
    pub fn try_zeroed(len: usize) -> Option<Self> {
        let mut words = Vec::new();
        words.try_reserve_exact(len.div_ceil(16)).ok()?;
        words.resize(len.div_ceil(16), 0);
        Some(Self { words, len })
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut new = Self::zeroed(bytes.len());
        new.as_bytes_mut().copy_from_slice(bytes);
        new
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.len]
    }

    /// The bytes, to write.
    pub fn as_bytes_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.len]
    }
}

/// An owned, contiguous, row-major tensor on the host. `Bool` elements are bytes 0 or 1.
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Vec<usize>,
    data: AlignedBytes,
}

impl Tensor {
    /// A tensor of zeros. Fails if the size overflows.
    pub fn zeros(dtype: DType, shape: &[usize]) -> Result<Self> {
        let Some(len) = checked_len(shape) else {
            bail!(Shape, "a tensor of shape {} is too large to hold", show_dims(shape));
        };
        Ok(Self { dtype, shape: shape.to_vec(), data: AlignedBytes::zeroed(len * dtype.size()) })
    }

    /// A tensor from elements in row-major order. Fails unless `values` fills `shape` exactly.
    pub fn new<T: Element>(shape: &[usize], values: &[T]) -> Result<Self> {
        Self::from_bytes(T::DTYPE, shape, bytemuck::cast_slice(values))
    }

    /// A bool tensor.
    pub fn from_bools(shape: &[usize], values: &[bool]) -> Result<Self> {
        let bytes: Vec<u8> = values.iter().map(|&b| b as u8).collect();
        Self::from_bytes(DType::Bool, shape, &bytes)
    }

    /// A tensor from little-endian bytes. Fails unless they fill `shape` exactly.
    pub fn from_bytes(dtype: DType, shape: &[usize], bytes: &[u8]) -> Result<Self> {
        let want = checked_len(shape).and_then(|n| n.checked_mul(dtype.size()));
        if want != Some(bytes.len()) {
            let want = want.map_or("a size that fits memory".into(), |n| format!("{n} bytes"));
            return Err(err!(Shape, "data does not fill a {dtype} tensor of {}", show_dims(shape))
                .expected(want)
                .found(format!("{} bytes", bytes.len())));
        }
        Ok(Self { dtype, shape: shape.to_vec(), data: AlignedBytes::copy_of(bytes) })
    }

    /// A rank-0 tensor.
    pub fn scalar<T: Element>(value: T) -> Self {
        let data = AlignedBytes::copy_of(bytemuck::bytes_of(&value));
        Self { dtype: T::DTYPE, shape: Vec::new(), data }
    }

    /// A rank-1 tensor of `int64`, the dtype of ONNX's shapes and axes.
    pub fn ints(values: &[i64]) -> Self {
        let data = AlignedBytes::copy_of(bytemuck::cast_slice(values));
        Self { dtype: DType::I64, shape: vec![values.len()], data }
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.data.len / self.dtype.size()
    }

    /// Has it no elements?
    pub fn is_empty(&self) -> bool {
        self.data.len == 0
    }

    /// The bytes, little-endian, row-major.
    pub fn bytes(&self) -> &[u8] {
        self.data.as_bytes()
    }

    /// The bytes, to write. Bool elements must stay 0 or 1.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.data.as_bytes_mut()
    }

    /// The elements, if they are of type `T` (`u8` also reads `Bool`).
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        let same = T::DTYPE == self.dtype || (T::DTYPE == DType::U8 && self.dtype == DType::Bool);
        same.then(|| bytemuck::cast_slice(self.bytes()))
    }

    /// The elements, if they are of type `T`, to write.
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        (T::DTYPE == self.dtype).then(|| bytemuck::cast_slice_mut(self.data.as_bytes_mut()))
    }

    /// The same elements under another shape of as many elements.
    pub fn reshaped(mut self, shape: &[usize]) -> Result<Self> {
        if checked_len(shape) != Some(self.len()) {
            return Err(err!(Shape, "cannot reshape").expected(show_dims(shape)).found(show_dims(&self.shape)));
        }
        self.shape = shape.to_vec();
        Ok(self)
    }

    /// All elements as `f64` (exact for every dtype but large 64-bit integers).
    pub fn to_f64s(&self) -> Vec<f64> {
        macro_rules! map {
            ($t:ty, $f:expr) => {
                bytemuck::cast_slice::<u8, $t>(self.bytes()).iter().map($f).collect()
            };
        }
        match self.dtype {
            DType::F32 => map!(f32, |&x| x as f64),
            DType::F64 => map!(f64, |&x| x),
            DType::F16 => map!(f16, |x| x.to_f64()),
            DType::BF16 => map!(bf16, |x| x.to_f64()),
            DType::U8 | DType::Bool => map!(u8, |&x| x as f64),
            DType::I8 => map!(i8, |&x| x as f64),
            DType::U16 => map!(u16, |&x| x as f64),
            DType::I16 => map!(i16, |&x| x as f64),
            DType::I32 => map!(i32, |&x| x as f64),
            DType::U32 => map!(u32, |&x| x as f64),
            DType::I64 => map!(i64, |&x| x as f64),
            DType::U64 => map!(u64, |&x| x as f64),
        }
    }

    /// All elements as `i64`, for integer and bool tensors (`u64` above `i64::MAX` wraps).
    pub fn to_i64s(&self) -> Option<Vec<i64>> {
        macro_rules! map {
            ($t:ty) => {
                bytemuck::cast_slice::<u8, $t>(self.bytes()).iter().map(|&x| x as i64).collect()
            };
        }
        Some(match self.dtype {
            DType::U8 | DType::Bool => map!(u8),
            DType::I8 => map!(i8),
            DType::U16 => map!(u16),
            DType::I16 => map!(i16),
            DType::I32 => map!(i32),
            DType::U32 => map!(u32),
            DType::I64 => map!(i64),
            DType::U64 => map!(u64),
            DType::F32 | DType::F64 | DType::F16 | DType::BF16 => return None,
        })
    }

    /// A tensor of `dtype` from `f64` values: rounded for floats, truncated and saturated for
    /// integers, `!= 0` for bool.
    pub fn from_f64s(dtype: DType, shape: &[usize], values: &[f64]) -> Result<Self> {
        macro_rules! map {
            ($f:expr) => {
                Self::from_bytes(dtype, shape, bytemuck::cast_slice(&values.iter().map($f).collect::<Vec<_>>()))
            };
        }
        match dtype {
            DType::F32 => map!(|&x| x as f32),
            DType::F64 => map!(|&x| x),
            DType::F16 => map!(|&x| f16::from_f64(x)),
            DType::BF16 => map!(|&x| bf16::from_f64(x)),
            DType::Bool => map!(|&x| (x != 0.0) as u8),
            DType::U8 => map!(|&x| x as u8),
            DType::I8 => map!(|&x| x as i8),
            DType::U16 => map!(|&x| x as u16),
            DType::I16 => map!(|&x| x as i16),
            DType::I32 => map!(|&x| x as i32),
            DType::U32 => map!(|&x| x as u32),
            DType::I64 => map!(|&x| x as i64),
            DType::U64 => map!(|&x| x as u64),
        }
    }
}

/// Same dtype, shape and bits.
impl PartialEq for Tensor {
    fn eq(&self, other: &Self) -> bool {
        self.dtype == other.dtype && self.shape == other.shape && self.bytes() == other.bytes()
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}{}", self.dtype, show_dims(&self.shape))?;
        if self.len() <= 16 { write!(f, " {:?}", self.to_f64s()) } else { Ok(()) }
    }
}
