//! A submission on its way to a service, and the answer to it.

use remuda_core::service::{ServiceFault, ServiceIncarnation};

use super::Key;

/// A submission on its way to a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) key: Key,
    /// The agent process that waits for the answer; `None` if the answer is lost.
    pub(crate) process: Option<u32>,
    pub(crate) is_copy: bool,
    /// It sits in the socket buffer of a busy service of this incarnation, and is lost if that one ends.
    pub(crate) waits_in: Option<ServiceIncarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitAnswer {
    Accepted,
    Refused(ServiceFault),
    Unsure,
}
