//! What does the work behind an agent, with the oddities of ComfyUI. It has a queue of its own, runs one thing or a few at
//! a time, for us and for others, and writes down what became of it; all of that is in its memory, and a restart begins
//! a new life without it. It outlives the agent, so that a new one finds what the old one began.
//!
//! ```text
//!  handed in ──▶ pending ──▶ running ──▶ (a moment in which it is nowhere) ──▶ history ──cleared──▶ unknown
//!                   │           └─ interrupted, or deaf to it ──▶ history
//!                   └─ deleted: no trace                                 restart: everything unknown, a new life
//! ```
//!
//! | part | what it plays |
//! |---|---|
//! | `prompt` | what runs there, and how it will end |
//! | `door` | handing in and telling to stop: lost, late, doubled, refused |
//! | `question` | queue, then history; collecting; what a new agent finds |
//! | `socket` | messages: lost, late, doubled, to nobody |
//! | `care` | what makes it sick, and what helps |
//! | `oddity` | how much of that there is |

mod care;
mod door;
mod oddity;
mod prompt;
mod question;
mod socket;

use std::collections::BTreeMap;
use std::sync::Arc;

use remuda_core::id::{Attempt, JobId};
use remuda_core::service::{ProbeResult, ServiceFailure, ServiceIncarnation};
use serde_json::value::RawValue;

use crate::happening::Happening;
use crate::world::World;

pub(crate) use care::Ailment;
pub(crate) use door::{Answer, Arrival};
pub(crate) use oddity::Oddities;
pub(crate) use prompt::FAILED;
pub(crate) use socket::Message;

use prompt::{Done, End, Prompt};
use socket::Socket;

pub(crate) type Key = (JobId, Attempt);

/// What a service is like, whatever happens to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServicePlan {
    /// How many it runs at a time.
    pub(crate) slots: usize,
    /// The agent started it and may start it again.
    pub(crate) is_owned: bool,
    /// Whoever talks to it tells the agent how things ended, and not only that they did.
    pub(crate) is_plain: bool,
    /// What is done and not written down yet is still shown as running.
    pub(crate) shows_last: bool,
}

#[derive(Debug)]
pub(crate) struct Service {
    plan: ServicePlan,
    life: ServiceIncarnation,
    pub(crate) ailment: Ailment,
    /// Nothing listens there before this.
    down_until: u64,
    /// It is too busy to answer anybody before this.
    mute_until: u64,
    pending: Vec<Prompt>,
    running: Vec<Prompt>,
    history: BTreeMap<Key, Done>,
    pub(crate) socket: Socket,
    /// Every prompt has one, in all its lives.
    marks: u64,
    /// Since when the agent could know that it is sick.
    pub(crate) evidence_at: Option<u64>,
}

impl Service {
    pub(crate) fn new(plan: ServicePlan) -> Self {
        Service {
            plan,
            life: ServiceIncarnation(1),
            ailment: Ailment::None,
            down_until: 0,
            mute_until: 0,
            pending: Vec::new(),
            running: Vec::new(),
            history: BTreeMap::new(),
            socket: Socket::default(),
            marks: 0,
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

    /// Everything it knew is forgotten.
    pub(crate) fn die(&mut self) {
        self.life.0 += 1;
        self.pending.clear();
        self.running.clear();
        self.history.clear();
        self.evidence_at = None;
        if matches!(self.ailment, Ailment::Executor | Ailment::Device) {
            self.ailment = Ailment::None;
        }
    }

    /// Whether something will never come to an end here unless somebody does something.
    pub(crate) fn is_sick(&self) -> bool {
        self.ailment != Ailment::None || self.running.iter().any(|prompt| prompt.end == End::Hangs)
    }

    /// Has it, runs it, or knows how it ended.
    pub(crate) fn knows(&self, key: Key) -> bool {
        self.has(key) || self.history.contains_key(&key)
    }

    /// Waits or runs here.
    pub(crate) fn has(&self, key: Key) -> bool {
        self.ours().any(|it| it == key)
    }

    /// All that waits or runs here for us.
    pub(crate) fn ours(&self) -> impl Iterator<Item = Key> {
        self.pending.iter().chain(&self.running).filter_map(|prompt| prompt.key)
    }

    /// What is over here and what nobody has taken notice of, and since when.
    pub(crate) fn untaken(&self) -> impl Iterator<Item = (Key, u64)> {
        let untaken = self.history.iter().filter(|(key, done)| !done.is_taken && !self.has(**key));
        untaken.map(|(key, done)| (*key, done.at))
    }

    /// How it ended, if that says that there is nothing more to come of it.
    pub(crate) fn has_failed(&self, key: Key) -> bool {
        self.history.get(&key).is_some_and(|done| done.end != End::Succeeds) && !self.has(key)
    }

    /// Whether it waits behind something that goes on.
    pub(crate) fn waits_its_turn(&self, key: Key) -> bool {
        self.ailment != Ailment::Executor
            && self.pending.iter().any(|prompt| prompt.key == Some(key))
            && self.running.iter().any(|prompt| prompt.end != End::Hangs)
    }

    /// Since when each of ours runs that says how far it is.
    pub(crate) fn runs_since(&self) -> impl Iterator<Item = u64> {
        let is_ours = |prompt: &&Prompt| prompt.key.is_some() && prompt.every < u64::MAX;
        let ours = self.running.iter().filter(is_ours).map(|prompt| prompt.started_at);
        ours.filter(|_| self.ailment != Ailment::Executor)
    }

    fn mark(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    /// The next one that may begin, if there is room.
    fn next(&mut self, now: u64) -> Option<&mut Prompt> {
        let may = self.is_up(now)
            && self.ailment != Ailment::Executor
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

    fn running_mut(&mut self, mark: u64) -> Option<&mut Prompt> {
        self.running.iter_mut().find(|prompt| prompt.mark == mark)
    }

    fn ended(&mut self, mark: u64) -> Option<Prompt> {
        let at = self.running.iter().position(|prompt| prompt.mark == mark)?;
        Some(self.running.remove(at))
    }

    /// What a look into its queue says.
    fn queue(&self, now: u64, key: Key) -> Option<ProbeResult> {
        if self.running.iter().any(|prompt| prompt.key == Some(key)) {
            return Some(ProbeResult::Running);
        }
        if self.pending.iter().any(|prompt| prompt.key == Some(key)) {
            return Some(ProbeResult::Pending { ahead: self.running.first().map(|prompt| prompt.mark) });
        }
        let is_last = |done: &&Done| self.plan.shows_last && now < done.written_at;
        self.history.get(&key).filter(is_last).map(|_| ProbeResult::Running)
    }

    /// What a look into its history says.
    fn past(&self, now: u64, key: Key, outputs: &Arc<RawValue>) -> Option<ProbeResult> {
        let done = self.history.get(&key).filter(|done| done.written_at <= now)?;
        Some(match done.end {
            End::Fails(fault) => ProbeResult::Failed(ServiceFailure::new(fault, FAILED)),
            End::Interrupted => ProbeResult::Interrupted,
            End::Succeeds | End::KillsAgent | End::Hangs => {
                ProbeResult::Succeeded { outputs: outputs.clone() }
            }
        })
    }
}

impl World<'_> {
    /// Its room is filled from its queue.
    pub(crate) fn work_on(&mut self, host: usize) {
        while let Some(prompt) = self.hosts[host].service.next(self.now) {
            let (key, mark) = (prompt.key, prompt.mark);
            if let Some(key) = key {
                self.note_prompt("execute", key, host);
                self.executions += 1;
                if self.is_calm {
                    self.laws.executed(self.now, &self.hosts[host], key);
                }
                self.decide_end(host, key, mark);
            }
            self.next_of_prompt(host, mark);
        }
    }

    fn next_of_prompt(&mut self, host: usize, mark: u64) {
        let Some(prompt) = self.hosts[host].service.running_mut(mark) else { return };
        let at = self.now.saturating_add(prompt.every).min(prompt.ends_at());
        if at < u64::MAX {
            self.schedule(at.max(self.now), Happening::PromptDue { host, mark });
        }
    }

    /// It says how far it is, or it is over.
    pub(crate) fn prompt_due(&mut self, host: usize, mark: u64) {
        let now = self.now;
        let service = &mut self.hosts[host].service;
        let ailment = service.ailment;
        let Some(prompt) = service.running_mut(mark).filter(|_| ailment != Ailment::Executor) else { return };
        let (key, progress) = (prompt.key, prompt.progress(now));
        if now < prompt.ends_at() {
            if now.saturating_sub(prompt.told_at) >= prompt.every {
                prompt.told_at = now;
                self.say_over_socket(
                    host,
                    key.map_or(Message::Foreign, |key| Message::Progress(key, progress)),
                );
                self.next_of_prompt(host, mark);
            }
            return;
        }
        let Some(prompt) = self.hosts[host].service.ended(mark) else { return };
        match key {
            Some(key) if prompt.end == End::KillsAgent => self.poisoned(host, key),
            Some(key) => self.prompt_over(host, key, &prompt),
            None => self.say_over_socket(host, Message::Foreign),
        }
        self.work_on(host);
    }

    fn poisoned(&mut self, host: usize, key: Key) {
        if self.hosts[host].agent.is_some() {
            self.laws.took_down(key);
            self.kill_agent(host, false, "poisoned");
            let delay = self.random.between(1000, 50_000);
            self.at(delay, Happening::Begin { host });
        }
    }

    fn prompt_over(&mut self, host: usize, key: Key, prompt: &Prompt) {
        let gap = match (self.is_odd(self.scene.oddities.gaps), prompt.is_cached) {
            (true, _) => self.random.between(1, 2000),
            (false, true) => 0,
            (false, false) => self.random.below(3),
        };
        let done = Done { end: prompt.end, at: self.now, written_at: self.now + gap, is_taken: false };
        self.note_prompt("over", key, host);
        self.hosts[host].service.history.insert(key, done);
        if !prompt.is_cached {
            self.say_over_socket(host, Message::Done(key));
        }
    }

    /// In so many of a thousand cases, while the storm lasts.
    pub(crate) fn is_odd(&mut self, permille: u64) -> bool {
        !self.is_calm && self.random.permille(permille)
    }
}

pub(crate) fn result() -> Arc<RawValue> {
    Arc::from(RawValue::from_string("1".to_owned()).expect("a digit is valid JSON"))
}
