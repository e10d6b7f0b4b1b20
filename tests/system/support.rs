//! What the tests share: models built here or read from fixtures, inputs for them, and a training of them.

use ontrain::artifacts::{Artifacts, Loss, Optimizer as OptimizerKind, Options, generate};
use ontrain::backend::cpu::{Cpu, threads::set_threads};
use ontrain::backend::webgpu::{Options as GpuOptions, WebGpu};
use ontrain::backend::{Any, now};
use ontrain::checkpoint::CheckpointState;
use ontrain::error::{Error, Kind};
use ontrain::graph::{Attribute, Graph, Node, TensorType, ValueId};
use ontrain::onnx::{NoExternalData, read, read_file};
use ontrain::tensor::{DType, Dim, Tensor};
use ontrain::train::{Module, Optimizer};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, OnceLock};

/// The devices of this machine, by name: the CPU, the GPU as it is, and the GPU without `f16` storage and with the other kernels
/// of those for software and those for hardware. A machine without GPU has only the first, unless ONTRAIN_NEED_WEBGPU is set.
/// ONTRAIN_DEVICE chooses one.
pub(crate) fn devices() -> &'static [(Any, &'static str)] {
    static DEVICES: OnceLock<Vec<(Any, &'static str)>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let mut devices = vec![(Any::Cpu(Cpu), "cpu")];
        let mut software = None;
        for (name, f16) in [("webgpu", true), ("webgpu-plain", false)] {
            match now(WebGpu::open_with(GpuOptions { f16, software, ..GpuOptions::default() })) {
                Ok(gpu) => {
                    software = Some(!gpu.is_software());
                    devices.push((Any::WebGpu(gpu), name));
                }
                Err(e) if std::env::var_os("ONTRAIN_NEED_WEBGPU").is_some() => panic!("{e}"),
                Err(e) => eprintln!("{name} is not tested: {e}"),
            }
        }
        if let Ok(only) = std::env::var("ONTRAIN_DEVICE") {
            devices.retain(|(_, name)| *name == only);
            assert!(!devices.is_empty(), "there is no device {only}");
        }
        devices
    })
}

/// To be held by a test that runs kernels on a GPU by themselves: a check that fails in one test would keep the kernels of
/// another from writing.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(|e| e.into_inner())
}

/// A file of tests/fixtures.
pub(crate) fn fixture(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures").join(path)
}

/// Its bytes.
pub(crate) fn bytes(path: &str) -> Vec<u8> {
    std::fs::read(fixture(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// It as a model.
pub(crate) fn model(path: &str) -> Graph {
    read_file(fixture(path)).unwrap()
}

/// Bytes as a model.
pub(crate) fn parse(bytes: &[u8]) -> Graph {
    read(bytes, &NoExternalData).unwrap()
}

/// Numbers that look random and are the same in every run (xorshift).
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.bits() >> 11) as usize % n
    }

    /// In [-1, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// Floats in [-1, 1).
pub(crate) fn floats(shape: &[usize], seed: u64) -> Tensor {
    scaled(shape, seed, 1.0)
}

/// Floats in [-scale, scale).
pub(crate) fn scaled(shape: &[usize], seed: u64, scale: f64) -> Tensor {
    let mut random = Random::new(seed);
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| random.unit() * scale).collect();
    Tensor::from_f64s(DType::F32, shape, &values).unwrap()
}

/// int64 in 0..n.
pub(crate) fn indices(shape: &[usize], n: usize, seed: u64) -> Tensor {
    let mut random = Random::new(seed);
    let values: Vec<i64> = (0..shape.iter().product()).map(|_| random.below(n) as i64).collect();
    Tensor::new(shape, &values).unwrap()
}

/// A graph under construction.
pub(crate) struct Net(pub(crate) Graph);

impl Net {
    pub(crate) fn new(opset: i64) -> Self {
        Self(Graph::new("net", opset))
    }

    /// A graph input; `None` is the batch.
    pub(crate) fn input(&mut self, name: &str, dtype: DType, dims: &[Option<usize>]) -> ValueId {
        let dims: Vec<Dim> = dims.iter().map(|d| d.map_or_else(|| Dim::symbol("batch"), Dim::Known)).collect();
        self.0.add_input(name, TensorType::new(dtype, dims)).unwrap()
    }

    pub(crate) fn constant(&mut self, name: &str, tensor: Tensor) -> ValueId {
        self.0.add_initializer(name, tensor).unwrap()
    }

    /// A parameter of the size that keeps activations near 1.
    pub(crate) fn weight(&mut self, name: &str, shape: &[usize]) -> ValueId {
        let fan = shape.iter().rev().skip(1).product::<usize>().max(1);
        let seed = name.bytes().fold(7u64, |h, b| h.wrapping_mul(31).wrapping_add(b.into()));
        self.constant(name, scaled(shape, seed, (3.0 / fan as f64).sqrt()))
    }

    /// A node named after its output.
    pub(crate) fn op(&mut self, op: &str, inputs: &[ValueId], attributes: &[(&str, Attribute)], out: &str) -> ValueId {
        let id = self.0.add_value(out, None).unwrap();
        self.0.nodes.push(Node {
            name: format!("node/{out}"),
            domain: String::new(),
            op_type: op.into(),
            inputs: inputs.iter().copied().map(Some).collect(),
            outputs: vec![Some(id)],
            attributes: attributes.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect(),
        });
        id
    }

    pub(crate) fn output(mut self, id: ValueId) -> Graph {
        self.0.outputs.push(id);
        self.0
    }
}

/// 16 → 32 → 10, sizes that leave tails in every vector width.
pub(crate) fn mlp() -> Graph {
    let mut net = Net::new(17);
    let x = net.input("input", DType::F32, &[None, Some(16)]);
    let (w1, b1) = (net.weight("fc1.weight", &[16, 33]), net.weight("fc1.bias", &[33]));
    let (w2, b2) = (net.weight("fc2.weight", &[33, 10]), net.weight("fc2.bias", &[10]));
    let h = net.op("Gemm", &[x, w1, b1], &[], "hidden");
    let h = net.op("Relu", &[h], &[], "active");
    let y = net.op("Gemm", &[h, w2, b2], &[], "output");
    net.output(y)
}

/// One transformer block over 12 tokens, with Dropout, as PyTorch exports it: two heads of eight.
pub(crate) fn transformer() -> Graph {
    let (t, d, h) = (12usize, 16usize, 2usize);
    let mut net = Net::new(20);
    let ints = |net: &mut Net, name: &str, v: &[i64]| net.constant(name, Tensor::ints(v));
    let tokens = net.input("tokens", DType::I64, &[None, Some(t)]);
    let table = net.weight("embedding", &[20, d]);
    let position = net.weight("position", &[1, t, d]);
    let x = net.op("Gather", &[table, tokens], &[], "embedded");
    let x = net.op("Add", &[x, position], &[], "placed");
    let norm = |net: &mut Net, x: ValueId, name: &str| {
        let (g, b) = (net.weight(&format!("{name}.weight"), &[d]), net.weight(&format!("{name}.bias"), &[d]));
        net.op("LayerNormalization", &[x, g, b], &[("axis", Attribute::Int(-1))], name)
    };
    let n1 = norm(&mut net, x, "norm1");
    let split = ints(&mut net, "heads", &[0, t as i64, h as i64, (d / h) as i64]);
    let head = |net: &mut Net, name: &str, perm: [i64; 4]| {
        let w = net.weight(&format!("{name}.weight"), &[d, d]);
        let y = net.op("MatMul", &[n1, w], &[], name);
        let y = net.op("Reshape", &[y, split], &[], &format!("{name}.heads"));
        net.op("Transpose", &[y], &[("perm", Attribute::Ints(perm.into()))], &format!("{name}.turned"))
    };
    let q = head(&mut net, "q", [0, 2, 1, 3]);
    let k = head(&mut net, "k", [0, 2, 3, 1]);
    let v = head(&mut net, "v", [0, 2, 1, 3]);
    let scores = net.op("MatMul", &[q, k], &[], "scores");
    let root = net.constant("root", Tensor::scalar(((d / h) as f32).sqrt()));
    let scores = net.op("Div", &[scores, root], &[], "scaled");
    let attention = net.op("Softmax", &[scores], &[("axis", Attribute::Int(-1))], "attention");
    let mixed = net.op("MatMul", &[attention, v], &[], "mixed");
    let mixed = net.op("Transpose", &[mixed], &[("perm", Attribute::Ints(vec![0, 2, 1, 3]))], "mixed.turned");
    let join = ints(&mut net, "join", &[0, t as i64, d as i64]);
    let mixed = net.op("Reshape", &[mixed, join], &[], "mixed.joined");
    let (w, b) = (net.weight("out.weight", &[d, d]), net.weight("out.bias", &[d]));
    let y = net.op("MatMul", &[mixed, w], &[], "out.product");
    let y = net.op("Add", &[y, b], &[], "out");
    let (ratio, on) =
        (net.constant("ratio", Tensor::scalar(0.25f32)), net.constant("on", Tensor::from_bools(&[], &[true]).unwrap()));
    let y = net.op("Dropout", &[y, ratio, on], &[("seed", Attribute::Int(3))], "dropped");
    let x = net.op("Add", &[x, y], &[], "residual1");
    let n2 = norm(&mut net, x, "norm2");
    let (w, b) = (net.weight("up.weight", &[d, 40]), net.weight("up.bias", &[40]));
    let y = net.op("MatMul", &[n2, w], &[], "up.product");
    let y = net.op("Add", &[y, b], &[], "up");
    let y = net.op("Gelu", &[y], &[], "gelu");
    let (w, b) = (net.weight("down.weight", &[40, d]), net.weight("down.bias", &[d]));
    let y = net.op("MatMul", &[y, w], &[], "down.product");
    let y = net.op("Add", &[y, b], &[], "down");
    let x = net.op("Add", &[x, y], &[], "residual2");
    let axes = ints(&mut net, "time", &[1]);
    let x = net.op("ReduceMean", &[x, axes], &[("keepdims", Attribute::Int(0))], "pooled");
    let (w, b) = (net.weight("head.weight", &[d, 5]), net.weight("head.bias", &[5]));
    let y = net.op("Gemm", &[x, w, b], &[], "output");
    net.output(y)
}

/// A model and a batch for it.
pub(crate) struct Case {
    pub(crate) artifacts: Artifacts,
    pub(crate) inputs: Vec<Tensor>,
}

impl Case {
    pub(crate) fn inputs(&self) -> Vec<&Tensor> {
        self.inputs.iter().collect()
    }

    /// Module and optimizer at their start.
    pub(crate) fn start(&self) -> (Module<Cpu>, Optimizer<Cpu>) {
        start(&self.artifacts)
    }
}

/// Module and optimizer of artifacts.
pub(crate) fn start(artifacts: &Artifacts) -> (Module<Cpu>, Optimizer<Cpu>) {
    let state = CheckpointState::from_bytes(&artifacts.checkpoint).unwrap();
    let module =
        Module::new(parse(&artifacts.training_model), Some(parse(&artifacts.eval_model)), &state, Cpu).unwrap();
    let optimizer = Optimizer::new(parse(artifacts.optimizer_model.as_ref().unwrap()), &module, &state).unwrap();
    (module, optimizer)
}

/// Everything trained.
pub(crate) fn options(loss: Loss) -> Options {
    Options { requires_grad: vec!["*".into()], loss, optimizer: Some(OptimizerKind::adamw()), ..Options::default() }
}

/// One of: mlp, lenet, bnnet, mobilenet, transformer, regression.
pub(crate) fn case(name: &'static str) -> Case {
    let batch = 5;
    let image = |shape: &[usize], classes| vec![floats(shape, 1), indices(&shape[..1], classes, 2)];
    let (graph, loss, inputs) = match name {
        "mlp" => (mlp(), Loss::cross_entropy(), image(&[batch, 16], 10)),
        "lenet" => (model("golden/lenet_ce/model.onnx"), Loss::cross_entropy(), image(&[16, 1, 28, 28], 10)),
        "bnnet" => (model("golden/bnnet_ce/model.onnx"), Loss::cross_entropy(), image(&[batch, 2, 6, 6], 4)),
        "mobilenet" => {
            (model("torch/mobilenet_micro/model.ts17train.onnx"), Loss::cross_entropy(), image(&[batch, 3, 32, 32], 10))
        }
        "transformer" => {
            (transformer(), Loss::cross_entropy(), vec![indices(&[batch, 12], 20, 1), indices(&[batch], 5, 2)])
        }
        "regression" => (
            model("golden/reg_mse/model.onnx"),
            Loss::MSELoss(Default::default()),
            vec![floats(&[batch, 8], 1), floats(&[batch, 1], 2)],
        ),
        other => panic!("no case {other}"),
    };
    let artifacts = generate(&graph, &options(loss)).unwrap_or_else(|e| panic!("{name}: {e:?}"));
    Case { artifacts, inputs }
}

/// The names that [`case`] knows.
pub(crate) const CASES: [&str; 6] = ["mlp", "lenet", "bnnet", "mobilenet", "transformer", "regression"];

/// Runs `f` under a thread limit. The limit is the process's, so that tests which set it wait for each other.
pub(crate) fn with_threads<R>(threads: usize, f: impl FnOnce() -> R) -> R {
    static LIMIT: Mutex<()> = Mutex::new(());
    let _held = LIMIT.lock().unwrap_or_else(|e| e.into_inner());
    set_threads(threads);
    let result = f();
    set_threads(0);
    result
}

/// The error is of this kind and says all of these.
#[track_caller]
pub(crate) fn expect<T>(result: Result<T, Error>, kind: Kind, says: &[&str]) {
    let Err(e) = result else { panic!("this should fail with {kind:?}, saying {says:?}") };
    let message = e.to_string();
    assert_eq!(e.kind(), kind, "{message}");
    for part in says {
        assert!(message.contains(part), "the message lacks {part:?}: {message}");
    }
}
