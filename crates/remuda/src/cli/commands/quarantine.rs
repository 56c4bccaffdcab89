//! `remuda quarantine`: lists the workflow shapes that failed on several workers, and releases them.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::Value;

use super::super::{Client, Connection};
use super::{cell, find_shape, rows, short_shape, show, table_with_reason};
use remuda_net::terminal::escape_control;

#[derive(Debug, Args)]
pub(crate) struct QuarantineCommand {
    #[command(subcommand)]
    command: Option<QuarantineAction>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum QuarantineAction {
    /// Release a shape: it may run again
    Release {
        /// The shape, or a unique prefix
        shape: String,
    },
}

impl QuarantineCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let answer = client.get("/remuda/v1/quarantine").await?;
        let Some(QuarantineAction::Release { shape }) = self.command else {
            show(&self.connection, &answer, || list(rows(&answer, "shapes")));
            return Ok(ExitCode::SUCCESS);
        };
        let shapes = rows(&answer, "shapes").iter().filter_map(|shape| shape["shape"].as_str());
        let Some(shape) = find_shape(shapes, &shape)? else {
            bail!(
                "no suspected or quarantined shape begins with {:?}; `remuda quarantine` lists them",
                escape_control(&shape)
            );
        };
        let answer = client.delete(&format!("/remuda/v1/quarantine/{shape}")).await?;
        show(&self.connection, &answer, || format!("{} was released", escape_control(shape)));
        Ok(ExitCode::SUCCESS)
    }
}

fn list(shapes: &[Value]) -> String {
    if shapes.is_empty() {
        return "no shape is suspected or quarantined".to_owned();
    }
    let titles = ["SHAPE", "STATE", "FAILED ON", "NEXT TRIAL", "TRIALS FAILED", "REASON"];
    table_with_reason(&titles, shapes.iter().map(row).collect())
}

fn row(shape: &Value) -> Vec<String> {
    let state = if shape["is_quarantined"] == true { "quarantined" } else { "suspected" };
    let failed_on: Vec<_> = rows(shape, "failed_on").iter().map(cell).collect();
    let [trial_at, trials_failed, reason] =
        ["trial_at", "trials_failed", "reason"].map(|name| cell(&shape[name]));
    vec![
        short_shape(&shape["shape"]),
        state.to_owned(),
        failed_on.join(", "),
        trial_at,
        trials_failed,
        reason,
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn suspected_and_quarantined_shapes_are_listed() {
        let shape = |is_quarantined, trial_at| {
            json!({ "shape": "0123456789abcdef", "is_quarantined": is_quarantined, "failed_on": ["red", "blue"],
                    "trial_at": trial_at, "trials_failed": 0, "reason": "exit code 3" })
        };
        let expected = "\
SHAPE         STATE        FAILED ON  NEXT TRIAL  TRIALS FAILED  REASON
0123456789ab  quarantined  red, blue  12:03       0              exit code 3
0123456789ab  suspected    red, blue  -           0              exit code 3";
        assert_eq!(list(&[shape(true, Some("12:03")), shape(false, None)]), expected);
    }
}
