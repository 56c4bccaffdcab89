//! Output of `remuda config show`: every setting with its value and origin. Settings of fleet `gpus` are listed as
//! `fleet.gpus.…`, those of model `embed` as `model.embed.…`, those of tenant `anna` as `tenant.anna.…`.

use serde_json::{Map, json};

use super::key::Key;
use super::table::fleets::keys_for;
use super::table::{models, tenants};
use super::value::Value;
use super::{ResolvedConfig, TenantConfig, ValueOrigin, table};

/// An aligned table, or a JSON object by setting.
pub fn show(resolved: &ResolvedConfig, json: bool) -> String {
    let rows = rows(resolved);
    if json { as_json(rows) } else { as_table(&rows) }
}

struct Row {
    name: String,
    value: Value,
    shown: String,
    meaning: &'static str,
    origin: ValueOrigin,
}

fn rows(resolved: &ResolvedConfig) -> Vec<Row> {
    let row = |key: &Key| Row {
        name: key.name.to_owned(),
        value: key.read(resolved),
        shown: key.display(resolved),
        meaning: key.meaning,
        origin: resolved.origin(key.name),
    };
    let mut rows: Vec<Row> = table::all().map(row).collect();
    for fleet in &resolved.fleets {
        rows.extend(keys_for(fleet.source.provider).map(|key| Row {
            name: format!("fleet.{}.{}", fleet.settings.id, key.name),
            value: key.read(fleet),
            shown: key.display(fleet),
            meaning: key.meaning,
            origin: fleet.origin(key.name, resolved),
        }));
    }
    for model in &resolved.models.own {
        rows.extend(models::KEYS.iter().map(|key| Row {
            name: format!("model.{}.{}", model.spec.name, key.name),
            value: key.read(model),
            shown: key.display(model),
            meaning: key.meaning,
            origin: model.origin(key.name),
        }));
    }
    for tenant in &resolved.tenants {
        let has = |key: &&Key<TenantConfig>| !tenant.is_for_every_tenant() || !tenants::is_quota(key.name);
        rows.extend(tenants::KEYS.iter().filter(has).map(|key| Row {
            name: format!("tenant.{}.{}", tenant.name, key.name),
            value: key.read(tenant),
            shown: key.display(tenant),
            meaning: key.meaning,
            origin: tenant.origin(key.name, || resolved.origin(&format!("quota.{}", key.name))),
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
            Value::Number(number) | Value::OptionalNumber(Some(number)) => json!(number),
            Value::Switch(on) => json!(on),
            other => json!(other.to_string()),
        };
        let mut entry = json!({ "value": value, "meaning": row.meaning });
        match row.origin {
            ValueOrigin::Default => entry["origin"] = json!("default"),
            ValueOrigin::File { path, line } => {
                entry["origin"] = json!("file");
                entry["path"] = json!(path.display().to_string());
                entry["line"] = json!(line);
            }
            ValueOrigin::Environment(name) => {
                entry["origin"] = json!("environment");
                entry["name"] = json!(name);
            }
            ValueOrigin::Flag(name) => {
                entry["origin"] = json!("flag");
                entry["name"] = json!(name);
            }
        }
        keys.insert(row.name, entry);
    }
    format!("{:#}\n", serde_json::Value::Object(keys))
}
