//! What leaves the plane, and on which line: answers and orders are given when their batch is committed, and not before.
//! A worker's line stays open until there is something to say, a newer beat takes its place, or its wait is over.

use remuda_core::agent::CallError;
use remuda_core::id::{FleetId, Term, WorkerId};
use remuda_core::plane::Answer;
use remuda_core::provider;
use remuda_core::refusal::Refusal;
use remuda_core::wire::BeatReply;

use super::Batch;
use crate::client::Told;
use crate::happening::Happening;
use crate::net::{Answered, Ask, Call, Caller};
use crate::sabotage::Sabotage;
use crate::world::World;

#[derive(Debug)]
pub(super) enum Release {
    Host {
        to: Caller,
        call: u64,
        answer: Answered,
    },
    Client {
        client: usize,
        call: u64,
        told: Told,
    },
    /// Nothing to say yet: the line stays open.
    Hold {
        worker: WorkerId,
        line: Parked,
    },
    Orders {
        worker: WorkerId,
        reply: BeatReply,
    },
    /// To be asked of a fleet's provider.
    Ask {
        fleet: FleetId,
        call: provider::ProviderCall,
    },
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parked {
    pub(super) from: Caller,
    pub(super) call: u64,
    /// What an empty answer says.
    pub(super) term: Term,
    pub(super) until: u64,
}

impl World<'_> {
    /// Nothing came up while a worker waited: it is told so.
    pub(crate) fn poll_over(&mut self, at: usize, worker: &WorkerId, call: u64) {
        let now = self.now;
        let Some(driver) = self.drivers[at].as_mut().filter(|driver| !driver.is_paused(now)) else { return };
        if driver.parked.get(worker).is_some_and(|parked| parked.call == call)
            && let Some(parked) = driver.parked.remove(worker)
        {
            self.send_empty(parked);
        }
    }

    fn send_empty(&mut self, line: Parked) {
        let empty = BeatReply { term: line.term, ..BeatReply::default() };
        self.send_down(line.from, line.call, Answered::Reply(empty));
    }

    /// The plane's machine notices that somebody hung up.
    pub(crate) fn hung_up(&mut self, worker: &WorkerId, call: u64) {
        let Some(at) = self.lead else { return };
        let Some(driver) = &mut self.drivers[at] else { return };
        if driver.parked.get(worker).is_some_and(|parked| parked.call == call) {
            driver.parked.remove(worker);
            let seq = call & 0xffff_ffff;
            let ask = Ask::LineDropped { worker: worker.clone(), seq };
            let id = self.next_call();
            self.arrive(Call { from: Caller::Nobody, id, ask });
        }
    }

    /// The core never holds a workflow: the shell puts it into the order.
    pub(super) fn filled(&self, mut reply: BeatReply) -> BeatReply {
        reply.start.iter_mut().for_each(|start| start.workflow = Some(self.result.clone()));
        reply
    }

    pub(super) fn release_or_wait(&mut self, release: Release, batch: &mut Batch, hasty: Sabotage) {
        if self.is_sabotaged(hasty) {
            self.give(0, release);
        } else {
            batch.releases.push(release);
        }
    }

    pub(super) fn release(&mut self, at: usize, batch: Batch) {
        batch.releases.into_iter().chain(batch.effects).for_each(|release| self.give(at, release));
    }

    fn give(&mut self, at: usize, release: Release) {
        match release {
            Release::Hold { worker, line } => {
                let Some(driver) = &mut self.drivers[at] else { return };
                // A newer beat takes the place of the one that waits.
                if let Some(old) = driver.parked.insert(worker.clone(), line) {
                    self.send_empty(old);
                }
                self.schedule(line.until.max(self.now), Happening::PollOver { at, worker, call: line.call });
            }
            Release::Orders { worker, reply } => {
                let Some(driver) = &mut self.drivers[at] else { return };
                if let Some(Parked { from, call, .. }) = driver.parked.remove(&worker) {
                    self.give(at, Release::Host { to: from, call, answer: Answered::Reply(reply) });
                }
            }
            Release::Host { to, call, answer } => {
                let answer = self.forged_answer(answer);
                let starts = match &answer {
                    Answered::Reply(reply) if !reply.start.is_empty() => Some(reply.clone()),
                    _ => None,
                };
                let is_lost = self.send_down(to, call, answer);
                if let Some(reply) = starts {
                    self.laws.ordered(&reply, is_lost);
                }
            }
            Release::Client { client, call, told } => self.send_to_client(client, call, told),
            Release::Ask { fleet, call } => self.ask_provider(at, fleet, call),
        }
    }
}

/// What a client is told: everything that is neither accepted nor refused answers a wish to cancel.
pub(super) fn told(answer: &Result<Answer, Refusal>) -> Told {
    match answer {
        Ok(Answer::Accepted { job, is_new }) => Told::Accepted { job: *job, is_new: *is_new },
        Err(Refusal::KeyConflict { job }) => Told::Conflict { job: *job },
        Err(Refusal::QueueFull { .. }) => Told::TryLater,
        Ok(_) | Err(_) => Told::CancelDone,
    }
}

/// What an agent is told of a refusal.
pub(super) fn refused(refusal: Refusal) -> Answered {
    Answered::Not(match refusal {
        Refusal::NotWanted(_) => return Answered::NotWanted,
        Refusal::UnknownWorker(_) => CallError::Unknown,
        refusal @ (Refusal::OldIncarnation { .. } | Refusal::WrongToken | Refusal::NotProved(_)) => {
            CallError::Replaced(refusal.to_string())
        }
        refusal => CallError::Unreachable(refusal.to_string()),
    })
}
