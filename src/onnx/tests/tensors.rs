//! Every kind of tensor data.

use super::super::external::checked_location;
use super::super::proto::StringStringEntryProto;
use super::super::tensor::decode;
use super::*;
use crate::tensor::DType;
use half::{bf16, f16};
use std::collections::HashMap;

fn tensor(dtype: DType, dims: &[i64]) -> TensorProto {
    TensorProto { data_type: dtype.onnx(), dims: dims.into(), ..TensorProto::default() }
}

fn read_tensor(proto: &TensorProto) -> Result<Tensor> {
    decode(proto, &NoExternalData)
}

#[test]
fn typed_data_of_every_dtype() {
    let small = |dtype, values: &[i32]| TensorProto { int32_data: values.into(), ..tensor(dtype, &[2]) };
    let wide = |dtype, values: &[u64]| TensorProto { uint64_data: values.into(), ..tensor(dtype, &[2]) };
    let halves = [f16::from_f32(1.5), f16::from_f32(-2.0)];
    let brains = [bf16::from_f32(1.5), bf16::from_f32(-2.0)];
    let cases = [
        (floats("", &[1.5, -2.0]), Tensor::new(&[2], &[1.5f32, -2.0])),
        (TensorProto { double_data: vec![1.5, -2.0], ..tensor(DType::F64, &[2]) }, Tensor::new(&[2], &[1.5f64, -2.0])),
        (TensorProto { int64_data: vec![i64::MIN, 7], ..tensor(DType::I64, &[2]) }, Tensor::new(&[2], &[i64::MIN, 7])),
        (wide(DType::U64, &[u64::MAX, 7]), Tensor::new(&[2], &[u64::MAX, 7])),
        (wide(DType::U32, &[u32::MAX as u64, 7]), Tensor::new(&[2], &[u32::MAX, 7])),
        (small(DType::I32, &[i32::MIN, 7]), Tensor::new(&[2], &[i32::MIN, 7])),
        (small(DType::I16, &[-32768, 7]), Tensor::new(&[2], &[-32768i16, 7])),
        (small(DType::I8, &[-128, 7]), Tensor::new(&[2], &[-128i8, 7])),
        (small(DType::U16, &[65535, 7]), Tensor::new(&[2], &[65535u16, 7])),
        (small(DType::U8, &[255, 7]), Tensor::new(&[2], &[255u8, 7])),
        (small(DType::Bool, &[1, 0]), Tensor::from_bools(&[2], &[true, false])),
        (small(DType::F16, &halves.map(|h| h.to_bits() as i32)), Tensor::new(&[2], &halves)),
        (small(DType::BF16, &brains.map(|b| b.to_bits() as i32)), Tensor::new(&[2], &brains)),
    ];
    assert_eq!(cases.len(), DType::ALL.len());
    for (proto, expected) in cases {
        let expected = expected.unwrap();
        let dtype = expected.dtype();
        assert_eq!(read_tensor(&proto).unwrap(), expected, "{dtype}");
        // The same as raw bytes, which is how they are written.
        let raw = super::super::tensor::encode("", &expected);
        assert_eq!(raw.raw_data.as_deref(), Some(expected.bytes()));
        assert_eq!(read_tensor(&raw).unwrap(), expected, "{dtype}");
        // One element more or less than the shape holds.
        for dims in [vec![3], vec![1], vec![], vec![2, 2]] {
            for proto in [&proto, &raw] {
                let proto = TensorProto { dims: dims.clone(), ..proto.clone() };
                check_error(read_tensor(&proto), Kind::Load, &[dtype.name(), "expected", "found"]);
            }
        }
    }
}

#[test]
fn values_out_of_range_are_refused() {
    for (dtype, value) in [
        (DType::U8, 256),
        (DType::U8, -1),
        (DType::I8, 128),
        (DType::U16, -1),
        (DType::I16, 40000),
        (DType::F16, 65536),
        (DType::BF16, -1),
        (DType::Bool, 2),
    ] {
        let proto = TensorProto { int32_data: vec![value], ..tensor(dtype, &[1]) };
        check_error(read_tensor(&proto), Kind::Load, &[dtype.name(), &format!("found {value}")]);
    }
    let proto = TensorProto { uint64_data: vec![1 << 32], ..tensor(DType::U32, &[1]) };
    check_error(read_tensor(&proto), Kind::Load, &["uint32", "4294967296"]);
}

#[test]
fn any_nonzero_raw_bool_is_true() {
    let proto = TensorProto { raw_data: Some(vec![0, 1, 255]), ..tensor(DType::Bool, &[3]) };
    assert_eq!(read_tensor(&proto).unwrap().bytes(), [0, 1, 1]);
}

#[test]
fn contradictory_tensors_are_refused() {
    let both = TensorProto { raw_data: Some(vec![0; 4]), ..floats("", &[1.0]) };
    check_error(read_tensor(&both), Kind::Load, &["both"]);
    let other = TensorProto { int64_data: vec![1], ..tensor(DType::F32, &[1]) };
    check_error(read_tensor(&other), Kind::Load, &["float32"]);
    check_error(read_tensor(&tensor(DType::F32, &[2])), Kind::Load, &["2 elements", "0 elements"]);
    check_error(read_tensor(&tensor(DType::F32, &[-2])), Kind::Load, &["-2"]);
    check_error(read_tensor(&TensorProto { data_type: 99, ..floats("", &[1.0]) }), Kind::Load, &["99"]);
    check_error(read_tensor(&TensorProto { data_type: 8, ..floats("", &[]) }), Kind::Unsupported, &["string"]);
    assert_eq!(read_tensor(&tensor(DType::F32, &[0, 5])).unwrap().shape(), [0, 5]);
}

#[test]
fn huge_shapes_allocate_nothing() {
    for dims in [vec![i64::MAX], vec![1 << 40, 1 << 40], vec![1 << 58], vec![1 << 45]] {
        for data in [vec![], vec![1.0f32]] {
            let proto = TensorProto { float_data: data, ..tensor(DType::F32, &dims) };
            check_error(read_tensor(&proto), Kind::Load, &["tensor of"]);
        }
        let files = HashMap::from([("w".to_owned(), vec![0u8; 64])]);
        check_error(decode(&outside(&dims, &[("location", "w")]), &files), Kind::Load, &[]);
    }
}

fn outside(dims: &[i64], entries: &[(&str, &str)]) -> TensorProto {
    let entry = |&(key, value): &(&str, &str)| StringStringEntryProto { key: key.into(), value: value.into() };
    let external_data = entries.iter().map(entry).collect();
    TensorProto { data_location: 1, external_data, ..tensor(DType::F32, dims) }
}

#[test]
fn external_ranges() {
    let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let files = HashMap::from([("data/w.bin".to_owned(), bytes)]);
    let get = |entries: &[(&str, &str)]| decode(&outside(&[2], entries), &files);
    let at = |offset| [("location", "./data/w.bin"), ("offset", offset)];
    assert_eq!(get(&at("4")).unwrap(), Tensor::new(&[2], &[2.0f32, 3.0]).unwrap());
    assert_eq!(get(&at("8")).unwrap(), Tensor::new(&[2], &[3.0f32, 4.0]).unwrap());
    assert_eq!(get(&[("location", "data/w.bin"), ("length", "8"), ("checksum", "?")]).unwrap().len(), 2);
    check_error(get(&at("9")), Kind::Load, &["data/w.bin", "too short", "from byte 9", "16 bytes"]);
    check_error(get(&at("18446744073709551615")), Kind::Load, &["too short"]);
    check_error(get(&at("-1")), Kind::Load, &["offset", "-1"]);
    check_error(get(&[("location", "data/w.bin"), ("length", "16")]), Kind::Load, &["8 bytes", "16 bytes"]);
    check_error(get(&[("location", "other")]), Kind::Load, &["other", "missing"]);
    check_error(get(&[]), Kind::Load, &["no location"]);
}

#[test]
fn locations_stay_in_the_folder() {
    assert_eq!(checked_location("a/./b.bin").unwrap(), "a/b.bin");
    assert_eq!(checked_location("..b").unwrap(), "..b");
    for bad in ["", ".", "/etc/passwd", "../w", "a/../../w", "a//b", "..\\w", "\\\\host\\w", "C:\\w", "C:w", "a\0b"] {
        check_error(checked_location(bad), Kind::Load, &[]);
    }
}

#[cfg(unix)]
#[test]
fn links_out_of_the_folder_are_refused() {
    let root = std::env::temp_dir().join(format!("ontrain-links-{}", std::process::id()));
    let inner = root.join("model");
    std::fs::create_dir_all(&inner).unwrap();
    std::fs::write(root.join("secret"), [0u8; 8]).unwrap();
    std::fs::write(inner.join("own"), [0u8; 8]).unwrap();
    std::os::unix::fs::symlink("../secret", inner.join("out")).unwrap();
    std::os::unix::fs::symlink("own", inner.join("in")).unwrap();
    let get = |file| decode(&outside(&[2], &[("location", file)]), &Folder::of(&inner.join("m.onnx")));
    let (through, inside) = (get("out"), get("in"));
    std::fs::remove_dir_all(&root).unwrap();
    check_error(through, Kind::Load, &["\"out\"", "leaves"]);
    assert_eq!(inside.unwrap().len(), 2);
}
