//! Who is loaded, who makes room for whom, and who waits in vain.

use std::sync::Arc;
use std::time::Duration;

use super::copy::{Copy, Life, Why};
use super::served::Terms;
use super::{CopyId, Effect, Roster};
use crate::failure::PoolError;
use crate::spec::Device;

impl Roster {
    /// Starts a copy in every place that should have one, as far as there is memory.
    pub(super) fn fill(&mut self, now: Duration, model: &Arc<str>) {
        let Some(served) = self.served.get(model) else { return };
        let (device, need_bytes) = (served.terms.device, served.terms.memory_bytes);
        for slot in 0..served.slots.len() {
            let Some(served) = self.served.get_mut(model) else { return };
            let has_demand = !served.line.is_empty();
            let place = &mut served.slots[slot];
            if place.copy.is_some() || place.not_before > now || (place.rests && !has_demand) {
                continue;
            }
            place.rests = false;
            let id = CopyId(self.last_copy + 1);
            if self.ledger.reserve(id, device, need_bytes) {
                self.last_copy += 1;
                place.copy = Some(id);
                place.lacks_room_since = None;
                self.copies.insert(id, Copy::new(id, Arc::clone(model), slot, now));
                self.effects.push(Effect::Start { copy: id, model: Arc::clone(model) });
                continue;
            }
            place.lacks_room_since.get_or_insert(now);
            // A second copy is a comfort: nobody is evicted for it.
            if (has_demand || !served.was_ready) && !self.has_copy_of_use(model) {
                self.make_room(now, model, need_bytes);
            }
        }
    }

    fn has_copy_of_use(&self, model: &Arc<str>) -> bool {
        self.copies.values().any(|copy| copy.model == *model && copy.is_of_use())
    }

    /// Lets go of those that nobody has used for the longest time, and of no more than it takes. Nobody at all if it
    /// would not be enough.
    fn make_room(&mut self, now: Duration, model: &Arc<str>, need_bytes: u64) {
        let device = self.device_of(model);
        let held = |copy: &Copy| self.ledger.held_by(copy.id);
        let is_coming_back = |copy: &&Copy| is_leaving(copy) && self.device_of(&copy.model) == device;
        let mut room = self.ledger.free_bytes(device)
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
        self.served[model].terms.device
    }

    /// Copies of other models on its device that have nothing to do, the longest unused first, with what they hold.
    fn idle(&self, besides: &Arc<str>) -> Vec<(CopyId, u64)> {
        let device = self.device_of(besides);
        let is_idle = |copy: &&Copy| {
            copy.model != *besides
                && self.device_of(&copy.model) == device
                && copy.is_ready()
                && self.served[&copy.model].line.is_empty()
        };
        let mut idle: Vec<&Copy> = self.copies.values().filter(is_idle).collect();
        idle.sort_by_key(|copy| (self.served[&copy.model].used_at, copy.id));
        idle.into_iter().map(|copy| (copy.id, self.ledger.held_by(copy.id))).collect()
    }

    /// Somebody ran out of memory in spite of what was reserved: the longest unused makes room.
    pub(super) fn spare_room(&mut self, now: Duration, id: CopyId) {
        let Some(copy) = self.copies.get(&id) else { return };
        if let Some((idle, _)) = self.idle(&copy.model).first().copied() {
            self.drain(now, idle);
        }
    }

    /// Ends it after what it is at; its place rests until somebody asks for the model.
    pub(super) fn drain(&mut self, now: Duration, id: CopyId) {
        let Some(copy) = self.copies.get_mut(&id).filter(|copy| copy.is_of_use()) else { return };
        copy.begins(now);
        copy.life = match std::mem::replace(&mut copy.life, Life::Loading) {
            Life::Busy(run) => Life::Draining(Some(run)),
            Life::Loading | Life::Proving(_) | Life::Ready | Life::Draining(_) | Life::Dead(_) => {
                self.effects.push(Effect::Quit(id));
                Life::Draining(None)
            }
        };
        let slot = copy.slot;
        if let Some(served) = self.served.get_mut(&copy.model) {
            served.slots[slot].rests = true;
        }
    }

    /// Nobody waits for a model that nobody is going to load.
    pub(super) fn forsake(&mut self, now: Duration, model: &Arc<str>) {
        let Some(served) = self.served.get(model) else { return };
        if served.line.is_empty() || self.has_copy_of_use(model) {
            return;
        }
        let patience = self.limits.patience;
        let has_hope = served.slots.iter().any(|slot| {
            let is_soon = slot.not_before <= now + patience;
            let has_room = slot.lacks_room_since.is_none_or(|since| now < since + patience);
            slot.copy.is_some() || (is_soon && has_room)
        });
        if has_hope {
            return;
        }
        let lacks_room = served.slots.iter().any(|slot| slot.lacks_room_since.is_some());
        let why = if lacks_room { self.lack_of_room(&served.terms) } else { last_words(&served.why) };
        let waiting: Vec<_> = served.line.items().map(|(_, item)| item.request).collect();
        let is_news = lacks_room && !served.told_of_room;
        if let Some(served) = self.served.get_mut(model) {
            served.told_of_room = lacks_room;
        }
        if is_news {
            self.effects.push(Effect::Escalate { model: Arc::clone(model), why: why.clone() });
        }
        for request in waiting {
            if self.requests.is_wanted(request) {
                let (model, why) = (model.to_string(), why.clone());
                self.answer(request, Err(PoolError::NoWorkers { model, why }));
            }
        }
    }

    fn lack_of_room(&self, terms: &Terms) -> String {
        let (device, need_bytes) = (terms.device, terms.memory_bytes);
        let (free_bytes, limit_bytes) = (self.ledger.free_bytes(device), self.ledger.limit_bytes(device));
        let is_hung = |copy: &&Copy| is_in_quarantine(copy) && self.device_of(&copy.model) == device;
        let hung = self.copies.values().filter(is_hung);
        let hung_bytes: u64 = hung.map(|copy| self.ledger.held_by(copy.id)).sum();
        let hint = if hung_bytes > 0 {
            format!("; {hung_bytes} are held by copies that hang, which only a new process gives back")
        } else {
            String::new()
        };
        let place = if device == Device::Cpu { String::new() } else { format!(" on {device}") };
        format!(
            "it needs {need_bytes} bytes of memory{place}, and {free_bytes} of {limit_bytes} are free{hint}"
        )
    }

    /// On closing: first what is under way, and at the deadline an answer to everybody.
    pub(super) fn wind_up(&mut self, now: Duration, until: Duration) {
        if now >= until {
            for request in self.requests.ids().collect::<Vec<_>>() {
                self.answer(request, Err(PoolError::Closing));
            }
        } else {
            // Nobody is started any more: what has nobody left has no answer to wait for.
            for model in self.served.keys().cloned().collect::<Vec<_>>() {
                self.abandon(&model);
            }
        }
        let is_needless =
            |copy: &&Copy| copy.is_of_use() && (now >= until || self.served[&copy.model].line.is_empty());
        let needless: Vec<CopyId> = self.copies.values().filter(is_needless).map(|copy| copy.id).collect();
        for id in needless {
            self.drain(now, id);
        }
        if now >= until {
            let rest = self.copies.values().filter(|copy| !copy.is_dead()).map(|copy| copy.id);
            self.effects.extend(rest.map(Effect::Kill));
        }
    }

    fn abandon(&mut self, model: &Arc<str>) {
        if self.has_copy_of_use(model) {
            return;
        }
        let waiting: Vec<_> = self.served[model].line.items().map(|(_, item)| item.request).collect();
        for request in waiting {
            if self.requests.is_wanted(request) {
                self.answer(request, Err(PoolError::Closing));
            }
        }
    }
}

/// What it holds comes back without anybody's doing.
fn is_leaving(copy: &Copy) -> bool {
    match &copy.life {
        Life::Draining(_) => true,
        Life::Dead(_) => !is_in_quarantine(copy),
        Life::Loading | Life::Proving(_) | Life::Ready | Life::Busy(_) => false,
    }
}

/// Given up as hung and not gone yet. A process is by the next moment; a thread may never be.
pub(super) fn is_in_quarantine(copy: &Copy) -> bool {
    matches!(copy.life, Life::Dead(Why::Hung(_)))
}

fn last_words(why: &Option<Why>) -> String {
    why.as_ref().map_or_else(|| "none has been started".to_owned(), |why| format!("the last one {why}"))
}
