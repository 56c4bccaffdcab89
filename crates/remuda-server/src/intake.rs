//! The one entry for jobs of every surface: takes a parsed workflow, looks up the idempotency key, touches the named blobs,
//! submits to the plane.

mod attach;

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::id::{BadId, Hash, JobId, Service, Tenant, TokenId};
use remuda_core::need::Requirements;
use remuda_core::options::{JobOptions, RequestedOptions};
use remuda_core::plane::{JobSubmission, KnownKey, PlaneAnswer, PlaneEvent};
use remuda_core::record::{AcceptedJob, IdempotencyKey};
use remuda_core::time::Timestamp;
use remuda_core::workflow::{InvalidWorkflow, Workflow, WorkflowFacts};
use remuda_store::blobs::{BlobError, BlobStore};
use remuda_store::{Store, StoreError};
use serde_json::{Map, Value, json};

pub use self::attach::parse_with_attachments;

use crate::job_secrets::JobSecrets;
use crate::plane_handle::{PlaneError, PlaneHandle};
use crate::webhooks::Policy;
use crate::workflow_cache::WorkflowCache;

/// Metadata is copied into every event of the job, so it must stay small.
const METADATA_BYTES_MAX: usize = 4096;
const KEY_CHARS_MAX: usize = 255;
const LABELS_MAX: usize = 64;
/// Longer than any useful time, and a date that every reader of timestamps understands.
pub const DURATION_MAX: Duration = Duration::from_secs(10 * 365 * 86_400);

/// What is submitted beside the workflow.
#[derive(Clone, Debug)]
pub struct SubmitFields {
    pub tenant: Tenant,
    /// The token of the submission, if one was needed.
    pub token: Option<TokenId>,
    pub priority: i8,
    /// Derived from the workflow if absent.
    pub service: Option<Service>,
    pub needs: Requirements,
    pub deadline: Option<Duration>,
    pub attempts_max: Option<u8>,
    pub options: JobOptions,
    pub idempotency_key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub metadata: Map<String, Value>,
}

impl SubmitFields {
    /// Defaults for everything except the tenant.
    pub fn new(tenant: Tenant) -> SubmitFields {
        SubmitFields {
            tenant,
            token: None,
            priority: 0,
            service: None,
            needs: Requirements::default(),
            deadline: None,
            attempts_max: None,
            options: JobOptions::default(),
            idempotency_key: None,
            labels: BTreeMap::new(),
            metadata: Map::new(),
        }
    }
}

/// A job that was accepted and is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    pub job: JobId,
    /// False if the idempotency key was known; `job` is then the existing job.
    pub created: bool,
}

/// Why a job was not accepted. Nothing was stored, unless the plane says that the outcome is unknown.
#[derive(Debug, thiserror::Error)]
pub enum IntakeError {
    #[error("the workflow is invalid: {0}")]
    Workflow(#[from] InvalidWorkflow),
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Blobs(#[from] BlobError),
    #[error(transparent)]
    Plane(#[from] PlaneError),
}

#[derive(Clone, Debug)]
pub struct Intake {
    pub plane: PlaneHandle,
    pub store: Store,
    pub blobs: BlobStore,
    pub workflows: WorkflowCache,
    pub secrets: JobSecrets,
    /// Allowed webhook targets.
    pub webhooks: Policy,
}

impl Intake {
    pub async fn submit(&self, workflow: Workflow, fields: SubmitFields) -> Result<Submitted, IntakeError> {
        let (workflow, keys, facts) = workflow.into_parts();
        let named = facts.content_hashes.iter().filter_map(|name| name.parse().ok()).collect();
        let (job, deadline, known) = self.prepare(fields, facts).await?;
        let id = job.id;
        // Before acceptance, so that the sweep does not remove blobs of an accepted job.
        self.blobs.touch_all(named, self.plane.clock.now()).await?;
        // Cached before acceptance: the start order may be sent before this call returns.
        self.workflows.insert(id, workflow.clone());
        let stored_bytes = self.stored_bytes(&job.tenant);
        let submission = JobSubmission { job, deadline, known, workflow, stored_bytes };
        if keys.is_empty() {
            // The event is in the inbox after the first poll: a client that disconnects now takes nothing back.
            return commit(&self.plane, submission).await;
        }
        self.secrets.insert(id, keys);
        // Runs to the end even if the client disconnects: only the answer tells whether the keys are still needed.
        let (plane, secrets) = (self.plane.clone(), self.secrets.clone());
        let task = tokio::spawn(async move {
            let submitted = commit(&plane, submission).await;
            if !submitted.as_ref().is_ok_and(|submitted| submitted.created) {
                secrets.remove(id);
            }
            submitted
        });
        task.await.unwrap_or_else(|error| Err(PlaneError::OutcomeUnknown(error.to_string()).into()))
    }

    /// Files, workflows and results of a tenant.
    pub fn stored_bytes(&self, tenant: &Tenant) -> u64 {
        self.store.bytes_of(tenant).saturating_add(self.blobs.bytes_of(tenant))
    }

    async fn prepare(
        &self,
        request: SubmitFields,
        facts: WorkflowFacts,
    ) -> Result<(AcceptedJob, Option<Duration>, Option<KnownKey>), IntakeError> {
        let WorkflowFacts { workflow_hash, body_hash, shape, service, models, classes, .. } = facts;
        check_sizes(&request)?;
        if let Some(webhook) = &request.options.webhook {
            self.webhooks
                .check(&webhook.url)
                .map_err(|why| IntakeError::Invalid(format!("webhook: {why}")))?;
        }
        let service = match request.service.or(service) {
            Some(service) => service,
            // The workflow names no service: use the plainest one.
            None => "exec".parse().map_err(|bad: BadId| IntakeError::Invalid(bad.to_string()))?,
        };
        let mut needs = request.needs;
        needs.models.extend(models);
        needs.classes.extend(classes);
        // Covers all fields, so that the same key with another request is detected.
        let fingerprint = || {
            let fields = (
                body_hash,
                &service,
                request.priority,
                &needs,
                request.deadline,
                &request.metadata,
                &request.options,
                request.attempts_max,
                &request.labels,
            );
            Hash::digest(json!(fields).to_string().as_bytes())
        };
        let (key, known) =
            self.find_known(&request.tenant, request.idempotency_key.as_deref(), fingerprint).await?;
        let job = AcceptedJob {
            id: self.plane.new_job_id(),
            accepted_at: Timestamp::ZERO,
            tenant: request.tenant,
            token: request.token,
            priority: request.priority,
            service,
            shape,
            workflow_hash,
            needs,
            deadline: None,
            attempts_max: request.attempts_max.map(|attempts| attempts.max(1)),
            options: request.options,
            key,
            labels: request.labels,
            metadata: request.metadata,
        };
        Ok((job, request.deadline, known))
    }

    async fn find_known(
        &self,
        tenant: &Tenant,
        key: Option<&str>,
        fingerprint: impl FnOnce() -> Hash,
    ) -> Result<(Option<IdempotencyKey>, Option<KnownKey>), IntakeError> {
        let Some(key) = key else { return Ok((None, None)) };
        if key.is_empty() || key.chars().count() > KEY_CHARS_MAX {
            let message = format!("an idempotency key has 1 to {KEY_CHARS_MAX} characters");
            return Err(IntakeError::Invalid(message));
        }
        let known = self.store.job_by_key(tenant, key).await?;
        let known = known.map(|(job, fingerprint)| KnownKey { job, fingerprint });
        Ok((Some(IdempotencyKey { key: key.to_owned(), fingerprint: fingerprint() }), known))
    }
}

async fn commit(plane: &PlaneHandle, submission: JobSubmission) -> Result<Submitted, IntakeError> {
    match plane.request(PlaneEvent::Submit(Box::new(submission))).await? {
        PlaneAnswer::Accepted { job, created } => Ok(Submitted { job, created }),
        answer => Err(IntakeError::Invalid(format!("unexpected answer of the plane: {answer:?}"))),
    }
}

fn check_sizes(request: &SubmitFields) -> Result<(), IntakeError> {
    let metadata = serde_json::to_string(&request.metadata).map_or(0, |text| text.len());
    if metadata > METADATA_BYTES_MAX {
        return Err(IntakeError::Invalid(format!(
            "metadata has {metadata} bytes; the limit is {METADATA_BYTES_MAX}"
        )));
    }
    if request.deadline.is_some_and(|deadline| deadline > DURATION_MAX) {
        let message = format!("deadline_seconds is more than {} (ten years)", DURATION_MAX.as_secs());
        return Err(IntakeError::Invalid(message));
    }
    if request.labels.len() > LABELS_MAX {
        let labels = request.labels.len();
        return Err(IntakeError::Invalid(format!("{labels} labels; the limit is {LABELS_MAX}")));
    }
    let SubmitFields { needs, options, labels, metadata, .. } = request;
    let asked = RequestedOptions { needs, options, labels, metadata };
    asked.check().map_err(|too_much| IntakeError::Invalid(too_much.to_string()))
}

#[cfg(test)]
mod tests;
