//! `remuda status`: the whole picture in ten lines.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::super::{Client, Connection};
use super::{cell, money, rows, short_duration, show};
use remuda_net::terminal::escape_control;

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda status
  remuda status --json | jq .brakes     what is held back, why, and until when
  watch -n 2 remuda status              follow a recovery";

#[derive(Debug, Args)]
pub(crate) struct StatusCommand {
    #[command(flatten)]
    connection: Connection,
}

impl StatusCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let answer = client.get("/remuda/v1/status").await?;
        show(&self.connection, &answer, || picture(&answer));
        Ok(ExitCode::SUCCESS)
    }
}

fn picture(status: &Value) -> String {
    let lines = [
        (
            "plane",
            format!(
                "version {}, term {}, {}{}{}{}",
                cell(&status["version"]),
                cell(&status["term"]),
                tasks(status),
                clock(status),
                certificate(status),
                refused_connections(status)
            ),
        ),
        ("store", store(status)),
        ("jobs", jobs(status)),
        ("oldest", oldest(status)),
        ("workers", counts(&status["workers_by_availability"], "none has joined")),
        ("brakes", brakes(status)),
        ("fleets", fleets(status)),
        ("provider", trouble(status)),
        (
            "blocks",
            format!(
                "{} blocks, {} shapes in quarantine",
                cell(&status["blocks"]),
                cell(&status["quarantined"])
            ),
        ),
        ("unreliable", unreliable(status)),
    ];
    let lines = lines.map(|(name, text)| format!("{name:<11}{}", escape_control(&text)));
    lines.join("\n")
}

fn tasks(status: &Value) -> String {
    let down: Vec<_> = rows(status, "tasks")
        .iter()
        .filter(|task| task["state"] == "down")
        .map(|task| cell(&task["name"]))
        .collect();
    match down.is_empty() {
        true => "all background tasks run".to_owned(),
        false => format!("DOWN: {}; restart the plane, its log says why", down.join(", ")),
    }
}

fn clock(status: &Value) -> String {
    status["clock"]["problem"].as_str().map_or(String::new(), |problem| format!("; CLOCK: {problem}"))
}

fn certificate(status: &Value) -> String {
    let ends_at = status["tls"]["ends_at"].as_str();
    ends_at.map_or_else(String::new, |at| format!(", certificate valid until {at}"))
}

fn refused_connections(status: &Value) -> String {
    let refused = status["connections"]["refused"].as_object().into_iter().flatten();
    match refused.filter_map(|(_, count)| count.as_u64()).sum::<u64>() {
        0 => String::new(),
        count => format!(", {count} connections refused (--json says which)"),
    }
}

fn store(status: &Value) -> String {
    match status["store"]["has_reserve"].as_bool() {
        Some(false) => "the disk is full: submissions are refused until there is space".to_owned(),
        _ => "accepts writes".to_owned(),
    }
}

fn jobs(status: &Value) -> String {
    let [open, running, waiting] =
        ["open_jobs", "running_jobs", "waiting_jobs"].map(|name| cell(&status[name]));
    format!(
        "{open} open: {running} running, {waiting} waiting ({} could start now)",
        cell(&status["ready_jobs"])
    )
}

fn oldest(status: &Value) -> String {
    let oldest = &status["oldest_waiting"];
    let Some(millis) = oldest["waits_millis"].as_u64() else { return "no job waits".to_owned() };
    let waits = short_duration(Duration::from_millis(millis));
    format!("{} waits for {waits}: {}", cell(&oldest["job"]), cell(&oldest["reason"]))
}

fn counts(counts: &Value, none: &str) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let counts: Vec<_> = counts.map(|(name, count)| format!("{} {name}", cell(count))).collect();
    if counts.is_empty() { none.to_owned() } else { counts.join(", ") }
}

fn brakes(status: &Value) -> String {
    let brakes: Vec<_> = rows(status, "brakes").iter().map(|brake| cell(&brake["reason"])).collect();
    if brakes.is_empty() { "none is on".to_owned() } else { brakes.join("; ") }
}

fn fleets(status: &Value) -> String {
    let shown = |fleet: &Value| {
        format!(
            "{}: {} machines, {}/h, {} today",
            cell(&fleet["fleet"]),
            cell(&fleet["machines"]),
            money(&fleet["per_hour_dollars"]),
            money(&fleet["today_dollars"])
        )
    };
    let fleets: Vec<_> = rows(status, "fleets").iter().map(shown).collect();
    if fleets.is_empty() { "none is configured".to_owned() } else { fleets.join("; ") }
}

fn trouble(status: &Value) -> String {
    let trouble = rows(status, "fleets").iter().filter(|fleet| fleet["trouble"].is_string());
    let trouble: Vec<_> =
        trouble.map(|fleet| format!("{}: {}", cell(&fleet["fleet"]), cell(&fleet["trouble"]))).collect();
    if trouble.is_empty() { "no trouble".to_owned() } else { trouble.join("; ") }
}

fn unreliable(status: &Value) -> String {
    let names = ["workers", "machines"].map(|kind| rows(&status["unreliable"], kind).len());
    format!("{} workers and {} machines went stale too often within an hour", names[0], names[1])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn picture_has_ten_lines_and_names_the_brake() {
        let status = json!({
            "version": "0.1.0", "term": 3, "open_jobs": 5, "running_jobs": 2, "waiting_jobs": 3, "ready_jobs": 1,
            "oldest_waiting": { "job": "j1", "waits_millis": 65_000, "reason": "no worker is online" },
            "workers_by_availability": { "offline": 2, "ready": 1 },
            "brakes": [{ "kind": "mass_loss", "reason": "mass-loss brake, on for 1 min: 3 machines are silent", "until": "12:00" }],
            "fleets": [{ "fleet": "gpus", "machines": 2, "per_hour_dollars": 1.5, "today_dollars": 3.0, "trouble": "401 from the provider" }],
            "clock": { "ahead_millis": 3_600_000, "problem": "the clock of this machine is 1 h ahead" },
            "blocks": 1, "quarantined": 0, "store": { "has_reserve": true },
            "tasks": [{ "name": "http", "state": "running" }],
            "tls": { "ends_at": "2027-01-02T03:04:05Z" },
            "connections": { "refused": { "clients": 2, "without_request": 3 } },
            "unreliable": { "workers": ["a"], "machines": [] },
        });
        let picture = picture(&status);
        assert_eq!(picture.lines().count(), 10, "{picture}");
        for part in [
            "5 open: 2 running, 3 waiting",
            "j1 waits for 1m: no worker is online",
            "2 offline, 1 ready",
            "mass-loss brake, on for 1 min",
            "gpus: 2 machines, $1.50/h",
            "gpus: 401 from the provider",
            "1 blocks, 0 shapes in quarantine",
            "all background tasks run; CLOCK: the clock of this machine is 1 h ahead, certificate valid until 2027-01-02T03:04:05Z, 5 connections refused",
        ] {
            assert!(picture.contains(part), "{part} is not in\n{picture}");
        }
    }

    #[test]
    fn empty_plane_has_a_picture_too() {
        let picture = picture(&json!({}));
        assert!(picture.contains("none has joined") && picture.contains("none is on"), "{picture}");
    }
}
