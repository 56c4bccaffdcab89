//! The ed25519 key for logins, one for all machines.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};

/// Cheap to clone; the private part is never printed.
#[derive(Clone)]
pub struct SshKey {
    private: Arc<PrivateKey>,
    public: String,
}

impl SshKey {
    /// Reads the key from the file, and creates it if there is none. Blocks.
    pub fn open(path: &Path) -> Result<SshKey, SshKeyError> {
        let failed = |source| SshKeyError::Io { path: path.to_owned(), source };
        if !path.try_exists().map_err(failed)? {
            make(path)?;
        }
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(SshKeyError::Exposed { path: path.to_owned(), mode: mode & 0o777 });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        SshKey::parse(&text).ok_or_else(|| SshKeyError::Unusable { path: path.to_owned() })
    }

    fn parse(text: &str) -> Option<SshKey> {
        let private = PrivateKey::from_openssh(text).ok()?;
        let is_usable = private.algorithm() == Algorithm::Ed25519 && !private.is_encrypted();
        let public = private.public_key().to_openssh().ok()?;
        is_usable.then(|| SshKey { private: Arc::new(private), public })
    }

    /// The line for `authorized_keys`.
    pub fn public(&self) -> &str {
        &self.public
    }

    pub(super) fn private(&self) -> Arc<PrivateKey> {
        Arc::clone(&self.private)
    }
}

impl fmt::Debug for SshKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SshKey").field(&self.public).finish()
    }
}

fn make(path: &Path) -> Result<(), SshKeyError> {
    let failed = |source| SshKeyError::Io { path: path.to_owned(), source };
    let unmade = |_| SshKeyError::Unusable { path: path.to_owned() };
    let mut key =
        PrivateKey::random(&mut russh::keys::key::safe_rng(), Algorithm::Ed25519).map_err(unmade)?;
    key.set_comment("remuda");
    let text = key.to_openssh(LineEnding::LF).map_err(unmade)?;
    if let Some(folder) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
    }
    let draft = path.with_extension(format!("{}.new", std::process::id()));
    let mut file =
        fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    // A hard link does not overwrite: if two processes create the key at once, both use the first one.
    let placed = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    drop(fs::remove_file(&draft));
    placed.map_err(failed)
}

#[derive(Debug, thiserror::Error)]
pub enum SshKeyError {
    #[error("the SSH key {path:?} cannot be read or made: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("others may read the SSH key {path:?} (mode {mode:o}): chmod 600 it")]
    Exposed { path: PathBuf, mode: u32 },
    #[error(
        "{path:?} is not an ed25519 private key in OpenSSH's format and without a passphrase; \
         move it away and one is made"
    )]
    Unusable { path: PathBuf },
}
