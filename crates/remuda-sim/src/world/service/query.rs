//! Queries about an attempt, as the connector sends them: first the queue, a moment later the history. Either may stay
//! unanswered, and either answer may be late.

use remuda_core::agent::{AgentEvent, FoundAttempt};
use remuda_core::cause::Cause;
use remuda_core::service::{AttemptEnd, ProbeResult, ProbeTrigger, ServiceFault, ServiceIncarnation};

use super::submit::REQUEST_MAX;
use crate::event_queue::SimEvent;
use crate::sabotage::Sabotage;
use crate::service::{Defect, FAILED, Key, Prompt, PromptEnd};
use crate::world::World;

/// How many finished and noticed prompts a new process finds, besides all others.
const FINISHED_FOUND_MAX: usize = 2;
/// By then the agent has asked again, so the answer arrives out of order.
const LATE_ANSWER_DELAY: u64 = 20_000;

impl World<'_> {
    /// Everything that a new process finds at the service, in no particular order.
    pub(in crate::world) fn find_attempts(&mut self, host: usize) -> Vec<FoundAttempt> {
        let now = self.now;
        let service = &self.hosts[host].service;
        if !service.is_up(now) {
            return Vec::new();
        }
        let old = service.history.iter().filter(|(_, done)| done.is_noticed).map(|(key, _)| *key);
        let mut found: Vec<Key> =
            old.take(FINISHED_FOUND_MAX).chain(service.unnoticed().map(|(key, _)| key)).collect();
        found.extend(service.ours());
        let turn = self.random.index(found.len().max(1));
        found.rotate_left(turn);
        found.into_iter().map(|(job, attempt)| FoundAttempt { job, attempt }).collect()
    }

    pub(in crate::world) fn query_service(&mut self, host: usize, key: Key, trigger: ProbeTrigger) {
        let is_silence_probe = matches!(trigger, ProbeTrigger::Silence | ProbeTrigger::Recheck);
        if is_silence_probe && self.is_sabotaged(Sabotage::NeverProbeSilence) {
            return;
        }
        let longest = if self.draw_fault(self.scenario.fault_rates.requests_slow) { 1000 } else { 30 };
        let delay = self.random.between(2, longest);
        if self.is_sabotaged(Sabotage::HistoryOnly) || self.is_sabotaged(Sabotage::HistoryFirst) {
            return self.schedule_for_host(host, delay, |process| SimEvent::ReadHistory {
                host,
                process,
                key,
                was_known: false,
            });
        }
        self.schedule_for_host(host, delay, |process| SimEvent::ReadQueue {
            host,
            process,
            key,
            was_known: false,
        });
    }

    pub(in crate::world) fn read_queue(&mut self, host: usize, process: u32, key: Key, was_known: bool) {
        if !self.can_answer(host, process, key) {
            return;
        }
        let service = &self.hosts[host].service;
        let is_known = service.knows(key);
        match service.lookup_queue(self.now, key) {
            Some(seen) => {
                // Two prompts with one id: the queued copy is removed.
                let is_copied = service.ours().filter(|it| *it == key).count() > 1;
                if is_copied {
                    let is_copy = |prompt: &Prompt| prompt.key == Some(key) && prompt.is_copy;
                    self.hosts[host].service.pending.retain(|prompt| !is_copy(prompt));
                }
                self.answer(host, process, key, seen);
            }
            None if self.is_sabotaged(Sabotage::HistoryFirst) => {
                self.answer_unknown(host, process, key, was_known);
            }
            None => {
                let delay = self.random.between(1, 15);
                self.at(delay, SimEvent::ReadHistory { host, process, key, was_known: is_known });
            }
        }
    }

    pub(in crate::world) fn read_history(&mut self, host: usize, process: u32, key: Key, was_known: bool) {
        if !self.can_answer(host, process, key) {
            return;
        }
        let service = &self.hosts[host].service;
        let is_known = service.knows(key);
        match service.lookup_history(self.now, key, &self.result) {
            Some(seen) => self.answer(host, process, key, seen),
            None if self.is_sabotaged(Sabotage::HistoryFirst) && !was_known => {
                let delay = self.random.between(1, 15);
                self.at(delay, SimEvent::ReadQueue { host, process, key, was_known: is_known });
            }
            None => self.answer_unknown(host, process, key, was_known),
        }
    }

    /// Neither list had it.
    fn answer_unknown(&mut self, host: usize, process: u32, key: Key, was_known: bool) {
        let service = &self.hosts[host].service;
        let is_written = service.history.get(&key).is_none_or(|done| done.written_at <= self.now);
        if !is_written {
            self.laws.queried_in_gap(key);
        } else if was_known && service.knows(key) {
            self.laws.denied(self.now, self.hosts[host].name(), key);
        }
        self.answer(host, process, key, ProbeResult::Unknown);
    }

    /// Whether the service answers. If not, the agent learns so after a timeout.
    fn can_answer(&mut self, host: usize, process: u32, key: Key) -> bool {
        let it = &self.hosts[host];
        if it.process != process || it.agent.is_none() {
            return false;
        }
        if !it.service.is_up(self.now) {
            self.answer(host, process, key, ProbeResult::Gone("connection refused".to_owned()));
            return false;
        }
        if self.now < it.service.mute_until || self.draw_fault(self.scenario.fault_rates.queries_unanswered) {
            let (life, seen) =
                (self.hosts[host].incarnations.current(), ProbeResult::NoAnswer("timed out".to_owned()));
            self.hosts[host].disturbed_until = self.now + REQUEST_MAX;
            self.at(REQUEST_MAX, SimEvent::Probed { host, process, key, life, seen: Box::new(seen) });
            return false;
        }
        true
    }

    fn answer(&mut self, host: usize, process: u32, key: Key, seen: ProbeResult) {
        // The incarnation only matters if the service does not know the prompt.
        let it = &mut self.hosts[host];
        let life = match seen {
            ProbeResult::Unknown => it.confirm_incarnation(),
            _ => it.incarnations.current(),
        };
        if self.draw_fault(self.scenario.fault_rates.late_answers) {
            let delay = LATE_ANSWER_DELAY + self.random.below(10_000);
            self.hosts[host].disturbed_until = self.now + delay;
            self.at(delay, SimEvent::Probed { host, process, key, life, seen: Box::new(seen) });
        } else {
            self.probed(host, process, key, life, seen);
        }
    }

    pub(in crate::world) fn probed(
        &mut self,
        host: usize,
        process: u32,
        key: Key,
        life: ServiceIncarnation,
        seen: ProbeResult,
    ) {
        if self.hosts[host].process != process || self.hosts[host].agent.is_none() {
            return;
        }
        self.hosts[host].signals += 1;
        let (job, attempt) = key;
        let (life, seen) = self.forged_seen(key, life, seen);
        if matches!(seen, ProbeResult::Failed(_) | ProbeResult::Interrupted) {
            self.note_failure(host, key, &seen);
        }
        self.step_agent(host, AgentEvent::Probed { job, attempt, incarnation: life, result: seen });
    }

    /// The agent learns of a failure, which may be evidence that its service is sick.
    fn note_failure(&mut self, host: usize, key: Key, seen: &ProbeResult) {
        let now = self.now;
        let service = &mut self.hosts[host].service;
        if let Some(done) = service.history.get_mut(&key) {
            done.is_noticed = true;
        }
        let is_evidence = match seen {
            ProbeResult::Failed(failure) => match failure.fault {
                ServiceFault::Device => service.defect == Defect::Device,
                ServiceFault::Disk => service.defect == Defect::Disk,
                _ => false,
            },
            _ => false,
        };
        if is_evidence {
            service.evidence_at.get_or_insert(now);
        }
    }

    /// Downloads the outputs, which takes a while and may fail.
    pub(in crate::world) fn fetch_outputs(&mut self, host: usize, key: Key) {
        let longest = if self.draw_fault(self.scenario.fault_rates.requests_slow) { 20_000 } else { 100 };
        let delay = self.random.between(1, longest);
        let life = self.hosts[host].service.life;
        self.schedule_for_host(host, delay, |process| SimEvent::OutputsFetched { host, process, key, life });
    }

    pub(in crate::world) fn outputs_fetched(
        &mut self,
        host: usize,
        process: u32,
        key: Key,
        life: ServiceIncarnation,
    ) {
        let is_removed = self.draw_fault(self.scenario.fault_rates.outputs_lost);
        let it = &mut self.hosts[host];
        if it.process != process || it.agent.is_none() {
            return;
        }
        if let Some(done) = it.service.history.get_mut(&key) {
            done.is_noticed = true;
        }
        let is_there = it.service.life == life && it.service.is_up(self.now);
        if is_there && !is_removed {
            self.complete(host, key);
        } else {
            self.laws.outputs_missing(key);
            let message = "an output file is missing".to_owned();
            self.end_attempt(host, AttemptEnd::Failed { cause: Cause::Service, message }, key);
        }
    }

    /// For connectors that report outcomes themselves.
    pub(super) fn report_outcome(&mut self, host: usize, key: Key) {
        let Some(done) = self.hosts[host].service.history.get_mut(&key) else { return };
        done.is_noticed = true;
        let cause = match done.end {
            PromptEnd::Fails(fault) => fault.cause(),
            PromptEnd::Interrupted => Cause::Service,
            PromptEnd::Succeeds | PromptEnd::KillsAgent | PromptEnd::Hangs => {
                return self.complete(host, key);
            }
        };
        self.end_attempt(host, AttemptEnd::Failed { cause, message: FAILED.to_owned() }, key);
    }

    /// Counts only if the agent still holds it: of two copies one may have ended before.
    fn complete(&mut self, host: usize, key: Key) {
        let it = &self.hosts[host];
        if it.agent.as_ref().is_some_and(|agent| agent.held().any(|held| held == key)) {
            self.laws.completed(it.name(), key);
        }
        self.hosts[host].incarnations.set_anchor(&key.0.service_job_id(key.1));
        self.end_attempt(host, AttemptEnd::Completed { result: self.result.clone() }, key);
    }

    fn end_attempt(&mut self, host: usize, outcome: AttemptEnd, (job, attempt): Key) {
        self.step_agent(host, AgentEvent::Ended { job, attempt, outcome });
    }
}
