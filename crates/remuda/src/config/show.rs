//! Every value and where it came from, for `remuda config show`.

use serde_json::{Map, json};

use super::key::Key;
use super::value::Value;
use super::{Origin, Resolved};

/// As an aligned table for people, or as JSON by key for programs.
pub fn show(resolved: &Resolved, json: bool) -> String {
    if json { as_json(resolved) } else { as_table(resolved) }
}

fn as_table(resolved: &Resolved) -> String {
    let rows: Vec<[String; 3]> = Key::all()
        .map(|key| [key.name.to_owned(), key.shown(resolved), resolved.origin(key.name).to_string()])
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let (names, values) = (width(0), width(1));
    rows.iter().map(|[name, value, origin]| format!("{name:names$}  {value:values$}  {origin}\n")).collect()
}

fn as_json(resolved: &Resolved) -> String {
    let mut keys = Map::new();
    for key in Key::all() {
        let value = match key.read(resolved) {
            Value::Number(number) => json!(number),
            Value::Switch(on) => json!(on),
            other => json!(other.to_string()),
        };
        let mut entry = json!({ "value": value, "meaning": key.meaning });
        match resolved.origin(key.name) {
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
        keys.insert(key.name.to_owned(), entry);
    }
    format!("{:#}\n", serde_json::Value::Object(keys))
}
