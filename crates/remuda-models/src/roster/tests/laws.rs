//! What holds after every step, as code.

use std::collections::BTreeMap;

use crate::roster::copy::Life;
use crate::roster::{CopyId, Effect, RequestId, Roster};

/// Which law is broken, if one is.
pub(super) fn broken(roster: &Roster) -> Option<String> {
    memory(roster).or_else(|| parts(roster)).or_else(|| places(roster)).or_else(|| hope(roster))
}

/// Never more than the limit, held by nobody but copies that are there, and by each exactly what it needs.
fn memory(roster: &Roster) -> Option<String> {
    let ledger = &roster.ledger;
    if ledger.devices().any(|device| ledger.reserved_bytes(device) > ledger.limit_bytes(device)) {
        return Some("more memory is held than there is".to_owned());
    }
    let stranger = ledger.holders().find(|copy| !roster.copies.contains_key(copy));
    let is_short = |copy: &&CopyId| {
        let model = &roster.copies[*copy].model;
        ledger.held_by(**copy) != roster.served[model].terms.memory_bytes
    };
    let short = roster.copies.keys().find(is_short);
    stranger.or(short.copied()).map(|copy| format!("the memory of copy {copy} is not what it should be"))
}

/// A part of a request that somebody waits for is in one place: in the line, or in flight in a copy that lives.
fn parts(roster: &Roster) -> Option<String> {
    let mut places: BTreeMap<(RequestId, usize), u32> = BTreeMap::new();
    for (model, served) in &roster.served {
        let (mut tokens, mut bytes) = (0, 0);
        for (place, item) in served.line.items() {
            tokens += item.part.tokens().max(1);
            bytes += item.part.bytes();
            *places.entry((item.request, item.index)).or_default() += 1;
            let asked = roster.requests.get(item.request);
            if !asked.is_some_and(|asked| asked.waiting.contains(&place)) {
                return Some(format!("{model} has a part in its line that nobody waits for"));
            }
        }
        if (tokens, bytes) != (served.line.tokens(), served.line.bytes()) {
            return Some(format!("the line of {model} is counted wrongly"));
        }
    }
    for copy in roster.copies.values() {
        for item in copy.run().into_iter().flat_map(|run| &run.items) {
            *places.entry((item.request, item.index)).or_default() += 1;
        }
    }
    for id in roster.requests.ids() {
        let asked = roster.requests.get(id)?;
        let here = (0..asked.parts()).filter(|index| places.get(&(id, *index)) == Some(&1)).count();
        if here != asked.missing() {
            return Some(format!(
                "{} parts of request {id:?} are missing and {here} are somewhere",
                asked.missing()
            ));
        }
    }
    places.iter().find(|(_, count)| **count > 1).map(|(part, _)| format!("{part:?} is in two places"))
}

/// A place has a copy that is there and belongs to it, and a copy that lives has a place.
fn places(roster: &Roster) -> Option<String> {
    for copy in roster.copies.values() {
        let place = roster.served[&copy.model].slots[copy.slot].copy;
        let is_its = place == Some(copy.id);
        if is_its == matches!(copy.life, Life::Dead(_)) {
            return Some(format!("copy {} is {} and its place says {place:?}", copy.id, copy.life.name()));
        }
    }
    None
}

/// Who waits, waits for somebody.
fn hope(roster: &Roster) -> Option<String> {
    for (model, served) in &roster.served {
        let is_ready = roster.copies.values().any(|copy| copy.model == *model && copy.is_ready());
        if is_ready && !served.line.is_empty() {
            return Some(format!("{model} has a copy that is ready and work that waits"));
        }
    }
    None
}

/// Work goes to those who are busy with it now and to nobody else.
pub(super) fn misrouted(roster: &Roster, effects: &[Effect]) -> Option<String> {
    effects.iter().find_map(|effect| match effect {
        Effect::Run { copy, run, .. } => {
            let copy = roster.copies.get(copy);
            let is_at_it = copy.is_some_and(|copy| match &copy.life {
                Life::Proving(current) => current == run,
                Life::Busy(current) | Life::Draining(Some(current)) => current.id == *run,
                Life::Loading | Life::Ready | Life::Draining(None) | Life::Dead(_) => false,
            });
            (!is_at_it).then(|| format!("{run:?} went to {copy:?}"))
        }
        _ => None,
    })
}
