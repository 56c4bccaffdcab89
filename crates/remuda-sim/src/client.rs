//! Those who submit: with keys, which they send again when an answer got lost, sometimes with another body by mistake;
//! without keys; and some change their minds.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::{Hash, JobId};
use remuda_core::need::Requirements;
use remuda_core::plane::{Known, Submission};
use remuda_core::record::IdempotencyKey;

use crate::happening::Happening;
use crate::net::{Ask, Call, Caller};
use crate::sabotage::Sabotage;
use crate::world::World;

#[derive(Clone, Debug, Default)]
pub(crate) struct Client {
    /// The job it was told it has.
    pub(crate) job: Option<JobId>,
    call: Option<u64>,
    tries: u32,
    is_cancelling: bool,
    pub(crate) is_done: bool,
}

/// What a client hears.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told {
    Accepted { job: JobId, is_new: bool },
    Conflict { job: JobId },
    TryLater,
    CancelDone,
}

/// More tries than any outage of a world can use up.
const TRIES_MAX: u32 = 1000;

/// The client behind a job: its number is in the id.
pub(crate) fn of(job: JobId) -> usize {
    (job.as_u128() & 0xffff) as usize
}

impl World<'_> {
    pub(crate) fn submit(&mut self, client: usize, is_changed: bool) {
        self.ask(client, Ask::Submit { client, is_changed });
    }

    fn ask(&mut self, client: usize, ask: Ask) {
        let id = self.next_call();
        let it = &mut self.clients[client];
        it.tries += 1;
        if it.tries > TRIES_MAX {
            it.is_done = true;
            return;
        }
        it.call = Some(id);
        self.client_sends(client, Call { from: Caller::Client(client), id, ask });
    }

    pub(crate) fn client_gave_up(&mut self, client: usize, call: u64) {
        if self.clients[client].call == Some(call) {
            self.clients[client].call = None;
            self.try_again(client);
        }
    }

    fn try_again(&mut self, client: usize) {
        let it = &self.clients[client];
        match (it.job, it.is_cancelling) {
            (Some(_), true) => self.ask(client, Ask::Cancel { client }),
            // It was told already; the question was one too many.
            (Some(_), false) => {}
            // Without a key nobody knows whether it was accepted: sending it again might make it two.
            (None, _) if !self.scene.jobs[client].has_key => self.clients[client].is_done = true,
            (None, _) => self.submit(client, false),
        }
    }

    pub(crate) fn told_client(&mut self, client: usize, call: u64, told: Told) {
        if self.clients[client].call != Some(call) {
            return;
        }
        self.clients[client].call = None;
        match told {
            Told::Accepted { job, is_new } => self.accepted(client, job, is_new),
            Told::Conflict { job } => self.laws.conflict(self.now, client, job, self.clients[client].job),
            Told::TryLater => {
                let delay = self.random.between(500, 5000);
                self.at(delay, Happening::TryAgain { client });
            }
            Told::CancelDone => {
                self.clients[client].is_cancelling = false;
                if let Some(job) = self.clients[client].job {
                    self.laws.cancelled(self.now, job, &self.store);
                }
            }
        }
    }

    pub(crate) fn client_tries_again(&mut self, client: usize) {
        match self.clients[client].job {
            None => self.submit(client, false),
            Some(_) => self.try_again(client),
        }
    }

    fn accepted(&mut self, client: usize, job: JobId, is_new: bool) {
        let known = self.clients[client].job.replace(job);
        self.laws.acknowledged(self.now, job, known, is_new, &self.store);
        self.clients[client].is_done = true;
        if known.is_some() {
            return;
        }
        if let Some(after) = self.scene.jobs[client].cancel_after {
            self.at(after, Happening::ChangeMind { client });
        } else if self.scene.jobs[client].has_key && self.random.permille(60) {
            let is_changed = self.random.permille(500);
            let delay = self.random.below(60_000);
            self.at(delay, Happening::Submit { client, is_changed });
        }
    }

    pub(crate) fn change_mind(&mut self, client: usize) {
        self.clients[client].is_cancelling = true;
        self.ask(client, Ask::Cancel { client });
    }

    /// What the plane's front door makes of a submission: the id is drawn here, once for each request.
    pub(crate) fn submission(&mut self, client: usize, is_changed: bool, known: Option<Known>) -> Submission {
        let serial = self.next_call();
        let id = JobId::from_u128(u128::from(self.now) << 80 | u128::from(serial) << 16 | client as u128);
        let plan = &self.scene.jobs[client];
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&(client as u64).to_be_bytes());
        hash[8] = u8::from(is_changed);
        let (mut pin, mut excluded) = (plan.pin.clone(), plan.excluded.iter().cloned().collect());
        let mut options = plan.options.clone();
        match self.sabotage {
            Some(Sabotage::IgnorePins) => (pin, excluded) = (None, BTreeSet::new()),
            Some(Sabotage::IgnorePreferences) => options.preferred = BTreeSet::new(),
            _ => {}
        }
        let zone = plan.zone.map(|zone| ("zone".to_owned(), zone.to_owned()));
        Submission {
            id,
            tenant: self.tenant_of(client),
            priority: plan.priority,
            service: plan.service.clone(),
            shape: self.scene.shape(plan.shape),
            workflow_hash: Hash::from_bytes(hash),
            needs: Requirements {
                labels: zone.into_iter().collect(),
                pin,
                excluded,
                ..Requirements::default()
            },
            deadline: plan.deadline,
            attempts_max: plan.attempts_max,
            options,
            key: plan
                .has_key
                .then(|| IdempotencyKey { key: key(client), fingerprint: Hash::from_bytes(hash) }),
            known,
            labels: BTreeMap::new(),
            metadata: serde_json::Map::new(),
            workflow: self.result.clone(),
        }
    }

    /// What the store says about the client's key, as the front door asks it.
    pub(crate) fn known(&self, client: usize) -> Option<Known> {
        let plan = self.scene.jobs.get(client).filter(|plan| plan.has_key)?;
        let (job, fingerprint) = self.store.keys.get(&(plan.tenant.clone(), key(client)))?;
        Some(Known { job: *job, fingerprint: *fingerprint })
    }
}

fn key(client: usize) -> String {
    format!("key-{client}")
}
