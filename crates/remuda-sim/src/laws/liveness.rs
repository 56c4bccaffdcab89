//! L1, L3 and L9: no job waits without a reason that ends. Every few seconds each open job is asked what it waits for, by what
//! is true in the world; each kind of wait has its own bound, and time without such a reason is counted.
//!
//! | what a job waits for | bound | why |
//! |---|---|---|
//! | nothing: a worker could take it, its order is under way, its end is not recorded, its worker is dead | `UNEXPLAINED_MAX` for each attempt | the 120 s of L1 |
//! | its run, or runs before it at the same service | none | that is job time; the runs are bounded by their own |
//! | a slot: every worker that could is busy | none | each job that holds one is under this law |
//! | a trial of another job | none | the job on trial is under this law |
//! | its retry | `Settings::retry_max`, or the job's own delay | S7 bounds the attempts |
//! | a worker on which it has not failed | `AVOIDED_MAX` after the retry is due | `job.rs` |
//! | the end of a block, a quarantine or a probation | `Settings::block_cooldown_max` | L6; 600 s at the most for all three |
//! | a sick service, or a run that hangs there | `SICK_MAX` | stuck after 300 s, then the repair of L4 |
//! | another client's run at a sick service | `FOREIGN_MAX` | it may be a long run of theirs (V13); a queue that stands still for an hour makes the service sick |
//! | a worker: none that could is there | none | there is no eligible worker; for fleets see `pods` |

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::id::{Attempt, JobId};
use remuda_core::job::{Job, JobState};
use remuda_core::plane::{PassedOver, Plane};
use remuda_core::time::Timestamp;
use remuda_core::worker::Availability;

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::scenario::{JobPlan, Quirk, Scenario, client_of};
use crate::service::{Key, PromptEnd};

/// L1: what a job may lose besides its own time and the waits above, for each of its attempts.
const UNEXPLAINED_MAX: u64 = 120_000;
/// L3: a dead worker's job starts elsewhere within this time, while capacity is free.
const STARTED_WITHIN: u64 = 60_000;
/// L9: after a lease, the jobs of dead machines start elsewhere within this time, paced, with their first retry's wait of
/// up to a second.
const PACED_WITHIN: Duration = Duration::from_secs(15);
/// How long a retry avoids workers on which the job failed.
const AVOIDED_MAX: u64 = 60_000;
/// A run without progress is given up after 300 s, and its service is repaired within 200 s (L4) after that; one that its
/// agent may not restart waits 700 s for an operator.
const SICK_MAX: u64 = 1_300_000;
/// `AgentTimeouts::queue_stall_max`, and the repair that follows.
const FOREIGN_MAX: u64 = 3_600_000 + SICK_MAX;
/// Waits are looked at this often, so a wait may be noticed and left that much later.
const LOOK_MARGIN: u64 = 10_000;
/// Later retries wait longer by intention: up to 8 s and more after the fourth failure.
const QUICK_FAILURES_MAX: u8 = 3;

/// What the laws know of waiting jobs.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    waits: BTreeMap<JobId, Waiting>,
    /// Attempts whose worker died, and since when they could run elsewhere.
    lost: BTreeMap<Key, u64>,
    looked_at: u64,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    attempt: Attempt,
    /// Milliseconds without a reason, in this attempt.
    unexplained: u64,
    reason: Reason,
    since: u64,
}

/// What an open job waits for; the first that applies to any worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reason {
    Nothing,
    Run,
    Slot,
    Trial,
    Retry,
    OtherWorker,
    /// A block, a quarantine or a probation that ends then.
    CoolDown(Timestamp),
    Repair,
    ForeignRun,
    Worker,
}

impl Laws {
    pub(crate) fn check_liveness(
        &mut self,
        at: u64,
        plane: Option<(&Plane, Timestamp)>,
        hosts: &[Host],
        scenario: &Scenario,
        is_calm: bool,
    ) {
        let passed = at - std::mem::replace(&mut self.liveness.looked_at, at);
        let Some((plane, now)) = plane else { return };
        self.check_started_elsewhere(at, passed, plane, now, hosts, scenario);
        if is_calm {
            self.check_waits(at, passed, plane, now, hosts, scenario);
        }
    }

    /// L1: once faults have stopped, no job waits longer than its reason allows.
    fn check_waits(
        &mut self,
        at: u64,
        passed: u64,
        plane: &Plane,
        now: Timestamp,
        hosts: &[Host],
        scenario: &Scenario,
    ) {
        let before = std::mem::take(&mut self.liveness.waits);
        let mut found = None;
        for job in plane.jobs() {
            let reason = wait_reason(at, plane, now, job, hosts, scenario);
            let attempt = job.attempt();
            let known = before.get(&job.id).filter(|known| known.attempt == attempt);
            let mut waiting =
                known.copied().unwrap_or(Waiting { attempt, unexplained: 0, reason, since: at });
            let is_same = match (waiting.reason, reason) {
                // One that was over when the next began: a trial failed in between, and may have been too short to be seen.
                (Reason::CoolDown(ended), Reason::CoolDown(ends)) => ended == ends || ended > now,
                (before, reason) => before == reason,
            };
            if !is_same {
                waiting.since = at;
            }
            waiting.reason = reason;
            if is_same && reason == Reason::Nothing {
                waiting.unexplained += passed;
            }
            let bound = self.bound(reason, job);
            let is_long = waiting.unexplained > UNEXPLAINED_MAX
                || bound.is_some_and(|bound| at - waiting.since > bound + LOOK_MARGIN);
            if is_long {
                found = Some(format!(
                    "job {} waits for {reason:?} since {} ms ({}), {} ms of attempt {attempt} without a reason",
                    job.id,
                    waiting.since,
                    plane.reason(now, job),
                    waiting.unexplained
                ));
            }
            self.liveness.waits.insert(job.id, waiting);
        }
        if let Some(what) = found {
            self.violated_once(Law::L1, at, what);
        }
    }

    /// The longest uninterrupted wait of this kind.
    fn bound(&self, reason: Reason, job: &Job) -> Option<u64> {
        let millis = |time: Duration| time.as_millis() as u64;
        let own_delay = job.options().and_then(|options| options.retry_delay).unwrap_or_default();
        match reason {
            Reason::Retry => Some(millis(self.rules.retry_max.max(own_delay))),
            Reason::OtherWorker => Some(AVOIDED_MAX),
            Reason::CoolDown(_) => Some(millis(self.rules.block_cooldown_max)),
            Reason::Repair => Some(SICK_MAX),
            Reason::ForeignRun => Some(FOREIGN_MAX),
            Reason::Nothing | Reason::Run | Reason::Slot | Reason::Trial | Reason::Worker => None,
        }
    }

    /// L3: an attempt whose worker died runs elsewhere in time, while another worker could take it.
    fn check_started_elsewhere(
        &mut self,
        at: u64,
        passed: u64,
        plane: &Plane,
        now: Timestamp,
        hosts: &[Host],
        scenario: &Scenario,
    ) {
        let is_listening = now.since(self.stepped_at) < self.rules.plane_stall_max;
        for worker in plane.workers().filter(|worker| !worker.assignments.is_empty()) {
            let Some(dead_for) = super::plane_state::dead_for(at, &worker.id, hosts) else { continue };
            for (job, hold) in &worker.assignments {
                let held_for = now.since(hold.assigned_at).as_millis() as u64;
                self.liveness.lost.entry((*job, hold.attempt)).or_insert(at - dead_for.min(held_for).min(at));
            }
        }
        // After a gap the others may be on their way, and get a lease.
        let last_gap = self.listens_since.max(self.braked_at).max(self.rereversed_at.unwrap_or_default());
        let heard_for = now.since(last_gap).as_millis() as u64;
        let lost = std::mem::take(&mut self.liveness.lost);
        let has_witness = !lost.is_empty() && super::presence::has_witness(at, plane, hosts);
        let paced = (self.rules.lease + PACED_WITHIN).as_millis() as u64;
        let mut found = None;
        for (key, since) in lost {
            let Some(job) = plane.job(key.0).filter(|job| job.attempt() == key.1) else { continue };
            if is_back(job, hosts, at) {
                continue;
            }
            let is_late_retry = job.failures().0 + job.failures().1 > QUICK_FAILURES_MAX;
            let is_retry = matches!(job.state(), JobState::Waiting { not_before } if *not_before > now);
            let could = able_hosts(at, job, hosts, scenario).any(|host| {
                let worker = plane.worker(host.name());
                worker.is_some_and(|worker| plane.passed_over(now, job, worker).is_none())
            });
            let is_excused = !is_listening || !could || is_retry && is_late_retry;
            // It may have been back in between, for less than the time between two looks.
            let dead_since =
                |worker| super::plane_state::dead_for(at, worker, hosts).map(|it| at - it.min(at));
            let died_at = match job.state() {
                JobState::Running { worker, .. } => dead_since(worker),
                JobState::Waiting { .. } | JobState::Ended(_) => None,
            };
            let since = if is_excused { at } else { since.max(died_at.unwrap_or(0)) };
            let waited = (at - since).min(heard_for);
            let is_first_loss = job.failures().0 + job.failures().1 <= 1;
            let what = |bound: u64| {
                format!(
                    "the worker of job {} is dead, others are free for {waited} ms, and it did not start there in {bound} ms ({})",
                    key.0,
                    plane.reason(now, job)
                )
            };
            if waited > STARTED_WITHIN + passed {
                found = Some((Law::L3, what(STARTED_WITHIN)));
            } else if waited > paced + passed && is_first_loss && has_witness {
                found = Some((Law::L9, what(paced)));
            }
            self.liveness.lost.insert(key, since);
        }
        if let Some((law, what)) = found {
            self.violated_once(law, at, what);
        }
    }
}

/// Whether the worker that has the attempt lives again.
fn is_back(job: &Job, hosts: &[Host], at: u64) -> bool {
    match job.state() {
        JobState::Running { worker, .. } => super::plane_state::dead_for(at, worker, hosts).is_none(),
        JobState::Waiting { .. } => false,
        JobState::Ended(_) => true,
    }
}

fn wait_reason(
    at: u64,
    plane: &Plane,
    now: Timestamp,
    job: &Job,
    hosts: &[Host],
    scenario: &Scenario,
) -> Reason {
    match job.state() {
        JobState::Running { worker, .. } => {
            let its = hosts.iter().find(|host| host.name() == worker && host.agent.is_some());
            let is_elsewhere = || able_hosts(at, job, hosts, scenario).next().is_some();
            match its {
                Some(host) => run_reason(at, host, (job.id, job.attempt())),
                // Its worker is dead. Without another one it stays there, in case that one comes back with it.
                None if is_elsewhere() => Reason::Nothing,
                None => Reason::Worker,
            }
        }
        JobState::Waiting { not_before } if *not_before > now => Reason::Retry,
        JobState::Waiting { .. } => {
            let able = able_hosts(at, job, hosts, scenario);
            able.map(|host| queue_reason(plane, now, job, host)).min().unwrap_or(Reason::Worker)
        }
        JobState::Ended(_) => Reason::Run,
    }
}

/// What an attempt waits for at the service of a living worker.
fn run_reason(at: u64, host: &Host, key: Key) -> Reason {
    let service = &host.service;
    let is_halted = !service.is_up(at) || service.stands_still() || host.unavailable_since.is_some();
    let is_sick = is_halted || service.is_sick();
    let is_running =
        service.running.iter().any(|prompt| prompt.key == Some(key) && prompt.end != PromptEnd::Hangs);
    let is_behind_others = service.pending.iter().any(|prompt| prompt.key == Some(key))
        && service.running.iter().any(|prompt| prompt.key.is_none());
    match service.has(key) {
        true if is_sick && is_behind_others => Reason::ForeignRun,
        // A broken device of which its agent does not know yet stops no run, and shows when the next one begins: until
        // then a job waits for its run, or for ours before it, and no repair would bring that on. From then on L4 applies.
        true if !is_halted && (is_running || service.is_queued_behind_progress(key)) => Reason::Run,
        _ if is_sick => Reason::Repair,
        true | false => Reason::Nothing,
    }
}

/// What a waiting job waits for, as far as this worker is concerned, which could run it.
fn queue_reason(plane: &Plane, now: Timestamp, job: &Job, host: &Host) -> Reason {
    let Some(worker) = plane.worker(host.name()) else { return Reason::Nothing };
    match plane.passed_over(now, job, worker) {
        Some(PassedOver::Busy { .. } | PassedOver::NotIdle) => Reason::Slot,
        Some(PassedOver::BlockTrial { .. } | PassedOver::QuarantineTrial { .. }) => Reason::Trial,
        Some(PassedOver::FailedBefore | PassedOver::TooSmall) => Reason::OtherWorker,
        Some(
            PassedOver::Blocked { until: ends }
            | PassedOver::Quarantined { trial_at: ends }
            | PassedOver::Unavailable(Availability::Probation { until: ends }),
        ) => Reason::CoolDown(ends),
        Some(PassedOver::Unavailable(
            Availability::Draining | Availability::Terminated | Availability::Starting,
        )) => Reason::Worker,
        None
        | Some(PassedOver::Mismatch(_) | PassedOver::Excluded | PassedOver::Vetoed)
        | Some(PassedOver::Unavailable(
            Availability::Ready
            | Availability::Failed
            | Availability::Suspect
            | Availability::Offline
            | Availability::Unheard
            | Availability::Disconnected
            | Availability::Sick { .. },
        )) => Reason::Nothing,
    }
}

/// The hosts that could run this job, by what is true of them.
fn able_hosts<'a>(
    at: u64,
    job: &Job,
    hosts: &'a [Host],
    scenario: &'a Scenario,
) -> impl Iterator<Item = &'a Host> {
    let plan = &scenario.jobs[client_of(job.id)];
    hosts.iter().filter(move |host| is_able(at, host) && suits(plan, host, scenario))
}

fn is_able(at: u64, host: &Host) -> bool {
    let is_ready = host.pod.is_none() || at >= host.ready_at && !host.has_bad_gpu && !host.is_wrong_machine;
    let is_there = host.agent.is_some() && host.has_joined && at >= host.paused_until;
    is_ready && is_there && host.is_well(at) && host.plan.quirk != Quirk::BlackHole
}

fn suits(plan: &JobPlan, host: &Host, scenario: &Scenario) -> bool {
    let zone = host.plan.offer.labels.get("zone").map(String::as_str);
    let affinity = scenario.affinities.get(&plan.shape);
    host.plan.services.contains(&plan.service)
        && plan.zone.is_none_or(|wanted| zone == Some(wanted))
        && plan.pin.as_ref().is_none_or(|pin| pin == host.name())
        && plan.excluded.as_ref() != Some(host.name())
        && affinity.is_none_or(|affinity| !affinity.excluded.contains(host.name()))
}
