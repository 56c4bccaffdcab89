//! Who listens, and what each of them is told. One that does not read misses previews and progress first and is then let
//! go; nobody waits for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::id::{JobId, Sequence, Tenant};
use remuda_core::time::Timestamp;
use serde_json::json;

use super::super::Context;
use super::connection::{Frames, Inbox, Picture, Seat, Text, outbox};
use super::queue::exec_info;
use super::run_translator::{Run, Word};
use crate::plane_handle::PlaneError;

/// Ends that nobody was there to hear, of all clients together and for so long.
const MISSED_MAX: usize = 10_000;
pub(super) const MISSED_FOR: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Hub(Mutex<Rooms>);

#[derive(Debug, Default)]
pub(super) struct Rooms {
    rooms: BTreeMap<Tenant, Room>,
    pub(super) runs: BTreeMap<JobId, Run>,
    missed: VecDeque<Missed>,
    serial: u64,
    /// The last event that was taken in.
    pub(super) heard: Sequence,
}

/// All sockets of a tenant.
#[derive(Debug)]
struct Room {
    seats: BTreeMap<u64, Seat>,
    /// Jobs that have not ended, as of `counted`.
    open: usize,
    counted: Sequence,
}

/// An end that its client was not there to hear.
#[derive(Debug)]
pub(super) struct Missed {
    tenant: Tenant,
    client: String,
    pub(super) job: JobId,
    at: Timestamp,
}

/// A place that was taken.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) serial: u64,
    pub(super) inbox: Inbox,
    pub(super) knows_metadata: Arc<AtomicBool>,
    pub(super) owes_status: Arc<AtomicBool>,
    /// What ended while this client was away; whatever of it is not told is to be handed back.
    pub(super) missed: VecDeque<Missed>,
}

/// How many of a tenant's jobs have not ended, and up to which event that is so.
async fn count(context: &Context, tenant: &Tenant) -> Result<(usize, Sequence), PlaneError> {
    let tenant = tenant.clone();
    context
        .plane
        .read(move |plane, _| (plane.jobs().filter(|job| job.tenant == tenant).count(), plane.sequence()))
        .await
}

impl Hub {
    pub(super) fn rooms(&self) -> MutexGuard<'_, Rooms> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has not ended; what has is in the history by the time it is not counted.
    pub(super) async fn remaining(&self, context: &Context, tenant: &Tenant) -> Result<usize, PlaneError> {
        let (counted, _) = count(context, tenant).await?;
        Ok(self.rooms().rooms.get(tenant).map_or(counted, |room| room.open.max(counted)))
    }

    /// Takes a place; the greeting, and the node that runs, are the first that it hears.
    pub(super) async fn enter(
        &self,
        context: &Context,
        tenant: &Tenant,
        client: &str,
    ) -> Result<Taken, PlaneError> {
        loop {
            let (open, counted) = count(context, tenant).await?;
            let mut rooms = self.rooms();
            // What happened between the look and now must be counted once: if it was not, look again.
            if rooms.rooms.contains_key(tenant) || rooms.heard <= counted {
                let now = context.plane.clock.now();
                return Ok(rooms.seat(tenant, client, open, counted, now));
            }
        }
    }

    /// Gives a place up, with what its client was still to be told.
    pub(super) fn leave(&self, tenant: &Tenant, serial: u64, untold: VecDeque<Missed>) {
        let mut rooms = self.rooms();
        untold.into_iter().for_each(|missed| rooms.put_back(missed));
        if let Some(room) = rooms.rooms.get_mut(tenant) {
            room.seats.remove(&serial);
            if room.seats.is_empty() {
                rooms.rooms.remove(tenant);
            }
        }
    }

    /// Counts everybody's jobs anew: some news was missed.
    pub(super) async fn recount(&self, context: &Context) -> Result<(), PlaneError> {
        let tenants: Vec<Tenant> = self.rooms().rooms.keys().cloned().collect();
        for tenant in tenants {
            let (open, counted) = count(context, &tenant).await?;
            let mut rooms = self.rooms();
            if let Some(room) = rooms.rooms.get_mut(&tenant) {
                (room.open, room.counted) = (open, counted);
            }
            rooms.tell_status(&tenant);
        }
        Ok(())
    }
}

impl Rooms {
    fn seat(
        &mut self,
        tenant: &Tenant,
        client: &str,
        open: usize,
        counted: Sequence,
        now: Timestamp,
    ) -> Taken {
        let (outbox, inbox) = outbox();
        self.serial += 1;
        let serial = self.serial;
        let (knows_metadata, owes_status) =
            (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let seat = Seat {
            client: client.to_owned(),
            outbox,
            knows_metadata: knows_metadata.clone(),
            owes_status: owes_status.clone(),
        };
        let room = self.rooms.entry(tenant.clone()).or_insert_with(|| Room {
            seats: BTreeMap::new(),
            open,
            counted,
        });
        let greeting = json!({ "status": exec_info(room.open.max(open)), "sid": client });
        seat.tell(&Text::of(&Word::new("status", greeting)));
        let runs = self.runs.values().filter(|run| run.is_of(tenant, client));
        for executing in runs.filter_map(|run| run.executing.clone()) {
            seat.tell(&Text::of(&Word::new("executing", executing)));
        }
        room.seats.insert(serial, seat);
        let missed = self.take_missed(tenant, client, now);
        Taken { serial, inbox, knows_metadata, owes_status, missed }
    }

    fn take_missed(&mut self, tenant: &Tenant, client: &str, now: Timestamp) -> VecDeque<Missed> {
        let is_fresh = |missed: &Missed| now.since(missed.at) < MISSED_FOR;
        let is_theirs = |missed: &Missed| missed.tenant == *tenant && missed.client == client;
        let fresh = std::mem::take(&mut self.missed).into_iter().filter(is_fresh);
        let (theirs, others) = fresh.partition(is_theirs);
        self.missed = others;
        theirs
    }

    /// For whoever comes back with this client's id.
    pub(super) fn miss(&mut self, tenant: Tenant, client: String, job: JobId, at: Timestamp) {
        self.put_back(Missed { tenant, client, job, at });
    }

    fn put_back(&mut self, missed: Missed) {
        if self.missed.len() == MISSED_MAX {
            self.missed.pop_front();
        }
        self.missed.push_back(missed);
    }

    pub(super) fn is_heard(&self, tenant: &Tenant, client: &str) -> bool {
        let room = self.rooms.get(tenant);
        room.is_some_and(|room| room.seats.values().any(|seat| seat.client == client))
    }

    /// A job was queued, or ended.
    pub(super) fn count(&mut self, tenant: &Tenant, seq: Sequence, change: isize) {
        if let Some(room) = self.rooms.get_mut(tenant)
            && seq > room.counted
        {
            room.open = room.open.saturating_add_signed(change);
            room.counted = seq;
        }
    }

    pub(super) fn has_open(&self, tenant: &Tenant) -> bool {
        self.rooms.get(tenant).is_some_and(|room| room.open > 0)
    }

    pub(super) fn status(&self, tenant: &Tenant) -> Option<Word> {
        let room = self.rooms.get(tenant)?;
        Some(Word::new("status", json!({ "status": exec_info(room.open) })))
    }

    pub(super) fn tell_status(&mut self, tenant: &Tenant) {
        let Some(status) = self.status(tenant).as_ref().map(Text::of) else { return };
        let Some(room) = self.rooms.get_mut(tenant) else { return };
        for seat in room.seats.values() {
            if seat.outbox.is_busy() || !seat.tell(&status) {
                seat.owes_status.store(true, Ordering::Relaxed);
            }
        }
    }

    /// To everyone with this client's id, or to the whole tenant.
    pub(super) fn tell(&mut self, tenant: &Tenant, client: Option<&str>, words: &[Word]) {
        let Some(room) = self.rooms.get_mut(tenant) else { return };
        let texts: Vec<Text> = words.iter().map(Text::of).collect();
        room.seats.retain(|_, seat| {
            if client.is_some_and(|client| client != seat.client) {
                return true;
            }
            // Dropping the sending end is what tells the socket to close.
            texts.iter().all(|text| (text.is_light && seat.outbox.is_busy()) || seat.tell(text))
        });
    }

    /// An answer to what one of them said.
    pub(super) fn tell_one(&mut self, tenant: &Tenant, serial: u64, words: &[Word]) {
        let Some(room) = self.rooms.get_mut(tenant) else { return };
        if let Some(seat) = room.seats.get(&serial)
            && !words.iter().all(|word| seat.tell(&Text::of(word)))
        {
            room.seats.remove(&serial);
        }
    }

    /// A preview; dropped for whoever does not keep up.
    pub(super) fn show(&self, run: &Run, picture: &Picture<'_>) {
        let Some(room) = self.rooms.get(&run.tenant) else { return };
        let client = run.client.as_deref();
        let seats = room.seats.values().filter(|seat| client.is_none_or(|client| client == seat.client));
        let frames = Frames::new(&run.prompt, picture);
        for seat in seats.filter(|seat| !seat.outbox.is_busy()) {
            seat.send(&frames);
        }
    }

    /// A picture that is a result.
    pub(super) fn send(&mut self, tenant: &Tenant, client: &str, prompt: &str, picture: &Picture<'_>) {
        if let Some(room) = self.rooms.get_mut(tenant) {
            let frames = Frames::new(prompt, picture);
            room.seats.retain(|_, seat| seat.client != client || seat.send(&frames));
        }
    }
}

impl Run {
    fn is_of(&self, tenant: &Tenant, client: &str) -> bool {
        self.tenant == *tenant && self.client.as_deref() == Some(client)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::mpsc::error::TryRecvError;

    use super::super::connection::{OUTBOX_LIGHT, OUTBOX_MAX, PREVIEW_BYTES_MAX, WORDS_BYTES_MAX};
    use super::*;

    fn tenant() -> Tenant {
        "t".parse().unwrap()
    }

    fn seat(rooms: &mut Rooms, client: &str) -> Taken {
        rooms.seat(&tenant(), client, 0, Sequence(5), Timestamp::ZERO)
    }

    fn heard(taken: &mut Taken) -> usize {
        std::iter::from_fn(|| taken.inbox.try_recv().ok()).count()
    }

    fn word(kind: &str) -> Word {
        Word::new(kind, json!({ "prompt_id": "p" }))
    }

    #[test]
    fn whoever_does_not_read_misses_progress_first_and_is_then_let_go_alone() {
        let mut rooms = Rooms::default();
        let (mut deaf, mut other) = (seat(&mut rooms, "deaf"), seat(&mut rooms, "other"));
        for _ in 0..OUTBOX_MAX * 2 {
            rooms.tell(&tenant(), Some("deaf"), &[word("progress")]);
        }
        assert!(rooms.is_heard(&tenant(), "deaf"), "progress alone lets nobody go");
        let bytes = Bytes::from_static(b"x");
        let run = Run::new(JobId::from_u128(1), tenant(), &serde_json::Map::new(), 1);
        rooms.show(&run, &Picture { node: None, mime: "image/png", bytes: &bytes });
        assert_eq!(deaf.inbox.len(), OUTBOX_LIGHT, "half of the room is kept for what matters");
        for _ in 0..=OUTBOX_LIGHT {
            rooms.tell(&tenant(), Some("deaf"), &[word("executed")]);
        }
        assert!(!rooms.is_heard(&tenant(), "deaf"));
        heard(&mut deaf);
        assert!(matches!(deaf.inbox.try_recv(), Err(TryRecvError::Disconnected)), "it is told to close");
        assert_eq!(heard(&mut other), 2, "a greeting and a preview, and nothing in the way");
        rooms.tell(&tenant(), None, &[word("executed")]);
        assert_eq!(heard(&mut other), 1);
    }

    /// Faults: X7.
    #[test]
    fn what_waits_for_one_who_does_not_read_is_bounded_in_bytes() {
        let mut rooms = Rooms::default();
        let (mut deaf, mut other) = (seat(&mut rooms, "deaf"), seat(&mut rooms, "other"));
        let bytes = Bytes::from(vec![0; 1 << 20]);
        let run = Run::new(JobId::from_u128(1), tenant(), &serde_json::Map::new(), 1);
        for _ in 0..20 {
            rooms.show(&run, &Picture { node: None, mime: "image/png", bytes: &bytes });
            heard(&mut other);
        }
        let previews = PREVIEW_BYTES_MAX / bytes.len();
        assert_eq!(deaf.inbox.len(), 1 + previews, "then previews are dropped");
        rooms.tell(&tenant(), Some("deaf"), &[word("progress")]);
        assert_eq!(deaf.inbox.len(), 1 + previews, "and so is progress");
        let large = Word::new("executed", json!({ "text": "x".repeat(1 << 20) }));
        let fit = (0..100).take_while(|_| {
            rooms.tell(&tenant(), Some("deaf"), std::slice::from_ref(&large));
            rooms.is_heard(&tenant(), "deaf")
        });
        assert_eq!(fit.count(), WORDS_BYTES_MAX / (1 << 20) - 1, "then it is let go");
        assert_eq!(heard(&mut deaf), previews + WORDS_BYTES_MAX / (1 << 20));
        rooms.show(&run, &Picture { node: None, mime: "image/png", bytes: &bytes });
        assert_eq!(heard(&mut other), 1, "whoever reads goes on");
    }

    #[test]
    fn what_happened_before_the_count_is_not_counted_twice() {
        let mut rooms = Rooms::default();
        let _taken = seat(&mut rooms, "a");
        for (seq, change, expected) in [(4, 1, 0), (5, 1, 0), (6, 1, 1), (6, 1, 1), (7, -1, 0), (8, -1, 0)] {
            rooms.count(&tenant(), Sequence(seq), change);
            assert_eq!(rooms.rooms[&tenant()].open, expected, "after event {seq}");
        }
    }

    #[test]
    fn missed_ends_are_told_to_their_client_once_and_not_for_ever() {
        let mut rooms = Rooms::default();
        let at = |millis| Timestamp::from_millis(millis);
        rooms.miss(tenant(), "a".to_owned(), JobId::from_u128(1), at(0));
        rooms.miss(tenant(), "a".to_owned(), JobId::from_u128(2), at(60_000));
        rooms.miss(tenant(), "b".to_owned(), JobId::from_u128(3), at(60_000));
        let late = at(MISSED_FOR.as_millis() as u64 + 1);
        assert!(rooms.take_missed(&"other".parse().unwrap(), "a", at(60_000)).is_empty());
        let missed = rooms.take_missed(&tenant(), "a", late);
        assert_eq!(missed.iter().map(|missed| missed.job).collect::<Vec<_>>(), [JobId::from_u128(2)]);
        assert!(rooms.take_missed(&tenant(), "a", late).is_empty());
        let hub = Hub(Mutex::new(rooms));
        hub.leave(&tenant(), 1, missed);
        let mut rooms = hub.rooms();
        assert_eq!(rooms.take_missed(&tenant(), "a", late).len(), 1, "it was not told after all");
        for job in 0..MISSED_MAX as u128 + 10 {
            rooms.miss(tenant(), "c".to_owned(), JobId::from_u128(job), late);
        }
        assert_eq!(rooms.missed.len(), MISSED_MAX);
    }
}
