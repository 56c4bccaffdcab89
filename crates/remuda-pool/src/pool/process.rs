//! A copy as a child process.

use std::sync::Arc;

use super::Serving;
use super::shared::Shared;
use crate::beacon::Beacon;
use crate::roster::{CopyId, Why};

#[derive(Clone, Debug, Default)]
pub struct ChildCommand {}

#[derive(Debug)]
pub(super) struct Process {}

impl Process {
    pub(super) fn kill(&self) {}
    pub(super) fn pid(&self) -> u32 {
        0
    }
}

pub(super) fn run(_serving: &Serving, shared: &Arc<Shared>, copy: CopyId, _beacon: &Beacon) {
    shared.last_word(copy, Why::Exited("no processes yet".to_owned()));
}
