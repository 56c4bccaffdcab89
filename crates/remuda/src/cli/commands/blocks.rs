//! `remuda blocks`: lists the workers that a shape may not run on for now, and lifts such blocks.

use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use remuda_core::id::WorkerId;
use serde_json::Value;

use super::super::short_id::find_name;
use super::super::{Client, Connection};
use super::{cell, find_shape, rows, short_shape, show, table_with_reason};
use remuda_net::terminal::escape_control;

#[derive(Debug, Args)]
pub(crate) struct BlocksCommand {
    #[command(subcommand)]
    command: Option<BlocksAction>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum BlocksAction {
    /// Lift a block: the worker may run the shape again
    Lift {
        /// The worker, or enough of the beginning of its name
        worker: WorkerId,
        /// The shape, or a unique prefix
        shape: String,
    },
}

impl BlocksCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let answer = client.get("/remuda/v1/blocks").await?;
        let Some(BlocksAction::Lift { worker, shape }) = self.command else {
            show(&self.connection, &answer, || list(rows(&answer, "blocks")));
            return Ok(ExitCode::SUCCESS);
        };
        let workers = rows(&answer, "blocks").iter().filter_map(|block| block["worker"].as_str());
        let worker = find_name("workers", workers, worker.as_str())?.unwrap_or(worker.as_str());
        let of_worker = rows(&answer, "blocks").iter().filter(|block| block["worker"] == worker);
        let shapes = of_worker.filter_map(|block| block["shape"].as_str());
        let Some(shape) = find_shape(shapes, &shape)? else {
            let shape = escape_control(&shape);
            bail!(
                "no block of worker {worker} has a shape that begins with {shape:?}; `remuda blocks` lists them all"
            );
        };
        let answer = client.delete(&format!("/remuda/v1/blocks/{worker}/{shape}")).await?;
        show(&self.connection, &answer, || format!("{worker} may run {} again", escape_control(shape)));
        Ok(ExitCode::SUCCESS)
    }
}

fn list(blocks: &[Value]) -> String {
    if blocks.is_empty() {
        return "no blocks: every worker may run every workflow".to_owned();
    }
    let titles = ["WORKER", "SHAPE", "FOR", "FAILURES", "BLOCKED", "REASON"];
    table_with_reason(&titles, blocks.iter().map(row).collect())
}

fn row(block: &Value) -> Vec<String> {
    let blocked = if block["is_blocked"] == true {
        format!("until {}", cell(&block["until"]))
    } else {
        "no".to_owned()
    };
    let [worker, failures, reason] = ["worker", "failures", "reason"].map(|name| cell(&block[name]));
    let scope = match block["scope"].as_str() {
        Some("workflow") => "one workflow".to_owned(),
        Some("tenant") => format!("tenant {}", cell(&block["tenant"])),
        Some(_) | None => "everyone".to_owned(),
    };
    vec![worker, short_shape(&block["shape"]), scope, failures, blocked, reason]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_listed_with_a_short_shape() {
        let block = |is_blocked| {
            json!({ "worker": "red", "scope": "tenant", "tenant": "anna", "shape": "0123456789abcdef",
                    "failures": 1, "is_blocked": is_blocked,
                    "until": "2026-11-15T12:03:10.042Z", "reason": "out of memory" })
        };
        let expected = "\
WORKER  SHAPE         FOR          FAILURES  BLOCKED                         REASON
red     0123456789ab  tenant anna  1         until 2026-11-15T12:03:10.042Z  out of memory
red     0123456789ab  tenant anna  1         no                              out of memory";
        assert_eq!(list(&[block(true), block(false)]), expected);
    }
}
