//! The `ontrain` command as a user runs it: the real binary on real files.

mod bad_input;
mod flow;
mod resume;
mod support;
mod webgpu;
