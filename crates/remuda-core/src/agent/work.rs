//! The attempts an agent holds: how they begin, how they are watched, how they end.

use super::{Agent, AgentEffect, Ending, Finding, Finished, Found, Outcome, Start, Watch, Work};
use crate::cause::Cause;
use crate::id::{Attempt, JobId};
use crate::time::Timestamp;

impl Agent {
    /// Left over from a former incarnation: adopted, and asked about at once.
    pub(super) fn found(&mut self, now: Timestamp, found: Vec<Found>) {
        for Found { job, attempt } in found {
            self.held.insert(job, Work::new(now, attempt));
            self.effects.push(AgentEffect::Probe { job, attempt });
        }
    }

    /// An order that comes again is the same order.
    pub(super) fn start(&mut self, now: Timestamp, start: Start) {
        let Start { job, attempt, service, service_job_id, workflow } = start;
        let key = (job, attempt);
        let is_known = self.held.get(&job).is_some_and(|work| work.attempt >= attempt)
            || self.finished.contains_key(&key)
            || self.settled.contains(&key);
        if is_known {
            return;
        }
        if let Some(older) = self.held.get(&job) {
            // The plane gave up on the older attempt; its end will be refused, so it is not waited for.
            let older = older.attempt;
            self.effects.push(AgentEffect::Cancel {
                job,
                attempt: older,
                reason: "a newer attempt began".to_owned(),
            });
            self.held.remove(&job);
        }
        let problem = match workflow {
            _ if self.held.len() >= self.settings.slots as usize => Some("all slots are taken"),
            None => Some("the order came without a workflow"),
            Some(_) if !self.settings.services.contains(&service) => {
                Some("this worker does not offer the service")
            }
            Some(workflow) => {
                self.held.insert(job, Work::new(now, attempt));
                self.has_progress = true;
                self.effects.push(AgentEffect::Run { job, attempt, service, service_job_id, workflow });
                None
            }
        };
        if let Some(problem) = problem {
            self.report(job, attempt, Outcome::Rejected, problem.to_owned());
        }
    }

    pub(super) fn cancel(&mut self, job: JobId, attempt: Attempt, reason: String) {
        match self.held.get_mut(&job) {
            Some(work) if work.attempt == attempt && !work.is_cancelled => {
                work.is_cancelled = true;
                self.effects.push(AgentEffect::Cancel { job, attempt, reason });
            }
            Some(_) | None => {}
        }
    }

    pub(super) fn signal(
        &mut self,
        now: Timestamp,
        job: JobId,
        attempt: Attempt,
        progress: f32,
        phase: String,
    ) {
        let Some(work) = self.held.get_mut(&job).filter(|work| work.attempt == attempt) else { return };
        work.watch.signal(now);
        work.step += 1;
        if progress.is_finite() {
            work.progress = work.progress.max(progress.clamp(0.0, 1.0));
        }
        work.phase = phase;
        self.has_progress = true;
    }

    pub(super) fn ended(&mut self, job: JobId, attempt: Attempt, ending: Ending) {
        let Some(work) = self.held.get(&job).filter(|work| work.attempt == attempt) else { return };
        let is_cancelled = work.is_cancelled;
        self.held.remove(&job);
        let finished = match ending {
            Ending::Failed { message, .. } if is_cancelled => {
                finished(job, attempt, Outcome::Cancelled, message)
            }
            Ending::Failed { cause, message } => {
                Finished { cause: Some(cause), ..finished(job, attempt, Outcome::Failed, message) }
            }
            Ending::Completed { result } => {
                Finished { result: Some(result), ..finished(job, attempt, Outcome::Completed, String::new()) }
            }
        };
        self.finished.insert((job, attempt), finished);
        self.has_news = true;
    }

    /// The service was asked: what it does not know any more is over.
    pub(super) fn probed(&mut self, now: Timestamp, job: JobId, attempt: Attempt, is_known: bool) {
        let Some(work) = self.held.get_mut(&job).filter(|work| work.attempt == attempt) else { return };
        if is_known {
            return work.watch.signal(now);
        }
        let message = "the service does not know the attempt any more".to_owned();
        self.ended(job, attempt, Ending::Failed { cause: Cause::Service, message });
    }

    /// Whoever has been silent for too long is asked about, once for each silence.
    pub(super) fn watch(&mut self, now: Timestamp) {
        let limits = self.limits();
        for (job, work) in &mut self.held {
            if work.watch.check(now, limits) == Finding::Probe {
                self.effects.push(AgentEffect::Probe { job: *job, attempt: work.attempt });
            }
        }
    }

    fn report(&mut self, job: JobId, attempt: Attempt, outcome: Outcome, message: String) {
        self.finished.insert((job, attempt), finished(job, attempt, outcome, message));
        self.has_news = true;
    }
}

impl Work {
    fn new(now: Timestamp, attempt: Attempt) -> Self {
        Work {
            attempt,
            step: 0,
            progress: 0.0,
            phase: String::new(),
            watch: Watch::new(now),
            is_cancelled: false,
        }
    }
}

fn finished(job: JobId, attempt: Attempt, outcome: Outcome, message: String) -> Finished {
    Finished { job, attempt, outcome, result: None, cause: None, message }
}
