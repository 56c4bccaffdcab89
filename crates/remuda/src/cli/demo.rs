//! `remuda demo`: the first thing to type. A plane, three workers and some jobs, all of them real; one worker is
//! killed in the middle, and its job still completes. Nothing is left behind.
//!
//! ```text
//!  stage ──▶ submit ──▶ follow the events, tell them, kill one worker ──▶ look at the end ──▶ clear the stage
//! ```

mod drawing;
mod processes;

use remuda_core::event_kind::EventKind;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use futures_util::StreamExt;
use serde_json::{Value, json};

use self::drawing::DrawingModel;
use self::processes::DemoProcesses;
use super::Client;
use super::commands::{events_request, explain_job};
use super::start::stop_signals;
use remuda_net::sse::SseReader;
use remuda_net::terminal::escape_control;

#[derive(Debug, Args)]
pub(super) struct DemoCommand {
    /// A model that draws; by default the one in models/emoji, where there is that and the build can draw
    #[arg(long, value_name = "FOLDER")]
    draw: Option<PathBuf>,
    /// Keep the picture in this file
    #[arg(long, value_name = "FILE")]
    picture: Option<PathBuf>,
    /// Print one JSON summary at the end and nothing else
    #[arg(long)]
    json: bool,
}

/// What is rendered, in how many steps of a quarter of a second.
const SCENES: [(&str, u32); 8] = [
    ("a red mare", 5),
    ("a long ride", 9),
    ("a grey foal", 5),
    ("a dragon", 1),
    ("a river", 4),
    ("a camp fire", 5),
    ("a saddle", 3),
    ("the moon", 4),
];
/// The job whose worker is killed: the longest, so that it is certain to be in the middle.
const VICTIM: usize = 1;
/// The job that the renderer refuses.
const REFUSED: usize = 3;
/// Far enough into the job to lose something, long before its end.
const KILL_AT: f64 = 0.3;
/// Several times what it takes on a slow machine; then something is wrong.
const DEMO_MAX: Duration = Duration::from_secs(60);

impl DemoCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let mut stops = stop_signals()?;
        let painter = DrawingModel::find(self.draw)?;
        if let Some(picture) = self.picture.as_ref().filter(|_| painter.is_none()) {
            let reason = DrawingModel::lacking()
                .unwrap_or("no model: name one with --draw, or type this in the project's folder");
            bail!("there is nothing to draw {} with: {reason}", picture.display());
        }
        let mut stage = DemoProcesses::set(painter).await?;
        let ended = tokio::select! {
            ended = tokio::time::timeout(DEMO_MAX, perform(&mut stage, !self.json, self.picture)) => Some(ended),
            _ = stops.recv() => None,
        };
        stage.clear().await;
        let summary = match ended {
            Some(Ok(summary)) => summary?,
            Some(Err(_)) => {
                bail!(
                    "the demo did not end within {} s; this machine is very busy, or what draws is very large",
                    DEMO_MAX.as_secs()
                )
            }
            // 128 + SIGINT, as shells have it.
            None => return Ok(ExitCode::from(130)),
        };
        if self.json {
            tell(&summary.to_string());
        }
        Ok(if summary["ok"] == true { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

async fn perform(
    stage: &mut DemoProcesses,
    is_told: bool,
    picture: Option<PathBuf>,
) -> anyhow::Result<Value> {
    let client = Client::without_token(&stage.url)?;
    let mut play = Play { jobs: Vec::new(), began: Instant::now(), is_told, killed: None, picture };
    play.tell(&format!("remuda demo: a plane on {}, its store in {}\n", stage.url, stage.folder().display()));
    stage.start_workers().await?;
    let names: Vec<_> =
        stage.workers().map(|worker| format!("{} ({})", worker.name, worker.process)).collect();
    play.note(&format!("{} workers start, each a process of its own: {}", names.len(), names.join(", ")));
    stage.wait_for_workers(&client).await?;
    for (at, (scene, steps)) in SCENES.iter().enumerate() {
        let mut job = json!({ "workflow": { "scene": scene, "steps": steps } });
        if at == REFUSED {
            // Of another shape, so that the others are not kept from a worker on its account; and tried once, because
            // it will be refused anywhere.
            job["workflow"]["style"] = "myth".into();
            job["attempts_max"] = 1.into();
        }
        play.submit(&client, scene, &job).await?;
    }
    if stage.can_draw() {
        play.submit(&client, drawing::SCENE, &DrawingModel::job()).await?;
    } else if let Some(reason) = DrawingModel::lacking() {
        play.note(reason);
    }
    let scenes: Vec<_> = play.jobs.iter().map(|job| job.scene).collect();
    play.note(&format!("{} jobs go in: {}", scenes.len(), scenes.join(", ")));
    play.follow(&client, stage).await?;
    play.end(&client).await
}

struct Job {
    id: String,
    scene: &'static str,
    state: &'static str,
}

struct Killed {
    worker: String,
    process: i32,
}

/// The demo: its jobs, how they ended, and the output.
struct Play {
    jobs: Vec<Job>,
    began: Instant,
    is_told: bool,
    killed: Option<Killed>,
    /// Where what is drawn is kept.
    picture: Option<PathBuf>,
}

impl Play {
    async fn submit(&mut self, client: &Client, scene: &'static str, job: &Value) -> anyhow::Result<()> {
        let answer = client.post("/remuda/v1/jobs", job).await?;
        let id = answer["id"].as_str().context("the plane did not say the job's id")?.to_owned();
        self.jobs.push(Job { id, scene, state: "queued" });
        Ok(())
    }

    /// Follows the events until every job has ended; the worker of the victim is killed on the way.
    async fn follow(&mut self, client: &Client, stage: &DemoProcesses) -> anyhow::Result<()> {
        let mut stream = client.open(events_request(client, Some(0))).await?.bytes_stream();
        let mut reader = SseReader::default();
        while self.jobs.iter().any(|job| matches!(job.state, "queued" | "running")) {
            let bytes = stream.next().await.context("the plane closed the line")??;
            for event in reader.feed(&bytes)? {
                let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
                let worker = data["worker"].as_str().unwrap_or_default();
                let Ok(kind) = event.name.parse() else { continue };
                if self.is_time_to_kill(kind, &data) {
                    let process = stage.kill(worker)?;
                    let scene = SCENES[VICTIM].0;
                    self.note(&format!("kill -9 {process}: worker {worker} dies in the middle of {scene:?}"));
                    self.killed = Some(Killed { worker: worker.to_owned(), process });
                }
                self.hear(kind, &data, worker);
            }
        }
        Ok(())
    }

    fn is_time_to_kill(&self, kind: EventKind, data: &Value) -> bool {
        self.killed.is_none()
            && kind == EventKind::JobProgress
            && data["job"] == self.jobs[VICTIM].id.as_str()
            && data["progress"].as_f64().is_some_and(|progress| progress >= KILL_AT)
    }

    /// Tells the events that belong to the story.
    fn hear(&mut self, kind: EventKind, data: &Value, worker: &str) {
        let Some(at) = self.jobs.iter().position(|job| data["job"] == job.id.as_str()) else { return };
        let scene = self.jobs[at].scene;
        let (attempt, reason) =
            (&data["detail"]["attempt"], data["detail"]["reason"].as_str().unwrap_or_default());
        let (state, told) = match kind {
            EventKind::JobStarted if *attempt == 1 => ("running", None),
            EventKind::JobStarted => {
                ("running", Some(format!("{scene:?} starts again on {worker}, attempt {attempt}")))
            }
            EventKind::JobRetrying => ("queued", Some(format!("{scene:?} is taken back: {reason}"))),
            EventKind::JobCompleted => ("completed", Some(format!("{scene:?} is done by {worker}"))),
            EventKind::JobFailed if at == REFUSED => {
                ("failed", Some(format!("{scene:?} has failed, as it should: {reason}")))
            }
            EventKind::JobFailed => ("failed", Some(format!("{scene:?} has failed: {reason}"))),
            EventKind::JobCancelled => ("cancelled", Some(format!("{scene:?} was cancelled: {reason}"))),
            _ => return,
        };
        self.jobs[at].state = state;
        if let Some(told) = told {
            self.note(&told);
        }
    }

    /// Shows what is left at the end, and judges it.
    async fn end(&self, client: &Client) -> anyhow::Result<Value> {
        let victim = &self.jobs[VICTIM].id;
        let why = client.get(&format!("/remuda/v1/jobs/{victim}/why")).await?;
        let result = client.get(&format!("/remuda/v1/jobs/{victim}/result")).await.unwrap_or_default();
        let should = |at| if at == REFUSED { "failed" } else { "completed" };
        let as_it_should = self.jobs.iter().enumerate().filter(|(at, job)| job.state == should(*at)).count();
        let was_taken_over = why["attempts"].as_array().is_some_and(|attempts| attempts.len() > 1);
        let is_ok = as_it_should == self.jobs.len() && self.killed.is_some() && was_taken_over;
        let verdict = if is_ok { "nothing was lost" } else { "that is not how it should have gone" };
        self.note(&format!("{as_it_should} of {} jobs ended as they should: {verdict}", self.jobs.len()));
        self.tell(&format!(
            "\nThe result of {:?}:\n\n  {}",
            self.jobs[VICTIM].scene,
            escape_control(&result.to_string())
        ));
        self.tell(&format!("\nAnd `remuda why {victim}`:\n\n{}", indented(&explain_job(&why))));
        if let Some(drawn) = self.jobs.get(SCENES.len()).filter(|job| job.state == "completed") {
            self.tell(&drawing::shown(client, &drawn.id, self.picture.as_deref()).await?);
        }
        self.tell("\nNow with your own command: remuda up --exec 'COMMAND', then remuda run FILE");
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .map(|job| json!({ "id": job.id, "scene": job.scene, "state": job.state }))
            .collect();
        let killed = self
            .killed
            .as_ref()
            .map(|it| json!({ "worker": it.worker, "process": it.process, "job": victim }));
        let seconds = (self.began.elapsed().as_secs_f64() * 10.0).round() / 10.0;
        Ok(
            json!({ "ok": is_ok, "seconds": seconds, "jobs": jobs, "killed": killed, "why": why, "result": result }),
        )
    }

    /// A line with the time since the beginning.
    fn note(&self, text: &str) {
        self.tell(&format!("{:5.1} s  {}", self.began.elapsed().as_secs_f64(), escape_control(text)));
    }

    fn tell(&self, text: &str) {
        if self.is_told {
            tell(text);
        }
    }
}

fn indented(text: &str) -> String {
    text.lines()
        .map(|line| if line.is_empty() { String::new() } else { format!("  {line}") })
        .collect::<Vec<_>>()
        .join("\n")
}

/// A reader that went away (`| head`) is no reason to leave the stage uncleared.
fn tell(text: &str) {
    drop(writeln!(std::io::stdout(), "{text}"));
}
