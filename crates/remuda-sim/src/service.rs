//! What does the work behind an agent: it runs an attempt for a while, says how far it is, and completes, fails, hangs
//! or takes the agent down. It outlives the agent, so that a new one finds what the old one began; and news of an end
//! may be lost, so that only a question brings it out.

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::agent::{AgentEvent, Ending};
use remuda_core::cause::Cause;
use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{Seen, ServiceLife, Submission};
use serde_json::value::RawValue;

use crate::host::PROBE_AGAIN;
use crate::scene::{Nature, Quirk};
use crate::world::{Happening, World};

pub(crate) type Key = (JobId, Attempt);

#[derive(Debug, Default)]
pub(crate) struct Runs(BTreeMap<Key, Run>, ServiceLife);

#[derive(Debug)]
pub(crate) struct Run {
    /// The process that hears of it.
    process: u32,
    ends_at: u64,
    every: u64,
    started_at: u64,
    end: End,
    is_done: bool,
}

const ABOUT_TO_FINISH: u64 = 5000;
/// What a run that fails says.
pub(crate) const FAILED: &str = "it did not work";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Completes,
    Fails(Cause),
    KillsAgent,
    Hangs,
}

impl Runs {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn life(&self) -> ServiceLife {
        self.1
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.0.keys()
    }

    /// What a new process finds and takes over.
    pub(crate) fn left_over(&mut self, process: u32) -> Vec<Key> {
        self.0.values_mut().for_each(|run| run.process = process);
        self.0.keys().copied().collect()
    }

    /// A new process that does not look: what runs on is nobody's.
    pub(crate) fn orphan(&mut self) -> Vec<Key> {
        self.0.values_mut().for_each(|run| run.process = 0);
        Vec::new()
    }
}

impl World<'_> {
    pub(crate) fn begin_run(&mut self, host: usize, job: JobId, attempt: Attempt) {
        self.note_job("run", job, attempt, host);
        self.laws.run_began(self.now, &self.hosts[host], job, attempt);
        let plan = &self.scene.jobs[crate::client::of(job)];
        let (shape, takes, progress_every) = (plan.shape, plan.takes, plan.progress_every);
        let nature = self.scene.nature(shape);
        let is_storm = !self.is_calm;
        let it = &self.hosts[host];
        let (end, takes) = match (it.plan.quirk, nature) {
            (Quirk::BlackHole, _) => (End::Fails(Cause::Service), 1),
            (_, Nature::Bad) => (End::Fails(Cause::Job), takes.min(2000)),
            (_, Nature::Poison) => (End::KillsAgent, takes.min(1000)),
            (_, Nature::Picky) if is_storm && host.is_multiple_of(2) => {
                (End::Fails(Cause::Service), takes.min(500))
            }
            (Quirk::None | Quirk::Boaster, Nature::Good | Nature::Quiet | Nature::Picky) => {
                let is_fair = self.scene.weather == crate::Weather::Fair;
                match self.random.below(1000) {
                    0..4 if is_storm && !is_fair => (End::Hangs, takes),
                    4..20 if is_storm && !is_fair => (End::Fails(Cause::Worker), takes),
                    _ => (End::Completes, takes),
                }
            }
        };
        let every = if nature == Nature::Quiet || end == End::Hangs { u64::MAX } else { progress_every };
        let it = &mut self.hosts[host];
        let run = Run {
            process: it.process,
            ends_at: self.now + takes,
            every,
            started_at: self.now,
            end,
            is_done: false,
        };
        it.runs.0.insert((job, attempt), run);
        self.next_of_run(host, (job, attempt));
    }

    fn next_of_run(&mut self, host: usize, key: Key) {
        let Some(run) = self.hosts[host].runs.0.get(&key) else { return };
        let ends_at = if run.end == End::Hangs { u64::MAX } else { run.ends_at };
        let at = self.now.saturating_add(run.every).min(ends_at);
        if at < u64::MAX {
            self.schedule(at, Happening::Service { host, key });
        }
    }

    pub(crate) fn service_due(&mut self, host: usize, key: Key) {
        let Some(run) = self.hosts[host].runs.0.get_mut(&key).filter(|run| !run.is_done) else { return };
        let process = run.process;
        if self.now < run.ends_at || run.end == End::Hangs {
            let takes = (run.ends_at - run.started_at).max(1);
            let progress = (self.now - run.started_at) as f32 / takes as f32;
            self.next_of_run(host, key);
            self.schedule(self.now, Happening::Signal { host, process, key, progress });
            return;
        }
        run.is_done = true;
        let end = run.end;
        if end == End::KillsAgent {
            self.hosts[host].runs.0.remove(&key);
            if self.hosts[host].agent.is_some() && self.hosts[host].process == process {
                self.laws.took_down(key);
                self.kill_agent(host, false, "poisoned");
                let delay = self.random.between(1000, 50_000);
                self.at(delay, Happening::Begin { host });
            }
            return;
        }
        // The news of it gets lost now and then: only a probe finds out.
        let is_fair = self.is_calm || self.scene.weather == crate::Weather::Fair;
        if is_fair || !self.random.permille(30) {
            self.schedule(self.now, Happening::RunOver { host, process, key });
        }
    }

    pub(crate) fn signal(&mut self, host: usize, process: u32, key: Key, progress: f32) {
        if self.hosts[host].process == process {
            let (job, attempt) = key;
            let phase = String::new();
            self.tell_agent(host, AgentEvent::Signal { job, attempt, progress, phase });
        }
    }

    /// Tells the agent how it ended, and forgets it.
    pub(crate) fn run_over(&mut self, host: usize, process: u32, key: Key) {
        let it = &mut self.hosts[host];
        if it.process != process || it.agent.is_none() {
            return;
        }
        let Some(run) = it.runs.0.remove(&key) else { return };
        let ending = match run.end {
            End::Completes => {
                self.laws.completed(it.name(), key);
                Ending::Completed { result: self.result.clone() }
            }
            End::Fails(cause) => Ending::Failed { cause, message: FAILED.to_owned() },
            End::KillsAgent | End::Hangs => {
                Ending::Failed { cause: Cause::Service, message: "interrupted".to_owned() }
            }
        };
        self.ended(host, ending, key);
    }

    pub(crate) fn cancel_run(&mut self, host: usize, job: JobId, attempt: Attempt) {
        let key = (job, attempt);
        // Some services finish what they are about to finish, whatever they are told.
        let soon = self.now + ABOUT_TO_FINISH;
        let is_nearly_done = |run: &Run| run.end != End::Hangs && run.ends_at < soon;
        if self.random.permille(200) && self.hosts[host].runs.0.get(&key).is_some_and(is_nearly_done) {
            return;
        }
        if let Some(run) = self.hosts[host].runs.0.get_mut(&key).filter(|run| !run.is_done) {
            (run.end, run.is_done) = (End::Hangs, true);
        }
        let delay = self.random.between(0, 1000);
        self.at_host(host, delay, |process| Happening::RunOver { host, process, key });
    }

    /// The service is asked. What it does not know, it never had or has forgotten.
    pub(crate) fn probe(&mut self, host: usize, process: u32, key: Key) {
        let (job, attempt) = key;
        if self.hosts[host].process != process {
            return;
        }
        if !self.is_calm && self.random.permille(50) {
            // No answer is no evidence: ask again.
            return self.at(PROBE_AGAIN, Happening::Probe { host, process, job, attempt });
        }
        let life = self.hosts[host].runs.life();
        let seen = match self.hosts[host].runs.0.get(&key) {
            Some(run) if run.is_done && run.end == End::Completes => {
                Seen::Succeeded { outputs: self.result.clone() }
            }
            Some(run) if run.is_done => return self.run_over(host, process, key),
            Some(_) => Seen::Running,
            None => Seen::Unknown,
        };
        self.tell_agent(host, AgentEvent::Probed { job, attempt, life, seen });
    }

    pub(crate) fn submitted(&mut self, host: usize, process: u32, (job, attempt): Key) {
        if self.hosts[host].process == process {
            let (life, answer) = (self.hosts[host].runs.life(), Submission::Accepted);
            self.tell_agent(host, AgentEvent::Submitted { job, attempt, life, answer });
        }
    }

    pub(crate) fn crash_service(&mut self, host: usize) {
        self.note("crash service", host as u64, 0);
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        let process = it.process;
        let keys: Vec<_> = it.runs.keys().copied().collect();
        it.runs.clear();
        it.runs.1.0 += 1;
        // The socket closes: a reason to ask at once.
        for (job, attempt) in keys {
            self.at(10, Happening::Probe { host, process, job, attempt });
        }
    }
}

pub(crate) fn result() -> Arc<RawValue> {
    Arc::from(RawValue::from_string("1".to_owned()).expect("a digit is valid JSON"))
}
