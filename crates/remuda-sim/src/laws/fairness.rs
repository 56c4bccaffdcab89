//! The fair share, looked at where nothing else disturbs it: among jobs of one priority that request for the same, a tenant
//! that waits is not passed over again and again for the others.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::Step;
use remuda_core::record::{Record, StateRow};

use super::Laws;
use crate::law::Law;
use crate::scenario::{JobPlan, Scenario, client_of};
use crate::weather::Weather;

#[derive(Debug)]
pub(crate) struct FairShare {
    plans: Vec<JobPlan>,
    waiting: BTreeMap<Class, BTreeMap<Tenant, BTreeSet<JobId>>>,
    /// How often each tenant was passed over since it was last served.
    passed: BTreeMap<(Class, Tenant), u32>,
}

/// Jobs that any worker may take one as well as the other.
type Class = (i8, String);

/// Turns a tenant may wait while others are served: a few for each of the other three.
const PASSED_MAX: u32 = 12;

impl FairShare {
    pub(crate) fn new(scenario: &Scenario) -> Option<Self> {
        let is_fair = scenario.weather == Weather::Fair;
        is_fair.then(|| FairShare {
            plans: scenario.jobs.clone(),
            waiting: BTreeMap::new(),
            passed: BTreeMap::new(),
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

    /// Someone else who was passed over too often.
    fn starts(&mut self, job: JobId) -> Option<String> {
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
                Record::Accepted { job, .. } => share.waits(job.id),
                Record::Life { job, life } if matches!(life.state, StateRow::Running { .. }) => {
                    starved = share.starts(*job).or(starved);
                }
                _ => {}
            }
        }
        if let Some(what) = starved {
            self.violated(Law::Fair, at, what);
        }
    }
}
