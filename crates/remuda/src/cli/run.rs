//! `remuda run`: submit a workflow with what is changed in it, follow it to its end, bring home what it gave.

mod follow;
mod graph;
mod job_options;
mod preview;
mod progress;
mod result_view;
mod save;
mod workflow;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Args;
use reqwest::Method;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use self::follow::JobFollower;
use self::job_options::JobOptionArgs;
use self::preview::Previews;
use self::progress::ProgressView;
use self::workflow::{Change, File, Workflow, change, file};
use super::{Client, Connection, Usage};
use remuda_net::terminal::escape_control;
use remuda_net::terminal::print_line;
use remuda_worker::BlobLink;

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda run workflow.json
  remuda run workflow.json --set 3.seed=42 --set \"Positive Prompt.text=a wild horse at dawn\" -o out
  remuda run img2img.json --input LoadImage.image=photo.png -o out --preview now.jpg
  remuda run workflow.json -n 4 -o out        four copies, each with other seeds, side by side
  remuda run workflow.json --detach           print the id and leave
  remuda run workflow.json --prefer gpu-1 --exclude gpu-7 --webhook https://example.org/done

Ctrl-C cancels what was submitted and waits until that is so; a second one leaves at once.
Exit code: 0 if every job completed, 1 if one did not, 2 for a mistake in what was typed, 3 if nobody answers.";

/// As many as one person can look through; more is for a script.
const COPIES_MAX: i64 = 1000;

#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// File with the workflow, or - for standard input
    file: PathBuf,
    /// Change an input of a graph; NODE is an id, or a title or class that only one node has. VALUE is JSON if it is a
    /// number, true, false, null, a list or an object, and else text. May be repeated
    #[arg(long = "set", value_name = "NODE.INPUT=VALUE", value_parser = change)]
    changes: Vec<Change>,
    /// Give an input of a graph a file of this machine: it is brought to whichever server runs the job. May be repeated
    #[arg(long = "input", value_name = "NODE.INPUT=FILE", value_parser = file)]
    files: Vec<File>,
    /// Save the files it gives in this folder; nothing that is there is overwritten
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Run so many copies. In each, every input called seed or noise_seed that is a number and was not --set gets a new
    /// random one
    #[arg(short = 'n', long, value_name = "COPIES", value_parser = clap::value_parser!(u32).range(1..=COPIES_MAX))]
    copies: Option<u32>,
    /// Keep the newest preview in this file while it runs
    #[arg(long, value_name = "FILE", conflicts_with = "detach")]
    preview: Option<PathBuf>,
    /// Service to run it; by default comfyui for a graph, exec for anything else
    #[arg(long)]
    service: Option<String>,
    /// Whose job it is
    #[arg(long)]
    tenant: Option<String>,
    /// Higher goes first, from -128 to 127
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i8,
    /// Fail it if it has not ended after this many seconds
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// The same key means the same job, however often it is sent
    #[arg(long, conflicts_with = "copies")]
    key: Option<String>,
    /// Shown on every event of the job; may be repeated
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Print the job's id and do not wait for its end
    #[arg(long, conflicts_with = "output")]
    detach: bool,
    #[command(flatten)]
    wishes: JobOptionArgs,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Serialize)]
struct Submission<'a> {
    workflow: &'a RawValue,
    priority: i8,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    metadata: Map<String, Value>,
    #[serde(flatten)]
    wishes: Map<String, Value>,
}

/// Jobs whose files are fetched at the same time: more would only share the same line.
const BRINGS_MAX: usize = 4;
/// 128 + SIGINT, as shells have it.
const INTERRUPTED: u8 = 130;

impl RunCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let mut interrupts = interrupts()?;
        let workflow = tokio::select! {
            workflow = self.prepare(&client) => workflow?,
            Some(()) = interrupts.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        let submitted = self.submit(&client, &workflow, &mut interrupts).await?;
        if self.detach {
            for answer in &submitted {
                print_line(&if self.connection.json {
                    answer.to_string()
                } else {
                    escape_control(&id_of(answer))
                });
            }
            return Ok(if submitted.len() == self.wanted() { ExitCode::SUCCESS } else { ExitCode::FAILURE });
        }
        let ids: Vec<String> = submitted.iter().map(id_of).collect();
        let previews = self.preview.clone().map(|path| Previews::keep(client.clone(), path));
        let view = ProgressView::new(&ids, self.connection.json);
        // Whoever has a token hears of its own tenant anyway.
        let usual = client.credentials.token.is_empty().then_some("default");
        let tenant = self.tenant.as_deref().or(usual);
        let follow = JobFollower::new(&client, tenant, &ids, view, previews.as_ref());
        let mut homes = OutputSaver::new(self.output.clone(), &client);
        follow.until_all_ended(&mut interrupts, |at, job| homes.bring(at, job)).await?;
        let ended = homes.all().await;
        if let Some(previews) = previews {
            previews.end().await;
        }
        Ok(self.tell(&ended))
    }

    /// Everything that can go wrong before a job is submitted goes wrong here.
    async fn prepare(&self, client: &Client) -> anyhow::Result<Workflow> {
        let mut workflow = Workflow::read(&self.file, self.service.is_some())?;
        workflow.change(&self.changes)?;
        let places = workflow.places(&self.files)?;
        self.metadata()?;
        if let Some(folder) = &self.output {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        if let Some(folder) = self.preview.as_deref().and_then(|file| file.parent())
            && !folder.as_os_str().is_empty()
            && !folder.is_dir()
        {
            return Err(Usage(format!("--preview: there is no folder {}", folder.display())).into());
        }
        if !self.files.is_empty() {
            // Asked once, so that a plane that is not there is told at once and not after many tries.
            client.get("/health/live").await?;
        }
        let link = BlobLink::with_credentials(&self.connection.url, &client.credentials);
        for (place, file) in places.iter().zip(&self.files) {
            let path = &file.path;
            let (hash, _) =
                link.store(path).await.with_context(|| format!("cannot store {}", path.display()))?;
            workflow.place(place, path, hash);
        }
        Ok(workflow)
    }

    async fn submit(
        &self,
        client: &Client,
        workflow: &Workflow,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> anyhow::Result<Vec<Value>> {
        let copies = match self.copies {
            None => vec![workflow.written()],
            Some(copies) => (0..copies).map(|_| workflow.copy()).collect(),
        };
        let mut submitted = Vec::new();
        for workflow in &copies {
            if !submitted.is_empty() && !interrupts.is_empty() {
                break;
            }
            let submission = Submission {
                workflow,
                priority: self.priority,
                service: self.service.as_deref(),
                tenant: self.tenant.as_deref(),
                deadline_seconds: self.deadline,
                idempotency_key: self.key.as_deref(),
                metadata: self.metadata()?,
                wishes: self.wishes.fields(),
            };
            let request = client.request(Method::POST, "/remuda/v1/jobs").timeout(super::client::ANSWER_MAX);
            match client.send(request.json(&submission)).await {
                Ok(answer) if answer["id"].is_string() => submitted.push(answer),
                Ok(_) => anyhow::bail!("the plane did not say the job's id"),
                // What was submitted before is not left alone for it.
                Err(error) if !submitted.is_empty() => {
                    let (done, of) = (submitted.len(), copies.len());
                    eprintln!(
                        "remuda: only {done} of {of} copies were taken: {}",
                        escape_control(&format!("{error:#}"))
                    );
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(submitted)
    }

    /// How many jobs there should be.
    fn wanted(&self) -> usize {
        self.copies.unwrap_or(1) as usize
    }

    fn metadata(&self) -> anyhow::Result<Map<String, Value>> {
        let pairs = self.metadata.iter().map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.into())),
            None => Err(Usage(format!("--meta takes NAME=VALUE, not {pair:?}")).into()),
        });
        pairs.collect()
    }

    /// What each gave, in the order in which they were submitted; the exit code.
    fn tell(&self, ended: &[EndedJob]) -> ExitCode {
        let mut are_all_done = ended.len() == self.wanted();
        for EndedJob { job, saved, problems } in ended {
            let (id, is_completed) = (id_of(job), job["state"] == "completed");
            are_all_done &= is_completed && problems.is_empty();
            if self.connection.json {
                print_line(&job.to_string());
            } else if is_completed {
                let head =
                    if ended.len() > 1 { format!("job {}\n", escape_control(&id)) } else { String::new() };
                let gap = if ended.len() > 1 { "\n" } else { "" };
                print_line(&format!("{head}{}{gap}", result_view::render_result(&job["result"], saved)));
            } else {
                let reason = job["reason"].as_str().unwrap_or("did not complete");
                eprintln!("remuda: job {} {}", escape_control(&id), escape_control(reason));
                eprintln!("        `remuda why {}` tells the whole story", escape_control(&id));
            }
            for problem in problems {
                eprintln!("remuda: job {}: {}", escape_control(&id), escape_control(problem));
            }
        }
        if are_all_done { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn id_of(job: &Value) -> String {
    job["id"].as_str().unwrap_or_default().to_owned()
}

/// A job that has ended, and what became of its files.
#[derive(Debug)]
struct EndedJob {
    job: Value,
    /// Where each is, in the order of the result; nothing at all if nobody wanted them.
    saved: Vec<Option<PathBuf>>,
    problems: Vec<String>,
}

/// Brings home what jobs gave, each as soon as it has ended.
#[derive(Debug)]
struct OutputSaver {
    folder: Option<PathBuf>,
    link: BlobLink,
    places: Arc<Semaphore>,
    tasks: JoinSet<(usize, EndedJob)>,
}

impl OutputSaver {
    fn new(folder: Option<PathBuf>, client: &Client) -> OutputSaver {
        let places = Arc::new(Semaphore::new(BRINGS_MAX));
        OutputSaver {
            folder,
            link: BlobLink::with_credentials(&client.url, &client.credentials),
            places,
            tasks: JoinSet::new(),
        }
    }

    fn bring(&mut self, at: usize, mut job: Value) {
        let (folder, link, places) = (self.folder.clone(), self.link.clone(), self.places.clone());
        self.tasks.spawn(async move {
            // Places are never taken away, so that there will be one.
            let _place = places.acquire().await;
            let (mut saved, mut problems) = (Vec::new(), Vec::new());
            let outputs = save::outputs(&job["result"]).unwrap_or_default();
            for (index, output) in outputs.iter().enumerate() {
                let Some(folder) = &folder else { break };
                let path = save::save(&link, output, folder).await;
                saved.push(path.map_err(|problem| problems.push(format!("{problem:#}"))).ok());
                if let Some(Some(path)) = saved.last() {
                    job["result"]["outputs"][index]["path"] = path.display().to_string().into();
                }
            }
            (at, EndedJob { job, saved, problems })
        });
    }

    /// In the order in which they were submitted.
    async fn all(self) -> Vec<EndedJob> {
        let mut ended = self.tasks.join_all().await;
        ended.sort_by_key(|(at, _)| *at);
        ended.into_iter().map(|(_, ended)| ended).collect()
    }
}

/// The first Ctrl-C is passed on, the second ends the program whatever it is doing.
fn interrupts() -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    let mut signals = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    tokio::spawn(async move {
        signals.recv().await;
        // Nobody listens any more if it is over anyway.
        sender.send(()).await.ok();
        signals.recv().await;
        std::process::exit(INTERRUPTED.into());
    });
    Ok(receiver)
}
