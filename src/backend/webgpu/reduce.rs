use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::Result;
use crate::kernel::{Reduce, Step};

pub(super) fn lower(_kernel: &Reduce, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}
