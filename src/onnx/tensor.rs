//! `TensorProto` ⇄ [`Tensor`].

use super::external::{ExternalData, checked_location};
use super::proto::TensorProto;
use super::proto::tensor_proto::DataLocation;
use crate::error::{Result, bail, err};
use crate::tensor::{DType, Tensor, checked_len, show_dims};

/// What a tensor must have before anything is allocated for it.
struct Size {
    dtype: DType,
    shape: Vec<usize>,
    len: usize,
    bytes: usize,
}

impl Size {
    /// Fails unless there are exactly as many as wanted.
    fn check(&self, want: usize, found: usize, unit: &str) -> Result<()> {
        if want == found {
            return Ok(());
        }
        Err(err!(Load, "the data does not fill a {} tensor of {}", self.dtype, show_dims(&self.shape))
            .expected(format!("{want} {unit}"))
            .found(format!("{found} {unit}")))
    }

    fn zeros(&self) -> Result<Tensor> {
        Tensor::zeros(self.dtype, &self.shape)
    }
}

/// The tensor that a message describes. Allocates only what its data really fills.
pub(super) fn decode(proto: &TensorProto, external: &dyn ExternalData) -> Result<Tensor> {
    let size = size(proto)?;
    let mut tensor = if proto.data_location == DataLocation::External as i32 {
        outside(proto, &size, external)?
    } else if let Some(raw) = proto.raw_data.as_deref().filter(|raw| !raw.is_empty()) {
        if typed_count(proto) != 0 {
            bail!(Load, "the tensor has both raw and typed data");
        }
        size.check(size.bytes, raw.len(), "bytes")?;
        Tensor::from_bytes(size.dtype, &size.shape, raw)?
    } else {
        typed(proto, &size)?
    };
    if size.dtype == DType::Bool {
        // Writers disagree on what true is; ontrain computes with 1.
        tensor.bytes_mut().iter_mut().for_each(|b| *b = (*b != 0) as u8);
    }
    Ok(tensor)
}

fn size(proto: &TensorProto) -> Result<Size> {
    let dtype = DType::from_onnx(proto.data_type)?;
    let shape: Option<Vec<usize>> = proto.dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    let Some(shape) = shape else { bail!(Load, "the tensor has an impossible shape {}", show_dims(&proto.dims)) };
    match checked_len(&shape).and_then(|len| Some((len, len.checked_mul(dtype.size())?))) {
        Some((len, bytes)) => Ok(Size { dtype, shape, len, bytes }),
        None => bail!(Load, "a tensor of shape {} is too large to hold", show_dims(&shape)),
    }
}

fn typed_count(proto: &TensorProto) -> usize {
    // Fewer than the file has bytes, so the sum cannot overflow.
    proto.float_data.len()
        + proto.double_data.len()
        + proto.int32_data.len()
        + proto.int64_data.len()
        + proto.uint64_data.len()
}

/// Data in the field of its dtype (`TensorProto` in onnx.proto says which holds which).
fn typed(proto: &TensorProto, size: &Size) -> Result<Tensor> {
    use DType::*;
    let found = match size.dtype {
        F32 => proto.float_data.len(),
        F64 => proto.double_data.len(),
        I64 => proto.int64_data.len(),
        U64 | U32 => proto.uint64_data.len(),
        _ => proto.int32_data.len(),
    };
    if found != typed_count(proto) {
        bail!(Load, "the tensor has data of another type than {}", size.dtype);
    }
    size.check(size.len, found, "elements")?;
    match size.dtype {
        F32 => Tensor::new(&size.shape, &proto.float_data),
        F64 => Tensor::new(&size.shape, &proto.double_data),
        I64 => Tensor::new(&size.shape, &proto.int64_data),
        U64 => Tensor::new(&size.shape, &proto.uint64_data),
        U32 => narrow(size, &mut proto.uint64_data.iter().map(|&x| x as i64), 0, u32::MAX.into()),
        dtype => {
            let (low, high) = match dtype {
                U8 => (0, u8::MAX.into()),
                I8 => (i8::MIN.into(), i8::MAX.into()),
                I16 => (i16::MIN.into(), i16::MAX.into()),
                I32 => (i32::MIN.into(), i32::MAX.into()),
                Bool => (0, 1),
                // Half floats travel as their 16 bits.
                _ => (0, u16::MAX.into()),
            };
            narrow(size, &mut proto.int32_data.iter().map(|&x| x.into()), low, high)
        }
    }
}

/// Integers of a wider field; each must lie in the range of the dtype.
fn narrow(size: &Size, values: &mut dyn Iterator<Item = i64>, low: i64, high: i64) -> Result<Tensor> {
    let mut tensor = size.zeros()?;
    let width = size.dtype.size();
    for (out, value) in tensor.bytes_mut().chunks_exact_mut(width).zip(values) {
        if !(low..=high).contains(&value) {
            let what = format!("a value from {low} to {high}");
            return Err(err!(Load, "bad element in a {} tensor", size.dtype).expected(what).found(value));
        }
        out.copy_from_slice(&value.to_le_bytes()[..width]);
    }
    Ok(tensor)
}

/// Data in a file beside the model.
fn outside(proto: &TensorProto, size: &Size, external: &dyn ExternalData) -> Result<Tensor> {
    let entry = |key: &str| proto.external_data.iter().find(|e| e.key == key).map(|e| e.value.as_str());
    let number = |key: &str| match entry(key).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(n)) => Ok(Some(n)),
        Some(Err(_)) => Err(err!(Load, "the external data's {key} is not a number").found(entry(key).unwrap_or(""))),
    };
    let Some(location) = entry("location") else { bail!(Load, "the external data has no location") };
    let file = checked_location(location)?;
    let offset = number("offset")?.unwrap_or(0);
    if let Some(length) = number("length")? {
        size.check(size.bytes, usize::try_from(length).unwrap_or(usize::MAX), "bytes")?;
    }
    let Some(total) = external.size(&file)? else {
        bail!(Load, "the model keeps this tensor in the file \"{file}\", which is missing");
    };
    let end = offset.checked_add(size.bytes as u64);
    if end.is_none_or(|end| end > total) {
        return Err(err!(Load, "the external data file \"{file}\" is too short")
            .expected(format!("{} bytes from byte {offset} on", size.bytes))
            .found(format!("{total} bytes in all")));
    }
    let mut tensor = size.zeros()?;
    external.read(&file, offset, tensor.bytes_mut())?;
    Ok(tensor)
}

/// A message with everything of the tensor but its data.
pub(super) fn head(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto {
        name: name.into(),
        data_type: tensor.dtype().onnx(),
        dims: tensor.shape().iter().map(|&n| n as i64).collect(),
        ..TensorProto::default()
    }
}

/// The whole message.
pub(super) fn encode(name: &str, tensor: &Tensor) -> TensorProto {
    TensorProto { raw_data: Some(tensor.bytes().to_vec()), ..head(name, tensor) }
}
