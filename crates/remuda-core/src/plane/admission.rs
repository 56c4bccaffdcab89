//! Whether anyone could ever run a job, asked once, when it is submitted. A job whose model file or node class no worker
//! has, and no fleet could bring, is refused, as ComfyUI does it: its submitter learns of a misspelt name at once. A job that
//! says it waits for the capability is accepted, and so is every job while no worker of its service is known.
//!
//! Only models and classes count. Labels, pins and memory are an operator's matter: such a job waits with its reason.

use std::collections::BTreeSet;

use super::Plane;
use crate::fleet::FleetSettings;
use crate::id::Service;
use crate::machine::WorkerState;
use crate::need::Requirements;
use crate::queue::Demand;
use crate::record::AcceptedJob;
use crate::refusal::Refusal;
use crate::worker::Worker;

/// Names in a refusal; the rest are counted.
const NAMES_MAX: usize = 8;

impl Plane {
    pub(super) fn admit(&self, job: &AcceptedJob) -> Result<(), Refusal> {
        let needs = &job.needs;
        let needs_nothing = needs.models.is_empty() && needs.classes.is_empty();
        if needs_nothing || job.options.wait_for_capability {
            return Ok(());
        }
        let mut is_known = false;
        for worker in self.workers_of(&job.service) {
            is_known = true;
            if needs.lacking(&worker.offer).is_none() {
                return Ok(());
            }
        }
        let demand = Demand::new(job.service.clone(), needs.clone());
        let could_come =
            || self.settings.fleets.iter().any(|fleet| may_grow(fleet) && self.could_run(fleet, &demand));
        if !is_known || could_come() {
            return Ok(());
        }
        Err(self.missing_capability(&job.service, needs))
    }

    /// Whether a worker may have, or come with, models and classes that no worker lists: one that lists none, or a fleet of
    /// which no worker was seen yet.
    pub fn may_gain_capabilities(&self, service: &Service) -> bool {
        let is_silent = |worker: &Worker| worker.offer.models.is_none() || worker.offer.classes.is_none();
        let is_unseen =
            |fleet: &FleetSettings| self.workers.iter().all(|it| it.fleet.as_ref() != Some(&fleet.id));
        let serves = |fleet: &FleetSettings| fleet.services.is_empty() || fleet.services.contains(service);
        self.workers_of(service).any(is_silent)
            || self.settings.fleets.iter().any(|fleet| may_grow(fleet) && serves(fleet) && is_unseen(fleet))
    }

    /// Workers that offer a service and are not about to leave.
    pub fn workers_of(&self, service: &Service) -> impl Iterator<Item = &Worker> {
        self.workers.iter().filter(move |worker| {
            worker.services.contains(service)
                && matches!(worker.state(), WorkerState::Spawning | WorkerState::Active)
        })
    }

    fn missing_capability(&self, service: &Service, needs: &Requirements) -> Refusal {
        let nowhere = |names: &BTreeSet<String>, listed: fn(&Worker) -> Option<&BTreeSet<String>>| {
            let has = |name: &String| {
                self.workers_of(service).any(|it| listed(it).is_none_or(|listed| listed.contains(name)))
            };
            names.iter().filter(|name| !has(name)).take(NAMES_MAX).cloned().collect::<BTreeSet<_>>()
        };
        Refusal::NoCapability {
            models: nowhere(&needs.models, |worker| worker.offer.models.as_ref()),
            classes: nowhere(&needs.classes, |worker| worker.offer.classes.as_ref()),
        }
    }
}

/// Whether machines of this fleet may still join: rented ones, or those of a list.
fn may_grow(fleet: &FleetSettings) -> bool {
    !fleet.can_rent || fleet.scaling.machines_max > 0
}
