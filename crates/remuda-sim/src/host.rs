//! A machine with an agent on it: the real `core::Agent`, and the shell around it that carries out its effects. The
//! agent may be killed, paused, doubled; the service beside it (`service`) lives a life of its own.

mod rented;

use remuda_core::agent::{
    Agent, AgentEffect, AgentEvent, AgentExit, AgentSettings, AgentTimeouts, CallError,
};
use remuda_core::id::{Hash, PodId, WorkerId};
use remuda_core::time::Timestamp;

use crate::happening::Happening;
use crate::net::{Answered, Ask, Call, Caller, Link};
use crate::scene::{HostPlan, Quirk};
use crate::service::{Key, Service};
use crate::world::World;

#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) plan: HostPlan,
    pub(crate) agent: Option<Agent>,
    /// Which process this is; news for an older one is dropped.
    pub(crate) process: u32,
    /// The one question under way; its answer is waited for and no other's.
    call: Option<u64>,
    token: Hash,
    /// Somebody of this name was let in from here before.
    has_joined: bool,
    pub(crate) paused_until: u64,
    /// What happened while it was paused.
    missed: Vec<Happening>,
    wake_at: u64,
    pub(crate) service: Service,
    /// Submissions on their way to the service.
    pub(crate) in_flight: Vec<Key>,
    /// Until when the service did not answer as it should.
    pub(crate) trouble_at: u64,
    /// Since when its agent says that it takes no work.
    pub(crate) closed_since: Option<u64>,
    /// When this process began.
    pub(crate) began_at: u64,
    pub(crate) link: Link,
    pub(crate) is_gone: bool,
    pub(crate) is_twin: bool,
    /// Nothing ever went wrong here or on the way from here.
    pub(crate) is_pristine: bool,
    /// When its agent last died.
    pub(crate) dead_since: Option<u64>,
    /// Questions asked, for the law on load.
    pub(crate) calls: u64,
    /// The pod that it is the inside of.
    pub(crate) pod: Option<PodId>,
    /// When it last heard from a plane.
    pub(crate) contact_at: u64,
    /// When its models are loaded; nothing runs there before.
    pub(crate) ready_at: u64,
    /// Its GPU does not compute.
    pub(crate) is_bad: bool,
    /// It is not what was ordered.
    pub(crate) is_other: bool,
}

/// How long an agent waits for an answer that should come at once.
const PATIENCE: u64 = 10_000;
/// How much longer than the wait it asked for an agent stays on the line: the longest wait and this together are less
/// than a lease, so that an order that got lost on an open line costs nothing.
const WAIT_PATIENCE: u64 = 3000;

impl Host {
    pub(crate) fn new(plan: HostPlan) -> Self {
        Host {
            is_pristine: plan.quirk == Quirk::None,
            service: Service::new(plan.service),
            in_flight: Vec::new(),
            trouble_at: 0,
            closed_since: None,
            began_at: 0,
            plan,
            agent: None,
            process: 0,
            call: None,
            token: Hash::from_bytes([0; 32]),
            paused_until: 0,
            missed: Vec::new(),
            wake_at: u64::MAX,
            link: Link::default(),
            is_gone: false,
            is_twin: false,
            dead_since: None,
            calls: 0,
            has_joined: false,
            pod: None,
            contact_at: 0,
            ready_at: 0,
            is_bad: false,
            is_other: false,
        }
    }

    pub(crate) fn name(&self) -> &WorkerId {
        &self.plan.name
    }

    /// Nobody is here, or there is nothing wrong with what is.
    pub(crate) fn is_well(&self, now: u64) -> bool {
        let is_well = self.service.is_up(now) && !self.service.is_sick() && self.closed_since.is_none();
        self.agent.is_none() || is_well
    }

    /// The longest that a silence may last before the agent asks, by the true time.
    pub(crate) fn inactivity(&self) -> u64 {
        self.plan.inactivity.as_millis() as u64 * 1000 / self.plan.clock_speed + 1
    }

    /// Since when everything between the agent and its service is as it should be.
    pub(crate) fn undisturbed_since(&self) -> u64 {
        self.began_at.max(self.trouble_at).max(self.paused_until)
    }

    /// Its own clock, wrong by years and a little fast or slow: only its own moments are ever compared.
    fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_millis(self.plan.clock_offset + now * self.plan.clock_speed / 1000)
    }

    /// When its clock shows that moment.
    fn when(&self, at: Timestamp) -> u64 {
        let millis = at.as_millis().saturating_sub(self.plan.clock_offset);
        (millis.saturating_mul(1000)).div_ceil(self.plan.clock_speed)
    }

    fn settings(&self) -> AgentSettings {
        AgentSettings {
            worker: self.plan.name.clone(),
            machine: self.plan.machine.clone(),
            fleet: self.plan.fleet.clone(),
            services: self.plan.services.clone(),
            slots: self.plan.slots,
            offer: self.plan.offer.clone(),
            inactivity: self.plan.inactivity,
            patience: AgentTimeouts::default(),
            deadlines: Default::default(),
        }
    }
}

impl World<'_> {
    /// The agent's process begins, and finds what a former one left running (or does not).
    pub(crate) fn begin_agent(&mut self, host: usize) {
        let it = &mut self.hosts[host];
        if it.is_gone || it.agent.is_some() {
            return;
        }
        let now = it.clock(self.now);
        it.process += 1;
        (it.dead_since, it.closed_since, it.began_at) = (None, None, self.now);
        it.agent = Some(Agent::new(it.settings(), now));
        let is_blind = self.is_odd(100);
        let found = if is_blind { Vec::new() } else { self.left_over(host) };
        self.note("begin", host as u64, found.len() as u64);
        let life = self.hosts[host].service.life();
        let delay = self.random.between(5, 50);
        self.open_socket(host, delay);
        self.tell_agent(host, AgentEvent::Began { found, life });
    }

    pub(crate) fn kill_agent(&mut self, host: usize, service_survives: bool, why: &'static str) {
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
        it.missed.clear();
        self.laws.agent_died(&it.plan.name);
        self.note(why, host as u64, 0);
        self.hang_up(host);
    }

    pub(crate) fn pause_agent(&mut self, host: usize, until: u64) {
        self.note("pause agent", host as u64, until);
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        it.paused_until = until;
        self.schedule(until, Happening::Resume { host });
    }

    pub(crate) fn resume_agent(&mut self, host: usize) {
        if self.now < self.hosts[host].paused_until {
            return;
        }
        for happening in std::mem::take(&mut self.hosts[host].missed) {
            self.schedule(self.now, happening);
        }
    }

    /// Keeps what happens to a paused agent for later; whether it was kept.
    pub(crate) fn keep_for_later(&mut self, host: usize, happening: &Happening) -> bool {
        let it = &mut self.hosts[host];
        let is_paused = self.now < it.paused_until;
        if is_paused {
            it.missed.push(happening.clone());
        }
        is_paused
    }

    pub(crate) fn add_twin(&mut self, host: usize, until: u64) {
        let mut twin = Host::new(self.hosts[host].plan.clone());
        (twin.is_twin, twin.is_pristine) = (true, false);
        self.hosts[host].is_pristine = false;
        self.hosts.push(twin);
        let twin = self.hosts.len() - 1;
        self.note("twin", host as u64, twin as u64);
        self.at(0, Happening::Begin { host: twin });
        self.schedule(until, Happening::TwinEnds { host: twin });
        self.schedule(until + 1000, Happening::Begin { host });
    }

    pub(crate) fn wake_agent(&mut self, host: usize, at: u64) {
        if self.hosts[host].wake_at == at {
            self.hosts[host].wake_at = u64::MAX;
            self.tell_agent(host, AgentEvent::Tick);
        }
    }

    /// The answer to a question, if anyone still waits for it.
    pub(crate) fn answered(&mut self, host: usize, process: u32, call: u64, answer: Answered) {
        let it = &mut self.hosts[host];
        if it.process != process || it.agent.is_none() || it.call != Some(call) {
            if let Answered::Reply(reply) = &answer {
                self.laws.orders_missed(reply);
            }
            return;
        }
        it.call = None;
        let seq = self.seq_of(call);
        if self.is_traced() {
            self.say(&format!("host {host} hears {answer:?}"));
        }
        if !matches!(answer, Answered::Not(CallError::Unreachable(_))) {
            self.hosts[host].contact_at = self.now;
        }
        let event = match answer {
            Answered::Joined(joined, token) => {
                let it = &mut self.hosts[host];
                (it.token, it.has_joined) = (token, true);
                AgentEvent::Joined(joined)
            }
            Answered::NotWanted => return self.stop_machine(host, "not wanted"),
            Answered::Reply(reply) => {
                self.laws.reply_received(self.now, host, self.hosts[host].name(), &reply, &self.store);
                let Some(seq) = seq else { return };
                AgentEvent::Reply { seq, reply }
            }
            Answered::Not(why) => AgentEvent::Unanswered { seq, why, luck: self.random.draw() },
        };
        self.tell_agent(host, event);
    }

    pub(crate) fn gave_up(&mut self, host: usize, process: u32, call: u64) {
        let answer = Answered::Not(CallError::Unreachable("no answer".to_owned()));
        let it = &self.hosts[host];
        if it.process == process && it.call == Some(call) {
            self.maybe_forge_empty_inventory(host);
            self.hang_up(host);
            self.hosts[host].call = Some(call);
            self.answered(host, process, call, answer);
        }
    }

    pub(crate) fn tell_agent(&mut self, host: usize, event: AgentEvent) {
        let now = self.now;
        let it = &mut self.hosts[host];
        let clock = it.clock(now);
        let Some(agent) = &mut it.agent else { return };
        let effects = agent.step(clock, event);
        if self.is_traced() && !effects.is_empty() {
            self.say(&format!("host {host} does {effects:?}"));
        }
        for effect in effects {
            self.carry_out(host, effect);
        }
        let it = &mut self.hosts[host];
        let Some(agent) = &it.agent else { return };
        let wake_at = agent.wake_at();
        if wake_at < Timestamp::NEVER {
            let at = it.when(wake_at).max(now + 1);
            if at != it.wake_at {
                it.wake_at = at;
                let process = it.process;
                self.schedule(at, Happening::Wake { host, process, at });
            }
        }
    }

    fn carry_out(&mut self, host: usize, effect: AgentEffect) {
        match effect {
            AgentEffect::Join(mut join) => {
                if self.hosts[host].plan.quirk == Quirk::Boaster {
                    join.slots *= 2;
                }
                let proof = self.hosts[host].proof();
                self.call(host, None, Ask::Join { join, proof }, PATIENCE);
            }
            AgentEffect::Beat { mut beat, wait } => {
                self.hosts[host].check_machine(self.now, &mut beat);
                self.maybe_call_ready(&mut beat);
                let it = &mut self.hosts[host];
                let since = it.closed_since.unwrap_or(self.now);
                it.closed_since = (!beat.closed.is_empty()).then_some(since);
                for finished in &beat.finished {
                    self.laws.reported(self.now, host, it, finished);
                }
                let wait = wait.as_millis() as u64;
                let seq = beat.seq;
                let ask = Ask::Beat { worker: it.plan.name.clone(), token: it.token, beat, wait };
                self.call(host, Some(seq), ask, PATIENCE.max(wait + WAIT_PATIENCE));
            }
            AgentEffect::Run { job, attempt, service_job_id, .. } => {
                self.hand_in(host, (job, attempt), &service_job_id);
            }
            AgentEffect::Collect { job, attempt, .. } => self.collect(host, (job, attempt)),
            AgentEffect::Cancel { job, attempt, .. } => self.tell_to_stop(host, (job, attempt)),
            AgentEffect::Probe { job, attempt, trigger } => self.ask_service(host, (job, attempt), trigger),
            AgentEffect::Reopen => self.reopen_socket(host),
            AgentEffect::Treat(remedy) => self.treat_service(host, remedy),
            AgentEffect::Check => self.check_service(host),
            AgentEffect::Leave { .. } => {
                let it = &self.hosts[host];
                let ask = Ask::Leave { worker: it.plan.name.clone(), token: it.token };
                let id = self.next_call();
                self.send_up(host, Call { from: Caller::Nobody, id, ask });
            }
            AgentEffect::Exit(end) => self.exit(host, end != AgentExit::Stopped),
        }
    }

    /// The process ends by itself; whoever looks after it starts it again, a twin's victim only when the twin is gone.
    fn exit(&mut self, host: usize, has_problem: bool) {
        self.note("exit", host as u64, u64::from(has_problem));
        let it = &mut self.hosts[host];
        it.agent = None;
        it.dead_since = Some(self.now);
        it.is_pristine = false;
        it.service.evidence_at = None;
        // What it started ends with it; what it did not goes on, and whoever comes next finds it.
        if it.service.is_owned() {
            it.service.die();
        }
        let is_twin = it.is_twin;
        self.hang_up(host);
        let it = &self.hosts[host];
        if it.is_gone {
            return;
        }
        let name = it.plan.name.clone();
        let has_twin = self.hosts.iter().any(|it| it.is_twin && it.plan.name == name && it.agent.is_some());
        if !is_twin && !has_twin {
            let delay = self.random.between(1000, 20_000);
            self.at(delay, Happening::Begin { host });
        }
    }

    fn call(&mut self, host: usize, seq: Option<u64>, ask: Ask, patience: u64) {
        let id = self.next_call();
        // The sequence number travels in the low bits, so that an answer tells which beat it is for.
        let id = id << 32 | seq.unwrap_or(0);
        self.hang_up(host);
        let it = &mut self.hosts[host];
        (it.call, it.calls) = (Some(id), it.calls + 1);
        let process = it.process;
        let patience = patience * 1000 / it.plan.clock_speed;
        self.send_up(host, Call { from: Caller::Host { host, process }, id, ask });
        self.at(patience, Happening::GaveUp { host, process, call: id });
    }

    /// Nobody waits for the answer any more; the other end sees the connection close, unless the way is cut.
    fn hang_up(&mut self, host: usize) {
        let it = &mut self.hosts[host];
        let Some(call) = it.call.take() else { return };
        let (worker, is_cut) = (it.plan.name.clone(), self.now < it.link.cut_up_until);
        if !is_cut {
            let delay = self.random.between(1, 40);
            self.at(delay, Happening::HungUp { worker, call });
        }
    }

    fn seq_of(&self, call: u64) -> Option<u64> {
        Some(call & 0xffff_ffff).filter(|seq| *seq > 0)
    }

    pub(crate) fn at_host(&mut self, host: usize, delay: u64, happening: impl FnOnce(u32) -> Happening) {
        let process = self.hosts[host].process;
        self.at(delay, happening(process));
    }
}
