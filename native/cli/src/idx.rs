//! IDX files, the format of MNIST: `train-images-idx3-ubyte`, plain or with gzip.

use crate::output::cannot_read;
use ontrain::error::{Result, err};
use ontrain::tensor::{DType, Tensor, checked_len};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

/// Reads an IDX file.
pub(crate) fn open(path: &Path) -> Result<Tensor> {
    let file = File::open(path).map_err(|e| cannot_read(path, e))?;
    let mut start = Vec::new();
    let mut file = BufReader::new(file);
    file.by_ref().take(2).read_to_end(&mut start).map_err(|e| cannot_read(path, e))?;
    let all = start.as_slice().chain(file);
    let result = if start == [0x1f, 0x8b] { read(flate2::read::MultiGzDecoder::new(all)) } else { read(all) };
    result.map_err(|e| e.at(path.display().to_string()))
}

/// Two zero bytes, the element type, the rank, the sizes, the elements; all big-endian.
fn read(mut from: impl Read) -> Result<Tensor> {
    let bad = |what: String| err!(Load, "this is not an IDX file: {what}");
    let mut head = [0; 4];
    from.read_exact(&mut head).map_err(|e| bad(e.to_string()))?;
    let [0, 0, kind, rank] = head else {
        return Err(bad("it does not begin with two zero bytes".into()));
    };
    let dtype = match kind {
        0x08 => DType::U8,
        0x09 => DType::I8,
        0x0b => DType::I16,
        0x0c => DType::I32,
        0x0d => DType::F32,
        0x0e => DType::F64,
        _ => return Err(bad(format!("element type {kind:#04x} is not defined"))),
    };
    let mut shape = Vec::new();
    for _ in 0..rank {
        let mut size = [0; 4];
        from.read_exact(&mut size).map_err(|e| bad(e.to_string()))?;
        shape.push(u32::from_be_bytes(size) as usize);
    }
    let Some(len) = checked_len(&shape).and_then(|n| n.checked_mul(dtype.size())) else {
        return Err(bad(format!("an array of shape {shape:?} is too large to hold")));
    };
    let mut data = Vec::new();
    from.take(len as u64 + 1).read_to_end(&mut data).map_err(|e| err!(Load, "the data cannot be read: {e}"))?;
    if data.len() != len {
        let found = if data.len() > len { "more".to_owned() } else { format!("{} bytes", data.len()) };
        return Err(err!(Load, "the data does not fill the array {shape:?}")
            .expected(format!("{len} bytes"))
            .found(found));
    }
    data.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    Tensor::from_bytes(dtype, &shape, &data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays() {
        let images = [0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2, 1, 2, 3, 4];
        assert_eq!(read(&images[..]).unwrap(), Tensor::new(&[2, 1, 2], &[1u8, 2, 3, 4]).unwrap());
        let wide = [0, 0, 0x0b, 1, 0, 0, 0, 1, 1, 2];
        assert_eq!(read(&wide[..]).unwrap(), Tensor::new(&[1], &[258i16]).unwrap());
    }

    #[test]
    fn hostile() {
        let fails = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
        assert!(fails(b"\x93NUMPY").contains("two zero bytes"));
        assert!(fails(&[0, 0, 7, 1, 0, 0, 0, 1, 0]).contains("0x07"));
        let whole = [0, 0, 8, 1, 0, 0, 0, 2, 1, 2];
        for cut in 0..whole.len() {
            fails(&whole[..cut]);
        }
        assert!(fails(&[&whole[..], &[0]].concat()).contains("found more"));
        let huge = [&[0, 0, 8, 4][..], &[0xff; 16]].concat();
        assert!(fails(&huge).contains("too large"));
    }
}
