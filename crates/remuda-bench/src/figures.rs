//! The figures of a benchmark: printed as they are measured, and as a table at the end.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;
use remuda_net::terminal::{print_line, table};
use serde_json::{Map, Value};

#[derive(Debug, Default)]
pub(crate) struct Figures {
    rows: Vec<Vec<String>>,
    json: Map<String, Value>,
}

impl Figures {
    pub(crate) fn add(&mut self, name: &str, value: f64, unit: &str, note: String) {
        eprintln!("  {name}: {} {unit} {note}", format_figure(value));
        self.rows.push(vec![name.to_owned(), format_figure(value), unit.to_owned(), note]);
        self.json.insert(name.to_owned(), value.into());
    }

    pub(crate) fn value(&self, name: &str) -> Option<f64> {
        self.json.get(name).and_then(Value::as_f64)
    }

    pub(crate) fn print(self, as_json: bool) {
        if as_json {
            print_line(&Value::Object(self.json).to_string());
        } else {
            print_line(&table(&["WHAT", "VALUE", "UNIT", "NOTE"], &self.rows));
        }
    }
}

/// Measures in a new folder inside `data`, removes it, and prints the figures.
pub(crate) async fn measure_in_folder(
    data: &Path,
    as_json: bool,
    measure: impl AsyncFnOnce(&Path) -> anyhow::Result<Figures>,
) -> anyhow::Result<ExitCode> {
    let data = data.join(format!("remuda-bench-{}", std::process::id()));
    std::fs::create_dir_all(&data).with_context(|| format!("cannot create {}", data.display()))?;
    let result = measure(&data).await;
    drop(std::fs::remove_dir_all(&data));
    result?.print(as_json);
    Ok(ExitCode::SUCCESS)
}

/// Three or four significant digits: a noisy machine supports no more.
fn format_figure(value: f64) -> String {
    match value {
        _ if value >= 1000.0 => format!("{value:.0}"),
        _ if value >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.3}"),
    }
}
