//! `remuda run`: submit a workflow, follow it to its end, print what it gave.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};

use super::look::{Event, Reader};
use super::table::plain;
use super::{Client, Connection, say};

#[derive(Debug, Args)]
pub(super) struct Run {
    /// File with the workflow, or - for standard input
    file: PathBuf,
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
    #[arg(long)]
    key: Option<String>,
    /// Shown on every event of the job; may be repeated
    #[arg(long = "meta", value_name = "NAME=VALUE")]
    metadata: Vec<String>,
    /// Print the job's id and do not wait for its end
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Run {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection.url)?;
        let submitted = client.post("/fleet/jobs", &self.submission()?).await?;
        let id = submitted["id"].as_str().context("the plane did not say the job's id")?.to_owned();
        if self.detach {
            say(&if self.connection.json { submitted.to_string() } else { id });
            return Ok(ExitCode::SUCCESS);
        }
        let job = follow(&client, &id, !self.connection.json).await?;
        if self.connection.json {
            say(&job.to_string());
        } else if job["state"] == "completed" {
            say(&serde_json::to_string_pretty(&job["result"])?);
        } else {
            eprintln!("remuda: job {id} {}", job["reason"].as_str().unwrap_or("did not complete"));
            eprintln!("        `remuda why {id}` tells the whole story");
        }
        Ok(if job["state"] == "completed" { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn submission(&self) -> anyhow::Result<Value> {
        let text = if self.file.as_os_str() == "-" {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .context("cannot read the workflow from standard input")?;
            text
        } else {
            std::fs::read_to_string(&self.file)
                .with_context(|| format!("cannot read the workflow from {}", self.file.display()))?
        };
        let workflow: Value =
            serde_json::from_str(&text).with_context(|| format!("{} is not JSON", self.file.display()))?;
        let mut submission = json!({ "workflow": workflow, "priority": self.priority });
        let optional = [
            ("service", self.service.clone().map(Value::from)),
            ("tenant", self.tenant.clone().map(Value::from)),
            ("deadline_seconds", self.deadline.map(Value::from)),
            ("idempotency_key", self.key.clone().map(Value::from)),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                submission[name] = value;
            }
        }
        for pair in &self.metadata {
            let (name, value) =
                pair.split_once('=').with_context(|| format!("--meta takes NAME=VALUE, not {pair:?}"))?;
            submission["metadata"][name] = value.into();
        }
        Ok(submission)
    }
}

/// Follows a job to its end and gives the job as it then is. A cut line is taken up again where it broke.
pub(super) async fn follow(client: &Client, id: &str, shows: bool) -> anyhow::Result<Value> {
    let shows = shows && std::io::stderr().is_terminal();
    let mut last = 0;
    loop {
        let request =
            client.request(Method::GET, &format!("/fleet/events?job={id}")).header("last-event-id", last);
        let mut stream = client.open(request).await?.bytes_stream();
        let mut reader = Reader::default();
        while let Some(Ok(bytes)) = stream.next().await {
            for event in reader.feed(&bytes)? {
                last = event.id.unwrap_or(last);
                if shows {
                    show(&event);
                }
                if matches!(event.name.as_str(), "job:completed" | "job:failed" | "job:cancelled") {
                    return client.get(&format!("/fleet/jobs/{id}")).await;
                }
            }
        }
        let job = client.get(&format!("/fleet/jobs/{id}")).await?;
        if !matches!(job["state"].as_str(), Some("queued" | "running")) {
            return Ok(job);
        }
    }
}

fn show(event: &Event) {
    let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
    let text = |value: &Value| plain(value.as_str().unwrap_or_default());
    match event.name.as_str() {
        "job:progress" => {
            let percent = data["progress"].as_f64().unwrap_or(0.0) * 100.0;
            eprint!("\r\x1b[K{percent:3.0} % {}", text(&data["phase"]));
        }
        "job:queued" => eprint!("\r\x1b[Kwaiting"),
        "job:started" => eprint!("\r\x1b[Krunning on {}", text(&data["worker"])),
        "job:retrying" => eprintln!("\r\x1b[Kretrying: {}", text(&data["detail"]["reason"])),
        "job:completed" | "job:failed" | "job:cancelled" => eprint!("\r\x1b[K"),
        _ => {}
    }
}
