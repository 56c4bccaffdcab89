//! Follows jobs to their end, all over one line. Events say what changed; whenever one may have been missed (before the
//! line was open, after a cut or a gap), the jobs themselves are looked at.

use std::time::Duration;

use futures_util::StreamExt as _;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{interval, sleep, timeout};

use super::preview::Previews;
use super::progress::{JobUpdate, ProgressView};
use crate::cli::Client;
use crate::cli::client::{ANSWER_MAX, is_passing};
use remuda_net::sse::{SseEvent, SseReader};

/// A plane that restarts is back within seconds: no need to knock more often.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Ten minutes of knocking; after that the plane is not coming back by itself.
const RECONNECTS_MAX: u32 = 600;
/// Three of the plane's signs of life on an idle line: then the line is dead, whatever it looks like.
const SILENCE_MAX: Duration = Duration::from_secs(45);
/// Why a job waits changes without an event.
const LOOK_EVERY: Duration = Duration::from_secs(2);
/// Of many jobs only so many are looked at each time, one after the other.
const LOOKS_MAX: usize = 8;

pub(super) struct JobFollower<'a> {
    pub(super) client: &'a Client,
    pub(super) tenant: Option<&'a str>,
    pub(super) view: ProgressView,
    pub(super) previews: Option<&'a Previews>,
    jobs: Vec<Job>,
    is_cancelling: bool,
    /// The last event that was heard.
    last: Option<u64>,
    looked: usize,
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
        previews: Option<&'a Previews>,
    ) -> Self {
        let jobs = ids.iter().map(|id| Job { id: id.clone(), stage: JobStage::Waiting }).collect();
        JobFollower { client, tenant, view, previews, jobs, is_cancelling: false, last: None, looked: 0 }
    }

    /// Gives each job to `ended` as it then is, with its place among the others.
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
                Err(error) if is_passing(&error) && failures < RECONNECTS_MAX => failures += 1,
                Err(error) => return Err(error),
            }
            if failures <= 1 {
                self.view.print_line("the line to the plane was cut; trying again");
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

    /// Until all have ended, or the line is cut.
    async fn listen(
        &mut self,
        interrupts: &mut mpsc::Receiver<()>,
        ended: &mut impl FnMut(usize, Value),
    ) -> anyhow::Result<()> {
        // Only its beginning has to come in time: it stays open.
        let Ok(opened) = timeout(ANSWER_MAX, self.client.open(self.request())).await else { return Ok(()) };
        let mut stream = opened?.bytes_stream();
        let mut reader = SseReader::default();
        if self.is_cancelling {
            self.cancel().await;
        }
        self.look_at_all(ended).await?;
        let mut look_again = interval(LOOK_EVERY);
        look_again.tick().await;
        while self.is_any_open() {
            tokio::select! {
                bytes = timeout(SILENCE_MAX, stream.next()) => {
                    let Ok(Some(Ok(bytes))) = bytes else { return Ok(()) };
                    for event in reader.feed(&bytes)? {
                        self.hear(&event, ended).await?;
                    }
                }
                _ = look_again.tick() => self.look_at_some(ended).await?,
                Some(()) = interrupts.recv() => self.cancel().await,
            }
            let count = |stage| self.jobs.iter().filter(|job| job.stage == stage).count();
            let [waiting, running, done] = [JobStage::Waiting, JobStage::Running, JobStage::Ended].map(count);
            self.view.tally(waiting, running, done);
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

    async fn hear(&mut self, event: &SseEvent, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        self.last = event.id.or(self.last);
        if event.name == "gap" {
            return self.look_at_all(ended).await;
        }
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        let Some(at) = self.jobs.iter().position(|job| data["job"] == job.id.as_str()) else { return Ok(()) };
        if self.jobs[at].stage == JobStage::Ended {
            return Ok(());
        }
        let text = |value: &'_ Value| value.as_str().unwrap_or_default().to_owned();
        match event.name.as_str() {
            "job:started" => self.runs(at, &text(&data["worker"])),
            "job:progress" => {
                let (fraction, phase) = (data["progress"].as_f64().unwrap_or(0.0), text(&data["phase"]));
                self.jobs[at].stage = JobStage::Running;
                self.view.show(at, &JobUpdate::Progress { fraction, phase: &phase });
            }
            "job:retrying" => {
                self.jobs[at].stage = JobStage::Waiting;
                self.view.show(at, &JobUpdate::Retrying { reason: &text(&data["detail"]["reason"]) });
            }
            "job:preview" => {
                if let Some(previews) = self.previews {
                    previews.hear(&self.jobs[at].id);
                }
            }
            "job:completed" | "job:failed" | "job:cancelled" => return self.look(at, ended).await,
            _ => {}
        }
        Ok(())
    }

    /// A look may have shown it before the event that tells it.
    fn runs(&mut self, at: usize, worker: &str) {
        if self.jobs[at].stage != JobStage::Running {
            self.jobs[at].stage = JobStage::Running;
            self.view.show(at, &JobUpdate::Running { worker });
        }
    }

    async fn look_at_all(&mut self, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        for at in 0..self.jobs.len() {
            self.look(at, ended).await?;
        }
        Ok(())
    }

    async fn look_at_some(&mut self, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
        for _ in 0..LOOKS_MAX.min(self.jobs.len()) {
            self.looked = (self.looked + 1) % self.jobs.len();
            self.look(self.looked, ended).await?;
        }
        Ok(())
    }

    async fn look(&mut self, at: usize, ended: &mut impl FnMut(usize, Value)) -> anyhow::Result<()> {
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
            "running" => self.runs(at, job["worker"].as_str().unwrap_or_default()),
            state => {
                self.jobs[at].stage = JobStage::Ended;
                self.view.show(at, &JobUpdate::Ended { is_completed: state == "completed", reason });
                ended(at, job);
            }
        }
        Ok(())
    }

    /// Their end comes as any other. What cannot be told now is told when the line is open again.
    async fn cancel(&mut self) {
        let open: Vec<_> = self.jobs.iter().filter(|job| job.stage != JobStage::Ended).collect();
        if !self.is_cancelling {
            let which = if open.len() == 1 { "the job".to_owned() } else { format!("{} jobs", open.len()) };
            self.view.print_line(&format!("cancelling {which}; Ctrl-C again leaves at once"));
        }
        self.is_cancelling = true;
        for job in open {
            let reason = json!({ "reason": "interrupted by whoever ran it" });
            // It may have ended a moment ago, which is as good.
            drop(self.client.post(&format!("/remuda/v1/jobs/{}/cancel", job.id), &reason).await);
        }
    }
}
