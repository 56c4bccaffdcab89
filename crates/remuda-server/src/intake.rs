//! The one entry for jobs of every surface: examine the workflow, look up the idempotency key, touch the named blobs, submit to
//! the plane.

mod attach;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::{BadId, Hash, JobId, Service, Tenant};
use remuda_core::need::Requirements;
use remuda_core::options::{JobOptions, RequestedOptions};
use remuda_core::plane::{JobSubmission, KnownKey, PlaneAnswer, PlaneEvent};
use remuda_core::record::IdempotencyKey;
use remuda_core::workflow::{self, ExaminedWorkflow, InvalidWorkflow, WorkflowLimits};
use remuda_store::blobs::{BlobError, BlobHash, BlobStore, find_blob_hashes};
use remuda_store::{Store, StoreError};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::job_secrets::{self, JobSecrets, Keys};
use crate::plane_handle::{PlaneError, PlaneHandle};
use crate::webhooks::Policy;
use crate::workflow_cache::WorkflowCache;

/// Metadata is copied into every event of the job, so it must stay small.
const METADATA_BYTES_MAX: usize = 4096;
const KEY_BYTES_MAX: usize = 255;
const LABELS_MAX: usize = 64;

/// A job to submit.
#[derive(Clone, Debug)]
pub struct SubmitFields {
    /// A graph, a wrapped graph (`{"prompt": graph, "extra_data": …}`), or any other object.
    pub workflow: Arc<RawValue>,
    pub tenant: Tenant,
    pub priority: i8,
    /// Derived from the workflow if absent.
    pub service: Option<Service>,
    pub needs: Requirements,
    pub deadline: Option<Duration>,
    pub attempts_max: Option<u8>,
    pub options: JobOptions,
    /// Files by the name that stands for them in inputs of the graph.
    pub attachments: BTreeMap<String, BlobHash>,
    pub idempotency_key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub metadata: Map<String, Value>,
    /// Sent to the worker with the job and never stored.
    pub keys: Keys,
}

impl SubmitFields {
    /// Defaults for everything except workflow and tenant.
    pub fn new(workflow: Arc<RawValue>, tenant: Tenant) -> SubmitFields {
        SubmitFields {
            workflow,
            tenant,
            priority: 0,
            service: None,
            needs: Requirements::default(),
            deadline: None,
            attempts_max: None,
            options: JobOptions::default(),
            attachments: BTreeMap::new(),
            idempotency_key: None,
            labels: BTreeMap::new(),
            metadata: Map::new(),
            keys: Keys::new(),
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

/// Why a job was not accepted; nothing was stored.
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
    pub limits: WorkflowLimits,
    /// Allowed webhook targets.
    pub webhooks: Policy,
}

impl Intake {
    pub async fn submit(&self, request: SubmitFields) -> Result<Submitted, IntakeError> {
        let examined = workflow::examine(request.workflow.get(), &self.limits)?;
        self.submit_examined(request, examined).await
    }

    /// Like `submit`, for callers that have already examined the workflow.
    pub async fn submit_examined(
        &self,
        mut request: SubmitFields,
        mut examined: ExaminedWorkflow,
    ) -> Result<Submitted, IntakeError> {
        let mut keys = std::mem::take(&mut request.keys);
        if let Some((workflow, found)) = job_secrets::take_out(&request.workflow) {
            examined = workflow::examine(workflow.get(), &self.limits)?;
            request.workflow = workflow;
            keys.extend(found);
        }
        let submission = self.prepare(request, examined).await?;
        let (id, workflow) = (submission.id, submission.workflow.clone());
        // Before acceptance, so that the sweep does not remove blobs of an accepted job.
        self.blobs.touch_all(find_blob_hashes(workflow.get()), self.plane.clock.now()).await?;
        // Cached before acceptance: the start order may be sent before this call returns.
        self.workflows.insert(id, workflow);
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
        task.await.unwrap_or(Err(IntakeError::Plane(PlaneError::Stopping)))
    }

    async fn prepare(
        &self,
        mut request: SubmitFields,
        mut examined: ExaminedWorkflow,
    ) -> Result<JobSubmission, IntakeError> {
        if !request.attachments.is_empty() {
            request.workflow =
                attach::attach(&request.workflow, &request.attachments).map_err(IntakeError::Invalid)?;
            examined = workflow::examine(request.workflow.get(), &self.limits)?;
        }
        let ExaminedWorkflow { workflow_hash, body_hash, shape, service, models, classes, .. } = examined;
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
        Ok(JobSubmission {
            id: self.plane.new_job_id(),
            tenant: request.tenant,
            priority: request.priority,
            service,
            shape,
            workflow_hash,
            needs,
            deadline: request.deadline,
            attempts_max: request.attempts_max.map(|attempts| attempts.max(1)),
            options: request.options,
            key,
            known,
            labels: request.labels,
            metadata: request.metadata,
            workflow: request.workflow,
        })
    }

    async fn find_known(
        &self,
        tenant: &Tenant,
        key: Option<&str>,
        fingerprint: impl FnOnce() -> Hash,
    ) -> Result<(Option<IdempotencyKey>, Option<KnownKey>), IntakeError> {
        let Some(key) = key else { return Ok((None, None)) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(IntakeError::Invalid(format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes")));
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
