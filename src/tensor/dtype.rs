//! Element types, by ONNX's names and numbers.

use crate::error::{Result, err};

/// The element types that ontrain computes with or carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub enum DType {
    F32,
    U8,
    I8,
    U16,
    I16,
    I32,
    I64,
    Bool,
    F16,
    F64,
    U32,
    U64,
    BF16,
}

use DType::*;

impl DType {
    /// Every dtype, in the order of ONNX's numbers.
    pub const ALL: [DType; 13] = [F32, U8, I8, U16, I16, I32, I64, Bool, F16, F64, U32, U64, BF16];

    /// Bytes of one element.
    pub const fn size(self) -> usize {
        match self {
            U8 | I8 | Bool => 1,
            U16 | I16 | F16 | BF16 => 2,
            F32 | I32 | U32 => 4,
            I64 | F64 | U64 => 8,
        }
    }

    /// `TensorProto.DataType` number.
    pub const fn onnx(self) -> i32 {
        match self {
            F32 => 1,
            U8 => 2,
            I8 => 3,
            U16 => 4,
            I16 => 5,
            I32 => 6,
            I64 => 7,
            Bool => 9,
            F16 => 10,
            F64 => 11,
            U32 => 12,
            U64 => 13,
            BF16 => 16,
        }
    }

    /// The dtype of a `TensorProto.DataType` number; an `Unsupported` error for strings, complex
    /// and sub-byte types, a `Load` error for a number that ONNX does not know.
    pub fn from_onnx(number: i32) -> Result<Self> {
        if let Some(&dtype) = Self::ALL.iter().find(|d| d.onnx() == number) {
            return Ok(dtype);
        }
        let name = match number {
            8 => "string",
            14 | 15 => "complex",
            17..=20 | 24 => "float8",
            21 | 22 | 25 | 26 => "4-bit or 2-bit integer",
            23 => "float4",
            _ => return Err(err!(Load, "tensor data type {number} is not one that ONNX defines")),
        };
        Err(err!(Unsupported, "tensors of {name} elements (ONNX data type {number})"))
    }

    /// Floating point: the types that have gradients.
    pub const fn is_float(self) -> bool {
        matches!(self, F32 | F64 | F16 | BF16)
    }

    /// Signed or unsigned integer, not `Bool`.
    pub const fn is_int(self) -> bool {
        !self.is_float() && !matches!(self, Bool)
    }

    /// Name in ONNX's type strings (`float`, `int64`, …).
    pub const fn name(self) -> &'static str {
        match self {
            F32 => "float32",
            U8 => "uint8",
            I8 => "int8",
            U16 => "uint16",
            I16 => "int16",
            I32 => "int32",
            I64 => "int64",
            Bool => "bool",
            F16 => "float16",
            F64 => "float64",
            U32 => "uint32",
            U64 => "uint64",
            BF16 => "bfloat16",
        }
    }
}

impl std::fmt::Display for DType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that is the element of a dtype.
pub trait Element: bytemuck::Pod + PartialEq + std::fmt::Debug + Send + Sync {
    /// The dtype it is the element of.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements!(f32 => F32, u8 => U8, i8 => I8, u16 => U16, i16 => I16, i32 => I32, i64 => I64,
          f64 => F64, u32 => U32, u64 => U64, half::f16 => F16, half::bf16 => BF16);
