//! The stages of a bootstrap, and whether a failure in one can be retried.

use std::fmt;
use std::time::Duration;

use remuda_core::provider::BootstrapError;
use tokio::time::Instant;

use super::settings::StageTimeouts;

/// In order.
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

    /// Starts the stage's deadline.
    pub(super) fn begin(self, timeouts: &StageTimeouts) -> StageDeadline {
        let timeout = self.timeout(timeouts);
        StageDeadline { stage: self, timeout, deadline: Instant::now() + timeout }
    }

    fn timeout(self, timeouts: &StageTimeouts) -> Duration {
        match self {
            Stage::Port => timeouts.port,
            Stage::HostKey => timeouts.host_key,
            Stage::Login => timeouts.login,
            Stage::Marker => timeouts.marker,
            Stage::Mount => timeouts.mount,
            Stage::Gpu => timeouts.gpu,
            Stage::Dependencies => timeouts.dependencies,
            Stage::Upload => timeouts.upload,
            Stage::Start => timeouts.start,
            Stage::Started => timeouts.started,
        }
    }

    /// The machine or the settings are bad.
    pub(super) fn failed(self, message: impl fmt::Display) -> BootstrapError {
        BootstrapError { stage: self.as_str(), message: message.to_string(), is_retryable: false }
    }

    /// The machine may not be ready yet.
    pub(super) fn not_ready(self, message: impl fmt::Display) -> BootstrapError {
        BootstrapError { is_retryable: true, ..self.failed(message) }
    }
}

/// A stage with its deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct StageDeadline {
    pub(super) stage: Stage,
    pub(super) timeout: Duration,
    pub(super) deadline: Instant,
}
