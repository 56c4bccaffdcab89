//! What no compiler checks: how large things grow, what creeps in, what is left undone.

use crate::source::{self, Source, root};

/// Past this a file is about more than one subject.
const LINES_MAX: usize = 500;

/// That there is none; each is told.
fn none(found: &[String]) {
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// That none of the lines that `choose` picks from a file has one of `words` in its code; each is told with its place.
fn none_has<'a, I: Iterator<Item = (usize, &'a str)>>(
    sources: &'a [Source],
    words: &[&str],
    choose: impl Fn(&'a Source) -> I,
) {
    let mut found = Vec::new();
    for source in sources {
        let lines = choose(source).filter(|(_, line)| words.iter().any(|word| code(line).contains(word)));
        found.extend(lines.map(|(at, line)| format!("crates/{}:{at}: {}", source.name, line.trim())));
    }
    none(&found);
}

/// Without what stands in comments.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn no_file_is_too_long() {
    let sources = source::all();
    let lengths = sources.iter().map(|source| (&source.name, source.production().count()));
    let too_long = lengths.filter(|(_, lines)| *lines > LINES_MAX);
    none(
        &too_long
            .map(|(name, lines)| format!("crates/{name}: {lines} lines of production code"))
            .collect::<Vec<_>>(),
    );
}

#[test]
fn nothing_is_unwrapped_outside_of_tests() {
    none_has(&source::all(), &[".unwrap()"], Source::production);
}

#[test]
fn nothing_is_left_undone() {
    // Put together here, so that this file does not find itself.
    let undone = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore")];
    // One that other tests start as a process of their own is not left undone.
    let is_child = |line: &str| line.contains("= \"a child of other tests\"");
    none_has(&source::all(), &undone, |source| source.lines().filter(move |(_, line)| !is_child(line)));
}

#[test]
fn the_core_has_no_order_that_differs_from_run_to_run() {
    let mut sources = source::all();
    sources.retain(|source| source.name.starts_with("remuda-core/"));
    none_has(&sources, &["HashMap", "HashSet"], Source::lines);
}

/// The lines of one table of a `Cargo.toml`, without comments of their own and empty ones.
fn table(file: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(file)).unwrap();
    let lines =
        text.lines().skip_while(|line| *line != name).skip(1).take_while(|line| !line.starts_with('['));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn the_core_depends_on_what_computes_and_nothing_that_acts() {
    let dependencies = table("crates/remuda-core/Cargo.toml", "[dependencies]");
    let names: Vec<_> = dependencies.iter().map(|line| line.split(['.', ' ', '=']).next().unwrap()).collect();
    assert_eq!(names, ["serde", "serde_json", "sha2"]);
}

#[test]
fn every_dependency_says_what_it_is_for() {
    let dependencies = table("Cargo.toml", "[workspace.dependencies]");
    assert!(dependencies.len() > 10, "{dependencies:?}");
    let is_ours = |line: &String| line.contains("path = \"crates/");
    let has_reason = |line: &String| line.split_once("# ").is_some_and(|(_, reason)| reason.len() > 5);
    none(&dependencies.into_iter().filter(|line| !is_ours(line) && !has_reason(line)).collect::<Vec<_>>());
}

/// Where a test may sleep: only to look again, or to let a fault last.
const SLEEPERS: [&str; 4] = [
    "remuda/tests/it/harness.rs",
    "remuda-models/tests/pool/herd.rs",
    "remuda-store/src/sqlite/tests/disk.rs",
    "remuda-providers/src/ssh/tests/sshd.rs",
];

#[test]
fn tests_wait_for_conditions_and_not_for_time() {
    let mut sources = source::all();
    sources.retain(|source| !SLEEPERS.contains(&source.name.as_str()));
    none_has(&sources, &[concat!("::", "sleep(")], Source::tests);
}
