use super::lower::Lower;
use super::shader::Dispatch;
use crate::error::Result;
use crate::kernel::{Check, Gather, Scatter, Step};

pub(super) fn gather(_kernel: &Gather, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}

pub(super) fn scatter(_kernel: &Scatter, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}

pub(super) fn check(_kernel: &Check, _step: &Step, _cx: &mut Lower<'_>) -> Result<Vec<Dispatch>> {
    unimplemented!()
}
