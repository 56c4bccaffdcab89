//! `remuda why`: explains a job's state and history without logs.

use std::process::ExitCode;

use clap::Args;
use remuda_core::time::humanize;
use serde_json::Value;

use super::super::short_id::JobPrefix;
use super::super::{Client, Connection};
use super::{cell, parse_timestamp, rows, short_shape, show, table_with_reason};
use remuda_net::terminal::{escape_control, table};
use remuda_net::text::one_line;

/// How much of the first sentence is shown.
const SENTENCE_CHARS_MAX: usize = 400;

#[derive(Debug, Args)]
pub(crate) struct WhyCommand {
    /// The job's id, or enough of its beginning
    job: JobPrefix,
    /// Show every message whole, with its line breaks
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    connection: Connection,
}

impl WhyCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let job = self.job.find(&client).await?;
        let why = client.get(&format!("/remuda/v1/jobs/{job}/why")).await?;
        show(&self.connection, &why, || {
            let messages = self.verbose.then(|| messages(rows(&why, "attempts"))).flatten();
            [Some(explain_job(&why)), messages].into_iter().flatten().collect::<Vec<_>>().join("\n\n")
        });
        Ok(ExitCode::SUCCESS)
    }
}

/// The state in one sentence, then its attempts, candidates and blocks.
pub(crate) fn explain_job(why: &Value) -> String {
    let (state, reason) = (cell(&why["state"]), cell(&why["reason"]));
    // A reason such as "completed by red" contains the state already.
    let sentence = if reason.starts_with(&state) { reason } else { format!("{state}: {reason}") };
    let sentence = one_line(&sentence, SENTENCE_CHARS_MAX);
    let mut parts = vec![format!("job {}\n{sentence}", escape_control(&cell(&why["job"])))];
    parts.push(attempts(rows(why, "attempts")));
    parts.extend(services(rows(why, "attempts")));
    let (failures, infra_failures) = (cell(&why["failures"]), cell(&why["infra_failures"]));
    if (failures.as_str(), infra_failures.as_str()) != ("0", "0") {
        parts.push(format!(
            "failures of the job: {failures}; of workers, services or the plane: {infra_failures}"
        ));
    }
    parts.extend(candidates(rows(why, "candidates")));
    parts.extend(blocks(rows(why, "blocks")));
    parts.join("\n\n")
}

fn attempts(attempts: &[Value]) -> String {
    if attempts.is_empty() {
        return "no attempt yet".to_owned();
    }
    let rows: Vec<Vec<String>> = attempts
        .iter()
        .map(|attempt| {
            let (began, ended) =
                (parse_timestamp(&attempt["started_at"]), parse_timestamp(&attempt["ended_at"]));
            let took = began
                .zip(ended)
                .map_or_else(|| "-".to_owned(), |(began, ended)| humanize(ended.since(began)));
            let verdict = if ended.is_none() { "under way".to_owned() } else { cell(&attempt["message"]) };
            let began = began.map_or_else(|| "-".to_owned(), |at| at.to_string());
            vec![
                cell(&attempt["attempt"]),
                cell(&attempt["worker"]),
                began,
                took,
                cell(&attempt["cause"]),
                verdict,
            ]
        })
        .collect();
    table_with_reason(&["ATTEMPT", "WORKER", "STARTED", "TOOK", "CAUSE", "VERDICT"], rows)
}

/// What ended each attempt, whole.
fn messages(attempts: &[Value]) -> Option<String> {
    let told = attempts.iter().filter(|attempt| attempt["message"].as_str().is_some_and(|it| !it.is_empty()));
    let told = told.map(|attempt| {
        let message = cell(&attempt["message"]);
        let lines = message.lines().map(|line| format!("  {}", escape_control(line)));
        format!("attempt {}:\n{}", cell(&attempt["attempt"]), lines.collect::<Vec<_>>().join("\n"))
    });
    let told: Vec<_> = told.collect();
    (!told.is_empty()).then(|| told.join("\n"))
}

/// The service's view of each attempt that was submitted to it.
fn services(attempts: &[Value]) -> Option<String> {
    let at = |value: &Value| parse_timestamp(value).map_or_else(|| "-".to_owned(), |at| at.to_string());
    let submitted = attempts.iter().filter(|attempt| attempt["service"].is_object());
    let rows: Vec<Vec<String>> = submitted
        .map(|attempt| {
            let service = &attempt["service"];
            vec![
                cell(&attempt["attempt"]),
                cell(&service["service_job_id"]),
                at(&service["service_submitted_at"]),
                at(&service["last_service_check"]),
                cell(&service["service_status"]),
            ]
        })
        .collect();
    let titles = ["ATTEMPT", "SERVICE JOB", "SUBMITTED", "LAST PROBE", "SERVICE STATUS"];
    (!rows.is_empty()).then(|| table(&titles, &rows))
}

/// The workers that could run a waiting job, and why each does not.
fn candidates(candidates: &[Value]) -> Option<String> {
    if candidates.is_empty() {
        return None;
    }
    let rows: Vec<Vec<String>> = candidates
        .iter()
        .map(|candidate| {
            let obstacle = candidate["passed_over"].as_str().unwrap_or("none: it could run the job now");
            vec![cell(&candidate["worker"]), obstacle.to_owned()]
        })
        .collect();
    Some(table_with_reason(&["CANDIDATE", "OBSTACLE"], rows))
}

/// The workers blocked for the job's shape, and how to lift a block.
fn blocks(blocks: &[Value]) -> Option<String> {
    let first = blocks.iter().find(|block| block["is_blocked"] == true)?;
    let (worker, shape) = (cell(&first["worker"]), short_shape(&first["shape"]));
    let titles = ["WORKER", "FAILURES", "BLOCKED", "REASON"];
    let listed = table_with_reason(&titles, blocks.iter().map(block_row).collect());
    Some(format!(
        "{listed}\n`remuda blocks lift {} {}` ends a block at once",
        escape_control(&worker),
        escape_control(&shape)
    ))
}

fn block_row(block: &Value) -> Vec<String> {
    let until = if block["is_blocked"] == true {
        format!("until {}", cell(&block["until"]))
    } else {
        "no".to_owned()
    };
    vec![cell(&block["worker"]), cell(&block["failures"]), until, cell(&block["reason"])]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn lost_attempt_is_explained() {
        let why = json!({
            "job": "j1", "state": "completed", "reason": "completed by blue in attempt 2", "failures": 0, "infra_failures": 1,
            "candidates": [],
            "attempts": [
                { "attempt": 1, "worker": "red", "started_at": 1000, "ended_at": 4000, "cause": "worker",
                  "message": "worker red fell silent" },
                { "attempt": 2, "worker": "blue", "started_at": 5000, "ended_at": 5850, "message": "completed" },
            ],
        });
        let expected = "\
job j1
completed by blue in attempt 2

ATTEMPT  WORKER  STARTED                   TOOK    CAUSE   VERDICT
1        red     1970-01-01T00:00:01.000Z  3 s     worker  worker red fell silent
2        blue    1970-01-01T00:00:05.000Z  850 ms  -       completed

failures of the job: 0; of workers, services or the plane: 1";
        assert_eq!(explain_job(&why), expected);
    }

    #[test]
    fn long_errors_are_one_line_and_whole_with_verbose() {
        let error = format!("CUDA error: device-side assert triggered\nSearch for {}\nend", "x".repeat(500));
        let why = json!({
            "job": "j1", "state": "failed", "reason": format!("failed (job): {error}"), "failures": 1, "infra_failures": 0,
            "attempts": [{ "attempt": 1, "worker": "red", "started_at": 1, "ended_at": 2, "message": error }],
        });
        let told = explain_job(&why);
        assert_eq!(told.lines().count(), 7, "{told}");
        assert!(told.lines().all(|line| line.chars().count() < 420), "{told}");
        let whole = messages(rows(&why, "attempts")).unwrap_or_default();
        assert!(whole.starts_with("attempt 1:\n  CUDA error") && whole.ends_with("\n  end"), "{whole}");
    }

    #[test]
    fn service_status_is_listed_per_attempt() {
        let service = json!({ "service_job_id": "s2", "service_submitted_at": "1970-01-01T00:00:05.100Z",
                              "last_service_check": null, "service_status": "running" });
        let attempts = [json!({ "attempt": 1 }), json!({ "attempt": 2, "service": service })];
        let expected = "\
ATTEMPT  SERVICE JOB  SUBMITTED                 LAST PROBE  SERVICE STATUS
2        s2           1970-01-01T00:00:05.100Z  -           running";
        assert_eq!(services(&attempts).as_deref(), Some(expected));
        assert_eq!(services(&attempts[..1]), None);
    }

    #[test]
    fn waiting_job_lists_its_candidates() {
        let why = json!({
            "job": "j1", "state": "queued", "reason": "all 1 workers that could are busy", "failures": 0, "infra_failures": 0,
            "attempts": [], "candidates": [{ "worker": "red", "passed_over": "is busy" }, { "worker": "blue" }],
        });
        let expected = "\
job j1
queued: all 1 workers that could are busy

no attempt yet

CANDIDATE  OBSTACLE
red        is busy
blue       none: it could run the job now";
        assert_eq!(explain_job(&why), expected);
    }
}
