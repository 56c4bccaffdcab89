//! What an alert can be about. The names are those of the configuration.

use std::time::Duration;

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertCondition {
    WorkerUnreliable,
    MachineUnreliable,
    ShapeFailing,
    OldestWaiting,
    NoCapacity,
    Brake,
    SpendHourly,
    SpendDaily,
    StoreSlow,
    StoreFull,
    CertificateEnds,
    TaskDown,
}

/// Which limit a condition has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlertLimit {
    None,
    /// With the limit that holds if the rule sets none.
    Time(Duration),
    /// There is no sensible default for money.
    Dollars,
}

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

impl AlertCondition {
    pub const ALL: [AlertCondition; 12] = [
        AlertCondition::WorkerUnreliable,
        AlertCondition::MachineUnreliable,
        AlertCondition::ShapeFailing,
        AlertCondition::OldestWaiting,
        AlertCondition::NoCapacity,
        AlertCondition::Brake,
        AlertCondition::SpendHourly,
        AlertCondition::SpendDaily,
        AlertCondition::StoreSlow,
        AlertCondition::StoreFull,
        AlertCondition::CertificateEnds,
        AlertCondition::TaskDown,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            AlertCondition::WorkerUnreliable => "worker_unreliable",
            AlertCondition::MachineUnreliable => "machine_unreliable",
            AlertCondition::ShapeFailing => "shape_failing",
            AlertCondition::OldestWaiting => "oldest_waiting",
            AlertCondition::NoCapacity => "no_capacity",
            AlertCondition::Brake => "brake",
            AlertCondition::SpendHourly => "spend_hourly",
            AlertCondition::SpendDaily => "spend_daily",
            AlertCondition::StoreSlow => "store_slow",
            AlertCondition::StoreFull => "store_full",
            AlertCondition::CertificateEnds => "certificate_ends",
            AlertCondition::TaskDown => "task_down",
        }
    }

    pub fn limit(self) -> AlertLimit {
        match self {
            // Ten times what a busy hour makes jobs wait.
            AlertCondition::OldestWaiting => AlertLimit::Time(10 * MINUTE),
            // The plane pauses its decisions after half a second.
            AlertCondition::StoreSlow => AlertLimit::Time(Duration::from_secs(2)),
            // Certificates are renewed a month before their end; half of that is left to notice that they were not.
            AlertCondition::CertificateEnds => AlertLimit::Time(14 * DAY),
            AlertCondition::SpendHourly | AlertCondition::SpendDaily => AlertLimit::Dollars,
            AlertCondition::WorkerUnreliable
            | AlertCondition::MachineUnreliable
            | AlertCondition::ShapeFailing
            | AlertCondition::NoCapacity
            | AlertCondition::Brake
            | AlertCondition::StoreFull
            | AlertCondition::TaskDown => AlertLimit::None,
        }
    }

    /// How long it must hold if the rule does not say.
    pub(super) fn default_hold(self) -> Duration {
        match self {
            // A plane that has just started has heard no worker yet, and a fleet grows within minutes.
            AlertCondition::NoCapacity => 2 * MINUTE,
            _ => Duration::ZERO,
        }
    }
}
