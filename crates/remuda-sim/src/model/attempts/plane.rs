//! The plane: steps the real one, commits its records, and only then sends what it decided. It crashes at any point between
//! two of these, with whatever it has not stored.

use remuda_core::agent::CallError;
use remuda_core::id::Hash;
use remuda_core::plane::{Plane, PlaneAnswer, PlaneEffect, PlaneEvent};
use remuda_core::record::Record;
use remuda_core::refusal::Refusal;
use remuda_core::wire::BeatReply;

use super::actions::CrashLoss;
use super::sabotage::AttemptSabotage;
use super::{AttemptState, Attempts, Message, OpenPoll};
use crate::model::fingerprint::Shared;
use crate::model::search::BrokenRule;
use crate::net::{AgentResponse, PlaneRequest};
use crate::store::Store;

/// What a step of the plane is about, as it is in truth: a sabotage changes what the plane sees of it.
#[derive(Clone, Copy)]
pub(super) enum Occasion<'c> {
    /// A call of a worker. `is_fresh`: of its current process, and newer than what came before.
    Call {
        host: usize,
        request: &'c PlaneRequest,
        is_fresh: bool,
    },
    /// A client or an operator.
    Client,
    Timer,
}

/// What leaves the plane once its records are stored.
enum Release {
    Answer { host: usize, process: u32, call: u64, answer: AgentResponse },
    Park { host: usize, poll: OpenPoll },
    Orders { host: usize, reply: BeatReply },
}

impl Attempts {
    /// A call reaches the plane, or the place where it was.
    pub(super) fn call_arrives(
        &self,
        state: &mut AttemptState,
        (host, process, call): (usize, u32, u64),
        request: &PlaneRequest,
    ) -> Result<(), BrokenRule> {
        let is_fresh = Attempts::is_fresh(state, (host, process, call), request);
        let token = token(host, process, call);
        let event = self.plane_event(&state.plane, request, token);
        let occasion = Occasion::Call { host, request, is_fresh };
        let (answer, mut releases) = self.decide(state, event, occasion)?;
        if is_fresh && answer.is_ok() {
            state.heard_at[host] = state.now;
            state.newest_calls[host] = state.newest_calls[host].max((process, call));
        }
        let answer = match answer {
            Ok(PlaneAnswer::Joined(joined)) => {
                state.drained[host] = false;
                AgentResponse::Joined(joined, token)
            }
            Ok(PlaneAnswer::Reply(reply)) => AgentResponse::Reply(reply),
            Ok(PlaneAnswer::Pending) => {
                let PlaneRequest::Beat { beat, wait, .. } = request else { return Ok(()) };
                let until = state.now + wait;
                let poll = OpenPoll { process, call, seq: beat.seq, term: beat.term, until };
                releases.insert(0, Release::Park { host, poll });
                self.release_all(state, releases);
                return Ok(());
            }
            Ok(PlaneAnswer::Done | PlaneAnswer::Accepted { .. } | PlaneAnswer::Cycled(_)) => {
                self.release_all(state, releases);
                return Ok(());
            }
            Err(refusal) => AgentResponse::refused(refusal),
        };
        self.check_settled(state, request, is_fresh, &answer)?;
        releases.insert(0, Release::Answer { host, process, call, answer });
        self.release_all(state, releases);
        Ok(())
    }

    fn plane_event(&self, plane: &Plane, request: &PlaneRequest, token: Hash) -> PlaneEvent {
        match request.clone() {
            PlaneRequest::Join { join, proof } => PlaneEvent::Join { join, token_hash: token, proof },
            PlaneRequest::Beat { worker, token, beat, wait } => self.forged_beat(
                plane,
                PlaneEvent::Beat { worker, token_hash: token, beat, long_poll: wait > 0 },
            ),
            PlaneRequest::Leave { worker, token } => {
                PlaneEvent::Leave { worker, token_hash: Some(token), reason: "stop requested".to_owned() }
            }
            PlaneRequest::ConnectionLost { worker, seq } => PlaneEvent::ConnectionDropped { worker, seq },
            other => panic!("no worker sends {other:?}"),
        }
    }

    /// Steps the plane for something that is not a call of a worker.
    pub(super) fn step_plane(
        &self,
        state: &mut AttemptState,
        event: PlaneEvent,
        occasion: Occasion<'_>,
    ) -> Result<Option<Refusal>, BrokenRule> {
        let (answer, releases) = self.decide(state, event, occasion)?;
        self.release_all(state, releases);
        Ok(answer.err())
    }

    /// Steps the plane and commits. Returns what may leave it now.
    fn decide(
        &self,
        state: &mut AttemptState,
        event: PlaneEvent,
        occasion: Occasion<'_>,
    ) -> Result<(Result<PlaneAnswer, Refusal>, Vec<Release>), BrokenRule> {
        let now = state.time();
        let (step, flush) =
            state.plane.change(|plane| (plane.step(now, event), plane.step(now, PlaneEvent::Flush)));
        let records: Vec<Record> = step.records.into_iter().chain(flush.records).collect();
        let effects = step.effects.into_iter().chain(flush.effects);
        let releases = effects.filter_map(|effect| self.release_of(effect)).collect();
        self.check_plane(state)?;
        self.check_commit(state, &records, occasion)?;
        self.commit(state, records);
        Ok((step.answer, releases))
    }

    fn commit(&self, state: &mut AttemptState, mut records: Vec<Record>) {
        if self.is_sabotaged(AttemptSabotage::OrdersBeforeCommit) {
            records = std::mem::replace(&mut state.unstored, records);
        }
        if !records.is_empty() {
            state.store.change(|store| records.into_iter().for_each(|record| store.apply(record)));
        }
    }

    fn release_of(&self, effect: PlaneEffect) -> Option<Release> {
        match effect {
            PlaneEffect::SendOrders { worker, reply } => {
                Some(Release::Orders { host: self.host_of(&worker), reply })
            }
            PlaneEffect::Progress { .. }
            | PlaneEffect::WebhookQueued
            | PlaneEffect::RestartPlane
            | PlaneEffect::ReportCycle(_) => None,
            PlaneEffect::CallProvider { .. } => panic!("this model rents nothing"),
        }
    }

    fn release_all(&self, state: &mut AttemptState, releases: Vec<Release>) {
        for release in releases {
            match release {
                Release::Park { host, poll } => {
                    if let Some(former) = state.hosts[host].parked.replace(poll) {
                        self.end_poll(state, host, former);
                    }
                }
                Release::Orders { host, reply } => {
                    if let Some(OpenPoll { process, call, .. }) = state.hosts[host].parked.take() {
                        self.answer(state, host, process, call, AgentResponse::Reply(reply));
                    }
                }
                Release::Answer { host, process, call, answer } => {
                    // A newer beat was answered: the plane ends the older poll.
                    if let Some(former) = state.hosts[host].parked.take_if(|poll| poll.call <= call) {
                        self.end_poll(state, host, former);
                    }
                    self.answer(state, host, process, call, answer);
                }
            }
        }
    }

    /// The shell adds the workflows to the orders.
    fn answer(&self, state: &mut AttemptState, host: usize, process: u32, call: u64, answer: AgentResponse) {
        let answer = match answer {
            AgentResponse::Reply(mut reply) => {
                for start in &mut reply.start {
                    start.workflow = Some(self.workflow.clone());
                }
                AgentResponse::Reply(reply)
            }
            answer => answer,
        };
        state.send(Message::Answer { host, process, call, answer });
    }

    /// A long poll ends without an order.
    pub(super) fn end_poll(&self, state: &mut AttemptState, host: usize, poll: OpenPoll) {
        let empty = BeatReply { term: poll.term, ..BeatReply::default() };
        self.answer(state, host, poll.process, poll.call, AgentResponse::Reply(empty));
    }

    /// The plane's process ends with all that is not stored, and the next one starts.
    pub(super) fn crash_plane(&self, state: &mut AttemptState, loss: CrashLoss) -> Result<(), BrokenRule> {
        state.unstored.clear();
        state.messages.retain(|message| match **message {
            Message::Call { .. } => !loss.are_calls_lost,
            Message::Answer { .. } => !loss.are_answers_lost,
            _ => true,
        });
        for host in 0..2 {
            if let Some(poll) = state.hosts[host].parked.take().filter(|_| !loss.are_answers_lost) {
                let answer = AgentResponse::Failed(CallError::Unreachable("connection reset".to_owned()));
                self.answer(state, host, poll.process, poll.call, answer);
            }
        }
        let now = state.time();
        let term = state.store.change(Store::lead);
        let plane = Plane::restore(self.settings.clone(), term, now, state.store.restore());
        state.plane = Shared::new(plane);
        state.heard_at = [state.now; 2];
        self.check_restored(state)
    }
}

/// Drawn for each join; here it follows from the call, so that the order of joins makes no difference.
fn token(host: usize, process: u32, call: u64) -> Hash {
    Hash::digest(format!("{host}-{process}-{call}").as_bytes())
}
