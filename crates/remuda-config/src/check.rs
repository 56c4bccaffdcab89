//! Rules between two settings whose values are valid separately but contradict each other. `docs/configuration.md` lists
//! the rules with their reasons.

use super::value::Value;
use super::{ConfigError, ResolvedConfig, table};

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
    Rule { times: 2, ..below("beat.busy", "lease", "one lost beat must not end the attempt") },
    below(
        "beat.suspect_after",
        "lease",
        "a worker must stop getting new work before its attempts are given up",
    ),
    below("beat.busy", "beat.suspect_after", "a worker that beats on time must not become suspect"),
    below("beat.idle", "beat.stale_after", "a worker that beats on time must not become offline"),
    below("beat.busy", "stuck_after", "progress is reported with the beats"),
    below("order_grace", "lease", "otherwise the lease ends before the grace period"),
    below("plane_stall_max", "lease", "an attempt must not be given up because the plane stalled"),
    at_most("retry.base", "retry.max", "the first delay is the shortest"),
    at_most("block.cooldown", "block.cooldown_max", "the first block is the shortest"),
    at_most(
        "poison_after",
        "infra_failures_max",
        "otherwise a job is quarantined before it can be recognized as poison",
    ),
    at_most("scaling.machines_min", "scaling.machines_max", "otherwise no number of machines satisfies both"),
    at_most("limits.streams_max", "limits.connections_max", "each stream holds a connection"),
];

pub(super) fn check(resolved: &ResolvedConfig) -> Result<(), ConfigError> {
    match RULES.iter().find(|rule| !rule.holds(resolved)) {
        Some(rule) => Err(ConfigError::Conflict(rule.error_message(resolved))),
        None => Ok(()),
    }
}

impl Rule {
    fn holds(&self, resolved: &ResolvedConfig) -> bool {
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

    fn error_message(&self, resolved: &ResolvedConfig) -> String {
        let describe = |name| {
            let key = table::find(name).expect("rules name settings of the table");
            format!("`{name}` is {} ({})", key.display(resolved), resolved.origin(name))
        };
        format!(
            "{}: {}. {} and {}; lower the first or raise the second",
            self.sentence(),
            self.because,
            describe(self.low),
            describe(self.high)
        )
    }
}

/// Durations in nanoseconds, numbers unchanged.
fn amount(name: &str, resolved: &ResolvedConfig) -> u128 {
    match table::find(name).expect("rules name settings of the table").read(resolved) {
        Value::Duration(duration) => duration.as_nanos(),
        Value::Number(number) => u128::from(number),
        other => unreachable!("rules compare durations or numbers, not {other:?}"),
    }
}
