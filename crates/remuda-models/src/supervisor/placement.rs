//! Which copies are loaded, which are evicted for others, and which requests cannot be served.

use std::sync::Arc;
use std::time::Duration;

use super::model_copy::{CopyEvent, CopyState, ExitReason, ModelCopy};
use super::served_model::ServingConfig;
use super::{CopyId, Supervisor, SupervisorEffect};
use crate::failure::ModelError;
use crate::spec::Device;

impl Supervisor {
    /// Starts a copy in every empty slot that should have one, as far as memory allows.
    pub(super) fn start_missing_copies(&mut self, now: Duration, model: &Arc<str>) {
        let Some(served) = self.served.get(model) else { return };
        let (device, need_bytes) = (served.config.device, served.config.memory_bytes);
        for slot in 0..served.slots.len() {
            let Some(served) = self.served.get_mut(model) else { return };
            let has_demand = !served.queue.is_empty();
            let place = &mut served.slots[slot];
            if place.copy.is_some() || place.not_before > now || (place.is_evicted && !has_demand) {
                continue;
            }
            place.is_evicted = false;
            let id = CopyId(self.last_copy + 1);
            if self.memory.reserve(id, device, need_bytes) {
                self.last_copy += 1;
                place.copy = Some(id);
                place.lacks_memory_since = None;
                self.copies.insert(id, ModelCopy::new(id, Arc::clone(model), slot, now));
                self.effects.push(SupervisorEffect::Start { copy: id, model: Arc::clone(model) });
                continue;
            }
            place.lacks_memory_since.get_or_insert(now);
            // No copy is evicted for a second copy of the same model.
            if (has_demand || !served.was_ready) && !self.has_usable_copy(model) {
                self.evict_for(now, model, need_bytes);
            }
        }
    }

    fn has_usable_copy(&self, model: &Arc<str>) -> bool {
        self.copies.values().any(|copy| copy.model == *model && copy.is_usable())
    }

    /// Evicts the least recently used idle copies, as few as needed, and none if that would not free enough.
    fn evict_for(&mut self, now: Duration, model: &Arc<str>, need_bytes: u64) {
        let device = self.device_of(model);
        let held = |copy: &ModelCopy| self.memory.held_by(copy.id);
        let is_coming_back = |copy: &&ModelCopy| is_ending(copy) && self.device_of(&copy.model) == device;
        let mut room = self.memory.free_bytes(device)
            + self.copies.values().filter(is_coming_back).map(held).sum::<u64>();
        let mut leaving = Vec::new();
        for (id, bytes) in self.idle(model) {
            if room >= need_bytes {
                break;
            }
            room += bytes;
            leaving.push(id);
        }
        if room >= need_bytes {
            for id in leaving {
                self.drain(now, id);
            }
        }
    }

    fn device_of(&self, model: &Arc<str>) -> Device {
        self.served[model].config.device
    }

    /// Idle copies of other models on the same device, least recently used first, with the memory they hold.
    fn idle(&self, besides: &Arc<str>) -> Vec<(CopyId, u64)> {
        let device = self.device_of(besides);
        let is_idle = |copy: &&ModelCopy| {
            copy.model != *besides
                && self.device_of(&copy.model) == device
                && copy.is_ready()
                && self.served[&copy.model].queue.is_empty()
        };
        let mut idle: Vec<&ModelCopy> = self.copies.values().filter(is_idle).collect();
        idle.sort_by_key(|copy| (self.served[&copy.model].used_at, copy.id));
        idle.into_iter().map(|copy| (copy.id, self.memory.held_by(copy.id))).collect()
    }

    /// A copy ran out of memory despite its reservation: evicts the least recently used idle copy.
    pub(super) fn evict_one_idle(&mut self, now: Duration, id: CopyId) {
        let Some(copy) = self.copies.get(&id) else { return };
        if let Some((idle, _)) = self.idle(&copy.model).first().copied() {
            self.drain(now, idle);
        }
    }

    /// Ends a copy after its current run. Its slot stays empty until the model is requested.
    pub(super) fn drain(&mut self, now: Duration, id: CopyId) {
        let Some(copy) = self.copies.get_mut(&id).filter(|copy| copy.is_usable()) else { return };
        copy.reset_silence(now);
        copy.apply(CopyEvent::Drain);
        if copy.run().is_none() {
            self.effects.push(SupervisorEffect::Quit(id));
        }
        let slot = copy.slot;
        if let Some(served) = self.served.get_mut(&copy.model) {
            served.slots[slot].is_evicted = true;
        }
    }

    /// Fails requests for a model that no copy is going to serve.
    pub(super) fn fail_unservable(&mut self, now: Duration, model: &Arc<str>) {
        let Some(served) = self.served.get(model) else { return };
        if served.queue.is_empty() || self.has_usable_copy(model) {
            return;
        }
        let copy_wait_max = self.limits.copy_wait_max;
        let is_startable = served.slots.iter().any(|slot| {
            let is_soon = slot.not_before <= now + copy_wait_max;
            let has_room = slot.lacks_memory_since.is_none_or(|since| now < since + copy_wait_max);
            slot.copy.is_some() || (is_soon && has_room)
        });
        if is_startable {
            return;
        }
        let lacks_room = served.slots.iter().any(|slot| slot.lacks_memory_since.is_some());
        let why = if lacks_room { self.memory_shortage(&served.config) } else { last_exit_text(&served.why) };
        let waiting: Vec<_> = served.queue.items().map(|(_, item)| item.request).collect();
        let is_new_shortage = lacks_room && !served.is_shortage_escalated;
        if let Some(served) = self.served.get_mut(model) {
            served.is_shortage_escalated = lacks_room;
        }
        if is_new_shortage {
            self.effects.push(SupervisorEffect::Escalate { model: Arc::clone(model), why: why.clone() });
        }
        for request in waiting {
            if self.requests.is_wanted(request) {
                let (model, why) = (model.to_string(), why.clone());
                self.answer(request, Err(ModelError::NoWorkers { model, why }));
            }
        }
    }

    fn memory_shortage(&self, terms: &ServingConfig) -> String {
        let (device, need_bytes) = (terms.device, terms.memory_bytes);
        let (free_bytes, limit_bytes) = (self.memory.free_bytes(device), self.memory.limit_bytes(device));
        let is_hung = |copy: &&ModelCopy| is_stuck(copy) && self.device_of(&copy.model) == device;
        let hung = self.copies.values().filter(is_hung);
        let hung_bytes: u64 = hung.map(|copy| self.memory.held_by(copy.id)).sum();
        let hint = if hung_bytes > 0 {
            format!("; {hung_bytes} are held by hung copies, which only a restart of this process frees")
        } else {
            String::new()
        };
        let place = if device == Device::Cpu { String::new() } else { format!(" on {device}") };
        format!(
            "it needs {need_bytes} bytes of memory{place}, and {free_bytes} of {limit_bytes} are free{hint}"
        )
    }

    /// While closing: finishes work in progress, and at the deadline answers every request.
    pub(super) fn drain_all(&mut self, now: Duration, until: Duration) {
        if now >= until {
            for request in self.requests.ids().collect::<Vec<_>>() {
                self.answer(request, Err(ModelError::Closing));
            }
        } else {
            // No copy is started any more, so requests of a model without copies fail now.
            for model in self.served.keys().cloned().collect::<Vec<_>>() {
                self.fail_unstartable(&model);
            }
        }
        let is_unneeded = |copy: &&ModelCopy| {
            copy.is_usable() && (now >= until || self.served[&copy.model].queue.is_empty())
        };
        let unneeded: Vec<CopyId> = self.copies.values().filter(is_unneeded).map(|copy| copy.id).collect();
        for id in unneeded {
            self.drain(now, id);
        }
        if now >= until {
            let rest = self.copies.values().filter(|copy| !copy.is_dead()).map(|copy| copy.id);
            self.effects.extend(rest.map(SupervisorEffect::Kill));
        }
    }

    fn fail_unstartable(&mut self, model: &Arc<str>) {
        if self.has_usable_copy(model) {
            return;
        }
        let waiting: Vec<_> = self.served[model].queue.items().map(|(_, item)| item.request).collect();
        for request in waiting {
            if self.requests.is_wanted(request) {
                self.answer(request, Err(ModelError::Closing));
            }
        }
    }
}

/// Its memory will be released without further action.
fn is_ending(copy: &ModelCopy) -> bool {
    match copy.state() {
        CopyState::Draining(_) => true,
        CopyState::Dead(_) => !is_stuck(copy),
        CopyState::Loading | CopyState::Testing(_) | CopyState::Ready | CopyState::Busy(_) => false,
    }
}

/// Declared hung but not reaped yet. A process is reaped immediately; a thread may never end.
pub(super) fn is_stuck(copy: &ModelCopy) -> bool {
    matches!(copy.state(), CopyState::Dead(ExitReason::Hung(_)))
}

fn last_exit_text(why: &Option<ExitReason>) -> String {
    why.as_ref().map_or_else(|| "no copy was started".to_owned(), |why| format!("the last copy {why}"))
}
