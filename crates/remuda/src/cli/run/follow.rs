//! Follows jobs to their end over one event stream. Whenever an event may have been missed (before the stream was open,
//! after a cut or a gap), the jobs themselves are read.

use remuda_core::event_kind::EventKind;
use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::preview::PreviewFile;
use super::progress::{JobUpdate, ProgressView};
use crate::cli::Client;
use crate::cli::client::{REQUEST_TIMEOUT, is_retryable};
use remuda_net::sse::{SseEvent, SseReader};

/// A plane that restarts is back within seconds.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Ten minutes of retries; a plane that is still away needs an operator.
const RECONNECTS_MAX: u32 = 600;
/// Three of the plane's keep-alives: a stream that is silent for longer is dead.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// The reason why a job waits changes without an event, so jobs are also polled.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// How many of many jobs are read per poll.
const POLLED_JOBS_MAX: usize = 8;

pub(super) struct JobFollower<'a> {
    pub(super) client: &'a Client,
    pub(super) tenant: Option<&'a str>,
    pub(super) view: ProgressView,
    pub(super) previews: Option<&'a PreviewFile>,
    jobs: Vec<Job>,
    is_cancelling: bool,
    /// Id of the last event received.
    last: Option<u64>,
    /// The job that was polled last.
    polled: usize,
}

struct Job {
    id: String,
    stage: JobStage,
}

#[derive(PartialEq)]
enum JobStage {
    Waiting,
    Running,
    Ended,
}

impl<'a> JobFollower<'a> {
    pub(super) fn new(
        client: &'a Client,
        tenant: Option<&'a str>,
        ids: &[String],
        view: ProgressView,
        previews: Option<&'a PreviewFile>,
    ) -> Self {
        let jobs = ids.iter().map(|id| Job { id: id.clone(), stage: JobStage::Waiting }).collect();
        JobFollower { client, tenant, view, previews, jobs, is_cancelling: false, last: None, polled: 0 }
    }

    /// Runs until all jobs have ended; calls `ended` with the index and the final state of each.
    pub(super) async fn until_all_ended(
        mut self,
        interrupts: &mut mpsc::Receiver<()>,
        mut ended: impl FnMut(usize, Value),
    ) -> anyhow::Result<()> {
        for at in 0..self.jobs.len() {
            self.view.show(at, &JobUpdate::Submitted);
        }
        let mut failures = 0;
        while self.is_any_open() {
            match self.listen(interrupts, &mut ended).await {
                Ok(()) if !self.is_any_open() => break,
                Ok(()) => failures = 0,
                Err(error) if is_retryable(&error) && failures < RECONNECTS_MAX => failures += 1,
                Err(error) => return Err(error),
            }
            if failures <= 1 {
                self.view.print_message("connection to the plane lost; reconnecting");
            }
            tokio::select! {
                () = sleep(RECONNECT_WAIT) => {}
                Some(()) = interrupts.recv() => self.cancel().await,
            }
        }
        self.view.close();
        Ok(())
    }

    fn is_any_open(&self) -> bool {
        self.jobs.iter().any(|job| job.stage != JobStage::Ended)
    }

    /// Reads events until all jobs have ended or the stream is cut.
    async fn listen(
        &mut self,
        interrupts: &mut mpsc::Receiver<()>,
        ended: &mut impl FnMut(usize, Value),
    ) -> anyhow::Result<()> {
        // The timeout is for the response head only: the stream stays open.
        let Ok(opened) = timeout(REQUEST_TIMEOUT, self.client.open(self.request())).await else {
            return Ok(());
        };
        let mut stream = opened?.bytes_stream();
        let mut reader = SseReader::default();
        if self.is_cancelling {
            self.cancel().await;
        }
        self.read_all(ended).await?;
        let mut poll = interval(POLL_INTERVAL);
        poll.tick().await;
        while self.is_any_open() {
            tokio::select! {
                bytes = timeout(SILENCE_MAX, stream.next()) => {
                    let Ok(Some(Ok(bytes))) = bytes else { return Ok(()) };
                    for event in reader.feed(&bytes)? {
                        self.apply(&event, ended).await?;
                    }
                }
                _ = poll.tick() => self.read_some(ended).await?,
                Some(()) = interrupts.recv() => self.cancel().await,
            }
            let count = |stage| self.jobs.iter().filter(|job| job.stage == stage).count();
            let [waiting, running, done] = [JobStage::Waiting, JobStage::Running, JobStage::Ended].map(count);
            self.view.show_counts(waiting, running, done);
        }
        Ok(())
    }

    fn request(&self) -> RequestBuilder {
        let request = self.client.request(Method::GET, "/remuda/v1/events");
        let request = match self.jobs.as_slice() {
            [job] => request.query(&[("job", &job.id)]),
            _ => request.query(&[("name", Some("job")), ("tenant", self.tenant)]),
        };
        match self.last {
            Some(last) => request.header("last-event-id", last),
            None => request,
        }
    }

    async fn apply(&mut self, event: &SseEvent, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        self.last = event.id.or(self.last);
        if event.name == "gap" {
            return self.read_all(ended).await;
        }
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        let Some(at) = self.jobs.iter().position(|job| data["job"] == job.id.as_str()) else { return Ok(()) };
        if self.jobs[at].stage == JobStage::Ended {
            return Ok(());
        }
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        let Ok(kind) = event.name.parse() else { return Ok(()) };
        match kind {
            EventKind::JobStarted => self.set_running(at, &text(&data["worker"])),
            EventKind::JobProgress => {
                let (fraction, phase) = (data["progress"].as_f64().unwrap_or(0.0), text(&data["phase"]));
                self.jobs[at].stage = JobStage::Running;
                self.view.show(at, &JobUpdate::Progress { fraction, phase: &phase });
            }
            EventKind::JobRetrying => {
                self.jobs[at].stage = JobStage::Waiting;
                self.view.show(at, &JobUpdate::Retrying { reason: &text(&data["detail"]["reason"]) });
            }
            EventKind::JobPreview => {
                if let Some(previews) = self.previews {
                    previews.update(&self.jobs[at].id);
                }
            }
            kind if kind.is_job_end() => return self.read(at, ended).await,
            _ => {}
        }
        Ok(())
    }

    /// A poll may have shown it before the event.
    fn set_running(&mut self, at: usize, worker: &str) {
        if self.jobs[at].stage != JobStage::Running {
            self.jobs[at].stage = JobStage::Running;
            self.view.show(at, &JobUpdate::Running { worker });
        }
    }

    async fn read_all(&mut self, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        for at in 0..self.jobs.len() {
            self.read(at, ended).await?;
        }
        Ok(())
    }

    async fn read_some(&mut self, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        for _ in 0..POLLED_JOBS_MAX.min(self.jobs.len()) {
            self.polled = (self.polled + 1) % self.jobs.len();
            self.read(self.polled, ended).await?;
        }
        Ok(())
    }

    async fn read(&mut self, at: usize, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        if self.jobs[at].stage == JobStage::Ended {
            return Ok(());
        }
        let job = self.client.get(&format!("/remuda/v1/jobs/{}", self.jobs[at].id)).await?;
        let reason = job["reason"].as_str().unwrap_or_default();
        match job["state"].as_str().unwrap_or_default() {
            "queued" => {
                self.jobs[at].stage = JobStage::Waiting;
                self.view.show(at, &JobUpdate::Waiting { reason });
            }
            "running" => self.set_running(at, job["worker"].as_str().unwrap_or_default()),
            state => {
                self.jobs[at].stage = JobStage::Ended;
                self.view.show(at, &JobUpdate::Ended { is_completed: state == "completed", reason });
                ended(at, job);
            }
        }
        Ok(())
    }

    /// Cancels every open job. A cancellation that fails is sent again when the stream reconnects.
    async fn cancel(&mut self) {
        let open: Vec<_> = self.jobs.iter().filter(|job| job.stage != JobStage::Ended).collect();
        if !self.is_cancelling {
            let which = if open.len() == 1 { "the job".to_owned() } else { format!("{} jobs", open.len()) };
            self.view.print_message(&format!("cancelling {which}; press Ctrl-C again to exit at once"));
        }
        self.is_cancelling = true;
        for job in open {
            let reason = json!({ "reason": "cancelled with Ctrl-C in `remuda run`" });
            // The job may have ended a moment ago.
            drop(self.client.post(&format!("/remuda/v1/jobs/{}/cancel", job.id), &reason).await);
        }
    }
}
