//! The end of a pod. It is asked to go at once; whether it went is seen to while everybody else goes on. A plane that is
//! killed meanwhile leaves the record behind, and the next one asks again.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::id::PodId;
use remuda_core::provider::{ProviderError, ProviderErrorClass};
use rustix::process::Signal;
use tracing::{info, warn};

use super::alive::{self, Life};
use super::records::Record;
use super::{MARK, Shared};

/// How often a pod that was told to end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The kernel ends a killed process at once, unless it hangs in a device; then it may be asked for again.
const KILL_MAX: Duration = Duration::from_secs(5);

/// Asks for the end of a pod, and for somebody to see to it.
pub(super) fn begin(shared: &Arc<Shared>, id: PodId) -> Result<(), ProviderError> {
    let mut turn = shared.turn();
    let found = shared.records.read(&id).map_err(|error| shared.failed(&error))?;
    let Some(mut record) = found else {
        return Err(ProviderError::new(ProviderErrorClass::NotFound, format!("there is no pod {id}")));
    };
    if !turn.ending.insert(id.clone()) {
        return Ok(());
    }
    if let Err(error) = shared.look(&mut record) {
        turn.ending.remove(&id);
        return Err(shared.failed(&error));
    }
    if let Some(life) = &record.life {
        life.send(Signal::TERM);
    }
    let shared = Arc::clone(shared);
    tokio::spawn(async move {
        if let Err(error) = end(&shared, &record).await {
            warn!(%error, pod = %id, "cannot see a pod to its end; it stays in the list until it is given back again");
        }
        shared.turn().ending.remove(&id);
    });
    Ok(())
}

async fn end(shared: &Shared, record: &Record) -> io::Result<()> {
    let life = record.life.as_ref();
    let gone = async {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        while life.is_some_and(Life::is_alive) {
            looks.tick().await;
        }
    };
    if tokio::time::timeout(shared.settings.stop_grace, gone).await.is_err() {
        info!(pod = %record.id, "a pod did not end by itself: killing it");
        if let Some(life) = life {
            life.send(Signal::KILL);
        }
    }
    // What it started may have left its group; nothing of a machine stays when it goes.
    let swept = async {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        while alive::kill_marked(MARK, &record.mark)? || life.is_some_and(Life::is_left) {
            looks.tick().await;
        }
        Ok::<(), io::Error>(())
    };
    match tokio::time::timeout(KILL_MAX, swept).await {
        Ok(swept) => swept?,
        Err(_) => return Err(io::Error::other("it was killed and is still there")),
    }
    shared.records.remove(&record.id)
}
