//! Records of a plane that ran an hour, or fifty years, ahead.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::fleet::{Fleet, SpentDay};
use crate::money::Money;
use crate::scale::ScalingDirection;
use crate::time::DAY;

const TO: u64 = 1_795_000_000_000;
const FROM: u64 = TO + 50 * 365 * 86_400_000;
const BY: SetBack = SetBack { from: Timestamp::from_millis(FROM), to: Timestamp::from_millis(TO) };

fn set_back(mut record: Value) -> Value {
    BY.apply_to_json(&mut record);
    record
}

/// Faults: K1, C21.
#[test]
fn past_times_move_together_and_future_ones_keep_their_distance() {
    let job = json!({
        "accepted_at": FROM - 90_000, "deadline": FROM + 60_000,
        "state": { "state": "queued", "not_before": FROM + 5000 },
        "attempts": [{ "started_at": FROM - 80_000, "ended_at": FROM - 30_000 }],
        "metadata": { "until": FROM }, "changed_at": FROM - 30_000, "priority": 3,
    });
    assert_eq!(
        set_back(job),
        json!({
            "accepted_at": TO - 60_000, "deadline": TO + 60_000,
            "state": { "state": "queued", "not_before": TO + 5000 },
            "attempts": [{ "started_at": TO - 50_000, "ended_at": TO }],
            "metadata": { "until": FROM }, "changed_at": TO, "priority": 3,
        })
    );
}

#[test]
fn record_from_before_the_wrong_clock_and_an_endless_time_stay() {
    let block =
        json!({ "until": TO - 5, "since": 7, "trial_at": Timestamp::NEVER, "stale_at": [TO - 9, TO] });
    assert_eq!(set_back(block.clone()), block);
    let again = set_back(json!({ "until": FROM + 1000, "since": FROM }));
    assert_eq!(again, json!({ "until": TO + 1000, "since": TO }));
}

/// Faults: K1.
#[test]
fn budget_of_the_day_is_neither_reset_nor_charged_twice() {
    let mut fleet = Fleet::default();
    let price = Money::from_micros(1_000_000);
    fleet.record_cost(BY.from.minus(2 * DAY), BY.from, price);
    let (day, _) = day_of(BY.from);
    fleet.spent_day = Some(SpentDay { day, max: price });
    fleet.heading.record(BY.from, ScalingDirection::Up);
    let (spent, before) = (fleet.spent.clone(), fleet.spent.values().copied().sum::<Money>());
    BY.apply(&mut fleet).unwrap();
    let (today, _) = day_of(BY.to);
    assert_eq!(fleet.spent[&today], spent[&day], "what was spent today");
    assert_eq!(fleet.spent.values().copied().sum::<Money>(), before);
    assert!(fleet.spent.keys().all(|day| *day <= today), "{:?}", fleet.spent);
    assert!(fleet.spent_hours.keys().all(|hour| hour / 24 <= today));
    assert!(fleet.has_spent(today, price));
    assert_eq!(fleet.heading.allowed_at(ScalingDirection::Down, DAY), BY.to.plus(DAY));
}

#[test]
fn what_was_spent_on_both_sides_of_midnight_is_added_up() {
    let midnight = Timestamp::from_millis(TO / 86_400_000 * 86_400_000);
    let by = SetBack {
        from: midnight.plus(Duration::from_secs(1800)),
        to: midnight.minus(Duration::from_secs(1800)),
    };
    let mut fleet = Fleet::default();
    fleet.record_cost(by.to, by.from, Money::from_micros(1_000_000));
    by.apply(&mut fleet).unwrap();
    let spent: Vec<_> = fleet.spent.into_iter().collect();
    assert_eq!(spent, [(day_of(by.to).0, Money::from_micros(1_000_000))]);
}

#[test]
fn document_of_a_client_keeps_its_content_and_expires_in_time() {
    let body = format!("{{\"created_at\":{FROM}}}");
    let document = |collection| Document {
        collection,
        id: "x".to_owned(),
        tenant: None,
        index_key: String::new(),
        expires_at: Some(BY.from.plus(DAY)),
        body: Arc::from(serde_json::value::RawValue::from_string(body.clone()).unwrap()),
    };
    let kept = BY.apply_to_document(&document(Collection::Comfyui)).unwrap();
    assert_eq!((kept.expires_at, kept.body.get()), (Some(BY.to.plus(DAY)), body.as_str()));
    let token = BY.apply_to_document(&document(Collection::Token)).unwrap();
    assert_eq!(token.body.get(), format!("{{\"created_at\":{TO}}}"));
}

/// Every field of a stored type that holds a time has a name by which it is found, so that a new one is not forgotten.
#[test]
fn every_stored_time_is_found_by_its_name() {
    let sources = [
        include_str!("../../record.rs"),
        include_str!("../../fleet.rs"),
        include_str!("../../rental.rs"),
        include_str!("../../rental/pod.rs"),
        include_str!("../../orphan.rs"),
        include_str!("../../reliability.rs"),
        include_str!("../../probation.rs"),
        include_str!("../../webhook.rs"),
        include_str!("../../brake/creation.rs"),
        include_str!("../../supervise/breaker.rs"),
    ];
    // Parameters and what is not stored under its name.
    let others = ["now", "from", "latest", "until", "Up", "Missed"];
    let mut names = 0;
    for line in sources.iter().flat_map(|source| source.lines()) {
        let Some((name, _)) = line
            .trim()
            .split_once(": ")
            .filter(|(_, kind)| ["Timestamp,", "Option<Timestamp>,", "Vec<Timestamp>,"].contains(kind))
        else {
            continue;
        };
        let name = name.rsplit(' ').next().unwrap_or(name);
        assert!(is_time(name) || others.contains(&name), "{name} of `{line}` is not known to be a time");
        names += 1;
    }
    assert!(names > 25, "{names} fields were found: the sources are written in another way now");
}
