//! Submissions to a service and requests to stop. A request can be lost in either direction, be late, or arrive twice; a
//! sender without an answer learns after its timeout that the outcome is unknown.

use remuda_core::agent::AgentEvent;
use remuda_core::service::{ServiceFailure, ServiceFault, ServiceIncarnation, SubmitOutcome};

use crate::event_queue::SimEvent;
use crate::sabotage::Sabotage;
use crate::scenario::{WorkflowKind, client_of};
use crate::service::{Defect, FAILED, Key, Prompt, PromptEnd, Submission, SubmitAnswer};
use crate::world::World;

/// The sender gives a request up after this time.
pub(super) const REQUEST_MAX: u64 = 5000;
/// By then every submission has arrived, unless the service is too busy to read it.
const DELIVERY_MAX: u64 = 4000;
/// A prompt this close to its end may ignore an interrupt.
const ABOUT_TO_FINISH: u64 = 5000;

impl World<'_> {
    pub(in crate::world) fn submit_prompt(&mut self, host: usize, key: Key, service_job_id: &str) {
        self.note_job("run", key.0, key.1, host);
        let is_renamed = self.is_sabotaged(Sabotage::RecordIdAfterSubmit);
        let id = if is_renamed { "the id the service chose" } else { service_job_id };
        self.laws.prompt_submitted(self.now, host, &self.hosts[host], key, id, &self.store);
        let fault_rates = self.scenario.fault_rates;
        let process = self.hosts[host].process;
        let way = if self.draw_fault(fault_rates.requests_slow) { DELIVERY_MAX } else { 20 };
        let delay = self.random.between(1, way);
        if self.draw_fault(fault_rates.submit_answers_lost) {
            let (arrives, unsure_after) = (self.random.permille(500), self.random.between(1, REQUEST_MAX));
            if arrives {
                self.send_submission(
                    host,
                    delay,
                    Submission { key, process: None, is_copy: false, waits_in: None },
                );
            }
            return self.answer_submission(host, process, unsure_after, key, SubmitAnswer::Unsure);
        }
        self.send_submission(
            host,
            delay,
            Submission { key, process: Some(process), is_copy: false, waits_in: None },
        );
        if self.draw_fault(fault_rates.submits_copied) {
            self.laws.copied(key);
            self.send_submission(
                host,
                delay + 1,
                Submission { key, process: None, is_copy: true, waits_in: None },
            );
        }
    }

    fn send_submission(&mut self, host: usize, delay: u64, submission: Submission) {
        self.hosts[host].in_flight.push(submission.key);
        self.at(delay, SimEvent::SubmissionArrives { host, submission });
    }

    /// A submission reaches the service.
    pub(in crate::world) fn submission_arrived(&mut self, host: usize, submission: Submission) {
        let (now, key) = (self.now, submission.key);
        let service = &self.hosts[host].service;
        let is_lost = submission.waits_in.is_some_and(|life| life != service.life);
        if !is_lost && service.is_up(now) && now < service.mute_until {
            // The service reads it later, when the sender has given up.
            let (until, waits_in) = (service.mute_until, Some(service.life));
            if let Some(process) = submission.process {
                self.answer_submission(host, process, REQUEST_MAX, key, SubmitAnswer::Unsure);
            }
            let submission = Submission { process: None, waits_in, ..submission };
            return self.schedule(until, SimEvent::SubmissionArrives { host, submission });
        }
        let flights = &mut self.hosts[host].in_flight;
        if let Some(at) = flights.iter().position(|it| *it == key) {
            flights.swap_remove(at);
        }
        if is_lost {
            return;
        }
        let answer = self.accept_prompt(host, key, submission.is_copy);
        let Some(process) = submission.process else { return };
        let slow = if self.draw_fault(self.scenario.fault_rates.requests_slow) { REQUEST_MAX } else { 20 };
        let delay = self.random.between(1, slow);
        self.answer_submission(host, process, delay, key, answer);
    }

    fn accept_prompt(&mut self, host: usize, key: Key, is_copy: bool) -> SubmitAnswer {
        if !self.hosts[host].service.is_up(self.now) {
            return SubmitAnswer::Unsure;
        }
        let plan = &self.scenario.jobs[client_of(key.0)];
        let (shape, duration, progress_every) = (plan.shape, plan.duration, plan.progress_every);
        let workflow_kind = self.scenario.workflow_kind(shape);
        // A partly valid graph is accepted and then withdrawn by the connector: a refusal in both cases.
        match workflow_kind {
            WorkflowKind::Bad if shape.is_multiple_of(2) => {
                return SubmitAnswer::Refused(ServiceFault::Graph);
            }
            WorkflowKind::MissingModel if self.lacks_model(host) && key.1.0.is_multiple_of(2) => {
                return SubmitAnswer::Refused(ServiceFault::Missing);
            }
            WorkflowKind::Good
            | WorkflowKind::Quiet
            | WorkflowKind::Bad
            | WorkflowKind::Poison
            | WorkflowKind::MissingModel => {}
        }
        if !is_copy {
            self.laws.prompt_accepted(self.now, host, &self.hosts[host], key);
            self.accepted_in.insert(key, self.hosts[host].incarnations.current());
        }
        let service = &mut self.hosts[host].service;
        let progress_every = if workflow_kind == WorkflowKind::Quiet { u64::MAX } else { progress_every };
        let mark = service.mark();
        service.pending.push(Prompt { is_copy, ..Prompt::new(Some(key), mark, duration, progress_every) });
        self.start_prompts(host);
        SubmitAnswer::Accepted
    }

    fn answer_submission(&mut self, host: usize, process: u32, delay: u64, key: Key, answer: SubmitAnswer) {
        let life = self.hosts[host].incarnations.current();
        self.at(delay, SimEvent::SubmitAnswered { host, process, key, life, answer });
    }

    pub(in crate::world) fn submitted(
        &mut self,
        host: usize,
        process: u32,
        (job, attempt): Key,
        life: ServiceIncarnation,
        answer: SubmitAnswer,
    ) {
        if self.hosts[host].process != process || self.hosts[host].agent.is_none() {
            return;
        }
        if answer == SubmitAnswer::Unsure && self.is_sabotaged(Sabotage::ResubmitBlindly) {
            let submission =
                Submission { key: (job, attempt), process: Some(process), is_copy: false, waits_in: None };
            return self.send_submission(host, 1, submission);
        }
        let answer = match answer {
            SubmitAnswer::Accepted => SubmitOutcome::Accepted,
            SubmitAnswer::Refused(fault) => SubmitOutcome::Refused(ServiceFailure::new(fault, FAILED)),
            SubmitAnswer::Unsure => SubmitOutcome::Unconfirmed("no answer".to_owned()),
        };
        self.step_agent(host, AgentEvent::Submitted { job, attempt, incarnation: life, answer });
    }

    pub(in crate::world) fn stop_attempt(&mut self, host: usize, key: Key) {
        self.laws.stop_requested(key);
        if !self.draw_fault(self.scenario.fault_rates.stops_lost) {
            let delay = self.random.between(1, 20);
            self.at(delay, SimEvent::StopPrompt { host, key, is_ours: true });
        }
    }

    /// A queued prompt is deleted without a trace; a running one is interrupted, unless it ignores that.
    pub(in crate::world) fn stop_prompt(&mut self, host: usize, key: Key, is_ours: bool) {
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
        if service.defect == Defect::Executor {
            return;
        }
        let Some(prompt) = service.running.iter_mut().find(|prompt| prompt.key == Some(key)) else { return };
        prompt.is_cancelled |= is_ours;
        let ignores_stop = prompt.end == PromptEnd::Hangs || now < prompt.uninterruptible_until;
        let is_nearly_done = prompt.ends_at() < now + ABOUT_TO_FINISH;
        if ignores_stop || prompt.end == PromptEnd::KillsAgent || is_too_late && is_nearly_done {
            return;
        }
        prompt.duration = (now + delay - prompt.started_at).min(prompt.duration);
        (prompt.end, prompt.progress_every) = (PromptEnd::Interrupted, u64::MAX);
        let (mark, at) = (prompt.mark, prompt.ends_at());
        self.schedule(at.max(now), SimEvent::PromptDue { host, mark });
    }
}
