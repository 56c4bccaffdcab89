//! `remuda models status`: who has which model, and how its copies are.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::super::commands::{cell, rows, show};
use super::super::{Client, Connection};
use remuda_net::terminal::table;

#[derive(Debug, Args)]
pub(super) struct Status {
    #[command(flatten)]
    connection: Connection,
}

impl Status {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        let client = Client::new(&self.connection)?;
        let answer = client.get("/remuda/v1/models").await?;
        show(&self.connection, &answer, || list(rows(&answer, "models")));
        Ok(ExitCode::SUCCESS)
    }
}

fn list(models: &[Value]) -> String {
    if models.is_empty() {
        return "no model is served: start one with `remuda up --model NAME=PATH`".to_owned();
    }
    let titles = ["MODEL", "DOES", "ON", "COPIES", "WAITING", "ANSWERED", "FAILED", "DEATHS", "LAST DEATH"];
    table(&titles, &models.iter().flat_map(places).collect::<Vec<_>>())
}

/// A line for each process that has it.
fn places(model: &Value) -> Vec<Vec<String>> {
    let here =
        Some(&model["here"]).filter(|here| here.is_object()).map(|here| ("the plane".to_owned(), here));
    let workers = model["workers"].as_object().into_iter().flatten();
    let workers = workers.map(|(worker, seen)| (worker.clone(), seen)).filter(|_| here.is_none());
    let places: Vec<_> =
        here.clone().into_iter().chain(workers).map(|(on, seen)| row(model, on, seen)).collect();
    match places.is_empty() {
        true => vec![row(model, "no worker now".to_owned(), &Value::Null)],
        false => places,
    }
}

fn row(model: &Value, on: String, seen: &Value) -> Vec<String> {
    let [waiting, answered, failed, last] =
        ["queue_parts", "answered", "failed", "last_death"].map(|name| cell(&seen[name]));
    let deaths: u64 =
        seen["deaths"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64()).sum();
    let copies = copies(seen);
    vec![
        cell(&model["id"]),
        cell(&model["capability"]),
        on,
        copies,
        waiting,
        answered,
        failed,
        deaths.to_string(),
        last,
    ]
}

/// `2 ready, 1 loading`.
fn copies(seen: &Value) -> String {
    let mut states: Vec<(&str, usize)> = Vec::new();
    for state in rows(seen, "copies").iter().filter_map(|copy| copy["state"].as_str()) {
        match states.iter_mut().find(|(known, _)| *known == state) {
            Some((_, count)) => *count += 1,
            None => states.push((state, 1)),
        }
    }
    let words: Vec<_> = states.into_iter().map(|(state, count)| format!("{count} {state}")).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn copies_are_counted_by_how_they_are() {
        let seen = json!({
            "copies": [{ "state": "ready" }, { "state": "loading" }, { "state": "ready" }],
            "queue_parts": 3, "answered": 7, "failed": 0, "deaths": { "panicked": 2, "exited": 1 }, "last_death": "exited: 9",
        });
        let model = json!({ "id": "embed", "capability": "text_embedding", "here": seen, "workers": {} });
        let text = list(&[model]);
        for part in ["embed", "text_embedding", "the plane", "2 ready, 1 loading", "3", "7", "exited: 9"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let unserved = json!({ "id": "chat", "capability": "text_to_text", "here": null, "workers": {} });
        assert!(list(&[unserved]).contains("no worker now"));
        assert!(list(&[]).contains("--model"));
    }
}
