//! What makes a service sick, what an agent can do about it, and what only a person can. Whoever owns a service may
//! restart it; for the others somebody comes in the calm.

use remuda_core::agent::AgentEvent;
use remuda_core::service::{ServiceEvent, ServiceRemedy};

use super::Key;
use super::prompt::Prompt;
use crate::happening::Happening;
use crate::sabotage::Sabotage;
use crate::world::World;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ailment {
    None,
    /// It answers, and runs nothing any more.
    Executor,
    /// Everything fails until it is restarted.
    Device,
    /// Everything fails until somebody makes room.
    Disk,
}

/// Something small that is really run takes no longer than this, or something is wrong.
const CHECK_MAX: u64 = 30_000;
/// When somebody comes to look after a service that its agent gave up.
const GIVEN_UP_MAX: u64 = 700_000;

impl World<'_> {
    /// It ends, with all it knew, and is back after a while.
    pub(crate) fn crash_service(&mut self, host: usize, away: u64) {
        self.note("crash service", host as u64, away);
        let now = self.now;
        let it = &mut self.hosts[host];
        it.is_pristine = false;
        it.service.die();
        it.service.down_until = now.saturating_add(away);
        self.break_socket(host);
    }

    pub(crate) fn mute_service(&mut self, host: usize, until: u64) {
        self.note("mute service", host as u64, until);
        let it = &mut self.hosts[host];
        it.service.mute_until = it.service.mute_until.max(until);
        it.trouble_at = it.trouble_at.max(until);
    }

    pub(crate) fn ail(&mut self, host: usize, ailment: Ailment) {
        self.note("ail", host as u64, ailment as u64);
        let service = &mut self.hosts[host].service;
        if service.is_up(self.now) && service.ailment == Ailment::None && !service.plan.is_plain {
            service.ailment = ailment;
        }
    }

    /// Somebody else uses the service, too.
    pub(crate) fn intrude(&mut self, host: usize, count: u64, takes: u64) {
        self.note("intrude", host as u64, count);
        let service = &mut self.hosts[host].service;
        if !service.is_up(self.now) {
            return;
        }
        for n in 0..count {
            let mark = service.mark();
            let prompt = Prompt::new(None, mark, takes / (n + 1), 1000);
            // Some are in a hurry.
            let at = if n.is_multiple_of(2) { service.pending.len() } else { 0 };
            service.pending.insert(at, prompt);
        }
        self.work_on(host);
    }

    /// Somebody else tidies up.
    pub(crate) fn clear_history(&mut self, host: usize) {
        self.note("clear history", host as u64, 0);
        self.hosts[host].service.history.clear();
    }

    /// Somebody else stops whatever runs.
    pub(crate) fn interrupt(&mut self, host: usize) {
        self.note("interrupt", host as u64, 0);
        let running = self.hosts[host].service.running.iter().find_map(|prompt| prompt.key);
        if let Some(key) = running {
            self.stop_prompt(host, key, false);
        }
    }

    pub(crate) fn treat_service(&mut self, host: usize, remedy: ServiceRemedy) {
        self.note("treat", host as u64, remedy as u64);
        let is_owned = self.hosts[host].service.is_owned();
        let is_pretended = self.is_sabotaged(Sabotage::PretendToTreat);
        let problem = match remedy {
            ServiceRemedy::Restart if !is_owned => Some("it was not started by us"),
            ServiceRemedy::Free | ServiceRemedy::Restart => None,
        };
        let fails = self.is_odd(self.scene.oddities.remedies_fail);
        let delay = match remedy {
            ServiceRemedy::Restart if problem.is_none() && !is_pretended => {
                let away = self.random.between(1000, 20_000);
                self.laws.ended_by_us(self.hosts[host].service.ours());
                // Sometimes it does not come up again, and the agent cannot help that.
                self.crash_service(host, if fails { u64::MAX } else { away });
                away + 1
            }
            ServiceRemedy::Restart => 1,
            // Nothing is ever heard of some.
            ServiceRemedy::Free if fails => return,
            ServiceRemedy::Free => self.random.between(1, 2000),
        };
        let problem = problem.or(fails.then_some("it did not come up"));
        self.at_host(host, delay, |process| Happening::Treated { host, process, remedy, problem });
    }

    pub(crate) fn treated(
        &mut self,
        host: usize,
        process: u32,
        remedy: ServiceRemedy,
        problem: Option<&'static str>,
    ) {
        if self.hosts[host].process == process {
            let problem = problem.map(str::to_owned);
            self.tell_agent(host, AgentEvent::Service(ServiceEvent::Treated { remedy, problem }));
        }
    }

    /// Something small is run for real: behind whatever runs there.
    pub(crate) fn check_service(&mut self, host: usize) {
        self.note("check", host as u64, 0);
        let now = self.now;
        let delay = self.random.between(5, 500);
        let service = &self.hosts[host].service;
        let is_mute = now < service.mute_until;
        let is_full = service.running.len() >= service.plan.slots;
        let room_at = if is_full { service.running.iter().map(Prompt::ends_at).min() } else { None };
        let waits = room_at.map_or(0, |at| at.saturating_sub(now));
        let problem = match service.ailment {
            _ if self.is_sabotaged(Sabotage::PretendToTreat) => None,
            _ if !service.is_up(now) => Some("connection refused"),
            Ailment::Executor => Some("nothing runs"),
            Ailment::Device => Some("the device is broken"),
            Ailment::Disk => Some("there is no room"),
            Ailment::None if is_mute || waits > CHECK_MAX => Some("nothing ran in time"),
            Ailment::None => None,
        };
        let is_slow = problem == Some("nothing runs") || problem == Some("nothing ran in time");
        let delay = if is_slow { CHECK_MAX } else { delay + waits.min(CHECK_MAX) };
        self.at_host(host, delay, |process| Happening::Checked { host, process, problem });
    }

    pub(crate) fn checked(&mut self, host: usize, process: u32, problem: Option<&'static str>) {
        if self.hosts[host].process == process {
            let life = self.hosts[host].service.life;
            let problem = problem.map(str::to_owned);
            self.tell_agent(host, AgentEvent::Service(ServiceEvent::Checked { life, problem, offer: None }));
        }
    }

    /// What stands still where everything does says that the service is sick.
    pub(crate) fn learn_of_stuck(&mut self) {
        for (worker, key) in self.laws.stuck() {
            let now = self.now;
            let its_hosts = self.hosts.iter_mut().filter(|host| *host.name() == worker);
            for host in its_hosts.filter(|host| host.service.has(key) && host.service.is_sick()) {
                host.service.evidence_at.get_or_insert(now);
            }
        }
    }

    /// The storm is over: somebody makes room, and looks after what no agent may touch or can know of.
    pub(crate) fn mend_services(&mut self) {
        for host in 0..self.hosts.len() {
            let now = self.now;
            let service = &mut self.hosts[host].service;
            service.mute_until = service.mute_until.min(now);
            if service.ailment == Ailment::Disk {
                service.ailment = Ailment::None;
            }
            let is_down = !service.is_up(now) && service.down_until < u64::MAX;
            if service.is_sick() && !service.is_owned() && !is_down {
                self.mend(host);
            }
        }
    }

    /// Somebody comes by: what was given up long ago, or what nobody can know of, is started anew.
    pub(crate) fn look_after_services(&mut self) {
        if !self.is_calm {
            return;
        }
        for host in 0..self.hosts.len() {
            let it = &self.hosts[host];
            let service = &it.service;
            if !(service.is_sick() || service.down_until == u64::MAX) {
                continue;
            }
            let is_given_up = it.closed_since.is_some_and(|since| self.now - since >= GIVEN_UP_MAX);
            let holds =
                |key: Key| it.agent.as_ref().is_some_and(|agent| agent.held().any(|held| held == key));
            let is_nobodys = service.evidence_at.is_none() && !service.ours().any(holds);
            if is_given_up || is_nobodys && it.closed_since.is_none() || it.agent.is_none() {
                self.mend(host);
            }
        }
    }

    fn mend(&mut self, host: usize) {
        self.hosts[host].service.ailment = Ailment::None;
        self.crash_service(host, 1000);
    }
}
