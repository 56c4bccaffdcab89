//! Which test tries which fault: `docs/faults.md` is written from the doc lines of the tests themselves.
//!
//! A test says which rows of the fault catalogue it tries with a line of its own, `Faults: A2, C1.`, or by beginning its
//! name with one (`d7_a_truncated_file_is_refused`). A row that concerns what is built and is tried by no test fails
//! here, and so does a row that nobody knows.

mod catalogue;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use self::catalogue::{ROWS_OF_OTHERS, Row, SECTIONS, Standing};
use crate::source;

/// Tests by the row they try, each as `crate/path.rs::name`.
fn tried() -> BTreeMap<String, Vec<String>> {
    let mut tried: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in source::all() {
        let mut rows = BTreeSet::new();
        for (at, line) in file.lines() {
            if let Some(named) = line.trim().strip_prefix(concat!("/// ", "Faults: ")) {
                // What stands behind the full stop is for people.
                let (named, _) = named
                    .split_once('.')
                    .unwrap_or_else(|| panic!("{}:{at}: end it with a full stop", file.name));
                rows.extend(named.split(", ").map(str::to_owned));
            }
            let Some(name) = function(line) else { continue };
            rows.extend(row_in_name(name));
            for row in std::mem::take(&mut rows) {
                tried.entry(row).or_default().push(format!("{}::{name}", file.name));
            }
        }
        assert!(rows.is_empty(), "{}: {rows:?} stand above no test", file.name);
    }
    tried
}

/// The name of the function that begins on this line.
fn function(line: &str) -> Option<&str> {
    let line = line.trim();
    let words = ["pub(super) ", "pub(crate) ", "pub ", "async "];
    let bare = words.iter().fold(line, |line, word| line.strip_prefix(word).unwrap_or(line));
    bare.strip_prefix("fn ")?.split(['(', '<']).next()
}

/// `d7_a_truncated_file_is_refused` tries row D7.
fn row_in_name(name: &str) -> Option<String> {
    let row = name.split_once('_')?.0.to_uppercase();
    is_known(&row).then_some(row)
}

fn rows() -> impl Iterator<Item = &'static Row> {
    SECTIONS.iter().flat_map(|(_, rows)| *rows)
}

fn is_known(row: &str) -> bool {
    let is_others = ROWS_OF_OTHERS.iter().any(|(letter, last)| {
        row.strip_prefix(*letter)
            .and_then(|number| number.parse::<u32>().ok())
            .is_some_and(|number| (1..=*last).contains(&number))
    });
    is_others || rows().any(|known| known.id == row)
}

#[test]
fn every_fault_of_what_is_built_is_tried_by_a_test() {
    let tried = tried();
    let is_untried = |row: &&Row| row.standing == Standing::Built && !tried.contains_key(row.id);
    let untried: Vec<_> = rows().filter(is_untried).map(|row| format!("{} ({})", row.id, row.what)).collect();
    assert!(untried.is_empty(), "no test tries {}", untried.join(", "));
    let unknown: Vec<_> = tried.iter().filter(|(row, _)| !is_known(row)).collect();
    assert!(unknown.is_empty(), "no such row: {unknown:?}");
}

#[test]
fn the_document_of_faults_is_up_to_date() {
    let path = source::root().join("docs/faults.md");
    let text = document(&tried());
    if std::fs::read_to_string(&path).ok().as_deref() != Some(text.as_str()) {
        std::fs::write(&path, text).unwrap();
        panic!("regenerated docs/faults.md, commit it");
    }
}

fn document(tried: &BTreeMap<String, Vec<String>>) -> String {
    let mut text = String::from(
        "# Faults and the tests that try them\n\n\
         Written by `crates/remuda/tests/it/faults.rs` from the tests themselves: each says which faults it tries. A fault\n\
         of what is built that no test tries fails the build. *Later* names the part that the fault belongs to and that is\n\
         not built yet.\n",
    );
    for (title, rows) in SECTIONS {
        write!(text, "\n## {title}\n\n| row | what goes wrong | tried by |\n|---|---|---|\n").unwrap();
        for row in *rows {
            writeln!(text, "| {} | {} | {} |", row.id, row.what, tests(row, tried.get(row.id))).unwrap();
        }
    }
    text.push_str("\n## Rows of parts that are not built yet\n\n| row | tried by |\n|---|---|\n");
    let is_others = |row: &str| !rows().any(|known| known.id == row);
    let mut others: Vec<_> = tried.iter().filter(|(row, _)| is_others(row)).collect();
    others.sort_by_key(|(row, _)| (row.chars().next(), row[1..].parse::<u32>().ok()));
    for (row, tests) in others {
        writeln!(text, "| {row} | {} |", listed(tests)).unwrap();
    }
    text
}

fn tests(row: &Row, tests: Option<&Vec<String>>) -> String {
    match (row.standing, tests) {
        (Standing::Later(what), None) => format!("*later: {what}*"),
        (Standing::Later(what), Some(tests)) => format!("*later: {what}*<br>{}", listed(tests)),
        (Standing::Built, tests) => tests.map_or("**nothing**".to_owned(), |tests| listed(tests)),
    }
}

fn listed(tests: &[String]) -> String {
    tests.iter().map(|test| format!("`{test}`")).collect::<Vec<_>>().join("<br>")
}
