//! NumPy's `.npy` arrays and `.npz` archives of them. Everything in a header is checked before it is believed, and no
//! more memory is taken than the file has data.

use crate::output::cannot_read;
use ontrain::error::{Result, err};
use ontrain::tensor::{DType, Tensor, checked_len};
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;
use zip::ZipArchive;

/// NumPy writes headers of a few hundred bytes.
const LONGEST_HEADER: usize = 1 << 16;

/// An open `.npz` file.
pub(crate) struct Npz {
    archive: ZipArchive<BufReader<File>>,
    names: Vec<String>,
    path: String,
}

impl Npz {
    /// Opens an archive; arrays are read when asked for.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|e| cannot_read(path, e))?;
        let archive = ZipArchive::new(BufReader::new(file))
            .map_err(|e| cannot_read(path, e).expected("a .npz archive (a zip file of .npy arrays)"))?;
        let mut names = Vec::new();
        for i in 0..archive.len() {
            names.push(archive.name_for_index(i).and_then(|name| name.ok()).unwrap_or_default().into_owned());
        }
        Ok(Self { archive, names, path: path.display().to_string() })
    }

    /// Names of the arrays.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(|name| name.strip_suffix(".npy").unwrap_or(name))
    }

    /// The array of that name.
    pub(crate) fn array(&mut self, name: &str) -> Result<Tensor> {
        let Some(index) = self.names().position(|n| n == name) else {
            let names: Vec<_> = self.names().map(|n| format!("\"{n}\"")).collect();
            return Err(
                err!(Input, "{} has no array \"{name}\"", self.path).expected(format!("one of {}", names.join(", ")))
            );
        };
        let place = format!("array \"{name}\" in {}", self.path);
        let mut entry = self.archive.by_index(index).map_err(|e| err!(Load, "cannot be read: {e}").at(&place))?;
        read(&mut entry).map_err(|e| e.at(place))
    }
}

/// Reads one `.npy` array.
pub(crate) fn read(from: &mut impl Read) -> Result<Tensor> {
    let header = read_header(from)?;
    let len = checked_len(&header.shape).and_then(|n| n.checked_mul(header.dtype.size()));
    let Some(len) = len else {
        return Err(err!(Load, "an array of shape {:?} is too large to hold", header.shape));
    };
    let mut data = Vec::new();
    from.take(len as u64 + 1).read_to_end(&mut data).map_err(|e| err!(Load, "the data cannot be read: {e}"))?;
    if data.len() != len {
        let found = if data.len() > len { "more".to_owned() } else { format!("{} bytes", data.len()) };
        return Err(err!(Load, "the data does not fill the array").expected(format!("{len} bytes")).found(found));
    }
    if header.big_endian {
        data.chunks_exact_mut(header.dtype.size()).for_each(<[u8]>::reverse);
    }
    if header.dtype == DType::Bool {
        data.iter_mut().for_each(|b| *b = (*b != 0) as u8);
    }
    if header.fortran_order {
        data = row_major(&data, &header.shape, header.dtype.size());
    }
    Tensor::from_bytes(header.dtype, &header.shape, &data)
}

struct Header {
    dtype: DType,
    big_endian: bool,
    fortran_order: bool,
    shape: Vec<usize>,
}

fn read_header(from: &mut impl Read) -> Result<Header> {
    let bad = |what: &str| err!(Load, "this is not a .npy array: {what}");
    let mut take = |n: usize| {
        let mut bytes = vec![0; n];
        from.read_exact(&mut bytes).map(|()| bytes).map_err(|_| bad("the header is cut off"))
    };
    let start = take(8)?;
    let len = match (&start[..6], start[6]) {
        (b"\x93NUMPY", 1) => take(2)?.iter().rfold(0, |n, &b| n << 8 | b as usize),
        (b"\x93NUMPY", 2 | 3) => take(4)?.iter().rfold(0, |n, &b| n << 8 | b as usize),
        (b"\x93NUMPY", _) => return Err(bad("unknown version")),
        _ => return Err(bad("it does not begin with NumPy's mark")),
    };
    if len > LONGEST_HEADER {
        return Err(bad("the header is too long"));
    }
    let bytes = take(len)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| bad("the header is not text"))?;
    parse_header(text).ok_or_else(|| bad("its header cannot be understood").found(text.trim()))?
}

/// Reads the Python dictionary `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`; `None` if it is not one.
fn parse_header(text: &str) -> Option<Result<Header>> {
    // Keys come in any order, values hold no quoted keys: each is found by its name.
    let value = |key: &str| {
        let after = text.split_once(&format!("'{key}'"))?.1;
        Some(after.trim_start().strip_prefix(':')?.trim_start())
    };
    let descr = value("descr")?;
    let Some(descr) = descr.strip_prefix('\'') else {
        return Some(Err(err!(Unsupported, "arrays of records").expected("numbers or bools").found(text.trim())));
    };
    let descr = descr.split_once('\'')?.0;
    let fortran_order = match value("fortran_order")? {
        v if v.starts_with("True") => true,
        v if v.starts_with("False") => false,
        _ => return None,
    };
    let shape = value("shape")?.strip_prefix('(')?.split_once(')')?.0;
    let mut sizes = Vec::new();
    for part in shape.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        sizes.push(part.trim_end_matches('L').parse().ok()?);
    }
    let dtype = match descr.trim_start_matches(['<', '>', '|', '=']) {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "i8" => DType::I64,
        "u1" => DType::U8,
        "u2" => DType::U16,
        "u4" => DType::U32,
        "u8" => DType::U64,
        "b1" => DType::Bool,
        _ => {
            return Some(Err(err!(Unsupported, "arrays of this NumPy type").expected("numbers or bools").found(descr)));
        }
    };
    Some(Ok(Header { dtype, big_endian: descr.starts_with('>'), fortran_order, shape: sizes }))
}

/// Column-major elements in row-major order.
fn row_major(data: &[u8], shape: &[usize], size: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(data.len());
    let mut index = vec![0usize; shape.len()];
    for _ in 0..data.len() / size {
        let at = index.iter().zip(shape).rev().fold(0, |at, (&i, &n)| at * n + i);
        out.extend_from_slice(&data[at * size..][..size]);
        for (i, &n) in index.iter_mut().zip(shape).rev() {
            *i += 1;
            if *i < n {
                break;
            }
            *i = 0;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend_from_slice(&(header.len() as u16).to_le_bytes());
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn arrays() {
        let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
        let plain =
            read(&mut &npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }   \n", &data)[..]).unwrap();
        assert_eq!(plain, Tensor::new(&[2, 3], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap());
        let fortran = read(&mut &npy("{'shape': (2, 3), 'fortran_order': True, 'descr': '<f4'}", &data)[..]).unwrap();
        assert_eq!(fortran, Tensor::new(&[2, 3], &[1.0f32, 3.0, 5.0, 2.0, 4.0, 6.0]).unwrap());
        let big = read(&mut &npy("{'descr': '>i2', 'fortran_order': False, 'shape': (1,)}", &[1, 2])[..]).unwrap();
        assert_eq!(big, Tensor::new(&[1], &[258i16]).unwrap());
        let scalar = read(&mut &npy("{'descr': '|b1', 'fortran_order': False, 'shape': ()}", &[7])[..]).unwrap();
        assert_eq!(scalar, Tensor::from_bools(&[], &[true]).unwrap());
    }

    #[test]
    fn hostile() {
        let fails = |bytes: &[u8]| read(&mut &*bytes).unwrap_err().to_string();
        assert!(fails(b"hello, world").contains("NumPy's mark"));
        assert!(fails(b"\x93NUMPY\x02\x00\xff\xff\xff\xff").contains("too long"));
        assert!(fails(b"\x93NUMPY\x01\x00\xff\x00{").contains("cut off"));
        assert!(fails(&npy("{'descr': '<f4'}", &[])).contains("cannot be understood"));
        assert!(
            fails(&npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}", &[]))
                .contains("cannot be understood")
        );
        assert!(fails(&npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", &[])).contains("NumPy type"));
        assert!(
            fails(&npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", &[])).contains("records")
        );
        let huge = "{'descr': '<f8', 'fortran_order': False, 'shape': (4294967295, 4294967295, 4294967295)}";
        assert!(fails(&npy(huge, &[])).contains("too large"));
        let long = "{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000,)}";
        assert!(fails(&npy(long, &[0; 8])).contains("expected 8000000000 bytes; found 8 bytes"));
        let whole = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", &[0; 4]);
        for cut in 0..whole.len() {
            fails(&whole[..cut]);
        }
        assert!(fails(&[&whole[..], &[0]].concat()).contains("found more"));
    }
}
