//! Alerts to people: which one is raised, repeated and recovered when, and when a message is sent again. A rule names a
//! condition and where its messages go; `evaluate` says for which subjects the condition holds; this file says what
//! follows.
//!
//! ```text
//!          holds            for `hold`              does not hold for `recover_after`
//!  quiet ────────▶ pending ────────────▶ firing ─────────────────────────────────────▶ recovered ──▶ quiet
//!    ▲                │ does not hold     │  ▲                                             │
//!    └────────────────┘                   └──┘ reminder after `repeat`, 2·`repeat`, …       └ one message each way
//! ```
//!
//! One incident is one message and one recovery on each channel, however often the condition comes and goes within
//! `recover_after`. An incident is a document that is stored before its message is sent, so that a plane that dies in
//! between goes on where it was: what was delivered is not sent again. A message whose delivery was not stored yet is
//! repeated, with the same id.
//!
//! Rejected: an alert for each event. A worker that flaps sends a hundred of them, and an event says nothing about when it
//! is over.

mod condition;
mod evaluate;
mod incident;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

pub use self::condition::{AlertCondition, AlertLimit};
pub use self::evaluate::{AlertInputs, AlertReading, evaluate};
pub use self::incident::{AlertChannel, AlertDelivery, AlertNotice, Incident, NoticeKind};
use crate::document::Document;
use crate::money::Money;
use crate::time::Timestamp;

/// A `[[alert]]` of the configuration, without the addresses of its channels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertRule {
    pub name: String,
    pub when: AlertCondition,
    /// In place of the condition's own limit, if it has one.
    pub time_limit: Option<Duration>,
    pub dollar_limit: Option<Money>,
    /// How long the condition must hold; by default as long as the condition says.
    pub hold: Option<Duration>,
    /// How long it must not hold before the incident is over.
    pub recover_after: Duration,
    /// Time to the first reminder; each further one comes after twice as long.
    pub repeat: Duration,
    pub channels: Vec<AlertChannel>,
}

impl AlertRule {
    fn hold(&self) -> Duration {
        self.hold.unwrap_or_else(|| self.when.default_hold())
    }
}

/// Messages under way at once: a slow receiver must not collect connections.
const SENDS_MAX: usize = 16;

/// What happened.
#[derive(Clone, Debug)]
pub enum AlertEvent {
    /// The rules were read, for the first time or again.
    Configure(Vec<AlertRule>),
    /// The conditions that hold now.
    Observe(Vec<AlertReading>),
    /// A message was accepted, or not.
    Sent { incident: String, channel: AlertChannel, is_accepted: bool },
}

/// What follows. Documents are stored before anything is sent.
#[derive(Debug, Default)]
pub struct AlertStep {
    pub store: Vec<Arc<Document>>,
    /// Ids of documents that are not needed any more.
    pub delete: Vec<String>,
    pub send: Vec<AlertDelivery>,
    /// Messages that no receiver accepted in time; they are lost.
    pub given_up: Vec<AlertDelivery>,
}

#[derive(Clone, Debug, Default)]
pub struct Alerts {
    rules: BTreeMap<String, AlertRule>,
    /// Since when a condition holds that was not raised yet, by rule and subject.
    pending: BTreeMap<(String, String), Timestamp>,
    incidents: BTreeMap<String, Incident>,
}

impl Alerts {
    /// Continues with the stored incidents. A document that cannot be read is skipped.
    pub fn restore(documents: &[Arc<Document>]) -> Alerts {
        let incidents = documents.iter().filter_map(|document| Incident::restore(document));
        let incidents = incidents.map(|incident| (incident.id(), incident)).collect();
        Alerts { incidents, ..Alerts::default() }
    }

    pub fn step(&mut self, now: Timestamp, event: AlertEvent) -> AlertStep {
        let mut step = AlertStep::default();
        let changed = match event {
            AlertEvent::Configure(rules) => self.configure(rules, &mut step),
            AlertEvent::Observe(readings) => self.observe(now, &readings),
            AlertEvent::Sent { incident, channel, is_accepted } => {
                self.sent(now, incident, channel, is_accepted, &mut step)
            }
        };
        for id in changed {
            match self.incidents.get(&id) {
                Some(incident) if incident.is_settled() => {
                    self.incidents.remove(&id);
                    step.delete.push(id);
                }
                Some(incident) => step.store.push(incident.document()),
                None => {}
            }
        }
        self.take_due(now, &mut step);
        step
    }

    /// Incidents of rules that are gone are forgotten without a message.
    fn configure(&mut self, rules: Vec<AlertRule>, step: &mut AlertStep) -> BTreeSet<String> {
        self.rules = rules.into_iter().map(|rule| (rule.name.clone(), rule)).collect();
        let rules = &self.rules;
        self.pending.retain(|(rule, _), _| rules.contains_key(rule));
        self.incidents.retain(|id, incident| {
            let is_kept = rules.get(&incident.rule).is_some_and(|rule| rule.when == incident.condition);
            if !is_kept {
                step.delete.push(id.clone());
            }
            is_kept
        });
        BTreeSet::new()
    }

    /// Returns the incidents that have changed.
    fn observe(&mut self, now: Timestamp, readings: &[AlertReading]) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        let mut holding: BTreeMap<(String, String), &AlertReading> =
            readings.iter().map(|it| ((it.rule.clone(), it.subject.clone()), it)).collect();
        for (id, incident) in self.incidents.iter_mut().filter(|(_, incident)| incident.is_firing()) {
            let Some(rule) = self.rules.get(&incident.rule) else { continue };
            let reading = holding.remove(&(incident.rule.clone(), incident.subject.clone()));
            let has_changed = match reading {
                Some(reading) => incident.holds(now, rule, &reading.text),
                None => incident.is_gone(now, rule),
            };
            if has_changed {
                changed.insert(id.clone());
            }
        }
        self.pending.retain(|key, _| holding.contains_key(key));
        for (key, reading) in holding {
            let Some(rule) = self.rules.get(&key.0) else { continue };
            let since = *self.pending.entry(key.clone()).or_insert(now);
            if now.since(since) >= rule.hold() {
                self.pending.remove(&key);
                let incident = Incident::raise(now, rule, reading);
                changed.insert(incident.id());
                self.incidents.insert(incident.id(), incident);
            }
        }
        changed
    }

    fn sent(
        &mut self,
        now: Timestamp,
        id: String,
        channel: AlertChannel,
        is_accepted: bool,
        step: &mut AlertStep,
    ) -> BTreeSet<String> {
        let Some(incident) = self.incidents.get_mut(&id) else { return BTreeSet::new() };
        step.given_up.extend(incident.sent(now, channel, is_accepted));
        BTreeSet::from([id])
    }

    fn take_due(&mut self, now: Timestamp, step: &mut AlertStep) {
        let under_way: usize = self.incidents.values().map(Incident::sending).sum();
        let mut places = SENDS_MAX.saturating_sub(under_way);
        for incident in self.incidents.values_mut() {
            let due = incident.take_due(now, places);
            places -= due.len();
            step.send.extend(due);
        }
    }

    pub fn rules(&self) -> impl Iterator<Item = &AlertRule> {
        self.rules.values()
    }

    pub fn rule(&self, name: &str) -> Option<&AlertRule> {
        self.rules.get(name)
    }

    /// Open incidents, and closed ones whose last message was not delivered yet.
    pub fn incidents(&self) -> impl Iterator<Item = &Incident> {
        self.incidents.values()
    }

    /// Conditions that hold and were not raised yet, and since when.
    pub fn pending(&self) -> impl Iterator<Item = (&str, &str, Timestamp)> {
        self.pending.iter().map(|((rule, subject), since)| (rule.as_str(), subject.as_str(), *since))
    }
}
