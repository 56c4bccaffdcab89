//! Configuration from file, environment and flags: the resolved values and the error messages.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value as Json;
use tempfile::TempDir;

use super::environment::Environment;
use super::key::Key;
use super::value::{Kind, Value};
use super::*;

mod fleets;
mod tenants;

/// A start folder with files, an environment and flags.
struct Fixture {
    folder: TempDir,
    variables: Vec<(String, String)>,
    flags: Vec<(&'static str, String, &'static str)>,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home").display().to_string();
    Fixture { folder, variables: vec![("HOME".to_owned(), home)], flags: Vec::new() }
}

impl Fixture {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(self, text: &str) -> Fixture {
        self.file_at("remuda.toml", text)
    }

    fn file_at(self, name: &str, text: &str) -> Fixture {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Fixture {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn flag(mut self, key: &'static str, value: &str, name: &'static str) -> Fixture {
        self.flags.push((key, value.to_owned(), name));
        self
    }

    fn load(&self) -> Result<ResolvedConfig, ConfigError> {
        let flags: Vec<ConfigFlag<'_>> =
            self.flags.iter().map(|(key, value, name)| ConfigFlag { key, value, name }).collect();
        load_from(self.folder.path(), None, &Environment::new(self.variables.clone()), &flags)
    }

    /// The error message, without the folder's name.
    fn error_message(&self) -> String {
        let error = self.load().expect_err("this configuration should be refused");
        error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }
}

#[test]
fn defaults_apply_without_configuration() {
    let fixture = fixture();
    let resolved = fixture.load().unwrap();
    let data = if cfg!(target_os = "macos") {
        fixture.path("home/Library/Application Support/remuda")
    } else {
        fixture.path("home/.local/share/remuda")
    };
    assert_eq!(resolved, ResolvedConfig::defaults(data.clone()));
    assert_eq!(resolved.serve.store, StoreUrl::Sqlite(data.join("remuda.sqlite")));
    assert_eq!(resolved.settings, Settings::default());
}

#[test]
fn later_sources_win_and_origins_are_recorded() {
    let file = "lease = '40s'\n[beat]\nidle = '20s'\nbusy = '4s'\n";
    let fixture = fixture()
        .file(file)
        .variable("REMUDA_BEAT_IDLE", "21s")
        .variable("REMUDA_BEAT_BUSY", "3s")
        .flag("beat.busy", "2s", "--beat-busy");
    let resolved = fixture.load().unwrap();
    let settings = &resolved.settings;
    assert_eq!(
        [settings.lease, settings.beat_idle, settings.beat_busy].map(|duration| duration.as_secs()),
        [40, 21, 2]
    );
    let origins = ["lease", "beat.idle", "beat.busy", "listen"].map(|key| resolved.origin(key));
    assert_eq!(
        origins,
        [
            ValueOrigin::File { path: fixture.path("remuda.toml"), line: 1 },
            ValueOrigin::Environment("REMUDA_BEAT_IDLE".to_owned()),
            ValueOrigin::Flag("--beat-busy".to_owned()),
            ValueOrigin::Default,
        ]
    );
}

#[test]
fn remuda_name_wins_over_the_seed_name() {
    let fixture = fixture().variable("MIN_ACTIVE_GPUS", "4").variable("REMUDA_SCALING_MACHINES_MIN", "5");
    assert_eq!(fixture.load().unwrap().settings.scaling.machines_min, 5);
}

#[test]
fn seed_names_keep_their_units() {
    let resolved = fixture()
        .variable("WORKER_HEALTH_CHECK_INTERVAL_MS", "15000")
        .variable("WORKER_WEBSOCKET_INACTIVITY_TIMEOUT_MS", "45000")
        .variable("ORCHESTRATOR_POLL_SEC", "10")
        .variable("GPU_HEALTH_CHECK_TIMEOUT_SEC", "60")
        .variable("AUTO_START_WORKER_PROCESS", "False")
        .load()
        .unwrap();
    assert_eq!(resolved.agent.given_up_recheck, Duration::from_secs(15));
    assert_eq!(resolved.agent.inactivity, Duration::from_secs(45));
    assert_eq!(resolved.settings.cycle_every, Duration::from_secs(10));
    assert_eq!(resolved.settings.scaling.vram_stale_after, Duration::from_secs(60));
    assert!(!resolved.serve.start_worker);
}

#[test]
fn file_is_searched_in_current_folder_then_in_data_folder() {
    let both = fixture().file("attempts_max = 7").file_at("data/remuda.toml", "attempts_max = 8");
    let data = both.path("data").display().to_string();
    let both = both.variable("REMUDA_DATA", &data);
    assert_eq!(both.load().unwrap().settings.attempts_max, 7);
    fs::remove_file(both.path("remuda.toml")).unwrap();
    assert_eq!(both.load().unwrap().settings.attempts_max, 8);
    let named = both.path("named.toml").display().to_string();
    let named = both.file_at("named.toml", "attempts_max = 9").variable("REMUDA_CONFIG", &named);
    assert_eq!(named.load().unwrap().settings.attempts_max, 9);
}

#[test]
fn named_file_must_exist() {
    let error = load(Some(Path::new("/nowhere/remuda.toml")), [], &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the configuration file /nowhere/remuda.toml: No such file"),
        "{error}"
    );
}

#[test]
fn relative_paths_are_resolved_against_the_files_folder() {
    let fixture = fixture().file("data = 'state'\nstore = 'sqlite:jobs.sqlite'");
    let resolved = fixture.load().unwrap();
    assert_eq!(resolved.serve.data, fixture.path("state"));
    assert_eq!(resolved.serve.store, StoreUrl::Sqlite(fixture.path("jobs.sqlite")));
}

#[test]
fn store_is_in_the_data_folder_by_default() {
    let moved = fixture().flag("data", "/srv/remuda", "--data").load().unwrap();
    assert_eq!(moved.serve.store.to_string(), "sqlite:/srv/remuda/remuda.sqlite");
    let chosen =
        fixture().flag("data", "/srv/remuda", "--data").flag("store", "memory:", "--store").load().unwrap();
    assert_eq!(chosen.serve.store, StoreUrl::Memory);
}

#[test]
fn data_folder_is_required_without_home() {
    let error = load_from(Path::new("/nowhere"), None, &Environment::new([]), &[]).unwrap_err();
    assert!(matches!(error, ConfigError::NoDataFolder));
    let flag = ConfigFlag { key: "data", value: "/srv/remuda", name: "--data" };
    assert!(load_from(Path::new("/nowhere"), None, &Environment::new([]), &[flag]).is_ok());
}

#[test]
fn unknown_names_are_refused_with_a_suggestion() {
    for (fixture, message) in [
        (
            fixture().file("\n\nlissten = '127.0.0.1:1'"),
            "unknown key `lissten` in remuda.toml, line 3: did you mean `listen`?",
        ),
        (
            fixture().file("[scaling]\nmachine_max = 3"),
            "unknown key `scaling.machine_max` in remuda.toml, line 2: did you mean `scaling.machines_max`?",
        ),
        (
            fixture().file("machines_max = 3"),
            "unknown key `machines_max` in remuda.toml, line 1: did you mean `scaling.machines_max`?",
        ),
        (
            fixture().file("[colours]"),
            "unknown key `colours` in remuda.toml, line 1: `remuda config show` lists all settings",
        ),
        (
            fixture().flag("leese", "x", "--set"),
            "unknown key `leese` given with --set: did you mean `lease`?",
        ),
    ] {
        assert_eq!(fixture.error_message(), message);
    }
}

#[test]
fn variables_that_are_not_settings_are_ignored() {
    let fixture = fixture()
        .variable("REMUDA_URL", "http://127.0.0.1:8288")
        .variable("REMUDA_TOKEN", "geheim")
        .variable("REMUDA_LOG", "debug")
        .variable("REMUDA_LISTEN", "")
        .variable("REMUDA_SERVICE_HOST", "10.0.0.1")
        .variable("REMUDA_PORT", "tcp://10.0.0.1:8288")
        .variable("REMUDA_PORT_8288_TCP_ADDR", "10.0.0.1")
        .variable("PATH", "/bin");
    assert!(fixture.load().unwrap().origins.is_empty());
    assert_eq!(unknown_variables(fixture.variables), Vec::<String>::new());
}

#[test]
fn unknown_variable_is_ignored_with_a_warning() {
    let fixture = fixture()
        .variable("REMUDA_LISTN", "x")
        .variable("REMUDA_PORT", "8288")
        .variable("REMUDA_LEASE", "40s")
        .variable("REMUDA_JOB", "what a worker sets for its command");
    assert_eq!(fixture.load().unwrap().settings.lease, Duration::from_secs(40));
    let warnings = unknown_variables(fixture.variables);
    let expected =
        "unknown variable REMUDA_LISTN in the environment is ignored: did you mean `REMUDA_LISTEN`?";
    assert_eq!(warnings[0], expected);
    assert!(warnings.len() == 2 && warnings[1].starts_with("unknown variable REMUDA_PORT"), "{warnings:?}");
    let many = unknown_variables((0..100).map(|n| (format!("REMUDA_X{n:03}"), "x".to_owned())));
    assert_eq!((many.len(), many[10].as_str()), (11, "90 more unknown variables begin with REMUDA_"));
}

#[test]
fn localhost_is_an_address() {
    for (written, expected) in
        [("localhost:8288", "127.0.0.1:8288"), ("LocalHost:0", "127.0.0.1:0"), ("[::1]:8288", "[::1]:8288")]
    {
        let resolved = fixture().flag("listen", written, "--listen").load().unwrap();
        assert_eq!(resolved.serve.listen.to_string(), expected);
    }
    for odd in ["localhost", "localhost:", "localhost:99999", "example.org:8288", "localhost:1:2"] {
        assert!(fixture().flag("listen", odd, "--listen").load().is_err(), "{odd}");
    }
}

#[test]
fn invalid_value_is_refused_with_origin_and_hint() {
    for (fixture, message) in [
        (
            fixture().file("\nattempts_max = 0"),
            "`attempts_max` cannot be `0` (file remuda.toml:2): it must be a whole number from 1 to 100",
        ),
        (
            fixture().variable("MIN_ACTIVE_GPUS", "-1"),
            "`scaling.machines_min` cannot be `-1` (environment MIN_ACTIVE_GPUS): it must be a whole number from 0 to 10000",
        ),
        (
            fixture().flag("lease", "1ms", "--lease"),
            "`lease` cannot be `1ms` (flag --lease): it must be from `10ms` to `1d`",
        ),
        (
            fixture().file("lease = 30"),
            "`lease` cannot be `30` (file remuda.toml:1): the unit is missing; write a duration as `250ms`, `90s`, `5m`, `2h` or `7d`",
        ),
        (
            fixture().file("listen = 8288"),
            "`listen` cannot be `8288` (file remuda.toml:1): it must be an address and a port, such as `127.0.0.1:8288`, `localhost:8288` or `[::1]:8288`",
        ),
        (
            fixture().file("stuck_policy = 'random'"),
            "`stuck_policy` cannot be `random` (file remuda.toml:1): it must be `progress` or `age`",
        ),
        (
            fixture().file("data = '~/remuda'"),
            "`data` cannot be `~/remuda` (file remuda.toml:1): `~` is expanded only by a shell; write the full path",
        ),
        (
            fixture().file("insecure = [true]"),
            "`insecure` cannot be `…` (file remuda.toml:1): it must be `true` or `false`",
        ),
    ] {
        assert_eq!(fixture.error_message(), message);
    }
}

#[test]
fn malformed_toml_is_refused_with_its_line() {
    let message = fixture().file("lease = '30s'\nstore = postgres://a:geheim@b\n").error_message();
    assert!(message.starts_with("remuda.toml, line 2 is not TOML: "), "{message}");
    assert!(!message.contains("geheim"), "{message}");
}

#[test]
fn contradicting_values_are_refused() {
    let fixture = fixture().file("lease = '16s'").variable("REMUDA_BEAT_BUSY", "8s");
    assert_eq!(
        fixture.error_message(),
        "`beat.busy` must be less than half of `lease`: one lost beat must not end the attempt. \
         `beat.busy` is 8s (environment REMUDA_BEAT_BUSY) and `lease` is 16s (file remuda.toml:1); \
         lower the first or raise the second"
    );
}

#[test]
fn each_rule_is_enforced_and_defaults_satisfy_all() {
    let defaults = ResolvedConfig::defaults(PathBuf::from("data"));
    assert!(check::check(&defaults).is_ok());
    for rule in check::RULES {
        let mut resolved = defaults.clone();
        let low = table::find(rule.low).unwrap();
        let beyond = match table::find(rule.high).unwrap().read(&defaults) {
            Value::Duration(duration) => Value::Duration(duration * 2),
            Value::Number(number) => Value::Number(number * 2),
            other => panic!("{other:?}"),
        };
        low.write(&mut resolved, beyond);
        let message = check::check(&resolved).unwrap_err().to_string();
        assert!(message.contains(&format!("`{}`", rule.low)), "{message}");
    }
}

/// A value that differs from the default and fits with all other defaults.
fn another(key: &Key, defaults: &ResolvedConfig) -> String {
    match (key.kind, key.read(defaults)) {
        (Kind::Duration { .. }, Value::Duration(duration)) => {
            value::format_duration(duration + Duration::from_secs(1))
        }
        (Kind::Number { .. } | Kind::Bytes { .. }, Value::Number(number)) => (number + 1).to_string(),
        (Kind::OptionalBytes { min, .. }, _) => (min + 1).to_string(),
        (Kind::Switch, Value::Switch(on)) => (!on).to_string(),
        (Kind::Choice(words), Value::Word(word)) => {
            words.iter().find(|other| **other != word).unwrap().to_string()
        }
        (Kind::Folder | Kind::File, _) => "/another/place".to_owned(),
        (Kind::List, _) => "one, another".to_owned(),
        (Kind::NodeClasses, _) => "anna/LoadImage, */Execute*".to_owned(),
        (Kind::WorkerPools, _) => "anna/pool=a".to_owned(),
        (Kind::Targets, _) => "127.0.0.1:9000, 10.0.0.0/8".to_owned(),
        (Kind::Address, _) => "127.0.0.1:9000".to_owned(),
        (Kind::Store, _) => "memory:".to_owned(),
        other => panic!("{} is {other:?}", key.name),
    }
}

#[test]
fn each_setting_changes_only_its_own_field_from_every_source() {
    let defaults = fixture().load().unwrap();
    for key in table::all() {
        let text = another(key, &defaults);
        let by_file = fixture().file(&format!("{} = '{text}'", key.name));
        let by_variable = fixture().variable(&key.variable(), &text);
        let by_flag = fixture().flag(key.name, &text, "--set");
        let mut ways = vec![by_file, by_variable, by_flag];
        if let Some((name, unit)) = key.seed {
            let plain = match (key.read(&defaults), unit) {
                (Value::Duration(duration), Unit::Seconds) => (duration.as_secs() + 1).to_string(),
                (Value::Duration(duration), Unit::Milliseconds) => (duration.as_millis() + 1000).to_string(),
                _ => text.clone(),
            };
            ways.push(fixture().variable(name, &plain));
        }
        for way in ways {
            let resolved = way.load().unwrap();
            assert_eq!(key.read(&resolved).to_string(), text, "{}", key.name);
            assert_ne!(resolved.origin(key.name), ValueOrigin::Default, "{}", key.name);
            let changed: Vec<&str> = table::all()
                .filter(|other| other.name != "data" && other.name != "store")
                .filter(|other| other.read(&resolved) != other.read(&defaults))
                .map(|other| other.name)
                .collect();
            assert!(changed.iter().all(|name| *name == key.name), "{} changed {changed:?}", key.name);
        }
    }
}

#[test]
fn every_field_of_the_core_settings_has_a_setting() {
    let defaults = fixture().load().unwrap();
    let mut all_changed = defaults.clone();
    for key in table::all() {
        let text = another(key, &defaults);
        let entry = key.entry(&RawSetting::Text(text), Unit::Required, ValueOrigin::Default).unwrap();
        key.write(&mut all_changed, entry.value);
    }
    let mut same: BTreeSet<_> = &fields(&defaults.settings) & &fields(&all_changed.settings);
    // Fleets have their own tests in `fleets`.
    same.remove("settings.fleets = []");
    assert_eq!(same, BTreeSet::new(), "fields without a setting");
}

/// Each field with its value, as text.
fn fields(settings: &impl serde::Serialize) -> BTreeSet<String> {
    fn collect(path: &str, json: &Json, fields: &mut BTreeSet<String>) {
        match json {
            Json::Object(inner) if !inner.contains_key("nanos") => {
                inner.iter().for_each(|(name, json)| collect(&format!("{path}.{name}"), json, fields));
            }
            _ => _ = fields.insert(format!("{path} = {json}")),
        }
    }
    let mut found = BTreeSet::new();
    collect("settings", &serde_json::to_value(settings).unwrap(), &mut found);
    found
}

#[test]
fn names_of_settings_are_unique() {
    let names: Vec<String> = table::all()
        .flat_map(|key| {
            [Some(key.name.to_owned()), Some(key.variable()), key.seed.map(|(name, _)| name.to_owned())]
        })
        .flatten()
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    // A setting that is also a section could not be written in TOML.
    for key in table::all() {
        assert!(!table::all().any(|other| other.name.starts_with(&format!("{}.", key.name))), "{}", key.name);
    }
}

#[test]
fn show_prints_every_value_with_its_origin() {
    let fixture = fixture().file("lease = '40s'").flag("listen", "[::1]:9", "--listen");
    let shown = show(&fixture.load().unwrap(), false);
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown.lines().count(), table::all().count());
    assert_eq!(line("lease"), format!("lease 40s file {}:1", fixture.path("remuda.toml").display()));
    assert_eq!(line("listen"), "listen [::1]:9 flag --listen");
    assert_eq!(line("limits.body_bytes_max"), "limits.body_bytes_max 8MiB default");

    let json: Json = serde_json::from_str(&show(&fixture.load().unwrap(), true)).unwrap();
    assert_eq!(json["lease"]["value"], "40s");
    assert_eq!(json["lease"]["line"], 1);
    assert_eq!(json["listen"]["origin"], "flag");
    assert_eq!(json["limits.body_bytes_max"]["value"], 8 << 20);
}

#[test]
fn refused_secrets_are_not_shown() {
    let url = "postgres://anna:geheim@db/remuda";
    for fixture in [
        fixture().file(&format!("store = '{url}'")),
        fixture().variable("REMUDA_STORE", url),
        fixture().flag("store", url, "--store"),
    ] {
        let error = fixture.load().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error:?}");
        assert!(error.to_string().contains("postgres://***@db/remuda"), "{error}");
        assert!(error.to_string().contains("postgres is not built in yet"), "{error}");
    }
}
