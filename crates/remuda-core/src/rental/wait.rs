//! What a machine waits for in its present phase, and for how long: the limits of `overdue`, for display.

use std::time::Duration;

use super::{Rental, RentalState};
use crate::fleet::FleetSettings;
use crate::time::{Timestamp, humanize};

/// A running timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RentalWait {
    pub what: &'static str,
    pub since: Timestamp,
    pub max: Duration,
}

impl RentalWait {
    /// `image pull, 3 min of 30 min`.
    pub fn describe(&self, now: Timestamp) -> String {
        let whole = |time: Duration| humanize(Duration::from_secs(time.as_secs()));
        format!("{}, {} of {}", self.what, whole(now.since(self.since)), whole(self.max))
    }
}

impl Rental {
    /// What it waits for; `None` while it is up.
    pub fn current_wait(&self, fleet: &FleetSettings) -> Option<RentalWait> {
        let limits = &fleet.limits;
        let (what, since, max) = match (&self.state, self.running_at(), self.joined_at) {
            (RentalState::Wanted, ..) => ("provider reply", self.since, limits.lost_create_timeout),
            (RentalState::Lost { .. }, ..) => {
                ("pod whose creation was not confirmed", self.since, limits.lost_create_timeout)
            }
            (RentalState::Made { .. }, None, _) => {
                let since = self.pod().map_or(self.since, |pod| pod.seen_at);
                ("image pull", since, limits.image_pull_timeout)
            }
            (RentalState::Made { .. }, Some(running_at), None) => {
                ("registration", running_at, fleet.scaling.spawning_timeout)
            }
            (RentalState::Made { .. }, Some(_), Some(joined_at)) => {
                ("start check", joined_at, limits.readiness_timeout)
            }
            (RentalState::Draining { until, .. }, ..) => {
                let max = until.map_or(fleet.scaling.drain_timeout, |until| until.since(self.since));
                ("drain", self.since, max)
            }
            (RentalState::Returning { .. }, ..) => ("proof of deletion", self.since, limits.return_timeout),
            (RentalState::Up { .. }, ..) => return None,
        };
        Some(RentalWait { what, since, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{Pod, PodStatus};
    use crate::rental::{RentalEvent, ReturnCause};

    #[test]
    fn each_phase_has_its_own_timeout() {
        let mut pod = Pod {
            id: "p1".parse().unwrap(),
            tag: "remuda-x-gpus-1".to_owned(),
            status: PodStatus::Starting,
            kind: String::new(),
            place: String::new(),
            host: None,
            price: None,
            ssh: None,
            started: String::new(),
        };
        let at = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        let fleet = FleetSettings::new("gpus".parse().unwrap(), true);
        let machine = "gpus-1".parse().unwrap();
        let mut rental =
            Rental::wanted(at(0), machine, "remuda-x-gpus-1".to_owned(), "any".to_owned(), &fleet);
        let shown = |rental: &Rental, now| rental.current_wait(&fleet).map(|wait| wait.describe(now));
        assert_eq!(shown(&rental, at(1)).unwrap(), "provider reply, 1 min of 10 min");
        rental.seen(at(2), &pod);
        assert_eq!(shown(&rental, at(5)).unwrap(), "image pull, 3 min of 30 min");
        pod.status = PodStatus::Running;
        rental.seen(at(9), &pod);
        assert_eq!(shown(&rental, at(10)).unwrap(), "registration, 1 min of 5 min");
        rental.joined(at(11));
        assert_eq!(shown(&rental, at(12)).unwrap(), "start check, 1 min of 10 min");
        assert!(rental.apply(at(13), RentalEvent::Ready, String::new()));
        assert_eq!(shown(&rental, at(14)), None);
        assert!(rental.apply(at(20), RentalEvent::Drain { until: Some(at(22)) }, String::new()));
        assert_eq!(shown(&rental, at(21)).unwrap(), "drain, 1 min of 2 min");
        assert!(rental.apply(at(22), RentalEvent::GiveUp(ReturnCause::NotWanted), String::new()));
        assert_eq!(shown(&rental, at(23)).unwrap(), "proof of deletion, 1 min of 10 min");
    }
}
