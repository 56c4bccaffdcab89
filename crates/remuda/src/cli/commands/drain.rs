//! `remuda drain`: stops sending work to a worker, or to a machine with all its workers.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::super::client::is_not_found;
use super::super::short_id::find_name;
use super::super::{Client, Connection, UsageError};
use super::{cell, rows, show};
use remuda_config::parse_duration;
use remuda_net::terminal::escape_control;

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda drain gpu-7                     (it finishes its jobs, then leaves)
  remuda drain gpus-mi2x4k1 --deadline 10m --wait
  remuda drain tower --machine           (all workers of the machine, if a worker has the same name)";

#[derive(Debug, Args)]
pub(crate) struct DrainCommand {
    /// Worker or machine to drain; enough of the beginning of its name will do
    #[arg(value_name = "WORKER|MACHINE")]
    name: String,
    /// Reason, shown with the worker
    #[arg(long)]
    reason: Option<String>,
    /// Requeue jobs that are still running after this time, such as 10m; by default as configured
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Wait until it is gone
    #[arg(long)]
    wait: bool,
    /// Drain the worker, not the machine of the same name
    #[arg(long, conflicts_with = "machine")]
    worker: bool,
    /// Drain the machine, not the worker of the same name
    #[arg(long)]
    machine: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainTarget {
    Worker,
    Machine,
}

impl DrainTarget {
    fn path(self, name: &str) -> String {
        match self {
            DrainTarget::Worker => format!("/remuda/v1/workers/{name}"),
            DrainTarget::Machine => format!("/remuda/v1/machines/{name}"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            DrainTarget::Worker => "worker",
            DrainTarget::Machine => "machine",
        }
    }
}

const POLL_INTERVAL: Duration = Duration::from_millis(500);
const WAIT_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

impl DrainCommand {
    pub(crate) async fn run(mut self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let target = self.target(&client).await?;
        let body = json!({
            "reason": self.reason.clone().unwrap_or_default(),
            "deadline_seconds": self.deadline.map(|deadline| deadline.as_secs_f64()),
        });
        let path = target.path(&self.name);
        let answer = client.post(&format!("{path}/drain"), &body).await?;
        show(&self.connection, &answer, || self.describe(target));
        if self.wait {
            wait_until_gone(&client, &path).await?;
            if !self.connection.json {
                super::print_line(&format!("{} {} is gone", target.as_str(), self.name));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    /// What is meant; a shortened name is completed.
    async fn target(&mut self, client: &Client) -> anyhow::Result<DrainTarget> {
        // An invalid name must not change the request path.
        if self.name.parse::<remuda_core::id::WorkerId>().is_err() {
            return Err(UsageError(format!(
                "{:?} is not a valid name of a worker or machine",
                escape_control(&self.name)
            ))
            .into());
        }
        let chosen = match (self.worker, self.machine) {
            (true, _) => Some(DrainTarget::Worker),
            (false, true) => Some(DrainTarget::Machine),
            (false, false) => None,
        };
        let names = all_names(client, chosen).await?;
        if let Some(name) = find_name("workers or machines", names.iter().map(String::as_str), &self.name)? {
            name.clone_into(&mut self.name);
        }
        if let Some(chosen) = chosen {
            return Ok(chosen);
        }
        let worker = find(client, &DrainTarget::Worker.path(&self.name)).await?;
        let machine = find(client, &DrainTarget::Machine.path(&self.name)).await?;
        choose(&self.name, worker.as_ref(), machine.as_ref())
    }

    fn describe(&self, target: DrainTarget) -> String {
        let (name, what) = (&self.name, target.as_str());
        let until = self.deadline.map_or(String::new(), |deadline| {
            format!(", in {} at the latest", remuda_core::time::humanize(deadline))
        });
        match target {
            DrainTarget::Worker => {
                format!("{what} {name} gets no new work and leaves when its jobs have ended{until}")
            }
            DrainTarget::Machine => {
                format!(
                    "{what} {name} gets no new work and leaves when the jobs of its workers have ended{until}"
                )
            }
        }
    }
}

/// The names of all workers and machines, or of those that are meant.
async fn all_names(client: &Client, chosen: Option<DrainTarget>) -> anyhow::Result<Vec<String>> {
    let lists = [
        (DrainTarget::Worker, "/remuda/v1/workers", "workers", "id"),
        (DrainTarget::Machine, "/remuda/v1/machines", "machines", "machine"),
    ];
    let mut names = Vec::new();
    for (target, path, list, field) in lists {
        if chosen.is_none_or(|chosen| chosen == target) {
            let answer = client.get(path).await?;
            names.extend(rows(&answer, list).iter().filter_map(|row| Some(row[field].as_str()?.to_owned())));
        }
    }
    Ok(names)
}

async fn find(client: &Client, path: &str) -> anyhow::Result<Option<Value>> {
    match client.get(path).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A rented machine and its first worker share a name and leave together. If a name refers to a worker and an unrelated
/// machine, the caller must choose.
fn choose(name: &str, worker: Option<&Value>, machine: Option<&Value>) -> anyhow::Result<DrainTarget> {
    match (worker, machine) {
        (None, None) => {
            bail!("there is no worker or machine {name}; `remuda workers` and `remuda machines` list them")
        }
        (Some(_), None) => Ok(DrainTarget::Worker),
        (None, Some(_)) => Ok(DrainTarget::Machine),
        (Some(worker), Some(machine)) => {
            let workers = rows(machine, "workers");
            let is_one = worker["machine"] == name && workers.len() == 1;
            match (is_one, machine["is_rented"] == true) {
                (true, true) => Ok(DrainTarget::Machine),
                (true, false) => Ok(DrainTarget::Worker),
                (false, _) => {
                    let others: Vec<_> = workers.iter().map(cell).collect();
                    let message = format!(
                        "{name} is a worker on machine {} and a machine with {}: choose with --worker or --machine",
                        escape_control(&cell(&worker["machine"])),
                        escape_control(&others.join(", "))
                    );
                    Err(UsageError(message).into())
                }
            }
        }
    }
}

/// Polls until the worker or machine is gone or offline.
async fn wait_until_gone(client: &Client, path: &str) -> anyhow::Result<()> {
    let started = Instant::now();
    while started.elapsed() < WAIT_TIMEOUT {
        let Some(current) = find(client, path).await? else { return Ok(()) };
        let has_ended = current["state"] == "terminated" || current["presence"] == "offline";
        // A rented machine is gone only once its provider has removed it.
        if has_ended && current["is_rented"] != true {
            return Ok(());
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    bail!("it is still there after {}", remuda_core::time::humanize(WAIT_TIMEOUT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ambiguous_name_needs_a_choice() {
        let worker = |machine: &str| json!({ "id": "a", "machine": machine });
        let machine =
            |is_rented: bool, workers: &[&str]| json!({ "is_rented": is_rented, "workers": workers });
        let chosen = |worker: Option<Value>, machine: Option<Value>| {
            choose("a", worker.as_ref(), machine.as_ref()).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(Some(worker("tower")), None), Ok(DrainTarget::Worker));
        assert_eq!(chosen(None, Some(machine(true, &[]))), Ok(DrainTarget::Machine));
        assert_eq!(chosen(Some(worker("a")), Some(machine(true, &["a"]))), Ok(DrainTarget::Machine));
        assert_eq!(chosen(Some(worker("a")), Some(machine(false, &["a"]))), Ok(DrainTarget::Worker));
        let both = chosen(Some(worker("a")), Some(machine(false, &["a", "b"]))).unwrap_err();
        assert!(both.contains("--worker or --machine"), "{both}");
        assert!(chosen(Some(worker("x")), Some(machine(false, &["b"]))).is_err());
        assert!(chosen(None, None).unwrap_err().contains("remuda machines"));
    }
}
