//! Rules of this code base that no compiler checks: words, names, module cycles, sizes, leftovers, dependencies.

use remuda_tidy::source::{SourceFile, rust_files, workspace_root};
use remuda_tidy::{modules, types, words};

/// A longer file is about more than one subject.
const FILE_LINES_MAX: usize = 500;
/// Avoided words in 10,000; the code bases we compare with have 0 to 0.1.
const AVOIDED_WORDS_MAX: f64 = 2.0;
/// Percent of type definitions whose name is taken already; the code bases we compare with have 10.
const REUSED_NAMES_MAX: f64 = 12.0;

/// Fails with every finding, one a line.
#[track_caller]
fn assert_none(findings: &[String]) {
    assert!(findings.is_empty(), "\n{}\n", findings.join("\n"));
}

/// Fails if the code of a line that `choose` picks contains one of `words`.
#[track_caller]
fn assert_absent<'a, I: Iterator<Item = (usize, &'a str)>>(
    files: &'a [SourceFile],
    words: &[&str],
    choose: impl Fn(&'a SourceFile) -> I,
) {
    let mut findings = Vec::new();
    for file in files {
        let lines = choose(file).filter(|(_, line)| words.iter().any(|word| code(line).contains(word)));
        findings.extend(lines.map(|(at, line)| format!("crates/{}:{at}: {}", file.name, line.trim())));
    }
    assert_none(&findings);
}

/// The part of a line before its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

#[test]
fn avoided_words_stay_rare() {
    for (place, count) in
        [("comments", words::in_comments()), ("code", words::in_code()), ("documents", words::in_documents())]
    {
        let list: Vec<_> = count
            .hits
            .iter()
            .take(40)
            .map(|hit| format!("{}:{}: {}", hit.file, hit.line, hit.word))
            .collect();
        let rate = count.per_ten_thousand();
        assert!(
            rate <= AVOIDED_WORDS_MAX,
            "{rate:.1} avoided words in 10,000 of {place}:\n{}",
            list.join("\n")
        );
    }
}

#[test]
fn no_two_public_types_share_a_name() {
    let is_public = |all: &&Vec<types::TypeDefinition>| all.iter().filter(|it| it.is_public).count() > 1;
    let reused = types::reused(&types::definitions());
    let shared = reused.values().filter(is_public).map(|all| {
        let files: Vec<_> = all.iter().filter(|it| it.is_public).map(|it| it.file.as_str()).collect();
        format!("{}: {}", all[0].name, files.join(", "))
    });
    assert_none(&shared.collect::<Vec<_>>());
}

#[test]
fn type_names_are_rarely_reused() {
    let definitions = types::definitions();
    let percent = types::reused_percent(&definitions);
    assert!(
        percent <= REUSED_NAMES_MAX,
        "{percent:.1} % of {} definitions: cargo run -p remuda-tidy -- types",
        definitions.len()
    );
}

#[test]
fn modules_form_no_cycles() {
    let cycles = modules::graphs().into_iter().flat_map(|(name, graph)| {
        modules::cycles(&graph).into_iter().map(move |cycle| format!("{name}: {}", cycle.join(", ")))
    });
    assert_none(&cycles.collect::<Vec<_>>());
}

#[test]
fn no_file_is_too_long() {
    let files = rust_files();
    let lengths = files.iter().map(|file| (&file.name, file.production_lines().count()));
    let findings = lengths.filter(|(_, lines)| *lines > FILE_LINES_MAX);
    assert_none(
        &findings.map(|(name, lines)| format!("crates/{name}: {lines} production lines")).collect::<Vec<_>>(),
    );
}

#[test]
fn production_code_does_not_unwrap() {
    let mut files = rust_files();
    files.retain(SourceFile::is_production);
    assert_absent(&files, &[".unwrap()"], SourceFile::production_lines);
}

#[test]
fn nothing_is_left_unfinished() {
    // Assembled here, so that this file does not find itself.
    let unfinished = [concat!("todo", "!("), concat!("unimplemented", "!("), concat!("#[", "ignore")];
    // A test that other tests start as a child process is not unfinished.
    let is_child = |line: &str| line.contains("= \"a child of other tests\"");
    assert_absent(&rust_files(), &unfinished, |file| file.lines().filter(move |(_, line)| !is_child(line)));
}

/// A job's workflow is read by `remuda_core::workflow` alone, which counts; tests compare the count with what a job may cost.
#[test]
fn workflows_are_read_in_one_place() {
    const ELSEWHERE: [&str; 3] = [
        // A request to a model, in the model's own type.
        "remuda-worker/src/models/request.rs",
        // Shows a stored workflow to a ComfyUI client.
        "remuda-server/src/http/comfyui/prompt.rs",
        // Texts among a job's outputs.
        "remuda-server/src/http/comfy_v2/output.rs",
    ];
    let mut files = rust_files();
    files.retain(|file| file.is_production() && !file.name.starts_with("remuda-core/src/workflow"));
    files.retain(|file| !ELSEWHERE.contains(&file.name.as_str()));
    let names = ["workflow", "graph", "prompt", "given", "body", "whole"];
    let reads = ["from_str", "from_slice"].iter().flat_map(|read| {
        names.iter().flat_map(move |name| {
            ["", "&"].map(|by| [format!("{read}({by}{name}.get()"), format!(">({by}{name}.get()")])
        })
    });
    let reads: Vec<String> = reads.flatten().collect();
    let reads: Vec<&str> = reads.iter().map(String::as_str).collect();
    assert_absent(&files, &reads, SourceFile::production_lines);
}

#[test]
fn core_iterates_in_a_fixed_order() {
    let mut files = rust_files();
    files.retain(|file| file.crate_name() == "remuda-core");
    assert_absent(&files, &["HashMap", "HashSet"], SourceFile::lines);
}

/// The lines of one table of a `Cargo.toml`, without comment lines and empty ones.
fn manifest_table(file: &str, name: &str) -> Vec<String> {
    let text = std::fs::read_to_string(workspace_root().join(file)).expect("the manifest is there");
    let lines =
        text.lines().skip_while(|line| *line != name).skip(1).take_while(|line| !line.starts_with('['));
    lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect()
}

#[test]
fn core_depends_on_nothing_that_acts() {
    let dependencies = manifest_table("crates/remuda-core/Cargo.toml", "[dependencies]");
    let names: Vec<_> = dependencies.iter().filter_map(|line| line.split(['.', ' ', '=']).next()).collect();
    assert_eq!(names, ["serde", "serde_json", "sha2"]);
}

#[test]
fn every_dependency_has_a_reason() {
    let dependencies = manifest_table("Cargo.toml", "[workspace.dependencies]");
    assert!(dependencies.len() > 10, "{dependencies:?}");
    let is_ours = |line: &String| line.contains("path = \"crates/");
    let has_reason = |line: &String| line.split_once("# ").is_some_and(|(_, reason)| reason.len() > 5);
    assert_none(
        &dependencies.into_iter().filter(|line| !is_ours(line) && !has_reason(line)).collect::<Vec<_>>(),
    );
}

/// Files whose tests may sleep: only between two looks at a condition, or to let a fault last.
const FILES_THAT_SLEEP: [&str; 4] = [
    "remuda/tests/it/harness.rs",
    "remuda-models/tests/pool/fixture.rs",
    "remuda-store/src/sqlite/tests/disk.rs",
    "remuda-providers/src/ssh/tests/sshd.rs",
];

#[test]
fn tests_wait_for_conditions_not_for_time() {
    let mut files = rust_files();
    files.retain(|file| !FILES_THAT_SLEEP.contains(&file.name.as_str()));
    assert_absent(&files, &[concat!("::", "sleep(")], SourceFile::test_lines);
}

#[test]
fn architecture_names_only_files_that_exist() {
    let root = workspace_root();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).expect("ARCHITECTURE.md is there");
    let named =
        text.split('`').skip(1).step_by(2).filter(|word| word.starts_with("remuda") && word.contains('/'));
    let missing = named.filter(|path| !root.join("crates").join(path).exists()).map(str::to_owned);
    assert_none(&missing.collect::<Vec<_>>());
}
