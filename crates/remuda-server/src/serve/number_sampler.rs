//! Fills the history of the dashboard's numbers: counts the ends of jobs as they happen, and takes a sample every ten
//! seconds. At the start it reads back which jobs ended within the last hour.

use remuda_core::id::Sequence;
use remuda_core::time::Timestamp;
use remuda_store::{Store, StoreError};
use tracing::warn;

use crate::follower::Followed;
use crate::http::Context;
use crate::live::LiveEvent;
use crate::number_history::{KEPT, NumberHistory, PlaneNumbers, SAMPLE_EVERY};
use crate::tasks::Ticker;

/// Events read back at the start, a page at a time: 55 a second for an hour, in about a second.
const READ_BACK_MAX: usize = 200_000;
const READ_BACK_PAGE: usize = 2_000;

pub(super) async fn run(context: Context, ticker: Ticker) {
    let history = context.number_history.clone();
    let until = match context.store.history().await {
        Ok(stored) => stored.sequence,
        Err(error) => return warn!(%error, "could not read where the events end"),
    };
    // After a restart of this task everything is counted again.
    history.clear_ends();
    let mut events = context.follow(Some(until));
    if let Err(error) = read_back(&history, &context.store, until, context.plane.clock.now()).await {
        warn!(%error, "could not read back the jobs that ended within the last hour");
    }
    let mut samples = tokio::time::interval(SAMPLE_EVERY);
    loop {
        ticker.tick();
        tokio::select! {
            followed = events.next() => match followed {
                Some(Followed::Event(LiveEvent::Stored(event))) => history.count(&event),
                Some(_) => {}
                None => return,
            },
            _ = samples.tick() => match context.plane.read(PlaneNumbers::read).await {
                Ok(numbers) => history.sample(numbers),
                Err(_) => return,
            },
        }
    }
}

/// Counts the ends among the stored events of the last hour, up to this number.
async fn read_back(
    history: &NumberHistory,
    store: &Store,
    until: Sequence,
    now: Timestamp,
) -> Result<(), StoreError> {
    let (mut before, mut read) = (Sequence(until.0 + 1), 0);
    while read < READ_BACK_MAX {
        let page = store.recent_events(Some(before), READ_BACK_PAGE).await?;
        let Some(last) = page.last() else { return Ok(()) };
        (before, read) = (last.seq, read + page.len());
        let is_done = last.at < now.minus(KEPT);
        page.iter().filter(|event| event.at >= now.minus(KEPT)).for_each(|event| history.count(event));
        if is_done {
            return Ok(());
        }
    }
    Ok(())
}
