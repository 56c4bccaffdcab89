//! S20: poison needs a cause. A job is set aside as poison only if two distinct workers or services went down under it with
//! no other explanation, and at least once under it alone. The truth is which hosts a fault felled together, which workers
//! were told to leave, and what else they ran.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::{JobId, WorkerId};
use remuda_core::plane::Step;
use remuda_core::record::{JobStatus, PastAttempt, Record, StateRow};
use remuda_core::verdict::{AttemptVerdict, CrashEvidence};

use super::Laws;
use crate::host::Host;
use crate::law::Law;
use crate::net::PlaneRequest;
use crate::service::Key;

/// What explains that a worker went down.
#[derive(Debug, Default)]
pub(super) struct Explanations {
    /// Workers told to leave, until they join again.
    leaving: BTreeSet<WorkerId>,
    /// Hosts that one fault felled together with others, and when.
    felled: BTreeMap<WorkerId, u64>,
    /// Attempts that went down with something else to explain it: a drain, or many at once.
    explained: BTreeSet<Key>,
    /// Attempts that went down together with others on the same worker.
    accompanied: BTreeSet<Key>,
}

/// So many machines that fall together are a mass loss.
const FELLED_MIN: usize = 3;
/// A loss is noticed after a lease, a restart after up to 200 s; later ones have other reasons.
const FELLED_FOR: u64 = 240_000;

impl Laws {
    /// One fault felled these workers.
    pub(crate) fn felled(&mut self, at: u64, workers: &[WorkerId], machines: usize) {
        if machines >= FELLED_MIN {
            self.explanations.felled.extend(workers.iter().map(|worker| (worker.clone(), at)));
        }
    }

    /// Notes what explains the attempts that ended in this step.
    pub(super) fn note_explanations(
        &mut self,
        at: u64,
        request: Option<&PlaneRequest>,
        step: &Step,
        hosts: &[Host],
    ) {
        for record in &step.records {
            let Record::JobStatus { job, status } = record else { continue };
            let Some(last) = status.attempts.last().filter(|last| last.took_down.is_some()) else { continue };
            let key = (*job, last.attempt);
            let is_felled =
                self.explanations.felled.get(&last.worker).is_some_and(|then| at < then + FELLED_FOR);
            let is_lost =
                matches!(last.verdict, Some(AttemptVerdict::WorkerSilent | AttemptVerdict::WorkerRestarted));
            let is_explained = self.explanations.leaving.contains(&last.worker) || is_felled && is_lost;
            if is_explained && !self.crashed_agents.contains(&key) {
                self.explanations.explained.insert(key);
            }
            let has_company = self.running.iter().any(|(other, (worker, _))| {
                let attempt = self.latest_attempt.get(other).map(|(attempt, _)| *attempt);
                let is_named = attempt.is_some_and(|attempt| self.named.contains(&(*other, attempt)));
                other != job && *worker == last.worker && is_named
            });
            // A service that runs one prompt at a time is alone with it.
            let its = hosts.iter().find(|host| *host.name() == last.worker);
            let shares = its.is_none_or(|host| host.service.plan.slots > 1);
            if has_company && shares {
                self.explanations.accompanied.insert(key);
            }
        }
        match request {
            Some(PlaneRequest::Drain { worker } | PlaneRequest::Leave { worker, .. })
                if step.answer.is_ok() =>
            {
                self.explanations.leaving.insert(worker.clone());
            }
            Some(PlaneRequest::Join { join, .. }) if step.answer.is_ok() => {
                self.explanations.leaving.remove(&join.worker);
            }
            _ => {}
        }
    }

    /// S20: a job that failed as poison.
    pub(super) fn check_poison_verdict(&mut self, at: u64, job: JobId, status: &JobStatus) {
        let has_attempts_left = status.infra_failures < self.rules.infra_failures_max
            && status.failures < self.rules.attempts_max;
        if !matches!(status.state, StateRow::Failed { was_stopped: true, .. }) || !has_attempts_left {
            return;
        }
        let key = |one: &PastAttempt| (job, one.attempt);
        let counts =
            |one: &&PastAttempt| one.took_down.is_some() && !self.explanations.explained.contains(&key(one));
        let is_alone = |one: &&PastAttempt| {
            one.took_down == Some(CrashEvidence::Direct) && !self.explanations.accompanied.contains(&key(one))
        };
        let evidence: Vec<_> = status.attempts.iter().filter(counts).collect();
        let workers: BTreeSet<_> = evidence.iter().map(|one| &one.worker).collect();
        let has_direct = evidence.iter().any(is_alone);
        if workers.len() < usize::from(self.rules.poison_after) || !has_direct {
            let what = format!(
                "job {job} is called poison; without another explanation only {workers:?} went down under it{}",
                if has_direct { "" } else { ", never under it alone" }
            );
            self.violated(Law::S20, at, what);
        }
    }
}
