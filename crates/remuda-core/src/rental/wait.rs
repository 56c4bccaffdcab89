//! What a machine waits for in its present phase, and for how long: the limits of `overdue`, for display.

use std::time::Duration;

use super::{Rental, RentalPhase};
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
        let (what, since, max) = match (self.phase, self.running_at, self.joined_at) {
            (RentalPhase::Wanted, ..) => ("provider reply", self.since, limits.lost_create_timeout),
            (RentalPhase::Lost, ..) => {
                ("pod whose creation was not confirmed", self.since, limits.lost_create_timeout)
            }
            (RentalPhase::Made, None, _) => {
                ("image pull", self.made_at.unwrap_or(self.since), limits.image_pull_timeout)
            }
            (RentalPhase::Made, Some(running_at), None) => {
                ("registration", running_at, fleet.scaling.spawning_timeout)
            }
            (RentalPhase::Made, Some(_), Some(joined_at)) => {
                ("start check", joined_at, limits.readiness_timeout)
            }
            (RentalPhase::Draining, ..) => ("drain", self.since, self.drain_max(fleet)),
            (RentalPhase::Returning, ..) => ("proof of deletion", self.since, limits.return_timeout),
            (RentalPhase::Up, ..) => return None,
        };
        Some(RentalWait { what, since, max })
    }

    fn drain_max(&self, fleet: &FleetSettings) -> Duration {
        self.drain_until.map_or(fleet.scaling.drain_timeout, |until| until.since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_own_timeout() {
        let at = |minutes: u64| Timestamp::from_millis(minutes * 60_000);
        let fleet = FleetSettings::new("gpus".parse().unwrap(), true);
        let machine = "gpus-1".parse().unwrap();
        let mut rental =
            Rental::wanted(at(0), machine, "remuda-x-gpus-1".to_owned(), "any".to_owned(), &fleet);
        let shown = |rental: &Rental, now| rental.current_wait(&fleet).map(|wait| wait.describe(now));
        assert_eq!(shown(&rental, at(1)).unwrap(), "provider reply, 1 min of 10 min");
        rental.made_at = Some(at(2));
        rental.go(at(2), RentalPhase::Made, String::new());
        assert_eq!(shown(&rental, at(5)).unwrap(), "image pull, 3 min of 30 min");
        rental.running_at = Some(at(9));
        assert_eq!(shown(&rental, at(10)).unwrap(), "registration, 1 min of 5 min");
        rental.joined_at = Some(at(11));
        assert_eq!(shown(&rental, at(12)).unwrap(), "start check, 1 min of 10 min");
        rental.go(at(13), RentalPhase::Up, String::new());
        assert_eq!(shown(&rental, at(14)), None);
        rental.go(at(20), RentalPhase::Draining, String::new());
        rental.drain_until = Some(at(22));
        assert_eq!(shown(&rental, at(21)).unwrap(), "drain, 1 min of 2 min");
        rental.go(at(22), RentalPhase::Returning, String::new());
        assert_eq!(shown(&rental, at(23)).unwrap(), "proof of deletion, 1 min of 10 min");
    }
}
