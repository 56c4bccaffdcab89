//! The token that a worker got when it joined, kept for the next process of the same name. A rented machine's own token
//! is valid for a single join, so a restarted worker presents this one instead.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use remuda_core::id::WorkerId;
use remuda_net::secret::Secret;
use tracing::warn;

/// Prefix of the single-use join tokens of rented machines.
const MACHINE_TOKEN_PREFIX: &str = "rmj_";

/// Whether this is the single-use token of a rented machine.
pub(crate) fn is_machine_token(token: &Secret) -> bool {
    token.reveal().starts_with(MACHINE_TOKEN_PREFIX)
}

/// The file with one worker's token, readable only by its owner.
#[derive(Clone, Debug)]
pub(crate) struct CredentialFile(PathBuf);

impl CredentialFile {
    pub(crate) fn new(folder: &Path, worker: &WorkerId) -> CredentialFile {
        CredentialFile(folder.join(format!("{worker}.token")))
    }

    pub(crate) fn read(&self) -> Option<Secret> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        Some(Secret::new(text.trim())).filter(|token| !token.is_empty())
    }

    /// A failure is only logged: the worker can still run, but not join again after a restart.
    pub(crate) fn write(&self, token: &Secret) {
        let write = || -> std::io::Result<()> {
            if let Some(folder) = self.0.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let new = self.0.with_extension("token.new");
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(token.reveal().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(new, &self.0)
        };
        if let Err(error) = write() {
            warn!(%error, path = %self.0.display(), "could not store the worker's token; after a restart it may be unable to join");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn newest_token_is_stored_for_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let file = CredentialFile::new(&folder.path().join("workers"), &"gpu-1".parse().unwrap());
        assert_eq!(file.read(), None);
        for token in ["first", "second"] {
            file.write(&Secret::new(token));
            assert_eq!(file.read(), Some(Secret::new(token)));
        }
        let mode = std::fs::metadata(&file.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
