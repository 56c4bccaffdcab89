//! What follows from a copy's death: no more work for it, its parts elsewhere, its memory back once it is gone, and
//! another in its place.

use std::sync::Arc;
use std::time::Duration;

use super::copy::{Life, Why};
use super::line::Item;
use super::{CopyId, Effect, Roster};
use crate::failure::Failure;

/// Two copies that died with the same part in flight: the third is not risked.
const DEATHS_MAX: u32 = 2;
/// Who was ready for so long did not die of how it was started.
const OF_USE_AFTER: Duration = Duration::from_secs(10);

impl Roster {
    /// Our verdict: it did not end by itself, so it has to be ended.
    pub(super) fn condemn(&mut self, now: Duration, id: CopyId, why: Why) {
        self.effects.push(Effect::Kill(id));
        self.bury(now, id, why);
    }

    pub(super) fn bury(&mut self, now: Duration, id: CopyId, why: Why) {
        let Some(copy) = self.copies.get_mut(&id).filter(|copy| !copy.is_dead()) else { return };
        let items = match std::mem::replace(&mut copy.life, Life::Dead(why.clone())) {
            Life::Busy(run) | Life::Draining(Some(run)) => run.items,
            Life::Loading | Life::Proving(_) | Life::Ready | Life::Draining(None) | Life::Dead(_) => {
                Vec::new()
            }
        };
        let model = Arc::clone(&copy.model);
        let lived = copy.ready_at.map_or(Duration::ZERO, |at| now.saturating_sub(at));
        let was_of_use = copy.answered > 0 || lived >= OF_USE_AFTER;
        let slot = copy.slot;
        if let Some(served) = self.served.get_mut(&model) {
            *served.tally.deaths.entry(why.name()).or_default() += 1;
            let budget = (self.limits.deaths_max, self.limits.parole);
            if served.slots[slot].died(now, &why, was_of_use, budget) {
                let why = format!("{} deaths in a row, the last: {why}", served.slots[slot].deaths);
                self.effects.push(Effect::Escalate { model: Arc::clone(&model), why });
            }
            if why != Why::Told {
                served.why = Some(why.clone());
            }
        }
        for item in items.into_iter().rev() {
            self.move_on(id, item, &why);
        }
        if matches!(why, Why::Load(crate::LoadError::Memory { .. })) {
            self.spare_room(now, id);
        }
        self.effects.push(Effect::Removed { copy: id, model, why });
    }

    /// To another copy, if that is right. What was said of its answer goes with it.
    fn move_on(&mut self, id: CopyId, item: Item, why: &Why) {
        if *why == Why::Told {
            return self.requeue(item);
        }
        let deaths = item.deaths + 1;
        if deaths >= DEATHS_MAX {
            let what = format!("{deaths} copies died at it and it is not given to another; the last {why}");
            return self.give_up(item.request, Failure::Engine(what));
        }
        if let Some(served) = self.copies.get(&id).and_then(|copy| self.served.get_mut(&copy.model)) {
            served.tally.moved += 1;
        }
        self.requeue(Item { deaths, alone: true, avoid: Some(id), ..item });
    }

    pub(super) fn gone(&mut self, now: Duration, id: CopyId) {
        self.bury(now, id, Why::Exited("without a word".to_owned()));
        self.ledger.release(id);
        self.copies.remove(&id);
    }
}
