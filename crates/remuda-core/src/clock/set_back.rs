//! Sets stored times back after the plane ran with a clock that was ahead.
//!
//! Which record was written under which clock is not stored. What is certain: no past event lies after `to`, and what was
//! still to come at `from`, the last moment under the old clock, is as far ahead of `to` now.
//!
//! ```text
//!   a record under the old clock        the same record afterwards
//!   accepted 10:00  ended 10:20         accepted 9:00  ended 9:20      past: moved back together, until none is after `to`
//!   from = 10:30    deadline 12:30      to = 9:20      deadline 11:20  future: as far from `to` as it was from `from`
//! ```
//!
//! Past times of one record move together, so that durations, and the costs that follow from them, stay what they were.
//! Days and hours that money and uptime are counted by move by whole days: what was spent today stays spent today.
//!
//! Times are found by the names of their fields in the stored JSON, so that a store can change rows that it does not
//! understand. A test compares the names with the types of all stored records.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::document::{Collection, Document};
use crate::fleet::{day_of, hour_of};
use crate::record::{AcceptedJob, JobStatus};
use crate::time::Timestamp;

/// The plane's time went back from one moment to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetBack {
    /// The latest stored time.
    pub from: Timestamp,
    /// The time of the start.
    pub to: Timestamp,
}

/// Data of clients and workers, and the bytes of a webhook: numbers in there are not the plane's times.
const FOREIGN_FIELDS: [&str; 7] = ["metadata", "labels", "metrics", "options", "detail", "check", "body"];
const TIME_FIELDS: [&str; 7] =
    ["at", "until", "since", "deadline", "not_before", "last_service_check", "heading"];
const TIME_ENDINGS: [&str; 3] = ["_at", "_until", "_since"];

const HOURS_OF_DAY: u64 = 24;

impl SetBack {
    /// A time that stands alone.
    pub fn time(&self, time: Timestamp) -> Timestamp {
        if time > self.from { self.future(time) } else { time.min(self.to) }
    }

    /// A past time that has to stay different from others.
    pub fn span(&self, time: Timestamp) -> Timestamp {
        if time > self.to { time.minus(self.from.since(self.to)) } else { time }
    }

    fn future(&self, time: Timestamp) -> Timestamp {
        if time >= Timestamp::NEVER { time } else { self.to.plus(time.since(self.from)) }
    }

    /// A record that the caller holds as a value.
    pub fn apply<T: Serialize + DeserializeOwned>(&self, record: &mut T) -> serde_json::Result<()> {
        let mut json = serde_json::to_value(&*record)?;
        self.apply_to_json(&mut json);
        *record = serde_json::from_value(json)?;
        Ok(())
    }

    /// A job, with both parts of its record. A job that was last changed before `to` has the right times.
    pub fn apply_to_job(
        &self,
        accepted: &mut AcceptedJob,
        status: &mut JobStatus,
    ) -> serde_json::Result<bool> {
        let is_ahead = accepted.accepted_at.max(status.changed_at) > self.to;
        if is_ahead {
            let mut both = (accepted.clone(), status.clone());
            self.apply(&mut both)?;
            (*accepted, *status) = both;
        }
        Ok(is_ahead)
    }

    /// A document. What ComfyUI clients store may be anything, so only its expiry is changed.
    pub fn apply_to_document(&self, document: &Document) -> serde_json::Result<Document> {
        let mut changed = document.clone();
        changed.expires_at = document.expires_at.map(|at| self.time(at));
        if document.collection != Collection::Comfyui {
            let mut body: Value = serde_json::from_str(document.body.get())?;
            self.apply_to_json(&mut body);
            changed.body = serde_json::value::to_raw_value(&body)?.into();
        }
        Ok(changed)
    }

    /// One record as JSON.
    pub fn apply_to_json(&self, record: &mut Value) {
        let mut newest = self.to;
        visit(record, &mut |time: &mut Timestamp| {
            if *time <= self.from {
                newest = newest.max(*time);
            }
        });
        let back = newest.since(self.to);
        visit(record, &mut |time: &mut Timestamp| {
            *time = if *time > self.from { self.future(*time) } else { time.minus(back) };
        });
        self.move_days(record);
    }

    /// Sums by the day and by the hour, and the hours of uptime.
    fn move_days(&self, json: &mut Value) {
        let days = day_of(self.from).0 - day_of(self.to).0;
        let (today, this_hour) = (day_of(self.to).0, hour_of(self.to).0);
        let Value::Object(fields) = json else {
            if let Value::Array(items) = json {
                items.iter_mut().for_each(|item| self.move_days(item));
            }
            return;
        };
        for (name, field) in fields {
            match (name.as_str(), field) {
                ("spent", Value::Object(sums)) => move_sums(sums, today, days),
                ("spent_hours", Value::Object(sums)) => move_sums(sums, this_hour, days * HOURS_OF_DAY),
                ("day", Value::Number(day)) => move_number(day, today, days),
                ("newest", Value::Number(hour)) => {
                    move_number(hour, this_hour, hour_of(self.from).0 - this_hour);
                }
                (name, _) if FOREIGN_FIELDS.contains(&name) => {}
                (_, field) => self.move_days(field),
            }
        }
    }
}

/// Sums of days that are still to come are added to those that they become.
fn move_sums(sums: &mut Map<String, Value>, present: u64, back: u64) {
    let mut moved = Map::new();
    for (number, sum) in std::mem::take(sums) {
        let number = number.parse().map_or(number, |number: u64| {
            (if number > present { number - back.min(number) } else { number }).to_string()
        });
        let before = moved.get(&number).and_then(Value::as_u64).unwrap_or(0);
        let sum = sum.as_u64().map_or(sum, |sum| sum.saturating_add(before).into());
        moved.insert(number, sum);
    }
    *sums = moved;
}

fn move_number(number: &mut serde_json::Number, present: u64, back: u64) {
    if let Some(later) = number.as_u64().filter(|number| *number > present) {
        *number = (later - back.min(later)).into();
    }
}

/// Calls `change` with every time in a record.
fn visit(json: &mut Value, change: &mut impl FnMut(&mut Timestamp)) {
    match json {
        Value::Object(fields) => {
            for (name, field) in fields {
                if FOREIGN_FIELDS.contains(&name.as_str()) {
                    continue;
                }
                if is_time(name) { visit_times(field, change) } else { visit(field, change) }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| visit(item, change)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// The value of a field that holds a time, a list of times, or something with times in it.
fn visit_times(json: &mut Value, change: &mut impl FnMut(&mut Timestamp)) {
    match json {
        Value::Number(number) => {
            if let Some(millis) = number.as_u64() {
                let mut time = Timestamp::from_millis(millis);
                change(&mut time);
                *number = time.as_millis().into();
            }
        }
        Value::Array(times) => times.iter_mut().for_each(|time| visit_times(time, change)),
        json => visit(json, change),
    }
}

fn is_time(name: &str) -> bool {
    TIME_FIELDS.contains(&name) || TIME_ENDINGS.iter().any(|ending| name.ends_with(ending))
}

#[cfg(test)]
mod tests;
