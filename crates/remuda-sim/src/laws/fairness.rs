//! Fair share, checked only in fair weather: among jobs with the same priority and requirements, a waiting tenant is
//! not passed over again and again. An attempt starts once: a running job is stored again with its progress, which
//! neither serves its tenant nor passes another over.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::{Attempt, JobId, Tenant};
use remuda_core::plane::Step;
use remuda_core::record::{Record, StateRow};

use super::Laws;
use crate::law::Law;
use crate::scenario::{JobPlan, Scenario, client_of};
use crate::service::Key;
use crate::weather::Weather;

#[derive(Debug)]
pub(crate) struct FairShare {
    plans: Vec<JobPlan>,
    waiting: BTreeMap<Class, BTreeMap<Tenant, BTreeSet<JobId>>>,
    /// How often each tenant was passed over since it was last served.
    passed: BTreeMap<(Class, Tenant), u32>,
    /// Attempts that were counted.
    started: BTreeSet<Key>,
}

/// Jobs that the same workers can take: priority and requirements.
type Class = (i8, String);

/// How often a tenant may be passed over: a few times for each of the three others.
const PASSED_MAX: u32 = 12;

impl FairShare {
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let is_fair = scenario.weather == Weather::Fair;
        is_fair.then(|| FairShare {
            plans: scenario.jobs.clone(),
            waiting: BTreeMap::new(),
            passed: BTreeMap::new(),
            started: BTreeSet::new(),
        })
    }

    pub(crate) fn restart(&mut self) {
        self.waiting.clear();
        self.passed.clear();
    }

    fn of(&self, job: JobId) -> (Class, Tenant) {
        let plan = &self.plans[client_of(job)];
        let request = format!("{} {:?} {:?} {:?}", plan.service, plan.zone, plan.pin, plan.excluded);
        ((plan.priority, request), plan.tenant.clone())
    }

    fn waits(&mut self, job: JobId) {
        let (class, tenant) = self.of(job);
        self.waiting.entry(class).or_default().entry(tenant).or_default().insert(job);
    }

    /// Returns a tenant that was passed over too often.
    fn runs(&mut self, job: JobId, attempt: Attempt) -> Option<String> {
        if !self.started.insert((job, attempt)) {
            return None;
        }
        let (class, served) = self.of(job);
        let tenants = self.waiting.entry(class.clone()).or_default();
        if let Some(jobs) = tenants.get_mut(&served) {
            jobs.remove(&job);
        }
        tenants.retain(|_, jobs| !jobs.is_empty());
        self.passed.remove(&(class.clone(), served.clone()));
        let others: Vec<_> = tenants.keys().filter(|tenant| **tenant != served).cloned().collect();
        let mut starved = None;
        for tenant in others {
            let passed = self.passed.entry((class.clone(), tenant.clone())).or_default();
            *passed += 1;
            if *passed > PASSED_MAX {
                starved = Some(format!("{tenant} was passed over {passed} times, now for {served}"));
            }
        }
        starved
    }
}

impl Laws {
    pub(super) fn check_fairness(&mut self, at: u64, step: &Step) {
        let Some(share) = &mut self.share else { return };
        let mut starved = None;
        for record in &step.records {
            match record {
                Record::JobAccepted { job, .. } => share.waits(job.id),
                Record::JobStatus { job, status } if matches!(status.state, StateRow::Running { .. }) => {
                    starved = share.runs(*job, status.attempt).or(starved);
                }
                _ => {}
            }
        }
        if let Some(what) = starved {
            self.violated(Law::Fair, at, what);
        }
    }
}
