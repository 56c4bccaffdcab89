//! The kinds of events, and their names at the edge: HTTP, webhooks, logs. Code decides by the kind, never by the name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Declares the kinds with their names, so that each name stands once.
macro_rules! event_kinds {
    ($($kind:ident = $name:literal,)*) => {
        /// What an event is about.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum EventKind {
            $($kind,)*
        }

        impl EventKind {
            pub const ALL: &[EventKind] = &[$(EventKind::$kind,)*];

            pub fn as_str(self) -> &'static str {
                match self {
                    $(EventKind::$kind => $name,)*
                }
            }
        }
    };
}

event_kinds! {
    JobQueued = "job:queued",
    JobStarted = "job:started",
    JobRetrying = "job:retrying",
    JobRecovered = "job:recovered",
    JobCompleted = "job:completed",
    JobFailed = "job:failed",
    JobCancelled = "job:cancelled",
    // Live only, never stored.
    JobProgress = "job:progress",
    JobPreview = "job:preview",
    WorkerOnline = "worker:online",
    WorkerOffline = "worker:offline",
    WorkerState = "worker:state",
    WorkerUnreliable = "worker:unreliable",
    WorkerWarning = "worker:warning",
    WorkerForgotten = "worker:forgotten",
    // The names of the first clients: there, a client is what is a worker here.
    ClientState = "client:state",
    ClientBlocked = "client:blocked_workflow",
    ClientUnblocked = "client:unblocked_workflow",
    WorkflowQuarantined = "workflow:quarantined",
    WorkflowReleased = "workflow:released",
    AffinitySet = "affinity:set",
    AffinityRemoved = "affinity:removed",
    MachineState = "machine:state",
    MachineUnreliable = "machine:unreliable",
    MachineOrphan = "machine:orphan",
    MachineAlarm = "machine:alarm",
    FleetOrder = "fleet:order",
    FleetFault = "fleet:fault",
    FleetDoubt = "fleet:doubt",
    FleetBrake = "fleet:brake",
    FleetBrakeReleased = "fleet:brake_released",
    ScaleUp = "scale:up",
    ScaleDown = "scale:down",
    WebhookDelivered = "webhook:delivered",
    WebhookGivenUp = "webhook:given_up",
    PlaneSettings = "plane:settings",
    PlaneAway = "plane:away",
    PlaneClock = "plane:clock",
}

impl EventKind {
    /// Whether the job of the event has its outcome.
    pub fn is_job_end(self) -> bool {
        matches!(self, EventKind::JobCompleted | EventKind::JobFailed | EventKind::JobCancelled)
    }

    /// The two halves of its name: `job` and `completed`.
    pub fn parts(self) -> (&'static str, &'static str) {
        self.as_str().split_once(':').unwrap_or((self.as_str(), ""))
    }

    /// Whether a filter for this name, or for the part before the colon, lets it through.
    pub fn is_named(self, wanted: &str) -> bool {
        self.as_str() == wanted || self.parts().0 == wanted
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The name is that of no event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownEventName(pub String);

impl fmt::Display for UnknownEventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no event is called {:?}", self.0)
    }
}

impl std::error::Error for UnknownEventName {}

impl FromStr for EventKind {
    type Err = UnknownEventName;

    fn from_str(name: &str) -> Result<Self, UnknownEventName> {
        let kind = EventKind::ALL.iter().find(|kind| kind.as_str() == name);
        kind.copied().ok_or_else(|| UnknownEventName(name.to_owned()))
    }
}

impl Serialize for EventKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for EventKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_read_back_as_its_kind() {
        for kind in EventKind::ALL {
            let (subject, what) = kind.parts();
            assert_eq!(format!("{subject}:{what}").parse(), Ok(*kind));
            let written = serde_json::to_string(kind).unwrap();
            assert_eq!(serde_json::from_str::<EventKind>(&written).unwrap(), *kind);
        }
        assert!("job:unheard".parse::<EventKind>().is_err());
    }

    #[test]
    fn filter_matches_the_whole_name_or_its_first_part() {
        let kind = EventKind::JobFailed;
        assert!(kind.is_named("job") && kind.is_named("job:failed"));
        assert!(!kind.is_named("jo") && !kind.is_named("job:completed") && !kind.is_named("failed"));
    }

    #[test]
    fn every_event_is_documented() {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/failover.md");
        let text = std::fs::read_to_string(path).unwrap();
        let missing: Vec<_> =
            EventKind::ALL.iter().filter(|kind| !text.contains(&format!("`{kind}`"))).collect();
        assert!(missing.is_empty(), "docs/failover.md does not have {missing:?}");
    }
}
