//! Operators' placement rules for shapes: set, removed, and applied when a job is assigned.

use super::{DomainEvent, Plane, PlaneAnswer};
use crate::affinity::{AFFINITIES_MAX, Affinity};
use crate::document::Collection;
use crate::id::{Shape, WorkerId};
use crate::job::Job;
use crate::record::Record;
use crate::refusal::Refusal;
use crate::time::Timestamp;

impl Plane {
    pub(super) fn set_affinity(
        &mut self,
        now: Timestamp,
        shape: Shape,
        affinity: Affinity,
    ) -> Result<PlaneAnswer, Refusal> {
        if self.affinities.is_full_for(&shape) {
            return Err(Refusal::TooManyAffinities { max: AFFINITIES_MAX });
        }
        self.outbox.record(Record::Document(affinity.document(&shape)));
        self.outbox.publish(now, DomainEvent::AffinitySet { shape, affinity: &affinity });
        self.affinities.set(shape, affinity);
        self.needs_assign = true;
        Ok(PlaneAnswer::Done)
    }

    pub(super) fn remove_affinity(&mut self, now: Timestamp, shape: Shape) -> Result<PlaneAnswer, Refusal> {
        if !self.affinities.remove(&shape) {
            return Err(Refusal::NothingToLift);
        }
        self.outbox
            .record(Record::DocumentDeleted { collection: Collection::Affinity, id: shape.to_string() });
        self.outbox.publish(now, DomainEvent::AffinityRemoved(shape));
        self.needs_assign = true;
        Ok(PlaneAnswer::Done)
    }

    /// Whether an operator excluded this worker for this shape.
    pub(super) fn is_excluded(&self, shape: &Shape, worker: &WorkerId) -> bool {
        self.affinities.get(shape).is_some_and(|affinity| affinity.excluded.contains(worker))
    }

    /// The best free worker among those preferred by the job or, failing that, by its shape.
    pub(super) fn preferred_worker(&self, now: Timestamp, job: &Job) -> Option<WorkerId> {
        let own = job.options().map(|options| &options.preferred);
        let of_shape = self.affinities.get(&job.kind.shape).map(|affinity| &affinity.preferred);
        [own, of_shape].into_iter().flatten().find_map(|preferred| {
            let free = preferred.iter().filter(|worker| self.free.contains(*worker));
            self.best_of(now, job, free)
        })
    }
}
