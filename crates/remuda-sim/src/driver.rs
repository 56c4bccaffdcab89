//! How the program drives the plane, under virtual time: events are gathered, each is stepped, the batch is flushed and
//! its records committed; only then are answers given and effects carried out. While one batch is committed the next may
//! be stepped, and no further.
//!
//! ```text
//!  inbox ──▶ step, step, …, flush ──▶ stepped ──▶ committing ──store──▶ released
//!    ▲                                   (one)        (one)
//!    └── calls, wake_at
//! ```

mod failure;
mod lines;
mod lives;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use remuda_core::agent::CallError;
use remuda_core::id::{Hash, Term, WorkerId};
use remuda_core::plane::{Answer, Effect, Event, Known, Plane};
use remuda_core::record::Record;
use remuda_core::refusal::Refusal;
use remuda_core::time::Timestamp;

use crate::client::Told;
use crate::happening::Happening;
use crate::net::{Answered, Ask, Call, Caller};
use crate::provider::DEPLOYMENT;
use crate::sabotage::Sabotage;
use crate::world::World;
use lines::{Parked, Release};

#[derive(Debug)]
pub(crate) struct Driver {
    number: usize,
    pub(crate) plane: Plane,
    pub(crate) term: Term,
    /// Added to the true time: the wall clock at its start, or what the store knew of, whichever was later.
    offset: i64,
    paused_until: u64,
    inbox: VecDeque<Incoming>,
    committing: Option<Batch>,
    stepped: Option<Batch>,
    /// Committed while we were paused.
    unreleased: Vec<Batch>,
    /// Lines on which nothing was to be said yet.
    parked: BTreeMap<WorkerId, Parked>,
    step_at: u64,
}

#[derive(Debug)]
struct Incoming {
    call: Call,
    known: Option<Known>,
    at: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) records: Vec<Record>,
    releases: Vec<Release>,
    /// Carried out when every answer is given.
    effects: Vec<Release>,
}

/// Events taken into one batch.
const BATCH_MAX: usize = 512;
/// What the front door lets in; beyond it callers are sent away.
pub(crate) const INBOX_MAX: usize = 1024;

impl Driver {
    pub(crate) fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_millis(now.saturating_add_signed(self.offset))
    }

    fn when(&self, at: Timestamp) -> u64 {
        at.as_millis().saturating_add_signed(-self.offset)
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.plane.open_jobs() == 0 && self.inbox.is_empty()
    }

    fn is_paused(&self, now: u64) -> bool {
        now < self.paused_until
    }
}

impl World<'_> {
    pub(crate) fn arrive(&mut self, call: Call) {
        let at = self
            .lead
            .filter(|at| self.drivers[*at].as_ref().is_some_and(|driver| driver.inbox.len() < INBOX_MAX));
        let Some(at) = at else {
            match call.from {
                Caller::Client(client) => self.send_to_client(client, call.id, Told::TryLater),
                from @ Caller::Host { .. } => {
                    let gone = CallError::Unreachable("connection refused".to_owned());
                    self.send_down(from, call.id, Answered::Not(gone));
                }
                Caller::Nobody => {}
            }
            return;
        };
        self.deliver(at, call);
    }

    pub(crate) fn deliver(&mut self, at: usize, call: Call) {
        let known = match &call.ask {
            Ask::Submit { client, .. } => self.known(*client),
            _ => None,
        };
        let (now, soon) = (self.now, self.now + self.random.below(4));
        if let Some(driver) = &mut self.drivers[at] {
            driver.inbox.push_back(Incoming { call, known, at: now });
        }
        self.plan_step(at, soon);
    }

    fn plan_step(&mut self, at: usize, when: u64) {
        let Some(driver) = &mut self.drivers[at] else { return };
        if when < driver.step_at {
            driver.step_at = when;
            self.schedule(when.max(self.now), Happening::Step { driver: at, at: when });
        }
    }

    pub(crate) fn step_plane(&mut self, at: usize, when: u64) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| driver.step_at == when) else { return };
        driver.step_at = u64::MAX;
        if driver.is_paused(now) || driver.stepped.is_some() {
            return;
        }
        let Some(mut driver) = self.drivers[at].take() else { return };
        if self.is_sabotaged(Sabotage::WallClockLeases) && driver.offset < EPOCH as i64 + 3_600_000 {
            let is_late = self.now > self.scene.storm_end / 2;
            driver.offset += if is_late { 3_600_000 } else { 0 };
        }
        let mut batch = Batch::default();
        for _ in 0..BATCH_MAX {
            let Some(incoming) = driver.inbox.pop_front() else { break };
            self.step_call(&mut driver, incoming, &mut batch);
        }
        if driver.plane.wake_at().0 <= self.plane_clock(&driver) {
            let _ = self.step_once(&mut driver, Event::Tick, None, &mut batch);
        }
        if let Some(lift) = self.maybe_lift(&driver) {
            let _ = self.step_once(&mut driver, lift, None, &mut batch);
        }
        let _ = self.step_once(&mut driver, Event::Flush, None, &mut batch);
        driver.stepped = Some(batch);
        let (wake_at, is_behind) = (driver.when(driver.plane.wake_at().0), !driver.inbox.is_empty());
        self.drivers[at] = Some(driver);
        self.commit_next(at);
        self.plan_step(at, if is_behind { now } else { wake_at.max(now + 1) });
    }

    fn step_call(&mut self, driver: &mut Driver, incoming: Incoming, batch: &mut Batch) {
        let Incoming { call, known, at: arrived_at } = incoming;
        let Some((event, token)) = self.event(driver, &call.ask, known) else { return };
        let answer = self.step_once(driver, event, Some(&call.ask), batch);
        let answered = match (call.from, answer) {
            (Caller::Client(client), answer) => {
                let release = Release::Client { client, call: call.id, told: lines::told(&answer) };
                self.release_or_wait(release, batch, Sabotage::AckBeforeCommit);
                return;
            }
            (_, Ok(Answer::Joined(joined))) => Answered::Joined(joined, token),
            (_, Ok(Answer::Reply(reply))) => Answered::Reply(self.filled(reply)),
            (from, Ok(Answer::Hold)) => {
                let Ask::Beat { worker, beat, wait, .. } = &call.ask else { return };
                let line = Parked { from, call: call.id, term: beat.term, until: arrived_at + wait };
                return batch.releases.push(Release::Hold { worker: worker.clone(), line });
            }
            (_, Ok(Answer::Done | Answer::Accepted { .. } | Answer::Cycled(_))) => return,
            (_, Err(refusal)) => lines::refused(refusal),
        };
        let release = Release::Host { to: call.from, call: call.id, answer: answered };
        self.release_or_wait(release, batch, Sabotage::OrdersBeforeCommit);
    }

    fn event(&mut self, driver: &Driver, ask: &Ask, known: Option<Known>) -> Option<(Event, Hash)> {
        let mut token = Hash::from_bytes([0; 32]);
        let event = match ask.clone() {
            Ask::Join { join, proof } => {
                let (join, proof) = self.forged_join(driver, join, proof);
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&self.random.draw().to_be_bytes());
                token = Hash::from_bytes(bytes);
                Event::Join { join, token_hash: token, proof }
            }
            Ask::Beat { worker, token, beat, wait } => {
                self.forged_beat(driver, Event::Beat { worker, token_hash: token, beat, waits: wait > 0 })
            }
            Ask::Leave { worker, token } => {
                Event::Leave { worker, token_hash: Some(token), reason: "it was asked to stop".to_owned() }
            }
            Ask::LineDropped { worker, seq } => Event::LineDropped { worker, seq },
            Ask::Submit { client, is_changed } => {
                Event::Submit(Box::new(self.submission(client, is_changed, known)))
            }
            Ask::Cancel { client } => {
                let job = self.clients[client].job?;
                Event::Cancel { job, message: "changed my mind".to_owned() }
            }
            Ask::Drain { worker } => Event::Drain { worker, reason: "maintenance".to_owned(), within: None },
            Ask::LiftBlocks => {
                let (worker, shape, _) = driver.plane.blocks().iter().next()?;
                Event::Lift { worker: worker.clone(), shape: *shape }
            }
            Ask::News { fleet, news } => Event::Provider { fleet, news },
            Ask::Order { fleet, order } => Event::Order { fleet, order },
            Ask::DrainMachine { .. } if self.is_sabotaged(Sabotage::FeedTheDrained) => Event::Tick,
            Ask::DrainMachine { machine, within } => {
                let within = within.map(Duration::from_millis);
                Event::DrainMachine { machine, reason: "maintenance".to_owned(), within }
            }
            Ask::Deployment => Event::Deployment(DEPLOYMENT.to_owned()),
        };
        Some((event, token))
    }

    /// One step with the laws looking on.
    pub(crate) fn step_once(
        &mut self,
        driver: &mut Driver,
        event: Event,
        ask: Option<&Ask>,
        batch: &mut Batch,
    ) -> Result<Answer, Refusal> {
        let now = self.plane_clock(driver);
        self.steps += 1;
        let is_news = !matches!(event, Event::Tick | Event::Flush);
        if is_news && self.is_traced() {
            self.say(&format!("plane {}: {event:?}", driver.term));
        }
        // What a plane decides that was replaced without noticing is never stored: the laws wait for the store there.
        let is_leading = driver.term == self.store.term;
        let before = is_leading.then(|| self.laws.before_step(now, &driver.plane, ask));
        let step = driver.plane.step(now, event);
        if let Some(before) = before {
            self.laws.after_step(now, self.now, &driver.plane, ask, &step, before, &self.hosts);
            self.learn_of_stuck();
        }
        if self.is_traced() {
            for record in &step.records {
                self.say(&format!("  record {record:?}"));
            }
            if is_news {
                self.say(&format!("  answer {:?}", step.answer));
            }
        }
        batch.records.extend(step.records);
        for effect in step.effects {
            match effect {
                Effect::Orders { worker, reply } => {
                    let reply = self.filled(reply);
                    batch.effects.push(Release::Orders { worker, reply });
                }
                Effect::Provider { fleet, call } if self.is_sabotaged(Sabotage::RentBeforeCommit) => {
                    self.ask_provider(driver.number, fleet, call);
                }
                Effect::Provider { fleet, call } => batch.effects.push(Release::Ask { fleet, call }),
                Effect::Progress { .. } | Effect::Outbox | Effect::Cycle(_) => {}
            }
        }
        self.note("step", now.as_millis(), batch.records.len() as u64);
        step.answer
    }

    fn commit_next(&mut self, at: usize) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| driver.committing.is_none()) else {
            return;
        };
        let Some(batch) = driver.stepped.take() else { return };
        if batch.records.is_empty() {
            return self.release(at, batch);
        }
        driver.committing = Some(batch);
        let slow = if now < self.slow_until { self.slow_commit } else { 0 };
        let away = self.away_until.saturating_sub(now);
        let delay = self.random.between(1, 5) + slow.max(away);
        self.at(delay, Happening::Committed { driver: at });
    }

    pub(crate) fn committed(&mut self, at: usize) {
        let now = self.now;
        let Some(driver) = &mut self.drivers[at] else { return };
        let Some(mut batch) = driver.committing.take() else { return };
        let (term, is_paused) = (driver.term, driver.is_paused(now));
        let fails = now < self.failing_until && !is_paused && term == self.store.term;
        if fails && self.random.permille(300) {
            if self.is_sabotaged(Sabotage::CarryOutUnstored) {
                return self.release(at, batch);
            }
            return self.start_over(at, batch);
        }
        if !self.keep(term, std::mem::take(&mut batch.records)) {
            // Someone else leads: this one stops where it stands.
            self.note("superseded", term.0, 0);
            self.drop_lines(at);
            self.drivers[at] = None;
            return;
        }
        if is_paused {
            if let Some(driver) = &mut self.drivers[at] {
                driver.unreleased.push(batch);
            }
            return;
        }
        self.release(at, batch);
        self.commit_next(at);
        self.plan_step(at, now);
    }

    pub(crate) fn ask_to_drain(&mut self, host: usize) {
        self.hosts[host].is_pristine = false;
        let (id, worker) = (self.next_call(), self.hosts[host].name().clone());
        self.arrive(Call { from: Caller::Nobody, id, ask: Ask::Drain { worker } });
    }

    pub(crate) fn lift_blocks(&mut self) {
        let id = self.next_call();
        self.laws.blocks_lifted();
        self.arrive(Call { from: Caller::Nobody, id, ask: Ask::LiftBlocks });
    }
}

/// When a world begins, by the wall clock.
pub(crate) const EPOCH: u64 = 1_794_744_000_000;
