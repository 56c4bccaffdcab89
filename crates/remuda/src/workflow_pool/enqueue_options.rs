//! Options of one job.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use remuda_core::id::{Tenant, WorkerId};
use remuda_core::need::Requirements;
use remuda_store::blobs::BlobHash;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::io::AsyncReadExt as _;

use super::{WorkflowPoolError, busy};
use remuda_server::http::Context;
use remuda_server::intake::SubmitFields;

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
#[derive(Clone, Debug, Default)]
pub struct EnqueueOptions {
    tenant: Option<Tenant>,
    priority: i8,
    needs: Requirements,
    deadline: Option<Duration>,
    attempts_max: Option<u8>,
    options: remuda_core::options::JobOptions,
    key: Option<String>,
    metadata: Map<String, Value>,
    files: BTreeMap<String, AttachmentContent>,
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
        self.priority = priority;
        self
    }

    /// The job's tenant; servers are shared fairly between tenants.
    pub fn tenant(mut self, tenant: Tenant) -> EnqueueOptions {
        self.tenant = Some(tenant);
        self
    }

    /// How many attempts may fail through the job's own fault. Failures of servers do not count.
    pub fn max_attempts(mut self, attempts: u8) -> EnqueueOptions {
        self.attempts_max = Some(attempts);
        self
    }

    /// Waits this long before every retry, instead of doubling the delay.
    pub fn retry_delay(mut self, delay: Duration) -> EnqueueOptions {
        self.options.retry_delay = Some(delay);
        self
    }

    /// The job fails if it has not ended within this time.
    pub fn deadline(mut self, within: Duration) -> EnqueueOptions {
        self.deadline = Some(within);
        self
    }

    /// Uses this worker first while it is free, others otherwise.
    pub fn prefer(mut self, worker: WorkerId) -> EnqueueOptions {
        self.options.preferred.insert(worker);
        self
    }

    pub fn exclude(mut self, worker: WorkerId) -> EnqueueOptions {
        self.needs.excluded.insert(worker);
        self
    }

    /// Runs the job only on this worker, however long it has to wait.
    pub fn pin(mut self, worker: WorkerId) -> EnqueueOptions {
        self.needs.pin = Some(worker);
        self
    }

    /// Returns only the outputs of these nodes; by default those of all.
    pub fn include_outputs(mut self, nodes: impl IntoIterator<Item = impl Into<String>>) -> EnqueueOptions {
        self.options.include_outputs = nodes.into_iter().map(Into::into).collect::<BTreeSet<_>>();
        self
    }

    /// How long an attempt may take from its dispatch until its server starts it.
    pub fn start_limit(mut self, limit: Duration) -> EnqueueOptions {
        self.options.start_limit = Some(limit);
        self
    }

    /// How long a started attempt may make no progress.
    pub fn node_limit(mut self, limit: Duration) -> EnqueueOptions {
        self.options.node_limit = Some(limit);
        self
    }

    /// Enqueueing the same key again returns the same job.
    pub fn idempotency_key(mut self, key: impl Into<String>) -> EnqueueOptions {
        self.key = Some(key.into());
        self
    }

    /// Returned with every event of the job; at most 4096 bytes of JSON in total.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<Value>) -> EnqueueOptions {
        self.metadata.insert(name.into(), value.into());
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

    /// Stores the attachments and builds the request to the plane.
    pub(super) async fn request(
        self,
        workflow: Arc<RawValue>,
        context: &Context,
    ) -> Result<SubmitFields, WorkflowPoolError> {
        let tenant = match self.tenant {
            Some(tenant) => tenant,
            None => "default".parse().map_err(|bad| WorkflowPoolError::Invalid(format!("{bad}")))?,
        };
        let mut request = SubmitFields::new(workflow, tenant);
        for (name, content) in self.files {
            let hash = content.store(&name, context).await?;
            request.attachments.insert(name, hash);
        }
        request.priority = self.priority;
        request.needs = self.needs;
        request.deadline = self.deadline;
        request.attempts_max = self.attempts_max;
        request.options = self.options;
        request.idempotency_key = self.key;
        request.metadata = self.metadata;
        Ok(request)
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
