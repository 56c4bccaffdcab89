//! Which test causes which fault: `docs/faults.md` is generated from the doc lines of the tests themselves.
//!
//! A test names the rows of the fault catalogue that it causes in a line of its own, `Faults: A2, C1.`, or begins its
//! name with one (`d7_truncated_file_is_refused`). A row whose part is built and that no test causes fails here, and so
//! does a row that the catalogue does not have.

#[path = "faults/catalogue.rs"]
mod catalogue;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use remuda_tidy::source::{rust_files, workspace_root};

use self::catalogue::{FaultRow, RowStatus, SECTIONS};

/// Tests by the row they cause, each as `crate/path.rs::name`.
fn tests_by_row() -> BTreeMap<String, Vec<String>> {
    let mut by_row: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in rust_files() {
        let mut rows = BTreeSet::new();
        for (at, line) in file.lines() {
            if let Some(named) = line.trim().strip_prefix(concat!("/// ", "Faults: ")) {
                // Anything after the full stop is for readers.
                let (named, _) = named
                    .split_once('.')
                    .unwrap_or_else(|| panic!("{}:{at}: end the line with a full stop", file.name));
                rows.extend(named.split(", ").map(str::to_owned));
            }
            let Some(name) = function_name(line) else { continue };
            rows.extend(row_in_name(name));
            for row in std::mem::take(&mut rows) {
                by_row.entry(row).or_default().push(format!("{}::{name}", file.name));
            }
        }
        assert!(rows.is_empty(), "{}: {rows:?} stand above no test", file.name);
    }
    by_row
}

/// The name of the function that begins on this line.
fn function_name(line: &str) -> Option<&str> {
    let words = ["pub(super) ", "pub(crate) ", "pub ", "async "];
    let bare = words.iter().fold(line.trim(), |line, word| line.strip_prefix(word).unwrap_or(line));
    bare.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// `d7_truncated_file_is_refused` causes row D7.
fn row_in_name(name: &str) -> Option<String> {
    let row = name.split_once('_')?.0.to_uppercase();
    rows().any(|known| known.id == row).then_some(row)
}

fn rows() -> impl Iterator<Item = &'static FaultRow> {
    SECTIONS.iter().flat_map(|(_, rows)| *rows)
}

#[test]
fn every_fault_of_a_built_part_is_caused_by_a_test() {
    let by_row = tests_by_row();
    let is_missing = |row: &&FaultRow| row.status == RowStatus::Built && !by_row.contains_key(row.id);
    let missing: Vec<_> = rows().filter(is_missing).map(|row| format!("{} ({})", row.id, row.what)).collect();
    assert!(missing.is_empty(), "no test causes {}", missing.join(", "));
    let unknown: Vec<_> = by_row.iter().filter(|(row, _)| !rows().any(|known| known.id == *row)).collect();
    assert!(unknown.is_empty(), "the catalogue has no such row: {unknown:?}");
}

#[test]
fn fault_document_is_up_to_date() {
    let path = workspace_root().join("docs/faults.md");
    let text = document(&tests_by_row());
    if std::env::var_os("REMUDA_WRITE_DOCS").is_some() {
        std::fs::write(&path, &text).expect("docs/faults.md can be written");
    }
    let is_current = std::fs::read_to_string(&path).is_ok_and(|written| written == text);
    assert!(is_current, "docs/faults.md is out of date: run ./test --write-docs and commit it");
}

fn document(by_row: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = String::from(
        "# Faults and the tests that cause them\n\n\
         Generated from the tests: each names the faults it causes. The build fails if a part exists and no test causes one\n\
         of its faults. *Later* names a part that is not built yet.\n",
    );
    for (title, rows) in SECTIONS.iter().filter(|(_, rows)| !rows.is_empty()) {
        write!(text, "\n## {title}\n\n| row | what goes wrong | caused by |\n|---|---|---|\n")
            .expect("a string grows");
        for row in *rows {
            writeln!(text, "| {} | {} | {} |", row.id, row.what, cell(row, by_row.get(row.id)))
                .expect("a string grows");
        }
    }
    text
}

fn cell(row: &FaultRow, tests: Option<&Vec<String>>) -> String {
    let tests =
        tests.map(|tests| tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join("<br>"));
    match (row.status, tests) {
        (RowStatus::Later(part), None) => format!("*later: {part}*"),
        (RowStatus::Later(part), Some(tests)) => format!("*later: {part}*<br>{tests}"),
        (RowStatus::Built, tests) => tests.unwrap_or_else(|| "**no test**".to_owned()),
    }
}
