//! The Python methods that templates call on their values.

use std::time::{Duration, SystemTime};

use minijinja::value::{Kwargs, Value, ValueKind};
use minijinja::{Error, ErrorKind, State};

pub(super) fn call(
    _: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let unknown =
        || Error::new(ErrorKind::UnknownMethod, format!("a {} has no method {method}", value.kind()));
    if let Some(text) = value.as_str() {
        return on_text(text, method, args).ok_or_else(unknown);
    }
    if value.kind() == ValueKind::Map {
        let pairs = || value.try_iter().into_iter().flatten().map(|key| (value.get_item(&key), key));
        let pair =
            |(item, key): (Result<Value, Error>, Value)| item.ok().map(|item| Value::from(vec![key, item]));
        return match (method, args) {
            ("items", []) => Ok(Value::from_iter(pairs().filter_map(pair))),
            ("keys", []) => Ok(Value::from_iter(pairs().map(|(_, key)| key))),
            ("values", []) => Ok(Value::from_iter(pairs().filter_map(|(item, _)| item.ok()))),
            ("get", [key]) => {
                Ok(value.get_item(key).ok().filter(|it| !it.is_undefined()).unwrap_or(Value::from(())))
            }
            ("get", [key, or]) => {
                Ok(value.get_item(key).ok().filter(|it| !it.is_undefined()).unwrap_or_else(|| or.clone()))
            }
            _ => Err(unknown()),
        };
    }
    Err(unknown())
}

fn on_text(text: &str, method: &str, args: &[Value]) -> Option<Value> {
    let texts: Vec<&str> = args.iter().map_while(Value::as_str).collect();
    let any_of = |set: &str| set.chars().collect::<Vec<_>>();
    Some(match (method, texts.as_slice()) {
        ("strip", []) => Value::from(text.trim()),
        ("lstrip", []) => Value::from(text.trim_start()),
        ("rstrip", []) => Value::from(text.trim_end()),
        ("strip", [set]) => Value::from(text.trim_matches(any_of(set).as_slice())),
        ("lstrip", [set]) => Value::from(text.trim_start_matches(any_of(set).as_slice())),
        ("rstrip", [set]) => Value::from(text.trim_end_matches(any_of(set).as_slice())),
        ("startswith", [with]) => Value::from(text.starts_with(with)),
        ("endswith", [with]) => Value::from(text.ends_with(with)),
        ("upper", []) => Value::from(text.to_uppercase()),
        ("lower", []) => Value::from(text.to_lowercase()),
        // Replacing the empty string would write without bound.
        ("replace", [from, to]) if !from.is_empty() && to.len() <= from.len() * 64 => {
            Value::from(text.replace(from, to))
        }
        ("split", []) => Value::from_iter(text.split_whitespace().map(Value::from)),
        ("split", [at]) if !at.is_empty() => Value::from_iter(text.split(at).map(Value::from)),
        _ => return None,
    })
}

/// Like Python: nothing is escaped for HTML.
#[expect(clippy::needless_pass_by_value, reason = "signature of a filter")]
pub(super) fn json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let failed = |error: serde_json::Error| Error::new(ErrorKind::BadSerialization, error.to_string());
    let text = match indent {
        Some(_) => serde_json::to_string_pretty(value).map_err(failed)?,
        None => serde_json::to_string(value).map_err(failed)?,
    };
    Ok(Value::from(text))
}

/// The current date in UTC, with the `strftime` directives that templates use.
pub(super) fn date(format: &str, now: SystemTime) -> String {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
    let seconds = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let name = |names: &[&'static str], at: u64| names[usize::try_from(at).unwrap_or(0) % names.len()];
    let (month_name, day_name) = (name(&MONTHS, month - 1), name(&DAYS, days % 7));
    let mut text = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            text.push(letter);
            continue;
        }
        text.push_str(&match letters.next() {
            Some('Y') => year.to_string(),
            Some('m') => format!("{month:02}"),
            Some('d') => format!("{day:02}"),
            Some('B') => month_name.to_owned(),
            Some('b') => month_name[..3].to_owned(),
            Some('A') => day_name.to_owned(),
            Some('a') => day_name[..3].to_owned(),
            Some('H') => format!("{:02}", second / 3600),
            Some('M') => format!("{:02}", second / 60 % 60),
            Some('S') => format!("{:02}", second % 60),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        });
    }
    text
}

/// Year, month and day of a number of days after 1970-01-01 (Hinnant's `civil_from_days`).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year + era * 400 + u64::from(month <= 2), month, of_year - (153 * shifted + 2) / 5 + 1)
}
