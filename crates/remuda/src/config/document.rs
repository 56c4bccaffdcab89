//! Writes `docs/configuration.md` from the table, so that the document cannot drift.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::check::RULES;
use super::key::Key;
use super::table::GROUPS;
use super::value::{Kind, Unit};
use super::{Resolved, load};

const HEAD: &str = "\
# Configuration

*Written by a test from `crates/remuda/src/config/table.rs`; edit that instead.*

Remuda runs without any configuration. What is written in `remuda.toml` replaces the defaults, the environment
replaces the file, and flags replace all of them. `remuda config show` prints every value and where it came from.

The file is the one named by `--config` or `REMUDA_CONFIG`, or else `remuda.toml` in the current folder, or else
`remuda.toml` in the data folder. Relative paths in it count from the folder it is in. A key that does not exist is
refused, and so is a variable that begins with `REMUDA_` and is none of those below, `REMUDA_URL`, `REMUDA_TOKEN`,
`REMUDA_CA`, `REMUDA_ADMIN_TOKEN`, `REMUDA_CONFIG`, `REMUDA_LOG`, or one of those that `remuda worker --help` names. A
variable that is empty counts as not set.

Durations have a unit: `250ms`, `90s`, `5m`, `2h`, `7d`, `1h30m`. Only the variables marked (ms) or (s) are plain
numbers, and where one of them and the `REMUDA_` name are both set, the latter wins. Sizes may be written as `8MiB`.

The data folder is `$XDG_DATA_HOME/remuda` or `~/.local/share/remuda`, on macOS
`~/Library/Application Support/remuda`.

";

const EXAMPLE: &str = r#"listen = "127.0.0.1:8288"
data = "/var/lib/remuda"
retain_for = "30d"

[beat]
idle = "20s"

[scaling]
machines_min = 0
machines_max = 4
"#;

fn document() -> String {
    let defaults = Resolved::defaults(PathBuf::from("<data>"));
    let mut text = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    for group in GROUPS {
        writeln!(text, "\n## {}\n", group.title).unwrap();
        text.push_str("| key | default | may be | environment | meaning |\n|---|---|---|---|---|\n");
        for key in group.keys {
            let default = match key.name {
                "data" => "the data folder".to_owned(),
                _ => format!("`{}`", key.shown(&defaults)),
            };
            let (name, bounds, variables) = (key.name, key.kind.bounds(), variables(key));
            writeln!(text, "| `{name}` | {default} | {bounds} | {variables} | {} |", key.meaning).unwrap();
        }
    }
    text.push_str("\n## What must fit together\n\n");
    for rule in RULES {
        writeln!(text, "- {}: {}.", rule.sentence(), rule.because).unwrap();
    }
    text
}

fn variables(key: &Key) -> String {
    let seed = key.seed.map(|(name, unit)| match (key.kind, unit) {
        (Kind::Duration { .. }, Unit::Milliseconds) => format!(", `{name}` (ms)"),
        (Kind::Duration { .. }, Unit::Seconds) => format!(", `{name}` (s)"),
        _ => format!(", `{name}`"),
    });
    format!("`{}`{}", key.variable(), seed.unwrap_or_default())
}

#[test]
fn the_document_says_what_the_table_says() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = document();
    if fs::read_to_string(&path).ok().as_ref() != Some(&text) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        panic!("docs/configuration.md was not up to date; regenerated, commit it");
    }
}

#[test]
fn the_example_in_the_document_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("remuda.toml");
    fs::write(&path, EXAMPLE).unwrap();
    let resolved = load(Some(&path), [], &[]).unwrap();
    assert_eq!(resolved.settings.scaling.machines_max, 4);
    assert_eq!(resolved.origins.len(), 6);
}
