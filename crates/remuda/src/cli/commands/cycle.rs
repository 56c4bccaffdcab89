//! `remuda cycle`: runs a control cycle now, plans one, or shows the newest ones.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::super::{Client, Connection};
use super::{cell, rows, show};
use remuda_net::terminal::escape_control;

#[derive(Debug, Args)]
pub(crate) struct CycleCommand {
    /// Show what a cycle would do now without doing it
    #[arg(long)]
    dry_run: bool,
    /// Show this many of the newest cycles instead, the newest last
    #[arg(long, value_name = "COUNT", conflicts_with = "dry_run")]
    last: Option<usize>,
    #[command(flatten)]
    connection: Connection,
}

impl CycleCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        if self.dry_run {
            let plan = client.get("/remuda/v1/plan").await?;
            show(&self.connection, &plan, || render_cycle("a cycle now would do this", &plan));
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(count) = self.last {
            let answer = client.get("/remuda/v1/cycles").await?;
            let newest = &rows(&answer, "cycles")[..count.min(rows(&answer, "cycles").len())];
            show(&self.connection, &json!({ "cycles": newest }), || render_cycles(newest));
            return Ok(ExitCode::SUCCESS);
        }
        let report = client.post("/remuda/v1/cycles", &json!({})).await?;
        show(&self.connection, &report, || render_cycle("a cycle ran", &report));
        Ok(ExitCode::SUCCESS)
    }
}

fn render_cycles(newest: &[Value]) -> String {
    if newest.is_empty() {
        return "no cycle has run yet; `remuda cycle` runs one".to_owned();
    }
    newest.iter().rev().map(|report| render_cycle("a cycle", report)).collect::<Vec<_>>().join("\n\n")
}

fn render_cycle(title: &str, report: &Value) -> String {
    let mut lines = vec![
        format!("{title} ({})", escape_control(&cell(&report["timestamp"]))),
        format!("actions  {}", counts(&report["actions"])),
        format!("status   {}", counts(&report["status"])),
    ];
    let fleets = report["fleets"].as_object().into_iter().flatten();
    lines.extend(fleets.map(|(fleet, report)| {
        let wanted = escape_control(&cell(&report["machines_wanted"]));
        format!("{}: {wanted} wanted; {}", escape_control(fleet), counts(&report["status"]))
    }));
    let reasons = rows(report, "reasons");
    lines.extend(reasons.iter().map(|reason| format!("- {}", escape_control(&cell(reason)))));
    if reasons.is_empty() {
        lines.push("nothing to do".to_owned());
    }
    lines.join("\n")
}

/// `queued_tasks 3, active_workers 2, …`, with the names of the report.
fn counts(counts: &Value) -> String {
    let Some(counts) = counts.as_object() else { return "-".to_owned() };
    counts
        .iter()
        .map(|(name, count)| escape_control(&format!("{name} {count}")))
        .collect::<Vec<_>>()
        .join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cycle_is_rendered_with_every_reason() {
        let report = json!({
            "timestamp": "12:03", "actions": { "workers_failed": 1 }, "status": { "active_workers": 2 },
            "fleets": { "gpus": { "machines_wanted": 4, "status": { "active_workers": 2 } } },
            "reasons": ["fail red: silent", "held back: spawn 2"],
        });
        let expected = "\
the newest cycle (12:03)
actions  workers_failed 1
status   active_workers 2
gpus: 4 wanted; active_workers 2
- fail red: silent
- held back: spawn 2";
        assert_eq!(render_cycle("the newest cycle", &report), expected);
    }
}
