//! Laws about what happens between an agent and its service. The world knows what the service has; the laws hold that
//! against what the agent does and says.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::WorkerId;
use remuda_core::service::ServiceIncarnation;
use remuda_core::wire::{AttemptOutcome, FinishedAttempt};

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::service::Key;
use crate::store::Store;

/// What the laws know of attempts at services.
#[derive(Debug, Default)]
pub(super) struct Services {
    stop_requested: BTreeSet<Key>,
    outputs_missing: BTreeSet<Key>,
    /// Attempts of which somebody on the way made two: they may end in two ways.
    copied: BTreeSet<Key>,
    /// Attempts that were asked about in the moment in which they were nowhere.
    in_gap: BTreeSet<Key>,
    /// Attempts that were at a service when its agent restarted it.
    pub(super) ended_by_us: BTreeSet<Key>,
    /// Attempts that were run in the calm, and in which life of their service.
    executed: BTreeMap<Key, ServiceIncarnation>,
    /// Attempts of which an agent has said how they ended, and which one.
    reported: BTreeSet<(usize, Key)>,
    /// Since when an agent holds what its service does not have.
    lost: BTreeMap<(usize, Key), u64>,
    /// Attempts that the plane just called stuck.
    pub(super) stuck: Vec<(WorkerId, Key)>,
}

/// What is over is noticed so long after the longest silence: two questions, and the way home.
const NOTICED_WITHIN: u64 = 25_000;
/// What is lost is let go so long after the longest silence: it is handed in three times at most.
const LET_GO_WITHIN: u64 = 40_000;
/// How long an agent may know that its service is sick and do nothing about it.
const TREATED_WITHIN: u64 = 200_000;
/// How long a socket may be deaf beyond the silences after which it is opened anew.
const DEAF_MARGIN: u64 = 10_000;

impl Laws {
    /// S5 and S4: what is handed to a service was stored before, under the name it is handed in by.
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
            self.violated(Law::S11, at, format!("{worker} duration on more than it has room for: {held}"));
        }
        let is_stored = store.life(job).is_some_and(|life| life.attempt >= attempt);
        if !is_stored || service_job_id != job.service_job_id(attempt) {
            let what =
                format!("{worker} hands in job {job} attempt {attempt} as {service_job_id}: not stored");
            self.violated(Law::S5, at, what);
        }
        self.check_not_cancelled(at, key, store);
        if self.ran.insert(key, number).is_some_and(|before| before != number) {
            self.violated(
                Law::S4,
                at,
                format!("job {job} attempt {attempt} runs on {worker} and ran elsewhere"),
            );
        }
    }

    /// S4 and S6: nothing is handed to a service that has it, nor begins after it was given up.
    pub(crate) fn prompt_accepted(&mut self, at: u64, number: usize, host: &Host, key: Key) {
        let ((job, attempt), worker) = (key, host.name());
        let is_excused = self.services.copied.contains(&key) || self.services.in_gap.contains(&key);
        if host.service.knows(key) && !is_excused {
            let what = format!("job {job} attempt {attempt} is handed to {worker} once more, which has it");
            self.violated(Law::S4, at, what);
        }
        if self.services.reported.contains(&(number, key)) {
            let what = format!("job {job} attempt {attempt} begins on {worker} after it was given up there");
            self.violated(Law::S6, at, what);
        }
    }

    /// S4: in the calm nothing is run twice, unless the service lost it.
    pub(crate) fn executed(&mut self, at: u64, host: &Host, key: Key) {
        let life = host.service.life();
        let before = self.services.executed.insert(key, life);
        if before == Some(life) && !self.services.copied.contains(&key) {
            let ((job, attempt), worker) = (key, host.name());
            self.violated(
                Law::S4,
                at,
                format!("{worker} runs job {job} attempt {attempt} for the second time"),
            );
        }
    }

    pub(crate) fn copied(&mut self, key: Key) {
        self.services.copied.insert(key);
    }

    pub(crate) fn stop_requested(&mut self, key: Key) {
        self.services.stop_requested.insert(key);
    }

    /// An agent restarts its service: what was there did not take it down.
    pub(crate) fn ended_by_us(&mut self, keys: impl Iterator<Item = Key>) {
        self.services.ended_by_us.extend(keys);
    }

    pub(crate) fn outputs_missing(&mut self, key: Key) {
        self.services.outputs_missing.insert(key);
    }

    pub(crate) fn asked_in_gap(&mut self, key: Key) {
        self.services.in_gap.insert(key);
    }

    /// S6: what a service has all the time, it is said not to know.
    pub(crate) fn denied(&mut self, at: u64, worker: &WorkerId, (job, attempt): Key) {
        let what =
            format!("{worker} had job {job} attempt {attempt} all the time and is said not to know it");
        self.violated(Law::S6, at, what);
    }

    /// S6: an agent says how an attempt ended.
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

    /// Attempts that were called stuck since this was last asked.
    pub(crate) fn stuck(&mut self) -> Vec<(WorkerId, Key)> {
        std::mem::take(&mut self.services.stuck)
    }

    /// Holds what the agents hold against what their services have.
    pub(crate) fn check_services(&mut self, at: u64, calm_since: Option<u64>, hosts: &[Host]) {
        for (number, host) in hosts.iter().enumerate().filter(|(_, host)| host.agent.is_some()) {
            self.no_deafness(at, host);
            if let Some(calm_since) = calm_since {
                self.noticed(at, calm_since, host);
                self.let_go(at, calm_since, number, host);
                self.treated(at, calm_since, host);
            }
        }
    }

    /// L2: a socket on which nothing is heard is opened anew after the first silence, and then after two, four and so on.
    fn no_deafness(&mut self, at: u64, host: &Host) {
        let Some(mute_since) = host.service.socket.mute_since else { return };
        for running_since in host.service.running_since() {
            let since = mute_since.max(running_since).max(host.undisturbed_since());
            let silences = if running_since >= mute_since {
                host.inactivity()
            } else {
                at.saturating_sub(running_since) / 2 + 2 * host.inactivity()
            };
            if at.saturating_sub(since) > silences + DEAF_MARGIN {
                let what = format!("{} hears nothing of what runs for {} ms", host.name(), at - since);
                return self.violated(Law::L2, at, what);
            }
        }
    }

    /// L2: what is over at the service is noticed, however the news of it was lost.
    fn noticed(&mut self, at: u64, calm_since: u64, host: &Host) {
        let Some(agent) = &host.agent else { return };
        let longest = host.inactivity() + NOTICED_WITHIN;
        let found = host.service.unnoticed().find(|(key, since)| {
            let since = (*since).max(calm_since).max(host.undisturbed_since());
            at.saturating_sub(since) > longest && agent.held().any(|held| held == *key)
        });
        if let Some(((job, attempt), since)) = found {
            let what = format!(
                "job {job} attempt {attempt} is over on {} since {since} ms, and nobody noticed",
                host.name()
            );
            self.violated(Law::L2, at, what);
        }
    }

    /// L4: what its service lost, an agent does not hold on to.
    fn let_go(&mut self, at: u64, calm_since: u64, number: usize, host: &Host) {
        let Some(agent) = &host.agent else { return };
        let longest = host.inactivity() + LET_GO_WITHIN;
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
            let what = format!("{} holds job {job} attempt {attempt}, which its service lost", host.name());
            self.violated(Law::L4, at, what);
        }
    }

    /// L4: a service that is known to be sick is treated, or work is kept from it.
    fn treated(&mut self, at: u64, calm_since: u64, host: &Host) {
        let Some(evidence_at) = host.service.evidence_at.filter(|_| host.service.is_owned()) else { return };
        let since = evidence_at.max(calm_since).max(host.undisturbed_since());
        let is_ignored = host.service.is_sick() && host.unavailable_since.is_none();
        if is_ignored && at.saturating_sub(since) > TREATED_WITHIN {
            let what = format!("the service of {} is sick and nothing is done about it", host.name());
            self.violated(Law::L4, at, what);
        }
    }
}
