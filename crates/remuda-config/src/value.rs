//! What may be written for a key and how it is read: durations with their unit, numbers within bounds, sizes, switches,
//! choices, folders, addresses and stores. What is shown can be written back.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::id::Service;
use remuda_core::money::Money;

use super::store::StoreUrl;
use remuda_net::secret::Secret;

/// What a key may be.
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
    /// A number that may be written as `8MiB`.
    Bytes {
        min: u64,
        max: u64,
    },
    Switch,
    Choice(&'static [&'static str]),
    Folder,
    /// A file that need not be named.
    File,
    /// Words with commas between them.
    List,
    Address,
    Store,
    /// A number of bytes that need not be given.
    MaybeBytes {
        min: u64,
        max: u64,
    },
    /// A duration that need not be given.
    MaybeDuration {
        min: Duration,
        max: Duration,
    },
    /// Dollars, or nothing.
    Money,
    /// Any text, or nothing.
    Text,
    /// What a fleet may be called: its machines' names and tags begin with it.
    FleetName,
    /// What jobs can ask for: one name.
    Name,
    /// Names with commas between them.
    Names,
    /// `http://` or `https://`, or nothing.
    Url,
    /// Names and values.
    Pairs,
    /// Names and values that are not shown.
    Environment,
}

/// What somebody wrote, as far as it could be a value.
#[derive(Debug)]
pub(super) enum Written {
    Text(String),
    Pairs(Vec<(String, String)>),
    /// What no key can be: a date, a list of lists.
    Other,
}

/// What a number without a unit counts, where a duration is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    /// Nothing: the unit has to be written.
    Written,
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
    MaybeNumber(Option<u64>),
    MaybeDuration(Option<Duration>),
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

    /// A relative path counts from this folder.
    pub(super) fn beneath(self, folder: &Path) -> Value {
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
            Value::Duration(duration) | Value::MaybeDuration(Some(duration)) => {
                f.write_str(&written(*duration))
            }
            Value::Number(number) | Value::MaybeNumber(Some(number)) => write!(f, "{number}"),
            Value::Switch(on) => write!(f, "{on}"),
            Value::Word(word) => f.write_str(word),
            Value::Folder(path) | Value::File(Some(path)) => write!(f, "{}", path.display()),
            Value::File(None)
            | Value::MaybeNumber(None)
            | Value::MaybeDuration(None)
            | Value::Money(None)
            | Value::Text(None) => Ok(()),
            Value::Money(Some(money)) => write!(f, "{money}"),
            Value::Text(Some(text)) => f.write_str(text),
            Value::Pairs(pairs) => f.write_str(&joined(pairs)),
            Value::Environment(pairs) => f.write_str(&joined(pairs)),
            Value::List(words) => f.write_str(&words.join(", ")),
            Value::Address(address) => write!(f, "{address}"),
            Value::Store(store) => write!(f, "{store}"),
        }
    }
}

impl Kind {
    /// The value, or what to do about it.
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
            Kind::Number { min, max } => within(whole(text), min, max).ok_or_else(|| self.rule()),
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
            Kind::Address => text.parse().map(Value::Address).map_err(|_| self.rule()),
            Kind::Store => StoreUrl::parse(text).map(Value::Store),
            Kind::MaybeDuration { min, max } => match (Kind::Duration { min, max }).parse(text, unit)? {
                Value::Duration(duration) => Ok(Value::MaybeDuration(Some(duration))),
                other => Ok(other),
            },
            Kind::MaybeBytes { min, max } => match (Kind::Bytes { min, max }).parse(text, unit)? {
                Value::Number(bytes) => Ok(Value::MaybeNumber(Some(bytes))),
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
            Kind::FleetName | Kind::Url | Kind::Name | Kind::Names | Kind::Pairs | Kind::Environment => {
                Err(self.rule())
            }
        }
    }

    /// The same for what was written as `{ name = "value" }`.
    pub(super) fn pairs(&self, pairs: &[(String, String)]) -> Result<Value, String> {
        match self {
            // They travel as `a=b,c=d`.
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

    /// What it has to be, as people are told.
    fn rule(&self) -> String {
        match self {
            Kind::Number { .. } => format!("it must be a whole number {}", self.bounds()),
            Kind::Bytes { .. } | Kind::MaybeBytes { .. } => {
                format!("it must be a number of bytes {}", self.bounds())
            }
            _ => format!("it must be {}", self.bounds()),
        }
    }

    /// What it may be, in a few words.
    pub(super) fn bounds(&self) -> String {
        match self {
            Kind::Duration { min, max } => format!("from `{}` to `{}`", written(*min), written(*max)),
            Kind::Number { min, max } => format!("from {min} to {max}"),
            Kind::Bytes { min, max } | Kind::MaybeBytes { min, max } => {
                format!("from `{}` to `{}`", size(*min), size(*max))
            }
            Kind::Switch => "`true` or `false`".to_owned(),
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
            Kind::Folder => "a path".to_owned(),
            Kind::Address => "an address and a port, as in `127.0.0.1:8288` or `[::1]:8288`".to_owned(),
            Kind::File => "a path, or nothing".to_owned(),
            Kind::List => "a list of words, with commas between them".to_owned(),
            Kind::Store => "`sqlite:PATH` or `memory:`".to_owned(),
            Kind::MaybeDuration { min, max } => Kind::Duration { min: *min, max: *max }.bounds(),
            Kind::Money => "dollars, like `0.69`".to_owned(),
            Kind::Text => "a text".to_owned(),
            Kind::FleetName => {
                format!("up to {FLEET_NAME_MAX} lower-case letters, digits and `-`, beginning with a letter")
            }
            Kind::Name => "a name: letters, digits, `-`, `_`, `.` and `:`".to_owned(),
            Kind::Names => "a list of names: letters, digits, `-`, `_`, `.` and `:`".to_owned(),
            Kind::Url => "an address that begins with `http://` or `https://`".to_owned(),
            Kind::Pairs => "names and values without commas, as in `{ gpu = \"4090\" }`".to_owned(),
            Kind::Environment => "names and values, as in `{ HF_HOME = \"/models\" }`".to_owned(),
        }
    }
}

/// The longest first, so that a duration is written with the fewest.
const UNITS: [(&str, u64); 5] = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)];

/// A duration as one writes it: `250ms`, `90s`, `5m`, `1h30m`.
pub(super) fn written(duration: Duration) -> String {
    let mut millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    // People say 90 seconds and 5 minutes.
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
    if let Some(number) = whole(text) {
        return match unit {
            Unit::Milliseconds => Ok(Duration::from_millis(number)),
            Unit::Seconds => Ok(Duration::from_secs(number)),
            Unit::Written => Err(format!("the unit is missing; {HELP}")),
        };
    }
    sum_of_parts(text).map(Duration::from_millis).ok_or_else(|| HELP.to_owned())
}

/// A duration as people write it, on the command line too.
pub fn written_duration(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Written)
}

/// The same, where a bare number counts seconds.
pub fn written_seconds(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Seconds)
}

/// A number of bytes as people write it, on the command line too.
pub fn read_bytes(text: &str) -> Result<u64, String> {
    bytes(text.trim())
        .ok_or_else(|| "write a number of bytes as `1073741824`, `512MiB` or `20GiB`".to_owned())
}

/// In milliseconds.
fn sum_of_parts(mut text: &str) -> Option<u64> {
    let mut sum: u64 = 0;
    while !text.is_empty() {
        let (number, rest) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
        let (unit, rest) = rest.split_at(rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len()));
        let (_, size) = UNITS.iter().find(|(name, _)| *name == unit.trim())?;
        sum = sum.checked_add(number.parse::<u64>().ok()?.checked_mul(*size)?)?;
        text = rest;
    }
    Some(sum)
}

fn within(number: Option<u64>, min: u64, max: u64) -> Option<Value> {
    number.filter(|number| (min..=max).contains(number)).map(Value::Number)
}

/// `10_000` counts as well.
fn whole(text: &str) -> Option<u64> {
    let is_plain = text.starts_with(|c: char| c.is_ascii_digit());
    if is_plain { text.replace('_', "").parse().ok() } else { None }
}

const SIZES: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A number of bytes as one writes it: in the largest unit that comes out even.
pub(super) fn size(bytes: u64) -> String {
    match SIZES.iter().find(|(_, size)| bytes >= *size && bytes.is_multiple_of(*size)) {
        Some((unit, size)) => format!("{}{unit}", bytes / size),
        None => bytes.to_string(),
    }
}

fn bytes(text: &str) -> Option<u64> {
    for (unit, size) in SIZES {
        if let Some(number) = text.strip_suffix(unit) {
            return whole(number.trim_end())?.checked_mul(size);
        }
    }
    whole(text)
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

fn joined(pairs: &BTreeMap<String, impl fmt::Display>) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(", ")
}

/// Leaves room for what is around it in a pod's name.
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

fn folder(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("it must be a path".to_owned()),
        _ if text.starts_with('~') => Err("only a shell knows `~`; write the whole path".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

#[cfg(test)]
mod tests;
