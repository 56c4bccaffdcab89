//! One worker that sends more than it may: it is refused, and no other pays for it.

use serde_json::{Value, json};

use super::{Story, id};
use crate::id::{Attempt, Hash, Incarnation, JobId};
use crate::plane::{JoinProof, PlaneEvent};
use crate::refusal::Refusal;
use crate::wire::live::LiveReport;
use crate::wire::{Beat, HeldAttempt, JoinRequest};

fn held(count: u32) -> Vec<HeldAttempt> {
    let attempt = |n: u32| HeldAttempt {
        job: JobId::from_u128(u128::from(n) + 1),
        attempt: Attempt(1),
        progress: 0.0,
        step: 0,
        phase: String::new(),
        service: None,
    };
    (0..count).map(attempt).collect()
}

fn bound(refused: &Result<impl Sized, Refusal>) -> Option<(&'static str, usize)> {
    match refused {
        Err(Refusal::OutOfBounds { what, max, .. }) => Some((what, *max)),
        _ => None,
    }
}

/// Faults: J18.
#[test]
fn beat_that_lists_more_attempts_than_the_worker_has_slots_is_refused() {
    let mut story = Story::new();
    story.join("a");
    let mut beat = story.beat_of("a");
    beat.held = held(80_000);
    assert_eq!(bound(&story.send("a", beat, false)), Some(("held attempts", 66)));
    // Nothing of it counts: not as a sign of life, and its attempts are not cancelled one by one.
    assert_eq!(story.plane.worker(&id("a")).unwrap().cancels.len(), 0);
    let mut beat = story.beat_of("a");
    beat.held = held(66);
    assert!(story.send("a", beat, false).is_ok());
}

/// Faults: J18.
#[test]
fn worker_never_gets_more_jobs_than_its_join_agreed_on() {
    let mut story = Story::new();
    story.join("a");
    for n in 0..20 {
        story.submit(&format!("s{n}"));
    }
    let mut beat = story.beat_of("a");
    beat.slots = Some(u32::MAX);
    story.send("a", beat, false).unwrap();
    story.poll("a");
    assert_eq!(story.plane.worker(&id("a")).unwrap().assignments.len(), 1);
}

/// A worker whose server is down joins with no slots and reports them when it is back, also after a restart of the plane.
#[test]
fn worker_that_joined_without_slots_reports_them_later() {
    let mut story = Story::new();
    story.join_with("a", |join| (join.slots, join.slots_max) = (0, Some(2)));
    story.restart();
    for name in ["s1", "s2", "s3"] {
        story.submit(name);
    }
    story.poll("a");
    let mut beat = story.beat_of("a");
    beat.slots = Some(2);
    story.send("a", beat, false).unwrap();
    assert_eq!(story.plane.worker(&id("a")).unwrap().assignments.len(), 2);
    let mut beat = story.beat_of("a");
    beat.slots = Some(3);
    story.send("a", beat, false).unwrap();
    assert_eq!(story.plane.worker(&id("a")).unwrap().slots, 2);
}

/// Faults: J18. The plane counts incarnations: a claim cannot use the numbers up, so that no later join would fit.
#[test]
fn claimed_incarnation_counts_only_as_far_as_a_restored_backup_explains_it() {
    let mut story = Story::new();
    story.join_with("a", |join| join.incarnation = Some(Incarnation(i64::MAX as u64 - 1)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(1));
    story.join_with("a", |join| join.incarnation = Some(Incarnation(u64::MAX)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(2));
    // The store was put back: the worker has joined forty times since.
    story.join_with("a", |join| join.incarnation = Some(Incarnation(42)));
    assert_eq!(story.plane.worker(&id("a")).unwrap().incarnation, Incarnation(43));
}

/// Every value of a message in turn made as large as a body allows: a text of a megabyte, a list or an object of two hundred
/// thousand entries, the highest number.
fn grown(message: &Value) -> Vec<(String, Value)> {
    let mut found = Vec::new();
    let mut add = |path: &str, value: Value| {
        let mut copy = message.clone();
        *copy.pointer_mut(path).unwrap() = value;
        found.push((path.to_owned(), copy));
    };
    let mut open = vec![(String::new(), message)];
    while let Some((path, value)) = open.pop() {
        match value {
            Value::String(text) => add(&path, json!(format!("{text}{}", "x".repeat(1 << 20)))),
            Value::Number(_) => add(&path, json!(u64::MAX)),
            Value::Array(entries) => {
                let entry = entries.first().cloned().unwrap_or_default();
                add(&path, Value::Array(vec![entry; 200_000]));
                add(&path, (0..200_000).map(|n| json!(format!("name-{n}"))).collect());
            }
            Value::Object(fields) if !path.is_empty() => {
                let value = fields.values().next().cloned().unwrap_or_default();
                add(&path, Value::Object((0..200_000).map(|n| (n.to_string(), value.clone())).collect()));
            }
            Value::Object(_) | Value::Bool(_) | Value::Null => {}
        }
        match value {
            Value::Array(entries) => {
                open.extend(entries.iter().enumerate().map(|(n, entry)| (format!("{path}/{n}"), entry)));
            }
            Value::Object(fields) => {
                open.extend(fields.iter().map(|(name, value)| (format!("{path}/{name}"), value)));
            }
            Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null => {}
        }
    }
    found
}

/// What the plane may keep of one message of a worker, in memory and in the store together.
const KEPT_BYTES_MAX: usize = 200_000;

/// Bytes that the plane has about its jobs and workers, and that were written.
fn kept_bytes(story: &Story) -> usize {
    let workers: usize = story.plane.workers().map(|worker| format!("{worker:?}").len()).sum();
    let jobs: usize = story.plane.jobs().map(|job| format!("{job:?}").len()).sum();
    let rows: usize = story.kept.workers.values().map(|row| json!(row).to_string().len()).sum();
    let statuses: usize = story.kept.jobs.values().map(|(_, status)| json!(status).to_string().len()).sum();
    let events: usize = story.kept.events.iter().map(|event| json!(event).to_string().len()).sum();
    workers + jobs + rows + statuses + events
}

/// Faults: J18. A field that is added to a message is covered as soon as it is in this sample.
#[test]
fn no_value_of_a_join_or_beat_makes_the_plane_keep_more_than_a_bound() {
    let capabilities =
        json!({ "labels": { "zone": "eu" }, "models": ["m"], "classes": ["c"], "vram_bytes": 5 });
    let held = json!({ "job": JobId::from_u128(1), "attempt": 1, "progress": 0.5, "step": 3, "phase": "p",
        "service": { "status": "running", "submitted_millis_ago": 1, "checked_millis_ago": 1 } });
    let join = json!({ "worker": "b", "machine": "m", "fleet": "f", "services": ["exec"], "slots": 1, "slots_max": 1,
        "offer": capabilities, "incarnation": 1, "stale_after_millis": 1000, "nonce": "n", "process": "p",
        "join_number": 1, "held": [held] });
    for (path, message) in grown(&join) {
        let Ok(join) = serde_json::from_value::<JoinRequest>(message) else { continue };
        let mut story = Story::new();
        story.is_checked = false;
        let (token_hash, proof) = (Hash::digest(b"token"), JoinProof::JoinToken);
        let _either = story.step(PlaneEvent::Join { join: Box::new(join), token_hash, proof });
        assert!(kept_bytes(&story) < KEPT_BYTES_MAX, "{path}: {} bytes are kept", kept_bytes(&story));
    }
    let node = json!({ "id": "1", "class": "C", "exception": "E" });
    let finished = json!({ "job": JobId::from_u128(1), "attempt": 1, "outcome": "failed", "cause": "job", "message": "m",
        "node": node, "shortage": { "requested_bytes": 1, "limit_bytes": 1 } });
    let beat = json!({ "incarnation": 1, "seq": 2, "term": 1, "slots": 1, "unavailable_reason": "u", "offer": capabilities,
        "metrics": { "gpu": "name", "list": ["a"], "used": 1 }, "check": { "passed": false, "problem": "p", "gpu": "g" },
        "draining": false, "service_restarts": 1 });
    let with = |name: &str, entry: &Value| {
        let mut beat = beat.clone();
        beat[name] = json!([entry]);
        beat
    };
    for sample in [with("held", &held), with("finished", &finished)] {
        assert!(serde_json::from_value::<Beat>(sample.clone()).is_ok(), "{sample}");
        for (path, message) in grown(&sample) {
            let Ok(beat) = serde_json::from_value::<Beat>(message) else { continue };
            let mut story = Story::new();
            story.is_checked = false;
            story.join("a");
            story.submit("s");
            story.poll("a");
            let _either = story.send("a", beat, false);
            assert!(kept_bytes(&story) < KEPT_BYTES_MAX, "{path}: {} bytes are kept", kept_bytes(&story));
        }
    }
}

/// Faults: J18.
#[test]
fn live_report_is_bounded_in_entries_and_texts() {
    let progress = json!({ "value": 0.5, "nodes_done": 1, "nodes_total": 2, "current_node": "n", "current_node_class": "c",
        "step": 1, "steps": 2, "message": "m" });
    let sample = json!({ "progress": progress, "messages": [{ "type": "x" }], "outputs": [{ "node": "9" }] });
    let read = |value: Value| serde_json::from_str::<LiveReport>(&value.to_string());
    assert_eq!(read(sample.clone()).unwrap().check(), Ok(()));
    for (path, message) in grown(&sample) {
        // Numbers are shown; a message or output is passed on as it is, and the size of the whole is bounded.
        let is_passed_on = path.starts_with("/messages/") || path.starts_with("/outputs/");
        let is_number = message.pointer(&path).is_some_and(Value::is_number);
        if is_passed_on || is_number {
            continue;
        }
        let Ok(report) = read(message) else { continue };
        assert!(report.check().is_err(), "{path} is not bounded");
    }
}
