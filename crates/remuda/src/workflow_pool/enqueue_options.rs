//! Options of one job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use remuda_core::id::{Tenant, WorkerId};
use remuda_core::workflow::Workflow;
use remuda_store::blobs::BlobHash;
use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::AsyncReadExt as _;

use super::{WorkflowPoolError, busy};
use remuda_server::http::Context;
use remuda_server::intake::{SubmitFields, parse_with_attachments};

/// A file is read in pieces of this size.
const PIECE_BYTES: usize = 256 << 10;

/// Options of one job; what is not set follows the pool's settings.
///
/// ```
/// # use remuda::EnqueueOptions;
/// # use std::time::Duration;
/// let options = EnqueueOptions::new()
///     .priority(5)
///     .max_attempts(2)
///     .deadline(Duration::from_secs(600))
///     .metadata("user", "anna")
///     .attach("photo.png", std::path::Path::new("holiday/42.png"));
/// ```
#[derive(Clone, Debug)]
pub struct EnqueueOptions {
    fields: SubmitFields,
    files: BTreeMap<String, AttachmentContent>,
}

impl Default for EnqueueOptions {
    fn default() -> Self {
        let tenant = "default".parse().expect("a plain word is a tenant");
        EnqueueOptions { fields: SubmitFields::new(tenant), files: BTreeMap::new() }
    }
}

/// The content of a file that is attached to a job.
#[derive(Clone, Debug)]
pub enum AttachmentContent {
    Bytes(Bytes),
    File(PathBuf),
}

impl EnqueueOptions {
    pub fn new() -> EnqueueOptions {
        EnqueueOptions::default()
    }

    /// From -128 to 127; higher runs first.
    pub fn priority(mut self, priority: i8) -> EnqueueOptions {
        self.fields.priority = priority;
        self
    }

    /// The job's tenant; servers are shared fairly between tenants.
    pub fn tenant(mut self, tenant: Tenant) -> EnqueueOptions {
        self.fields.tenant = tenant;
        self
    }

    /// How many attempts may fail through the job's own fault. Failures of servers do not count.
    pub fn max_attempts(mut self, attempts: u8) -> EnqueueOptions {
        self.fields.attempts_max = Some(attempts);
        self
    }

    /// Waits this long before every retry, instead of doubling the delay.
    pub fn retry_delay(mut self, delay: Duration) -> EnqueueOptions {
        self.fields.options.retry_delay = Some(delay);
        self
    }

    /// The job fails if it has not ended within this time.
    pub fn deadline(mut self, within: Duration) -> EnqueueOptions {
        self.fields.deadline = Some(within);
        self
    }

    /// Accepts the job even if no worker has its models and node classes, and no fleet could bring them; it waits.
    pub fn wait_for_capability(mut self) -> EnqueueOptions {
        self.fields.options.wait_for_capability = true;
        self
    }

    /// Uses this worker first while it is free, others otherwise.
    pub fn prefer(mut self, worker: WorkerId) -> EnqueueOptions {
        self.fields.options.preferred.insert(worker);
        self
    }

    pub fn exclude(mut self, worker: WorkerId) -> EnqueueOptions {
        self.fields.needs.excluded.insert(worker);
        self
    }

    /// Runs the job only on this worker, however long it has to wait.
    pub fn pin(mut self, worker: WorkerId) -> EnqueueOptions {
        self.fields.needs.pin = Some(worker);
        self
    }

    /// Returns only the outputs of these nodes; by default those of all.
    pub fn include_outputs(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> EnqueueOptions {
        self.fields.options.include_outputs = nodes.into_iter().map(Into::into).collect::<BTreeSet<_>>();
        self
    }

    /// How long an attempt may take from its dispatch until its server starts it.
    pub fn start_limit(mut self, limit: Duration) -> EnqueueOptions {
        self.fields.options.start_limit = Some(limit);
        self
    }

    /// How long a started attempt may make no progress.
    pub fn node_limit(mut self, limit: Duration) -> EnqueueOptions {
        self.fields.options.node_limit = Some(limit);
        self
    }

    /// Enqueueing the same key again returns the same job. Without one, the job gets a random key.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> EnqueueOptions {
        self.fields.idempotency_key = Some(key.into());
        self
    }

    /// Returned with every event of the job; at most 4096 bytes of JSON in total.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> EnqueueOptions {
        self.fields.metadata.insert(name.into(), value.into());
        self
    }

    /// Attaches a file: every input of the graph with the value `name` (`"image": "photo.png"`) refers to it.
    pub fn attach(
        mut self,
        name: impl Into<String>,
        content: impl Into<AttachmentContent>,
    ) -> EnqueueOptions {
        self.files.insert(name.into(), content.into());
        self
    }

    /// Stores the attachments and parses the workflow that names them.
    pub(super) async fn parse(
        self,
        workflow: Box<RawValue>,
        context: &Context,
    ) -> Result<(Workflow, SubmitFields), WorkflowPoolError> {
        let mut attachments = BTreeMap::new();
        for (name, content) in self.files {
            let hash = content.store(&name, context).await?;
            attachments.insert(name, hash);
        }
        let workflow = parse_with_attachments(workflow, &attachments, &context.limits, None)?;
        let mut fields = self.fields;
        // Every job has a key, so that a call whose outcome is unknown can be repeated.
        fields.idempotency_key.get_or_insert_with(|| uuid::Uuid::new_v4().to_string());
        Ok((workflow, fields))
    }
}

impl AttachmentContent {
    async fn store(self, name: &str, context: &Context) -> Result<BlobHash, WorkflowPoolError> {
        let mut upload = context.blobs.begin_upload().await.map_err(busy)?;
        match self {
            AttachmentContent::Bytes(bytes) => upload = upload.write(&bytes).await.map_err(busy)?,
            AttachmentContent::File(path) => {
                let unreadable = |error: std::io::Error| {
                    WorkflowPoolError::Invalid(format!(
                        "attachment {name:?}: {} cannot be read: {error}",
                        path.display()
                    ))
                };
                let mut file = tokio::fs::File::open(&path).await.map_err(unreadable)?;
                let mut piece = vec![0; PIECE_BYTES];
                loop {
                    let read = file.read(&mut piece).await.map_err(unreadable)?;
                    if read == 0 {
                        break;
                    }
                    upload = upload.write(&piece[..read]).await.map_err(busy)?;
                }
            }
        }
        let stored = upload.finish(None, context.plane.clock.now()).await.map_err(busy)?;
        Ok(stored.hash)
    }
}

impl From<Bytes> for AttachmentContent {
    fn from(bytes: Bytes) -> Self {
        AttachmentContent::Bytes(bytes)
    }
}

impl From<Vec<u8>> for AttachmentContent {
    fn from(bytes: Vec<u8>) -> Self {
        AttachmentContent::Bytes(bytes.into())
    }
}

impl From<&Path> for AttachmentContent {
    fn from(path: &Path) -> Self {
        AttachmentContent::File(path.to_owned())
    }
}

impl From<PathBuf> for AttachmentContent {
    fn from(path: PathBuf) -> Self {
        AttachmentContent::File(path)
    }
}
