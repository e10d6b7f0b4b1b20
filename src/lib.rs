//! ontrain: training for ONNX models where the data is — in the browser tab, in Node, natively.
//!
//! A model walks from left to right through the modules below, which stand in the order of dependence: each imports only
//! what stands before it (a test holds this).
//!
//! ```text
//! bytes ──onnx──▶ Graph ──passes, grad──▶ Graph ──plan──▶ Plan ──backend──▶ CPU · WebGPU
//!                   ▲   (loss, backward,            │                │ tensors stay there
//!                   │    accumulation)              │                ▼
//!           artifacts (.onnx files)                 │      train: Module · Optimizer · Scheduler
//!                                                   ▼                │
//!                                           a printable value        ▼
//!                                                              CheckpointState ──▶ bytes
//! ```
//!
//! ```
//! use ontrain::{artifacts::{self, Loss, Optimizer, Options}, backend::cpu::Cpu, checkpoint::CheckpointState};
//! use ontrain::{onnx, tensor::Tensor, train};
//!
//! # fn main() -> ontrain::error::Result<()> {
//! let model = onnx::read_file(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/golden/reg_mse/model.onnx"))?;
//! let options = Options {
//!     requires_grad: vec!["*".into()],
//!     loss: Loss::MSELoss(Default::default()),
//!     optimizer: Some(Optimizer::adamw()),
//!     ..Options::default()
//! };
//! let files = artifacts::generate(&model, &options)?;
//!
//! let state = CheckpointState::from_bytes(&files.checkpoint)?;
//! let graph = |bytes: &[u8]| onnx::read(bytes, &onnx::NoExternalData);
//! let mut module = train::Module::new(graph(&files.training_model)?, Some(graph(&files.eval_model)?), &state, Cpu)?;
//! let mut optimizer = train::Optimizer::new(graph(&files.optimizer_model.unwrap())?, &module, &state)?;
//! let (input, target) = (Tensor::new(&[2, 8], &[0.5f32; 16])?, Tensor::new(&[2, 1], &[1.0f32, 1.0])?);
//! let first = module.train_step(&[&input, &target])?;
//! optimizer.step(&mut module)?;
//! module.lazy_reset_grad();
//! assert!(module.train_step(&[&input, &target])? < first);
//! let trained: Vec<u8> = module.export_model_for_inferencing(&["output"])?;
//! # Ok(())
//! # }
//! ```

/// One error type: kind, place, what was expected, what came.
pub mod error;

/// Dtypes, shapes, owned tensors.
pub mod tensor;

/// The graph as data: nodes in topological order, values with their ONNX names.
pub mod graph;

/// ONNX files to graphs and back.
pub mod onnx;

/// Checkpoint files: ONNX Runtime's format, saved whole or not at all.
pub mod checkpoint;

/// The kernel set as data, and its reference implementation.
pub mod kernel;

/// ONNX's operators: attributes, types, gradient and lowering of each in one place.
pub mod ops;

/// Graph to graph: folding, untying, cutting.
pub mod passes;

/// Gradients as graphs, and the finite-difference checker.
pub mod grad;

/// Training, eval and optimizer models and the checkpoint, from a forward model.
pub mod artifacts;

/// What a run does for given input sizes: kernels, order, memory.
pub mod plan;

/// Devices: the processor, and the GPU through WebGPU.
pub mod backend;

/// Modules, optimizers, schedulers, data.
pub mod train;

#[cfg(target_arch = "wasm32")]
pub mod wasm;
