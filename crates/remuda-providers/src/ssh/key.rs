//! The key we log in with: one for all machines, ed25519 and nothing else.

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use russh::keys::ssh_key::LineEnding;
use russh::keys::{Algorithm, PrivateKey};

/// Shared and cheap to copy; its secret part is never shown.
#[derive(Clone)]
pub struct Key {
    private: Arc<PrivateKey>,
    public: String,
}

impl Key {
    /// The key in this file, which is made if there is none. Blocks while it reads.
    pub fn open(path: &Path) -> Result<Key, KeyError> {
        let failed = |source| KeyError::Io { path: path.to_owned(), source };
        if !path.try_exists().map_err(failed)? {
            make(path)?;
        }
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode();
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode: mode & 0o777 });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        Key::parse(&text).ok_or_else(|| KeyError::Unusable { path: path.to_owned() })
    }

    fn parse(text: &str) -> Option<Key> {
        let private = PrivateKey::from_openssh(text).ok()?;
        let is_usable = private.algorithm() == Algorithm::Ed25519 && !private.is_encrypted();
        let public = private.public_key().to_openssh().ok()?;
        is_usable.then(|| Key { private: Arc::new(private), public })
    }

    /// The line that lets it in, as in `authorized_keys`.
    pub fn public(&self) -> &str {
        &self.public
    }

    pub(super) fn private(&self) -> Arc<PrivateKey> {
        Arc::clone(&self.private)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.public).finish()
    }
}

fn make(path: &Path) -> Result<(), KeyError> {
    let failed = |source| KeyError::Io { path: path.to_owned(), source };
    let unmade = |_| KeyError::Unusable { path: path.to_owned() };
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
    // A link does not replace: of two that make it at once the first one's is the key of both.
    let placed = written.and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    });
    drop(fs::remove_file(&draft));
    placed.map_err(failed)
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
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
