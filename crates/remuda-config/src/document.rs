//! Compares `docs/configuration.md` with the table of settings, and writes it on request. Compiled for tests only.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use super::check::RULES;
use super::key::Key;
use super::table::{GROUPS, fleets, models, tenants};
use super::value::{Kind, Unit};
use super::{FleetConfig, ModelConfig, ResolvedConfig, ValueOrigin, load};

const HEAD: &str = "\
# Configuration

*Generated from `crates/remuda-config/src/table.rs`; edit the table, then run
`REMUDA_WRITE_DOCS=1 cargo test -p remuda-config document`.*

Remuda runs without any configuration. To change a default, write the setting in `remuda.toml`, set it in the
environment, or pass it as a flag; flags win over the environment, and the environment wins over the file.

```sh
remuda config show                          # every setting, its value and where it came from
remuda serve --set beat.idle=20s            # any setting as a flag
REMUDA_BEAT_IDLE=20s remuda serve           # any setting as a variable
```

Remuda reads the file that `--config` or `REMUDA_CONFIG` names. Without either it reads `remuda.toml` in the current
folder, or else in the data folder. Relative paths in the file are resolved against the folder of the file.

Remuda refuses a setting that it does not know. It warns of a variable that begins with `REMUDA_` and ignores it, unless it is
listed below, is one of `REMUDA_URL`, `REMUDA_TOKEN`, `REMUDA_CA`, `REMUDA_ADMIN_TOKEN`, `REMUDA_CONFIG` and
`REMUDA_LOG`, or is named by `remuda worker --help`. An empty variable counts as not set.

Write durations with a unit: `250ms`, `90s`, `5m`, `2h`, `7d`, `1h30m`. Only the variables marked (ms) or (s) accept
plain numbers; they are the names of Remuda's predecessors, and the `REMUDA_` name wins if both are set. Write sizes as
bytes or with a unit: `8MiB`.

The data folder is `$XDG_DATA_HOME/remuda` or `~/.local/share/remuda`; on macOS it is
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

Each `[[fleet]]` defines machines of one kind. Fleets take waiting jobs in the order in which you list them; jobs that
exceed the capacity of one fleet go to the next one that can run them. A scaling setting that a fleet omits is taken from
`[scaling]`.

Fleets can be configured only in the file. `remuda config show` prints their settings as `fleet.NAME.SETTING`, and
`remuda config reload` makes a running plane read them again. If that changes how machines are created (image, GPU,
environment or command), the plane replaces the existing machines one by one.

Fleets of provider `process` have shorter timeouts than the defaults below, because the plane sees its own processes at
once. `remuda config show` prints them.

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
## Models on this machine

Each `[[model]]` is a model that `remuda up` and `remuda worker` serve from this machine. The same on the command line:
`--model embed=models/minilm,copies=2`. A relative path is resolved against the folder of the file. See
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

const TENANTS: &str = "
## Tenants

Each `[[tenant]]` is for one tenant. It replaces quotas; a quota that it omits is the one of `[quota]`. One tenant at its
limit never affects another: it gets 429 with the quota, the limit and what it uses, and `Retry-After`. It also has the
rules what the tenant may use; those of `name = "*"` are for every tenant ([security.md](security.md)). `remuda config
reload` makes a running plane read them again.

```toml
";

const TENANTS_EXAMPLE: &str = r#"[quota]
open_jobs_max = 10_000

[[tenant]]
name = "batch"
open_jobs_max = 500_000
submissions_per_second = 500
worker_labels = { pool = "batch" }

[[tenant]]
name = "*"
denied_classes = ["Execute*"]
"#;

fn document() -> String {
    let defaults = ResolvedConfig::defaults(PathBuf::from("<data>"));
    let mut text = format!("{HEAD}```toml\n{EXAMPLE}```\n");
    for group in GROUPS {
        writeln!(text, "\n## {}\n", group.title).unwrap();
        text.push_str(
            "| setting | default | allowed values | environment | description |\n|---|---|---|---|---|\n",
        );
        for key in group.keys {
            let default = match key.name {
                "data" => "the data folder".to_owned(),
                // The description names the default.
                _ if key.display(&defaults).is_empty() => String::new(),
                _ => format!("`{}`", key.display(&defaults)),
            };
            let (name, bounds, variables) = (key.name, key.kind.bounds(), variables(key));
            writeln!(text, "| `{name}` | {default} | {bounds} | {variables} | {} |", key.meaning).unwrap();
        }
    }
    text.push_str(&format!("{FLEETS}{FLEETS_EXAMPLE}```\n"));
    let declared_at = ValueOrigin::Default;
    let fleet = FleetConfig::new("fleet".parse().unwrap(), declared_at, defaults.settings.scaling);
    for group in fleets::GROUPS {
        writeln!(text, "\n### {}\n", group.title).unwrap();
        text.push_str("| setting | default | allowed values | description |\n|---|---|---|---|\n");
        for key in group.keys {
            let value = key.display(&fleet);
            let general = fleets::FALLBACKS.iter().find(|(own, _)| *own == key.name);
            let default = match (general, key.name, value.as_str()) {
                (Some((_, general)), ..) => format!("`{general}`"),
                (None, "name" | "provider", _) | (None, _, "") => String::new(),
                (None, _, value) => format!("`{value}`"),
            };
            let (name, bounds) = (key.name, key.kind.bounds());
            writeln!(text, "| `{name}` | {default} | {bounds} | {} |", key.meaning).unwrap();
        }
    }
    text.push_str(&format!("{MODELS}{MODELS_EXAMPLE}```\n\n"));
    text.push_str("| setting | default | allowed values | description |\n|---|---|---|---|\n");
    let model = ModelConfig::new("model", ValueOrigin::Default);
    for key in models::KEYS {
        let value = key.display(&model);
        let is_required = value.is_empty() || key.name == "name";
        let default = if is_required { String::new() } else { format!("`{value}`") };
        let (name, bounds) = (key.name, key.kind.bounds());
        writeln!(text, "| `{name}` | {default} | {bounds} | {} |", key.meaning).unwrap();
    }
    text.push_str(&format!("{TENANTS}{TENANTS_EXAMPLE}```\n\n"));
    text.push_str("| setting | default | allowed values | description |\n|---|---|---|---|\n");
    for key in tenants::KEYS {
        let default =
            if tenants::is_quota(key.name) { format!("`quota.{}`", key.name) } else { String::new() };
        let (name, bounds) = (key.name, key.kind.bounds());
        writeln!(text, "| `{name}` | {default} | {bounds} | {} |", key.meaning).unwrap();
    }
    text.push_str("\n## Rules between settings\n\n");
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
fn documented_examples_load() {
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
    fs::write(&path, TENANTS_EXAMPLE).unwrap();
    let resolved = load(Some(&path), [("HOME".to_owned(), "/home/anna".to_owned())], &[]).unwrap();
    assert_eq!(resolved.settings.tenants.every.denied_classes, ["Execute*"]);
}
