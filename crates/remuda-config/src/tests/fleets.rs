//! `[[fleet]]` sections: reading, errors, secrets and revisions.

use remuda_core::fleet::{FleetSettings, ScalingPolicy};
use remuda_core::settings::Scaling;

use super::*;
use crate::key::Key;
use crate::table::fleets::keys_for;

const LOCAL: &str = "[[fleet]]\nname = 'local'\nprovider = 'process'\ncommand = 'remuda worker --exec cat'\n";
const PODS: &str = "[[fleet]]\nname = 'gpus'\nprovider = 'runpod'\nimage = 'a/b:1'\ngpus = ['NVIDIA L4', 'NVIDIA A40']\n\
                    url = 'https://plane.example.org/'\n";

fn fleet(text: &str) -> FleetConfig {
    fixture().file(text).load().unwrap().fleets.remove(0)
}

#[test]
fn fleets_keep_their_order_and_record_origins() {
    let text = format!("[scaling]\nmachines_max = 7\n{LOCAL}machines_max = 3\n{PODS}");
    let fixture = fixture().file(&text).variable("MIN_ACTIVE_GPUS", "1");
    let resolved = fixture.load().unwrap();
    let [local, pods] = &resolved.fleets[..] else { panic!("{:?}", resolved.fleets) };
    assert_eq!([local.settings.id.as_str(), pods.settings.id.as_str()], ["local", "gpus"]);
    let bounds =
        |fleet: &FleetConfig| (fleet.settings.scaling.machines_min, fleet.settings.scaling.machines_max);
    assert_eq!(
        (bounds(local), bounds(pods)),
        ((1, 3), (1, 7)),
        "[scaling] applies where a fleet sets nothing"
    );
    assert_eq!(pods.settings.offers, ["NVIDIA L4/SECURE", "NVIDIA A40/SECURE"]);
    assert_eq!(pods.source.url.as_deref(), Some("https://plane.example.org"));
    assert_eq!(resolved.settings.fleets, [local.settings.clone(), pods.settings.clone()]);
    let shown = show(&resolved, false);
    let line = |key: &str| {
        let line = shown.lines().find(|line| line.split_whitespace().next() == Some(key));
        line.unwrap_or_else(|| panic!("no {key}")).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let file = fixture.path("remuda.toml").display().to_string();
    assert_eq!(line("fleet.local.machines_max"), format!("fleet.local.machines_max 3 file {file}:7"));
    assert_eq!(line("fleet.gpus.machines_max"), format!("fleet.gpus.machines_max 7 file {file}:2"));
    assert_eq!(line("fleet.gpus.machines_min"), "fleet.gpus.machines_min 1 environment MIN_ACTIVE_GPUS");
    assert!(!shown.contains("fleet.local.image "), "{shown}");
    assert_eq!(
        resolved.origin("scaling.machines_max"),
        ValueOrigin::File { path: fixture.path("remuda.toml"), line: 2 }
    );
}

#[test]
fn invalid_fleet_is_refused_with_its_line() {
    let with = |text: &str| format!("{LOCAL}{text}");
    for (text, message) in [
        (
            with("machine_max = 3"),
            "unknown key `fleet.machine_max` in remuda.toml, line 5: did you mean `machines_max`?",
        ),
        (
            with("weather = 3"),
            "unknown key `fleet.weather` in remuda.toml, line 5: docs/configuration.md lists the settings of a fleet",
        ),
        (
            with("machines_max = -1"),
            "`machines_max` cannot be `-1` (file remuda.toml:5): it must be a whole number from 0 to 10000",
        ),
        (
            with("price_max = 'much'"),
            "`price_max` cannot be `much` (file remuda.toml:5): \"much\" is not an amount of money: write it in dollars, like 0.69",
        ),
        (
            with("image = 'x'"),
            "fleet local (file remuda.toml:1) has `image`, which does not apply to provider `process`",
        ),
        (
            with("machines_min = 3\nmachines_max = 2"),
            "fleet local (file remuda.toml:1) has `machines_min = 3` (file remuda.toml:5) and `machines_max = 2` (file remuda.toml:6): the minimum is above the maximum",
        ),
        (
            with(LOCAL),
            "fleet local (file remuda.toml:5) has the same name as another fleet (file remuda.toml:1): choose a different one",
        ),
        (
            with("labels = { a = 'x,y' }"),
            "`labels` cannot be `…` (file remuda.toml:5): it must be names and values without commas, such as `{ gpu = \"4090\" }`",
        ),
        (
            with("env = 'A=b'"),
            "`env` cannot be `A=b` (file remuda.toml:5): it must be names and values, such as `{ HF_HOME = \"/models\" }`",
        ),
        (
            "[[fleet]]\nprovider = 'process'".to_owned(),
            "a fleet (file remuda.toml:1) has no `name`, which is required",
        ),
        (
            "[[fleet]]\nname = 'a'".to_owned(),
            "fleet a (file remuda.toml:1) has no `provider`, which is required",
        ),
        (
            "[[fleet]]\nname = 'a'\nprovider = 'process'".to_owned(),
            "fleet a (file remuda.toml:1) has no `command`, which provider `process` requires",
        ),
        (
            "[[fleet]]\nname = 'Big GPUs'".to_owned(),
            "`name` cannot be `Big GPUs` (file remuda.toml:2): it must be up to 24 lower-case letters, digits and `-`, starting with a letter",
        ),
        (
            "[fleet]\nname = 'a'".to_owned(),
            "`fleet` cannot be `…` (file remuda.toml:1): it is a list of tables: write `[[fleet]]`, with two brackets, above each",
        ),
        (
            format!("{PODS}clouds = ['private']"),
            "fleet gpus (file remuda.toml:1) lists \"private\" in `clouds`; known are `secure` and `community`",
        ),
        (
            format!("{PODS}network_volume = 'v'"),
            "fleet gpus (file remuda.toml:1) has a `network_volume` but no `mount_path`",
        ),
    ] {
        assert_eq!(fixture().file(&text).error_message(), message);
    }
}

/// Faults: X10.
#[test]
fn secrets_of_a_fleet_are_never_shown() {
    let message = fixture().file(&format!("{PODS}api_key = 'geheim'")).error_message();
    assert_eq!(
        message,
        "`api_key` cannot be `***` (file remuda.toml:7): every user who can read this file would see the key; set \
         RUNPOD_API_KEY, or name a file that only the plane can read with `api_key_file`"
    );
    let fixture = fixture()
        .file(&format!("{PODS}env = {{ HF_TOKEN = 'geheim' }}"))
        .variable("RUNPOD_API_KEY", "geheim");
    let resolved = fixture.load().unwrap();
    let shown = format!("{} {} {resolved:?}", show(&resolved, false), show(&resolved, true));
    assert!(!shown.contains("geheim") && shown.contains("HF_TOKEN=***"), "{shown}");
    let source = &resolved.fleets[0].source;
    assert_eq!(source.runpod.api_key().unwrap().reveal(), "geheim");
    assert_eq!(source.env["HF_TOKEN"].reveal(), "geheim");
}

#[test]
fn revision_changes_with_how_machines_are_created() {
    let revision = |text: &str| fleet(&format!("{PODS}{text}")).settings.revision;
    let plain = revision("");
    for same in
        ["machines_max = 9", "price_max = 3", "reversal_cooldown = '1m'", "base_url = 'http://127.0.0.1:1'"]
    {
        assert_eq!(revision(same), plain, "{same}");
    }
    let others = [
        "env = { A = 'b' }",
        "env = { A = 'c' }",
        "disk_gb = 60",
        "labels = { a = 'b' }",
        "min_cuda = '12.8'",
    ];
    let all: BTreeSet<_> = others.iter().map(|text| revision(text)).chain([plain]).collect();
    assert_eq!(all.len(), others.len() + 1);
}

#[test]
fn worker_is_started_over_ssh_only_if_configured() {
    let needs = |text: &str, on: &str| {
        let fixture = fixture().file(&format!("{PODS}{text}")).variable("AUTO_START_WORKER_PROCESS", on);
        fixture.load().unwrap().settings.fleets[0].needs_bootstrap
    };
    assert!(needs("start = 'ssh'", "true"));
    assert!(!needs("start = 'ssh'", "false"));
    assert!(!needs("", "true"));
}

/// A value that differs from the default, as TOML.
fn another(key: &Key<FleetConfig>, fleet: &FleetConfig) -> String {
    match (key.kind, key.read(fleet)) {
        (Kind::Duration { .. }, Value::Duration(duration)) => {
            format!("'{}'", value::format_duration(duration + Duration::from_secs(1)))
        }
        (Kind::OptionalDuration { .. }, _) => "'91s'".to_owned(),
        (Kind::Number { .. }, Value::Number(number)) => (number + 1).to_string(),
        (Kind::Switch, Value::Switch(on)) => (!on).to_string(),
        (Kind::Choice(words), Value::Word(word)) => {
            format!("'{}'", words.iter().find(|other| **other != word).unwrap())
        }
        (Kind::Names | Kind::List, _) if key.name == "clouds" => "['community']".to_owned(),
        (Kind::Names | Kind::List, _) => "['one', 'another']".to_owned(),
        (Kind::Money, _) => "0.5".to_owned(),
        (Kind::Text, _) => "'something'".to_owned(),
        (Kind::FleetName, _) => "'another'".to_owned(),
        (Kind::Url, _) => "'http://another'".to_owned(),
        (Kind::File, _) => "'/another/place'".to_owned(),
        (Kind::Pairs | Kind::Environment, _) => "{ one = 'another' }".to_owned(),
        other => panic!("{} is {other:?}", key.name),
    }
}

#[test]
fn each_setting_of_a_fleet_changes_only_its_own_field() {
    for (kind, least) in [(ProviderKind::Process, LOCAL), (ProviderKind::Runpod, PODS)] {
        let before = fleet(least);
        let is_free = |key: &&Key<FleetConfig>| key.name != "provider" && key.name != "mount_path";
        for key in keys_for(kind).filter(is_free) {
            let others = least.lines().filter(|line| !line.starts_with(&format!("{} =", key.name)));
            let mut text: String = others.map(|line| format!("{line}\n")).collect();
            text += &format!("{} = {}\n", key.name, another(key, &before));
            if key.name == "network_volume" {
                text += "mount_path = '/models'\n";
            }
            let after = fleet(&text);
            let changed = keys_for(kind).filter(|other| other.read(&before) != other.read(&after));
            let changed: Vec<_> =
                changed.map(|other| other.name).filter(|name| *name != "mount_path").collect();
            assert_eq!(changed, [key.name]);
        }
    }
    let fixed = fleet("[[fleet]]\nname = 'a'\nprovider = 'fixed'\nmachines = ['one', 'another']");
    assert_eq!(fixed.source.machines, ["one", "another"]);
    assert_eq!(fixed.settings.machines.len(), 2, "workers on these machines belong to the fleet");
    assert!(!fixed.settings.can_rent && fixed.settings.offers.is_empty());
}

#[test]
fn every_fleet_field_of_the_core_has_a_setting() {
    let before = fleet(PODS);
    let mut text = PODS.replace("gpus'", "another'").replace("NVIDIA", "AMD");
    let written = ["name", "provider", "image", "gpus", "url", "start", "policy"];
    for key in keys_for(ProviderKind::Runpod).filter(|key| !written.contains(&key.name)) {
        text += &format!("{} = {}\n", key.name, another(key, &before));
    }
    text += "policy = 'latency'\nstart = 'ssh'";
    let resolved = fixture().file(&text).variable("AUTO_START_WORKER_PROCESS", "1").load();
    let after = resolved.unwrap_or_else(|error| panic!("{error}")).settings.fleets.remove(0);
    assert_eq!(after.policy, ScalingPolicy::Latency { wait_max: Duration::from_secs(61) });
    let same: BTreeSet<_> = &fields(&before.settings) & &fields(&after);
    // Only fleets that do not rent list their machines.
    let not_settable = ["settings.can_rent = true", "settings.machines = []"].map(str::to_owned);
    assert_eq!(same, BTreeSet::from(not_settable));
    let scaling = Scaling { machines_max: 1, ..Scaling::default() };
    assert_ne!(FleetSettings { scaling, ..after.clone() }, after);
}
