//! The table of a benchmark, row by row as they are measured.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::cli::print_line;
use crate::cli::table::table;

#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: Vec<Vec<String>>,
    json: Map<String, Value>,
}

impl Rows {
    pub(super) fn add(&mut self, name: &str, value: f64, unit: &str, note: String) {
        eprintln!("  {name}: {} {unit} {note}", figure(value));
        self.rows.push(vec![name.to_owned(), figure(value), unit.to_owned(), note]);
        self.json.insert(name.to_owned(), value.into());
    }

    pub(super) fn value(&self, name: &str) -> Option<f64> {
        self.json.get(name).and_then(Value::as_f64)
    }

    pub(super) fn print(self, as_json: bool) {
        if as_json {
            print_line(&Value::Object(self.json).to_string());
        } else {
            print_line(&table(&["WHAT", "VALUE", "UNIT", "NOTE"], &self.rows));
        }
    }
}

/// Measures in a folder of its own inside `data`, which is gone afterwards, and prints what came of it.
pub(super) async fn of(
    data: &Path,
    as_json: bool,
    measure: impl AsyncFnOnce(&Path) -> anyhow::Result<Rows>,
) -> anyhow::Result<ExitCode> {
    let data = data.join(format!("remuda-bench-{}", std::process::id()));
    std::fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
    let result = measure(&data).await;
    drop(std::fs::remove_dir_all(&data));
    result?.print(as_json);
    Ok(ExitCode::SUCCESS)
}

/// Three significant digits are all that a noisy machine supports.
fn figure(value: f64) -> String {
    match value {
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
