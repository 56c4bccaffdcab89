//! Every value and where it came from, for `remuda config show`; the keys of fleet `gpus` as `fleet.gpus.…`, those
//! of model `embed` as `model.embed.…`.

use serde_json::{Map, json};

use super::fleet::keys_of;
use super::key::Key;
use super::table::models;
use super::value::Value;
use super::{Origin, Resolved};

/// As an aligned table for people, or as JSON by key for programs.
pub fn show(resolved: &Resolved, json: bool) -> String {
    let rows = rows(resolved);
    if json { as_json(rows) } else { as_table(&rows) }
}

struct Row {
    name: String,
    value: Value,
    shown: String,
    meaning: &'static str,
    origin: Origin,
}

fn rows(resolved: &Resolved) -> Vec<Row> {
    let row = |key: &Key| Row {
        name: key.name.to_owned(),
        value: key.read(resolved),
        shown: key.shown(resolved),
        meaning: key.meaning,
        origin: resolved.origin(key.name),
    };
    let mut rows: Vec<Row> = Key::all().map(row).collect();
    for fleet in &resolved.fleets {
        rows.extend(keys_of(fleet.source.provider).map(|key| Row {
            name: format!("fleet.{}.{}", fleet.settings.id, key.name),
            value: key.read(fleet),
            shown: key.shown(fleet),
            meaning: key.meaning,
            origin: fleet.origin(key.name, resolved),
        }));
    }
    for model in &resolved.models.own {
        rows.extend(models::KEYS.iter().map(|key| Row {
            name: format!("model.{}.{}", model.spec.name, key.name),
            value: key.read(model),
            shown: key.shown(model),
            meaning: key.meaning,
            origin: model.origin(key.name),
        }));
    }
    rows
}

fn as_table(rows: &[Row]) -> String {
    let width =
        |column: fn(&Row) -> &str| rows.iter().map(|row| column(row).chars().count()).max().unwrap_or(0);
    let (names, values) = (width(|row| &row.name), width(|row| &row.shown));
    rows.iter()
        .map(|Row { name, shown, origin, .. }| format!("{name:names$}  {shown:values$}  {origin}\n"))
        .collect()
}

fn as_json(rows: Vec<Row>) -> String {
    let mut keys = Map::new();
    for row in rows {
        let value = match row.value {
            Value::Number(number) | Value::MaybeNumber(Some(number)) => json!(number),
            Value::Switch(on) => json!(on),
            other => json!(other.to_string()),
        };
        let mut entry = json!({ "value": value, "meaning": row.meaning });
        match row.origin {
            Origin::Default => entry["origin"] = json!("default"),
            Origin::File { path, line } => {
                entry["origin"] = json!("file");
                entry["path"] = json!(path.display().to_string());
                entry["line"] = json!(line);
            }
            Origin::Environment(name) => {
                entry["origin"] = json!("environment");
                entry["name"] = json!(name);
            }
            Origin::Flag(name) => {
                entry["origin"] = json!("flag");
                entry["name"] = json!(name);
            }
        }
        keys.insert(row.name, entry);
    }
    format!("{:#}\n", serde_json::Value::Object(keys))
}
