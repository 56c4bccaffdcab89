//! Commands that list and show what the plane knows, and the few that change it by hand. Each sends a request and prints
//! the answer; nothing is decided here.

mod affinities;
mod blobs;
mod blocks;
mod cost;
mod cycle;
mod drain;
mod events;
mod fleet;
mod jobs;
mod machines;
mod quarantine;
mod status;
mod why;
mod workers;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::bail;
use remuda_core::time::Timestamp;
use reqwest::Method;
use serde_json::Value;

use super::{Client, Connection};
use remuda_net::clock::Clock;
use remuda_net::terminal::{escape_control, print_line, table};
use remuda_net::text::one_line;

pub(super) use self::affinities::AffinitiesCommand;
pub(super) use self::blobs::BlobsCommand;
pub(super) use self::blocks::BlocksCommand;
pub(super) use self::cost::{CostCommand, EXAMPLES as COST_EXAMPLES};
pub(super) use self::cycle::CycleCommand;
pub(super) use self::drain::{DrainCommand, EXAMPLES as DRAIN_EXAMPLES};
pub(super) use self::events::{EventsCommand, events_request};
pub(super) use self::fleet::{EXAMPLES as FLEET_EXAMPLES, FleetCommand};
pub(super) use self::jobs::{CancelCommand, JobsCommand};
pub(super) use self::machines::MachinesCommand;
pub(super) use self::quarantine::QuarantineCommand;
pub(super) use self::status::{EXAMPLES as STATUS_EXAMPLES, StatusCommand};
pub(super) use self::why::{WhyCommand, explain_job};
pub(super) use self::workers::WorkersCommand;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a shape tables show; commands accept any unique prefix.
const SHAPE_DIGITS: usize = 12;
/// How much of a sentence tables show.
const SENTENCE_CHARS_MAX: usize = 120;

/// Sends a request with query parameters.
async fn request(
    client: &Client,
    method: Method,
    path: &str,
    query: &[(&str, String)],
) -> anyhow::Result<Value> {
    client.send(client.request(method, path).query(query).timeout(REQUEST_TIMEOUT)).await
}

/// Prints the answer as JSON with `--json`, otherwise rendered for people.
pub(super) fn show(connection: &Connection, answer: &Value, render: impl FnOnce() -> String) {
    print_line(&if connection.json { answer.to_string() } else { render() });
}

/// A list, after the mass-loss brake if that is on: it explains why what is listed does not change.
fn with_brake(answer: &Value, list: String) -> String {
    match answer["brake"].as_str() {
        Some(brake) => format!("{}\n\n{list}", escape_control(brake)),
        None => list,
    }
}

/// The rows of a list in an answer; empty if it has none.
pub(super) fn rows<'a>(answer: &'a Value, name: &str) -> &'a [Value] {
    answer[name].as_array().map_or(&[], Vec::as_slice)
}

/// A value as the text of a table cell.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// A table whose last column is a sentence, shown as one line: a CUDA error has thirty. `remuda why JOB --verbose` shows
/// the whole of it, `--json` too.
fn table_with_reason(titles: &[&str], mut rows: Vec<Vec<String>>) -> String {
    for row in &mut rows {
        if let Some(reason) = row.last_mut() {
            *reason = one_line(reason, SENTENCE_CHARS_MAX);
        }
    }
    table(titles, &rows)
}

fn short_shape(value: &Value) -> String {
    cell(value).chars().take(SHAPE_DIGITS).collect()
}

/// The shape with this prefix; an error if several have it.
fn find_shape<'a>(shapes: impl IntoIterator<Item = &'a str>, typed: &str) -> anyhow::Result<Option<&'a str>> {
    let typed = typed.to_ascii_lowercase();
    // A worker may have several blocks for one shape.
    let found: BTreeSet<_> = shapes.into_iter().filter(|shape| shape.starts_with(&typed)).collect();
    let mut found = found.into_iter();
    match (found.next(), found.next()) {
        (Some(one), Some(other)) => {
            bail!(
                "several shapes begin with {:?}, among them {one} and {other}: type more of it",
                escape_control(&typed)
            )
        }
        (one, _) => Ok(one),
    }
}

/// A duration in its largest unit: `850ms`, `42s`, `3m`, `2h`, `5d`.
fn short_duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{}ms", duration.as_millis()),
        1..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long ago a timestamp of the plane was.
fn ago(value: &Value, now: Timestamp) -> String {
    parse_timestamp(value).map_or_else(|| "-".to_owned(), |at| short_duration(now.since(at)))
}

fn now() -> Timestamp {
    Clock::starting_now().now()
}

/// Dollars with two digits, small amounts with two significant digits.
fn money(value: &Value) -> String {
    match value.as_f64() {
        None => "-".to_owned(),
        Some(dollars) if dollars == 0.0 || dollars >= 0.1 => format!("${dollars:.2}"),
        Some(dollars) => {
            let digits = (1 - dollars.log10().floor() as i32).clamp(2, 6);
            format!("${dollars:.*}", digits.unsigned_abs() as usize)
        }
    }
}

/// A timestamp of the plane: milliseconds, or `2026-11-15T12:03:10.042Z`.
fn parse_timestamp(value: &Value) -> Option<Timestamp> {
    if let Some(millis) = value.as_u64() {
        return Some(Timestamp::from_millis(millis));
    }
    let text = value.as_str()?;
    let number = |at: std::ops::Range<usize>| text.get(at)?.parse::<u64>().ok();
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hours, minutes, seconds, millis) =
        (number(11..13)?, number(14..16)?, number(17..19)?, number(20..23)?);
    let seconds = ((days_since_1970(year, month, day)? * 24 + hours) * 60 + minutes) * 60 + seconds;
    Some(Timestamp::from_millis(seconds * 1000 + millis))
}

/// Howard Hinnant's `days_from_civil`; the year begins in March, so that the leap day comes last.
fn days_since_1970(year: u64, month: u64, day: u64) -> Option<u64> {
    let year = if month <= 2 { year.checked_sub(1)? } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day.checked_sub(1)?;
    (era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year)
        .checked_sub(719_468)
}

/// `text` in at most `width` characters, on one line.
fn truncate(text: &str, width: usize) -> String {
    let text = escape_control(&text.split_whitespace().collect::<Vec<_>>().join(" "));
    if text.chars().count() <= width {
        return text;
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}

/// Columns and lines of the terminal; None if standard output is not one.
fn terminal_size() -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok()?;
    (size.ws_col > 0).then(|| (usize::from(size.ws_col), usize::from(size.ws_row)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn timestamps_are_parsed() {
        for millis in [0, 951_782_399_999, 951_868_800_000, 1_794_744_190_042] {
            let written = Timestamp::from_millis(millis);
            assert_eq!(parse_timestamp(&json!(written.to_string())), Some(written));
            assert_eq!(parse_timestamp(&json!(millis)), Some(written));
        }
        for odd in [json!("never"), json!(null), json!("2026-00-00T"), json!("ünïcödé-text-that-is-long")]
        {
            assert_eq!(parse_timestamp(&odd), None);
        }
    }

    #[test]
    fn small_amounts_have_two_significant_digits() {
        let shown = [json!(0), json!(12.5), json!(0.69), json!(0.0345), json!(0.000_021), json!(null)]
            .map(|it| money(&it));
        assert_eq!(shown, ["$0.00", "$12.50", "$0.69", "$0.035", "$0.000021", "-"]);
    }

    #[test]
    fn durations_are_shown_in_their_largest_unit() {
        let shown = [850, 42_000, 190_000, 7_500_000, 500_000_000]
            .map(|millis| short_duration(Duration::from_millis(millis)));
        assert_eq!(shown, ["850ms", "42s", "3m", "2h", "5d"]);
    }

    #[test]
    fn truncated_text_is_one_escaped_line() {
        assert_eq!(truncate("short", 10), "short");
        assert_eq!(truncate("a reason that goes\non and on", 12), "a reason th…");
        assert_eq!(truncate("two words", 5), "two…");
        assert_eq!(truncate("\u{1b}[2J", 20), "\\u{1b}[2J");
    }

    #[test]
    fn unique_prefix_selects_a_shape() {
        let shapes = ["abc1", "abd2"];
        assert_eq!(find_shape(shapes, "ABC").unwrap(), Some("abc1"));
        assert_eq!(find_shape(shapes, "f").unwrap(), None);
        assert!(find_shape(shapes, "ab").unwrap_err().to_string().contains("type more of it"));
    }
}
