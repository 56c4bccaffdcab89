//! `remuda cycle`: what the newest control cycle did, or what one would do now.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::super::table::plain;
use super::super::{Client, Connection};
use super::{cell, rows, show};

#[derive(Debug, Args)]
pub(crate) struct Cycle {
    /// Show what a cycle would do now, and do nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    connection: Connection,
}

impl Cycle {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        if self.dry_run {
            let plan = client.get("/fleet/plan").await?;
            show(&self.connection, &plan, || tell("a cycle now would do this", &plan));
            return Ok(ExitCode::SUCCESS);
        }
        let answer = client.get("/fleet/cycles").await?;
        let newest = rows(&answer, "cycles").first();
        show(&self.connection, newest.unwrap_or(&Value::Null), || match newest {
            Some(newest) => tell("the newest cycle", newest),
            None => "no cycle has run yet; `remuda cycle --dry-run` shows what one would do".to_owned(),
        });
        Ok(ExitCode::SUCCESS)
    }
}

fn tell(title: &str, report: &Value) -> String {
    let mut lines = vec![
        format!("{title} ({})", plain(&cell(&report["timestamp"]))),
        format!("actions  {}", counts(&report["actions"])),
        format!("status   {}", counts(&report["status"])),
    ];
    let reasons = rows(report, "reasons");
    lines.extend(reasons.iter().map(|reason| format!("- {}", plain(&cell(reason)))));
    if reasons.is_empty() {
        lines.push("nothing to do".to_owned());
    }
    lines.join("\n")
}

/// `queued_tasks 3, active_workers 2, …`, in the words of the report.
fn counts(counts: &Value) -> String {
    let Some(counts) = counts.as_object() else { return "-".to_owned() };
    counts.iter().map(|(name, count)| plain(&format!("{name} {count}"))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cycle_is_told_with_every_reason() {
        let report = json!({
            "timestamp": "12:03", "actions": { "workers_failed": 1 }, "status": { "active_workers": 2 },
            "reasons": ["fail red: silent", "held back: spawn 2"],
        });
        let expected = "\
the newest cycle (12:03)
actions  workers_failed 1
status   active_workers 2
- fail red: silent
- held back: spawn 2";
        assert_eq!(tell("the newest cycle", &report), expected);
    }
}
