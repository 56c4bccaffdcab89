//! Values that are legal each but do not fit together. A rule compares two keys and says why; `docs/configuration.md`
//! lists them.

use super::key::Key;
use super::value::Value;
use super::{ConfigError, Resolved};

/// `times` × `low` must be below `high`, or at most equal to it.
pub(super) struct Rule {
    pub(super) low: &'static str,
    pub(super) times: u32,
    pub(super) high: &'static str,
    pub(super) may_equal: bool,
    pub(super) because: &'static str,
}

const fn below(low: &'static str, high: &'static str, because: &'static str) -> Rule {
    Rule { low, times: 1, high, may_equal: false, because }
}

const fn at_most(low: &'static str, high: &'static str, because: &'static str) -> Rule {
    Rule { low, times: 1, high, may_equal: true, because }
}

pub(super) const RULES: &[Rule] = &[
    Rule {
        times: 2,
        ..below("beat.busy", "lease", "one beat may be lost without the attempt being given up")
    },
    below("beat.suspect_after", "lease", "a worker gets no new work before its attempts are given up"),
    below("beat.busy", "beat.suspect_after", "a worker that beats in time is not suspect"),
    below("beat.idle", "beat.stale_after", "a worker that beats in time is not offline"),
    below("beat.busy", "stuck_after", "progress comes with the beats"),
    below("order_grace", "lease", "the lease would end before the grace does"),
    below("plane_stall_max", "lease", "an attempt is not given up because the plane stood still"),
    at_most("retry.base", "retry.max", "the first wait is the shortest"),
    at_most("block.cooldown", "block.cooldown_max", "the first block is the shortest"),
    at_most("poison_after", "infra_failures_max", "a job would end before it could be found to be poison"),
    at_most("scaling.machines_min", "scaling.machines_max", "there is no number between them otherwise"),
    at_most("limits.streams_max", "limits.connections_max", "each stream holds a connection"),
];

pub(super) fn check(resolved: &Resolved) -> Result<(), ConfigError> {
    match RULES.iter().find(|rule| !rule.holds(resolved)) {
        Some(rule) => Err(ConfigError::Conflict(rule.complaint(resolved))),
        None => Ok(()),
    }
}

impl Rule {
    fn holds(&self, resolved: &Resolved) -> bool {
        let low = amount(self.low, resolved) * u128::from(self.times);
        let high = amount(self.high, resolved);
        low < high || self.may_equal && low == high
    }

    /// `` `beat.busy` must be less than half of `lease` ``.
    pub(super) fn sentence(&self) -> String {
        let relation = match (self.may_equal, self.times) {
            (true, 1) => "at most",
            (false, 1) => "less than",
            (false, 2) => "less than half of",
            other => unreachable!("no rule has {other:?}"),
        };
        format!("`{}` must be {relation} `{}`", self.low, self.high)
    }

    fn complaint(&self, resolved: &Resolved) -> String {
        let told = |name| {
            let key = Key::named(name).expect("rules are about keys of the table");
            format!("`{name}` is {} ({})", key.shown(resolved), resolved.origin(name))
        };
        format!(
            "{}: {}. {} and {}; lower the one or raise the other",
            self.sentence(),
            self.because,
            told(self.low),
            told(self.high)
        )
    }
}

/// Durations in nanoseconds, numbers as they are.
fn amount(name: &str, resolved: &Resolved) -> u128 {
    match Key::named(name).expect("rules are about keys of the table").read(resolved) {
        Value::Duration(duration) => duration.as_nanos(),
        Value::Number(number) => u128::from(number),
        other => unreachable!("rules compare durations or numbers, not {other:?}"),
    }
}
