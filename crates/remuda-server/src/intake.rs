//! The one way in for jobs, whatever a client speaks: examine, look the key up, want the files it names, ask the plane.

mod attach;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::{BadId, Hash, JobId, Service, Tenant};
use remuda_core::need::Requirements;
use remuda_core::options::{JobOptions, RequestedOptions};
use remuda_core::plane::{Answer, Event, Known, Submission};
use remuda_core::record::IdempotencyKey;
use remuda_core::workflow::{self, ExaminedWorkflow, InvalidWorkflow, WorkflowLimits};
use remuda_store::blobs::{BlobError, BlobHash, Blobs, named_in};
use remuda_store::{Store, StoreError};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::job_secrets::{self, JobSecrets, Keys};
use crate::plane_handle::{PlaneError, PlaneHandle};
use crate::webhooks::Policy;
use crate::workflow_cache::WorkflowCache;

/// Metadata is on every event of the job, so it has to stay small.
const METADATA_BYTES_MAX: usize = 4096;
const KEY_BYTES_MAX: usize = 255;
const LABELS_MAX: usize = 64;

/// What somebody wants to be run, and how.
#[derive(Clone, Debug)]
pub struct Request {
    /// A graph, a graph with what goes with it (`{"prompt": graph, "extra_data": …}`), or any object.
    pub workflow: Arc<RawValue>,
    pub tenant: Tenant,
    pub priority: i8,
    /// By default as the workflow says.
    pub service: Option<Service>,
    pub needs: Requirements,
    pub deadline: Option<Duration>,
    pub attempts_max: Option<u8>,
    pub options: JobOptions,
    /// Files by the name that stands for them in the graph's inputs.
    pub attachments: BTreeMap<String, BlobHash>,
    pub idempotency_key: Option<String>,
    pub labels: BTreeMap<String, String>,
    pub metadata: Map<String, Value>,
    /// Goes with it to the worker and is never stored.
    pub keys: Keys,
}

impl Request {
    /// With nothing asked for but the workflow itself.
    pub fn new(workflow: Arc<RawValue>, tenant: Tenant) -> Request {
        Request {
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

/// A job that was accepted: stored for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken {
    pub job: JobId,
    /// Not, if the key is known: then it is the job of that key.
    pub is_new: bool,
}

/// Why a job was not accepted; nothing of it is stored.
#[derive(Debug, thiserror::Error)]
pub enum NotTaken {
    #[error("the workflow cannot be taken: {0}")]
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
    pub blobs: Blobs,
    pub workflows: WorkflowCache,
    pub secrets: JobSecrets,
    pub limits: WorkflowLimits,
    /// Where webhooks may go.
    pub webhooks: Policy,
}

impl Intake {
    pub async fn take(&self, request: Request) -> Result<Taken, NotTaken> {
        let examined = workflow::examine(request.workflow.get(), &self.limits)?;
        self.take_examined(request, examined).await
    }

    /// As `take`, for whoever had to look at the workflow already.
    pub async fn take_examined(
        &self,
        mut request: Request,
        mut examined: ExaminedWorkflow,
    ) -> Result<Taken, NotTaken> {
        let mut keys = std::mem::take(&mut request.keys);
        if let Some((workflow, found)) = job_secrets::take_out(&request.workflow) {
            examined = workflow::examine(workflow.get(), &self.limits)?;
            request.workflow = workflow;
            keys.extend(found);
        }
        let submission = self.prepare(request, examined).await?;
        let (id, workflow) = (submission.id, submission.workflow.clone());
        // Before it is accepted: what an accepted job names is not cleared away.
        self.blobs.touch_all(named_in(workflow.get()), self.plane.clock.now()).await?;
        // Kept before it is accepted: the order to start it may go out before this answer does.
        self.workflows.insert(id, workflow);
        self.secrets.insert(id, keys);
        // To the end even if whoever asked has hung up: only the answer says whether the keys are still needed.
        let (plane, secrets) = (self.plane.clone(), self.secrets.clone());
        let asked = tokio::spawn(async move {
            let taken = ask(&plane, submission).await;
            if !taken.as_ref().is_ok_and(|taken| taken.is_new) {
                secrets.remove(id);
            }
            taken
        });
        asked.await.unwrap_or(Err(NotTaken::Plane(PlaneError::Stopping)))
    }

    async fn prepare(
        &self,
        mut request: Request,
        mut examined: ExaminedWorkflow,
    ) -> Result<Submission, NotTaken> {
        if !request.attachments.is_empty() {
            request.workflow =
                attach::attach(&request.workflow, &request.attachments).map_err(NotTaken::Invalid)?;
            examined = workflow::examine(request.workflow.get(), &self.limits)?;
        }
        let ExaminedWorkflow { workflow_hash, body_hash, shape, service, models, classes, .. } = examined;
        check_sizes(&request)?;
        if let Some(webhook) = &request.options.webhook {
            self.webhooks.check(&webhook.url).map_err(|why| NotTaken::Invalid(format!("webhook: {why}")))?;
        }
        let service = match request.service.or(service) {
            Some(service) => service,
            // Nothing in it says who should run it: the plainest worker there is.
            None => "exec".parse().map_err(|bad: BadId| NotTaken::Invalid(bad.to_string()))?,
        };
        let mut needs = request.needs;
        needs.models.extend(models);
        needs.classes.extend(classes);
        let mut asked = json!([
            body_hash,
            service,
            request.priority,
            needs,
            request.deadline,
            request.metadata,
            request.options,
            request.attempts_max,
        ])
        .to_string();
        // Without any it is what it was before labels counted: keys that are stored go on being known.
        if !request.labels.is_empty() {
            asked.push_str(&json!(request.labels).to_string());
        }
        // All that was asked for, so that the same key with something else is noticed.
        let fingerprint = Hash::of(asked.as_bytes());
        let (key, known) = self.look_up(&request.tenant, request.idempotency_key, fingerprint).await?;
        Ok(Submission {
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

    async fn look_up(
        &self,
        tenant: &Tenant,
        key: Option<String>,
        fingerprint: Hash,
    ) -> Result<(Option<IdempotencyKey>, Option<Known>), NotTaken> {
        let Some(key) = key else { return Ok((None, None)) };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(NotTaken::Invalid(format!("an idempotency key has 1 to {KEY_BYTES_MAX} bytes")));
        }
        let known = self.store.by_key(tenant, &key).await?;
        let known = known.map(|(job, fingerprint)| Known { job, fingerprint });
        Ok((Some(IdempotencyKey { key, fingerprint }), known))
    }
}

async fn ask(plane: &PlaneHandle, submission: Submission) -> Result<Taken, NotTaken> {
    match plane.request(Event::Submit(Box::new(submission))).await? {
        Answer::Accepted { job, is_new } => Ok(Taken { job, is_new }),
        answer => Err(NotTaken::Invalid(format!("the plane gave an answer to something else: {answer:?}"))),
    }
}

fn check_sizes(request: &Request) -> Result<(), NotTaken> {
    let metadata = serde_json::to_string(&request.metadata).map_or(0, |text| text.len());
    if metadata > METADATA_BYTES_MAX {
        return Err(NotTaken::Invalid(format!(
            "metadata has {metadata} bytes; {METADATA_BYTES_MAX} are the most"
        )));
    }
    if request.labels.len() > LABELS_MAX {
        let labels = request.labels.len();
        return Err(NotTaken::Invalid(format!("{labels} labels; {LABELS_MAX} are the most")));
    }
    let Request { needs, options, labels, metadata, .. } = request;
    let asked = RequestedOptions { needs, options, labels, metadata };
    asked.check().map_err(|too_much| NotTaken::Invalid(too_much.to_string()))
}

#[cfg(test)]
mod tests;
