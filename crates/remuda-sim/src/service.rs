//! The state of a service behind an agent, modelled after ComfyUI. It has its own queue, runs one prompt or a few at a
//! time, for us and for others, and keeps a history. All of that is in memory: a restart loses it and begins a new
//! incarnation. The service outlives the agent, so a new agent finds what the old one started.
//!
//! ```text
//!  submitted ──▶ pending ──▶ running ──▶ (a moment in neither list) ──▶ history ──cleared──▶ unknown
//!                   │           └─ interrupted, or ignores it ──▶ history
//!                   └─ deleted: no trace                         restart: everything unknown, a new incarnation
//! ```
//!
//! `world::service` makes it run.

mod fault_rates;
mod prompt;
mod socket;
mod submission;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeResult, ServiceFailure, ServiceIncarnation};
use serde_json::value::RawValue;

pub(crate) use fault_rates::FaultRates;
pub(crate) use prompt::{FAILED, FinishedPrompt, Prompt, PromptEnd};
pub(crate) use socket::{Socket, SocketMessage};
pub(crate) use submission::{Submission, SubmitAnswer};

pub(crate) type Key = (JobId, Attempt);

/// Properties of a service that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServicePlan {
    /// How many prompts it runs at a time.
    pub(crate) slots: usize,
    /// The agent started it and may restart it.
    pub(crate) is_owned: bool,
    /// Its connector reports how a prompt ended, and not only that it ended.
    pub(crate) reports_outcome: bool,
    /// A finished prompt that is not in the history yet is still listed as running.
    pub(crate) lists_finished_as_running: bool,
}

#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) plan: ServicePlan,
    pub(crate) life: ServiceIncarnation,
    pub(crate) defect: Defect,
    /// Connections are refused before this time.
    pub(crate) down_until: u64,
    /// Too busy to answer before this time.
    pub(crate) mute_until: u64,
    pub(crate) pending: Vec<Prompt>,
    pub(crate) running: Vec<Prompt>,
    pub(crate) history: BTreeMap<Key, FinishedPrompt>,
    pub(crate) socket: Socket,
    /// Last prompt number, counted across incarnations.
    pub(crate) marks: u64,
    /// The last self-test prompt, while the history has it.
    pub(crate) self_test: Option<String>,
    /// Since when the agent has evidence that the service is sick.
    pub(crate) evidence_at: Option<u64>,
}

impl Service {
    pub(crate) fn new(plan: ServicePlan) -> Self {
        Service {
            plan,
            life: ServiceIncarnation(1),
            defect: Defect::None,
            down_until: 0,
            mute_until: 0,
            pending: Vec::new(),
            running: Vec::new(),
            history: BTreeMap::new(),
            socket: Socket::default(),
            marks: 0,
            self_test: None,
            evidence_at: None,
        }
    }

    pub(crate) fn life(&self) -> ServiceIncarnation {
        self.life
    }

    pub(crate) fn is_owned(&self) -> bool {
        self.plan.is_owned
    }

    pub(crate) fn is_up(&self, now: u64) -> bool {
        now >= self.down_until
    }

    /// The process ends and loses all it had in memory.
    pub(crate) fn die(&mut self) {
        self.life.0 += 1;
        self.pending.clear();
        self.running.clear();
        self.clear_history();
        self.evidence_at = None;
        if matches!(self.defect, Defect::Executor | Defect::Device) {
            self.defect = Defect::None;
        }
    }

    pub(crate) fn clear_history(&mut self) {
        self.history.clear();
        self.self_test = None;
    }

    /// Whether the history has a prompt of this id.
    pub(crate) fn is_in_history(&self, id: &str) -> bool {
        self.self_test.as_deref() == Some(id)
            || self.history.keys().any(|(job, attempt)| job.service_job_id(*attempt) == id)
    }

    /// A self-test prompt ran; returns its id.
    pub(crate) fn run_self_test(&mut self) -> String {
        let id = format!("self-test {}", self.mark());
        self.self_test.insert(id).clone()
    }

    /// Whether something here never ends without a repair.
    pub(crate) fn is_sick(&self) -> bool {
        self.defect != Defect::None || self.stands_still()
    }

    /// Whether a run here never ends without a repair. A broken device or a full disk stops no run: it fails those that
    /// begin.
    pub(crate) fn stands_still(&self) -> bool {
        self.defect == Defect::Executor || self.running.iter().any(|prompt| prompt.end == PromptEnd::Hangs)
    }

    /// A stuck attempt at a service where nothing moves is evidence that the service is sick. Of a broken device it is
    /// none: a long silent run that began before stops when it is told to, and only a run that begins later fails.
    pub(crate) fn was_stuck(&mut self, now: u64, key: Key) {
        if self.has(key) && self.stands_still() {
            self.evidence_at.get_or_insert(now);
        }
    }

    /// Queued, running or in the history.
    pub(crate) fn knows(&self, key: Key) -> bool {
        self.has(key) || self.history.contains_key(&key)
    }

    /// Queued or running.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.ours().any(|it| it == key)
    }

    /// Our queued and running prompts.
    pub(crate) fn ours(&self) -> impl Iterator<Item = Key> {
        self.pending.iter().chain(&self.running).filter_map(|prompt| prompt.key)
    }

    /// Finished prompts that the agent has not noticed yet, and since when.
    pub(crate) fn unnoticed(&self) -> impl Iterator<Item = (Key, u64)> {
        let unnoticed = self.history.iter().filter(|(key, done)| !done.is_noticed && !self.has(**key));
        unnoticed.map(|(key, done)| (*key, done.at))
    }

    /// Whether the history says that it ended without success.
    pub(crate) fn has_failed(&self, key: Key) -> bool {
        self.history.get(&key).is_some_and(|done| done.end != PromptEnd::Succeeds) && !self.has(key)
    }

    /// Whether it waits behind a prompt that makes progress.
    pub(crate) fn is_queued_behind_progress(&self, key: Key) -> bool {
        self.defect != Defect::Executor
            && self.pending.iter().any(|prompt| prompt.key == Some(key))
            && self.running.iter().any(|prompt| prompt.end != PromptEnd::Hangs)
    }

    /// When each of our running prompts with progress reports started, of which the agent wants to hear.
    pub(crate) fn running_since(&self) -> impl Iterator<Item = u64> {
        let is_ours = |prompt: &&Prompt| {
            prompt.key.is_some() && prompt.progress_every < u64::MAX && !prompt.is_cancelled
        };
        let ours = self.running.iter().filter(is_ours).map(|prompt| prompt.started_at);
        ours.filter(|_| self.defect != Defect::Executor)
    }

    pub(crate) fn mark(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    /// Starts the next prompt if a slot is free.
    pub(crate) fn next(&mut self, now: u64) -> Option<&mut Prompt> {
        let may = self.is_up(now)
            && self.defect != Defect::Executor
            && self.running.len() < self.plan.slots
            && !self.pending.is_empty();
        if !may {
            return None;
        }
        let mut prompt = self.pending.remove(0);
        prompt.started_at = now;
        self.running.push(prompt);
        self.running.last_mut()
    }

    pub(crate) fn running_mut(&mut self, mark: u64) -> Option<&mut Prompt> {
        self.running.iter_mut().find(|prompt| prompt.mark == mark)
    }

    pub(crate) fn ended(&mut self, mark: u64) -> Option<Prompt> {
        let at = self.running.iter().position(|prompt| prompt.mark == mark)?;
        Some(self.running.remove(at))
    }

    /// The answer to a query of the queue.
    pub(crate) fn lookup_queue(&self, now: u64, key: Key) -> Option<ProbeResult> {
        if self.running.iter().any(|prompt| prompt.key == Some(key)) {
            return Some(ProbeResult::Running);
        }
        if self.pending.iter().any(|prompt| prompt.key == Some(key)) {
            return Some(ProbeResult::Pending { ahead: self.running.first().map(|prompt| prompt.mark) });
        }
        let is_last = |done: &&FinishedPrompt| self.plan.lists_finished_as_running && now < done.written_at;
        self.history.get(&key).filter(is_last).map(|_| ProbeResult::Running)
    }

    /// The answer to a query of the history.
    pub(crate) fn lookup_history(&self, now: u64, key: Key, outputs: &Arc<RawValue>) -> Option<ProbeResult> {
        let done = self.history.get(&key).filter(|done| done.written_at <= now)?;
        Some(match done.end {
            PromptEnd::Fails(fault) => ProbeResult::Failed(ServiceFailure::new(fault, FAILED)),
            PromptEnd::Interrupted => ProbeResult::Interrupted,
            PromptEnd::Succeeds | PromptEnd::KillsAgent | PromptEnd::Hangs => {
                ProbeResult::Succeeded { outputs: outputs.clone() }
            }
        })
    }
}

pub(crate) fn job_result() -> Arc<RawValue> {
    Arc::from(RawValue::from_string("1".to_owned()).expect("a digit is valid JSON"))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Defect {
    None,
    /// It answers, but runs nothing.
    Executor,
    /// Every run fails until a restart.
    Device,
    /// Every run fails until an operator frees disk space.
    Disk,
}
