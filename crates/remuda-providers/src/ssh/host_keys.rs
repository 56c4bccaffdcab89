//! Host keys. A pod creates its host key when it starts, so it cannot be known in advance; it can only be checked that
//! it stays the same.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::PodId;
use remuda_core::provider::BootstrapError;
use serde::{Deserialize, Serialize};

use super::PodInstance;
use super::stage::Stage;

/// Which host key is accepted.
#[derive(Clone, Debug)]
pub enum HostKeyPolicy {
    /// The first one seen after the pod's start.
    Pinned(Arc<KnownHosts>),
    /// `SHA256:…`, as printed by `ssh-keygen -l`.
    Fingerprint(String),
}

impl HostKeyPolicy {
    /// The expected fingerprint, if it is known.
    pub(super) fn expected(&self, pod: &PodInstance) -> Option<String> {
        match self {
            HostKeyPolicy::Pinned(known) => known.fingerprint(pod),
            HostKeyPolicy::Fingerprint(fingerprint) => Some(fingerprint.clone()),
        }
    }

    pub(super) async fn remember(&self, pod: &PodInstance, fingerprint: &str) -> Result<(), BootstrapError> {
        let HostKeyPolicy::Pinned(known) = self else { return Ok(()) };
        let (known, pod, fingerprint) = (Arc::clone(known), pod.clone(), fingerprint.to_owned());
        let written = tokio::task::spawn_blocking(move || known.remember(&pod, fingerprint)).await;
        // Any other error concerns our own disk, not the machine.
        match written {
            Ok(Err(error @ KnownHostsError::Other { .. })) => Err(Stage::HostKey.failed(error)),
            Ok(written) => written.map_err(|error| Stage::HostKey.not_ready(error)),
            Err(panic) => Err(Stage::HostKey.not_ready(panic)),
        }
    }
}

/// The host keys seen so far, in a file, so that the next process knows them too.
#[derive(Debug)]
pub struct KnownHosts {
    path: PathBuf,
    seen: Mutex<Vec<KnownHost>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KnownHost {
    pod: PodId,
    started: String,
    key: String,
}

impl KnownHost {
    fn matches(&self, pod: &PodInstance) -> bool {
        self.pod == pod.pod && self.started == pod.started
    }
}

/// More pods than any fleet has at a time; the oldest entries are dropped first.
const KNOWN_HOSTS_MAX: usize = 20_000;

impl KnownHosts {
    /// Reads the file; a missing file is empty. Blocks.
    pub fn open(path: &Path) -> Result<KnownHosts, KnownHostsError> {
        let seen = match fs::read(path) {
            Ok(text) => serde_json::from_slice(&text)
                .map_err(|source| KnownHostsError::Unreadable { path: path.to_owned(), source })?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(source) => return Err(KnownHostsError::Io { path: path.to_owned(), source }),
        };
        Ok(KnownHosts { path: path.to_owned(), seen: Mutex::new(seen) })
    }

    fn fingerprint(&self, pod: &PodInstance) -> Option<String> {
        self.seen().iter().find(|seen| seen.matches(pod)).map(|seen| seen.key.clone())
    }

    fn remember(&self, pod: &PodInstance, key: String) -> Result<(), KnownHostsError> {
        let mut seen = self.seen();
        // Another bootstrap may have recorded it since the handshake.
        match seen.iter().find(|seen| seen.matches(pod)) {
            Some(known) if known.key == key => return Ok(()),
            Some(known) => return Err(KnownHostsError::Other { is: key, was: known.key.clone() }),
            None => {}
        }
        seen.push(KnownHost { pod: pod.pod.clone(), started: pod.started.clone(), key });
        let excess = seen.len().saturating_sub(KNOWN_HOSTS_MAX);
        seen.drain(..excess);
        write(&self.path, &seen).map_err(|source| KnownHostsError::Io { path: self.path.clone(), source })
    }

    fn seen(&self) -> MutexGuard<'_, Vec<KnownHost>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn write(path: &Path, seen: &[KnownHost]) -> io::Result<()> {
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
pub enum KnownHostsError {
    #[error("cannot write the known host keys to {path:?}: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("its host key is {is}, but another bootstrap just recorded {was}")]
    Other { is: String, was: String },
    #[error(
        "{path:?} does not hold host keys: {source}. Without it, the keys of running pods are taken on trust once more: \
         move it away if that is acceptable"
    )]
    Unreadable { path: PathBuf, source: serde_json::Error },
}
