//! Time in the core: passed in from outside, in whole milliseconds, never going backwards.
//!
//! The server anchors it to the wall clock at its start and then follows a monotonic clock. So it can be shown as a date,
//! but a jump of the wall clock moves no lease and no timer. `clock` decides where it starts.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub const DAY: Duration = Duration::from_secs(24 * 3600);
pub const HOUR: Duration = Duration::from_secs(3600);

/// A moment, in milliseconds since 1970 as the plane counts them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Timestamp(u64);

impl Timestamp {
    pub const ZERO: Timestamp = Timestamp(0);
    /// Later than every event: for "not before an explicit event".
    pub const NEVER: Timestamp = Timestamp(u64::MAX >> 1);

    pub const fn from_millis(millis: u64) -> Self {
        Timestamp(millis)
    }

    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero if it lies ahead.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// The time between two moments, in either order.
    pub fn apart(self, other: Timestamp) -> Duration {
        self.since(other).max(other.since(self))
    }

    #[must_use]
    pub fn plus(self, duration: Duration) -> Timestamp {
        let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(millis).min(Timestamp::NEVER.0))
    }

    #[must_use]
    pub fn minus(self, duration: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// As `2026-11-15T12:03:10.042Z`.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self >= Timestamp::NEVER {
            return f.write_str("never");
        }
        let (days, millis_of_day) = (self.0 / 86_400_000, self.0 % 86_400_000);
        let (year, month, day) = civil_from_days(days);
        let (seconds, millis) = (millis_of_day / 1000, millis_of_day % 1000);
        let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        write!(f, "{year:04}-{month:02}-{day:02}T{hours:02}:{minutes:02}:{seconds:02}.{millis:03}Z")
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ms", self.0)
    }
}

/// The Gregorian date of a day counted from 1970-01-01, after Howard Hinnant's `civil_from_days`.
fn civil_from_days(days: u64) -> (u64, u64, u64) {
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_shifted + 2) / 5 + 1;
    let month = if month_shifted < 10 { month_shifted + 3 } else { month_shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

/// A duration for people: `850 ms`, `42 s`, `3 min 10 s`, `2 h 5 min`.
pub fn humanize(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 => format!("{} ms", duration.as_millis()),
        1..60 => format!("{seconds} s"),
        60..3600 if seconds.is_multiple_of(60) => format!("{} min", seconds / 60),
        60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ if (seconds / 60).is_multiple_of(60) => format!("{} h", seconds / 3600),
        _ => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamp_is_shown_as_a_date() {
        for (millis, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_399_999, "2000-02-28T23:59:59.999Z"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z"),
            (1_794_744_190_042, "2026-11-15T12:03:10.042Z"),
        ] {
            assert_eq!(Timestamp::from_millis(millis).to_string(), text);
        }
        assert_eq!(Timestamp::NEVER.to_string(), "never");
    }

    #[test]
    fn arithmetic_saturates_at_zero_and_never() {
        let moment = Timestamp::from_millis(5);
        assert_eq!(moment.since(Timestamp::from_millis(9)), Duration::ZERO);
        assert_eq!(moment.minus(Duration::from_secs(1)), Timestamp::ZERO);
        assert_eq!(Timestamp::NEVER.plus(Duration::MAX), Timestamp::NEVER);
    }

    #[test]
    fn durations_are_humanized() {
        for (millis, text) in [
            (850, "850 ms"),
            (42_000, "42 s"),
            (120_000, "2 min"),
            (190_000, "3 min 10 s"),
            (7_500_000, "2 h 5 min"),
        ] {
            assert_eq!(humanize(Duration::from_millis(millis)), text);
        }
    }
}
