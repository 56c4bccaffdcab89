//! What breaks a service, what its agent can repair, and what only an operator can. An agent may restart only a service
//! that it started; an operator repairs the others after the storm.

use remuda_core::agent::AgentEvent;
use remuda_core::service::{SelfTestResult, ServiceEvent, ServiceIncarnation, ServiceRemedy};

use crate::event_queue::SimEvent;
use crate::sabotage::Sabotage;
use crate::service::{Defect, Key, Prompt};
use crate::world::World;

/// A health check runs a small prompt, which takes no longer than this at a healthy service.
const CHECK_MAX: u64 = 30_000;
/// When an operator repairs a service that its agent gave up.
const OPERATOR_REPAIR_AFTER: u64 = 700_000;

impl World<'_> {
    /// The service ends, loses its memory, and is back after a while.
    pub(in crate::world) fn crash_service(&mut self, host: usize, down_for: u64) {
        self.note("crash service", host as u64, down_for);
        let now = self.now;
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        it.service.die();
        it.service.down_until = now.saturating_add(down_for);
        self.break_socket(host);
    }

    pub(in crate::world) fn mute_service(&mut self, host: usize, until: u64) {
        self.note("mute service", host as u64, until);
        let it = &mut self.hosts[host];
        it.service.mute_until = it.service.mute_until.max(until);
        it.disturbed_until = it.disturbed_until.max(until);
    }

    pub(in crate::world) fn break_service(&mut self, host: usize, defect: Defect) {
        self.note("ail", host as u64, defect as u64);
        let service = &mut self.hosts[host].service;
        if service.is_up(self.now) && service.defect == Defect::None && !service.plan.reports_outcome {
            service.defect = defect;
        }
    }

    /// Other clients submit prompts to the service.
    pub(in crate::world) fn add_foreign_prompts(&mut self, host: usize, count: u64, duration: u64) {
        self.note("intrude", host as u64, count);
        let service = &mut self.hosts[host].service;
        if !service.is_up(self.now) {
            return;
        }
        for n in 0..count {
            let mark = service.mark();
            let prompt = Prompt::new(None, mark, duration / (n + 1), 1000);
            // Some of them jump the queue.
            let at = if n.is_multiple_of(2) { service.pending.len() } else { 0 };
            service.pending.insert(at, prompt);
        }
        self.start_prompts(host);
    }

    /// Another client clears the history.
    pub(in crate::world) fn clear_history(&mut self, host: usize) {
        self.note("clear history", host as u64, 0);
        self.hosts[host].service.clear_history();
    }

    /// Another client interrupts the running prompt.
    pub(in crate::world) fn interrupt(&mut self, host: usize) {
        self.note("interrupt", host as u64, 0);
        let running = self.hosts[host].service.running.iter().find_map(|prompt| prompt.key);
        if let Some(key) = running {
            self.stop_prompt(host, key, false);
        }
    }

    pub(in crate::world) fn repair_service(&mut self, host: usize, remedy: ServiceRemedy) {
        self.note("treat", host as u64, remedy as u64);
        let is_owned = self.hosts[host].service.is_owned();
        let is_faked = self.is_sabotaged(Sabotage::FakeRemedies);
        let problem = match remedy {
            ServiceRemedy::Restart if !is_owned => Some("the agent did not start it"),
            ServiceRemedy::FreeMemory | ServiceRemedy::Restart => None,
        };
        let fails = self.draw_fault(self.scenario.fault_rates.remedies_fail);
        let delay = match remedy {
            ServiceRemedy::Restart if problem.is_none() && !is_faked => {
                let down_for = self.random.between(1000, 20_000);
                self.laws.ended_by_us(self.hosts[host].service.ours());
                // Sometimes the service does not come up again, and the agent can do nothing about it.
                self.crash_service(host, if fails { u64::MAX } else { down_for });
                self.hosts[host].incarnations.advance();
                down_for + 1
            }
            ServiceRemedy::Restart => 1,
            // Some remedies never report back.
            ServiceRemedy::FreeMemory if fails => return,
            ServiceRemedy::FreeMemory => self.random.between(1, 2000),
        };
        let problem = problem.or(fails.then_some("the service did not come up"));
        self.schedule_for_host(host, delay, |process| SimEvent::RemedyDone {
            host,
            process,
            remedy,
            problem,
        });
    }

    pub(in crate::world) fn remedy_done(
        &mut self,
        host: usize,
        process: u32,
        remedy: ServiceRemedy,
        problem: Option<&'static str>,
    ) {
        if self.hosts[host].process == process {
            let problem = problem.map(str::to_owned);
            self.step_agent(host, AgentEvent::Service(ServiceEvent::RemedyDone { remedy, problem }));
        }
    }

    /// Runs a small prompt behind everything that runs there.
    pub(in crate::world) fn check_service(&mut self, host: usize) {
        self.note("check", host as u64, 0);
        let now = self.now;
        let delay = self.random.between(5, 500);
        let service = &self.hosts[host].service;
        let is_mute = now < service.mute_until;
        let is_full = service.running.len() >= service.plan.slots;
        let slot_free_at = if is_full { service.running.iter().map(Prompt::ends_at).min() } else { None };
        let wait = slot_free_at.map_or(0, |at| at.saturating_sub(now));
        let failed = |problem: &str| SelfTestResult::Failed(problem.to_owned());
        let queued = || SelfTestResult::Queued("the check prompt waits behind other work".to_owned());
        // A prompt in the queue shows no defect before it runs.
        let (result, is_slow) = match service.defect {
            _ if self.is_sabotaged(Sabotage::FakeRemedies) => (SelfTestResult::Passed, false),
            _ if !service.is_up(now) => (failed("connection refused"), false),
            _ if is_mute => (failed("the check prompt did not finish in time"), true),
            Defect::Executor if !service.running.is_empty() => (queued(), true),
            Defect::Executor => (failed("the executor does not run"), true),
            _ if wait > CHECK_MAX => (queued(), true),
            Defect::Device => (failed("the device failed"), false),
            Defect::Disk => (failed("the disk is full"), false),
            Defect::None => (SelfTestResult::Passed, false),
        };
        let delay = if is_slow { CHECK_MAX } else { delay + wait.min(CHECK_MAX) };
        let began_in = self.hosts[host].incarnations.current();
        self.schedule_for_host(host, delay, |process| SimEvent::CheckDone {
            host,
            process,
            began_in,
            result,
        });
    }

    pub(in crate::world) fn check_done(
        &mut self,
        host: usize,
        process: u32,
        began_in: ServiceIncarnation,
        result: SelfTestResult,
    ) {
        if self.hosts[host].process == process {
            let it = &mut self.hosts[host];
            if result == SelfTestResult::Passed {
                it.self_tested();
            }
            let tested = ServiceEvent::self_tested(began_in, it.incarnations.current(), result, None);
            self.step_agent(host, AgentEvent::Service(tested));
        }
    }

    /// Some attempts were declared stuck.
    pub(in crate::world) fn record_stuck_evidence(&mut self) {
        for (worker, key) in self.laws.stuck() {
            let now = self.now;
            let its_hosts = self.hosts.iter_mut().filter(|host| *host.name() == worker);
            its_hosts.for_each(|host| host.service.was_stuck(now, key));
        }
    }

    /// After the storm operators free disk space and repair what no agent may restart or can detect.
    pub(in crate::world) fn repair_services(&mut self) {
        for host in 0..self.hosts.len() {
            let now = self.now;
            let service = &mut self.hosts[host].service;
            service.mute_until = service.mute_until.min(now);
            if service.defect == Defect::Disk {
                service.defect = Defect::None;
            }
            let is_down = !service.is_up(now) && service.down_until < u64::MAX;
            if service.is_sick() && !service.is_owned() && !is_down {
                self.restart_service(host);
            }
        }
    }

    /// Operators restart services that their agents gave up long ago, or whose defect no agent can detect.
    pub(in crate::world) fn repair_abandoned_services(&mut self) {
        if !self.is_calm {
            return;
        }
        for host in 0..self.hosts.len() {
            let it = &self.hosts[host];
            let service = &it.service;
            if !(service.is_sick() || service.down_until == u64::MAX) {
                continue;
            }
            let is_given_up =
                it.unavailable_since.is_some_and(|since| self.now - since >= OPERATOR_REPAIR_AFTER);
            let holds =
                |key: Key| it.agent.as_ref().is_some_and(|agent| agent.held().any(|held| held == key));
            let is_undetected = service.evidence_at.is_none() && !service.ours().any(holds);
            if is_given_up || is_undetected && it.unavailable_since.is_none() || it.agent.is_none() {
                self.restart_service(host);
            }
        }
    }

    fn restart_service(&mut self, host: usize) {
        self.hosts[host].service.defect = Defect::None;
        self.crash_service(host, 1000);
    }
}
