//! The shell around the real `core::Agent`: starts, kills and pauses its process, steps it and runs its effects.

use remuda_core::agent::{Agent, AgentEffect, AgentEvent, AgentExit, CallError};
use remuda_core::service::incarnation::IncarnationTracker;
use remuda_core::time::Timestamp;

use super::World;
use crate::event_queue::SimEvent;
use crate::host::Host;
use crate::net::{AgentResponse, Caller, PlaneCall, PlaneRequest};
use crate::sabotage::Sabotage;
use crate::scenario::Quirk;

/// How long an agent waits for an answer that should come at once.
const CALL_TIMEOUT: u64 = 10_000;

/// How much longer than the requested wait an agent keeps a long poll open. Together with the longest wait it is less
/// than a lease, so an order lost on an open poll costs nothing.
const LONG_POLL_MARGIN: u64 = 3000;

/// How long a beat that was overtaken stays open.
const SUPERSEDED_MAX: u64 = 2000;

impl World<'_> {
    /// Starts the agent process, which usually finds what the previous one left running.
    pub(super) fn start_agent(&mut self, host: usize) {
        let it = &mut self.hosts[host];
        if it.is_removed || it.agent.is_some() {
            return;
        }
        let now = it.clock(self.now);
        it.process += 1;
        (it.dead_since, it.unavailable_since, it.started_at) = (None, None, self.now);
        it.agent = Some(Agent::new(it.settings(), now));
        // An agent that finds nothing joins after a self-test, which does not pass behind a prompt that hangs.
        let would_pass = !self.hosts[host].service.is_sick();
        let finds_nothing = self.draw_fault(100) && would_pass;
        let found = if finds_nothing { Vec::new() } else { self.find_attempts(host) };
        self.note("begin", host as u64, found.len() as u64);
        let it = &mut self.hosts[host];
        it.incarnations = IncarnationTracker::default();
        it.incarnations.advance();
        if found.is_empty() && it.service.is_up(self.now) {
            it.self_tested();
        }
        let life = it.incarnations.current();
        let delay = self.random.between(5, 50);
        self.open_socket(host, delay);
        self.step_agent(host, AgentEvent::Started { found, incarnation: life });
    }

    pub(super) fn kill_agent(&mut self, host: usize, service_survives: bool, why: &'static str) {
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        it.service.evidence_at = None;
        if !service_survives {
            it.service.die();
        }
        if it.agent.take().is_none() {
            return;
        }
        it.dead_since = Some(self.now);
        it.paused_until = 0;
        it.deferred.clear();
        self.laws.agent_died(&it.plan.name);
        self.note(why, host as u64, 0);
        self.close_connection(host);
    }

    pub(super) fn pause_agent(&mut self, host: usize, until: u64) {
        self.note("pause agent", host as u64, until);
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        it.paused_until = until;
        self.schedule(until, SimEvent::AgentResume { host });
    }

    pub(super) fn resume_agent(&mut self, host: usize) {
        if self.now < self.hosts[host].paused_until {
            return;
        }
        for event in std::mem::take(&mut self.hosts[host].deferred) {
            self.schedule(self.now, event);
        }
    }

    /// Keeps an event for a paused agent until it resumes. Returns whether it did.
    pub(super) fn defer_if_paused(&mut self, host: usize, event: &SimEvent) -> bool {
        let it = &mut self.hosts[host];
        let is_paused = self.now < it.paused_until;
        if is_paused {
            it.deferred.push(event.clone());
        }
        is_paused
    }

    pub(super) fn add_twin(&mut self, host: usize, until: u64) {
        let mut twin = Host::new(self.hosts[host].plan.clone());
        (twin.is_twin, twin.is_pristine) = (true, false);
        self.hosts[host].is_pristine = false;
        self.hosts.push(twin);
        let twin = self.hosts.len() - 1;
        self.note("twin", host as u64, twin as u64);
        self.at(0, SimEvent::AgentStart { host: twin });
        self.schedule(until, SimEvent::TwinStop { host: twin });
        self.schedule(until + 1000, SimEvent::AgentStart { host });
    }

    pub(super) fn agent_timer(&mut self, host: usize, at: u64) {
        if self.hosts[host].timer_at == at {
            self.hosts[host].timer_at = u64::MAX;
            self.step_agent(host, AgentEvent::Tick);
        }
    }

    /// Delivers an answer if the agent still waits for it.
    pub(super) fn agent_response(&mut self, host: usize, process: u32, call: u64, answer: AgentResponse) {
        let it = &mut self.hosts[host];
        if it.process != process || it.agent.is_none() || it.call != Some(call) {
            if let AgentResponse::Reply(reply) = &answer {
                self.laws.orders_missed(reply);
            }
            return;
        }
        it.call = None;
        let seq = self.seq_of(call);
        if self.is_traced() {
            self.trace_line(&format!("agent {host} got {answer:?}"));
        }
        if !matches!(answer, AgentResponse::Failed(CallError::Unreachable(_))) {
            self.hosts[host].last_contact_at = self.now;
        }
        let event = match answer {
            AgentResponse::Joined(joined, token) => {
                let it = &mut self.hosts[host];
                (it.token, it.has_joined) = (token, true);
                AgentEvent::Joined(joined)
            }
            AgentResponse::Unwanted => return self.stop_machine(host, "not wanted"),
            AgentResponse::Reply(reply) => {
                self.laws.reply_received(self.now, host, self.hosts[host].name(), &reply, &self.store);
                let Some(seq) = seq else { return };
                AgentEvent::Reply { seq, reply }
            }
            AgentResponse::Failed(why) => AgentEvent::CallFailed { seq, why, jitter: self.random.draw() },
        };
        self.step_agent(host, event);
    }

    pub(super) fn agent_call_timeout(&mut self, host: usize, process: u32, call: u64) {
        let answer = AgentResponse::Failed(CallError::Unreachable("no answer".to_owned()));
        let it = &self.hosts[host];
        if it.process == process && it.call == Some(call) {
            self.maybe_forge_empty_inventory(host);
            self.close_connection(host);
            self.hosts[host].call = Some(call);
            self.agent_response(host, process, call, answer);
        }
    }

    pub(super) fn step_agent(&mut self, host: usize, event: AgentEvent) {
        let now = self.now;
        let it = &mut self.hosts[host];
        let clock = it.clock(now);
        let Some(agent) = &mut it.agent else { return };
        let effects = agent.step(clock, event);
        if self.is_traced() && !effects.is_empty() {
            self.trace_line(&format!("agent {host} effects {effects:?}"));
        }
        for effect in effects {
            self.run_effect(host, effect);
        }
        let it = &mut self.hosts[host];
        let Some(agent) = &it.agent else { return };
        let wake_at = agent.wake_at();
        if wake_at < Timestamp::NEVER {
            let at = it.when(wake_at).max(now + 1);
            if at != it.timer_at {
                it.timer_at = at;
                let process = it.process;
                self.schedule(at, SimEvent::AgentTimer { host, process, at });
            }
        }
    }

    fn run_effect(&mut self, host: usize, effect: AgentEffect) {
        match effect {
            AgentEffect::Join(mut join) => {
                if self.hosts[host].plan.quirk == Quirk::OverstatesSlots {
                    join.slots *= 2;
                }
                let it = &self.hosts[host];
                let is_recognised = !self.is_sabotaged(Sabotage::TrustRepeatedJoins);
                join.nonce = is_recognised.then(|| format!("{host}-{}-{}", it.process, it.calls));
                join.process = is_recognised.then(|| format!("{host}-{}", it.process));
                let proof = it.proof();
                self.call(host, None, PlaneRequest::Join { join, proof }, CALL_TIMEOUT);
            }
            AgentEffect::Beat { mut beat, wait } => {
                self.hosts[host].add_start_check(self.now, &mut beat);
                self.maybe_hide_unready(&mut beat);
                let it = &mut self.hosts[host];
                let since = it.unavailable_since.unwrap_or(self.now);
                it.unavailable_since = beat.unavailable_reason.is_some().then_some(since);
                for finished in &beat.finished {
                    self.laws.reported(self.now, host, it, finished);
                }
                let wait = wait.as_millis() as u64;
                let seq = beat.seq;
                let request =
                    PlaneRequest::Beat { worker: it.plan.name.clone(), token: it.token, beat, wait };
                self.call(host, Some(seq), request, CALL_TIMEOUT.max(wait + LONG_POLL_MARGIN));
            }
            AgentEffect::Run { job, attempt, service_job_id, .. } => {
                self.hosts[host].runs += 1;
                self.submit_prompt(host, (job, attempt), &service_job_id);
            }
            AgentEffect::FetchOutputs { job, attempt, .. } => self.fetch_outputs(host, (job, attempt)),
            AgentEffect::Cancel { job, attempt, .. } => self.stop_attempt(host, (job, attempt)),
            AgentEffect::Probe { job, attempt, trigger } => self.query_service(host, (job, attempt), trigger),
            AgentEffect::ReopenSocket => self.reopen_socket(host),
            AgentEffect::ApplyRemedy(remedy) => self.repair_service(host, remedy),
            AgentEffect::SelfTest => self.check_service(host),
            AgentEffect::Leave { .. } => {
                let it = &self.hosts[host];
                let request = PlaneRequest::Leave { worker: it.plan.name.clone(), token: it.token };
                let id = self.next_call();
                self.send_to_plane(host, PlaneCall { from: Caller::None, id, request });
            }
            AgentEffect::Exit(end) => self.exit(host, end != AgentExit::Stopped),
        }
    }

    /// The process exits. Its supervisor restarts it, but not while a twin of the same name runs.
    fn exit(&mut self, host: usize, has_problem: bool) {
        self.note("exit", host as u64, u64::from(has_problem));
        let it = &mut self.hosts[host];
        it.agent = None;
        it.dead_since = Some(self.now);
        it.is_pristine = false;
        it.service.evidence_at = None;
        // A service that the agent started ends with it; any other keeps running, and the next agent finds it.
        if it.service.is_owned() {
            it.service.die();
        }
        let is_twin = it.is_twin;
        self.close_connection(host);
        let it = &self.hosts[host];
        if it.is_removed {
            return;
        }
        let name = it.plan.name.clone();
        let has_twin = self.hosts.iter().any(|it| it.is_twin && it.plan.name == name && it.agent.is_some());
        if !is_twin && !has_twin {
            let delay = self.random.between(1000, 20_000);
            self.at(delay, SimEvent::AgentStart { host });
        }
    }

    fn call(&mut self, host: usize, seq: Option<u64>, request: PlaneRequest, timeout: u64) {
        let id = self.next_call();
        // The low bits carry the sequence number, so that an answer names its beat.
        let id = id << 32 | seq.unwrap_or(0);
        self.replace_call(host);
        let it = &mut self.hosts[host];
        (it.call, it.calls) = (Some(id), it.calls + 1);
        let process = it.process;
        let timeout = timeout * 1000 / it.plan.clock_speed;
        self.send_to_plane(host, PlaneCall { from: Caller::Host { host, process }, id, request });
        self.at(timeout, SimEvent::AgentCallTimeout { host, process, call: id });
    }

    /// A newer call takes the place of the one under way. `remuda worker` leaves that one open for a while, because the
    /// plane answers it when it has the newer one; other agents end it at once.
    fn replace_call(&mut self, host: usize) {
        if !self.hosts[host].plan.keeps_polls {
            return self.close_connection(host);
        }
        let it = &mut self.hosts[host];
        if let Some(call) = it.call.take() {
            let (worker, is_cut) = (it.plan.name.clone(), self.now + SUPERSEDED_MAX < it.link.cut_up_until);
            if !is_cut {
                self.at(SUPERSEDED_MAX, SimEvent::ConnectionClosed { worker, call });
            }
        }
    }

    /// Abandons the current call; the plane sees the connection close unless the link is cut.
    fn close_connection(&mut self, host: usize) {
        let it = &mut self.hosts[host];
        let Some(call) = it.call.take() else { return };
        let (worker, is_cut) = (it.plan.name.clone(), self.now < it.link.cut_up_until);
        if !is_cut {
            let delay = self.random.between(1, 40);
            self.at(delay, SimEvent::ConnectionClosed { worker, call });
        }
    }

    fn seq_of(&self, call: u64) -> Option<u64> {
        Some(call & 0xffff_ffff).filter(|seq| *seq > 0)
    }

    pub(super) fn schedule_for_host(&mut self, host: usize, delay: u64, event: impl FnOnce(u32) -> SimEvent) {
        let process = self.hosts[host].process;
        self.at(delay, event(process));
    }
}
