//! `remuda fleet`: shows fleets, and pauses, resumes and scales them.

use std::process::ExitCode;
use std::str::FromStr;

use clap::{Args, Subcommand};
use remuda_core::id::FleetId;
use serde_json::{Value, json};

use super::super::{Client, Connection};
use super::{cell, money, rows, show, table_with_reason};
use remuda_net::terminal::escape_control;

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda fleet                       (all fleets)
  remuda fleet show gpus             (one fleet, with limits and problems)
  remuda fleet pause gpus --reason \"the provider is having a bad day\"
  remuda fleet resume gpus
  remuda fleet scale gpus 4          (keep four machines, whatever the queue)
  remuda fleet scale gpus auto       (follow the policy)
  remuda fleet reset-brake gpus      (allow creations and avoided offers again)";

#[derive(Debug, Args)]
pub(crate) struct FleetCommand {
    #[command(subcommand)]
    command: Option<FleetAction>,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Subcommand)]
enum FleetAction {
    /// Show one fleet: limits, budget, problems
    Show { fleet: FleetId },
    /// Stop scaling until the fleet is resumed; failed machines are still returned
    Pause {
        fleet: FleetId,
        /// Reason, shown with the fleet
        #[arg(long)]
        reason: Option<String>,
    },
    /// Follow the scaling policy again
    Resume { fleet: FleetId },
    /// Keep a fixed number of machines; `auto` follows the policy again
    Scale {
        fleet: FleetId,
        #[arg(value_name = "N|auto")]
        machines: FleetSize,
    },
    /// Reset the creation brake and the list of avoided offers
    ResetBrake { fleet: FleetId },
}

/// A fixed number of machines, or None to follow the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FleetSize(Option<u32>);

impl FromStr for FleetSize {
    type Err = String;

    fn from_str(text: &str) -> Result<FleetSize, String> {
        match text {
            "auto" => Ok(FleetSize(None)),
            number => number.parse().map(|count| FleetSize(Some(count))).map_err(|_| {
                format!(
                    "{number:?} is not a number of machines: write a number, or auto to follow the policy"
                )
            }),
        }
    }
}

impl FleetCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let Some(command) = self.command else {
            let answer = client.get("/remuda/v1/fleets").await?;
            show(&self.connection, &answer, || list(rows(&answer, "fleets")));
            return Ok(ExitCode::SUCCESS);
        };
        let (fleet, order, body, done) = match command {
            FleetAction::Show { fleet } => {
                let answer = client.get(&format!("/remuda/v1/fleets/{fleet}")).await?;
                show(&self.connection, &answer, || render_fleet(&answer));
                return Ok(ExitCode::SUCCESS);
            }
            FleetAction::Pause { fleet, reason } => {
                let done = "does not scale until `remuda fleet resume`".to_owned();
                (fleet, "pause", json!({ "reason": reason.unwrap_or_default() }), done)
            }
            FleetAction::Resume { fleet } => {
                (fleet, "resume", json!({}), "follows its policy again".to_owned())
            }
            FleetAction::Scale { fleet, machines: FleetSize(machines) } => {
                let done = match machines {
                    Some(count) => format!("keeps {count} machines, whatever the queue"),
                    None => "follows its policy again".to_owned(),
                };
                (fleet, "scale", json!({ "machines": machines }), done)
            }
            FleetAction::ResetBrake { fleet } => {
                (fleet, "reset-brake", json!({}), "may create machines again".to_owned())
            }
        };
        let answer = client.post(&format!("/remuda/v1/fleets/{fleet}/{order}"), &body).await?;
        show(&self.connection, &answer, || describe_change(&fleet, &done, &answer));
        Ok(ExitCode::SUCCESS)
    }
}

/// What was changed, and whether the fleet's maximum limits it.
fn describe_change(fleet: &FleetId, done: &str, answer: &Value) -> String {
    let max = answer["settings"]["machines_max"].as_u64().unwrap_or(u64::MAX);
    match answer["machines_set"].as_u64().filter(|set| *set > max) {
        Some(_) => format!("{fleet} {done}; its maximum of {max} still applies"),
        None => format!("{fleet} {done}"),
    }
}

fn list(fleets: &[Value]) -> String {
    if fleets.is_empty() {
        return "no fleets: add a [[fleet]] to remuda.toml and run `remuda config reload`".to_owned();
    }
    let titles =
        ["FLEET", "POLICY", "MIN", "MAX", "WANTED", "MACHINES", "QUEUED", "PER HOUR", "TODAY", "PROBLEM"];
    table_with_reason(&titles, fleets.iter().map(row).collect())
}

fn row(fleet: &Value) -> Vec<String> {
    let settings = &fleet["settings"];
    let [min, max] = ["machines_min", "machines_max"].map(|name| cell(&settings[name]));
    let [wanted, queued] = ["machines_wanted", "queued_jobs"].map(|name| cell(&fleet[name]));
    let machines = counts(if settings["can_rent"] == true { &fleet["machines"] } else { &fleet["workers"] });
    let (rate, today) = (money(&fleet["per_hour_dollars"]), money(&fleet["today_dollars"]));
    vec![
        cell(&fleet["fleet"]),
        policy(settings),
        min,
        max,
        wanted,
        machines,
        queued,
        with_limit(&rate, &settings["hour_max_dollars"]),
        with_limit(&today, &settings["day_max_dollars"]),
        problems(fleet).into_iter().next().unwrap_or_else(|| "-".to_owned()),
    ]
}

/// `$1.20 of $5.00`; without a limit only the amount.
fn with_limit(spent: &str, max: &Value) -> String {
    if max.is_null() { spent.to_owned() } else { format!("{spent} of {}", money(max)) }
}

fn policy(settings: &Value) -> String {
    let policy = &settings["policy"];
    match policy["name"].as_str() {
        Some("latency") => format!("latency {}s", cell(&policy["wait_max_seconds"])),
        Some(name) => format!("{name} {}", cell(&policy["jobs_per_worker"])),
        None => "-".to_owned(),
    }
}

/// `2 up, 1 made`.
fn counts(counts: &Value) -> String {
    let Some(counts) = counts.as_object().filter(|counts| !counts.is_empty()) else { return "0".to_owned() };
    counts.iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// What keeps the fleet from scaling, the most important first.
fn problems(fleet: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some(reason) = fleet["paused"].as_str() {
        problems.push(format!("paused: {reason}"));
    }
    problems.extend(
        ["brake", "creation_hold"].into_iter().filter_map(|name| fleet[name].as_str()).map(str::to_owned),
    );
    for held in rows(fleet, "held_back").iter().filter_map(Value::as_str) {
        if !problems.iter().any(|known| held.contains(known.as_str())) {
            problems.push(held.to_owned());
        }
    }
    problems
}

fn render_fleet(fleet: &Value) -> String {
    let settings = &fleet["settings"];
    let mut lines = Vec::new();
    let mut row = |name: &str, text: String| {
        if text != "-" {
            lines.push(format!("{name:<11} {}", escape_control(&text)));
        }
    };
    let listed = |value: &Value| {
        let words: Vec<_> = value.as_array().into_iter().flatten().map(cell).collect();
        if words.is_empty() { "-".to_owned() } else { words.join(", ") }
    };
    row("fleet", cell(&fleet["fleet"]));
    row("policy", policy(settings));
    let [min, max] = ["machines_min", "machines_max"].map(|name| cell(&settings[name]));
    let set = fleet["machines_set"].as_u64().map_or(String::new(), |set| format!("; fixed at {set}"));
    row("wanted", format!("{} of {min} to {max}{set}", cell(&fleet["machines_wanted"])));
    row("machines", counts(&fleet["machines"]));
    row("workers", counts(&fleet["workers"]));
    row("queued", cell(&fleet["queued_jobs"]));
    row("offers", listed(&settings["offers"]));
    row("an hour", with_limit(&money(&fleet["per_hour_dollars"]), &settings["hour_max_dollars"]));
    row("today", with_limit(&money(&fleet["today_dollars"]), &settings["day_max_dollars"]));
    let seconds =
        |name: &str| settings[name].as_f64().map_or("-".to_owned(), |seconds| format!("{seconds}s"));
    row(
        "limits",
        format!(
            "image pull {}, registration {}, start check {}, drain {}, return {}",
            seconds("image_pull_timeout_seconds"),
            seconds("spawning_timeout_seconds"),
            seconds("readiness_timeout_seconds"),
            seconds("drain_timeout_seconds"),
            seconds("return_timeout_seconds")
        ),
    );
    for problem in problems(fleet) {
        row("problem", problem);
    }
    for name in ["avoided", "bad_hosts"] {
        for avoided in rows(fleet, name) {
            let [what, until, why] = ["name", "until", "why"].map(|name| cell(&avoided[name]));
            row("avoided", format!("{what} until {until}: {why}"));
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpus() -> Value {
        json!({
            "fleet": "gpus", "machines": { "made": 1, "up": 2 }, "workers": { "active": 2 }, "machines_wanted": 4,
            "machines_set": null, "queued_jobs": 12, "paused": null, "brake": null,
            "creation_hold": "no credit: pay (until 12:00)", "per_hour_dollars": 2.07, "today_dollars": 11.5,
            "held_back": ["4 wanted, but no credit: pay (until 12:00)", "room for 1"],
            "avoided": [{ "name": "4090", "until": "12:30", "why": "no capacity" }],
            "settings": {
                "can_rent": true, "policy": { "name": "queue", "jobs_per_worker": 3 }, "machines_min": 0, "machines_max": 4,
                "hour_max_dollars": 5.0, "day_max_dollars": null, "offers": ["4090", "A6000"], "image_pull_timeout_seconds": 1800.0,
            },
        })
    }

    #[test]
    fn fleet_is_shown_with_its_problems() {
        let expected = [
            "FLEET  POLICY   MIN  MAX  WANTED  MACHINES      QUEUED  PER HOUR        TODAY   PROBLEM",
            "gpus   queue 3  0    4    4       1 made, 2 up  12      $2.07 of $5.00  $11.50  no credit: pay (until 12:00)",
        ];
        assert_eq!(list(&[gpus()]), expected.join("\n"));
        assert_eq!(
            problems(&gpus()),
            ["no credit: pay (until 12:00)", "room for 1"],
            "no problem is listed twice"
        );
        let shown = render_fleet(&gpus());
        for part in
            ["wanted      4 of 0 to 4\n", "avoided     4090 until 12:30: no capacity", "image pull 1800s"]
        {
            assert!(shown.contains(part), "{shown}");
        }
        assert!(list(&[]).contains("[[fleet]]"));
    }

    #[test]
    fn size_is_a_number_or_auto() {
        assert_eq!("4".parse(), Ok(FleetSize(Some(4))));
        assert_eq!("auto".parse(), Ok(FleetSize(None)));
        assert!("-1".parse::<FleetSize>().unwrap_err().contains("auto"));
    }

    #[test]
    fn scale_beyond_the_maximum_is_reported() {
        let fleet = "gpus".parse().unwrap();
        let mut answer = gpus();
        answer["machines_set"] = 9.into();
        assert!(describe_change(&fleet, "is to have 9", &answer).ends_with("its maximum of 4 still applies"));
        answer["machines_set"] = 4.into();
        assert_eq!(describe_change(&fleet, "is to have 4", &answer), "gpus is to have 4");
    }
}
