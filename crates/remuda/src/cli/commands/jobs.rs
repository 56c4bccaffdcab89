//! `remuda jobs` and `remuda cancel`.

mod retry;
mod watch;

use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use remuda_core::id::{JobId, Tenant};
use remuda_core::record::StateRow;
use remuda_core::time::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::client::{NoPlane, Unreachable};
use super::super::short_id::JobPrefix;
use super::super::{Client, Connection, UsageError};
use super::{
    cell, now, parse_timestamp, request, rows, short_duration, show, terminal_size, truncate, with_brake,
};
use remuda_net::terminal::print_line;
use remuda_net::terminal::{escape_control, table};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct JobsCommand {
    #[command(subcommand)]
    action: Option<JobsAction>,
    /// Only jobs in this state
    #[arg(long, value_parser = PossibleValuesParser::new(StateRow::NAMES))]
    state: Option<String>,
    /// Only jobs of this tenant
    #[arg(long)]
    tenant: Option<Tenant>,
    /// Number of jobs to list, at most 1000
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Only jobs older than this one
    #[arg(long, value_name = "JOB")]
    before: Option<JobPrefix>,
    /// Keep the list up to date until Ctrl-C; without a terminal, or with --json, print a line for each change
    #[arg(long, conflicts_with = "before")]
    watch: bool,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum JobsAction {
    /// Run ended jobs again, as new jobs that name the old ones
    #[command(after_help = retry::EXAMPLES)]
    Retry(retry::RetryArgs),
}

impl JobsCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        if let Some(JobsAction::Retry(retry)) = self.action {
            return retry.run(&client, &self.connection).await;
        }
        if self.watch {
            return watch::run(&self, &client).await;
        }
        let before = match &self.before {
            Some(before) => Some(before.find(&client).await?),
            None => None,
        };
        let answer = request(&client, Method::GET, "/remuda/v1/jobs", &self.query(before)).await?;
        show(&self.connection, &answer, || match rows(&answer, "jobs") {
            [] => self.empty_message(),
            jobs => {
                let listed = list(jobs, now(), terminal_size().map(|(width, _)| width));
                let listed = with_brake(&answer, listed);
                match answer["next"].as_str() {
                    Some(next) => format!("{listed}\n\nmore: {}", self.next_page(next)),
                    None => listed,
                }
            }
        });
        Ok(ExitCode::SUCCESS)
    }

    fn query(&self, before: Option<JobId>) -> Vec<(&'static str, String)> {
        let optional = [
            ("state", self.state.clone()),
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("before", before.map(|job| job.to_string())),
            ("limit", Some(self.limit.to_string())),
        ];
        optional.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
    }

    fn empty_message(&self) -> String {
        if self.before.is_some() {
            return "no more jobs".to_owned();
        }
        match (&self.state, &self.tenant) {
            (None, None) => "no jobs yet: submit one with `remuda run FILE`".to_owned(),
            (Some(state), None) => format!("no {state} jobs"),
            (None, Some(tenant)) => format!("no jobs of {tenant}"),
            (Some(state), Some(tenant)) => format!("no {state} jobs of {tenant}"),
        }
    }

    /// The command that shows the next page.
    fn next_page(&self, next: &str) -> String {
        let mut command = "remuda jobs".to_owned();
        for (name, value) in self.query(None) {
            command.push_str(&format!(" --{name} {value}"));
        }
        format!("{command} --before {}", escape_control(next))
    }
}

/// Minimum width of the reason, even in a narrow terminal.
const REASON_MIN: usize = 24;

const TITLES: [&str; 9] =
    ["ID", "STATE", "TENANT", "PRIO", "TRIES", "CHANGED", "WORKER", "SERVICE", "REASON"];

fn list(jobs: &[Value], now: Timestamp, columns: Option<usize>) -> String {
    let mut listed: Vec<Vec<String>> = jobs.iter().map(|job| row(job, now)).collect();
    // Without a terminal nothing is cut, but every job is one line.
    let width = columns.map_or(usize::MAX, |columns| {
        let before = table(&TITLES[..TITLES.len() - 1], &listed);
        let before = before.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        columns.saturating_sub(before + 2).max(REASON_MIN)
    });
    for reason in listed.iter_mut().filter_map(|row| row.last_mut()) {
        *reason = truncate(reason, width);
    }
    table(&TITLES, &listed)
}

fn row(job: &Value, now: Timestamp) -> Vec<String> {
    let changed = parse_timestamp(&job["changed_at"])
        .map_or_else(|| "-".to_owned(), |at| short_duration(now.since(at)));
    let [id, state, tenant, priority, attempt, worker, reason] =
        ["id", "state", "tenant", "priority", "attempt", "worker", "reason"].map(|name| cell(&job[name]));
    // The service status of an ended job is outdated.
    let service = match job["service_status"].as_str() {
        Some(status) if state == "running" && !status.is_empty() => {
            format!("{}: {status}", cell(&job["service"]))
        }
        Some(_) | None => cell(&job["service"]),
    };
    vec![id, state, tenant, priority, attempt, changed, worker, service, reason]
}

#[derive(Debug, Args)]
pub(crate) struct CancelCommand {
    /// Jobs to cancel, by their ids or enough of their beginnings
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<JobPrefix>,
    /// Reason, shown with the job
    #[arg(long)]
    reason: Option<String>,
    #[command(flatten)]
    connection: Connection,
}

impl CancelCommand {
    /// A job that cannot be cancelled does not stop the others from being cancelled.
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let mut code = ExitCode::SUCCESS;
        for job in &self.jobs {
            match self.cancel(&client, job).await {
                Ok(()) => {}
                // It is not known which job is meant.
                Err(error)
                    if error.is::<Unreachable>() || error.is::<NoPlane>() || error.is::<UsageError>() =>
                {
                    return Err(error);
                }
                Err(error) => {
                    code = ExitCode::FAILURE;
                    if self.connection.json {
                        let told = json!({ "id": job.to_string(), "error": error.to_string() });
                        print_line(&told.to_string());
                    } else {
                        eprintln!("remuda: job {job}: {}", escape_control(&format!("{error:#}")));
                    }
                }
            }
        }
        Ok(code)
    }

    async fn cancel(&self, client: &Client, job: &JobPrefix) -> anyhow::Result<()> {
        let job = job.find(client).await?;
        let body = json!({ "reason": self.reason.clone().unwrap_or_default() });
        let answer = client.post(&format!("/remuda/v1/jobs/{job}/cancel"), &body).await?;
        show(&self.connection, &answer, || format!("{job} cancelled"));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn jobs() -> Vec<Value> {
        let reason = "all 2 workers that could are busy; 41 others wait too (fair share)";
        vec![
            json!({ "id": "j1", "state": "queued", "tenant": "anna", "priority": 5, "attempt": 0, "reason": reason,
                    "service": "exec", "changed_at": "1970-01-01T00:00:08.000Z" }),
            json!({ "id": "j2", "state": "running", "tenant": "b", "priority": -1, "attempt": 2, "worker": "red",
                    "reason": "running on red\nfor 2 s", "service": "comfyui", "service_status": "pending",
                    "changed_at": "1970-01-01T00:00:00.000Z" }),
        ]
    }

    #[test]
    fn jobs_are_listed_with_a_reason_that_fits_the_terminal() {
        let shown = list(&jobs(), Timestamp::from_millis(70_000), Some(107));
        let expected = "\
ID  STATE    TENANT  PRIO  TRIES  CHANGED  WORKER  SERVICE           REASON
j1  queued   anna    5     0      1m       -       exec              all 2 workers that could are busy; 41…
j2  running  b       -1    2      1m       red     comfyui: pending  running on red for 2 s";
        assert_eq!(shown, expected);
        assert!(shown.lines().all(|line| line.chars().count() <= 107));
    }

    #[test]
    fn without_a_terminal_nothing_is_cut() {
        let shown = list(&jobs(), Timestamp::ZERO, None);
        assert!(shown.contains("(fair share)") && shown.contains("red for 2 s"));
    }

    #[test]
    fn the_next_page_is_a_command_to_type() {
        #[derive(Debug, clap::Parser)]
        struct Typed {
            #[command(flatten)]
            jobs: JobsCommand,
        }
        let typed: Typed = clap::Parser::parse_from(["remuda", "--state", "failed", "--limit", "2"]);
        assert_eq!(typed.jobs.next_page("j9"), "remuda jobs --state failed --limit 2 --before j9");
        assert_eq!(typed.jobs.empty_message(), "no failed jobs");
    }
}
