//! Read-only queries of the supervisor's state.

use std::time::Duration;

use super::model_copy::ModelCopy;
use super::{CopyId, RequestId, RunId, Supervisor};

impl Supervisor {
    /// The copies whose beacons have to be read.
    pub(crate) fn watched(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.copies.values().filter(|copy| copy.is_watched()).map(|copy| copy.id)
    }

    /// Eight readings within the shortest stall limit of any model.
    pub(crate) fn beacon_read_interval(&self) -> Duration {
        let limits =
            self.served.values().flat_map(|served| [served.config.stall_max, served.config.load_stall_max]);
        (limits.min().unwrap_or(Duration::from_secs(8)) / 8)
            .clamp(Duration::from_millis(5), Duration::from_secs(1))
    }

    /// When the next time-based action is due.
    pub(crate) fn wake_at(&self, now: Duration) -> Duration {
        let looks = self.watched().next().map(|_| now + self.beacon_read_interval());
        let maintenance = Some(self.maintained_at + self.limits.maintenance_every);
        let closing = self.closes_at.filter(|at| *at > now);
        let starts = self.served.values().flat_map(|served| {
            let waits = !served.queue.is_empty();
            let empty =
                served.slots.iter().filter(move |slot| slot.copy.is_none() && (waits || !slot.is_evicted));
            empty.flat_map(|slot| {
                [Some(slot.not_before), slot.lacks_memory_since.map(|at| at + self.limits.copy_wait_max)]
            })
        });
        let due = [looks, maintenance, closing, self.requests.first_deadline()].into_iter().chain(starts);
        due.flatten().filter(|at| *at > now).min().unwrap_or(now + self.limits.maintenance_every)
    }

    /// The request that receives the updates of this run, if the run is current.
    pub(crate) fn streaming_request(&self, copy: CopyId, run: RunId) -> Option<RequestId> {
        let current = self.copies.get(&copy)?.run().filter(|current| current.id == run)?;
        current.items.first().map(|item| item.request).filter(|request| self.requests.is_wanted(*request))
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closes_at.is_some() && self.requests.len() == 0 && self.copies.is_empty()
    }

    /// Alive as far as is known without pinging.
    pub(crate) fn is_alive(&self, id: CopyId) -> bool {
        self.copies.get(&id).is_some_and(|copy| !copy.is_dead())
    }

    /// Copies that have or will get work, least busy first.
    pub(crate) fn usable_copies(&self, model: &str) -> Vec<CopyId> {
        let mut usable: Vec<&ModelCopy> =
            self.copies.values().filter(|copy| &*copy.model == model && copy.is_usable()).collect();
        usable.sort_by_key(|copy| (!copy.is_ready(), copy.run().map_or(0, |run| run.items.len()), copy.id));
        usable.into_iter().map(|copy| copy.id).collect()
    }
}
