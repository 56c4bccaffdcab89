//! `remuda affinities`: the workers a workflow shape prefers or avoids.

use std::path::Path;
use std::process::ExitCode;

use anyhow::bail;
use clap::{Args, Subcommand};
use remuda_core::id::{Shape, WorkerId};
use remuda_core::workflow::{Workflow, WorkflowLimits};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::super::{Client, Connection, UsageError};
use super::{REQUEST_TIMEOUT, cell, find_shape, rows, short_shape, show};
use remuda_net::terminal::{escape_control, table};

#[derive(Debug, Args)]
pub(crate) struct AffinitiesCommand {
    #[command(subcommand)]
    command: Option<AffinitiesAction>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum AffinitiesAction {
    /// Set the affinity of a shape, replacing its earlier one
    ///
    /// Preferred workers are chosen first while they are free, others otherwise. Excluded workers never get the job, even
    /// if no other worker is left; `remuda why JOB` shows that.
    Set {
        /// The whole shape (see `remuda jobs --json` or `remuda blocks --json`), or a workflow file with that shape
        #[arg(value_name = "SHAPE|FILE")]
        shape: String,
        /// Worker to choose first
        #[arg(long, value_name = "WORKER")]
        prefer: Vec<WorkerId>,
        /// Worker that never gets the job
        #[arg(long, value_name = "WORKER")]
        exclude: Vec<WorkerId>,
    },
    /// Let a shape run anywhere again
    Remove {
        /// The shape, or a unique prefix
        shape: String,
    },
}

impl AffinitiesCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        match self.command {
            None => {
                let answer = client.get("/remuda/v1/affinities").await?;
                show(&self.connection, &answer, || list(rows(&answer, "affinities")));
            }
            Some(AffinitiesAction::Set { shape, prefer, exclude }) => {
                if prefer.is_empty() && exclude.is_empty() {
                    bail!(UsageError("choose workers with --prefer, --exclude or both".to_owned()));
                }
                let shape = whole_shape(&shape)?;
                let body = json!({ "preferred": prefer, "excluded": exclude });
                let request = client.request(reqwest::Method::PUT, &format!("/remuda/v1/affinities/{shape}"));
                let answer = client.send(request.json(&body).timeout(REQUEST_TIMEOUT)).await?;
                show(&self.connection, &answer, || list(std::slice::from_ref(&answer)));
            }
            Some(AffinitiesAction::Remove { shape }) => {
                let answer = client.get("/remuda/v1/affinities").await?;
                let shapes = rows(&answer, "affinities").iter().filter_map(|it| it["shape"].as_str());
                let Some(shape) = find_shape(shapes, &shape)? else {
                    let shape = escape_control(&shape);
                    bail!(
                        "no affinity is of a shape that begins with {shape:?}; `remuda affinities` lists them all"
                    );
                };
                let answer = client.delete(&format!("/remuda/v1/affinities/{shape}")).await?;
                show(&self.connection, &answer, || {
                    format!("{} may run anywhere again", escape_control(shape))
                });
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// As typed, or as the workflow in a file has it.
fn whole_shape(typed: &str) -> anyhow::Result<Shape> {
    if let Ok(shape) = typed.to_ascii_lowercase().parse() {
        return Ok(shape);
    }
    let shown = escape_control(typed);
    if !Path::new(typed).is_file() {
        let message = format!("{shown:?} is neither a whole shape (64 digits) nor a workflow file");
        bail!(UsageError(message));
    }
    let text = std::fs::read_to_string(typed)
        .map_err(|error| UsageError(format!("cannot read {shown}: {error}")))?;
    let no_workflow = |error: &dyn std::fmt::Display| UsageError(format!("{shown} is no workflow: {error}"));
    let text = RawValue::from_string(text).map_err(|error| no_workflow(&error))?;
    let workflow = Workflow::parse(text, &WorkflowLimits::default()).map_err(|error| no_workflow(&error))?;
    Ok(workflow.facts().shape)
}

fn list(affinities: &[Value]) -> String {
    if affinities.is_empty() {
        return "no affinities: every shape runs wherever it can".to_owned();
    }
    table(&["SHAPE", "PREFERRED", "EXCLUDED"], &affinities.iter().map(row).collect::<Vec<_>>())
}

fn row(affinity: &Value) -> Vec<String> {
    let names = |name: &str| {
        let names: Vec<_> = rows(affinity, name).iter().map(cell).collect();
        if names.is_empty() { "-".to_owned() } else { names.join(", ") }
    };
    vec![short_shape(&affinity["shape"]), names("preferred"), names("excluded")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_may_be_taken_from_a_workflow_file() {
        let shape = Shape::digest(b"s");
        assert_eq!(whole_shape(&shape.to_string()).unwrap(), shape);
        let problem = whole_shape("abc").unwrap_err().to_string();
        assert!(problem.contains("neither a whole shape"), "{problem}");
    }

    #[test]
    fn affinities_are_listed_with_whom_they_name() {
        let affinity = json!({ "shape": "0123456789abcdef", "preferred": ["red", "blue"], "excluded": [] });
        let expected = "\
SHAPE         PREFERRED  EXCLUDED
0123456789ab  red, blue  -";
        assert_eq!(list(&[affinity]), expected);
    }
}
