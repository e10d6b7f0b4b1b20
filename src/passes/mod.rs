//! Graph to graph: what is rewritten before types, gradients or plans are worked out. One pass a file.

pub mod sequences;
