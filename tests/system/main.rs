//! Whole-system tests, in one binary because linking is dear.

mod allocations;
mod artifacts_contract;
mod backend_edges;
mod backend_indices;
mod backend_pools;
mod backend_products;
mod backend_table;
mod bad_input;
mod determinism;
mod ort;
mod plans;
mod support;
mod webgpu;
