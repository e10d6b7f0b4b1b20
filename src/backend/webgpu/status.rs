//! Checks that run on the device: what each is, so that its failure can be said in words.

use crate::error::Error;

/// The checks of all programs of a device, by number from 1.
#[derive(Default)]
pub(super) struct Checks {
}

impl Checks {
    /// The error for the status words of a device (see `Slot::STATUS`), or `None` if no check has failed.
    pub(super) fn failure(&self, _status: [u32; 4]) -> Option<Error> {
        unimplemented!()
    }
}
