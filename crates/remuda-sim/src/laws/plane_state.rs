//! Laws about the plane's view of the world: compared periodically, and once more when everything is quiet.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use remuda_core::id::{JobId, WorkerId};
use remuda_core::job::JobState;
use remuda_core::machine::{Presence, WorkerState};
use remuda_core::plane::Plane;
use remuda_core::quarantine;
use remuda_core::time::Timestamp;

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::scenario::Quirk;
use crate::store::Store;

/// Each step changes little, so only every eighth is checked in full.
const INSPECT_EVERY: u64 = 8;
/// A dead worker's jobs are taken from it within this time while the plane is running.
const REASSIGNED_WITHIN: Duration = Duration::from_secs(60);
/// L4 asks for 60 s. A dead worker that held nothing is offline after three idle beats (90 s), because a worker may miss
/// two without being restarted for it; verdicts fall within 5 s.
const NOTICED_WITHIN: u64 = 95_000;
/// L4: an attempt that no worker holds is given up within this many milliseconds. In the storm three orders may be lost in
/// a row, each detected by the agent's timeout of 28 s.
const UNHELD_MAX: u64 = 60_000;
const UNHELD_IN_STORM_MAX: u64 = 90_000;
/// Cancelled attempts that a worker may still list.
const CANCELS_MAX: usize = 64;

impl Laws {
    pub(super) fn check_state(&mut self, now: Timestamp, at: u64, plane: &Plane) {
        self.steps += 1;
        if plane.mass_loss().is_on() {
            self.braked_at = now;
        }
        if !self.steps.is_multiple_of(INSPECT_EVERY) {
            return;
        }
        // A timer that is due is handled by the tick at the end of the batch.
        if plane.wake_at().0 > now
            && let Err(what) = plane.check_indexes()
        {
            self.violated(Law::S12, at, what);
        }
        self.check_limits(at, plane);
        self.check_blocks(now, at, plane);
        let mut waiting = plane.jobs().filter(|job| matches!(job.state(), JobState::Waiting { .. }));
        if let Some(job) = waiting.nth((self.steps % 7) as usize)
            && plane.reason(now, job).is_empty()
        {
            self.violated(Law::S12, at, format!("job {} waits without a reason", job.id));
        }
    }

    fn check_limits(&mut self, at: u64, plane: &Plane) {
        let (blocks, quarantine) = (plane.blocks().len(), plane.quarantine().len());
        if blocks > self.rules.blocks_max || quarantine > self.rules.blocks_max {
            self.violated(Law::S11, at, format!("{blocks} blocks and {quarantine} quarantine entries exist"));
        }
        if plane.open_jobs() > self.rules.open_jobs_max {
            self.violated(Law::S11, at, format!("{} jobs are open", plane.open_jobs()));
        }
        if let Some(worker) = plane.workers().find(|worker| worker.cancels.len() > CANCELS_MAX) {
            self.violated(Law::S11, at, format!("{} has {} cancels", worker.id, worker.cancels.len()));
        }
    }

    /// L6: no block is longer than the maximum, and no trial is pending that no worker runs.
    fn check_blocks(&mut self, now: Timestamp, at: u64, plane: &Plane) {
        let longest = now.plus(self.rules.block_cooldown_max);
        let mut found = None;
        for (worker, _, it) in plane.blocks().iter() {
            let is_idle_trial =
                it.trial().is_some_and(|job| runs_on(plane, job).is_none_or(|on| on != worker));
            if it.until() > longest || is_idle_trial {
                found = Some(format!("{worker} is blocked for a shape until {}: {it:?}", it.until()));
            }
        }
        for (jobs, it) in plane.quarantine().iter() {
            let is_idle_trial = match plane.quarantine().state(now, &jobs) {
                quarantine::QuarantineState::TrialUnderWay { job } => runs_on(plane, job).is_none(),
                quarantine::QuarantineState::Free | quarantine::QuarantineState::Quarantined { .. } => false,
            };
            if it.trial_at().is_some_and(|trial_at| trial_at > longest) || is_idle_trial {
                found = Some(format!("a shape is quarantined without a running trial: {it:?}"));
            }
        }
        if let Some(what) = found {
            self.violated(Law::L6, at, what);
        }
    }

    /// L3: attempts of dead workers are taken from them. A worker may die unnoticed between two idle beats and be given
    /// work after that: that attempt counts from then.
    pub(crate) fn check_plane(
        &mut self,
        at: u64,
        plane: Option<(&Plane, Timestamp)>,
        hosts: &[Host],
        is_calm: bool,
    ) {
        let Some((plane, now)) = plane else { return };
        let listens_now = now.since(self.stepped_at) < self.rules.plane_stall_max;
        let listens_long =
            listens_now && now.since(self.listens_since.max(self.braked_at)) > REASSIGNED_WITHIN;
        for worker in plane.workers().filter(|worker| !worker.assignments.is_empty() && listens_long) {
            let oldest = worker.assignments.values().map(|hold| now.since(hold.assigned_at)).max();
            let is_held_long = oldest.is_some_and(|held_for| held_for > REASSIGNED_WITHIN);
            if is_held_long && dead_for(at, &worker.id, hosts).is_some_and(|dead_for| dead_for > 60_000) {
                let what = format!("{} is dead and holds {} jobs", worker.id, worker.assignments.len());
                self.violated_once(Law::L3, at, what);
            }
        }
        self.check_holders(at, plane, hosts, listens_long, is_calm);
        if listens_now {
            self.check_presence(now, at, plane);
        }
        self.check_losses(now, at, plane, hosts);
    }

    /// L4: an attempt that the plane assigns to a live worker is held there, or will be soon.
    fn check_holders(&mut self, at: u64, plane: &Plane, hosts: &[Host], listens_long: bool, is_calm: bool) {
        let mut unheld = BTreeMap::new();
        for worker in plane.workers().filter(|_| listens_long) {
            let agent =
                hosts.iter().filter(|host| *host.name() == worker.id).find_map(|host| host.agent.as_ref());
            let Some(agent) = agent else { continue };
            let held: BTreeSet<_> = agent.held().collect();
            for (job, hold) in &worker.assignments {
                let key = (*job, hold.attempt);
                if !held.contains(&key) {
                    unheld.insert(key, self.unheld.get(&key).copied().unwrap_or(at));
                }
            }
        }
        let bound = if is_calm { UNHELD_MAX } else { UNHELD_IN_STORM_MAX };
        let long = unheld.iter().find(|(_, since)| at - **since > bound);
        let what = long.map(|((job, attempt), _)| format!("no worker holds job {job} attempt {attempt}"));
        self.unheld = unheld;
        if let Some(what) = what {
            self.violated(Law::L4, at, what);
        }
    }

    pub(crate) fn final_check(
        &mut self,
        at: u64,
        is_quiet: bool,
        plane: Option<&Plane>,
        now: Option<Timestamp>,
        hosts: &[Host],
        store: &Store,
    ) {
        if self.is_full() {
            return;
        }
        if !is_quiet {
            self.check_all_ended(at, plane, now, store);
        }
        for (job, (_, life)) in &store.jobs {
            if !life.state.is_open() && !self.ended.contains(job) {
                self.violated(Law::S2, at, format!("job {job} ended without an event"));
            }
        }
        if let Some(plane) = plane.filter(|_| is_quiet) {
            self.check_fleet_view(at, plane, hosts);
        }
    }

    /// L1: every job has ended.
    fn check_all_ended(&mut self, at: u64, plane: Option<&Plane>, now: Option<Timestamp>, store: &Store) {
        let open = store.jobs.iter().find(|(_, (_, life))| life.state.is_open());
        let what = match (open, plane, now) {
            (Some((job, (_, life))), Some(plane), Some(now)) => {
                let reason = plane.job(*job).map(|job| plane.reason(now, job));
                format!("job {job} never ended: {}, {}", life.state.name(), reason.unwrap_or_default())
            }
            (Some((job, _)), ..) => format!("job {job} never ended, and there is no plane"),
            (None, Some(plane), _) if plane.rentals().next().is_some() => {
                let rentals = plane
                    .rentals()
                    .map(|it| format!("{} {}: {}", it.machine, it.phase().as_str(), it.reason));
                let what = format!("the fleet never settled: {}", rentals.collect::<Vec<_>>().join("; "));
                return self.violated(Law::L4, at, what);
            }
            (None, ..) => "a client still waits for an answer".to_owned(),
        };
        self.violated(Law::L1, at, what);
    }

    /// L4: the plane's view of the fleet is correct.
    fn check_fleet_view(&mut self, at: u64, plane: &Plane, hosts: &[Host]) {
        for worker in plane.workers() {
            let dead_for = dead_for(at, &worker.id, hosts);
            let is_phantom = dead_for.is_some_and(|dead_for| dead_for > NOTICED_WITHIN);
            if is_phantom && worker.presence() == Presence::Online {
                self.violated(Law::L4, at, format!("{} is dead and online", worker.id));
            }
            if dead_for.is_none() && worker.presence() != Presence::Online {
                let what = format!("{} is alive and {} ({})", worker.id, worker.presence(), worker.reason);
                self.violated(Law::L4, at, what);
            }
            if dead_for.is_none() && worker.state() != WorkerState::Active {
                let what = format!("{} is alive and {} ({})", worker.id, worker.state(), worker.reason);
                self.violated(Law::L4, at, what);
            }
            let plan = hosts.iter().find(|host| *host.name() == worker.id).map(|host| &host.plan);
            let is_honest = plan.is_some_and(|plan| plan.quirk != Quirk::OverstatesSlots);
            let room = plan.map_or(0, |plan| plan.slots);
            let believed = worker.slots.min(worker.slots_observed.unwrap_or(u32::MAX));
            if is_honest && dead_for.is_none() && believed < room {
                let what = format!("{} has {room} slots and the plane assumes fewer", worker.id);
                self.violated(Law::L4, at, what);
            }
            if let Some(job) = worker.assignments.keys().next() {
                self.violated(Law::L4, at, format!("{} holds job {job}, which has ended", worker.id));
            }
        }
        let held = hosts.iter().filter_map(|host| Some((host, host.agent.as_ref()?.held().next()?))).next();
        if let Some((host, (job, _))) = held {
            self.violated(Law::L4, at, format!("{} still runs job {job}, which has ended", host.name()));
        }
    }
}

fn runs_on(plane: &Plane, job: JobId) -> Option<&WorkerId> {
    match plane.job(job)?.state() {
        JobState::Running { worker, .. } => Some(worker),
        JobState::Waiting { .. } | JobState::Ended(_) => None,
    }
}

/// For how long no worker of this name has been alive; `None` if one is.
pub(super) fn dead_for(at: u64, worker: &WorkerId, hosts: &[Host]) -> Option<u64> {
    let mut named = hosts.iter().filter(|host| host.name() == worker);
    named.try_fold(u64::MAX, |least, host| {
        let since = host.agent.is_none().then_some(host.dead_since.unwrap_or(0))?;
        Some(least.min(at - since))
    })
}
