//! Uptime of a worker or machine over the last hour, day and week: how long it was up, how long it was missing, how
//! often it went stale.
//!
//! ```text
//!           up                        stale (last seen then)
//!  away ───────────▶ up since T ─────────────────────────────────▶ missed since T
//!    ▲                │   ▲                                            │  │
//!    └──── away ──────┘   └────────────────── up ──────────────────────┘  │
//!    └──────────────────────────── away ──────────────────────────────────┘
//! ```
//!
//! A worker that left is *away*, which does not count; a silent one is *missed* since its last beat. A lasting phase
//! is stored only when it ends, and equal hours are stored as one run: the history of a steady worker takes a few
//! bytes, that of a flapping one a few hundred.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::time::Timestamp;

const HOUR: Duration = Duration::from_secs(3600);
const HOUR_MILLIS: u64 = 3_600_000;
const DAY: Duration = Duration::from_secs(24 * 3600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3600);
/// A week, and the hour under way.
const HOURS_MAX: u64 = 7 * 24 + 1;
/// Times of the last stale events that are kept; an alert threshold cannot be higher.
pub const STALE_TIMES_MAX: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reliability {
    known_since: Timestamp,
    phase: Phase,
    /// Oldest first. The last is one hour, and still filling.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hours: Vec<Hours>,
    /// The last hour's number since 1970.
    #[serde(default)]
    newest: u64,
    /// When it went stale, the last few times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    stale_at: Vec<Timestamp>,
    /// When the last alert was raised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    alerted_at: Option<Timestamp>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Phase {
    Away,
    #[serde(rename = "up_since")]
    Up(Timestamp),
    #[serde(rename = "missed_since")]
    Missed(Timestamp),
}

/// A run of equal hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Hours {
    hours: u16,
    up_millis: u32,
    missed_millis: u32,
    stales: u16,
}

/// Figures of a time window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct WindowStats {
    /// Share of the window, since it is known, in which it was up.
    pub uptime: f64,
    /// The same without the time it was away.
    pub reliability: f64,
    pub went_stale: u32,
}

/// The windows that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReliabilitySummary {
    pub hour: WindowStats,
    pub day: WindowStats,
    pub week: WindowStats,
}

impl Reliability {
    /// A worker or machine seen for the first time.
    pub fn new(now: Timestamp) -> Self {
        Reliability {
            known_since: now,
            phase: Phase::Up(now),
            hours: Vec::new(),
            newest: 0,
            stale_at: Vec::new(),
            alerted_at: None,
        }
    }

    /// It joined, or beats again.
    pub fn mark_up(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Up(_) => return,
            Phase::Away => {}
            Phase::Missed(since) => self.add_span(since, now, |hour, millis| hour.missed_millis += millis),
        }
        self.phase = Phase::Up(now);
    }

    /// It has been silent since `seen_at`.
    pub fn mark_stale(&mut self, now: Timestamp, seen_at: Timestamp) {
        let Phase::Up(since) = self.phase else { return };
        let seen_at = seen_at.clamp(since, now);
        self.add_span(since, seen_at, |hour, millis| hour.up_millis += millis);
        let hour = self.hour(seen_at);
        hour.stales = hour.stales.saturating_add(1);
        self.phase = Phase::Missed(seen_at);
        self.stale_at.push(now);
        if self.stale_at.len() > STALE_TIMES_MAX {
            self.stale_at.remove(0);
        }
    }

    /// It left, or an operator removed it: it is not missed from now on.
    pub fn mark_away(&mut self, now: Timestamp) {
        match self.phase {
            Phase::Up(since) => self.add_span(since, now, |hour, millis| hour.up_millis += millis),
            Phase::Missed(since) => self.add_span(since, now, |hour, millis| hour.missed_millis += millis),
            Phase::Away => {}
        }
        self.phase = Phase::Away;
    }

    /// Stale events within the last hour, as far as they are kept.
    pub fn stale_last_hour(&self, now: Timestamp) -> usize {
        self.stale_at.iter().filter(|at| now.since(**at) < HOUR).count()
    }

    /// Whether it goes stale so often that an operator should look.
    pub fn is_unreliable(&self, now: Timestamp, flaps_before_alert: u32) -> bool {
        self.stale_last_hour(now) >= flaps_before_alert.max(1) as usize
    }

    /// Whether to raise an alert now: at most once an hour.
    pub fn take_alert(&mut self, now: Timestamp, flaps_before_alert: u32) -> bool {
        let is_recent = self.alerted_at.is_some_and(|at| now.since(at) < HOUR);
        let is_due = !is_recent && self.is_unreliable(now, flaps_before_alert);
        if is_due {
            self.alerted_at = Some(now);
        }
        is_due
    }

    pub fn summary(&self, now: Timestamp) -> ReliabilitySummary {
        ReliabilitySummary {
            hour: self.window_stats(now, HOUR),
            day: self.window_stats(now, DAY),
            week: self.window_stats(now, WEEK),
        }
    }

    fn window_stats(&self, now: Timestamp, window: Duration) -> WindowStats {
        let from = now.minus(window).max(self.known_since);
        let (mut up, mut missed, mut stales) = (0.0, 0.0, 0);
        let written_until = match self.phase {
            Phase::Up(since) | Phase::Missed(since) => since,
            Phase::Away => now,
        };
        let mut hour = self.newest;
        for run in self.hours.iter().rev() {
            for _ in 0..run.hours {
                let begin = Timestamp::from_millis(hour * HOUR_MILLIS);
                let (begin, end) = (begin.max(self.known_since), begin.plus(HOUR).min(written_until));
                // An hour that is half inside the window counts half: its details are not kept.
                let share = share(end.since(begin.max(from)), end.since(begin));
                up += f64::from(run.up_millis) * share;
                missed += f64::from(run.missed_millis) * share;
                stales += if end >= from { u32::from(run.stales) } else { 0 };
                hour = hour.saturating_sub(1);
            }
        }
        let open = |since: Timestamp| now.since(since.max(from)).as_millis() as f64;
        match self.phase {
            Phase::Up(since) => up += open(since),
            Phase::Missed(since) => missed += open(since),
            Phase::Away => {}
        }
        let known = now.since(from).as_millis() as f64;
        let of = |part: f64, whole: f64| if whole > 0.0 { rounded((part / whole).min(1.0)) } else { 1.0 };
        let lately = u32::try_from(self.stale_last_hour(now)).unwrap_or(u32::MAX);
        WindowStats {
            uptime: of(up, known),
            reliability: of(up, up + missed),
            went_stale: if window <= HOUR { lately } else { stales.max(lately) },
        }
    }

    /// Adds a time span to its hours.
    fn add_span(&mut self, from: Timestamp, until: Timestamp, add: impl Fn(&mut Hours, u32)) {
        let mut from = from.max(until.minus(WEEK));
        while from < until {
            let next = Timestamp::from_millis((from.as_millis() / HOUR_MILLIS + 1) * HOUR_MILLIS);
            let piece = next.min(until).since(from).as_millis();
            add(self.hour(from), u32::try_from(piece).unwrap_or(u32::MAX));
            from = next;
        }
    }

    /// The hour of `at`; a late entry counts in the newest hour.
    fn hour(&mut self, at: Timestamp) -> &mut Hours {
        const EMPTY: Hours = Hours { hours: 1, up_millis: 0, missed_millis: 0, stales: 0 };
        let hour = at.as_millis() / HOUR_MILLIS;
        if self.hours.is_empty() || hour > self.newest + HOURS_MAX {
            (self.hours, self.newest) = (vec![EMPTY], hour);
        }
        while self.newest < hour {
            self.pack();
            self.hours.push(EMPTY);
            self.newest += 1;
        }
        self.hours.last_mut().expect("there is one at least")
    }

    /// The newest hour is over: merged with the previous run if equal. Hours older than a week are dropped.
    fn pack(&mut self) {
        if let [.., before, last] = &mut self.hours[..] {
            let is_alike = Hours { hours: last.hours, ..*before } == *last;
            if is_alike {
                before.hours += last.hours;
                self.hours.pop();
            }
        }
        let mut surplus =
            (self.hours.iter().map(|run| u64::from(run.hours)).sum::<u64>() + 1).saturating_sub(HOURS_MAX);
        while surplus > 0 && self.hours.len() > 1 {
            let first = &mut self.hours[0];
            let gone = u64::from(first.hours).min(surplus);
            first.hours -= gone as u16;
            surplus -= gone;
            if first.hours == 0 {
                self.hours.remove(0);
            }
        }
    }
}

fn share(part: Duration, whole: Duration) -> f64 {
    if whole.is_zero() { 0.0 } else { part.as_secs_f64() / whole.as_secs_f64() }
}

/// Four digits are enough.
fn rounded(share: f64) -> f64 {
    (share * 10_000.0).round() / 10_000.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A time that is not on the hour.
    const BEGAN: u64 = 1_000_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_millis((BEGAN + seconds) * 1000)
    }

    enum Do {
        Come,
        /// Found stale; seen last so many seconds before.
        Stale(u64),
        Leave,
        /// Uptime and reliability of the last day in percent, stales of the last hour and day.
        Look(f64, f64, u32, u32),
    }
    use Do::{Come, Leave, Look, Stale};

    fn check(story: &[(u64, Do)]) {
        let mut it = Reliability::new(at(0));
        for (second, what) in story {
            match what {
                Come => it.mark_up(at(*second)),
                Stale(silent) => it.mark_stale(at(*second), at(second - silent)),
                Leave => it.mark_away(at(*second)),
                Look(uptime, reliability, lately, daily) => {
                    let ReliabilitySummary { hour, day, .. } = it.summary(at(*second));
                    let seen = (day.uptime * 100.0, day.reliability * 100.0, hour.went_stale, day.went_stale);
                    let is_near = (seen.0 - uptime).abs() < 0.5 && (seen.1 - reliability).abs() < 0.5;
                    assert!(is_near && (seen.2, seen.3) == (*lately, *daily), "{seen:?} at {second} s");
                }
            }
            let read: Reliability = serde_json::from_str(&serde_json::to_string(&it).unwrap()).unwrap();
            assert_eq!(read, it, "a restart forgets nothing");
        }
    }

    #[test]
    fn who_is_always_there_is_all_up_and_takes_no_room() {
        check(&[(0, Look(100.0, 100.0, 0, 0)), (5000, Come), (86_400, Look(100.0, 100.0, 0, 0))]);
        let mut steady = Reliability::new(at(0));
        steady.mark_stale(at(6 * 86_400), at(6 * 86_400 - 90));
        assert!(serde_json::to_string(&steady).unwrap().len() < 400, "alike hours are one");
    }

    #[test]
    fn who_is_missed_is_less_reliable_and_who_is_away_is_not() {
        check(&[
            (1000, Stale(100)),
            (1900, Come),
            (2900, Look(65.5, 65.5, 1, 1)),
            (2900, Leave),
            (4750, Look(40.0, 65.5, 0, 1)),
            (4750, Come),
            (5750, Look(50.4, 74.4, 0, 1)),
        ]);
    }

    #[test]
    fn what_is_older_than_the_window_does_not_count() {
        check(&[(100, Stale(90)), (3700, Come), (86_400 + 7200, Look(100.0, 100.0, 0, 0))]);
        let mut it = Reliability::new(at(0));
        it.mark_stale(at(100), at(10));
        it.mark_up(at(3700));
        let week = it.summary(at(7 * 86_400 - 600)).week;
        assert_eq!(week.went_stale, 1);
        assert!(week.uptime < 0.995, "{week:?}");
    }

    #[test]
    fn flapping_alert_is_hourly_and_history_bounded() {
        let mut it = Reliability::new(at(0));
        let mut told = Vec::new();
        for n in 1..=(8 * 24 * 6_u64) {
            it.mark_stale(at(n * 600 - 90), at(n * 600 - 180));
            told.extend(it.take_alert(at(n * 600 - 90), 3).then_some(n));
            it.mark_up(at(n * 600));
        }
        assert_eq!(told[..3], [3, 9, 15], "the third, and then once an hour");
        assert!(it.is_unreliable(at(8 * 86_400), 3) && !it.is_unreliable(at(8 * 86_400 + 3600), 3));
        let week = it.summary(at(8 * 86_400)).week;
        assert!((week.uptime - 0.7).abs() < 0.01 && week.went_stale.abs_diff(7 * 24 * 6) <= 6, "{week:?}");
        let stored = serde_json::to_string(&it).unwrap();
        assert!(stored.len() < 1200, "{stored}");
    }

    #[test]
    fn a_long_absence_leaves_nothing_of_what_was_before() {
        let mut it = Reliability::new(at(0));
        it.mark_stale(at(100), at(10));
        it.mark_up(at(30 * 86_400));
        it.mark_stale(at(30 * 86_400 + 100), at(30 * 86_400 + 10));
        assert_eq!(it.summary(at(30 * 86_400 + 200)).week.went_stale, 1);
    }
}
