//! What the plane knows that alerts look at. Read-only, bounded by workers and machines, never by jobs.

use super::Plane;
use crate::alert::AlertInputs;
use crate::time::Timestamp;

/// Of each kind; `evaluate` shows far fewer.
const NAMES_MAX: usize = 1000;

impl Plane {
    pub fn alert_inputs(&self, now: Timestamp) -> AlertInputs {
        let fleets = &self.settings.fleets;
        let quarantined = self.quarantine().iter().filter(|(_, entry)| entry.is_quarantined());
        let shapes = quarantined.map(|(jobs, _)| (jobs.shape.short(), jobs.tenant.to_string()));
        let oldest = self.oldest_waiting();
        AlertInputs {
            now,
            unreliable_workers: names(self.unreliable_workers(now)),
            unreliable_machines: names(self.unreliable_machines(now)),
            failing_shapes: shapes.take(NAMES_MAX).collect(),
            oldest_waiting: oldest.map(|job| (job.id, job.age(now))),
            ready_jobs: self.ready_jobs(),
            ready_workers: self.workers().filter(|worker| worker.availability(now).is_ready()).count(),
            brakes: self.brakes_on(now),
            hourly: fleets.iter().map(|fleet| self.fleet_hourly_price(&fleet.id)).sum(),
            today: fleets.iter().map(|fleet| self.spent_today(now, fleet)).sum(),
            ..AlertInputs::default()
        }
    }

    /// Brakes that are on: a name, and why.
    fn brakes_on(&self, now: Timestamp) -> Vec<(String, String)> {
        let mass_loss = self.mass_loss().reason(now).map(|reason| ("mass loss".to_owned(), reason));
        let creation = self.settings.fleets.iter().filter_map(|fleet| {
            let reason = self.fleet(&fleet.id).creation.reason(now)?;
            Some((format!("creation in {}", fleet.id), format!("fleet {}: {reason}", fleet.id)))
        });
        mass_loss.into_iter().chain(creation).collect()
    }
}

fn names<T: ToString>(found: impl Iterator<Item = T>) -> Vec<String> {
    found.take(NAMES_MAX).map(|name| name.to_string()).collect()
}
