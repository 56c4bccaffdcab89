//! Handing an attempt to a service, and telling it to stop. A request may be lost on the way there or back, be late, or
//! come twice; whoever sent it is told in time that nobody knows.

use remuda_core::agent::AgentEvent;
use remuda_core::service::{ServiceFailure, ServiceFault, ServiceIncarnation, SubmitOutcome};

use super::prompt::{End, FAILED, Prompt};
use super::{Ailment, Key};
use crate::happening::Happening;
use crate::sabotage::Sabotage;
use crate::scene::Nature;
use crate::world::World;

/// A submission on its way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    pub(crate) key: Key,
    /// Who waits for the answer; nobody if it is lost.
    pub(crate) process: Option<u32>,
    pub(crate) is_copy: bool,
    /// It waits to be read by the service in this life, and would end with it.
    pub(crate) waits_in: Option<ServiceIncarnation>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Accepted,
    Refused(ServiceFault),
    Unsure,
}

/// A request that takes longer is given up by whoever sent it.
pub(super) const REQUEST_MAX: u64 = 5000;
/// By then everything has arrived that ever will, unless the service is too busy to read.
const IN_FLIGHT_MAX: u64 = 4000;
/// Some services finish what they are about to finish, whatever they are told.
const ABOUT_TO_FINISH: u64 = 5000;

impl World<'_> {
    pub(crate) fn hand_in(&mut self, host: usize, key: Key, service_job_id: &str) {
        self.note_job("run", key.0, key.1, host);
        let is_renamed = self.is_sabotaged(Sabotage::NameAfterwards);
        let id = if is_renamed { "whatever the service says" } else { service_job_id };
        self.laws.handed_in(self.now, host, &self.hosts[host], key, id, &self.store);
        let oddities = self.scene.oddities;
        let process = self.hosts[host].process;
        let way = if self.is_odd(oddities.slow) { IN_FLIGHT_MAX } else { 20 };
        let delay = self.random.between(1, way);
        if self.is_odd(oddities.answers_lost) {
            let (arrives, unsure_after) = (self.random.permille(500), self.random.between(1, REQUEST_MAX));
            if arrives {
                self.arrives(host, delay, Arrival { key, process: None, is_copy: false, waits_in: None });
            }
            return self.answer_submission(host, process, unsure_after, key, Answer::Unsure);
        }
        self.arrives(host, delay, Arrival { key, process: Some(process), is_copy: false, waits_in: None });
        if self.is_odd(oddities.copies) {
            self.laws.copied(key);
            self.arrives(host, delay + 1, Arrival { key, process: None, is_copy: true, waits_in: None });
        }
    }

    fn arrives(&mut self, host: usize, delay: u64, arrival: Arrival) {
        self.hosts[host].in_flight.push(arrival.key);
        self.at(delay, Happening::HandedIn { host, arrival });
    }

    /// A submission reaches the service.
    pub(crate) fn handed_in(&mut self, host: usize, arrival: Arrival) {
        let (now, key) = (self.now, arrival.key);
        let service = &self.hosts[host].service;
        let is_lost = arrival.waits_in.is_some_and(|life| life != service.life);
        if !is_lost && service.is_up(now) && now < service.mute_until {
            // It is read when the service reads again; who sent it has given up by then.
            let (until, waits_in) = (service.mute_until, Some(service.life));
            if let Some(process) = arrival.process {
                self.answer_submission(host, process, REQUEST_MAX, key, Answer::Unsure);
            }
            let arrival = Arrival { process: None, waits_in, ..arrival };
            return self.schedule(until, Happening::HandedIn { host, arrival });
        }
        let flights = &mut self.hosts[host].in_flight;
        if let Some(at) = flights.iter().position(|it| *it == key) {
            flights.swap_remove(at);
        }
        if is_lost {
            return;
        }
        let answer = self.take_in(host, key, arrival.is_copy);
        let Some(process) = arrival.process else { return };
        let slow = if self.is_odd(self.scene.oddities.slow) { REQUEST_MAX } else { 20 };
        let delay = self.random.between(1, slow);
        self.answer_submission(host, process, delay, key, answer);
    }

    fn take_in(&mut self, host: usize, key: Key, is_copy: bool) -> Answer {
        if !self.hosts[host].service.is_up(self.now) {
            return Answer::Unsure;
        }
        let plan = &self.scene.jobs[crate::client::of(key.0)];
        let (shape, takes, every) = (plan.shape, plan.takes, plan.progress_every);
        let nature = self.scene.nature(shape);
        // What is half right is accepted and taken out again by whoever knows better: refused, either way.
        match nature {
            Nature::Bad if shape.is_multiple_of(2) => return Answer::Refused(ServiceFault::Graph),
            Nature::Picky if self.is_picky(host) && key.1.0.is_multiple_of(2) => {
                return Answer::Refused(ServiceFault::Missing);
            }
            Nature::Good | Nature::Quiet | Nature::Bad | Nature::Poison | Nature::Picky => {}
        }
        if !is_copy {
            self.laws.taken_in(self.now, host, &self.hosts[host], key);
            self.taken_in.insert(key, self.hosts[host].service.life);
        }
        let service = &mut self.hosts[host].service;
        let every = if nature == Nature::Quiet { u64::MAX } else { every };
        let mark = service.mark();
        service.pending.push(Prompt { is_copy, ..Prompt::new(Some(key), mark, takes, every) });
        self.work_on(host);
        Answer::Accepted
    }

    fn answer_submission(&mut self, host: usize, process: u32, delay: u64, key: Key, answer: Answer) {
        let life = self.hosts[host].service.life;
        self.at(delay, Happening::Submitted { host, process, key, life, answer });
    }

    pub(crate) fn submitted(
        &mut self,
        host: usize,
        process: u32,
        (job, attempt): Key,
        life: ServiceIncarnation,
        answer: Answer,
    ) {
        if self.hosts[host].process != process || self.hosts[host].agent.is_none() {
            return;
        }
        if answer == Answer::Unsure && self.is_sabotaged(Sabotage::HandInBlindly) {
            let arrival =
                Arrival { key: (job, attempt), process: Some(process), is_copy: false, waits_in: None };
            return self.arrives(host, 1, arrival);
        }
        let answer = match answer {
            Answer::Accepted => SubmitOutcome::Accepted,
            Answer::Refused(fault) => SubmitOutcome::Refused(ServiceFailure::new(fault, FAILED)),
            Answer::Unsure => SubmitOutcome::Unsure("no answer".to_owned()),
        };
        self.tell_agent(host, AgentEvent::Submitted { job, attempt, life, answer });
    }

    pub(crate) fn tell_to_stop(&mut self, host: usize, key: Key) {
        self.laws.told_to_stop(key);
        if !self.is_odd(self.scene.oddities.stops_lost) {
            let delay = self.random.between(1, 20);
            self.at(delay, Happening::Stop { host, key, is_ours: true });
        }
    }

    /// What waits is deleted and leaves no trace; what runs is interrupted, if it listens.
    pub(crate) fn stop_prompt(&mut self, host: usize, key: Key, is_ours: bool) {
        let now = self.now;
        let is_too_late = self.random.permille(200);
        let delay = self.random.below(1000);
        let service = &mut self.hosts[host].service;
        if !service.is_up(now) || now < service.mute_until {
            return;
        }
        if is_ours {
            service.pending.retain(|prompt| prompt.key != Some(key));
        }
        if service.ailment == Ailment::Executor {
            return;
        }
        let Some(prompt) = service.running.iter_mut().find(|prompt| prompt.key == Some(key)) else { return };
        let is_deaf = prompt.end == End::Hangs || now < prompt.stubborn_until;
        let is_nearly_done = prompt.ends_at() < now + ABOUT_TO_FINISH;
        if is_deaf || prompt.end == End::KillsAgent || is_too_late && is_nearly_done {
            return;
        }
        prompt.takes = (now + delay - prompt.started_at).min(prompt.takes);
        (prompt.end, prompt.every) = (End::Interrupted, u64::MAX);
        let (mark, at) = (prompt.mark, prompt.ends_at());
        self.schedule(at.max(now), Happening::PromptDue { host, mark });
    }
}
