//! Bytes that are not a model, or not a whole one.

use super::*;
use std::collections::BTreeMap;

fn files() -> BTreeMap<String, &'static [u8]> {
    BTreeMap::from([("model.dyn.onnx.data".to_owned(), DYNAMO_DATA)])
}

/// Reads; what can be read must be writable or say why not.
fn probe(bytes: &[u8]) -> Result<(), Error> {
    let graph = read(bytes, &files())?;
    write(&graph, &WriteOptions::default()).map(|_| ())
}

#[test]
fn other_files_are_recognised() {
    for (bytes, words) in [
        (&b""[..], "empty"),
        (b"<!DOCTYPE html><title>404</title>", "web page"),
        (b"\xEF\xBB\xBF\r\n  <html>", "web page"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "Git LFS"),
        (b"PK\x03\x04abc", "zip"),
        (b"{\"error\": \"not found\"}", "JSON"),
    ] {
        check_error(read_alone(bytes), Kind::Load, &[words]);
    }
    check_error(read_alone(b"\x20\0\0\0ORTM...."), Kind::Unsupported, &[".ort"]);
    check_error(read_alone(b"\x08\x08"), Kind::Load, &["no graph"]);
}

#[test]
fn truncated_files_are_refused() {
    for bytes in [ADAMW, BNNET, BNNET_TRAINING, REG_EVAL, TORCHSCRIPT, DYNAMO] {
        let whole = tell(&read(bytes, &files()).unwrap());
        for len in 0..bytes.len() {
            match read(&bytes[..len], &files()) {
                Err(error) => assert_eq!(error.kind(), Kind::Load, "{len} bytes: {error}"),
                // Imports stand last, and those of domains that no node uses are not missed.
                Ok(part) => assert_eq!(tell(&part), Told { opsets: tell(&part).opsets, ..whole.clone() }),
            }
        }
    }
}

#[test]
fn damaged_files_do_not_panic() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let mut refused = 0;
    for round in 0..12_000 {
        let source = [ADAMW, BNNET, BNNET_TRAINING, REG_EVAL, DYNAMO][round % 5];
        let mut bytes = source.to_vec();
        for _ in 0..=random(4) {
            let at = random(bytes.len());
            bytes[at] = random(256) as u8;
        }
        refused += probe(&bytes).is_err() as usize;
    }
    assert!(refused > 3000, "only {refused} were refused");
    for _ in 0..3000 {
        let len = 1 + random(64);
        let bytes: Vec<u8> = (0..len).map(|_| random(256) as u8).collect();
        assert!(probe(&bytes).is_err());
    }
}
