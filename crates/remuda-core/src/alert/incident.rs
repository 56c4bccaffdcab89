//! One incident: a condition of a rule that holds for a subject, from its first message to its recovery, with the messages
//! that were not delivered yet.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::value::to_raw_value;

use super::{AlertCondition, AlertReading, AlertRule};
use crate::document::{Collection, Document};
use crate::supervise::{Backoff, Budget, BudgetVerdict};
use crate::time::{Timestamp, humanize};

/// Where messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AlertChannel {
    Webhook,
    /// A webhook that accepts what Slack's accept.
    Slack,
    Command,
    Log,
}

impl AlertChannel {
    pub fn as_str(self) -> &'static str {
        match self {
            AlertChannel::Webhook => "webhook",
            AlertChannel::Slack => "slack",
            AlertChannel::Command => "command",
            AlertChannel::Log => "log",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoticeKind {
    Raised,
    /// It is still so.
    Reminder,
    Recovered,
    /// An operator tries whether messages arrive.
    Test,
}

impl NoticeKind {
    pub fn as_str(self) -> &'static str {
        match self {
            NoticeKind::Raised => "raised",
            NoticeKind::Reminder => "reminder",
            NoticeKind::Recovered => "recovered",
            NoticeKind::Test => "test",
        }
    }
}

/// A message for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AlertNotice {
    /// The same for every message of one incident.
    pub incident: String,
    pub alert: String,
    pub condition: AlertCondition,
    pub state: NoticeKind,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub subject: String,
    pub text: String,
    pub raised_at: Timestamp,
    pub at: Timestamp,
}

/// A message and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertDelivery {
    pub channel: AlertChannel,
    pub notice: AlertNotice,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Incident {
    pub rule: String,
    pub condition: AlertCondition,
    pub subject: String,
    pub text: String,
    pub raised_at: Timestamp,
    pub recovered_at: Option<Timestamp>,
    /// Since when the condition does not hold. Not stored: a new plane looks for itself.
    #[serde(skip)]
    gone_since: Option<Timestamp>,
    reminders: Budget,
    remind_at: Timestamp,
    queue: Vec<QueuedNotice>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct QueuedNotice {
    channel: AlertChannel,
    kind: NoticeKind,
    at: Timestamp,
    text: String,
    tries: Budget,
    due_at: Timestamp,
    /// Not stored: what was under way when the plane died is sent again.
    #[serde(skip)]
    is_under_way: bool,
}

/// Reminders of one incident. With the default of 4 h they end after two weeks: by then it is no news.
const REMINDERS_MAX: u32 = 15;
const REPEAT_MAX: Duration = Duration::from_secs(86_400);
/// Between tries to deliver a message.
const RETRY: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(600));
/// About a day of tries.
const TRIES_MAX: u32 = 150;

impl Incident {
    pub(super) fn raise(now: Timestamp, rule: &AlertRule, reading: &AlertReading) -> Incident {
        let mut incident = Incident {
            rule: rule.name.clone(),
            condition: rule.when,
            subject: reading.subject.clone(),
            text: reading.text.clone(),
            raised_at: now,
            recovered_at: None,
            gone_since: None,
            reminders: Budget::new(REMINDERS_MAX),
            remind_at: now.plus(rule.repeat),
            queue: Vec::new(),
        };
        incident.tell(now, rule, NoticeKind::Raised);
        incident
    }

    /// Unique, and the same for every message of it.
    pub fn id(&self) -> String {
        format!("{}/{}/{}", self.rule, self.subject, self.raised_at.as_millis())
    }

    pub fn is_firing(&self) -> bool {
        self.recovered_at.is_none()
    }

    /// Nothing is left to do for it.
    pub(super) fn is_settled(&self) -> bool {
        !self.is_firing() && self.queue.is_empty()
    }

    /// Messages that were not delivered yet.
    pub fn undelivered(&self) -> usize {
        self.queue.len()
    }

    /// The condition still holds. True if that changed something worth storing.
    pub(super) fn holds(&mut self, now: Timestamp, rule: &AlertRule, text: &str) -> bool {
        (self.gone_since, self.text) = (None, text.to_owned());
        if now < self.remind_at {
            return false;
        }
        let BudgetVerdict::Apply(reminder) = self.reminders.spend() else { return false };
        self.remind_at = now.plus(Backoff::new(rule.repeat, REPEAT_MAX.max(rule.repeat)).delay(reminder));
        self.tell(now, rule, NoticeKind::Reminder);
        true
    }

    /// The condition does not hold. True if the incident is over.
    pub(super) fn is_gone(&mut self, now: Timestamp, rule: &AlertRule) -> bool {
        let since = *self.gone_since.get_or_insert(now);
        if now.since(since) < rule.recover_after {
            return false;
        }
        self.recovered_at = Some(now);
        self.tell(now, rule, NoticeKind::Recovered);
        true
    }

    /// Queues a message on every channel. A reminder is left out where an earlier message still waits.
    fn tell(&mut self, now: Timestamp, rule: &AlertRule, kind: NoticeKind) {
        for channel in &rule.channels {
            let is_waiting = self.queue.iter().any(|queued| queued.channel == *channel);
            if kind == NoticeKind::Reminder && is_waiting {
                continue;
            }
            self.queue.push(QueuedNotice {
                channel: *channel,
                kind,
                at: now,
                text: self.text.clone(),
                tries: Budget::new(TRIES_MAX),
                due_at: now,
                is_under_way: false,
            });
        }
    }

    pub(super) fn sending(&self) -> usize {
        self.queue.iter().filter(|queued| queued.is_under_way).count()
    }

    /// The first message of each channel, if it is due: a recovery never overtakes the alert.
    pub(super) fn take_due(&mut self, now: Timestamp, places: usize) -> Vec<AlertDelivery> {
        let mut seen = Vec::new();
        let mut due = Vec::new();
        for index in 0..self.queue.len() {
            let queued = &mut self.queue[index];
            let is_first = !seen.contains(&queued.channel);
            seen.push(queued.channel);
            if is_first && !queued.is_under_way && queued.due_at <= now && due.len() < places {
                queued.is_under_way = true;
                due.push(index);
            }
        }
        due.into_iter().map(|index| self.delivery(&self.queue[index])).collect()
    }

    /// How a try ended. Returns the message if it is given up.
    pub(super) fn sent(
        &mut self,
        now: Timestamp,
        channel: AlertChannel,
        is_accepted: bool,
    ) -> Option<AlertDelivery> {
        let is_meant = |queued: &QueuedNotice| queued.channel == channel && queued.is_under_way;
        let index = self.queue.iter().position(is_meant)?;
        if is_accepted {
            self.queue.remove(index);
            return None;
        }
        let queued = &mut self.queue[index];
        queued.is_under_way = false;
        match queued.tries.spend() {
            BudgetVerdict::Apply(failure) => {
                queued.due_at = now.plus(RETRY.delay(failure - 1));
                None
            }
            BudgetVerdict::Escalate => {
                let lost = self.queue.remove(index);
                Some(self.delivery(&lost))
            }
        }
    }

    fn delivery(&self, queued: &QueuedNotice) -> AlertDelivery {
        let notice = AlertNotice {
            incident: self.id(),
            alert: self.rule.clone(),
            condition: self.condition,
            state: queued.kind,
            subject: self.subject.clone(),
            text: queued.text.clone(),
            raised_at: self.raised_at,
            at: queued.at,
        };
        AlertDelivery { channel: queued.channel, notice }
    }

    pub(super) fn document(&self) -> Arc<Document> {
        Arc::new(Document {
            collection: Collection::Alert,
            id: self.id(),
            tenant: None,
            index_key: self.rule.clone(),
            expires_at: None,
            body: to_raw_value(self).expect("an incident is valid JSON").into(),
        })
    }

    pub(super) fn restore(document: &Document) -> Option<Incident> {
        serde_json::from_str(document.body.get()).ok()
    }
}

impl AlertNotice {
    /// A message by which an operator tries a rule.
    pub fn test(rule: &AlertRule, now: Timestamp) -> AlertNotice {
        AlertNotice {
            incident: format!("{}/test/{}", rule.name, now.as_millis()),
            alert: rule.name.clone(),
            condition: rule.when,
            state: NoticeKind::Test,
            subject: String::new(),
            text: format!("this is a test of the alert {}; nothing is wrong", rule.name),
            raised_at: now,
            at: now,
        }
    }

    /// One line for people.
    pub fn sentence(&self) -> String {
        let AlertNotice { alert, text, .. } = self;
        let lasted = humanize(self.at.since(self.raised_at));
        match self.state {
            NoticeKind::Raised => format!("ALERT {alert}: {text}"),
            NoticeKind::Reminder => format!("STILL {alert} (for {lasted}): {text}"),
            NoticeKind::Recovered => format!("RECOVERED {alert} (after {lasted}); it was: {text}"),
            NoticeKind::Test => format!("TEST {alert}: {text}"),
        }
    }
}
