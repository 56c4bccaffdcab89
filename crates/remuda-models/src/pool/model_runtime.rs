//! What it takes to run copies of one model, and the answer they are known by.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::process::ChildCommand;
use super::shared::PoolShared;
use super::{process, thread};
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::request::PartAnswer;
use crate::spec::{Isolation, ModelSpec};
use crate::supervisor::CopyId;

pub(crate) struct ModelRuntime {
    pub(super) spec: ModelSpec,
    pub(super) found: ModelInfo,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) prepare: Arc<dyn Prepare>,
    pub(super) child: ChildCommand,
    /// Where the answer to its known question is kept over starts.
    pub(super) golden: Option<PathBuf>,
}

impl ModelRuntime {
    /// A copy's whole life, on its own thread.
    pub(super) fn run(&self, shared: &Arc<PoolShared>, copy: CopyId, beacon: &Beacon) {
        match self.isolation() {
            Isolation::Process => process::run(self, shared, copy, beacon),
            Isolation::Thread | Isolation::Auto => thread::run(self, shared, copy, beacon),
        }
    }

    fn isolation(&self) -> Isolation {
        match self.spec.isolation {
            Isolation::Auto => self.found.isolation,
            chosen @ (Isolation::Thread | Isolation::Process) => chosen,
        }
    }

    /// Known from an earlier start of the same files. What cannot be read is as good as not there.
    pub(super) fn load_reference(&self) -> Option<PartAnswer> {
        let bytes = std::fs::read(self.golden.as_ref()?).ok()?;
        postcard::from_bytes(&bytes).ok()
    }

    pub(super) fn store_reference(&self, answer: &PartAnswer) {
        let Some(path) = &self.golden else { return };
        let bytes = postcard::to_stdvec(answer).map_err(std::io::Error::other);
        let folder = path.parent().unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(folder).and(bytes).and_then(|bytes| {
            // Never half of it: a start in between would find every copy wrong.
            let beside = path.with_extension(format!("{}.part", std::process::id()));
            std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path))
        });
        if let Err(error) = written {
            warn!(path = %path.display(), %error, "the known answer is not kept; the next start begins without one");
        }
    }
}

/// The name under which the answer of these very files is kept. By size and time of change, not by content: a model that
/// was replaced begins anew, and one whose bytes rotted is found out.
pub(super) fn fingerprint(spec: &ModelSpec, found: &ModelInfo) -> String {
    let mut hasher = DefaultHasher::new();
    (found.engine, &found.architecture, found.device, spec.capability, format!("{:?}", spec.precision))
        .hash(&mut hasher);
    for file in &found.files {
        let about = std::fs::metadata(file).ok();
        let changed = about.as_ref().and_then(|about| about.modified().ok());
        (file, about.map(|about| about.len()), changed).hash(&mut hasher);
    }
    format!("{}-{:016x}.golden", found.engine, hasher.finish())
}

impl fmt::Debug for ModelRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelRuntime").field("spec", &self.spec).finish_non_exhaustive()
    }
}
