//! A program of expressions as WGSL.
