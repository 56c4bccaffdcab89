//! Reads `[[alert]]` sections.

use std::collections::BTreeSet;

use remuda_core::alert::AlertLimit;

use super::alert::AlertConfig;
use super::file::Section;
use super::key::Key;
use super::table::alerts::KEYS;
use super::{ConfigError, suggest};

/// Rules of one plane: each is evaluated every few seconds.
const ALERTS_MAX: usize = 64;

impl AlertConfig {
    pub(super) fn read(section: &Section) -> Result<AlertConfig, ConfigError> {
        let mut alert = AlertConfig::new(section.origin());
        for pair in section.pairs() {
            let key = key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(key, pair)?;
            entry.key.write(&mut alert, entry.value);
            alert.origins.insert(entry.key.name, entry.origin);
        }
        alert.rule.channels = alert.channels();
        match alert.problem() {
            Some(problem) => Err(ConfigError::Conflict(problem)),
            None => Ok(alert),
        }
    }

    /// What contradicts itself, and what to do about it.
    fn problem(&self) -> Option<String> {
        let AlertConfig { rule, declared_at, .. } = self;
        let name = &rule.name;
        if name.is_empty() {
            return Some(format!("an alert ({declared_at}) has no `name`: give it one"));
        }
        if !self.origins.contains_key("when") {
            return Some(format!("alert {name} ({declared_at}) has no `when`: name a condition"));
        }
        let (when, limit) = (rule.when.as_str(), rule.when.limit());
        if rule.time_limit.is_some() && !matches!(limit, AlertLimit::Time(_)) {
            return Some(format!("alert {name} ({declared_at}): `{when}` has no `time_limit`; remove it"));
        }
        if rule.dollar_limit.is_some() && limit != AlertLimit::Dollars {
            return Some(format!("alert {name} ({declared_at}): `{when}` has no `dollar_limit`; remove it"));
        }
        if rule.dollar_limit.is_none() && limit == AlertLimit::Dollars {
            return Some(format!(
                "alert {name} ({declared_at}): `{when}` needs a `dollar_limit`, such as 20"
            ));
        }
        let twice = |one: bool, other: bool, what: &str| {
            (one && other).then(|| format!("alert {name} ({declared_at}) has both {what}: keep one"))
        };
        twice(self.webhook.is_some(), self.webhook_file.is_some(), "`webhook` and `webhook_file`")
            .or_else(|| twice(self.slack.is_some(), self.slack_file.is_some(), "`slack` and `slack_file`"))
            .or_else(|| {
                let hint = "set `log`, `webhook`, `slack` or `command`";
                rule.channels.is_empty().then(|| format!("alert {name} ({declared_at}) goes nowhere: {hint}"))
            })
    }
}

/// Names must be unique: `remuda alerts` and messages refer to them.
pub(super) fn check_names(alerts: &[AlertConfig]) -> Result<(), ConfigError> {
    if alerts.len() > ALERTS_MAX {
        return Err(ConfigError::Conflict(format!(
            "{} alerts are too many: at most {ALERTS_MAX}",
            alerts.len()
        )));
    }
    let mut names = BTreeSet::new();
    match alerts.iter().find(|alert| !names.insert(&alert.rule.name)) {
        Some(AlertConfig { rule, declared_at, .. }) => Err(ConfigError::Conflict(format!(
            "alert {} ({declared_at}) has the name of another one: choose a different name",
            rule.name
        ))),
        None => Ok(()),
    }
}

fn key(name: &str) -> Option<&'static Key<AlertConfig>> {
    KEYS.iter().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    let names = || KEYS.iter().map(|key| key.name);
    match suggest::closest_name(written, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("settings of an alert are {}", names().collect::<Vec<_>>().join(", ")),
    }
}
