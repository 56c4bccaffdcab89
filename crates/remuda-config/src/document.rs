//! Writes `docs/configuration.md` from the table, so that the document cannot drift.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::check::RULES;
use super::key::Key;
use super::table::{GROUPS, fleets, models};
use super::value::{Kind, Unit};
use super::{Fleet, Model, Origin, Resolved, load};

const HEAD: &str = "\
# Configuration

*Generated from `crates/remuda-config/src/table.rs`; edit the table, then run
`REMUDA_WRITE_DOCS=1 cargo test -p remuda-config document`.*

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
retention = "30d"

[beat]
idle = "20s"

[scaling]
machines_min = 0
machines_max = 4
"#;

const FLEETS: &str = "
## Fleets

Each `[[fleet]]` is a number of machines of one kind. In the order in which they are written they take what waits: what is
too much for one goes to the next that could run it. Where a fleet says nothing about scaling, `[scaling]` and the
variables that go with it speak for it. A key of a fleet can only be written in the file; `remuda config show` prints it as
`fleet.NAME.KEY`, and `remuda config reload` has a running plane read it again. Machines that would be made differently by
then (another image, GPU, environment or command) are replaced one by one.

The limits of `process` fleets are shorter than the defaults below, because what this very machine says of its processes
is so at once; `remuda config show` has them.

```toml
";

const FLEETS_EXAMPLE: &str = r#"[[fleet]]
name = "local"
provider = "process"
command = "remuda worker --exec ./render.sh"
machines_min = 1
machines_max = 4

[[fleet]]
name = "gpus"
provider = "runpod"                            # with RUNPOD_API_KEY in the environment
image = "registry.example.org/comfyui-remuda:1.4"
gpus = ["NVIDIA GeForce RTX 4090", "NVIDIA RTX A6000"]
data_centers = ["EU-RO-1"]
url = "https://plane.example.org:8288"
services = ["comfyui"]
labels = { tier = "large" }
machines_max = 6
price_max = 0.90
budget_hourly = 4
budget_daily = 40
env = { HF_HOME = "/workspace/models" }
"#;

const MODELS: &str = "
## Models of this machine

Each `[[model]]` is a model that `remuda up` and `remuda worker` serve from this machine, as `--model` on the command line
says it too: `--model embed=models/minilm,copies=2`. A relative path counts from the folder the file is in. See
[models.md](models.md).

```toml
";

const MODELS_EXAMPLE: &str = r#"[[model]]
name = "embed"
path = "models/minilm"
copies = 2

[[model]]
name = "chat"
path = "models/smollm2.gguf"
isolation = "process"
threads = 2
memory = "1GiB"
"#;

fn document() -> String {
    let defaults = Resolved::defaults(PathBuf::from("<data>"));
    let mut text = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    for group in GROUPS {
        writeln!(text, "\n## {}\n", group.title).unwrap();
        text.push_str("| key | default | allowed values | environment | meaning |\n|---|---|---|---|---|\n");
        for key in group.keys {
            let default = match key.name {
                "data" => "the data folder".to_owned(),
                // Its meaning says what holds then.
                _ if key.shown(&defaults).is_empty() => String::new(),
                _ => format!("`{}`", key.shown(&defaults)),
            };
            let (name, bounds, variables) = (key.name, key.kind.bounds(), variables(key));
            writeln!(text, "| `{name}` | {default} | {bounds} | {variables} | {} |", key.meaning).unwrap();
        }
    }
    text.push_str(&format!("{FLEETS}{FLEETS_EXAMPLE}```\n"));
    let began = Origin::Default;
    let fleet = Fleet::new("fleet".parse().unwrap(), began, defaults.settings.scaling);
    for group in fleets::GROUPS {
        writeln!(text, "\n### {}\n", group.title).unwrap();
        text.push_str("| key | default | allowed values | meaning |\n|---|---|---|---|\n");
        for key in group.keys {
            let shown = key.shown(&fleet);
            let general = fleets::FALLBACKS.iter().find(|(own, _)| *own == key.name);
            let default = match (general, key.name, shown.as_str()) {
                (Some((_, general)), ..) => format!("`{general}`"),
                (None, "name" | "provider", _) | (None, _, "") => String::new(),
                (None, _, shown) => format!("`{shown}`"),
            };
            let (name, bounds) = (key.name, key.kind.bounds());
            writeln!(text, "| `{name}` | {default} | {bounds} | {} |", key.meaning).unwrap();
        }
    }
    text.push_str(&format!("{MODELS}{MODELS_EXAMPLE}```\n\n"));
    text.push_str("| key | default | allowed values | meaning |\n|---|---|---|---|\n");
    let model = Model::new("model", Origin::Default);
    for key in models::KEYS {
        let shown = key.shown(&model);
        let is_needed = shown.is_empty() || key.name == "name";
        let default = if is_needed { String::new() } else { format!("`{shown}`") };
        let (name, bounds) = (key.name, key.kind.bounds());
        writeln!(text, "| `{name}` | {default} | {bounds} | {} |", key.meaning).unwrap();
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

/// The command that writes the document; the test only compares.
const WRITE: &str = "REMUDA_WRITE_DOCS=1 cargo test -p remuda-config document";

#[test]
fn document_matches_the_table() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = document();
    if env::var_os("REMUDA_WRITE_DOCS").is_some() {
        fs::write(&path, &text).unwrap();
    }
    let is_current = fs::read_to_string(&path).is_ok_and(|found| found == text);
    assert!(is_current, "docs/configuration.md does not match the table of settings; write it with: {WRITE}");
}

#[test]
fn the_example_in_the_document_works() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("remuda.toml");
    fs::write(&path, EXAMPLE).unwrap();
    let resolved = load(Some(&path), [], &[]).unwrap();
    assert_eq!(resolved.settings.scaling.machines_max, 4);
    assert_eq!(resolved.origins.len(), 6);
    fs::write(&path, FLEETS_EXAMPLE).unwrap();
    let resolved = load(Some(&path), [("HOME".to_owned(), "/home/anna".to_owned())], &[]).unwrap();
    assert_eq!(resolved.settings.fleets.len(), 2);
    fs::write(&path, MODELS_EXAMPLE).unwrap();
    let resolved = load(Some(&path), [("HOME".to_owned(), "/home/anna".to_owned())], &[]).unwrap();
    assert_eq!(resolved.models.own[1].spec.memory_bytes, Some(1 << 30));
}
