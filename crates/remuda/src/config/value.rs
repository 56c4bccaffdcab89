//! What may be written for a key and how it is read: durations with their unit, numbers within bounds, sizes, switches,
//! choices, folders, addresses and stores. What is shown can be written back.

use std::fmt;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::store::StoreUrl;

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
            Value::Duration(duration) => f.write_str(&written(*duration)),
            Value::Number(number) => write!(f, "{number}"),
            Value::Switch(on) => write!(f, "{on}"),
            Value::Word(word) => f.write_str(word),
            Value::Folder(path) | Value::File(Some(path)) => write!(f, "{}", path.display()),
            Value::File(None) => Ok(()),
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
        }
    }

    /// What it has to be, as people are told.
    fn rule(&self) -> String {
        match self {
            Kind::Number { .. } => format!("it must be a whole number {}", self.bounds()),
            Kind::Bytes { .. } => format!("it must be a number of bytes {}", self.bounds()),
            _ => format!("it must be {}", self.bounds()),
        }
    }

    /// What it may be, in a few words.
    pub(super) fn bounds(&self) -> String {
        match self {
            Kind::Duration { min, max } => format!("from `{}` to `{}`", written(*min), written(*max)),
            Kind::Number { min, max } => format!("from {min} to {max}"),
            Kind::Bytes { min, max } => format!("from `{}` to `{}`", size(*min), size(*max)),
            Kind::Switch => "`true` or `false`".to_owned(),
            Kind::Choice(words) => {
                words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" or ")
            }
            Kind::Folder => "a path".to_owned(),
            Kind::Address => "an address and a port, as in `127.0.0.1:8288` or `[::1]:8288`".to_owned(),
            Kind::File => "a path, or nothing".to_owned(),
            Kind::List => "a list of words, with commas between them".to_owned(),
            Kind::Store => "`sqlite:PATH` or `memory:`".to_owned(),
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
pub(crate) fn written_duration(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Written)
}

/// The same, where a bare number counts seconds.
pub(crate) fn written_seconds(text: &str) -> Result<Duration, String> {
    duration(text.trim(), Unit::Seconds)
}

/// A number of bytes as people write it, on the command line too.
pub(crate) fn read_bytes(text: &str) -> Result<u64, String> {
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

fn folder(text: &str) -> Result<PathBuf, String> {
    match text {
        "" => Err("it must be a path".to_owned()),
        _ if text.starts_with('~') => Err("only a shell knows `~`; write the whole path".to_owned()),
        _ => Ok(PathBuf::from(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Kind =
        Kind::Duration { min: Duration::from_millis(1), max: Duration::from_secs(86_400 * 30) };

    fn millis(text: &str, unit: Unit) -> Option<u128> {
        match SHORT.parse(text, unit) {
            Ok(Value::Duration(duration)) => Some(duration.as_millis()),
            _ => None,
        }
    }

    #[test]
    fn durations_are_read_with_their_unit() {
        for (text, expected) in [
            ("250ms", 250),
            ("90s", 90_000),
            ("5m", 300_000),
            ("2h", 7_200_000),
            ("7d", 604_800_000),
            ("1h30m", 5_400_000),
            ("1m500ms", 60_500),
            (" 3 s ", 3000),
        ] {
            assert_eq!(millis(text, Unit::Written), Some(expected), "{text}");
        }
    }

    #[test]
    fn a_bare_number_needs_a_known_unit() {
        assert_eq!(millis("30000", Unit::Milliseconds), Some(30_000));
        assert_eq!(millis("30", Unit::Seconds), Some(30_000));
        assert_eq!(millis("5m", Unit::Seconds), Some(300_000));
        assert_eq!(
            SHORT.parse("30", Unit::Written),
            Err("the unit is missing; write a duration as `250ms`, `90s`, `5m`, `2h` or `7d`".to_owned())
        );
    }

    #[test]
    fn nonsense_is_no_duration() {
        for text in
            ["", "s", "-5s", "1.5h", "5 minutes", "5x", "5s3", "99999999999999999999s", "9999999999999d"]
        {
            assert_eq!(millis(text, Unit::Written), None, "{text}");
        }
    }

    #[test]
    fn what_is_shown_can_be_written_back() {
        for text in ["1ms", "30s", "90s", "5m", "2m30s", "2h", "7d", "1d2h3m4s5ms"] {
            let value = SHORT.parse(text, Unit::Written).unwrap();
            assert_eq!(value.to_string(), text);
        }
    }

    #[test]
    fn sizes_may_have_a_unit() {
        let kind = Kind::Bytes { min: 1, max: 1 << 40 };
        for (text, expected) in [("4096", 4096), ("8MiB", 8 << 20), ("1 GiB", 1 << 30), ("16KiB", 16 << 10)] {
            assert_eq!(kind.parse(text, Unit::Written), Ok(Value::Number(expected)));
        }
        assert!(kind.parse("8MB", Unit::Written).is_err());
        assert_eq!([size(8 << 20), size(1025), size(0)], ["8MiB", "1025", "0"]);
    }

    #[test]
    fn a_switch_is_on_or_off_in_many_words() {
        for (text, on) in [("true", true), ("True", true), ("1", true), ("off", false), ("no", false)] {
            assert_eq!(Kind::Switch.parse(text, Unit::Written), Ok(Value::Switch(on)));
        }
        assert_eq!(
            Kind::Switch.parse("maybe", Unit::Written),
            Err("it must be `true` or `false`".to_owned())
        );
    }
}
