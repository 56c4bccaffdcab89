//! Clients submit jobs and cancel some. With an idempotency key a client resends after a lost answer, sometimes with a
//! changed body by mistake; without a key it does not, because a resend could create a second job.

use std::collections::{BTreeMap, BTreeSet};

use remuda_core::id::JobId;
use remuda_core::need::Requirements;
use remuda_core::plane::{JobSubmission, KnownKey};
use remuda_core::record::{AcceptedJob, IdempotencyKey};
use remuda_core::time::Timestamp;

use super::World;
use crate::event_queue::SimEvent;
use crate::net::{Caller, ClientResponse, PlaneCall, PlaneRequest};
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;

/// More than any outage of a world can use up.
const SENDS_MAX: u32 = 1000;

impl World<'_> {
    pub(super) fn submit(&mut self, client: usize, is_changed: bool) {
        self.request(client, PlaneRequest::Submit { client, is_changed });
    }

    fn request(&mut self, client: usize, request: PlaneRequest) {
        let id = self.next_call();
        let it = &mut self.clients[client];
        it.sends += 1;
        if it.sends > SENDS_MAX {
            it.is_done = true;
            return;
        }
        it.call = Some(id);
        self.send_from_client(client, PlaneCall { from: Caller::Client(client), id, request });
    }

    pub(super) fn client_timeout(&mut self, client: usize, call: u64) {
        if self.clients[client].call == Some(call) {
            self.clients[client].call = None;
            self.retry_client(client);
        }
    }

    fn retry_client(&mut self, client: usize) {
        let it = &self.clients[client];
        match (it.job, it.is_cancelling) {
            (Some(_), true) => self.request(client, PlaneRequest::Cancel { client }),
            // The answer has arrived already; this retry is not needed.
            (Some(_), false) => {}
            // Without a key the client cannot know whether the job was accepted, and a resend could create a second
            // one.
            (None, _) if !self.scenario.jobs[client].has_key => self.clients[client].is_done = true,
            (None, _) => self.submit(client, false),
        }
    }

    pub(super) fn client_response(&mut self, client: usize, call: u64, response: ClientResponse) {
        if self.clients[client].call != Some(call) {
            return;
        }
        self.clients[client].call = None;
        match response {
            ClientResponse::Accepted { job, created } => self.accepted(client, job, created),
            ClientResponse::Conflict { job } => {
                self.laws.conflict(self.now, client, job, self.clients[client].job);
            }
            ClientResponse::RetryLater => {
                let delay = self.random.between(500, 5000);
                self.at(delay, SimEvent::ClientRetry { client });
            }
            ClientResponse::CancelDone => {
                self.clients[client].is_cancelling = false;
                if let Some(job) = self.clients[client].job {
                    self.laws.cancelled(self.now, job, &self.store);
                }
            }
        }
    }

    pub(super) fn client_retry(&mut self, client: usize) {
        match self.clients[client].job {
            None => self.submit(client, false),
            Some(_) => self.retry_client(client),
        }
    }

    fn accepted(&mut self, client: usize, job: JobId, created: bool) {
        let known = self.clients[client].job.replace(job);
        self.laws.acknowledged(self.now, job, known, created, &self.store);
        self.clients[client].is_done = true;
        if known.is_some() {
            return;
        }
        if let Some(after) = self.scenario.jobs[client].cancel_after {
            self.at(after, SimEvent::ClientCancel { client });
        } else if self.scenario.jobs[client].has_key && self.random.permille(60) {
            let is_changed = self.random.permille(500);
            let delay = self.random.below(60_000);
            self.at(delay, SimEvent::ClientSubmit { client, is_changed });
        }
    }

    pub(super) fn client_cancel(&mut self, client: usize) {
        self.clients[client].is_cancelling = true;
        self.request(client, PlaneRequest::Cancel { client });
    }

    /// The submission as the HTTP layer builds it: the id is drawn here, once per request.
    pub(super) fn submission(
        &mut self,
        client: usize,
        is_changed: bool,
        known: Option<KnownKey>,
    ) -> JobSubmission {
        let serial = self.next_call();
        let id = JobId::from_u128(u128::from(self.now) << 80 | u128::from(serial) << 16 | client as u128);
        let plan = &self.scenario.jobs[client];
        let hash = Scenario::workflow_of(client, is_changed);
        let (mut pin, mut excluded) = (plan.pin.clone(), plan.excluded.iter().cloned().collect());
        let mut options = plan.options.clone();
        match self.sabotage {
            Some(Sabotage::IgnorePins) => (pin, excluded) = (None, BTreeSet::new()),
            Some(Sabotage::IgnorePreferences) => options.preferred = BTreeSet::new(),
            _ => {}
        }
        let zone = plan.zone.map(|zone| ("zone".to_owned(), zone.to_owned()));
        let job = AcceptedJob {
            id,
            accepted_at: Timestamp::ZERO,
            tenant: self.tenant_of(client),
            token: None,
            priority: plan.priority,
            service: plan.service.clone(),
            shape: self.scenario.shape(plan.shape),
            workflow_hash: hash,
            needs: Requirements {
                labels: zone.into_iter().collect(),
                pin,
                excluded,
                ..Requirements::default()
            },
            deadline: None,
            attempts_max: plan.attempts_max,
            options,
            key: plan.has_key.then(|| IdempotencyKey { key: key(client), fingerprint: hash }),
            labels: BTreeMap::new(),
            metadata: serde_json::Map::new(),
        };
        JobSubmission { job, deadline: plan.deadline, known, workflow: self.result.clone(), stored_bytes: 0 }
    }

    /// What the store knows about the client's key, looked up as the HTTP layer does.
    pub(super) fn known(&self, client: usize) -> Option<KnownKey> {
        let plan = self.scenario.jobs.get(client).filter(|plan| plan.has_key)?;
        let (job, fingerprint) = self.store.keys.get(&(plan.tenant.clone(), key(client)))?;
        Some(KnownKey { job: *job, fingerprint: *fingerprint })
    }
}

fn key(client: usize) -> String {
    format!("key-{client}")
}
