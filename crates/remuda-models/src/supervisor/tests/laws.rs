//! The invariants that hold after every step.

use std::collections::BTreeMap;

use crate::supervisor::model_copy::CopyState;
use crate::supervisor::{CopyId, RequestId, Supervisor, SupervisorEffect};

/// The first broken law, if any.
pub(super) fn broken(supervisor: &Supervisor) -> Option<String> {
    memory(supervisor)
        .or_else(|| parts(supervisor))
        .or_else(|| slots(supervisor))
        .or_else(|| dispatched(supervisor))
}

/// Reserved memory is within the limit, held only by existing copies, and each copy holds exactly what it needs.
fn memory(supervisor: &Supervisor) -> Option<String> {
    let memory = &supervisor.memory;
    if memory.devices().any(|device| memory.reserved_bytes(device) > memory.limit_bytes(device)) {
        return Some("more memory is reserved than the limit".to_owned());
    }
    let orphan = memory.holders().find(|copy| !supervisor.copies.contains_key(copy));
    let is_short = |copy: &&CopyId| {
        let model = &supervisor.copies[*copy].model;
        memory.held_by(**copy) != supervisor.served[model].config.memory_bytes
    };
    let short = supervisor.copies.keys().find(is_short);
    orphan.or(short.copied()).map(|copy| format!("copy {copy} holds a wrong amount of memory"))
}

/// Every unanswered part of a live request is either queued once or in flight in one live copy.
fn parts(supervisor: &Supervisor) -> Option<String> {
    let mut places: BTreeMap<(RequestId, usize), u32> = BTreeMap::new();
    for (model, served) in &supervisor.served {
        let (mut tokens, mut bytes) = (0, 0);
        for (place, item) in served.queue.items() {
            tokens += item.part.tokens().max(1);
            bytes += item.part.bytes();
            *places.entry((item.request, item.index)).or_default() += 1;
            let pending = supervisor.requests.get(item.request);
            if !pending.is_some_and(|pending| pending.waiting.contains(&place)) {
                return Some(format!("the queue of {model} has a part without a request"));
            }
        }
        if (tokens, bytes) != (served.queue.tokens(), served.queue.bytes()) {
            return Some(format!("the queue of {model} has wrong totals"));
        }
    }
    for copy in supervisor.copies.values() {
        for item in copy.run().into_iter().flat_map(|run| &run.items) {
            *places.entry((item.request, item.index)).or_default() += 1;
        }
    }
    for id in supervisor.requests.ids() {
        let pending = supervisor.requests.get(id)?;
        let here = (0..pending.parts()).filter(|index| places.get(&(id, *index)) == Some(&1)).count();
        if here != pending.missing() {
            return Some(format!(
                "request {id:?} lacks {} answers, but {here} parts are queued or in flight",
                pending.missing()
            ));
        }
    }
    places.iter().find(|(_, count)| **count > 1).map(|(part, _)| format!("{part:?} is in two places"))
}

/// Every live copy is in its slot, and every occupied slot holds a live copy.
fn slots(supervisor: &Supervisor) -> Option<String> {
    for copy in supervisor.copies.values() {
        let place = supervisor.served[&copy.model].slots[copy.slot].copy;
        let is_its = place == Some(copy.id);
        if is_its == matches!(copy.state(), CopyState::Dead(_)) {
            return Some(format!("copy {} is {} but its slot holds {place:?}", copy.id, copy.state().name()));
        }
    }
    None
}

/// Queued work and a ready copy of the same model do not coexist.
fn dispatched(supervisor: &Supervisor) -> Option<String> {
    for (model, served) in &supervisor.served {
        let is_ready = supervisor.copies.values().any(|copy| copy.model == *model && copy.is_ready());
        if is_ready && !served.queue.is_empty() {
            return Some(format!("{model} has a ready copy and queued work"));
        }
    }
    None
}

/// Runs are only sent to copies whose state holds that run.
pub(super) fn misrouted(supervisor: &Supervisor, effects: &[SupervisorEffect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        SupervisorEffect::Run { copy, run, .. } => {
            let copy = supervisor.copies.get(copy);
            let is_current = copy.is_some_and(|copy| match copy.state() {
                CopyState::Testing(current) => current == run,
                CopyState::Busy(current) | CopyState::Draining(Some(current)) => current.id == *run,
                CopyState::Loading | CopyState::Ready | CopyState::Draining(None) | CopyState::Dead(_) => {
                    false
                }
            });
            (!is_current).then(|| format!("{run:?} was sent to {copy:?}"))
        }
        _ => None,
    })
}
