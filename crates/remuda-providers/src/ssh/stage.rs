//! How far a visit came, and what it means to have come no farther.

use std::fmt;
use std::time::Duration;

use remuda_core::provider::BootstrapError;
use tokio::time::Instant;

use super::preparation::Limits;

/// In the order of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Port,
    HostKey,
    Login,
    Marker,
    Mount,
    Gpu,
    Dependencies,
    Upload,
    Start,
    Started,
}

impl Stage {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Stage::Port => "port",
            Stage::HostKey => "host key",
            Stage::Login => "login",
            Stage::Marker => "marker",
            Stage::Mount => "mount",
            Stage::Gpu => "gpu",
            Stage::Dependencies => "dependencies",
            Stage::Upload => "upload",
            Stage::Start => "start",
            Stage::Started => "started",
        }
    }

    /// Whatever it takes to get through it has to be done by then.
    pub(super) fn begin(self, limits: &Limits) -> Step {
        let limit = self.limit(limits);
        Step { stage: self, limit, deadline: Instant::now() + limit }
    }

    fn limit(self, limits: &Limits) -> Duration {
        match self {
            Stage::Port => limits.port,
            Stage::HostKey => limits.host_key,
            Stage::Login => limits.login,
            Stage::Marker => limits.marker,
            Stage::Mount => limits.mount,
            Stage::Gpu => limits.gpu,
            Stage::Dependencies => limits.dependencies,
            Stage::Upload => limits.upload,
            Stage::Start => limits.start,
            Stage::Started => limits.started,
        }
    }

    /// The machine or the settings are no good.
    pub(super) fn failed(self, message: impl fmt::Display) -> BootstrapError {
        BootstrapError { stage: self.as_str(), message: message.to_string(), is_retryable: false }
    }

    /// What is missing may still come.
    pub(super) fn early(self, message: impl fmt::Display) -> BootstrapError {
        BootstrapError { is_retryable: true, ..self.failed(message) }
    }
}

/// A stage that is under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub(super) stage: Stage,
    pub(super) limit: Duration,
    pub(super) deadline: Instant,
}
