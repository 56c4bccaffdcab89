//! What a worker was given when it joined, for the next process of its name. A rented machine's own token is good for
//! one join only: whoever comes again shows its ticket.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use remuda_core::id::WorkerId;
use tracing::warn;

use remuda_net::secret::Secret;

/// How the tokens of rented machines begin.
const RENTED: &str = "rmj_";

/// Whether this is a rented machine's own token.
pub(super) fn is_rented(token: &Secret) -> bool {
    token.reveal().starts_with(RENTED)
}

/// Where a ticket is kept; nobody else may read it.
#[derive(Clone, Debug)]
pub(super) struct Drawer(PathBuf);

impl Drawer {
    pub(super) fn new(folder: &Path, worker: &WorkerId) -> Drawer {
        Drawer(folder.join(format!("{worker}.ticket")))
    }

    pub(super) fn open(&self) -> Option<Secret> {
        let text = std::fs::read_to_string(&self.0).ok()?;
        Some(Secret::new(text.trim())).filter(|ticket| !ticket.is_empty())
    }

    /// A ticket that cannot be kept is a restart that cannot join; the worker itself goes on.
    pub(super) fn put(&self, ticket: &Secret) {
        let write = || -> std::io::Result<()> {
            if let Some(folder) = self.0.parent() {
                std::fs::create_dir_all(folder)?;
            }
            let new = self.0.with_extension("ticket.new");
            let mut file =
                OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
            file.write_all(ticket.reveal().as_bytes())?;
            file.sync_all()?;
            std::fs::rename(new, &self.0)
        };
        if let Err(error) = write() {
            warn!(%error, path = %self.0.display(), "the ticket cannot be kept: after a restart this worker cannot join");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_ticket_is_kept_for_its_worker_alone() {
        let folder = tempfile::tempdir().unwrap();
        let drawer = Drawer::new(&folder.path().join("workers"), &"gpu-1".parse().unwrap());
        assert_eq!(drawer.open(), None);
        for ticket in ["first", "second"] {
            drawer.put(&Secret::new(ticket));
            assert_eq!(drawer.open(), Some(Secret::new(ticket)));
        }
        let mode = std::fs::metadata(&drawer.0).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
