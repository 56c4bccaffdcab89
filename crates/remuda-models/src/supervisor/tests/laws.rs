//! What holds after every step, as code.

use std::collections::BTreeMap;

use crate::supervisor::model_copy::CopyState;
use crate::supervisor::{CopyId, PoolEffect, RequestId, Supervisor};

/// Which law is broken, if one is.
pub(super) fn broken(supervisor: &Supervisor) -> Option<String> {
    memory(supervisor)
        .or_else(|| parts(supervisor))
        .or_else(|| places(supervisor))
        .or_else(|| hope(supervisor))
}

/// Never more than the limit, held by nobody but copies that are there, and by each exactly what it needs.
fn memory(supervisor: &Supervisor) -> Option<String> {
    let memory = &supervisor.memory;
    if memory.devices().any(|device| memory.reserved_bytes(device) > memory.limit_bytes(device)) {
        return Some("more memory is held than there is".to_owned());
    }
    let stranger = memory.holders().find(|copy| !supervisor.copies.contains_key(copy));
    let is_short = |copy: &&CopyId| {
        let model = &supervisor.copies[*copy].model;
        memory.held_by(**copy) != supervisor.served[model].config.memory_bytes
    };
    let short = supervisor.copies.keys().find(is_short);
    stranger.or(short.copied()).map(|copy| format!("the memory of copy {copy} is not what it should be"))
}

/// A part of a request that somebody waits for is in one place: in the line, or in flight in a copy that lives.
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
                return Some(format!("{model} has a part in its line that nobody waits for"));
            }
        }
        if (tokens, bytes) != (served.queue.tokens(), served.queue.bytes()) {
            return Some(format!("the line of {model} is counted wrongly"));
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
                "{} parts of request {id:?} are missing and {here} are somewhere",
                pending.missing()
            ));
        }
    }
    places.iter().find(|(_, count)| **count > 1).map(|(part, _)| format!("{part:?} is in two places"))
}

/// A place has a copy that is there and belongs to it, and a copy that lives has a place.
fn places(supervisor: &Supervisor) -> Option<String> {
    for copy in supervisor.copies.values() {
        let place = supervisor.served[&copy.model].slots[copy.slot].copy;
        let is_its = place == Some(copy.id);
        if is_its == matches!(copy.state, CopyState::Dead(_)) {
            return Some(format!("copy {} is {} and its place says {place:?}", copy.id, copy.state.name()));
        }
    }
    None
}

/// Who waits, waits for somebody.
fn hope(supervisor: &Supervisor) -> Option<String> {
    for (model, served) in &supervisor.served {
        let is_ready = supervisor.copies.values().any(|copy| copy.model == *model && copy.is_ready());
        if is_ready && !served.queue.is_empty() {
            return Some(format!("{model} has a copy that is ready and work that waits"));
        }
    }
    None
}

/// Work goes to those who are busy with it now and to nobody else.
pub(super) fn misrouted(supervisor: &Supervisor, effects: &[PoolEffect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        PoolEffect::Run { copy, run, .. } => {
            let copy = supervisor.copies.get(copy);
            let is_at_it = copy.is_some_and(|copy| match &copy.state {
                CopyState::Testing(current) => current == run,
                CopyState::Busy(current) | CopyState::Draining(Some(current)) => current.id == *run,
                CopyState::Loading | CopyState::Ready | CopyState::Draining(None) | CopyState::Dead(_) => {
                    false
                }
            });
            (!is_at_it).then(|| format!("{run:?} went to {copy:?}"))
        }
        _ => None,
    })
}
