//! Events as they happen, over SSE. Whoever comes back with `Last-Event-ID` goes on where it stopped; whoever is too
//! slow gets a gap mark and catches up from the store, and nobody else notices.

use std::convert::Infallible;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use remuda_core::id::{JobId, Sequence, Tenant};
use remuda_core::record::Happened;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, broadcast, watch};

use super::{Context, Problem, preview};
use crate::carry_out::{News, Shown};
use crate::serve::stopped;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Wanted {
    job: Option<JobId>,
    tenant: Option<Tenant>,
    /// A name, or the part before the colon.
    name: Option<String>,
    /// Everything after this number; without it, and without Last-Event-ID, only what happens from now on.
    after: Option<u64>,
}

const PAGE: usize = 512;

pub(super) async fn stream(
    State(context): State<Context>,
    wanted: Result<Query<Wanted>, QueryRejection>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, Problem> {
    let Query(wanted) = wanted?;
    let place = context.streams.clone().try_acquire_owned().map_err(|_| {
        let mut problem = Problem::new(
            StatusCode::TOO_MANY_REQUESTS,
            "too_many_streams",
            "too many event streams are open",
        );
        problem.retry_after = Some(5);
        problem
    })?;
    let resumed =
        match headers.get("last-event-id").map(|id| id.to_str().unwrap_or_default().trim().parse::<u64>()) {
            Some(Ok(after)) => Some(after),
            Some(Err(_)) => {
                return Err(Problem::bad_request("Last-Event-ID is the number of the last event you saw"));
            }
            None => wanted.after,
        };
    // Subscribed before anything is read: what happens in between is in both, and the number tells.
    let news = context.news.subscribe();
    let seen = resumed.map(Sequence);
    let follower = Follower {
        stopping: context.stopping.clone(),
        context,
        wanted,
        news,
        seen,
        backlog: Vec::new(),
        catching_up: seen.is_some(),
        owes_mark: false,
        _place: place,
    };
    let stream = futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()))
}

struct Follower {
    context: Context,
    wanted: Wanted,
    news: broadcast::Receiver<News>,
    seen: Option<Sequence>,
    /// Read from the store and not yet sent, newest first.
    backlog: Vec<Happened>,
    catching_up: bool,
    /// All that was stored has been told, and that is yet to be said.
    owes_mark: bool,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(happened) = self.backlog.pop() {
                if let Some(event) = self.show(&happened) {
                    return Some(event);
                }
                continue;
            }
            if self.catching_up {
                let after = self.seen.unwrap_or_default();
                self.backlog = self.context.store.events(after, PAGE).await.ok()?;
                self.catching_up = self.backlog.len() == PAGE;
                self.owes_mark = !self.catching_up;
                self.backlog.reverse();
                continue;
            }
            if std::mem::take(&mut self.owes_mark) {
                let data = json!({ "seq": self.seen });
                return Some(Event::default().event("caught_up").data(data.to_string()));
            }
            let news = tokio::select! {
                news = self.news.recv() => news,
                () = stopped(&mut self.stopping) => return None,
            };
            match news {
                Ok(News::Happened(happened)) => {
                    if let Some(event) = self.show(&happened) {
                        return Some(event);
                    }
                }
                Ok(News::Progress { job, tenant, worker, progress, phase }) => {
                    let data = || json!({ "name": "job:progress", "job": job, "worker": worker, "progress": progress, "phase": phase });
                    if let Some(event) = self.show_live("job:progress", job, &tenant, data) {
                        return Some(event);
                    }
                }
                Ok(News::Preview(it)) => {
                    if let Some(event) =
                        self.show_live("job:preview", it.job, &it.tenant, || preview_json(&it))
                    {
                        return Some(event);
                    }
                }
                // How far it is comes as `Progress`; the service's own words are for those who speak its language.
                Ok(News::Told(_)) => {}
                Err(broadcast::error::RecvError::Lagged(missed)) => {
                    self.catching_up = self.seen.is_some();
                    return Some(Event::default().event("gap").data(json!({ "missed": missed }).to_string()));
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    fn show(&mut self, happened: &Happened) -> Option<Event> {
        if self.seen.is_some_and(|seen| happened.seq <= seen) {
            return None;
        }
        self.seen = Some(happened.seq);
        let wanted = &self.wanted;
        let is_wanted = wanted.job.is_none_or(|job| happened.job == Some(job))
            && wanted.tenant.as_ref().is_none_or(|tenant| happened.tenant.as_ref() == Some(tenant))
            && wanted.name.as_ref().is_none_or(|name| is_named(&happened.name, name));
        let event = || Event::default().id(happened.seq.to_string()).event(&happened.name);
        is_wanted.then(|| event().data(event_json(happened).to_string()))
    }

    /// What is live only has no number.
    fn show_live(
        &self,
        name: &str,
        job: JobId,
        tenant: &Tenant,
        data: impl FnOnce() -> Value,
    ) -> Option<Event> {
        let wanted = &self.wanted;
        let is_wanted = wanted.job.is_none_or(|wanted| wanted == job)
            && wanted.tenant.as_ref().is_none_or(|wanted| wanted == tenant)
            && wanted.name.as_ref().is_none_or(|wanted| is_named(name, wanted));
        is_wanted.then(|| Event::default().event(name).data(data().to_string()))
    }
}

fn preview_json(shown: &Shown) -> Value {
    json!({
        "name": "job:preview", "job": shown.job, "worker": shown.worker, "attempt": shown.attempt,
        "media": shown.media.as_str(), "url": preview::url(shown.job), "size_bytes": shown.size_bytes,
    })
}

fn is_named(name: &str, wanted: &str) -> bool {
    name == wanted || name.split(':').next() == Some(wanted)
}

/// An event as it is shown everywhere: times as people read them.
pub fn event_json(happened: &Happened) -> Value {
    let mut value = serde_json::to_value(happened).unwrap_or_default();
    value["at"] = happened.at.to_string().into();
    value
}
