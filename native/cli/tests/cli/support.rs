//! Running the binary, and small models and data to run it on.

use ontrain::graph::{Attribute, Graph, Node, TensorType};
use ontrain::onnx::{WriteOptions, write};
use ontrain::tensor::{DType, Dim, Tensor};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Samples, features and classes of the data that [`data`] makes.
pub(crate) const SAMPLES: usize = 60;
pub(crate) const FEATURES: usize = 4;
pub(crate) const CLASSES: usize = 3;

/// What a run of the binary left.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Fails the test unless the run went well.
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self
    }

    /// The JSON lines of stdout.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Those of one kind of event.
    pub(crate) fn events(&self, event: &str) -> Vec<Value> {
        self.json().into_iter().filter(|line| line["event"] == event).collect()
    }
}

pub(crate) fn command(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ontrain"));
    command.current_dir(folder).args(args);
    command
}

/// Runs the binary in `folder`.
pub(crate) fn ontrain(folder: &Path, args: &[&str]) -> Ran {
    let out = command(folder, args).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: out.status.code(), stdout: text(out.stdout), stderr: text(out.stderr) }
}

/// An empty folder of that name.
pub(crate) fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// A file of the repository's fixtures.
pub(crate) fn fixture(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(name).display().to_string()
}

/// A folder with `model.onnx`, `data.npz`, and artifacts in `a`.
pub(crate) fn prepared(name: &str) -> PathBuf {
    let folder = scratch(name);
    std::fs::write(folder.join("model.onnx"), classifier(FEATURES)).unwrap();
    let (x, labels) = data();
    npz(&folder.join("data.npz"), &[("x", &x), ("labels", &labels)]);
    ontrain(&folder, &["generate", "model.onnx", "--loss", "cross-entropy", "--output-dir", "a"]).ok();
    folder
}

/// `x [batch, features] -> Gemm -> Relu -> Dropout(0.25) -> Gemm -> scores [batch, 3]`, exported for training.
pub(crate) fn classifier(features: usize) -> Vec<u8> {
    let hidden = 8;
    let mut graph = Graph::new("classifier", 17);
    graph.add_input("x", TensorType::new(DType::F32, vec![Dim::symbol("batch"), Dim::Known(features)])).unwrap();
    let weights = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|i| ((i * 37 % 19) as f32 - 9.0) / 20.0).collect();
        Tensor::new(shape, &values).unwrap()
    };
    graph.add_initializer("fc1.weight", weights(&[hidden, features])).unwrap();
    graph.add_initializer("fc1.bias", weights(&[hidden])).unwrap();
    graph.add_initializer("fc2.weight", weights(&[CLASSES, hidden])).unwrap();
    graph.add_initializer("fc2.bias", weights(&[CLASSES])).unwrap();
    graph.add_initializer("ratio", Tensor::scalar(0.25f32)).unwrap();
    graph.add_initializer("training", Tensor::from_bools(&[], &[true]).unwrap()).unwrap();
    for (op, inputs, output, gemm) in [
        ("Gemm", &["x", "fc1.weight", "fc1.bias"][..], "h", true),
        ("Relu", &["h"], "r", false),
        ("Dropout", &["r", "ratio", "training"], "d", false),
        ("Gemm", &["d", "fc2.weight", "fc2.bias"], "scores", true),
    ] {
        let inputs = inputs.iter().map(|name| graph.find(name)).collect();
        let outputs = vec![Some(graph.add_value(output, None).unwrap())];
        let attributes = gemm.then(|| ("transB".to_owned(), Attribute::Int(1))).into_iter().collect();
        graph.nodes.push(Node {
            name: String::new(),
            domain: String::new(),
            op_type: op.into(),
            inputs,
            outputs,
            attributes,
        });
    }
    graph.outputs = vec![graph.find("scores").unwrap()];
    write(&graph, &WriteOptions::default()).unwrap()
}

/// Three clusters of points: sample i is of class i mod 3.
pub(crate) fn data() -> (Tensor, Tensor) {
    let value = |i: usize, f: usize| {
        let noise = ((i * 31 + f * 17) % 13) as f32 / 26.0 - 0.25;
        noise + if f == i % CLASSES { 2.0 } else { 0.0 }
    };
    let x: Vec<f32> = (0..SAMPLES * FEATURES).map(|at| value(at / FEATURES, at % FEATURES)).collect();
    let labels: Vec<i64> = (0..SAMPLES).map(|i| (i % CLASSES) as i64).collect();
    (Tensor::new(&[SAMPLES, FEATURES], &x).unwrap(), Tensor::new(&[SAMPLES], &labels).unwrap())
}

/// Writes a `.npz` file.
pub(crate) fn npz(path: &Path, arrays: &[(&str, &Tensor)]) {
    let mut zip = zip::ZipWriter::new(std::fs::File::create(path).unwrap());
    for (name, tensor) in arrays {
        zip.start_file(format!("{name}.npy"), zip::write::SimpleFileOptions::default()).unwrap();
        let descr = match tensor.dtype() {
            DType::F32 => "<f4",
            DType::F64 => "<f8",
            DType::I32 => "<i4",
            DType::I64 => "<i8",
            DType::U8 => "|u1",
            other => panic!("no array of {other} in these tests"),
        };
        let sizes: String = tensor.shape().iter().map(|n| format!("{n}, ")).collect();
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({sizes}), }}\n");
        zip.write_all(b"\x93NUMPY\x01\x00").unwrap();
        zip.write_all(&(header.len() as u16).to_le_bytes()).unwrap();
        zip.write_all(header.as_bytes()).unwrap();
        zip.write_all(tensor.bytes()).unwrap();
    }
    zip.finish().unwrap();
}

/// The bytes of an IDX file of bytes.
pub(crate) fn idx(tensor: &Tensor) -> Vec<u8> {
    assert_eq!(tensor.dtype(), DType::U8);
    let mut bytes = vec![0, 0, 8, tensor.shape().len() as u8];
    tensor.shape().iter().for_each(|&n| bytes.extend_from_slice(&(n as u32).to_be_bytes()));
    bytes.extend_from_slice(tensor.bytes());
    bytes
}

/// An array of a golden trace, `[batches, batch, …]`, as samples `[batches * batch, …]`.
pub(crate) fn golden_array(path: &str) -> Tensor {
    let bytes = std::fs::read(path).unwrap();
    let header_len = u16::from_le_bytes([bytes[8], bytes[9]]) as usize;
    let header = std::str::from_utf8(&bytes[10..10 + header_len]).unwrap();
    let sizes = header.split_once('(').unwrap().1.split_once(')').unwrap().0;
    let sizes: Vec<usize> = sizes.split(',').filter_map(|n| n.trim().parse().ok()).collect();
    let dtype = if header.contains("<f4") { DType::F32 } else { DType::I64 };
    let shape = [vec![sizes[0] * sizes[1]], sizes[2..].to_vec()].concat();
    Tensor::from_bytes(dtype, &shape, &bytes[10 + header_len..]).unwrap()
}
