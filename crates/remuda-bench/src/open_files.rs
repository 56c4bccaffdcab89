//! The limit on open files, which bounds how many workers one process can play.

use anyhow::{Context as _, ensure};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Each worker is a connection, here and at the plane, which inherits the limit.
pub(crate) fn allow(workers: u64) -> anyhow::Result<()> {
    /// Files, submitters and whatever else is open.
    const OTHERS: u64 = 500;
    let limit = getrlimit(Resource::Nofile);
    let (wanted, most) = (workers + OTHERS, limit.maximum.unwrap_or(u64::MAX));
    ensure!(
        wanted <= most,
        "{workers} workers need {wanted} open files, and {most} are allowed: raise that with `ulimit -Hn`, or give fewer \
         --workers"
    );
    if limit.current.is_some_and(|current| current < wanted) {
        let raised = Rlimit { current: Some(wanted), maximum: limit.maximum };
        setrlimit(Resource::Nofile, raised).context("cannot raise the limit on open files")?;
    }
    Ok(())
}
