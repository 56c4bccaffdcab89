//! Stops a pod: SIGTERM at once, then a background task waits and kills it if necessary. If the plane is killed
//! meanwhile, the record stays and the next return starts again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::PodId;
use remuda_core::provider::{ProviderError, ProviderErrorClass};
use rustix::process::Signal;
use tracing::{info, warn};

use super::identity::{self, ProcessIdentity};
use super::records::Record;
use super::{MARK, Shared};

/// How often a stopping pod is checked.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// The kernel ends a killed process at once, unless it hangs in a device; then the return can be repeated.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends SIGTERM and starts the task that waits for the end.
pub(super) fn begin(shared: &Arc<Shared>, id: PodId) -> Result<(), ProviderError> {
    let mut turn = shared.lock();
    let found = shared.records.read(&id).map_err(|error| shared.failed(&error))?;
    let Some(mut record) = found else {
        return Err(ProviderError::new(ProviderErrorClass::NotFound, format!("there is no pod {id}")));
    };
    if !turn.stopping.insert(id.clone()) {
        return Ok(());
    }
    if let Err(error) = shared.status(&mut record) {
        turn.stopping.remove(&id);
        return Err(shared.failed(&error));
    }
    if let Some(process) = &record.process {
        process.send(Signal::TERM);
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if let Err(error) = end(&shared, &record).await {
            warn!(%error, pod = %id, "cannot see a pod to its end; it stays in the list until it is given back again");
        }
        shared.lock().stopping.remove(&id);
    });
    Ok(())
}

async fn end(shared: &Shared, record: &Record) -> io::Result<()> {
    let process = record.process.as_ref();
    let gone = async {
        let mut looks = tokio::time::interval(POLL_EVERY);
        while process.is_some_and(ProcessIdentity::is_alive) {
            looks.tick().await;
        }
    };
    if tokio::time::timeout(shared.settings.stop_grace, gone).await.is_err() {
        info!(pod = %record.id, "a pod did not end by itself: killing it");
        if let Some(process) = process {
            process.send(Signal::KILL);
        }
    }
    // Its children may have left the process group; nothing of the pod may stay.
    let swept = async {
        let mut looks = tokio::time::interval(POLL_EVERY);
        while identity::kill_marked(MARK, &record.mark)? || process.is_some_and(ProcessIdentity::is_unreaped)
        {
            looks.tick().await;
        }
        Ok::<(), io::Error>(())
    };
    match tokio::time::timeout(KILL_TIMEOUT, swept).await {
        Ok(swept) => swept?,
        Err(_) => return Err(io::Error::other("it was killed and is still there")),
    }
    shared.records.remove(&record.id)
}
