//! `remuda workers`: lists the workers that have joined.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::super::{Client, Connection};
use super::{cell, rows, short_duration, show, table_with_reason, with_brake};

#[derive(Debug, Args)]
pub(crate) struct WorkersCommand {
    #[command(flatten)]
    connection: Connection,
}

impl WorkersCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let answer = client.get("/remuda/v1/workers").await?;
        show(&self.connection, &answer, || with_brake(&answer, list(&answer)));
        Ok(ExitCode::SUCCESS)
    }
}

fn list(answer: &Value) -> String {
    let workers = rows(answer, "workers");
    if workers.is_empty() {
        return advice(rows(answer, "own_servers"));
    }
    let titles = [
        "ID", "STATE", "PRESENCE", "SLOTS", "SEEN", "UPTIME", "STALE", "DONE", "FAILED", "LOST", "HOLDS",
        "REASON",
    ];
    table_with_reason(&titles, workers.iter().map(row).collect())
}

/// What to do while there are no workers.
fn advice(own_servers: &[Value]) -> String {
    if own_servers.is_empty() {
        return "no worker has joined: start one with `remuda worker --comfyui URL` or `remuda worker --exec COMMAND`"
            .to_owned();
    }
    let servers: Vec<_> = own_servers.iter().map(cell).collect();
    format!(
        "no worker has joined yet: this plane was started with ComfyUI at {}, and its worker joins as soon as that answers \
         and has passed a self-test. Is ComfyUI running there?",
        servers.join(", ")
    )
}

fn row(worker: &Value) -> Vec<String> {
    let holds = rows(worker, "holds");
    let slots = format!("{}/{}", holds.len(), cell(&worker["slots"]));
    let ago = worker["seen_millis_ago"]
        .as_u64()
        .map(|millis| format!("{} ago", short_duration(Duration::from_millis(millis))));
    let [id, state, presence, done, failed, lost] =
        ["id", "state", "presence", "completed", "failed", "lost"].map(|name| cell(&worker[name]));
    let seen = ago.unwrap_or_else(|| "-".to_owned());
    let [uptime, stale] = reliability(worker);
    vec![id, state, presence, slots, seen, uptime, stale, done, failed, lost, held(holds), reason(worker)]
}

/// Uptime in the last day and how often the worker went stale, marked if that was too often.
fn reliability(worker: &Value) -> [String; 2] {
    let day = &worker["reliability"]["day"];
    let uptime = day["uptime"].as_f64().map(|share| format!("{:.0}%", (share * 100.0).floor()));
    let mark = if worker["unreliable"] == true { "!" } else { "" };
    [uptime.unwrap_or_else(|| "-".to_owned()), format!("{}{mark}", cell(&day["went_stale"]))]
}

/// The reason why it accepts no work comes first.
fn reason(worker: &Value) -> String {
    match (
        worker["unavailable_reason"].as_str().unwrap_or_default(),
        worker["reason"].as_str().unwrap_or_default(),
    ) {
        ("", _) if worker["unreliable"] == true => {
            let stale = cell(&worker["reliability"]["hour"]["went_stale"]);
            format!("unreliable: went stale {stale} times within an hour")
        }
        ("", reason) => cell(&reason.into()),
        (unavailable, "") => format!("accepts no work: {unavailable}"),
        (unavailable, reason) => format!("accepts no work: {unavailable}; {reason}"),
    }
}

/// The first attempt it holds, and the number of others.
fn held(holds: &[Value]) -> String {
    let Some(first) = holds.first() else { return "-".to_owned() };
    let percent = first["progress"].as_f64().unwrap_or(0.0) * 100.0;
    let others = if holds.len() > 1 { format!(" +{}", holds.len() - 1) } else { String::new() };
    format!("{} {percent:.0}%{others}", cell(&first["job"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn workers_are_listed_with_their_attempts() {
        let red = json!({
            "id": "red", "state": "active", "presence": "online", "slots": 2, "seen_millis_ago": 4200, "completed": 7,
            "failed": 1, "lost": 0, "reason": "", "unreliable": true,
            "reliability": { "hour": { "went_stale": 3 }, "day": { "uptime": 0.998, "went_stale": 4 } },
            "holds": [{ "job": "j1", "attempt": 1, "progress": 0.4, "phase": "" }, { "job": "j2", "progress": 0.0 }],
        });
        let expected = "\
ID   STATE   PRESENCE  SLOTS  SEEN    UPTIME  STALE  DONE  FAILED  LOST  HOLDS      REASON
red  active  online    2/2    4s ago  99%     4!     7     1       0     j1 40% +1  unreliable: went stale 3 times within an hour";
        assert_eq!(list(&json!({ "workers": [red] })), expected);
    }

    #[test]
    fn without_workers_the_next_step_is_named() {
        assert!(list(&json!({ "workers": [] })).contains("remuda worker --comfyui"));
        let waiting = list(&json!({ "workers": [], "own_servers": ["http://gpu:8188"] }));
        assert!(waiting.contains("started with ComfyUI at http://gpu:8188"), "{waiting}");
    }

    #[test]
    fn unavailable_worker_is_shown_with_its_reason() {
        let unavailable = "ComfyUI does not answer";
        for (worker, expected) in [
            (
                json!({ "unavailable_reason": unavailable, "reason": "" }),
                "accepts no work: ComfyUI does not answer",
            ),
            (
                json!({ "unavailable_reason": unavailable, "reason": "drained" }),
                "accepts no work: ComfyUI does not answer; drained",
            ),
            (json!({ "reason": "drained" }), "drained"),
            (json!({}), "-"),
        ] {
            assert_eq!(reason(&worker), expected);
        }
    }
}
