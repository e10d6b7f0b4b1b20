//! The files of a case: JSON as Python writes it, NumPy's .npy and .npz.

use std::collections::BTreeMap;
use std::io::{Cursor, Read};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ontrain::tensor::{DType, Tensor};
use serde_json::Value;

use crate::sh;

/// Reads a JSON file in which Python may have written `NaN`, `Infinity` and `-Infinity`: [`number`]
/// gives them back.
pub(crate) fn json(path: &Path) -> Result<Value> {
    let text = String::from_utf8(sh::read_file(path)?).with_context(|| format!("{} is not UTF-8", path.display()))?;
    parse(&text).with_context(|| format!("{} is not JSON", path.display()))
}

fn parse(text: &str) -> Result<Value> {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        let literal = ["-Infinity", "Infinity", "NaN"].into_iter().find(|word| rest.starts_with(word));
        let taken = match (in_string, c, literal) {
            (true, '\\', _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            (_, '"', _) => {
                in_string = !in_string;
                1
            }
            (false, _, Some(word)) => {
                out.push_str(if word == "NaN" { "null" } else { "\"" });
                if word != "NaN" {
                    out.push_str(word);
                    out.push('"');
                }
                rest = &rest[word.len()..];
                continue;
            }
            _ => c.len_utf8(),
        };
        out.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Ok(serde_json::from_str(&out)?)
}

/// A number of [`json`].
pub(crate) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Null => Some(f64::NAN),
        Value::String(text) if text == "Infinity" => Some(f64::INFINITY),
        Value::String(text) if text == "-Infinity" => Some(f64::NEG_INFINITY),
        _ => value.as_f64(),
    }
}

/// The numbers of an array, nested ones one after the other.
pub(crate) fn numbers(value: &Value) -> Result<Vec<f64>> {
    match value {
        Value::Array(items) => {
            let parts: Vec<Vec<f64>> = items.iter().map(numbers).collect::<Result<_>>()?;
            Ok(parts.concat())
        }
        _ => Ok(vec![number(value).with_context(|| format!("expected a number, found {value}"))?]),
    }
}

/// The strings of an array; none if it is missing.
pub(crate) fn strings(value: &Value) -> Result<Vec<String>> {
    let items = match value {
        Value::Null => return Ok(Vec::new()),
        Value::Array(items) => items,
        other => bail!("expected an array of strings, found {other}"),
    };
    items
        .iter()
        .map(|v| v.as_str().map(str::to_owned).with_context(|| format!("expected a string, found {v}")))
        .collect()
}

/// The arrays of an .npz file by name.
pub(crate) type Arrays = BTreeMap<String, Tensor>;

/// Reads an .npz file.
pub(crate) fn npz(path: &Path) -> Result<Arrays> {
    let read = || -> Result<Arrays> {
        let mut archive = zip::ZipArchive::new(Cursor::new(sh::read_file(path)?))?;
        let mut arrays = Arrays::new();
        for i in 0..archive.len() {
            let mut entry = archive.by_index(i)?;
            let name = entry.name()?.trim_end_matches(".npy").to_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes)?;
            arrays.insert(name.clone(), array(&bytes).with_context(|| format!("array {name}"))?);
        }
        Ok(arrays)
    };
    read().with_context(|| format!("reading {}", path.display()))
}

/// Reads an .npy file.
pub(crate) fn npy(path: &Path) -> Result<Tensor> {
    array(&sh::read_file(path)?).with_context(|| format!("reading {}", path.display()))
}

/// The bytes of an .npy file: magic, version, length of the header, header (a Python dict), elements.
fn array(bytes: &[u8]) -> Result<Tensor> {
    ensure!(bytes.starts_with(b"\x93NUMPY") && bytes.len() > 12, "not a NumPy array");
    let (start, len) = match bytes[6] {
        1 => (10, u16::from_le_bytes([bytes[8], bytes[9]]) as usize),
        _ => (12, u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) as usize),
    };
    let header = bytes.get(start..start + len).context("the header is cut off")?;
    let header = std::str::from_utf8(header)?;
    let dtype = match field(header, "descr")?.trim_matches('\'').trim_start_matches(['<', '|', '=']) {
        "f4" => DType::F32,
        "f8" => DType::F64,
        "f2" => DType::F16,
        "i8" => DType::I64,
        "i4" => DType::I32,
        "i2" => DType::I16,
        "i1" => DType::I8,
        "u8" => DType::U64,
        "u4" => DType::U32,
        "u2" => DType::U16,
        "u1" => DType::U8,
        "b1" => DType::Bool,
        other => bail!("elements of type {other}"),
    };
    let shape: Vec<usize> = field(header, "shape")?
        .trim_matches(['(', ')'])
        .split(',')
        .map(str::trim)
        .filter(|word| !word.is_empty())
        .map(|word| word.parse().with_context(|| format!("a dimension of {word:?}")))
        .collect::<Result<_>>()?;
    if field(header, "fortran_order")? != "False" && shape.len() > 1 {
        bail!("the array is in Fortran order");
    }
    Ok(Tensor::from_bytes(dtype, &shape, &bytes[start + len..])?)
}

/// The text of a value in the header's dict.
fn field<'a>(header: &'a str, key: &str) -> Result<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}':")).with_context(|| format!("the header has no {key}"))?;
    let rest = rest.trim_start();
    let end = if rest.starts_with('(') { rest.find(')').map(|i| i + 1) } else { rest.find([',', '}']) };
    Ok(rest[..end.context("the header is cut off")?].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_json() {
        let value = parse(r#"{"a": [1.5, NaN, -Infinity], "b": "NaN \"Infinity\"", "c": Infinity}"#).unwrap();
        let a = numbers(&value["a"]).unwrap();
        assert!(a[0] == 1.5 && a[1].is_nan() && a[2] == f64::NEG_INFINITY);
        assert_eq!(value["b"], "NaN \"Infinity\"");
        assert_eq!(number(&value["c"]), Some(f64::INFINITY));
    }

    #[test]
    fn numpy_arrays() {
        let header = b"{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), }\n";
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header);
        bytes.extend([7, 0, 0, 0, 255, 255, 255, 255]);
        let tensor = array(&bytes).unwrap();
        assert_eq!((tensor.shape(), tensor.as_slice::<i32>()), (&[2, 1][..], Some(&[7, -1][..])));
        assert!(array(&bytes[..bytes.len() - 1]).is_err());
    }
}
