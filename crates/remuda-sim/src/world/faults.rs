//! Applies a planned fault when its time comes, and repairs everything when the storm ends. Workers that were removed
//! for good stay removed.

use super::World;
use crate::event_queue::SimEvent;
use crate::faults::Fault;
use crate::host::Host;
use crate::trouble::Trouble;

impl World<'_> {
    pub(super) fn apply_fault(&mut self, fault: Fault) {
        self.count_own_fault(fault);
        let end =
            |lasts: u64, world: &World<'_>| (world.now + lasts).min(world.scenario.storm_end.max(world.now));
        match fault {
            Fault::KillAgent { host, back_after, service_survives } => {
                self.kill_agent(host, service_survives, "killed");
                match back_after {
                    Some(after) => self.at(after, SimEvent::AgentStart { host }),
                    None => self.hosts[host].is_removed = true,
                }
            }
            Fault::PauseAgent { host, lasts } => self.pause_agent(host, end(lasts, self)),
            Fault::Twin { host, lasts } => self.add_twin(host, end(lasts, self)),
            Fault::CrashService { host, down_for } => self.crash_service(host, down_for),
            Fault::MuteService { host, lasts } => self.mute_service(host, end(lasts, self)),
            Fault::BreakService { host, defect } => self.break_service(host, defect),
            Fault::BreakSocket { host } => self.break_socket(host),
            Fault::ForeignPrompts { host, count, duration } => {
                self.add_foreign_prompts(host, count, duration);
            }
            Fault::ClearHistory { host } => self.clear_history(host),
            Fault::Interrupt { host } => self.interrupt(host),
            Fault::FailCommits { lasts } => self.failing_until = end(lasts, self),
            Fault::DrainWorker { host } => self.drain_worker(host),
            Fault::Cut { host, up, down, lasts } => {
                let end = end(lasts, self);
                self.cut_link(host, up.then_some(end), down.then_some(end));
            }
            Fault::CutMany { percent, lasts } => {
                let end = end(lasts, self);
                for host in 0..self.hosts.len() {
                    if self.random.below(100) < percent {
                        self.cut_link(host, Some(end), Some(end));
                    }
                }
            }
            Fault::KillMany { percent, back_after, closes } => {
                let mut machines: Vec<_> = self.hosts.iter().map(Host::machine).collect();
                machines.sort_unstable();
                machines.dedup();
                machines.retain(|_| self.random.below(100) < percent);
                self.kill_machines(&machines, back_after, closes);
            }
            Fault::KillMachine { host, back_after, closes } => {
                let machine = self.hosts[host].machine();
                self.kill_machines(&[machine], back_after, closes);
            }
            Fault::DegradeNetwork { lasts } => {
                self.degraded_until = end(lasts, self);
                self.hosts.iter_mut().for_each(|host| host.is_pristine = false);
            }
            Fault::KillPlane { down_for, jump } => self.kill_plane(down_for, jump),
            Fault::PausePlane { lasts } => self.pause_plane(lasts),
            Fault::JumpClock { by } => self.wall_jump += by,
            Fault::ReplacePlane { after, resumes, jump } => self.replace_plane(after, resumes, jump),
            Fault::SlowStore { commit, lasts } => {
                (self.slow_commit, self.slow_until) = (commit, end(lasts, self));
            }
            Fault::StoreOutage { lasts } => self.store_down_until = self.now + lasts,
            Fault::LiftBlocks => self.lift_blocks(),
            Fault::ProviderTrouble { trouble, lasts } => self.begin_trouble(trouble, lasts),
            Fault::Order => self.operator_order(),
            Fault::LowerLimits => self.lower_limits(),
            Fault::RollBackStore => self.roll_back_store(),
        }
    }

    /// Kills every worker on these machines, with its service.
    fn kill_machines(&mut self, machines: &[String], back_after: u64, closes: bool) {
        let theirs: Vec<_> =
            (0..self.hosts.len()).filter(|host| machines.contains(&self.hosts[*host].machine())).collect();
        let names: Vec<_> = theirs.iter().map(|host| self.hosts[*host].name().clone()).collect();
        self.laws.felled(self.now, &names, machines.len());
        for host in theirs {
            if !closes {
                self.hosts[host].call = None;
            }
            self.kill_agent(host, false, "killed");
            self.at(back_after, SimEvent::AgentStart { host });
        }
    }

    /// Counts faults of our own side where machines are rented.
    fn count_own_fault(&mut self, fault: Fault) {
        match fault {
            Fault::KillPlane { .. } | Fault::PausePlane { .. } | Fault::ReplacePlane { .. } => {
                self.account.count_trouble(Trouble::PlaneDies);
            }
            Fault::FailCommits { .. } => self.account.count_trouble(Trouble::CommitsFail),
            _ => {}
        }
    }

    /// The storm is over: everything is repaired.
    pub(super) fn end_storm(&mut self) {
        self.is_calm = true;
        (self.degraded_until, self.slow_until, self.failing_until) = (self.now, self.now, self.now);
        self.repair_services();
        self.calm_provider();
        for host in 0..self.hosts.len() {
            let link = &mut self.hosts[host].link;
            (link.cut_up_until, link.cut_down_until) = (0, 0);
            if self.hosts[host].is_twin {
                self.kill_agent(host, false, "sorted out");
                self.hosts[host].is_removed = true;
            }
        }
    }
}
