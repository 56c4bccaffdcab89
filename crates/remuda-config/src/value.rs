//! Types of settings: their bounds, their notation, and parsing. The printed form of a value parses back to that value.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use remuda_core::id::{Service, Tenant};
use remuda_core::money::Money;

use super::store::StoreUrl;
use remuda_net::private_target::PrivateTarget;
use remuda_net::secret::Secret;

/// The type and bounds of a setting.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Duration {
        min: Duration,
        max: Duration,
    },
    Number {
        min: u64,
        max: u64,
    },
    /// Accepts `8MiB` as well as a plain number.
    Bytes {
        min: u64,
        max: u64,
    },
    Switch,
    Choice(&'static [&'static str]),
    Folder,
    /// Optional.
    File,
    /// Separated by commas.
    List,
    Address,
    Store,
    /// Optional number of bytes.
    OptionalBytes {
        min: u64,
        max: u64,
    },
    /// Optional duration.
    OptionalDuration {
        min: Duration,
        max: Duration,
    },
    /// Optional amount of dollars.
    Money,
    /// Optional text.
    Text,
    /// Name of a fleet; the names and tags of its machines begin with it.
    FleetName,
    /// Name of a service or model.
    Name,
    /// Names separated by commas.
    Names,
    /// Hosts, addresses and networks separated by commas.
    Targets,
    /// A tenant, or `*`.
    TenantName,
    /// Optional URL that begins with `http://` or `https://`.
    Url,
    /// Names and values.
    Pairs,
    /// Names and secret values.
    Environment,
}

/// A value as read from its source, not yet checked.
#[derive(Debug)]
pub(super) enum RawSetting {
    Text(String),
    Pairs(Vec<(String, String)>),
    /// A TOML value that no setting accepts, such as a date or a list of lists.
    Other,
}

/// The unit of a duration that is written as a bare number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// A bare number is refused.
    Required,
    Milliseconds,
    Seconds,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Duration(Duration),
    Number(u64),
    Switch(bool),
    Word(&'static str),
    Folder(PathBuf),
    File(Option<PathBuf>),
    List(Vec<String>),
    Address(SocketAddr),
    Store(StoreUrl),
    OptionalNumber(Option<u64>),
    OptionalDuration(Option<Duration>),
    Money(Option<Money>),
    Text(Option<String>),
    Pairs(BTreeMap<String, String>),
    Environment(BTreeMap<String, Secret>),
}

impl Value {
    pub(super) fn as_folder(&self) -> Option<&Path> {
        match self {
            Value::Folder(path) => Some(path),
            _ => None,
        }
    }

    /// Resolves a relative path against this folder.
    pub(super) fn resolve_path(self, folder: &Path) -> Value {
        match self {
            Value::Folder(path) => Value::Folder(folder.join(path)),
            Value::File(path) => Value::File(path.map(|path| folder.join(path))),
            Value::Store(StoreUrl::Sqlite(path)) => Value::Store(StoreUrl::Sqlite(folder.join(path))),
            other => other,
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Duration(duration) | Value::OptionalDuration(Some(duration)) => {
                f.write_str(&format_duration(*duration))
            }
            Value::Number(number) | Value::OptionalNumber(Some(number)) => write!(f, "{number}"),
            Value::Switch(on) => write!(f, "{on}"),
            Value::Word(word) => f.write_str(word),
            Value::Folder(path) | Value::File(Some(path)) => write!(f, "{}", path.display()),
            Value::File(None)
            | Value::OptionalNumber(None)
            | Value::OptionalDuration(None)
            | Value::Money(None)
            | Value::Text(None) => Ok(()),
            Value::Money(Some(money)) => write!(f, "{money}"),
            Value::Text(Some(text)) => f.write_str(text),
            Value::Pairs(pairs) => f.write_str(&join_pairs(pairs)),
            Value::Environment(pairs) => f.write_str(&join_pairs(pairs)),
            Value::List(words) => f.write_str(&words.join(", ")),
            Value::Address(address) => write!(f, "{address}"),
            Value::Store(store) => write!(f, "{store}"),
        }
    }
}

impl Kind {
    /// Parses and checks a text; the error says what is accepted.
    pub(super) fn parse(&self, text: &str, unit: Unit) -> Result<Value, String> {
        let text = text.trim();
        match *self {
            Kind::Duration { min, max } => {
                let duration = duration(text, unit)?;
                if !(min..=max).contains(&duration) {
                    return Err(self.rule());
                }
                Ok(Value::Duration(duration))
            }
            Kind::Number { min, max } => within(parse_number(text), min, max).ok_or_else(|| self.rule()),
            Kind::Bytes { min, max } => within(bytes(text), min, max).ok_or_else(|| self.rule()),
            Kind::Switch => switch(text).map(Value::Switch).ok_or_else(|| self.rule()),
            Kind::Choice(words) => words
                .iter()
                .find(|word| **word == text)
                .map(|word| Value::Word(word))
                .ok_or_else(|| self.rule()),
            Kind::Folder => folder(text).map(Value::Folder),
            Kind::File if text.is_empty() => Ok(Value::File(None)),
            Kind::File => folder(text).map(|path| Value::File(Some(path))),
            Kind::List => Ok(Value::List(list(text))),
            Kind::Address => address(text).map(Value::Address).ok_or_else(|| self.rule()),
            Kind::Store => StoreUrl::parse(text).map(Value::Store),
            Kind::OptionalDuration { min, max } => match (Kind::Duration { min, max }).parse(text, unit)? {
                Value::Duration(duration) => Ok(Value::OptionalDuration(Some(duration))),
                other => Ok(other),
            },
            Kind::OptionalBytes { min, max } => match (Kind::Bytes { min, max }).parse(text, unit)? {
                Value::Number(bytes) => Ok(Value::OptionalNumber(Some(bytes))),
                other => Ok(other),
            },
            Kind::Money => text.parse().map(|money| Value::Money(Some(money))),
            Kind::Text => Ok(Value::Text((!text.is_empty()).then(|| text.to_owned()))),
            Kind::FleetName if is_fleet_name(text) => Ok(Value::Text(Some(text.to_owned()))),
            Kind::Url if ["http://", "https://"].iter().any(|scheme| text.starts_with(scheme)) => {
                Ok(Value::Text(Some(text.trim_end_matches('/').to_owned())))
            }
            Kind::Name if text.parse::<Service>().is_ok() => Ok(Value::Text(Some(text.to_owned()))),
            Kind::Names if list(text).iter().all(|name| name.parse::<Service>().is_ok()) => {
                Ok(Value::List(list(text)))
            }
            Kind::Targets => rules::<PrivateTarget>(text),
            Kind::TenantName if text == "*" || text.parse::<Tenant>().is_ok() => {
                Ok(Value::Text(Some(text.to_owned())))
            }
            Kind::FleetName
            | Kind::Url
            | Kind::Name
            | Kind::Names
            | Kind::TenantName
            | Kind::Pairs
            | Kind::Environment => Err(self.rule()),
        }
    }

    /// The same for an inline table `{ name = "value" }`.
    pub(super) fn pairs(&self, pairs: &[(String, String)]) -> Result<Value, String> {
        match self {
            // Labels are passed to workers as `a=b,c=d`.
            Kind::Pairs if pairs.iter().all(|(name, value)| is_label(name) && !value.contains(',')) => {
                Ok(Value::Pairs(pairs.iter().cloned().collect()))
            }
            Kind::Environment if pairs.iter().all(|(name, _)| is_variable(name)) => {
                let secret = |(name, value): &(String, String)| (name.clone(), Secret::new(value.clone()));
                Ok(Value::Environment(pairs.iter().map(secret).collect()))
            }
            _ => Err(self.rule()),
        }
    }

    /// What is accepted, for error messages.
    fn rule(&self) -> String {
        match self {
            Kind::Number { .. } => format!("it must be a whole number {}", self.bounds()),
            Kind::Bytes { .. } | Kind::OptionalBytes { .. } => {
                format!("it must be a number of bytes {}", self.bounds())
            }
            _ => format!("it must be {}", self.bounds()),
        }
    }

    /// What is accepted, for the column "allowed values" of the documentation.
    pub(super) fn bounds(&self) -> String {
        match self {
            Kind::Duration { min, max } => {
                format!("from `{}` to `{}`", format_duration(*min), format_duration(*max))
            }
            Kind::Number { min, max } => format!("from {min} to {max}"),
            Kind::Bytes { min, max } | Kind::OptionalBytes { min, max } => {
                format!("from `{}` to `{}`", format_bytes(*min), format_bytes(*max))
            }
            Kind::Switch => "`true` or `false`".to_owned(),
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
            Kind::Folder => "a path".to_owned(),
            Kind::Address => {
                "an address and a port, such as `127.0.0.1:8288`, `localhost:8288` or `[::1]:8288`".to_owned()
            }
            Kind::File => "a path".to_owned(),
            Kind::List => "a comma-separated list".to_owned(),
            Kind::Store => "`sqlite:PATH` or `memory:`".to_owned(),
            Kind::OptionalDuration { min, max } => Kind::Duration { min: *min, max: *max }.bounds(),
            Kind::Money => "dollars, such as `0.69`".to_owned(),
            Kind::Text => "text".to_owned(),
            Kind::FleetName => {
                format!("up to {FLEET_NAME_MAX} lower-case letters, digits and `-`, starting with a letter")
            }
            Kind::Name => "a name (letters, digits, `-`, `_`, `.`, `:`)".to_owned(),
            Kind::Names => "a comma-separated list of names (letters, digits, `-`, `_`, `.`, `:`)".to_owned(),
            Kind::Targets => {
                "hosts, addresses or networks, such as `hooks.internal:8080, 10.0.0.0/8`".to_owned()
            }
            Kind::TenantName => "a name (letters, digits, `-`, `_`, `.`, `:`), or `*`".to_owned(),
            Kind::Url => "a URL that begins with `http://` or `https://`".to_owned(),
            Kind::Pairs => "names and values without commas, such as `{ gpu = \"4090\" }`".to_owned(),
            Kind::Environment => "names and values, such as `{ HF_HOME = \"/models\" }`".to_owned(),
        }
    }
}

/// Longest first, so that a duration is printed with the fewest units.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A duration in the notation of `remuda.toml`: `250ms`, `90s`, `5m`, `1h30m`. Hand-written because `humantime` prints
/// `1m 30s` and `7days`, which is not how the documentation and the defaults write them.
pub(super) fn format_duration(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    // Up to two minutes, `90s` reads better than `1m30s`.
    if millis.is_multiple_of(1000) && !millis.is_multiple_of(60_000) && millis < 120_000 || millis == 0 {
        return format!("{}s", millis / 1000);
    }
    let mut text = String::new();
    for (unit, size) in UNITS {
        if millis >= size {
            text.push_str(&format!("{}{unit}", millis / size));
            millis %= size;
        }
    }
    text
}

/// Reads `1h30m`, `90s`, `250ms`; a bare number only where its unit is known.
fn duration(text: &str, unit: Unit) -> Result<Duration, String> {
    const HELP: &str = "write a duration as `250ms`, `90s`, `5m`, `2h` or `7d`";
    if let Some(number) = parse_number(text) {
        return match unit {
            Unit::Milliseconds => Ok(Duration::from_millis(number)),
            Unit::Seconds => Ok(Duration::from_secs(number)),
            Unit::Required => Err(format!("the unit is missing; {HELP}")),
        };
    }
    let duration = humantime::parse_duration(text).map_err(|_| HELP.to_owned())?;
    // `format_duration` prints milliseconds; a finer value could not be written back.
    if duration.subsec_nanos().is_multiple_of(1_000_000) { Ok(duration) } else { Err(HELP.to_owned()) }
}

/// Parses a duration with its unit, such as `90s` or `1h30m`; also used by the command line.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Required)
}

/// The same, but a bare number counts seconds.
pub fn parse_duration_or_seconds(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Seconds)
}

/// Parses a number of bytes such as `512MiB`; also used by the command line.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    bytes(text.trim())
        .ok_or_else(|| "write a number of bytes as `1073741824`, `512MiB` or `20GiB`".to_owned())
}

fn within(number: Option<u64>, min: u64, max: u64) -> Option<Value> {
    number.filter(|number| (min..=max).contains(number)).map(Value::Number)
}

/// Accepts `10_000` as well.
fn parse_number(text: &str) -> Option<u64> {
    let is_plain = text.starts_with(|c: char| c.is_ascii_digit());
    if is_plain { text.replace('_', "").parse().ok() } else { None }
}

const SIZES: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A number of bytes in the largest unit that divides it.
pub(super) fn format_bytes(bytes: u64) -> String {
    match SIZES.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

fn bytes(text: &str) -> Option<u64> {
    for (unit, size) in SIZES {
        if let Some(number) = text.strip_suffix(unit) {
            return parse_number(number.trim_end())?.checked_mul(size);
        }
    }
    parse_number(text)
}

fn switch(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Some(true),
        "false" | "0" | "no" | "off" => Some(false),
        _ => None,
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A list in which every entry can be read.
fn rules<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<Value, String> {
    let entries = list(text);
    match entries.iter().find_map(|entry| entry.parse::<T>().err()) {
        Some(problem) => Err(problem.to_string()),
        None => Ok(Value::List(entries)),
    }
}

fn join_pairs(pairs: &BTreeMap<String, impl fmt::Display>) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

/// Leaves room for the rest of a pod's name.
const FLEET_NAME_MAX: usize = 24;

fn is_fleet_name(text: &str) -> bool {
    text.len() <= FLEET_NAME_MAX
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_label(name: &str) -> bool {
    !name.is_empty() && !name.contains([',', '='])
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && !name.contains(['=', '\0'])
}

/// `localhost` is always this machine, so it needs no resolver; other names would make the settings depend on one.
fn address(text: &str) -> Option<SocketAddr> {
    let localhost = || {
        let (name, port) = text.split_once(':')?;
        let port = port.parse().ok()?;
        name.eq_ignore_ascii_case("localhost").then(|| SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
    };
    text.parse().ok().or_else(localhost)
}

fn folder(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("it must be a path".to_owned()),
        _ if text.starts_with('~') => Err("`~` is expanded only by a shell; write the full path".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

#[cfg(test)]
mod tests;
