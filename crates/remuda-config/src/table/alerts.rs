//! Alerts: how often they are evaluated, under `[alerts]`, and the keys under `[[alert]]`.

use super::super::alert::AlertConfig;
use super::super::key::{Key, alert_slot, slot};
use super::super::value::Kind::{Choice, File, Money, Name, OptionalDuration, SecretUrl, Switch, Text};
use super::{DAY, HOUR, MILLISECOND, SECOND, TICK, YEARS, duration};

/// Under `[alerts]`.
pub(super) const ALERTS: &[Key] = &[Key::new(
    "alerts.check_every",
    slot!(serve.alerts_check_every),
    duration(TICK, HOUR),
    "How often the conditions of alerts are looked at.",
)];

/// Under `[[alert]]`.
pub(crate) const KEYS: &[Key<AlertConfig>] = &[
    Key::new("name", alert_slot!(rule.name), Name, "Name of the alert; required."),
    Key::new(
        "when",
        alert_slot!(rule.when),
        Choice(&[
            "worker_unreliable",
            "machine_unreliable",
            "shape_failing",
            "oldest_waiting",
            "no_capacity",
            "brake",
            "spend_hourly",
            "spend_daily",
            "store_slow",
            "store_full",
            "certificate_ends",
            "task_down",
        ]),
        "The condition; required. See [alerts.md](alerts.md).",
    ),
    Key::new(
        "time_limit",
        alert_slot!(rule.time_limit),
        OptionalDuration { min: MILLISECOND, max: YEARS },
        "For `oldest_waiting` (`10m`) and `store_slow` (`2s`): longer than this; for `certificate_ends` (`14d`): sooner than this.",
    ),
    Key::new(
        "dollar_limit",
        alert_slot!(rule.dollar_limit),
        Money,
        "For `spend_hourly` and `spend_daily`: more than this; required there.",
    ),
    Key::new(
        "for",
        alert_slot!(rule.hold),
        OptionalDuration { min: std::time::Duration::ZERO, max: DAY },
        "How long the condition must hold; by default `2m` for `no_capacity`, and otherwise no time.",
    ),
    Key::new(
        "recover_after",
        alert_slot!(rule.recover_after),
        duration(std::time::Duration::ZERO, DAY),
        "How long the condition must be gone before the incident is over.",
    ),
    Key::new(
        "repeat",
        alert_slot!(rule.repeat),
        duration(SECOND, YEARS),
        "Time to the first reminder; each further one comes after twice as long, at most a day, 15 in all.",
    ),
    Key::new("webhook", alert_slot!(webhook), SecretUrl, "Address that gets each message as JSON."),
    Key::new(
        "webhook_file",
        alert_slot!(webhook_file),
        File,
        "File with that address, to keep it out of this file.",
    ),
    Key::new(
        "slack",
        alert_slot!(slack),
        SecretUrl,
        "Address of a Slack-compatible webhook (also Mattermost, Discord with `/slack`).",
    ),
    Key::new(
        "slack_file",
        alert_slot!(slack_file),
        File,
        "File with that address, to keep it out of this file.",
    ),
    Key::new(
        "command",
        alert_slot!(command),
        Text,
        "Command to run, by `sh -c`, for each message: the text is its standard input, the rest in `REMUDA_ALERT_…` variables.",
    ),
    Key::new("log", alert_slot!(log), Switch, "Write each message to the plane's log."),
];
