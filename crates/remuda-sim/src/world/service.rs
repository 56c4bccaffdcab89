//! Runs the prompts of a host's service and announces progress and ends.
//!
//! | part | what it does |
//! |---|---|
//! | `submit` | submissions and stop requests: lost, late, duplicated, refused |
//! | `query` | queue, then history; fetching outputs; what a new agent finds |
//! | `socket` | messages: lost, late, duplicated, about foreign prompts |
//! | `run_outcome` | how a run will end, decided when it starts |
//! | `health` | what breaks a service, and what repairs it |

mod health;
mod query;
mod run_outcome;
mod socket;
mod submit;

use super::World;
use crate::event_queue::SimEvent;
use crate::service::{Defect, FinishedPrompt, Key, Prompt, PromptEnd, SocketMessage};

impl World<'_> {
    /// Starts queued prompts while slots are free.
    pub(super) fn start_prompts(&mut self, host: usize) {
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
            self.schedule_prompt(host, mark);
        }
    }

    fn schedule_prompt(&mut self, host: usize, mark: u64) {
        let Some(prompt) = self.hosts[host].service.running_mut(mark) else { return };
        let at = self.now.saturating_add(prompt.progress_every).min(prompt.ends_at());
        if at < u64::MAX {
            self.schedule(at.max(self.now), SimEvent::PromptDue { host, mark });
        }
    }

    /// A running prompt reports progress, or ends.
    pub(super) fn prompt_due(&mut self, host: usize, mark: u64) {
        let now = self.now;
        let service = &mut self.hosts[host].service;
        let defect = service.defect;
        let Some(prompt) = service.running_mut(mark).filter(|_| defect != Defect::Executor) else { return };
        let (key, progress) = (prompt.key, prompt.progress(now));
        if now < prompt.ends_at() {
            if now.saturating_sub(prompt.reported_at) >= prompt.progress_every {
                prompt.reported_at = now;
                self.send_message(
                    host,
                    key.map_or(SocketMessage::Foreign, |key| SocketMessage::Progress(key, progress)),
                );
                self.schedule_prompt(host, mark);
            }
            return;
        }
        let Some(prompt) = self.hosts[host].service.ended(mark) else { return };
        match key {
            Some(key) if prompt.end == PromptEnd::KillsAgent => self.crash_agent(host, key),
            Some(key) => self.prompt_over(host, key, &prompt),
            None => self.send_message(host, SocketMessage::Foreign),
        }
        self.start_prompts(host);
    }

    fn crash_agent(&mut self, host: usize, key: Key) {
        if self.hosts[host].agent.is_some() {
            self.laws.agent_crashed(key);
            self.kill_agent(host, false, "crash_agent");
            let delay = self.random.between(1000, 50_000);
            self.at(delay, SimEvent::AgentStart { host });
        }
    }

    fn prompt_over(&mut self, host: usize, key: Key, prompt: &Prompt) {
        let gap = match (self.draw_fault(self.scenario.fault_rates.gaps), prompt.is_cached) {
            (true, _) => self.random.between(1, 2000),
            (false, true) => 0,
            (false, false) => self.random.below(3),
        };
        let done =
            FinishedPrompt { end: prompt.end, at: self.now, written_at: self.now + gap, is_noticed: false };
        self.note_prompt("over", key, host);
        self.hosts[host].service.history.insert(key, done);
        if !prompt.is_cached {
            self.send_message(host, SocketMessage::Done(key));
        }
    }

    /// True in `permille` of a thousand cases during the storm, and never after it.
    pub(super) fn draw_fault(&mut self, permille: u64) -> bool {
        !self.is_calm && self.random.permille(permille)
    }
}
