//! Deliberate defects at the boundary of the core, as in `world::sabotage`: each stands for a line of code that could be
//! deleted by mistake, and each must be found by the search.

use remuda_core::id::{Attempt, JobId};
use remuda_core::plane::{Plane, PlaneEvent};
use remuda_core::wire::{Beat, FinishedAttempt, HeldAttempt};

use super::plane::Occasion;
use super::{AttemptState, Attempts};
use crate::model::search::BrokenRule;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AttemptSabotage {
    /// A report counts for the job's current attempt, whichever worker sent it.
    DropFence,
    /// A report of the worker that holds the job counts, whichever attempt it names.
    AnyAttemptNumber,
    /// A beat counts regardless of its age and incarnation.
    AcceptStaleBeats,
    /// Orders are sent before the attempt is stored.
    OrdersBeforeCommit,
    /// The id of a prompt is recorded only after the service has answered: a new agent process does not find it before.
    RecordIdAfterSubmission,
    /// A worker whose call timed out is assumed to hold nothing.
    RequeueOnTimeout,
    /// History is read before the queue.
    HistoryBeforeQueue,
    /// What a worker holds is taken from the plane's own records.
    IgnoreInventory,
    /// A drain is confirmed and not carried out.
    IgnoreDrain,
}

impl Attempts {
    /// The beat that the plane sees.
    pub(super) fn forged_beat(&self, plane: &Plane, event: PlaneEvent) -> PlaneEvent {
        let (Some(sabotage), PlaneEvent::Beat { worker, token_hash, mut beat, long_poll }) =
            (self.sabotage, event.clone())
        else {
            return event;
        };
        let holder = plane.workers().find(|it| it.assignments.contains_key(&self.job));
        match (sabotage, holder) {
            (AttemptSabotage::AcceptStaleBeats, _) => {
                let Some(it) = plane.worker(&worker) else { return event };
                (beat.incarnation, beat.term) = (it.incarnation, plane.term());
                beat.seq = beat.seq.max(it.beat_seq + 1);
                PlaneEvent::Beat { worker, token_hash: it.token_hash, beat, long_poll }
            }
            (AttemptSabotage::DropFence, Some(holder)) if holder.id != worker => {
                let attempt = holder.assignments[&self.job].attempt;
                let Some(finished) = beat.finished.first().cloned() else { return event };
                let beat = Beat {
                    incarnation: holder.incarnation,
                    seq: holder.beat_seq + 1,
                    term: plane.term(),
                    held: Vec::new(),
                    finished: vec![FinishedAttempt { attempt, ..finished }],
                    ..*beat
                };
                let (worker, token_hash) = (holder.id.clone(), holder.token_hash);
                PlaneEvent::Beat { worker, token_hash, beat: Box::new(beat), long_poll: false }
            }
            (AttemptSabotage::AnyAttemptNumber, Some(holder)) if holder.id == worker => {
                for finished in &mut beat.finished {
                    finished.attempt = holder.assignments[&self.job].attempt;
                }
                PlaneEvent::Beat { worker, token_hash, beat, long_poll }
            }
            (AttemptSabotage::IgnoreInventory, Some(holder)) if holder.id == worker => {
                let attempt = holder.assignments[&self.job].attempt;
                if beat.finished.is_empty() {
                    beat.held = vec![held(self.job, attempt)];
                }
                PlaneEvent::Beat { worker, token_hash, beat, long_poll }
            }
            _ => event,
        }
    }

    pub(super) fn maybe_requeue_on_timeout(
        &self,
        state: &mut AttemptState,
        host: usize,
    ) -> Result<(), BrokenRule> {
        if !self.is_sabotaged(AttemptSabotage::RequeueOnTimeout) {
            return Ok(());
        }
        let Some(known) = state.plane.worker(&self.workers[host]) else { return Ok(()) };
        let (incarnation, seq, token_hash) = (known.incarnation, known.beat_seq + 1, known.token_hash);
        let term = state.plane.term();
        let beat = Beat {
            incarnation,
            seq,
            term,
            held: Vec::new(),
            finished: Vec::new(),
            slots: None,
            unavailable_reason: None,
            offer: None,
            metrics: serde_json::Map::new(),
            check: None,
            draining: false,
            service_restarts: None,
            probes: Default::default(),
        };
        let worker = self.workers[host].clone();
        let event = PlaneEvent::Beat { worker, token_hash, beat: Box::new(beat), long_poll: false };
        self.step_plane(state, event, Occasion::Timer).map(drop)
    }
}

fn held(job: JobId, attempt: Attempt) -> HeldAttempt {
    HeldAttempt { job, attempt, progress: 0.0, step: 0, phase: String::new(), service: None }
}
