//! What is timed: models, their artifacts and inputs, written into folders that the timing programs read.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ontrain::artifacts::{Loss, Optimizer, Options, generate};
use ontrain::backend::cpu::Cpu;
use ontrain::checkpoint::{CheckpointState, Parameter};
use ontrain::graph::{Attributes, Graph, Node, TensorType, ValueType};
use ontrain::onnx::{NoExternalData, WriteOptions, read, read_file, write};
use ontrain::tensor::{DType, Dim, Tensor};
use ontrain::train::Module;

use crate::sh;

/// A model in tests/fixtures/bench.
pub(super) struct Case {
    /// Its folder there.
    pub(super) name: &'static str,
    /// Integer inputs are below this.
    tokens: u64,
    /// benches/peers.mjs has it too.
    pub(super) by_hand: bool,
}

/// The models.
pub(super) const CASES: [Case; 4] = [
    Case { name: "mlp", tokens: 0, by_hand: true },
    Case { name: "lenet", tokens: 0, by_hand: true },
    Case { name: "mnv2", tokens: 0, by_hand: false },
    Case { name: "tfm", tokens: 128, by_hand: false },
];

/// Samples in a step.
pub(super) const BATCH: usize = 32;

/// Labels are below this in every case.
const CLASSES: u64 = 10;

/// A case as the timing programs read it.
pub(super) struct Prepared {
    /// Folder with ontrain's own artifacts.
    pub(super) ours: PathBuf,
    /// Folder with ONNX Runtime's training model, and with the parameters one by one.
    pub(super) peer: PathBuf,
    /// Floating-point operations of a step's matrix products and convolutions.
    pub(super) flops: u64,
}

impl Case {
    /// Generates the artifacts and random inputs, the same ones each time.
    pub(super) fn prepare(&self) -> Result<Prepared> {
        let fixtures = sh::root().join("tests").join("fixtures").join("bench").join(self.name);
        let model = read_file(fixtures.join("model.onnx"))?;
        let folder = sh::target().join("bench").join(self.name);
        let (ours, peer) = (folder.join("ontrain"), folder.join("onnxruntime"));
        let options = Options {
            requires_grad: vec!["*".into()],
            loss: Loss::cross_entropy(),
            optimizer: Some(Optimizer::adamw()),
            ..Options::default()
        };
        let artifacts = generate(&model, &options)?;
        let inputs = self.inputs(&model)?;
        for side in [&ours, &peer] {
            sh::fresh_dir(side)?;
            artifacts.save(side, "")?;
            save_inputs(side, "inputs", &inputs)?;
        }
        let training = sh::read_file(&fixtures.join("onnxruntime_training_model.onnx"))?;
        sh::write_file(&peer.join("training_model.onnx"), training)?;
        save_matmul(&ours)?;

        let state = CheckpointState::from_bytes(&artifacts.checkpoint)?;
        let value = |p: &Parameter| p.value.clone().map(|value| (p.name.clone(), value));
        let parameters: Vec<(String, Tensor)> = state.parameters().iter().filter_map(value).collect();
        save_inputs(&peer, "parameters", &parameters)?;
        let mut module = Module::new(read(&artifacts.training_model, &NoExternalData)?, None, &state, Cpu)?;
        let names = module.input_names(true)?;
        let find = |name: &String| inputs.iter().find(|(known, _)| known == name).map(|(_, tensor)| tensor);
        let feeds: Option<Vec<&Tensor>> = names.iter().map(find).collect();
        let feeds = feeds.with_context(|| format!("the inputs of {} are {names:?}", self.name))?;
        let flops = module.plan(true, &feeds)?.product_flops();
        Ok(Prepared { ours, peer, flops })
    }

    /// Inputs and labels by name.
    fn inputs(&self, model: &Graph) -> Result<Vec<(String, Tensor)>> {
        let mut random = Random(1);
        let mut inputs = Vec::new();
        for &id in model.inputs.iter().filter(|&&id| model.initializer(id).is_none()) {
            let ty = model.tensor_type(id).context("an input that is not a tensor")?;
            let dims = ty.shape.as_deref().context("an input without a rank")?;
            let size = |dim: &Dim| if let Dim::Known(size) = dim { *size } else { BATCH };
            let shape: Vec<usize> = dims.iter().map(size).collect();
            let tensor = match ty.dtype {
                DType::I64 => random.whole(&shape, self.tokens)?,
                _ => random.real(&shape, 1.0)?,
            };
            inputs.push((model.name_of(id).to_owned(), tensor));
        }
        inputs.push(("labels".into(), random.whole(&[BATCH], CLASSES)?));
        Ok(inputs)
    }
}

/// Size of the matrices whose product gives the rate that steps are compared with, and how many products follow each
/// other, so that handing the matrices over doesn't count.
const MATRIX: usize = 1024;
const PRODUCTS: usize = 8;

/// The model that measures the rate: `a b b … b`.
fn save_matmul(folder: &Path) -> Result<()> {
    let ty = || TensorType::known(DType::F32, &[MATRIX, MATRIX]);
    let mut graph = Graph::new("matmul", 13);
    graph.ir_version = 8;
    let (a, b) = (graph.add_input("a", ty())?, graph.add_input("b", ty())?);
    let mut last = a;
    for i in 0..PRODUCTS {
        let next = graph.add_value(&format!("product{i}"), Some(ValueType::Tensor(ty())))?;
        graph.nodes.push(Node {
            name: format!("matmul{i}"),
            domain: String::new(),
            op_type: "MatMul".into(),
            inputs: vec![Some(last), Some(b)],
            outputs: vec![Some(next)],
            attributes: Attributes::default(),
        });
        last = next;
    }
    graph.outputs.push(last);
    sh::write_file(&folder.join("matmul.onnx"), write(&graph, &WriteOptions::default())?)?;
    sh::write_file(&folder.join("matmul.flop"), (PRODUCTS * 2 * MATRIX.pow(3)).to_string())?;
    let mut random = Random(2);
    // Scaled so that products have the size of their factors.
    let scale = (3.0 / MATRIX as f32).sqrt();
    let shape = [MATRIX, MATRIX];
    let inputs = [("a".into(), random.real(&shape, 1.0)?), ("b".into(), random.real(&shape, scale)?)];
    save_inputs(folder, "matmul", &inputs)
}

/// Writes tensors and `list`.txt, which names them: a line `file dtype sizes name` each.
fn save_inputs(folder: &Path, list: &str, inputs: &[(String, Tensor)]) -> Result<()> {
    let mut text = String::new();
    for (i, (name, tensor)) in inputs.iter().enumerate() {
        let file = format!("{list}_{i}.bin");
        let sizes: Vec<String> = tensor.shape().iter().map(ToString::to_string).collect();
        text += &format!("{file} {} {} {name}\n", tensor.dtype().name(), sizes.join("x"));
        sh::write_file(&folder.join(file), tensor.bytes())?;
    }
    sh::write_file(&folder.join(format!("{list}.txt")), text)
}

/// SplitMix64: random enough, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Even in `-scale..scale`.
    fn real(&mut self, shape: &[usize], scale: f32) -> Result<Tensor> {
        let mut draw = || scale * ((self.next() >> 40) as f32 / (1 << 23) as f32 - 1.0);
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|_| draw()).collect();
        Ok(Tensor::new(shape, &values)?)
    }

    /// Even in `0..end`.
    fn whole(&mut self, shape: &[usize], end: u64) -> Result<Tensor> {
        let mut draw = || (self.next() >> 1) % end.max(1);
        let values: Vec<i64> = (0..shape.iter().product::<usize>()).map(|_| draw() as i64).collect();
        Ok(Tensor::new(shape, &values)?)
    }
}
