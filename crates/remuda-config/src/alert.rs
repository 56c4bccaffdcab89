//! Alerts: what the core decides by (`rule`), and where the messages go.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use remuda_core::alert::{AlertChannel, AlertCondition, AlertRule};
use remuda_net::secret::Secret;

use super::ValueOrigin;

/// One `[[alert]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertConfig {
    pub rule: AlertRule,
    /// Addresses are secrets: who knows one can post there.
    pub webhook: Option<Secret>,
    pub webhook_file: Option<PathBuf>,
    pub slack: Option<Secret>,
    pub slack_file: Option<PathBuf>,
    /// Run by `sh -c` for each message.
    pub command: Option<String>,
    pub log: bool,
    /// Where the section begins.
    pub(super) declared_at: ValueOrigin,
    /// Origins of the settings that the section has.
    pub(super) origins: BTreeMap<&'static str, ValueOrigin>,
}

/// Longer than a restart of most things, so that a restart is one incident.
const RECOVER_AFTER: Duration = Duration::from_secs(60);
/// Twice in a working day.
const REPEAT: Duration = Duration::from_secs(4 * 3600);

impl AlertConfig {
    pub(super) fn new(declared_at: ValueOrigin) -> AlertConfig {
        AlertConfig {
            rule: AlertRule {
                name: String::new(),
                when: AlertCondition::TaskDown,
                time_limit: None,
                dollar_limit: None,
                hold: None,
                recover_after: RECOVER_AFTER,
                repeat: REPEAT,
                channels: Vec::new(),
            },
            webhook: None,
            webhook_file: None,
            slack: None,
            slack_file: None,
            command: None,
            log: true,
            declared_at,
            origins: BTreeMap::new(),
        }
    }

    /// The channels that the section names.
    pub(super) fn channels(&self) -> Vec<AlertChannel> {
        let named = [
            (self.webhook.is_some() || self.webhook_file.is_some(), AlertChannel::Webhook),
            (self.slack.is_some() || self.slack_file.is_some(), AlertChannel::Slack),
            (self.command.is_some(), AlertChannel::Command),
            (self.log, AlertChannel::Log),
        ];
        named.into_iter().filter(|(is_named, _)| *is_named).map(|(_, channel)| channel).collect()
    }

    /// The address of the webhook or of Slack's, from the section or from its file.
    pub fn address(&self, channel: AlertChannel) -> anyhow::Result<Secret> {
        let (written, file) = match channel {
            AlertChannel::Webhook => (&self.webhook, &self.webhook_file),
            AlertChannel::Slack => (&self.slack, &self.slack_file),
            AlertChannel::Command | AlertChannel::Log => (&None, &None),
        };
        let alert = &self.rule.name;
        match (file, written) {
            (Some(path), _) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("alert {alert}: cannot read {}", path.display()))?;
                Ok(Secret::new(text.trim()))
            }
            (None, Some(address)) => Ok(address.clone()),
            (None, None) => anyhow::bail!("alert {alert} has no address for {}", channel.as_str()),
        }
    }

    pub(super) fn origin(&self, key: &str) -> ValueOrigin {
        self.origins.get(key).cloned().unwrap_or(ValueOrigin::Default)
    }
}
