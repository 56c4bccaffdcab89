//! `remuda events`: prints events as they happen, one per line, across reconnects and restarts of the plane.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures_util::StreamExt;
use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Tenant, WorkerId};
use reqwest::{Method, RequestBuilder};
use serde_json::Value;

use super::super::client::Unreachable;
use super::super::short_id::{JobPrefix, find_name};
use super::super::{Client, Connection};
use super::{cell, rows};
use remuda_net::sse::{SseEvent, SseReader};
use remuda_net::terminal::escape_control;
use remuda_net::terminal::print_line;

/// A plane that restarts is back within seconds.
const RECONNECT_WAIT: Duration = Duration::from_secs(1);
/// Ten minutes of retries; a plane that is still away needs an operator.
const RECONNECTS_MAX: u32 = 600;

#[derive(Debug, Args)]
pub(crate) struct EventsCommand {
    /// Only events of this job; enough of the beginning of its id will do
    #[arg(long)]
    job: Option<JobPrefix>,
    /// Only events of this tenant's jobs
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Only events of this worker; enough of the beginning of its name will do
    #[arg(long)]
    worker: Option<WorkerId>,
    /// Only events of jobs with this metadata, such as user=anna or order.customer=7. May be repeated
    #[arg(long = "meta", value_name = "NAME=VALUE", value_parser = parse_pair)]
    metadata: Vec<(String, String)>,
    /// Only events with this name, such as job:failed, or of this kind, such as worker
    #[arg(long)]
    name: Option<String>,
    /// Start after this event number; 0 prints all stored events
    #[arg(long, value_name = "NUMBER")]
    after: Option<u64>,
    /// Print the stored events and exit
    #[arg(long, visible_alias = "once")]
    no_follow: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Whose events are wanted.
struct EventSubject {
    job: Option<JobId>,
    worker: Option<String>,
}

impl EventsCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        tokio::select! {
            result = self.follow() => result?,
            interrupted = tokio::signal::ctrl_c() => interrupted?,
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn follow(&self) -> anyhow::Result<()> {
        let client = Client::new(&self.connection)?;
        let about = self.resolve(&client).await?;
        if self.no_follow {
            let printed = self.read(&client, &about, &mut Some(self.after.unwrap_or(0))).await?;
            if printed == 0 && !self.connection.json {
                print_line("no matching events");
            }
            return Ok(());
        }
        let mut last = self.after;
        self.read(&client, &about, &mut last).await?;
        let mut failed = 0;
        loop {
            if failed == 0 {
                eprintln!("remuda: connection to the plane lost; reconnecting");
            }
            tokio::time::sleep(RECONNECT_WAIT).await;
            match self.read(&client, &about, &mut last).await {
                Ok(_) => failed = 0,
                Err(error) if error.is::<Unreachable>() && failed < RECONNECTS_MAX => failed += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// Prints events until the stream is cut or, with `--no-follow`, all stored events were printed. Returns their number;
    /// `last` is where to resume.
    async fn read(
        &self,
        client: &Client,
        about: &EventSubject,
        last: &mut Option<u64>,
    ) -> anyhow::Result<usize> {
        let mut stream = client.open_events(self.request(client, about, *last)).await?.bytes_stream();
        let (mut reader, mut printed) = (SseReader::default(), 0);
        while let Some(Ok(bytes)) = stream.next().await {
            for event in reader.feed(&bytes)? {
                *last = event.id.or(*last);
                match event.name.as_str() {
                    "caught_up" if self.no_follow => return Ok(printed),
                    "caught_up" => {}
                    _ => {
                        self.print(&event);
                        printed += 1;
                    }
                }
            }
        }
        Ok(printed)
    }

    /// The job and the worker by their whole names. A worker that is not there may join later.
    async fn resolve(&self, client: &Client) -> anyhow::Result<EventSubject> {
        let job = match &self.job {
            Some(job) => Some(job.find(client).await?),
            None => None,
        };
        let Some(typed) = &self.worker else { return Ok(EventSubject { job, worker: None }) };
        let answer = client.get("/remuda/v1/workers").await?;
        let names = rows(&answer, "workers").iter().filter_map(|worker| worker["id"].as_str());
        let worker = find_name("workers", names, typed.as_str())?.unwrap_or(typed.as_str()).to_owned();
        Ok(EventSubject { job, worker: Some(worker) })
    }

    fn request(&self, client: &Client, about: &EventSubject, last: Option<u64>) -> RequestBuilder {
        let request = events_request(client, last);
        let wanted = [
            ("job", about.job.map(|job| job.to_string())),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("worker", about.worker.clone()),
            ("name", self.name.clone()),
        ];
        let metadata = self.metadata.iter().map(|(name, value)| (format!("metadata.{name}"), value));
        request
            .query(&wanted.into_iter().filter(|(_, value)| value.is_some()).collect::<Vec<_>>())
            .query(&metadata.collect::<Vec<_>>())
    }

    fn print(&self, event: &SseEvent) {
        let data: Value = serde_json::from_str(&event.data).unwrap_or_default();
        print_line(&if self.connection.json { event.data.clone() } else { format_event(event, &data) });
    }
}

fn parse_pair(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(name, _)| !name.is_empty());
    pair.map(|(name, value)| (name.to_owned(), value.to_owned()))
        .ok_or_else(|| "expected NAME=VALUE".to_owned())
}

/// A request for all events after `last`, or from now on.
pub(crate) fn events_request(client: &Client, last: Option<u64>) -> RequestBuilder {
    let request = client.request(Method::GET, "/remuda/v1/events");
    match last {
        Some(last) => request.header("last-event-id", last),
        None => request,
    }
}

/// `SEQ TIME NAME job worker detail`; live events have no number and no time.
fn format_event(event: &SseEvent, data: &Value) -> String {
    let number = event.id.map_or_else(|| "-".to_owned(), |id| id.to_string());
    let about = [cell(&data["job"]), cell(&data["worker"])];
    let mut line = format!("{number:>6}  {:24}  {:16}", cell(&data["at"]), event.name);
    for part in about.into_iter().filter(|part| part != "-").chain(detail(event, data)) {
        line.push_str("  ");
        line.push_str(&part);
    }
    escape_control(line.trim_end())
}

fn detail(event: &SseEvent, data: &Value) -> Option<String> {
    match event.name.parse() {
        Ok(EventKind::JobProgress) => {
            let percent = data["progress"].as_f64().unwrap_or(0.0) * 100.0;
            Some(format!("{percent:.0} % {}", data["phase"].as_str().unwrap_or_default()))
        }
        Ok(EventKind::JobPreview) => {
            let attempt = cell(&data["attempt"]);
            Some(format!("attempt={attempt} {} of {} bytes", cell(&data["media"]), cell(&data["size_bytes"])))
        }
        Err(_) if event.name == "gap" && data["generation"].is_u64() => {
            Some(format!("generation {}: {}", cell(&data["generation"]), cell(&data["reason"])))
        }
        Err(_) if event.name == "gap" => {
            Some(format!("{} events missed; stored ones follow", cell(&data["missed"])))
        }
        Ok(_) | Err(_) => {
            let pairs = data["detail"].as_object()?.iter().filter(|(_, value)| !value.is_null());
            Some(pairs.map(|(name, value)| format!("{name}={}", cell(value))).collect::<Vec<_>>().join(" "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(id: Option<u64>, name: &str, data: &str, expected: &str) {
        let event = SseEvent { id, name: name.to_owned(), data: data.to_owned() };
        assert_eq!(format_event(&event, &serde_json::from_str(data).unwrap()), expected);
    }

    #[test]
    fn event_is_formatted_as_one_line() {
        check(
            Some(7),
            "job:retrying",
            r#"{"seq":7,"at":"2026-11-15T12:03:10.042Z","job":"j1","worker":"red","detail":{"attempt":1,"reason":"silent\nfor 3 s"}}"#,
            "     7  2026-11-15T12:03:10.042Z  job:retrying      j1  red  attempt=1 reason=silent\\u{a}for 3 s",
        );
        check(
            None,
            "job:progress",
            r#"{"job":"j1","worker":"red","progress":0.4,"phase":"decoding"}"#,
            "     -  -                         job:progress      j1  red  40 % decoding",
        );
        check(
            None,
            "job:preview",
            r#"{"job":"j1","worker":"red","attempt":2,"media":"image/png","url":"/x","size_bytes":4096}"#,
            "     -  -                         job:preview       j1  red  attempt=2 image/png of 4096 bytes",
        );
        check(Some(8), "fleet:brake", r#"{"at":"12:03"}"#, "     8  12:03                     fleet:brake");
    }
}
