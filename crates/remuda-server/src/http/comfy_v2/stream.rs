//! A job as it goes on (SSE): how it stands first, then what changes, the terminal `status` last. Every event is made when
//! it can be sent, from how things stand at that moment; whoever reads slowly gets fewer of them, and none is wrong.
//!
//! The contract has no ids on events. Whoever sends `Remuda-Resume: 1` gets the number of the newest event of the job as
//! the id of each `status`, and with `Last-Event-ID` first the changes of status since then.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::Stream;
use remuda_core::id::{JobId, Sequence};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::super::base64::base64;
use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::job::{self, Lifetime, Seen, Status};
use super::job_watch::{Ear, Pulse};
use super::links::Links;
use super::output;
use crate::shutdown::stopped;
use remuda_core::wire::live::ProgressSnapshot;

/// What an attempt is doing is told twice a second, as the contract says.
const LIVE_EVERY: Duration = Duration::from_millis(500);
/// Its place in the queue changes when others go, of which nobody tells it.
const POSITION_EVERY: Duration = Duration::from_secs(2);
/// Clients give a silent line up after 45 s.
const COMMENT_EVERY: Duration = Duration::from_secs(10);
/// Stored events read at a time.
const PAGE: usize = 512;

pub(super) async fn stream(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let seen = job::find(&context, &caller, &id).await?;
    let place = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many event streams are open: close one, or ask for the job now and then";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).later(5)
    })?;
    let job = seen.id;
    let resume = Resume::read(&headers)?;
    let stopping = context.stopping.clone();
    let mut follower = Follower {
        ear: context.comfy_v2.hub.listen(job),
        links,
        job,
        lifetime: seen.lifetime(&context),
        resume,
        ready: VecDeque::new(),
        sent: Sent::default(),
        heard: Pulse::default(),
        live_at: Instant::now(),
        position_at: Instant::now(),
        is_over: false,
        stopping,
        _place: place,
        context,
    };
    follower.begin().await?;
    let stream = futures_util::stream::unfold(follower, |mut follower| async {
        let event = follower.next().await?;
        Some((Ok(event), follower))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(COMMENT_EVERY)))
}

/// Whether events carry ids, and which was the last one seen.
#[derive(Clone, Copy, Debug, Default)]
struct Resume {
    is_wanted: bool,
    after: Option<Sequence>,
}

impl Resume {
    fn read(headers: &HeaderMap) -> Result<Resume, ApiError> {
        if headers.get("remuda-resume").is_none_or(|wanted| wanted != "1") {
            return Ok(Resume::default());
        }
        let after =
            match headers.get("last-event-id") {
                Some(id) => {
                    Some(id.to_str().ok().and_then(|id| id.trim().parse().ok()).map(Sequence).ok_or_else(
                        || ApiError::invalid("Last-Event-ID is the id of the last event you saw"),
                    )?)
                }
                None => None,
            };
        Ok(Resume { is_wanted: true, after })
    }
}

/// What this listener knows already.
#[derive(Debug, Default)]
struct Sent {
    status: Option<(Status, Option<usize>)>,
    progress: Option<ProgressSnapshot>,
    outputs: BTreeSet<Uuid>,
    previews: Option<u64>,
}

struct Follower {
    context: Context,
    links: Links,
    job: JobId,
    lifetime: Lifetime,
    resume: Resume,
    ear: Ear,
    ready: VecDeque<Event>,
    sent: Sent,
    heard: Pulse,
    /// When the next word on what its attempt is doing is due.
    live_at: Instant,
    position_at: Instant,
    is_over: bool,
    stopping: watch::Receiver<bool>,
    _place: OwnedSemaphorePermit,
}

impl Follower {
    /// How it stands now.
    async fn begin(&mut self) -> Result<(), ApiError> {
        if let Some(after) = self.resume.after {
            self.tell_again(after).await?;
        }
        self.heard = self.ear.pulse();
        self.look().await?;
        if !self.is_over {
            self.look_live();
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.is_over {
                return None;
            }
            self.wait().await?;
            let pulse = self.ear.pulse();
            let is_turned = pulse.turns != self.heard.turns;
            if is_turned || self.is_queued() && Instant::now() >= self.position_at {
                // A store that cannot be asked now ends the stream; whoever comes back is told how it stands.
                self.look().await.ok()?;
            }
            let is_live = (pulse.doings, pulse.previews) != (self.heard.doings, self.heard.previews);
            if is_live && !self.is_over && Instant::now() >= self.live_at {
                self.heard = pulse;
                self.look_live();
            }
            self.heard.turns = pulse.turns;
        }
    }

    fn is_queued(&self) -> bool {
        self.sent.status.is_some_and(|(status, _)| status == Status::Queued)
    }

    /// Until there is something to look at.
    async fn wait(&mut self) -> Option<()> {
        loop {
            let pulse = self.ear.pulse();
            if pulse.turns != self.heard.turns {
                return Some(());
            }
            let has_live = (pulse.doings, pulse.previews) != (self.heard.doings, self.heard.previews);
            let is_queued = self.is_queued();
            tokio::select! {
                is_open = self.ear.changed() => if !is_open { return None },
                () = tokio::time::sleep_until(self.live_at), if has_live => return Some(()),
                () = tokio::time::sleep_until(self.position_at), if is_queued => return Some(()),
                () = stopped(&mut self.stopping) => return None,
            }
        }
    }

    /// Its life: what it gave, once it has ended, then how it stands.
    async fn look(&mut self) -> Result<(), ApiError> {
        self.position_at = Instant::now() + POSITION_EVERY;
        let seen = job::look(&self.context, self.job).await?.ok_or_else(job::missing)?;
        self.lifetime = seen.lifetime(&self.context);
        let stands = (seen.status, seen.queue_position);
        if seen.status.is_over() {
            self.is_over = true;
            if self.sent.status.is_some() {
                self.show_outputs(&seen.outputs);
            }
        }
        if self.sent.status != Some(stands) {
            self.sent.status = Some(stands);
            self.show_status(&seen);
        }
        Ok(())
    }

    fn show_status(&mut self, seen: &Seen) {
        let data = json!({ "status": seen.status.as_str(), "queue_position": seen.queue_position });
        let mut event = event("status", &data);
        if let Some(newest) = self.heard_newest().filter(|_| self.resume.is_wanted) {
            event = event.id(newest.to_string());
        }
        self.ready.push_back(event);
    }

    fn heard_newest(&mut self) -> Option<Sequence> {
        self.ear.pulse().newest.or(self.resume.after)
    }

    /// What its attempt is doing.
    fn look_live(&mut self) {
        self.live_at = Instant::now() + LIVE_EVERY;
        let doing = self.context.live_attempts.find(self.job);
        if let Some(progress) = doing.and_then(|doing| doing.progress)
            && self.sent.progress.as_ref() != Some(&progress)
        {
            self.ready.push_back(event("progress", &job::shown_progress(&progress)));
            self.sent.progress = Some(progress);
        }
        let outputs = output::so_far(&self.context, self.job);
        self.show_outputs(&outputs);
        if self.sent.previews != Some(self.heard.previews)
            && let Some(preview) = self.context.previews.find(self.job)
        {
            self.sent.previews = Some(self.heard.previews);
            let data = json!({
                "node_id": preview.node.unwrap_or_default(),
                "content_type": preview.media.as_str(),
                "data_base64": base64(&preview.bytes),
            });
            self.ready.push_back(event("preview", &data));
        }
    }

    fn show_outputs(&mut self, outputs: &[output::Output]) {
        for output in outputs {
            if self.sent.outputs.insert(output.id) {
                let data = output.shown(self.job, self.lifetime, &self.links);
                self.ready.push_back(event("output", &data));
            }
        }
    }

    /// The changes of status that were stored after one that was seen; how it stands now comes after them.
    async fn tell_again(&mut self, mut after: Sequence) -> Result<(), ApiError> {
        loop {
            let page = self.context.store.events(after, PAGE).await?;
            for happened in &page {
                after = happened.seq;
                let status = match (&*happened.name, happened.job) {
                    ("job:queued" | "job:retrying", Some(job)) if job == self.job => Status::Queued,
                    ("job:started", Some(job)) if job == self.job => Status::Running,
                    _ => continue,
                };
                let data = json!({ "status": status.as_str(), "queue_position": null });
                self.ready.push_back(event("status", &data).id(happened.seq.to_string()));
                self.resume.after = Some(happened.seq);
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }
}

fn event(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}
