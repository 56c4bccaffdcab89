//! Reads every event of the plane, resuming after the last one whenever the connection or the plane is gone.

use anyhow::Context as _;
use futures_util::StreamExt as _;
use remuda_net::sse::{SseEvent, SseReader};
use serde_json::Value;
use std::time::Duration;
use tokio::sync::watch;

use crate::ledger::ToldEvent;
use crate::load::Drill;

const RECONNECT_AFTER: Duration = Duration::from_millis(100);
/// A stream with nothing to say sends a comment more often than this.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Follows until `stop`.
pub(crate) async fn follow_until(drill: Drill, mut stop: watch::Receiver<bool>) -> anyhow::Result<()> {
    let mut after = 0;
    let follow = async {
        loop {
            follow_once(&drill, &mut after).await?;
            tokio::time::sleep(RECONNECT_AFTER).await;
        }
    };
    tokio::select! {
        ended = follow => ended,
        _ = stop.wait_for(|stop| *stop) => Ok(()),
    }
}

/// Until the connection ends. Fails only if the plane sends what cannot be right.
async fn follow_once(drill: &Drill, after: &mut u64) -> anyhow::Result<()> {
    let client = remuda_net::http_client::client_builder().read_timeout(SILENCE_MAX).build()?;
    let Ok(answer) = client.get(format!("{}/remuda/v1/events?after={after}", drill.url)).send().await else {
        return Ok(());
    };
    if !answer.status().is_success() {
        return Ok(());
    }
    let mut reader = SseReader::default();
    let mut pieces = answer.bytes_stream();
    while let Some(Ok(piece)) = pieces.next().await {
        for event in reader.feed(&piece)? {
            let Some(seq) = event.id else { continue };
            anyhow::ensure!(seq > *after, "event {seq} came after event {after}");
            *after = seq;
            if let Some(told) = read_event(&event)? {
                drill.ledger().tell(drill.now(), drill.lease, told);
            }
        }
    }
    Ok(())
}

/// `None` for names of a newer plane.
fn read_event(event: &SseEvent) -> anyhow::Result<Option<ToldEvent>> {
    let Ok(kind) = event.name.parse() else { return Ok(None) };
    let data: Value = serde_json::from_str(&event.data).context("an event is no JSON")?;
    let text = |name: &str| data[name].as_str().map(str::to_owned);
    Ok(Some(ToldEvent {
        kind,
        job: text("job"),
        worker: text("worker"),
        tenant: text("tenant"),
        detail: data["detail"].clone(),
    }))
}
