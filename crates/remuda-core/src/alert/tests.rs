//! Stories of alerts: (second, what is observed or answered), and the messages that leave.

use super::*;
use crate::document::Collection;
use crate::id::JobId;

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_millis(seconds * 1000)
}

fn rule(name: &str, hold: u64) -> AlertRule {
    let seconds = Duration::from_secs;
    AlertRule {
        name: name.to_owned(),
        when: AlertCondition::TaskDown,
        time_limit: None,
        dollar_limit: None,
        hold: Some(seconds(hold)),
        recover_after: seconds(60),
        repeat: seconds(3600),
        channels: vec![AlertChannel::Webhook],
    }
}

fn reading(subject: &str) -> AlertReading {
    AlertReading { rule: "down".to_owned(), subject: subject.to_owned(), text: format!("{subject} is down") }
}

enum Do {
    /// The condition holds for these.
    See(&'static [&'static str]),
    /// As `See`, and the receiver refuses what is sent.
    SeeRefused(&'static [&'static str]),
    /// The plane dies and another one starts from the store.
    Restart,
}
use Do::{Restart, See, SeeRefused};

/// Runs the alerts with a store of documents, as the server does: stored first, then sent.
struct Story {
    alerts: Alerts,
    stored: BTreeMap<String, Arc<Document>>,
    messages: Vec<(u64, String)>,
    given_up: usize,
}

impl Story {
    fn new(rule: AlertRule) -> Story {
        let mut alerts = Alerts::default();
        alerts.step(at(0), AlertEvent::Configure(vec![rule]));
        Story { alerts, stored: BTreeMap::new(), messages: Vec::new(), given_up: 0 }
    }

    fn step(&mut self, second: u64, event: AlertEvent, accepts: bool) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let step = self.alerts.step(at(second), event);
            self.stored.extend(step.store.into_iter().map(|document| (document.id.clone(), document)));
            step.delete.iter().for_each(|id| drop(self.stored.remove(id)));
            self.given_up += step.given_up.len();
            for AlertDelivery { channel, notice } in step.send {
                if accepts {
                    self.messages.push((second, format!("{} {}", notice.state.as_str(), notice.subject)));
                }
                events.push(AlertEvent::Sent { incident: notice.incident, channel, is_accepted: accepts });
            }
        }
    }

    fn observe(&mut self, second: u64, subjects: &[&str], accepts: bool) {
        let readings = subjects.iter().map(|subject| reading(subject)).collect();
        self.step(second, AlertEvent::Observe(readings), accepts);
    }

    fn restart(&mut self, rule: AlertRule) {
        let documents: Vec<_> = self.stored.values().cloned().collect();
        self.alerts = Alerts::restore(&documents);
        self.step(0, AlertEvent::Configure(vec![rule]), true);
    }
}

fn check(hold: u64, story: &[(u64, Do)], expected: &[(u64, &str)]) -> Story {
    let mut it = Story::new(rule("down", hold));
    for (second, what) in story {
        match what {
            See(subjects) => it.observe(*second, subjects, true),
            SeeRefused(subjects) => it.observe(*second, subjects, false),
            Restart => it.restart(rule("down", hold)),
        }
    }
    let messages: Vec<_> = it.messages.iter().map(|(second, text)| (*second, text.as_str())).collect();
    assert_eq!(messages, expected);
    it
}

#[test]
fn incident_is_one_message_and_one_recovery() {
    let story =
        [(0, See(&["a"])), (10, See(&["a"])), (20, See(&[])), (79, See(&[])), (80, See(&[])), (90, See(&[]))];
    let end = check(0, &story, &[(0, "raised a"), (80, "recovered a")]);
    assert!(end.stored.is_empty(), "nothing is left of it");
}

#[test]
fn condition_must_hold_for_a_while() {
    let story = [(0, See(&["a"])), (29, See(&["a"])), (30, See(&[])), (40, See(&["a"])), (70, See(&["a"]))];
    check(30, &story, &[(70, "raised a")]);
}

#[test]
fn flapping_is_one_incident() {
    let story = [
        (0, See(&["a"])),
        (30, See(&[])),
        (60, See(&["a"])),
        (90, See(&[])),
        (120, See(&["a"])),
        (130, See(&[])),
        (190, See(&[])),
    ];
    check(0, &story, &[(0, "raised a"), (190, "recovered a")]);
}

#[test]
fn each_subject_has_its_own_incident() {
    let story = [(0, See(&["a"])), (5, See(&["a", "b"])), (10, See(&["b"])), (70, See(&["b"]))];
    check(0, &story, &[(0, "raised a"), (5, "raised b"), (70, "recovered a")]);
}

#[test]
fn reminders_come_ever_more_rarely_and_end() {
    let mut story = Story::new(rule("down", 0));
    (0..40 * 24).for_each(|hour| story.observe(hour * 3600, &["a"], true));
    let hours: Vec<_> = story.messages.iter().map(|(second, _)| second / 3600).collect();
    assert_eq!(hours[..6], [0, 1, 3, 7, 15, 31], "after 1, 2, 4, 8, 16 hours");
    assert_eq!(hours[6], 55, "and then once a day");
    assert_eq!(hours.len(), 16, "one message and fifteen reminders");
}

#[test]
fn restart_sends_nothing_again_and_the_recovery_once() {
    let story = [
        (0, See(&["a"])),
        (5, Restart),
        (6, See(&["a"])),
        (10, See(&[])),
        (20, Restart),
        (21, See(&[])),
        (81, See(&[])),
        (82, Restart),
        (83, See(&[])),
    ];
    check(0, &story, &[(0, "raised a"), (81, "recovered a")]);
}

#[test]
fn message_that_was_not_accepted_is_sent_again_also_by_the_next_plane() {
    let story = [(0, SeeRefused(&["a"])), (3, See(&["a"])), (4, Restart), (5, See(&["a"])), (9, See(&["a"]))];
    check(0, &story, &[(5, "raised a")]);
}

#[test]
fn recovery_does_not_overtake_the_alert() {
    let story = [(0, SeeRefused(&["a"])), (1, See(&[])), (61, See(&[]))];
    check(0, &story, &[(61, "raised a"), (61, "recovered a")]);
}

#[test]
fn message_that_is_never_accepted_is_given_up_and_the_incident_ends() {
    let mut story = Story::new(rule("down", 0));
    story.observe(0, &["a"], false);
    (1..40_000).for_each(|tick| story.observe(tick * 10, &[], false));
    assert_eq!(story.given_up, 2, "the alert and its recovery");
    assert!(story.stored.is_empty() && story.alerts.incidents().next().is_none());
}

#[test]
fn rule_that_is_gone_takes_its_incidents_along() {
    let mut story = Story::new(rule("down", 0));
    story.observe(0, &["a"], true);
    story.step(1, AlertEvent::Configure(vec![rule("other", 0)]), true);
    story.observe(100, &[], true);
    assert_eq!(story.messages.len(), 1);
    assert!(story.stored.is_empty());
}

#[test]
fn incident_is_stored_before_its_message_leaves() {
    let mut alerts = Alerts::default();
    alerts.step(at(0), AlertEvent::Configure(vec![rule("down", 0)]));
    let step = alerts.step(at(0), AlertEvent::Observe(vec![reading("a")]));
    assert_eq!((step.store.len(), step.send.len()), (1, 1));
    assert_eq!(
        (step.store[0].collection, &step.store[0].id),
        (Collection::Alert, &step.send[0].notice.incident)
    );
}

#[test]
fn messages_under_way_are_bounded() {
    let mut alerts = Alerts::default();
    alerts.step(at(0), AlertEvent::Configure(vec![rule("down", 0)]));
    let many: Vec<_> = (0..40).map(|number| reading(&format!("task-{number:02}"))).collect();
    let step = alerts.step(at(0), AlertEvent::Observe(many.clone()));
    assert_eq!(step.send.len(), SENDS_MAX);
    let sent = &step.send[0];
    let sent =
        AlertEvent::Sent { incident: sent.notice.incident.clone(), channel: sent.channel, is_accepted: true };
    assert_eq!(alerts.step(at(1), sent).send.len(), 1, "a place is free again");
}

mod conditions {
    use super::*;

    fn holds(when: AlertCondition, change: impl FnOnce(&mut AlertRule), inputs: &AlertInputs) -> Vec<String> {
        let mut rule = AlertRule { when, ..rule("r", 0) };
        change(&mut rule);
        evaluate([&rule], inputs).into_iter().map(|reading| reading.text).collect()
    }

    fn inputs(change: impl FnOnce(&mut AlertInputs)) -> AlertInputs {
        let mut inputs = AlertInputs { now: at(1_000_000), ..AlertInputs::default() };
        change(&mut inputs);
        inputs
    }

    #[test]
    fn nothing_holds_for_a_healthy_plane() {
        let healthy = inputs(|it| (it.ready_workers, it.ready_jobs) = (3, 5));
        for when in AlertCondition::ALL {
            assert!(holds(when, |_| (), &healthy).is_empty(), "{when:?}");
        }
    }

    #[test]
    fn each_condition_holds_beyond_its_limit() {
        let minutes = |count: u64| Duration::from_secs(count * 60);
        let waits = |waits| inputs(|it| it.oldest_waiting = Some((JobId::from_u128(7), waits)));
        assert!(holds(AlertCondition::OldestWaiting, |_| (), &waits(minutes(10))).is_empty());
        assert_eq!(holds(AlertCondition::OldestWaiting, |_| (), &waits(minutes(11))).len(), 1);
        let sooner = |rule: &mut AlertRule| rule.time_limit = Some(minutes(1));
        assert_eq!(holds(AlertCondition::OldestWaiting, sooner, &waits(minutes(2))).len(), 1);
        let spent = inputs(|it| {
            (it.hourly, it.today) = (Money::from_micros(5_000_000), Money::from_micros(90_000_000))
        });
        let limit = |dollars: u64| {
            move |rule: &mut AlertRule| rule.dollar_limit = Some(Money::from_micros(dollars * 1_000_000))
        };
        assert_eq!(holds(AlertCondition::SpendHourly, limit(4), &spent).len(), 1);
        assert!(
            holds(AlertCondition::SpendHourly, limit(5), &spent).is_empty(),
            "the limit itself is allowed"
        );
        assert_eq!(holds(AlertCondition::SpendDaily, limit(89), &spent).len(), 1);
        let slow = inputs(|it| it.slowest_commit = Duration::from_secs(3));
        assert_eq!(holds(AlertCondition::StoreSlow, |_| (), &slow).len(), 1);
        let starved = inputs(|it| it.ready_jobs = 4);
        assert!(holds(AlertCondition::NoCapacity, |_| (), &starved)[0].starts_with("4 jobs wait"));
        let days = |count: u64| {
            inputs(|it| it.certificate_ends_at = Some(it.now.plus(Duration::from_secs(count * 86_400))))
        };
        assert!(holds(AlertCondition::CertificateEnds, |_| (), &days(15)).is_empty());
        assert_eq!(holds(AlertCondition::CertificateEnds, |_| (), &days(13)).len(), 1);
    }

    #[test]
    fn outage_of_a_thousand_workers_has_bounded_subjects() {
        let many =
            inputs(|it| it.unreliable_workers = (0..1000).map(|number| format!("w{number:04}")).collect());
        let found = holds(AlertCondition::WorkerUnreliable, |_| (), &many);
        assert_eq!(found.len(), 21);
        assert_eq!(found.last().unwrap(), "and 980 more of the same kind");
    }
}
