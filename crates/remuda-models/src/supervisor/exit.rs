//! The death of a copy: it gets no more work, its parts move to another copy, its memory is released once it is reaped,
//! and its slot is filled again.

use std::sync::Arc;
use std::time::Duration;

use super::model_copy::{CopyChange, CopyEvent, ExitReason};
use super::queue::QueuedPart;
use super::{CopyId, Supervisor, SupervisorEffect};
use crate::failure::InferenceError;

/// A part in flight during two deaths is not given to a third copy.
const DEATHS_MAX: u32 = 2;
/// A copy that was ready for this long did not die of a failed start.
const STABLE_AFTER: Duration = Duration::from_secs(10);

impl Supervisor {
    /// Kills a copy that did not end by itself.
    pub(super) fn kill_copy(&mut self, now: Duration, id: CopyId, why: ExitReason) {
        self.effects.push(SupervisorEffect::Kill(id));
        self.mark_dead(now, id, why);
    }

    pub(super) fn mark_dead(&mut self, now: Duration, id: CopyId, why: ExitReason) {
        let Some(copy) = self.copies.get_mut(&id) else { return };
        match copy.apply(CopyEvent::Die(why.clone())) {
            CopyChange::Ignored => {}
            CopyChange::Moved => self.copy_died(now, id, why, Vec::new()),
            CopyChange::Released(batch) => self.copy_died(now, id, why, batch.items),
        }
    }

    /// A copy is dead: draws the conclusions for its slot, and for the parts that were in flight in it.
    pub(super) fn copy_died(&mut self, now: Duration, id: CopyId, why: ExitReason, items: Vec<QueuedPart>) {
        let Some(copy) = self.copies.get(&id) else { return };
        let model = Arc::clone(&copy.model);
        let lived = copy.ready_at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let was_stable = copy.answered > 0 || lived >= STABLE_AFTER;
        let slot = copy.slot;
        if let Some(served) = self.served.get_mut(&model) {
            *served.counters.deaths.entry(why.name()).or_default() += 1;
            let budget = (self.limits.deaths_max, self.limits.crash_loop_pause);
            if served.slots[slot].died(now, &why, was_stable, budget) {
                let why = format!("{} deaths in a row; the last copy {why}", served.slots[slot].deaths);
                self.effects.push(SupervisorEffect::Escalate { model: Arc::clone(&model), why });
            }
            if why != ExitReason::Requested {
                served.why = Some(why.clone());
            }
        }
        for item in items.into_iter().rev() {
            self.requeue_after_crash(id, item, &why);
        }
        if matches!(why, ExitReason::Load(crate::LoadError::Memory { .. })) {
            self.evict_one_idle(now, id);
        }
        self.effects.push(SupervisorEffect::Removed { copy: id, model, why });
    }

    /// Returns a part to the queue for another copy, or fails it. The text streamed so far stays with the part.
    fn requeue_after_crash(&mut self, id: CopyId, item: QueuedPart, why: &ExitReason) {
        if *why == ExitReason::Requested {
            return self.requeue(item);
        }
        let deaths = item.deaths + 1;
        if deaths >= DEATHS_MAX {
            let what =
                format!("{deaths} copies died while computing it, so it is not retried; the last {why}");
            return self.fail_request(item.request, InferenceError::Engine(what));
        }
        if let Some(served) = self.copies.get(&id).and_then(|copy| self.served.get_mut(&copy.model)) {
            served.counters.moved += 1;
        }
        self.requeue(QueuedPart { deaths, alone: true, avoid: Some(id), ..item });
    }

    pub(super) fn reaped(&mut self, now: Duration, id: CopyId) {
        self.mark_dead(now, id, ExitReason::Exited("without reporting a reason".to_owned()));
        self.memory.release(id);
        self.copies.remove(&id);
    }
}
