use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::Result;
use crate::kernel::{Fused, Step};

pub(super) fn lower(_kernel: &Fused, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}

pub(super) fn copy(_step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}
