//! `remuda run`: changes inputs of a workflow, submits it, follows the jobs to their end and saves their outputs.

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
use std::time::{Duration, Instant};

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
use self::preview::PreviewFile;
use self::progress::ProgressView;
use self::workflow::{InputChange, InputFile, SubmittedWorkflow, parse_change, parse_file};
use super::client::{is_outcome_unknown, is_retryable};
use super::{Client, Connection, UsageError};
use remuda_core::workflow::describe_node_errors;
use remuda_net::terminal::escape_control;
use remuda_net::terminal::print_line;
use remuda_worker::BlobLink;

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda run workflow.json
  remuda run workflow.json --set 3.seed=42 --set \"Positive Prompt.text=a wild horse at dawn\" -o out
  remuda run img2img.json --input LoadImage.image=photo.png -o out --preview now.jpg
  remuda run workflow.json -n 4 -o out        four copies with different seeds, in parallel
  remuda run workflow.json --detach           print the job id and exit
  remuda run workflow.json --prefer gpu-1 --exclude gpu-7 --webhook https://example.org/done

Ctrl-C cancels the submitted jobs and waits until they have ended; a second Ctrl-C exits at once.
Exit code: 0 if every job completed, 1 if one did not, 2 for wrong arguments, 3 if the plane cannot be reached.";

/// As many outputs as one person can look through; for more, use a script.
const COPIES_MAX: i64 = 1000;

#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// File with the workflow, or - for standard input
    file: PathBuf,
    /// Change an input of the graph; NODE is an id, or a title or class that only one node has. VALUE is JSON if it is a
    /// number, true, false, null, a list or an object, otherwise text. May be repeated
    #[arg(long = "set", value_name = "NODE.INPUT=VALUE", value_parser = parse_change)]
    changes: Vec<InputChange>,
    /// Use a local file as an input of the graph; it is uploaded to the server that runs the job. May be repeated
    #[arg(long = "input", value_name = "NODE.INPUT=FILE", value_parser = parse_file)]
    files: Vec<InputFile>,
    /// Save output files in this folder; existing files are not overwritten
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Number of copies to run. In each, every number in an input called seed or noise_seed that was not --set is replaced
    /// by a random one
    #[arg(short = 'n', long, value_name = "COPIES", value_parser = clap::value_parser!(u32).range(1..=COPIES_MAX))]
    copies: Option<u32>,
    /// Write the newest preview to this file while the job runs
    #[arg(long, value_name = "FILE", conflicts_with = "detach")]
    preview: Option<PathBuf>,
    /// Service to run it; by default comfyui for a graph, exec for anything else
    #[arg(long)]
    service: Option<String>,
    /// Tenant of the job
    #[arg(long)]
    tenant: Option<String>,
    /// Priority from -128 to 127; higher runs first
    #[arg(long, default_value_t = 0, allow_hyphen_values = true)]
    priority: i8,
    /// Fail the job if it has not ended after this many seconds
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Idempotency key: submitting the same key again returns the same job
    #[arg(long, conflicts_with = "copies")]
    key: Option<String>,
    /// Metadata for every event of the job; may be repeated
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Print the job id and exit without waiting
    #[arg(long, conflicts_with = "output")]
    detach: bool,
    #[command(flatten)]
    options: JobOptionArgs,
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
    idempotency_key: &'a str,
    #[serde(skip_serializing_if = "Map::is_empty")]
    metadata: Map<String, Value>,
    #[serde(flatten)]
    options: Map<String, Value>,
}

/// Jobs whose files are fetched at the same time; more would only share the same bandwidth.
const DOWNLOADS_MAX: usize = 4;
/// 128 + SIGINT, as in shells.
pub(super) const INTERRUPTED: u8 = 130;

/// A plane that ended in the middle of a submission is back after this long, if a supervisor restarts it.
const UNKNOWN_MAX: Duration = Duration::from_secs(60);
const UNKNOWN_RETRY: Duration = Duration::from_secs(1);

/// Submits a job. If the outcome is unknown, it is sent again, with its key, until the plane says whether the job is there.
async fn send_until_known(
    client: &Client,
    submission: &Submission<'_>,
    interrupts: &mpsc::Receiver<()>,
) -> anyhow::Result<Value> {
    let began = Instant::now();
    let mut is_unknown = false;
    loop {
        let request = client.request(Method::POST, "/remuda/v1/jobs").timeout(super::client::REQUEST_TIMEOUT);
        match client.send(request.json(submission)).await {
            // Once it is unknown, every failure that may pass leaves it so.
            Err(error)
                if (is_outcome_unknown(&error) || is_unknown && is_retryable(&error))
                    && began.elapsed() < UNKNOWN_MAX
                    && interrupts.is_empty() =>
            {
                if !std::mem::replace(&mut is_unknown, true) {
                    let key = submission.idempotency_key;
                    eprintln!(
                        "remuda: {}; asking again with the key {}",
                        escape_control(&format!("{error:#}")),
                        escape_control(key)
                    );
                }
                tokio::time::sleep(UNKNOWN_RETRY).await;
            }
            answer => return answer,
        }
    }
}

/// Says which nodes of the graph are invalid: what depends on them does not run.
fn warn_of_left_out(submitted: &[Value]) {
    let node_errors = submitted.first().and_then(|answer| answer["node_errors"].as_object());
    for line in node_errors.into_iter().flat_map(describe_node_errors) {
        eprintln!("remuda: not run: {}", escape_control(&line));
    }
}

impl RunCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let mut interrupts = interrupts()?;
        let workflow = tokio::select! {
            workflow = self.prepare(&client) => workflow?,
            Some(()) = interrupts.recv() => return Ok(ExitCode::from(INTERRUPTED)),
        };
        let submitted = self.submit(&client, &workflow, &mut interrupts).await?;
        warn_of_left_out(&submitted);
        if self.detach {
            for answer in &submitted {
                print_line(&if self.connection.json {
                    answer.to_string()
                } else {
                    escape_control(&job_id(answer))
                });
            }
            return Ok(if submitted.len() == self.job_count() {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            });
        }
        let ids: Vec<String> = submitted.iter().map(job_id).collect();
        let previews = self.preview.clone().map(|path| PreviewFile::start(client.clone(), path));
        let view = ProgressView::new(&ids, self.connection.json);
        // A token limits the events to its tenant already.
        let default_tenant = client.credentials.token.is_empty().then_some("default");
        let tenant = self.tenant.as_deref().or(default_tenant);
        let follower = JobFollower::new(&client, tenant, &ids, view, previews.as_ref());
        let mut saver = OutputSaver::new(self.output.clone(), &client);
        follower.until_all_ended(&mut interrupts, |at, job| saver.save(at, job)).await?;
        let ended = saver.finish().await;
        if let Some(previews) = previews {
            previews.end().await;
        }
        Ok(self.print_results(&ended))
    }

    /// Checks all arguments and uploads input files before the first job is submitted.
    async fn prepare(&self, client: &Client) -> anyhow::Result<SubmittedWorkflow> {
        let mut workflow = SubmittedWorkflow::read(&self.file, self.service.is_some())?;
        workflow.apply(&self.changes)?;
        let inputs = workflow.find_inputs(&self.files)?;
        self.metadata()?;
        if let Some(folder) = &self.output {
            std::fs::create_dir_all(folder)
                .with_context(|| format!("cannot create the folder {}", folder.display()))?;
        }
        if let Some(folder) = self.preview.as_deref().and_then(|file| file.parent())
            && !folder.as_os_str().is_empty()
            && !folder.is_dir()
        {
            return Err(UsageError(format!("--preview: there is no folder {}", folder.display())).into());
        }
        if !self.files.is_empty() {
            // An unreachable plane is reported at once; the upload would retry first.
            client.get("/health/live").await?;
        }
        let link = BlobLink::with_credentials(&self.connection.url, &client.credentials);
        for (input, file) in inputs.iter().zip(&self.files) {
            let path = &file.path;
            let (hash, _) =
                link.store(path).await.with_context(|| format!("cannot store {}", path.display()))?;
            workflow.set_file(input, path, hash);
        }
        Ok(workflow)
    }

    async fn submit(
        &self,
        client: &Client,
        workflow: &SubmittedWorkflow,
        interrupts: &mut mpsc::Receiver<()>,
    ) -> anyhow::Result<Vec<Value>> {
        let copies = match self.copies {
            None => vec![workflow.to_json()],
            Some(copies) => (0..copies).map(|_| workflow.to_json_with_new_seeds()).collect(),
        };
        let mut submitted = Vec::new();
        for workflow in &copies {
            if !submitted.is_empty() && !interrupts.is_empty() {
                break;
            }
            // Every submission has a key, so that it can be repeated if its outcome is unknown.
            let own_key = uuid::Uuid::new_v4().to_string();
            let submission = Submission {
                workflow,
                priority: self.priority,
                service: self.service.as_deref(),
                tenant: self.tenant.as_deref(),
                deadline_seconds: self.deadline,
                idempotency_key: self.key.as_ref().unwrap_or(&own_key),
                metadata: self.metadata()?,
                options: self.options.fields(),
            };
            match send_until_known(client, &submission, interrupts).await {
                Ok(answer) if answer["id"].is_string() => submitted.push(answer),
                Ok(_) => anyhow::bail!("the plane's answer has no job id"),
                // Jobs submitted before are still followed.
                Err(error) if !submitted.is_empty() => {
                    let (done, of) = (submitted.len(), copies.len());
                    eprintln!(
                        "remuda: only {done} of {of} copies were accepted: {}",
                        escape_control(&format!("{error:#}"))
                    );
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(submitted)
    }

    fn job_count(&self) -> usize {
        self.copies.unwrap_or(1) as usize
    }

    fn metadata(&self) -> anyhow::Result<Map<String, Value>> {
        let pairs = self.metadata.iter().map(|pair| match pair.split_once('=') {
            Some((name, value)) => Ok((name.to_owned(), value.into())),
            None => Err(UsageError(format!("--meta takes NAME=VALUE, not {pair:?}")).into()),
        });
        pairs.collect()
    }

    /// Prints the results in the order of submission; returns the exit code.
    fn print_results(&self, ended: &[EndedJob]) -> ExitCode {
        let mut is_success = ended.len() == self.job_count();
        for EndedJob { job, saved, problems } in ended {
            let (id, is_completed) = (job_id(job), job["state"] == "completed");
            is_success &= is_completed && problems.is_empty();
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
                eprintln!("        `remuda why {}` explains why", escape_control(&id));
            }
            for problem in problems {
                eprintln!("remuda: job {}: {}", escape_control(&id), escape_control(problem));
            }
        }
        if is_success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}

fn job_id(job: &Value) -> String {
    job["id"].as_str().unwrap_or_default().to_owned()
}

/// A job that has ended, and its saved files.
#[derive(Debug)]
struct EndedJob {
    job: Value,
    /// The path of each file in the order of the result; empty without an output folder.
    saved: Vec<Option<PathBuf>>,
    problems: Vec<String>,
}

/// Saves the output files of each job as soon as it has ended.
#[derive(Debug)]
struct OutputSaver {
    folder: Option<PathBuf>,
    link: BlobLink,
    permits: Arc<Semaphore>,
    tasks: JoinSet<(usize, EndedJob)>,
}

impl OutputSaver {
    fn new(folder: Option<PathBuf>, client: &Client) -> OutputSaver {
        let permits = Arc::new(Semaphore::new(DOWNLOADS_MAX));
        OutputSaver {
            folder,
            link: BlobLink::with_credentials(&client.url, &client.credentials),
            permits,
            tasks: JoinSet::new(),
        }
    }

    fn save(&mut self, at: usize, mut job: Value) {
        let (folder, link, permits) = (self.folder.clone(), self.link.clone(), self.permits.clone());
        self.tasks.spawn(async move {
            // Fails only if the semaphore is closed, which never happens.
            let _permit = permits.acquire().await;
            let (mut saved, mut problems) = (Vec::new(), Vec::new());
            let outputs = save::result_files(&job["result"]).unwrap_or_default();
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

    /// Waits for all files; the jobs come back in the order of submission.
    async fn finish(self) -> Vec<EndedJob> {
        let mut ended = self.tasks.join_all().await;
        ended.sort_by_key(|(at, _)| *at);
        ended.into_iter().map(|(_, ended)| ended).collect()
    }
}

/// The first Ctrl-C is sent to the channel, the second exits the program.
fn interrupts() -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    let mut signals = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    tokio::spawn(async move {
        signals.recv().await;
        // The receiver is gone once everything has ended.
        sender.send(()).await.ok();
        signals.recv().await;
        std::process::exit(INTERRUPTED.into());
    });
    Ok(receiver)
}
