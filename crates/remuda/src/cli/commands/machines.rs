//! `remuda machines`: lists machines, rented or not.

use std::process::ExitCode;

use clap::Args;
use remuda_core::id::MachineId;
use remuda_core::time::Timestamp;
use serde_json::Value;

use super::super::client::is_not_found;
use super::super::short_id::find_name;
use super::super::{Client, Connection};
use super::{ago, cell, money, now, rows, show, table_with_reason};
use remuda_net::terminal::escape_control;

#[derive(Debug, Args)]
pub(crate) struct MachinesCommand {
    /// Show all details of this machine; enough of the beginning of its name will do
    machine: Option<MachineId>,
    #[command(flatten)]
    connection: Connection,
}

impl MachinesCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        match &self.machine {
            Some(machine) => {
                let answer = find_machine(&client, machine).await?;
                show(&self.connection, &answer, || render_machine(&answer, now()));
            }
            None => {
                let answer = client.get("/remuda/v1/machines").await?;
                show(&self.connection, &answer, || list(rows(&answer, "machines"), now()));
            }
        }
        Ok(ExitCode::SUCCESS)
    }
}

async fn find_machine(client: &Client, typed: &MachineId) -> anyhow::Result<Value> {
    let path = |name: &str| format!("/remuda/v1/machines/{name}");
    let unknown = match client.get(&path(typed.as_str())).await {
        Err(error) if is_not_found(&error) => error,
        answer => return answer,
    };
    let listed = client.get("/remuda/v1/machines").await?;
    let names = rows(&listed, "machines").iter().filter_map(|machine| machine["machine"].as_str());
    match find_name("machines", names, typed.as_str())? {
        Some(name) => client.get(&path(name)).await,
        None => Err(unknown),
    }
}

fn list(machines: &[Value], now: Timestamp) -> String {
    if machines.is_empty() {
        return "no machines: start a worker with `remuda worker`, or add a [[fleet]] to remuda.toml"
            .to_owned();
    }
    let titles = [
        "MACHINE", "FLEET", "STATE", "PRESENCE", "FOR", "GPU", "LOCATION", "PER HOUR", "COST", "WORKERS",
        "REASON",
    ];
    table_with_reason(&titles, machines.iter().map(|machine| row(machine, now)).collect())
}

fn row(machine: &Value, now: Timestamp) -> Vec<String> {
    let [name, fleet, presence, gpu, place] =
        ["machine", "fleet", "presence", "gpu", "place"].map(|name| cell(&machine[name]));
    let workers: Vec<_> = rows(machine, "workers").iter().map(cell).collect();
    let workers = if workers.is_empty() { "-".to_owned() } else { workers.join(" ") };
    let (price, cost) = (money(&machine["price_dollars"]), money(&machine["cost_dollars"]));
    let since = ago(&machine["since"], now);
    vec![name, fleet, state(machine), presence, since, gpu, place, price, cost, workers, reason(machine)]
}

/// A rented machine's phase is more precise than its state.
fn state(machine: &Value) -> String {
    cell(machine["phase"].as_str().map_or(&machine["state"], |_| &machine["phase"]))
}

/// What keeps it from coming up comes first, then what it is waiting for.
fn reason(machine: &Value) -> String {
    let ssh = machine["bootstrap"].as_str().filter(|it| it.starts_with("retrying"));
    let parts = [
        ssh.map(|progress| format!("SSH {progress}")),
        machine["waiting"]["text"].as_str().map(str::to_owned),
        machine["reason"].as_str().filter(|reason| !reason.is_empty()).map(str::to_owned),
    ];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    if parts.is_empty() { cell(&Value::Null) } else { parts.join("; ") }
}

fn render_machine(machine: &Value, now: Timestamp) -> String {
    let mut lines = Vec::new();
    let mut row = |name: &str, text: String| {
        if text != "-" {
            lines.push(format!("{name:<9} {}", escape_control(&text)));
        }
    };
    row("machine", cell(&machine["machine"]));
    row("fleet", cell(&machine["fleet"]));
    row(
        "state",
        format!("{}, {} for {}", state(machine), cell(&machine["presence"]), ago(&machine["since"], now)),
    );
    row("pod", cell(&machine["pod"]));
    row("tag", cell(&machine["tag"]));
    for name in ["offer", "gpu", "place", "host"] {
        row(name, cell(&machine[name]));
    }
    if machine["is_rented"] == true {
        let (price, cost) = (money(&machine["price_dollars"]), money(&machine["cost_dollars"]));
        row("costs", format!("{price} an hour, {cost} so far"));
    }
    let workers: Vec<_> = rows(machine, "workers").iter().map(cell).collect();
    row("workers", if workers.is_empty() { "-".to_owned() } else { workers.join(" ") });
    row("waiting", cell(&machine["waiting"]["text"]));
    row("SSH", cell(&machine["bootstrap"]));
    row(
        "drains",
        machine["drain_until"].as_str().map_or("-".to_owned(), |until| format!("until {until} at most")),
    );
    row("reason", cell(&machine["reason"]));
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn machines_are_listed_with_what_they_cost_and_wait_for() {
        let now = Timestamp::from_millis(600_000);
        let since = Timestamp::from_millis(420_000).to_string();
        let rented = json!({
            "machine": "gpus-1", "fleet": "gpus", "phase": "made", "state": "spawning", "presence": "offline", "since": since,
            "gpu": "RTX 4090", "place": "EU-RO-1", "price_dollars": 0.69, "cost_dollars": 0.0345, "workers": [],
            "waiting": { "text": "image pull, 3 min of 30 min" }, "reason": "made", "is_rented": true, "pod": "p-1",
        });
        let own = json!({ "machine": "tower", "state": "active", "presence": "online", "since": since, "reason": "joined",
                          "workers": ["red", "blue"], "is_rented": false });
        let expected = "\
MACHINE  FLEET  STATE   PRESENCE  FOR  GPU       LOCATION  PER HOUR  COST    WORKERS   REASON
gpus-1   gpus   made    offline   3m   RTX 4090  EU-RO-1   $0.69     $0.035  -         image pull, 3 min of 30 min; made
tower    -      active  online    3m   -         -         -         -       red blue  joined";
        assert_eq!(list(&[rented.clone(), own], now), expected);
        let expected = "\
machine   gpus-1
fleet     gpus
state     made, offline for 3m
pod       p-1
gpu       RTX 4090
place     EU-RO-1
costs     $0.69 an hour, $0.035 so far
waiting   image pull, 3 min of 30 min
reason    made";
        assert_eq!(render_machine(&rented, now), expected);
        let mut unreachable = rented;
        unreachable["bootstrap"] = json!("retrying: login: permission denied");
        let told = "SSH retrying: login: permission denied; image pull, 3 min of 30 min; made";
        assert_eq!(reason(&unreachable), told);
        assert!(list(&[], now).contains("[[fleet]]"));
    }
}
