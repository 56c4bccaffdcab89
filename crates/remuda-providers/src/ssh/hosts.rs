//! Which machine is the one we mean. A pod makes its host key when it starts, so nobody can know it before; what can be
//! known is that it is still the same one.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::PodId;
use remuda_core::provider::BootstrapError;
use serde::{Deserialize, Serialize};

use super::PodKey;
use super::stage::Stage;

/// Which host key is the right one.
#[derive(Clone, Debug)]
pub enum HostKey {
    /// The first that a pod had after its start.
    Pinned(Arc<HostKeys>),
    /// `SHA256:…`, as `ssh-keygen -l` tells it.
    Fingerprint(String),
}

impl HostKey {
    /// The one it must be, if that is known by now.
    pub(super) fn expected(&self, pod: &PodKey) -> Option<String> {
        match self {
            HostKey::Pinned(known) => known.fingerprint(pod),
            HostKey::Fingerprint(fingerprint) => Some(fingerprint.clone()),
        }
    }

    pub(super) async fn remember(&self, pod: &PodKey, fingerprint: &str) -> Result<(), BootstrapError> {
        let HostKey::Pinned(known) = self else { return Ok(()) };
        let (known, pod, fingerprint) = (Arc::clone(known), pod.clone(), fingerprint.to_owned());
        let written = tokio::task::spawn_blocking(move || known.remember(&pod, fingerprint)).await;
        // What else can go wrong is our own disk's fault, not the machine's.
        match written {
            Ok(Err(error @ HostKeysError::Other { .. })) => Err(Stage::HostKey.failed(error)),
            Ok(written) => written.map_err(|error| Stage::HostKey.early(error)),
            Err(panic) => Err(Stage::HostKey.early(panic)),
        }
    }
}

/// The host keys seen so far, in a file: whoever takes over from this process knows them too.
#[derive(Debug)]
pub struct HostKeys {
    path: PathBuf,
    seen: Mutex<Vec<Seen>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Seen {
    pod: PodId,
    started: String,
    key: String,
}

impl Seen {
    fn is_of(&self, pod: &PodKey) -> bool {
        self.pod == pod.pod && self.started == pod.started
    }
}

/// More pods than any fleet has at a time; the oldest are forgotten first.
const SEEN_MAX: usize = 20_000;

impl HostKeys {
    /// What the file knows; one that is not there knows nothing. Blocks while it reads.
    pub fn open(path: &Path) -> Result<HostKeys, HostKeysError> {
        let seen = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|source| HostKeysError::Unreadable { path: path.to_owned(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(HostKeysError::Io { path: path.to_owned(), source }),
        };
        Ok(HostKeys { path: path.to_owned(), seen: Mutex::new(seen) })
    }

    fn fingerprint(&self, pod: &PodKey) -> Option<String> {
        self.seen().iter().find(|seen| seen.is_of(pod)).map(|seen| seen.key.clone())
    }

    fn remember(&self, pod: &PodKey, key: String) -> Result<(), HostKeysError> {
        let mut seen = self.seen();
        // Somebody may have been there since the connection was made.
        match seen.iter().find(|seen| seen.is_of(pod)) {
            Some(known) if known.key == key => return Ok(()),
            Some(known) => return Err(HostKeysError::Other { is: key, was: known.key.clone() }),
            None => {}
        }
        seen.push(Seen { pod: pod.pod.clone(), started: pod.started.clone(), key });
        let excess = seen.len().saturating_sub(SEEN_MAX);
        seen.drain(..excess);
        write(&self.path, &seen).map_err(|source| HostKeysError::Io { path: self.path.clone(), source })
    }

    fn seen(&self) -> MutexGuard<'_, Vec<Seen>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(path: &Path, seen: &[Seen]) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    }
    let draft = path.with_extension("new");
    let mut file = fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    file.write_all(&serde_json::to_vec_pretty(seen)?)?;
    file.sync_all()?;
    fs::rename(&draft, path)
}

#[derive(Debug, thiserror::Error)]
pub enum HostKeysError {
    #[error("the host keys seen so far cannot be kept in {path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("its host key is {is} and was {was} for somebody else just now")]
    Other { is: String, was: String },
    #[error(
        "{path:?} does not hold host keys: {source}. Without it, the keys of running pods are taken on trust once more: \
         move it away if that is acceptable"
    )]
    Unreadable { path: PathBuf, source: serde_json::Error },
}
