//! TODO

use remuda_core::service::{ServiceFault, ServiceIncarnation};

use super::Key;

/// A submission on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub(crate) key: Key,
    /// Who waits for the answer; nobody if it is lost.
    pub(crate) process: Option<u32>,
    pub(crate) is_copy: bool,
    /// It waits to be read by the service in this life, and would end with it.
    pub(crate) waits_in: Option<ServiceIncarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SubmitAnswer {
    Accepted,
    Refused(ServiceFault),
    Unsure,
}
