//! Drives the real `core::Plane` under virtual time the way the program does: calls are gathered, each is stepped, the
//! batch is flushed and its records are committed; only then are answers sent and effects run. While one batch commits,
//! one further batch may be stepped.
//!
//! ```text
//!  inbox ──▶ step, step, …, flush ──▶ stepped ──▶ committing ──store──▶ released
//!    ▲                                   (one)        (one)
//!    └── calls, wake_at
//! ```
//!
//! `lifecycle` starts, pauses and kills planes, `release` sends what a committed batch decided, `commit_failure` reloads
//! the plane after a failed commit.

mod commit_failure;
mod lifecycle;
mod release;

use std::time::Duration;

use remuda_core::agent::CallError;
use remuda_core::id::Hash;
use remuda_core::plane::{KnownKey, PlaneAnswer, PlaneEffect, PlaneEvent};
use remuda_core::refusal::Refusal;

use super::World;
use crate::driver::{Batch, Driver, Incoming, ParkedPoll, Release};
use crate::event_queue::SimEvent;
use crate::net::{AgentResponse, Caller, ClientResponse, PlaneCall, PlaneRequest};
use crate::provider::DEPLOYMENT;
use crate::sabotage::Sabotage;
use release::client_response;

/// Calls stepped in one batch.
const BATCH_MAX: usize = 512;
/// Calls that may wait in the inbox; beyond it callers are turned away.
const INBOX_MAX: usize = 1024;

impl World<'_> {
    pub(super) fn arrive(&mut self, call: PlaneCall) {
        let at = self
            .lead
            .filter(|at| self.drivers[*at].as_ref().is_some_and(|driver| driver.inbox.len() < INBOX_MAX));
        let Some(at) = at else {
            match call.from {
                Caller::Client(client) => self.send_to_client(client, call.id, ClientResponse::RetryLater),
                from @ Caller::Host { .. } => {
                    let gone = CallError::Unreachable("connection refused".to_owned());
                    self.send_to_agent(from, call.id, AgentResponse::Failed(gone));
                }
                Caller::None => {}
            }
            return;
        };
        self.deliver(at, call);
    }

    pub(super) fn deliver(&mut self, at: usize, call: PlaneCall) {
        let known = match &call.request {
            PlaneRequest::Submit { client, .. } => self.known(*client),
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
            self.schedule(when.max(self.now), SimEvent::PlaneStep { driver: at, at: when });
        }
    }

    pub(super) fn step_plane(&mut self, at: usize, when: u64) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| driver.step_at == when) else { return };
        driver.step_at = u64::MAX;
        if driver.is_paused(now) || driver.stepped.is_some() {
            return;
        }
        let Some(mut driver) = self.drivers[at].take() else { return };
        let mut batch = Batch::default();
        for _ in 0..BATCH_MAX {
            let Some(incoming) = driver.inbox.pop_front() else { break };
            self.step_call(&mut driver, incoming, &mut batch);
        }
        if driver.plane.wake_at().0 <= self.plane_clock(&driver) {
            let _ = self.step_once(&mut driver, PlaneEvent::Tick, None, &mut batch);
        }
        if let Some(lift) = self.maybe_lift(&driver) {
            let _ = self.step_once(&mut driver, lift, None, &mut batch);
        }
        let _ = self.step_once(&mut driver, PlaneEvent::Flush, None, &mut batch);
        driver.stepped = Some(batch);
        let (wake_at, is_behind) = (self.wake_time(&driver), !driver.inbox.is_empty());
        self.drivers[at] = Some(driver);
        self.commit_next(at);
        self.plan_step(at, if is_behind { now } else { wake_at.max(now + 1) });
    }

    fn step_call(&mut self, driver: &mut Driver, incoming: Incoming, batch: &mut Batch) {
        let Incoming { call, known, at: arrived_at } = incoming;
        let Some((event, token)) = self.event(driver, &call.request, known) else { return };
        let answer = self.step_once(driver, event, Some(&call.request), batch);
        let answered = match (call.from, answer) {
            (Caller::Client(client), answer) => {
                let release = Release::Client { client, call: call.id, response: client_response(&answer) };
                self.release_or_wait(release, batch, Sabotage::AckBeforeCommit);
                return;
            }
            (_, Ok(PlaneAnswer::Joined(joined))) => AgentResponse::Joined(joined, token),
            (_, Ok(PlaneAnswer::Reply(reply))) => AgentResponse::Reply(self.with_workflows(reply)),
            (from, Ok(PlaneAnswer::Pending)) => {
                let PlaneRequest::Beat { worker, beat, wait, .. } = &call.request else { return };
                let poll = ParkedPoll { from, call: call.id, term: beat.term, until: arrived_at + wait };
                return batch.releases.push(Release::Hold { worker: worker.clone(), poll });
            }
            (_, Ok(PlaneAnswer::Done | PlaneAnswer::Accepted { .. } | PlaneAnswer::Cycled(_))) => return,
            (_, Err(refusal)) => AgentResponse::refused(refusal),
        };
        let release = Release::Host { to: call.from, call: call.id, answer: answered };
        self.release_or_wait(release, batch, Sabotage::OrdersBeforeCommit);
    }

    fn event(
        &mut self,
        driver: &Driver,
        request: &PlaneRequest,
        known: Option<KnownKey>,
    ) -> Option<(PlaneEvent, Hash)> {
        let mut token = Hash::from_bytes([0; 32]);
        let event = match request.clone() {
            PlaneRequest::Join { join, proof } => {
                let (join, proof) = self.forged_join(driver, join, proof);
                let mut bytes = [0; 32];
                bytes[..8].copy_from_slice(&self.random.draw().to_be_bytes());
                token = Hash::from_bytes(bytes);
                PlaneEvent::Join { join, token_hash: token, proof }
            }
            PlaneRequest::Beat { worker, token, beat, wait } => self.forged_beat(
                driver,
                PlaneEvent::Beat { worker, token_hash: token, beat, long_poll: wait > 0 },
            ),
            PlaneRequest::Leave { worker, token } => {
                PlaneEvent::Leave { worker, token_hash: Some(token), reason: "stop requested".to_owned() }
            }
            PlaneRequest::ConnectionLost { worker, seq } => PlaneEvent::ConnectionDropped { worker, seq },
            PlaneRequest::Submit { client, is_changed } => {
                PlaneEvent::Submit(Box::new(self.submission(client, is_changed, known)))
            }
            PlaneRequest::Cancel { client } => {
                let job = self.clients[client].job?;
                PlaneEvent::Cancel { job, message: "cancelled by the client".to_owned() }
            }
            PlaneRequest::Drain { worker } => {
                PlaneEvent::Drain { worker, reason: "maintenance".to_owned(), within: None }
            }
            PlaneRequest::LiftBlocks => {
                let (worker, _, block) = driver.plane.blocks().iter().next()?;
                PlaneEvent::LiftBlock { worker: worker.clone(), hash: block.shape }
            }
            PlaneRequest::ProviderEvent { fleet, news } => PlaneEvent::Provider { fleet, news },
            PlaneRequest::Order { fleet, order } => PlaneEvent::OrderFleet { fleet, order },
            PlaneRequest::DrainMachine { .. } if self.is_sabotaged(Sabotage::AssignToDrained) => {
                PlaneEvent::Tick
            }
            PlaneRequest::DrainMachine { machine, within } => {
                let within = within.map(Duration::from_millis);
                PlaneEvent::DrainMachine { machine, reason: "maintenance".to_owned(), within }
            }
            PlaneRequest::Reload => PlaneEvent::ReloadSettings(Box::new(self.scenario.core.clone())),
            PlaneRequest::Deployment => PlaneEvent::NameDeployment(DEPLOYMENT.to_owned()),
            PlaneRequest::ClockStarted(start) => PlaneEvent::ClockStarted(start),
        };
        Some((event, token))
    }

    /// Steps the plane once and checks the laws.
    pub(super) fn step_once(
        &mut self,
        driver: &mut Driver,
        event: PlaneEvent,
        request: Option<&PlaneRequest>,
        batch: &mut Batch,
    ) -> Result<PlaneAnswer, Refusal> {
        let now = self.plane_clock(driver);
        self.steps += 1;
        let is_external = !matches!(event, PlaneEvent::Tick | PlaneEvent::Flush);
        if is_external && self.is_traced() {
            self.trace_line(&format!("plane {}: {event:?}", driver.term));
        }
        // Decisions of a plane that was replaced are never stored; for those the laws check only the commit.
        let is_leading = driver.term == self.store.term;
        let before = is_leading.then(|| self.laws.before_step(now, &driver.plane, request));
        let step = driver.plane.step(now, event);
        if let Some(before) = before {
            self.laws.after_step(now, self.now, &driver.plane, request, &step, before, &self.hosts);
            self.record_stuck_evidence();
        }
        if self.is_traced() {
            for record in &step.records {
                self.trace_line(&format!("  record {record:?}"));
            }
            if is_external {
                self.trace_line(&format!("  answer {:?}", step.answer));
            }
        }
        batch.records.extend(step.records);
        for effect in step.effects {
            match effect {
                PlaneEffect::SendOrders { worker, reply } => {
                    let reply = self.with_workflows(reply);
                    batch.effects.push(Release::Orders { worker, reply });
                }
                PlaneEffect::CallProvider { fleet, call }
                    if self.is_sabotaged(Sabotage::RentBeforeCommit) =>
                {
                    let quiet_until = self.laws.quiet_until(self.now, &fleet);
                    self.queue_provider_call(driver.number, fleet, call, quiet_until);
                }
                PlaneEffect::CallProvider { fleet, call } => {
                    let quiet_until = self.laws.quiet_until(self.now, &fleet);
                    batch.effects.push(Release::ProviderCall { fleet, call, quiet_until });
                }
                // The simulated plane reads no clock while it runs, so it is never told to start again.
                PlaneEffect::Progress { .. }
                | PlaneEffect::WebhookQueued
                | PlaneEffect::RestartPlane
                | PlaneEffect::ReportCycle(_) => {}
            }
        }
        self.note("step", driver.term.0, batch.records.len() as u64);
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
        let away = self.store_down_until.saturating_sub(now);
        let delay = self.random.between(1, 5) + slow.max(away);
        self.at(delay, SimEvent::CommitDone { driver: at });
    }

    pub(super) fn committed(&mut self, at: usize) {
        let now = self.now;
        let Some(driver) = &mut self.drivers[at] else { return };
        let Some(mut batch) = driver.committing.take() else { return };
        let (term, is_paused) = (driver.term, driver.is_paused(now));
        let fails = now < self.failing_until && !is_paused && term == self.store.term;
        if fails && self.random.permille(300) {
            if self.is_sabotaged(Sabotage::RunUncommittedEffects) {
                return self.release(at, batch);
            }
            // Some are kept nevertheless: the connection broke before the answer.
            if self.random.permille(400) {
                self.commit(term, std::mem::take(&mut batch.records));
            }
            return self.reload_after_failed_commit(at, batch);
        }
        if !self.commit(term, std::mem::take(&mut batch.records)) {
            // Another plane leads: this one stops.
            self.note("superseded", term.0, 0);
            self.drop_provider_calls(at);
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

    pub(super) fn drain_worker(&mut self, host: usize) {
        self.hosts[host].is_pristine = false;
        let (id, worker) = (self.next_call(), self.hosts[host].name().clone());
        self.arrive(PlaneCall { from: Caller::None, id, request: PlaneRequest::Drain { worker } });
    }

    pub(super) fn lift_blocks(&mut self) {
        let id = self.next_call();
        self.laws.blocks_lifted();
        self.arrive(PlaneCall { from: Caller::None, id, request: PlaneRequest::LiftBlocks });
    }
}
