//! How many connections each class may have, as far as this process may open files.

use remuda_config::ServeSettings;
use tracing::warn;

use super::super::open_files;

/// Connections that have not sent a request yet. A client needs one for a round trip or two.
pub(super) const UNPROVEN_MAX: usize = 1024;
/// Only for admins, when clients have taken theirs.
const ADMINS_MAX: usize = 64;

/// How many connections of each class may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ConnectionShares {
    pub(super) unproven: usize,
    pub(super) clients: usize,
    pub(super) workers: usize,
    pub(super) admins: usize,
}

impl ConnectionShares {
    /// As configured, and scaled down to the files that this process may open.
    pub(super) fn new(settings: &ServeSettings, files: Option<u64>) -> ConnectionShares {
        let wanted = ConnectionShares {
            unproven: UNPROVEN_MAX,
            clients: settings.connections_max,
            workers: settings.worker_connections_max,
            admins: ADMINS_MAX,
        };
        let Some(left) = files.map(open_files::for_connections) else { return wanted };
        let total = wanted.total();
        if total <= left {
            return wanted;
        }
        let scaled = |share: usize| (share * left / total).max(2);
        let shares = ConnectionShares {
            unproven: scaled(wanted.unproven),
            clients: scaled(wanted.clients),
            workers: scaled(wanted.workers),
            admins: scaled(wanted.admins),
        };
        warn!(
            open_files_max = files,
            clients = shares.clients,
            workers = shares.workers,
            "too few open files for {total} connections; raise the hard limit (`ulimit -Hn`, LimitNOFILE=) to {}",
            open_files::needed_for(total)
        );
        shares
    }

    pub(super) fn total(&self) -> usize {
        self.unproven + self.clients + self.workers + self.admins
    }
}
