//! Laws about an agent and its service: what the agent does and reports, compared with what the service really has.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::WorkerId;
use remuda_core::service::ServiceIncarnation;
use remuda_core::wire::{AttemptOutcome, FinishedAttempt};

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::service::Key;
use crate::store::Store;

/// What the laws know about attempts at services.
#[derive(Debug, Default)]
pub(super) struct Services {
    stop_requested: BTreeSet<Key>,
    outputs_missing: BTreeSet<Key>,
    /// Attempts submitted twice by the network: they may end in two ways.
    copied: BTreeSet<Key>,
    /// Attempts queried in the moment when neither list had them.
    queried_in_gap: BTreeSet<Key>,
    /// Attempts that were at a service when its agent restarted it.
    pub(super) ended_by_us: BTreeSet<Key>,
    /// Attempts run after the storm, and the service incarnation.
    executed: BTreeMap<Key, ServiceIncarnation>,
    /// Attempts whose end an agent has reported, and the host.
    reported: BTreeSet<(usize, Key)>,
    /// Since when an agent holds an attempt that its service does not have.
    lost: BTreeMap<(usize, Key), u64>,
    /// Attempts that the plane just declared stuck.
    pub(super) stuck: Vec<(WorkerId, Key)>,
}

/// L2: an end is noticed this long after the longest silence, which is a setting of each worker.
const NOTICED_WITHIN: u64 = 20_000;
/// L4: a lost attempt is given up within this time, the longest silence included.
const GIVEN_UP_WITHIN: u64 = 60_000;
/// How long an agent may know that its service is sick without acting.
const REPAIRED_WITHIN: u64 = 60_000;
/// How long a socket may stay mute beyond the silences after which it is reopened.
const MUTE_MARGIN: u64 = 10_000;

impl Laws {
    /// S5 and S4: an attempt is committed before it is submitted to a service, under the id it is submitted with.
    pub(crate) fn prompt_submitted(
        &mut self,
        at: u64,
        number: usize,
        host: &Host,
        key: Key,
        service_job_id: &str,
        store: &Store,
    ) {
        let ((job, attempt), worker) = (key, host.name());
        let held = host.agent.as_ref().map_or(0, |agent| agent.held().count());
        if held > host.plan.slots as usize {
            self.violated(Law::S11, at, format!("{worker} holds {held} attempts, more than its slots"));
        }
        let is_stored = store.status(job).is_some_and(|life| life.attempt >= attempt);
        if !is_stored || service_job_id != job.service_job_id(attempt) {
            let what = format!(
                "{worker} submitted job {job} attempt {attempt} as {service_job_id}, which is not stored"
            );
            self.violated(Law::S5, at, what);
        }
        self.check_not_cancelled(at, key, store);
        if self.ran.insert(key, number).is_some_and(|before| before != number) {
            self.violated(
                Law::S4,
                at,
                format!("job {job} attempt {attempt} runs on {worker} and ran on another host"),
            );
        }
    }

    /// S4 and S6: no attempt is submitted to a service that has it, nor starts after it was given up.
    pub(crate) fn prompt_accepted(&mut self, at: u64, number: usize, host: &Host, key: Key) {
        let ((job, attempt), worker) = (key, host.name());
        let is_excused = self.services.copied.contains(&key) || self.services.queried_in_gap.contains(&key);
        if host.service.knows(key) && !is_excused {
            let what = format!("job {job} attempt {attempt} was submitted again to {worker}, which has it");
            self.violated(Law::S4, at, what);
        }
        if self.services.reported.contains(&(number, key)) {
            let what = format!("job {job} attempt {attempt} started on {worker} after it was given up there");
            self.violated(Law::S6, at, what);
        }
    }

    /// S4: after the storm nothing runs twice, unless the service lost it.
    pub(crate) fn executed(&mut self, at: u64, host: &Host, key: Key) {
        let life = host.service.life();
        let before = self.services.executed.insert(key, life);
        if before == Some(life) && !self.services.copied.contains(&key) {
            let ((job, attempt), worker) = (key, host.name());
            self.violated(Law::S4, at, format!("{worker} ran job {job} attempt {attempt} twice"));
        }
    }

    pub(crate) fn copied(&mut self, key: Key) {
        self.services.copied.insert(key);
    }

    pub(crate) fn stop_requested(&mut self, key: Key) {
        self.services.stop_requested.insert(key);
    }

    /// An agent restarts its service: the prompts there did not crash it.
    pub(crate) fn ended_by_us(&mut self, keys: impl Iterator<Item = Key>) {
        self.services.ended_by_us.extend(keys);
    }

    pub(crate) fn outputs_missing(&mut self, key: Key) {
        self.services.outputs_missing.insert(key);
    }

    pub(crate) fn queried_in_gap(&mut self, key: Key) {
        self.services.queried_in_gap.insert(key);
    }

    /// S6: a service that had the attempt all the time is said not to know it.
    pub(crate) fn denied(&mut self, at: u64, worker: &WorkerId, (job, attempt): Key) {
        let what =
            format!("{worker} had job {job} attempt {attempt} all the time and is reported not to know it");
        self.violated(Law::S6, at, what);
    }

    /// S6: an agent reports how an attempt ended.
    pub(crate) fn reported(&mut self, at: u64, number: usize, host: &Host, finished: &FinishedAttempt) {
        let key = (finished.job, finished.attempt);
        if matches!(finished.outcome, AttemptOutcome::Completed | AttemptOutcome::Rejected)
            || !self.services.reported.insert((number, key))
        {
            return;
        }
        let service = &host.service;
        let Services { stop_requested, outputs_missing, copied, .. } = &self.services;
        let is_excused = [stop_requested, outputs_missing, copied].iter().any(|keys| keys.contains(&key));
        if !is_excused && service.knows(key) && !service.has_failed(key) {
            let what = format!(
                "job {} attempt {} was given up ({}), and the service of {} has it",
                key.0,
                key.1,
                finished.message,
                host.name()
            );
            self.violated(Law::S6, at, what);
        }
    }

    /// Attempts declared stuck since the last call.
    pub(crate) fn stuck(&mut self) -> Vec<(WorkerId, Key)> {
        std::mem::take(&mut self.services.stuck)
    }

    /// Compares what the agents hold with what their services have.
    pub(crate) fn check_services(&mut self, at: u64, calm_since: Option<u64>, hosts: &[Host]) {
        for (number, host) in hosts.iter().enumerate().filter(|(_, host)| host.agent.is_some()) {
            self.check_mute_socket(at, host);
            if let Some(calm_since) = calm_since {
                self.check_ends_noticed(at, calm_since, host);
                self.check_lost_given_up(at, calm_since, number, host);
                self.check_repaired(at, calm_since, host);
            }
        }
    }

    /// L2: a mute socket is reopened after the first silence, then after two, four and so on.
    fn check_mute_socket(&mut self, at: u64, host: &Host) {
        let Some(mute_since) = host.service.socket.mute_since else { return };
        for running_since in host.service.running_since() {
            let since = mute_since.max(running_since).max(host.undisturbed_since());
            let silences = if running_since >= mute_since {
                host.inactivity()
            } else {
                at.saturating_sub(running_since) / 2 + 2 * host.inactivity()
            };
            if at.saturating_sub(since) > silences + MUTE_MARGIN {
                let what =
                    format!("{} got no message about its running prompt for {} ms", host.name(), at - since);
                return self.violated(Law::L2, at, what);
            }
        }
    }

    /// L2: an end at the service is noticed even if every message about it was lost.
    fn check_ends_noticed(&mut self, at: u64, calm_since: u64, host: &Host) {
        let Some(agent) = &host.agent else { return };
        let longest = host.inactivity() + NOTICED_WITHIN;
        let found = host.service.unnoticed().find(|(key, since)| {
            let since = (*since).max(calm_since).max(host.undisturbed_since());
            at.saturating_sub(since) > longest && agent.held().any(|held| held == *key)
        });
        if let Some(((job, attempt), since)) = found {
            let what = format!(
                "job {job} attempt {attempt} ended on {} at {since} ms, and the agent did not notice",
                host.name()
            );
            self.violated(Law::L2, at, what);
        }
    }

    /// L4: an agent gives up an attempt that its service lost.
    fn check_lost_given_up(&mut self, at: u64, calm_since: u64, number: usize, host: &Host) {
        let Some(agent) = &host.agent else { return };
        let longest = GIVEN_UP_WITHIN;
        let mut long = None;
        for key in agent.held() {
            if host.service.knows(key) {
                self.services.lost.remove(&(number, key));
                continue;
            }
            let since = *self.services.lost.entry((number, key)).or_insert(at);
            let since = since.max(calm_since).max(host.undisturbed_since());
            if at.saturating_sub(since) > longest {
                long = Some(key);
            }
        }
        if let Some((job, attempt)) = long {
            let what =
                format!("{} still holds job {job} attempt {attempt}, which its service lost", host.name());
            self.violated(Law::L4, at, what);
        }
    }

    /// L4: a service known to be sick is repaired, or gets no work.
    fn check_repaired(&mut self, at: u64, calm_since: u64, host: &Host) {
        let Some(evidence_at) = host.service.evidence_at.filter(|_| host.service.is_owned()) else { return };
        let since = evidence_at.max(calm_since).max(host.undisturbed_since());
        let is_ignored = host.service.is_sick() && host.unavailable_since.is_none();
        if is_ignored && at.saturating_sub(since) > REPAIRED_WITHIN {
            let what = format!("the service of {} is sick, and its agent does nothing about it", host.name());
            self.violated(Law::L4, at, what);
        }
    }
}
