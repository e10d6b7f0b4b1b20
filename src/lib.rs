//! ontrain: training for ONNX models where the data is.
//!
//! The folders stand in the order of dependence; each imports only what stands before it.

pub mod error;
pub mod tensor;

pub mod graph;
pub mod onnx;

pub mod checkpoint;

pub mod kernel;

pub mod ops;

pub mod passes;

pub mod grad;

pub mod artifacts;

pub mod plan;

pub mod backend;

pub mod train;

#[cfg(target_arch = "wasm32")]
pub mod wasm;
