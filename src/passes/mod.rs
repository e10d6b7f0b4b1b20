//! Graph to graph: what is rewritten before types, gradients or plans are worked out. One pass a file.

mod cut;
pub mod fold;
pub mod identity;
pub mod sequences;

pub use cut::cut;
