//! `remuda cost`: the cost of rented machines by fleet, tenant, job or hour.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::Value;

use super::super::{Client, Connection};
use super::{cell, money, now, request, rows, show};
use remuda_config::parse_duration;
use remuda_net::terminal::{escape_control, table};

pub(crate) const EXAMPLES: &str = "\
Examples:
  remuda cost                        (per fleet: current rate and the last day)
  remuda cost --since 1h --by job    (the most expensive jobs of the last hour)
  remuda cost --since 7d --by tenant
  remuda cost --by hour";

#[derive(Debug, Args)]
pub(crate) struct CostCommand {
    /// Start of the period, such as 1h or 7d ago; at most 40 days
    #[arg(long, value_name = "DURATION", default_value = "24h", value_parser = parse_duration)]
    since: Duration,
    /// How to break the cost down
    #[arg(long, value_enum, default_value_t = Breakdown::Fleet)]
    by: Breakdown,
    #[command(flatten)]
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Breakdown {
    Fleet,
    Tenant,
    Job,
    Hour,
}

impl Breakdown {
    fn as_str(self) -> &'static str {
        match self {
            Breakdown::Fleet => "fleet",
            Breakdown::Tenant => "tenant",
            Breakdown::Job => "job",
            Breakdown::Hour => "hour",
        }
    }
}

impl CostCommand {
    pub(crate) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let from = now().minus(self.since).as_millis().to_string();
        let query = [("from", from), ("by", self.by.as_str().to_owned())];
        let answer = request(&client, Method::GET, "/remuda/v1/cost", &query).await?;
        show(&self.connection, &answer, || render_cost(self.by, &answer));
        Ok(ExitCode::SUCCESS)
    }
}

fn render_cost(by: Breakdown, answer: &Value) -> String {
    let mut text = match by {
        Breakdown::Fleet => fleets(rows(answer, "fleets")),
        Breakdown::Tenant => cost_table(
            rows(answer, "tenants"),
            &["TENANT", "JOBS", "COST"],
            ["tenant", "jobs", "cost_dollars"],
        ),
        Breakdown::Job => {
            cost_table(rows(answer, "jobs"), &["JOB", "TENANT", "COST"], ["job", "tenant", "cost_dollars"])
        }
        Breakdown::Hour => hours(rows(answer, "hours")),
    };
    let [rate, spent] = ["per_hour_dollars", "spent_dollars"].map(|name| money(&answer[name]));
    text.push_str(&format!("\n{rate} an hour now, {spent} since {}", escape_control(&cell(&answer["from"]))));
    if !answer["jobs_dollars"].is_null() {
        let [jobs, other] = ["jobs_dollars", "unattributed_dollars"].map(|name| money(&answer[name]));
        text.push_str(&format!(": {jobs} for jobs, {other} for starting, waiting and failing machines"));
    }
    if answer["is_cut"] == true {
        text.push_str("\ntoo many jobs for a complete answer: choose a shorter period");
    }
    text
}

fn fleets(fleets: &[Value]) -> String {
    if fleets.is_empty() {
        return "no fleets: nothing is rented".to_owned();
    }
    let row = |fleet: &Value| {
        let [rate, hour_max, spent, day_max] =
            ["per_hour_dollars", "hour_max_dollars", "spent_dollars", "day_max_dollars"]
                .map(|name| money(&fleet[name]));
        vec![cell(&fleet["fleet"]), cell(&fleet["machines"]), rate, hour_max, spent, day_max]
    };
    let titles = ["FLEET", "MACHINES", "PER HOUR", "ALLOWED", "SPENT", "ALLOWED A DAY"];
    table(&titles, &fleets.iter().map(row).collect::<Vec<_>>())
}

fn cost_table(rows: &[Value], titles: &[&str], names: [&str; 3]) -> String {
    if rows.is_empty() {
        return "no job ran on a rented machine".to_owned();
    }
    let [first, second, cost] = names;
    let row = |row: &Value| vec![cell(&row[first]), cell(&row[second]), money(&row[cost])];
    table(titles, &rows.iter().map(row).collect::<Vec<_>>())
}

fn hours(hours: &[Value]) -> String {
    let row = |hour: &Value| {
        let from = cell(&hour["from"]);
        vec![from.get(..16).unwrap_or(&from).replace('T', " "), money(&hour["spent_dollars"])]
    };
    table(&["HOUR (UTC)", "SPENT"], &hours.iter().map(row).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cost_includes_the_part_not_attributed_to_jobs() {
        let answer = json!({
            "from": "2026-11-14T12:00:00.000Z", "per_hour_dollars": 1.38, "spent_dollars": 12.5, "jobs_dollars": 10,
            "unattributed_dollars": 2.5, "is_cut": true,
            "tenants": [{ "tenant": "anna", "jobs": 7, "cost_dollars": 10.0 }],
        });
        let expected = "\
TENANT  JOBS  COST
anna    7     $10.00
$1.38 an hour now, $12.50 since 2026-11-14T12:00:00.000Z: $10.00 for jobs, $2.50 for starting, waiting and failing machines
too many jobs for a complete answer: choose a shorter period";
        assert_eq!(render_cost(Breakdown::Tenant, &answer), expected);
    }

    #[test]
    fn hours_and_fleets_have_their_own_tables() {
        let hour = json!({ "from": "2026-11-14T12:00:00.000Z", "spent_dollars": 0.0021 });
        assert_eq!(hours(&[hour]), "HOUR (UTC)        SPENT\n2026-11-14 12:00  $0.0021");
        let gpus = json!({ "fleet": "gpus", "machines": 2, "per_hour_dollars": 1.38, "spent_dollars": 3 });
        assert!(fleets(&[gpus]).ends_with("gpus   2         $1.38     -        $3.00  -"));
        assert!(fleets(&[]).contains("nothing is rented"));
    }
}
