//! `remuda alerts`: lists the alerts of the configuration with their state, and sends a test message.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use remuda_core::time::Timestamp;
use reqwest::Method;
use serde_json::{Value, json};

use super::super::{Client, Connection};
use super::{ago, cell, now, rows, show, table_with_reason};
use remuda_net::terminal::escape_control;

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  remuda alerts                    (every alert and whether it fires)
  remuda alerts --json
  remuda alerts test waiting       (sends one message on every channel of the alert `waiting`)";

/// A webhook, Slack and a command are tried one after the other.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);

#[derive(Debug, Args)]
pub(crate) struct AlertsCommand {
    #[command(subcommand)]
    command: Option<AlertsAction>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum AlertsAction {
    /// Send a test message on every channel of an alert
    Test {
        /// Name of the alert
        name: String,
    },
}

impl AlertsCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        match self.command {
            Some(AlertsAction::Test { name }) => test(&client, &self.connection, &name).await,
            None => {
                let answer = client.get("/remuda/v1/alerts").await?;
                show(&self.connection, &answer, || list(rows(&answer, "alerts"), now()));
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

async fn test(client: &Client, connection: &Connection, name: &str) -> anyhow::Result<ExitCode> {
    // A name from the configuration has no character that needs escaping; another one matches no route.
    let path = format!("/remuda/v1/alerts/{name}/test");
    let request = client.request(Method::POST, &path).json(&json!({})).timeout(TEST_TIMEOUT);
    let answer = client.send(request).await?;
    let sent = rows(&answer, "sent");
    show(connection, &answer, || sent.iter().map(sent_line).collect::<Vec<_>>().join("\n"));
    Ok(ExitCode::from(u8::from(!sent.iter().all(|it| it["accepted"] == true))))
}

fn sent_line(sent: &Value) -> String {
    let channel = cell(&sent["channel"]);
    match sent["problem"].as_str() {
        None => format!("{channel}: accepted"),
        Some(problem) => format!("{channel}: not accepted: {}", escape_control(problem)),
    }
}

fn list(alerts: &[Value], now: Timestamp) -> String {
    if alerts.is_empty() {
        return "no alerts are configured: add [[alert]] to remuda.toml (docs/alerts.md)".to_owned();
    }
    let titles = ["ALERT", "WHEN", "STATE", "SINCE", "TO", "ABOUT"];
    table_with_reason(&titles, alerts.iter().flat_map(|alert| alert_rows(alert, now)).collect())
}

/// One row for each incident, or one for a quiet alert.
fn alert_rows(alert: &Value, now: Timestamp) -> Vec<Vec<String>> {
    let [name, when, state] = ["name", "when", "state"].map(|field| cell(&alert[field]));
    let channels: Vec<_> = rows(alert, "channels").iter().filter_map(Value::as_str).collect();
    let channels = channels.join(", ");
    let row = |state: &str, since: String, about: String| {
        vec![name.clone(), when.clone(), state.to_owned(), since, channels.clone(), about]
    };
    let incidents = rows(alert, "incidents").iter().map(|incident| {
        let is_over = !incident["recovered_at"].is_null();
        let waiting = incident["undelivered"].as_u64().filter(|count| *count > 0);
        let waiting =
            waiting.map(|count| format!(" ({count} messages not delivered yet)")).unwrap_or_default();
        let about = format!("{}{waiting}", cell(&incident["text"]));
        row(if is_over { "recovered" } else { "firing" }, ago(&incident["raised_at"], now), about)
    });
    let pending = rows(alert, "pending").iter();
    let pending = pending.map(|it| row("pending", ago(&it["since"], now), cell(&it["subject"])));
    let found: Vec<_> = incidents.chain(pending).collect();
    if found.is_empty() { vec![row(&state, "-".to_owned(), "-".to_owned())] } else { found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_incident_is_a_row_and_a_quiet_alert_is_one_too() {
        let alerts = [
            json!({ "name": "stale", "when": "worker_unreliable", "state": "firing", "channels": ["slack", "log"],
                    "incidents": [{ "subject": "gpu-7", "text": "worker gpu-7 went stale too often",
                                    "raised_at": 60_000, "recovered_at": null, "undelivered": 1 }],
                    "pending": [] }),
            json!({ "name": "disk", "when": "store_full", "state": "ok", "channels": ["log"], "incidents": [], "pending": [] }),
        ];
        let expected = "\
ALERT  WHEN               STATE   SINCE  TO          ABOUT
stale  worker_unreliable  firing  2m     slack, log  worker gpu-7 went stale too often (1 messages not delivered yet)
disk   store_full         ok      -      log         -";
        assert_eq!(list(&alerts, Timestamp::from_millis(180_000)), expected);
    }
}
