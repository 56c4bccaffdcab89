//! `remuda drain`: no new work for a worker, or for a machine with all its workers.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::super::client::is_not_found;
use super::super::{Client, Connection, UsageError};
use super::{cell, rows, show};
use remuda_config::parse_duration;
use remuda_net::terminal::escape_control;

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda drain gpu-7                     (it finishes what it holds, then leaves)
  remuda drain gpus-mi2x4k1 --deadline 10m --wait
  remuda drain tower --machine           (all workers of the machine, where a worker has the same name)";

#[derive(Debug, Args)]
pub(crate) struct DrainCommand {
    /// A worker or a machine
    #[arg(value_name = "WORKER|MACHINE")]
    name: String,
    /// Why; it is shown with the worker
    #[arg(long)]
    reason: Option<String>,
    /// What it still holds by then is taken elsewhere, such as 10m; without it, as the settings say
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    deadline: Option<Duration>,
    /// Return when it is gone
    #[arg(long)]
    wait: bool,
    /// The worker is meant, not the machine of that name
    #[arg(long, conflicts_with = "machine")]
    worker: bool,
    /// The machine is meant, not the worker of that name
    #[arg(long)]
    machine: bool,
    #[command(flatten)]
    connection: Connection,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meant {
    Worker,
    Machine,
}

impl Meant {
    fn path(self, name: &str) -> String {
        match self {
            Meant::Worker => format!("/remuda/v1/workers/{name}"),
            Meant::Machine => format!("/remuda/v1/machines/{name}"),
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Meant::Worker => "worker",
            Meant::Machine => "machine",
        }
    }
}

const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Nobody sits before a terminal for longer.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

impl DrainCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let meant = self.meant(&client).await?;
        let body = json!({
            "reason": self.reason.clone().unwrap_or_default(),
            "deadline_seconds": self.deadline.map(|deadline| deadline.as_secs_f64()),
        });
        let path = meant.path(&self.name);
        let answer = client.post(&format!("{path}/drain"), &body).await?;
        show(&self.connection, &answer, || self.told(meant));
        if self.wait {
            gone(&client, &path).await?;
            if !self.connection.json {
                super::print_line(&format!("{} {} is gone", meant.as_str(), self.name));
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn meant(&self, client: &Client) -> anyhow::Result<Meant> {
        // A name that is none must not become another path.
        if self.name.parse::<remuda_core::id::WorkerId>().is_err() {
            return Err(UsageError(format!(
                "{:?} is no name of a worker or a machine",
                escape_control(&self.name)
            ))
            .into());
        }
        if self.worker || self.machine {
            return Ok(if self.worker { Meant::Worker } else { Meant::Machine });
        }
        let worker = found(client, &Meant::Worker.path(&self.name)).await?;
        let machine = found(client, &Meant::Machine.path(&self.name)).await?;
        choose(&self.name, worker.as_ref(), machine.as_ref())
    }

    fn told(&self, meant: Meant) -> String {
        let (name, what) = (&self.name, meant.as_str());
        let until = self.deadline.map_or(String::new(), |deadline| {
            format!(", in {} at the latest", remuda_core::time::humanize(deadline))
        });
        match meant {
            Meant::Worker => {
                format!("{what} {name} gets no new work and leaves when it holds nothing{until}")
            }
            Meant::Machine => {
                format!("{what} {name} gets no new work and goes when its workers hold nothing{until}")
            }
        }
    }
}

async fn found(client: &Client, path: &str) -> anyhow::Result<Option<Value>> {
    match client.get(path).await {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_not_found(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A rented machine and its first worker have one name, and go together. Where a name stands for two things that have
/// nothing to do with each other, somebody has to say which.
fn choose(name: &str, worker: Option<&Value>, machine: Option<&Value>) -> anyhow::Result<Meant> {
    match (worker, machine) {
        (None, None) => bail!(
            "there is neither a worker nor a machine {name}; `remuda workers` and `remuda machines` list those there are"
        ),
        (Some(_), None) => Ok(Meant::Worker),
        (None, Some(_)) => Ok(Meant::Machine),
        (Some(worker), Some(machine)) => {
            let workers = rows(machine, "workers");
            let is_one = worker["machine"] == name && workers.len() == 1;
            match (is_one, machine["is_rented"] == true) {
                (true, true) => Ok(Meant::Machine),
                (true, false) => Ok(Meant::Worker),
                (false, _) => {
                    let others: Vec<_> = workers.iter().map(cell).collect();
                    let message = format!(
                        "{name} is a worker on machine {} and a machine with {}: say which with --worker or --machine",
                        escape_control(&cell(&worker["machine"])),
                        escape_control(&others.join(", "))
                    );
                    Err(UsageError(message).into())
                }
            }
        }
    }
}

/// Looks until it is not there any more, or does nothing any more.
async fn gone(client: &Client, path: &str) -> anyhow::Result<()> {
    let began = Instant::now();
    while began.elapsed() < WAIT_MAX {
        let Some(there) = found(client, path).await? else { return Ok(()) };
        let has_ended = there["state"] == "terminated" || there["presence"] == "offline";
        // A rented machine is gone when its provider says so.
        if has_ended && there["is_rented"] != true {
            return Ok(());
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
    bail!("it is still there after {}", remuda_core::time::humanize(WAIT_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_for_what_it_can_only_be() {
        let worker = |machine: &str| json!({ "id": "a", "machine": machine });
        let machine =
            |is_rented: bool, workers: &[&str]| json!({ "is_rented": is_rented, "workers": workers });
        let chosen = |worker: Option<Value>, machine: Option<Value>| {
            choose("a", worker.as_ref(), machine.as_ref()).map_err(|error| error.to_string())
        };
        assert_eq!(chosen(Some(worker("tower")), None), Ok(Meant::Worker));
        assert_eq!(chosen(None, Some(machine(true, &[]))), Ok(Meant::Machine));
        assert_eq!(chosen(Some(worker("a")), Some(machine(true, &["a"]))), Ok(Meant::Machine));
        assert_eq!(chosen(Some(worker("a")), Some(machine(false, &["a"]))), Ok(Meant::Worker));
        let both = chosen(Some(worker("a")), Some(machine(false, &["a", "b"]))).unwrap_err();
        assert!(both.contains("--worker or --machine"), "{both}");
        assert!(chosen(Some(worker("x")), Some(machine(false, &["b"]))).is_err());
        assert!(chosen(None, None).unwrap_err().contains("remuda machines"));
    }
}
