//! How many files this process may open, which bounds its connections. The soft limit is usually 1,024, for programs that
//! use `select`; `remuda serve` raises it to the hard one. A program that embeds the plane decides that for itself.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tracing::warn;

/// The store, blobs, logs, webhooks and calls to providers.
const OTHER_FILES: u64 = 512;

/// Raises the soft limit of open files to the hard one.
pub fn raise_open_files_limit() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        warn!(%error, open_files_max = limit.current, "limit of open files not raised");
    }
}

/// `None` if there is no limit.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// How many of these files connections may take.
pub(super) fn for_connections(files: u64) -> usize {
    let others = OTHER_FILES.min(files / 2);
    usize::try_from(files - others).unwrap_or(usize::MAX)
}

/// How many files a plane with so many connections needs.
pub(super) fn needed_for(connections: usize) -> u64 {
    u64::try_from(connections).unwrap_or(u64::MAX).saturating_add(OTHER_FILES)
}
