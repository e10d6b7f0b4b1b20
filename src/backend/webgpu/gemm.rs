use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::Result;
use crate::kernel::{Gemm, Step};

pub(super) fn lower(_kernel: &Gemm, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}
