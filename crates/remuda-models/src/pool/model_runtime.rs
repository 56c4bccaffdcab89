//! Everything needed to run copies of one model, and the file of its golden answer.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tracing::warn;

use super::shared::PoolShared;
use super::{process, thread};
use crate::backend::{Backend, ModelInfo, Prepare};
use crate::beacon::Beacon;
use crate::child_command::ChildCommand;
use crate::request::PartAnswer;
use crate::spec::{Isolation, ModelSpec};
use crate::supervisor::CopyId;

pub(crate) struct ModelRuntime {
    pub(super) spec: ModelSpec,
    pub(super) found: ModelInfo,
    pub(super) backend: Arc<dyn Backend>,
    pub(super) prepare: Arc<dyn Prepare>,
    pub(super) child: ChildCommand,
    /// Where the golden answer is stored between starts.
    pub(super) golden: Option<PathBuf>,
}

impl ModelRuntime {
    /// Runs a copy on the current thread until it ends.
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

    /// The golden answer of an earlier start with the same files. An unreadable file counts as missing.
    pub(super) fn load_reference(&self) -> Option<PartAnswer> {
        let bytes = std::fs::read(self.golden.as_ref()?).ok()?;
        postcard::from_bytes(&bytes).ok()
    }

    pub(super) fn store_reference(&self, answer: &PartAnswer) {
        let Some(path) = &self.golden else { return };
        let bytes = postcard::to_stdvec(answer).map_err(std::io::Error::other);
        let folder = path.parent().unwrap_or(Path::new("."));
        let written = std::fs::create_dir_all(folder).and(bytes).and_then(|bytes| {
            // Written atomically: half a file would make every copy of the next start look wrong.
            let beside = path.with_extension(format!("{}.part", std::process::id()));
            std::fs::write(&beside, bytes).and_then(|()| std::fs::rename(&beside, path))
        });
        if let Err(error) = written {
            warn!(path = %path.display(), %error, "storing the golden answer failed; the next start has none");
        }
    }
}

/// The file name of the golden answer for these files. Derived from size and modification time, not from content: a
/// replaced model gets a new answer, and silent corruption of the bytes is detected.
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
