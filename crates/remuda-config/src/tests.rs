//! Stories of people who configure: what they write in the file, the environment and on the command line, and what the
//! program then runs with or tells them.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value as Json;
use tempfile::TempDir;

use super::environment::Environment;
use super::value::{Kind, Value};
use super::*;

mod fleets;

/// A folder to start in, a home and what is written where.
struct Story {
    folder: TempDir,
    variables: Vec<(String, String)>,
    flags: Vec<(&'static str, String, &'static str)>,
}

fn story() -> Story {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path().join("home").display().to_string();
    Story { folder, variables: vec![("HOME".to_owned(), home)], flags: Vec::new() }
}

impl Story {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn file(self, text: &str) -> Story {
        self.file_at("remuda.toml", text)
    }

    fn file_at(self, name: &str, text: &str) -> Story {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), text).unwrap();
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Story {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    fn flag(mut self, key: &'static str, value: &str, name: &'static str) -> Story {
        self.flags.push((key, value.to_owned(), name));
        self
    }

    fn load(&self) -> Result<Resolved, ConfigError> {
        let flags: Vec<Flag<'_>> =
            self.flags.iter().map(|(key, value, name)| Flag { key, value, name }).collect();
        load_from(self.folder.path(), None, &Environment::new(self.variables.clone()), &flags)
    }

    /// What the user is told, with the folder's name left out.
    fn complaint(&self) -> String {
        let error = self.load().expect_err("this should have been refused");
        error.to_string().replace(&format!("{}/", self.folder.path().display()), "")
    }
}

#[test]
fn without_a_word_the_defaults_hold() {
    let story = story();
    let resolved = story.load().unwrap();
    let data = if cfg!(target_os = "macos") {
        story.path("home/Library/Application Support/remuda")
    } else {
        story.path("home/.local/share/remuda")
    };
    assert_eq!(resolved, Resolved::defaults(data.clone()));
    assert_eq!(resolved.serve.store, StoreUrl::Sqlite(data.join("remuda.sqlite")));
    assert_eq!(resolved.settings, Settings::default());
}

#[test]
fn later_wins_and_every_value_knows_its_origin() {
    let file = "lease = '40s'\n[beat]\nidle = '20s'\nbusy = '4s'\n";
    let story = story()
        .file(file)
        .variable("REMUDA_BEAT_IDLE", "21s")
        .variable("REMUDA_BEAT_BUSY", "3s")
        .flag("beat.busy", "2s", "--beat-busy");
    let resolved = story.load().unwrap();
    let settings = &resolved.settings;
    assert_eq!(
        [settings.lease, settings.beat_idle, settings.beat_busy].map(|duration| duration.as_secs()),
        [40, 21, 2]
    );
    let origins = ["lease", "beat.idle", "beat.busy", "listen"].map(|key| resolved.origin(key));
    assert_eq!(
        origins,
        [
            Origin::File { path: story.path("remuda.toml"), line: 1 },
            Origin::Environment("REMUDA_BEAT_IDLE".to_owned()),
            Origin::Flag("--beat-busy".to_owned()),
            Origin::Default,
        ]
    );
}

#[test]
fn our_name_wins_over_the_old_one() {
    let story = story().variable("MIN_ACTIVE_GPUS", "4").variable("REMUDA_SCALING_MACHINES_MIN", "5");
    assert_eq!(story.load().unwrap().settings.scaling.machines_min, 5);
}

#[test]
fn the_old_names_keep_their_units() {
    let resolved = story()
        .variable("WORKER_HEALTH_CHECK_INTERVAL_MS", "15000")
        .variable("WORKER_WEBSOCKET_INACTIVITY_TIMEOUT_MS", "45000")
        .variable("ORCHESTRATOR_POLL_SEC", "10")
        .variable("GPU_HEALTH_CHECK_TIMEOUT_SEC", "60")
        .variable("AUTO_START_WORKER_PROCESS", "False")
        .load()
        .unwrap();
    assert_eq!(resolved.agent.probe_every, Duration::from_secs(15));
    assert_eq!(resolved.agent.inactivity, Duration::from_secs(45));
    assert_eq!(resolved.settings.cycle_every, Duration::from_secs(10));
    assert_eq!(resolved.settings.scaling.vram_stale_after, Duration::from_secs(60));
    assert!(!resolved.serve.start_worker);
}

#[test]
fn the_file_is_found_here_then_in_the_data_folder_then_not_at_all() {
    let both = story().file("attempts_max = 7").file_at("data/remuda.toml", "attempts_max = 8");
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
fn a_file_that_was_named_must_be_there() {
    let error = load(Some(Path::new("/nowhere/remuda.toml")), [], &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("cannot read the configuration file /nowhere/remuda.toml: No such file"),
        "{error}"
    );
}

#[test]
fn relative_paths_in_the_file_count_from_its_folder() {
    let story = story().file("data = 'state'\nstore = 'sqlite:jobs.sqlite'");
    let resolved = story.load().unwrap();
    assert_eq!(resolved.serve.data, story.path("state"));
    assert_eq!(resolved.serve.store, StoreUrl::Sqlite(story.path("jobs.sqlite")));
}

#[test]
fn the_store_follows_the_data_folder_unless_told_otherwise() {
    let moved = story().flag("data", "/srv/remuda", "--data").load().unwrap();
    assert_eq!(moved.serve.store.to_string(), "sqlite:/srv/remuda/remuda.sqlite");
    let told =
        story().flag("data", "/srv/remuda", "--data").flag("store", "memory:", "--store").load().unwrap();
    assert_eq!(told.serve.store, StoreUrl::Memory);
}

#[test]
fn without_a_home_a_data_folder_has_to_be_named() {
    let error = load_from(Path::new("/nowhere"), None, &Environment::new([]), &[]).unwrap_err();
    assert!(matches!(error, ConfigError::NoDataFolder));
    let flag = Flag { key: "data", value: "/srv/remuda", name: "--data" };
    assert!(load_from(Path::new("/nowhere"), None, &Environment::new([]), &[flag]).is_ok());
}

#[test]
fn unknown_names_are_refused_with_the_one_that_was_meant() {
    for (story, complaint) in [
        (
            story().file("\n\nlissten = '127.0.0.1:1'"),
            "unknown key `lissten` in remuda.toml, line 3: did you mean `listen`?",
        ),
        (
            story().file("[scaling]\nmachine_max = 3"),
            "unknown key `scaling.machine_max` in remuda.toml, line 2: did you mean `scaling.machines_max`?",
        ),
        (
            story().file("machines_max = 3"),
            "unknown key `machines_max` in remuda.toml, line 1: did you mean `scaling.machines_max`?",
        ),
        (
            story().file("[colours]"),
            "unknown key `colours` in remuda.toml, line 1: `remuda config show` lists all there are",
        ),
        (
            story().variable("REMUDA_LISTN", "x"),
            "unknown variable REMUDA_LISTN in the environment: did you mean `REMUDA_LISTEN`?",
        ),
        (story().flag("leese", "x", "--set"), "unknown key `leese` given with --set: did you mean `lease`?"),
    ] {
        assert_eq!(story.complaint(), complaint);
    }
}

#[test]
fn variables_that_are_not_about_keys_are_let_be() {
    let story = story()
        .variable("REMUDA_URL", "http://127.0.0.1:8288")
        .variable("REMUDA_TOKEN", "geheim")
        .variable("REMUDA_LOG", "debug")
        .variable("REMUDA_LISTEN", "")
        .variable("REMUDA_SERVICE_HOST", "10.0.0.1")
        .variable("REMUDA_PORT", "tcp://10.0.0.1:8288")
        .variable("REMUDA_PORT_8288_TCP_ADDR", "10.0.0.1")
        .variable("PATH", "/bin");
    assert!(story.load().unwrap().origins.is_empty());
    assert!(story.variable("REMUDA_PORT", "8288").complaint().starts_with("unknown variable REMUDA_PORT"));
}

#[test]
fn an_illegal_value_says_what_where_and_what_to_do() {
    for (story, complaint) in [
        (
            story().file("\nattempts_max = 0"),
            "`attempts_max` cannot be `0` (file remuda.toml:2): it must be a whole number from 1 to 100",
        ),
        (
            story().variable("MIN_ACTIVE_GPUS", "-1"),
            "`scaling.machines_min` cannot be `-1` (environment MIN_ACTIVE_GPUS): it must be a whole number from 0 to 10000",
        ),
        (
            story().flag("lease", "1ms", "--lease"),
            "`lease` cannot be `1ms` (flag --lease): it must be from `10ms` to `1d`",
        ),
        (
            story().file("lease = 30"),
            "`lease` cannot be `30` (file remuda.toml:1): the unit is missing; write a duration as `250ms`, `90s`, `5m`, `2h` or `7d`",
        ),
        (
            story().file("listen = 8288"),
            "`listen` cannot be `8288` (file remuda.toml:1): it must be an address and a port, as in `127.0.0.1:8288` or `[::1]:8288`",
        ),
        (
            story().file("stuck_policy = 'luck'"),
            "`stuck_policy` cannot be `luck` (file remuda.toml:1): it must be `progress` or `age`",
        ),
        (
            story().file("data = '~/remuda'"),
            "`data` cannot be `~/remuda` (file remuda.toml:1): only a shell knows `~`; write the whole path",
        ),
        (
            story().file("insecure = [true]"),
            "`insecure` cannot be `…` (file remuda.toml:1): it must be `true` or `false`",
        ),
    ] {
        assert_eq!(story.complaint(), complaint);
    }
}

#[test]
fn a_file_that_is_not_toml_is_refused_with_its_line() {
    let complaint = story().file("lease = '30s'\nstore = postgres://a:geheim@b\n").complaint();
    assert!(complaint.starts_with("remuda.toml, line 2 is not TOML: "), "{complaint}");
    assert!(!complaint.contains("geheim"), "{complaint}");
}

#[test]
fn values_that_do_not_fit_together_are_refused() {
    let story = story().file("lease = '16s'").variable("REMUDA_BEAT_BUSY", "8s");
    assert_eq!(
        story.complaint(),
        "`beat.busy` must be less than half of `lease`: one beat may be lost without the attempt being given up. \
         `beat.busy` is 8s (environment REMUDA_BEAT_BUSY) and `lease` is 16s (file remuda.toml:1); \
         lower the one or raise the other"
    );
}

#[test]
fn each_rule_refuses_what_breaks_it_and_the_defaults_break_none() {
    let defaults = Resolved::defaults(PathBuf::from("data"));
    assert!(check::check(&defaults).is_ok());
    for rule in check::RULES {
        let mut resolved = defaults.clone();
        let low = Key::named(rule.low).unwrap();
        let beyond = match Key::named(rule.high).unwrap().read(&defaults) {
            Value::Duration(duration) => Value::Duration(duration * 2),
            Value::Number(number) => Value::Number(number * 2),
            other => panic!("{other:?}"),
        };
        low.write(&mut resolved, beyond);
        let complaint = check::check(&resolved).unwrap_err().to_string();
        assert!(complaint.contains(&format!("`{}`", rule.low)), "{complaint}");
    }
}

/// Something else than the default that fits with all other defaults.
fn another(key: &Key, defaults: &Resolved) -> String {
    match (key.kind, key.read(defaults)) {
        (Kind::Duration { .. }, Value::Duration(duration)) => {
            value::written(duration + Duration::from_secs(1))
        }
        (Kind::Number { .. } | Kind::Bytes { .. }, Value::Number(number)) => (number + 1).to_string(),
        (Kind::MaybeBytes { min, .. }, _) => (min + 1).to_string(),
        (Kind::Switch, Value::Switch(on)) => (!on).to_string(),
        (Kind::Choice(words), Value::Word(word)) => {
            words.iter().find(|other| **other != word).unwrap().to_string()
        }
        (Kind::Folder | Kind::File, _) => "/another/place".to_owned(),
        (Kind::List, _) => "one, another".to_owned(),
        (Kind::Address, _) => "127.0.0.1:9000".to_owned(),
        (Kind::Store, _) => "memory:".to_owned(),
        other => panic!("{} is {other:?}", key.name),
    }
}

#[test]
fn every_key_changes_its_value_and_no_other_whichever_way_it_is_set() {
    let defaults = story().load().unwrap();
    for key in Key::all() {
        let text = another(key, &defaults);
        let by_file = story().file(&format!("{} = '{text}'", key.name));
        let by_variable = story().variable(&key.variable(), &text);
        let by_flag = story().flag(key.name, &text, "--set");
        let mut ways = vec![by_file, by_variable, by_flag];
        if let Some((name, unit)) = key.seed {
            let plain = match (key.read(&defaults), unit) {
                (Value::Duration(duration), Unit::Seconds) => (duration.as_secs() + 1).to_string(),
                (Value::Duration(duration), Unit::Milliseconds) => (duration.as_millis() + 1000).to_string(),
                _ => text.clone(),
            };
            ways.push(story().variable(name, &plain));
        }
        for way in ways {
            let resolved = way.load().unwrap();
            assert_eq!(key.read(&resolved).to_string(), text, "{}", key.name);
            assert_ne!(resolved.origin(key.name), Origin::Default, "{}", key.name);
            let changed: Vec<&str> = Key::all()
                .filter(|other| other.name != "data" && other.name != "store")
                .filter(|other| other.read(&resolved) != other.read(&defaults))
                .map(|other| other.name)
                .collect();
            assert!(changed.iter().all(|name| *name == key.name), "{} changed {changed:?}", key.name);
        }
    }
}

#[test]
fn every_number_of_the_core_has_a_key() {
    let defaults = story().load().unwrap();
    let mut all_changed = defaults.clone();
    for key in Key::all() {
        let text = another(key, &defaults);
        let entry = key.entry(&Written::Text(text), Unit::Written, Origin::Default).unwrap();
        key.write(&mut all_changed, entry.value);
    }
    let mut same: BTreeSet<_> = &fields(&defaults.settings) & &fields(&all_changed.settings);
    // They are written otherwise: see `fleets`.
    same.remove("settings.fleets = []");
    assert_eq!(same, BTreeSet::new(), "no key sets these");
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
fn no_two_keys_share_a_name() {
    let names: Vec<String> = Key::all()
        .flat_map(|key| {
            [Some(key.name.to_owned()), Some(key.variable()), key.seed.map(|(name, _)| name.to_owned())]
        })
        .flatten()
        .collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    // A key that is also a section could not be written in TOML.
    for key in Key::all() {
        assert!(!Key::all().any(|other| other.name.starts_with(&format!("{}.", key.name))), "{}", key.name);
    }
}

#[test]
fn show_prints_every_value_with_its_origin() {
    let story = story().file("lease = '40s'").flag("listen", "[::1]:9", "--listen");
    let shown = show(&story.load().unwrap(), false);
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key)).unwrap();
        line.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(shown.lines().count(), Key::all().count());
    assert_eq!(line("lease"), format!("lease 40s file {}:1", story.path("remuda.toml").display()));
    assert_eq!(line("listen"), "listen [::1]:9 flag --listen");
    assert_eq!(line("limits.body_bytes_max"), "limits.body_bytes_max 8MiB default");

    let json: Json = serde_json::from_str(&show(&story.load().unwrap(), true)).unwrap();
    assert_eq!(json["lease"]["value"], "40s");
    assert_eq!(json["lease"]["line"], 1);
    assert_eq!(json["listen"]["origin"], "flag");
    assert_eq!(json["limits.body_bytes_max"]["value"], 8 << 20);
}

#[test]
fn secrets_are_not_shown_even_when_they_are_refused() {
    let url = "postgres://anna:geheim@db/remuda";
    for story in [
        story().file(&format!("store = '{url}'")),
        story().variable("REMUDA_STORE", url),
        story().flag("store", url, "--store"),
    ] {
        let error = story.load().unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error:?}");
        assert!(error.to_string().contains("postgres://***@db/remuda"), "{error}");
        assert!(error.to_string().contains("postgres is not built in yet"), "{error}");
    }
}
