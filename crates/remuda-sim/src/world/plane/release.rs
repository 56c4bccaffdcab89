//! Sends what a committed batch decided: answers, orders, provider calls. A worker's long poll stays parked until there
//! is an order, a newer beat replaces it, or its wait ends.

use remuda_core::id::WorkerId;
use remuda_core::plane::PlaneAnswer;
use remuda_core::refusal::Refusal;
use remuda_core::wire::BeatReply;

use crate::driver::{Batch, ParkedPoll, Release};
use crate::event_queue::SimEvent;
use crate::host::Host;
use crate::net::{AgentResponse, Caller, ClientResponse, PlaneCall, PlaneRequest};
use crate::sabotage::Sabotage;
use crate::world::World;

impl World<'_> {
    /// The wait of a long poll ended without an order: it gets an empty reply.
    pub(in crate::world) fn poll_timeout(&mut self, at: usize, worker: &WorkerId, call: u64) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| !driver.is_paused(now)) else { return };
        if driver.parked.get(worker).is_some_and(|parked| parked.call == call)
            && let Some(parked) = driver.parked.remove(worker)
        {
            self.send_empty_reply(parked);
        }
    }

    fn send_empty_reply(&mut self, poll: ParkedPoll) {
        let empty = BeatReply { term: poll.term, ..BeatReply::default() };
        self.send_to_agent(poll.from, poll.call, AgentResponse::Reply(empty));
    }

    /// The plane notices that an agent closed its connection.
    pub(in crate::world) fn connection_closed(&mut self, worker: &WorkerId, call: u64) {
        let Some(at) = self.lead else { return };
        let is_cut = |host: &Host| host.name() == worker && self.now < host.link.cut_up_until;
        if self.hosts.iter().any(is_cut) {
            return;
        }
        let Some(driver) = &mut self.drivers[at] else { return };
        if driver.parked.get(worker).is_some_and(|parked| parked.call == call) {
            driver.parked.remove(worker);
            self.laws.connection_closed(worker);
            let seq = call & 0xffff_ffff;
            let request = PlaneRequest::ConnectionLost { worker: worker.clone(), seq };
            let id = self.next_call();
            self.arrive(PlaneCall { from: Caller::None, id, request });
        }
    }

    /// The core never holds workflows: the shell adds them to the orders.
    pub(super) fn with_workflows(&self, mut reply: BeatReply) -> BeatReply {
        reply.start.iter_mut().for_each(|start| start.workflow = Some(self.result.clone()));
        reply
    }

    pub(super) fn release_or_wait(&mut self, release: Release, batch: &mut Batch, early: Sabotage) {
        if self.is_sabotaged(early) {
            self.send_release(0, release);
        } else {
            batch.releases.push(release);
        }
    }

    pub(super) fn release(&mut self, at: usize, batch: Batch) {
        batch.releases.into_iter().chain(batch.effects).for_each(|release| self.send_release(at, release));
    }

    fn send_release(&mut self, at: usize, release: Release) {
        match release {
            Release::Hold { worker, poll } => {
                let Some(driver) = &mut self.drivers[at] else { return };
                // A newer beat replaces the parked poll.
                if let Some(old) = driver.parked.insert(worker.clone(), poll) {
                    self.send_empty_reply(old);
                }
                self.schedule(
                    poll.until.max(self.now),
                    SimEvent::PollTimeout { at, worker, call: poll.call },
                );
            }
            Release::Orders { worker, reply } => {
                let Some(driver) = &mut self.drivers[at] else { return };
                if let Some(ParkedPoll { from, call, .. }) = driver.parked.remove(&worker) {
                    let is_question = reply.start.is_empty() && reply.cancel.is_empty();
                    let asked = self.hosts.iter_mut().filter(|host| is_question && *host.name() == worker);
                    asked.for_each(|host| host.questions += 1);
                    self.send_release(
                        at,
                        Release::Host { to: from, call, answer: AgentResponse::Reply(reply) },
                    );
                }
            }
            Release::Host { to, call, answer } => {
                let answer = self.forged_answer(answer);
                let starts = match &answer {
                    AgentResponse::Reply(reply) if !reply.start.is_empty() => Some(reply.clone()),
                    _ => None,
                };
                let is_lost = self.send_to_agent(to, call, answer);
                if let Some(reply) = starts {
                    self.laws.ordered(&reply, is_lost);
                }
            }
            Release::Client { client, call, response } => self.send_to_client(client, call, response),
            Release::ProviderCall { fleet, call, quiet_until } => {
                self.queue_provider_call(at, fleet, call, quiet_until);
            }
        }
    }
}

/// The answer to a client: everything that is neither accepted nor refused answers a cancel request.
pub(super) fn client_response(answer: &Result<PlaneAnswer, Refusal>) -> ClientResponse {
    match answer {
        Ok(PlaneAnswer::Accepted { job, created }) => {
            ClientResponse::Accepted { job: *job, created: *created }
        }
        Err(Refusal::KeyConflict { job }) => ClientResponse::Conflict { job: *job },
        Err(Refusal::QueueFull { .. } | Refusal::QuotaExceeded { .. }) => ClientResponse::RetryLater,
        Ok(_) | Err(_) => ClientResponse::CancelDone,
    }
}
