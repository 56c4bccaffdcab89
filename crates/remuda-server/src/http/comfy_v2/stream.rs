//! Event stream of a job (SSE): its current state, then changes, the terminal `status` last. Every event is created when it
//! can be sent, from the state at that moment: a slow reader gets fewer events and never a stale one.
//!
//! The contract has no event ids. With the header `Remuda-Resume: 1` every `status` carries the sequence number of the newest
//! event of the job as its id, and `Last-Event-ID` replays the status changes since then.

use std::collections::{BTreeSet, VecDeque};
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::Stream;
use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Sequence};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::Instant;
use uuid::Uuid;

use super::super::path::Path;
use super::super::{ApiError, Caller, Context};
use super::job::{self, ApiStatus, JobTimes, JobView};
use super::job_watch::{ChangeCounts, JobWatch};
use super::links::Links;
use super::output;
use crate::shutdown::stopped;
use remuda_core::wire::live::ProgressSnapshot;

/// Live state is sent twice a second, as the contract specifies.
const LIVE_INTERVAL: Duration = Duration::from_millis(500);
/// The queue position changes when other jobs start, without an event of this job.
const POSITION_INTERVAL: Duration = Duration::from_secs(2);
/// Clients give up after 45 s of silence.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Stored events per read.
const PAGE: usize = 512;

pub(super) async fn subscribe(
    State(context): State<Context>,
    caller: Caller,
    links: Links,
    Path(id): Path<String>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let view = job::find(&context, &caller, &id).await?;
    let permit = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many event streams are open: close one, or poll the job";
        ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message).with_retry_after(5)
    })?;
    let job = view.id;
    let resume = Resume::read(&headers)?;
    let stopping = context.stopping.clone();
    let mut stream = JobStream {
        watch: context.comfy_v2.watchers.subscribe(job),
        links,
        job,
        times: view.times(&context),
        resume,
        ready: VecDeque::new(),
        sent: Sent::default(),
        seen: ChangeCounts::default(),
        live_at: Instant::now(),
        position_at: Instant::now(),
        has_ended: false,
        stopping,
        _permit: permit,
        context,
    };
    stream.start().await?;
    let stream = futures_util::stream::unfold(stream, |mut stream| async {
        let event = stream.next().await?;
        Some((Ok(event), stream))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE_INTERVAL)))
}

/// Whether events carry ids, and the last one that the client saw.
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

/// What was already sent on this stream.
#[derive(Debug, Default)]
struct Sent {
    status: Option<(ApiStatus, Option<usize>)>,
    progress: Option<ProgressSnapshot>,
    outputs: BTreeSet<Uuid>,
    previews: Option<u64>,
}

struct JobStream {
    context: Context,
    links: Links,
    job: JobId,
    times: JobTimes,
    resume: Resume,
    watch: JobWatch,
    ready: VecDeque<Event>,
    sent: Sent,
    seen: ChangeCounts,
    /// When live state may be sent next.
    live_at: Instant,
    position_at: Instant,
    has_ended: bool,
    stopping: watch::Receiver<bool>,
    _permit: OwnedSemaphorePermit,
}

impl JobStream {
    /// Queues the current state.
    async fn start(&mut self) -> Result<(), ApiError> {
        if let Some(after) = self.resume.after {
            self.replay(after).await?;
        }
        self.seen = self.watch.counts();
        self.push_status_change().await?;
        if !self.has_ended {
            self.push_live();
        }
        Ok(())
    }

    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            self.wait().await?;
            let counts = self.watch.counts();
            let has_event = counts.events != self.seen.events;
            if has_event || self.is_queued() && Instant::now() >= self.position_at {
                // A store failure ends the stream; a client that reconnects gets the current state.
                self.push_status_change().await.ok()?;
            }
            let has_live = (counts.live, counts.previews) != (self.seen.live, self.seen.previews);
            if has_live && !self.has_ended && Instant::now() >= self.live_at {
                self.seen = counts;
                self.push_live();
            }
            self.seen.events = counts.events;
        }
    }

    fn is_queued(&self) -> bool {
        self.sent.status.is_some_and(|(status, _)| status == ApiStatus::Queued)
    }

    /// Waits until there is something to send.
    async fn wait(&mut self) -> Option<()> {
        loop {
            let counts = self.watch.counts();
            if counts.events != self.seen.events {
                return Some(());
            }
            let has_live = (counts.live, counts.previews) != (self.seen.live, self.seen.previews);
            let is_queued = self.is_queued();
            tokio::select! {
                is_open = self.watch.changed() => if !is_open { return None },
                () = tokio::time::sleep_until(self.live_at), if has_live => return Some(()),
                () = tokio::time::sleep_until(self.position_at), if is_queued => return Some(()),
                () = stopped(&mut self.stopping) => return None,
            }
        }
    }

    /// Sends the outputs once the job has ended, then its status.
    async fn push_status_change(&mut self) -> Result<(), ApiError> {
        self.position_at = Instant::now() + POSITION_INTERVAL;
        let view = job::read(&self.context, self.job).await?.ok_or_else(job::not_found)?;
        self.times = view.times(&self.context);
        let status = (view.status, view.queue_position);
        if view.status.has_ended() {
            self.has_ended = true;
            // Also if the stream was opened too late for them: the official SDK expects outputs before the last status.
            self.push_outputs(&view.outputs);
        }
        if self.sent.status != Some(status) {
            self.sent.status = Some(status);
            self.push_status(&view);
        }
        Ok(())
    }

    fn push_status(&mut self, view: &JobView) {
        let data = json!({ "status": view.status.as_str(), "queue_position": view.queue_position });
        let mut event = sse_event("status", &data);
        if let Some(newest) = self.newest_seq().filter(|_| self.resume.is_wanted) {
            event = event.id(newest.to_string());
        }
        self.ready.push_back(event);
    }

    fn newest_seq(&mut self) -> Option<Sequence> {
        self.watch.counts().newest.or(self.resume.after)
    }

    /// Sends progress, outputs and preview of the running attempt.
    fn push_live(&mut self) {
        self.live_at = Instant::now() + LIVE_INTERVAL;
        let doing = self.context.live_attempts.find(self.job);
        if let Some(progress) = doing.and_then(|doing| doing.progress)
            && self.sent.progress.as_ref() != Some(&progress)
        {
            self.ready.push_back(sse_event("progress", &job::progress_json(&progress)));
            self.sent.progress = Some(progress);
        }
        let outputs = output::live_outputs(&self.context, self.job);
        self.push_outputs(&outputs);
        if self.sent.previews != Some(self.seen.previews)
            && let Some(preview) = self.context.previews.find(self.job)
        {
            self.sent.previews = Some(self.seen.previews);
            let data = json!({
                "node_id": preview.node.unwrap_or_default(),
                "content_type": preview.media.as_str(),
                "data_base64": BASE64_STANDARD.encode(&preview.bytes),
            });
            self.ready.push_back(sse_event("preview", &data));
        }
    }

    fn push_outputs(&mut self, outputs: &[output::JobOutput]) {
        for output in outputs {
            if self.sent.outputs.insert(output.id) {
                let data = output.to_json(self.job, self.times, &self.links);
                self.ready.push_back(sse_event("output", &data));
            }
        }
    }

    /// Replays the status changes stored after the given event; the current state follows.
    async fn replay(&mut self, mut after: Sequence) -> Result<(), ApiError> {
        loop {
            let page = self.context.store.events(after, PAGE).await?;
            for event in &page {
                after = event.seq;
                let status = match event.kind {
                    _ if event.job != Some(self.job) => continue,
                    EventKind::JobQueued | EventKind::JobRetrying => ApiStatus::Queued,
                    EventKind::JobStarted => ApiStatus::Running,
                    _ => continue,
                };
                let data = json!({ "status": status.as_str(), "queue_position": null });
                self.ready.push_back(sse_event("status", &data).id(event.seq.to_string()));
                self.resume.after = Some(event.seq);
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
    }
}

fn sse_event(name: &str, data: &Value) -> Event {
    Event::default().event(name).data(data.to_string())
}
