//! `remuda jobs retry`: runs ended jobs again.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use remuda_core::id::Tenant;
use remuda_net::clock::Clock;
use remuda_net::terminal::{escape_control, print_line};
use reqwest::Method;
use serde_json::{Value, json};

use super::super::super::client::Unreachable;
use super::super::super::short_id::JobPrefix;
use super::super::super::{Client, Connection};
use super::super::{parse_timestamp, request, rows, show};

pub(super) const EXAMPLES: &str = "\
Examples:
  remuda jobs retry 0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11
  remuda jobs retry --failed --since 1h
  remuda jobs retry --failed --since 1d --of anna --json";

/// Jobs of one page.
const PAGE: &str = "1000";
/// One call runs no more jobs again than this; the next call takes the rest.
const JOBS_MAX: usize = 10_000;

#[derive(Debug, Args)]
pub(super) struct RetryArgs {
    /// Ended jobs to run again, by their ids or enough of their beginnings
    #[arg(value_name = "JOB", required_unless_present = "failed", conflicts_with = "failed")]
    jobs: Vec<JobPrefix>,
    /// Run every failed job again that ended within --since
    #[arg(long, requires = "since")]
    failed: bool,
    /// How long ago a failed job may have ended: 30m, 1h, 1d
    #[arg(long, value_name = "TIME", value_parser = remuda_config::parse_duration, requires = "failed")]
    since: Option<Duration>,
    /// With --failed: only jobs of this tenant
    #[arg(long, value_name = "TENANT", requires = "failed")]
    of: Option<Tenant>,
}

impl RetryArgs {
    /// A job that cannot be run again does not stop the others.
    pub(super) async fn run(self, client: &Client, connection: &Connection) -> anyhow::Result<ExitCode> {
        let jobs = match self.since {
            Some(since) => self.failed_jobs(client, since).await?,
            None => {
                let mut jobs = Vec::new();
                for job in &self.jobs {
                    jobs.push(job.find(client).await?.to_string());
                }
                jobs
            }
        };
        if jobs.is_empty() {
            show(connection, &json!({ "retried": 0 }), || "no failed job ended within that time".to_owned());
        }
        let mut code = ExitCode::SUCCESS;
        for job in jobs {
            match client.post(&format!("/remuda/v1/jobs/{job}/retry"), &json!({})).await {
                Ok(answer) => show(connection, &answer, || {
                    format!(
                        "{job} runs again as {}",
                        escape_control(answer["id"].as_str().unwrap_or_default())
                    )
                }),
                Err(error) if error.is::<Unreachable>() => return Err(error),
                Err(error) => {
                    code = ExitCode::FAILURE;
                    if connection.json {
                        print_line(&json!({ "retry_of": job, "error": error.to_string() }).to_string());
                    } else {
                        eprintln!("remuda: job {job}: {}", escape_control(&format!("{error:#}")));
                    }
                }
            }
        }
        Ok(code)
    }

    /// Failed jobs that ended within this time and were not run again within it, newest first.
    async fn failed_jobs(&self, client: &Client, since: Duration) -> anyhow::Result<Vec<String>> {
        let from = Clock::starting_now().now().minus(since);
        let (mut found, mut before): (Vec<String>, Option<String>) = (Vec::new(), None);
        while found.len() < JOBS_MAX {
            let mut query = vec![("state", "failed".to_owned()), ("limit", PAGE.to_owned())];
            query.extend(self.of.as_ref().map(|tenant| ("tenant", tenant.to_string())));
            query.extend(before.take().map(|before| ("before", before)));
            let page = request(client, Method::GET, "/remuda/v1/jobs", &query).await?;
            let is_recent = |job: &&Value| parse_timestamp(&job["changed_at"]).is_some_and(|at| at >= from);
            let recent = rows(&page, "jobs").iter().filter(is_recent);
            found.extend(recent.filter_map(|job| Some(job["id"].as_str()?.to_owned())));
            before = page["next"].as_str().map(str::to_owned);
            if before.is_none() {
                break;
            }
        }
        found.truncate(JOBS_MAX);
        Ok(found)
    }
}
