//! The plane's time, and what follows when the clock of its machine is wrong.
//!
//! The plane's time is the machine's clock, read once at the start, plus a monotonic clock. Leases, alarms and retries
//! follow it and nothing else. Order never comes from it: events have sequence numbers, attempts and terms are counted,
//! and job ids continue after the newest stored one. So the machine's clock decides one thing only, where time starts:
//!
//! | the machine's clock at the start | the plane's time | because |
//! |---|---|---|
//! | at most a year after the latest stored time | follows it | the plane was off for that long |
//! | at most a minute before it | continues from the stored time | clocks drift |
//! | further before it | follows it, and the stored times are set back (`SetBack`) | an earlier start had a clock that was ahead |
//! | more than a year after it | continues from the stored time | it would expire or delete everything that has an age, and that cannot be undone |
//! | before this program was written | continues from the stored time | it is certainly wrong |
//!
//! The last two rows do not count with `trust_clock`, with which an operator says that the machine's clock is right.
//!
//! While the plane runs, the machine's clock moves nothing. A difference of more than a minute is reported when it appears,
//! when it changes and when it ends. If the machine's clock stays behind, the plane starts again by itself: times that
//! tasks hold in memory are of the old clock, and a start is the one path that sets all of them. A clock that stays ahead
//! is followed at the next start and not before, because a start takes the difference for time in which the plane was off,
//! and deadlines would pass although nothing had time to run. A slew was rejected: fifty years would take a thousand.

mod set_back;

use std::time::Duration;

use serde_json::{Value, json};

pub use self::set_back::SetBack;

use crate::time::{DAY, Timestamp, humanize};

/// Clocks that are set by a time server differ by less; webhook receivers tolerate minutes.
const JUMP_MIN: Duration = Duration::from_secs(60);
/// Longer than a plane is off; less than a wrong year.
const AHEAD_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
/// How long the machine's clock must stay behind: a time server that corrects itself needs a few seconds.
const BEHIND_FOR: Duration = Duration::from_secs(10);
/// 2026-11-01: a clock that shows an earlier time is wrong.
const WRITTEN_AT: Timestamp = Timestamp::from_millis(1_793_491_200_000);

/// The time at which a plane starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClockStart {
    pub now: Timestamp,
    /// What the machine's clock showed.
    pub wall: Timestamp,
    /// The stored times to change before anything else reads them.
    pub set_back: Option<SetBack>,
}

impl ClockStart {
    /// `latest`: the latest stored time. `is_trusted`: an operator vouches for the machine's clock.
    pub fn new(wall: Timestamp, latest: Timestamp, is_trusted: bool) -> ClockStart {
        let is_possible = is_trusted || wall >= WRITTEN_AT;
        let is_first = latest < WRITTEN_AT;
        let is_too_far = !is_trusted && !is_first && wall.since(latest) > AHEAD_MAX;
        if !is_possible || is_too_far {
            return ClockStart { now: latest.max(WRITTEN_AT), wall, set_back: None };
        }
        if latest.since(wall) > JUMP_MIN {
            return ClockStart { now: wall, wall, set_back: Some(SetBack { from: latest, to: wall }) };
        }
        ClockStart { now: wall.max(latest), wall, set_back: None }
    }

    /// What a person should know about this start.
    pub fn problem(&self) -> Option<String> {
        match self.set_back {
            Some(SetBack { from, to }) => Some(format!(
                "the plane's time was {from}, and the clock of this machine shows {to}: the time was set back, \
                 and every stored time with it"
            )),
            None => ClockDifference::new(self.now, self.wall).problem(),
        }
    }
}

/// The time in a signature, which its receiver compares with a clock of its own: the machine's, unless that is one that no
/// start would follow.
pub fn signing_time(now: Timestamp, wall: Timestamp) -> Timestamp {
    if wall >= WRITTEN_AT && wall.since(now) <= AHEAD_MAX { wall } else { now }
}

/// How far the machine's clock is from the plane's time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClockDifference {
    /// Milliseconds that the machine's clock is ahead; negative if it is behind.
    pub ahead_millis: i64,
}

impl ClockDifference {
    pub fn new(now: Timestamp, wall: Timestamp) -> ClockDifference {
        let signed = |time: Timestamp| i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        ClockDifference { ahead_millis: signed(wall).saturating_sub(signed(now)) }
    }

    fn length(self) -> Duration {
        Duration::from_millis(self.ahead_millis.unsigned_abs())
    }

    fn is_jump(self) -> bool {
        self.length() > JUMP_MIN
    }

    /// What is wrong, and what to do.
    pub fn problem(self) -> Option<String> {
        if !self.is_jump() {
            return None;
        }
        let by = if self.length() > 2 * DAY {
            format!("{} days", self.length().as_secs() / DAY.as_secs())
        } else {
            humanize(self.length())
        };
        Some(if self.ahead_millis < 0 {
            format!(
                "the clock of this machine is {by} behind the plane's time: check it; the plane follows it at its next start"
            )
        } else if self.length() > AHEAD_MAX {
            format!(
                "the clock of this machine is {by} ahead of the plane's time, which does not follow it: check the clock; if it \
                 is right, start the plane once with --set trust_clock=true"
            )
        } else {
            format!(
                "the clock of this machine is {by} ahead of the plane's time: check it; the plane follows it at its next start"
            )
        })
    }
}

/// Compares the machine's clock with the plane's time while the plane runs.
#[derive(Clone, Debug, Default)]
pub struct ClockWatch {
    current: ClockDifference,
    reported: ClockDifference,
    behind_since: Option<Timestamp>,
}

/// What follows from a look at the machine's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockFinding {
    Nothing,
    /// The difference appeared, changed or ended.
    Changed(ClockDifference),
    /// The machine's clock stays behind: the plane has to start again. Said once.
    Restart,
}

impl ClockWatch {
    /// The difference that the report of the start contains.
    pub fn started(start: &ClockStart) -> ClockWatch {
        let known = ClockDifference::new(start.now, start.wall);
        ClockWatch { current: known, reported: known, behind_since: None }
    }

    pub fn compare(&mut self, now: Timestamp, wall: Timestamp) -> ClockFinding {
        self.current = ClockDifference::new(now, wall);
        let is_behind = self.current.is_jump() && self.current.ahead_millis < 0 && wall >= WRITTEN_AT;
        let was_behind = self.behind_since;
        self.behind_since = is_behind.then(|| was_behind.unwrap_or(now));
        let moved = self.current.ahead_millis.abs_diff(self.reported.ahead_millis);
        if Duration::from_millis(moved) > JUMP_MIN {
            self.reported = self.current;
            return ClockFinding::Changed(self.current);
        }
        match self.behind_since {
            Some(since) if since < Timestamp::NEVER && now.since(since) >= BEHIND_FOR => {
                self.behind_since = Some(Timestamp::NEVER);
                ClockFinding::Restart
            }
            Some(_) | None => ClockFinding::Nothing,
        }
    }

    pub fn difference(&self) -> ClockDifference {
        self.current
    }
}

impl ClockDifference {
    /// As events and the status show it.
    pub fn detail(self) -> [(&'static str, Value); 2] {
        [("ahead_millis", json!(self.ahead_millis)), ("problem", json!(self.problem()))]
    }
}

#[cfg(test)]
mod tests;
