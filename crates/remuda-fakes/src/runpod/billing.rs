//! Billing by the hour, including deleted pods.

use std::time::Duration;

use remuda_core::money::Money;
use remuda_core::time::Timestamp;
use serde_json::{Value, json};

use super::account::Account;
use super::catalog::dollars;

/// Number of buckets by default.
const BUCKETS: u64 = 24;
const HOUR: Duration = Duration::from_secs(3600);

pub(super) fn records(account: &Account, asked: &dyn Fn(&str) -> Option<String>) -> Value {
    let now = account.now();
    let size = match asked("bucketSize").as_deref() {
        Some("day") => HOUR * 24,
        Some("week") => HOUR * 24 * 7,
        Some("month") => HOUR * 24 * 30,
        Some("year") => HOUR * 24 * 365,
        _ => HOUR,
    };
    let wanted = asked("podId");
    let last = asked("lastN").and_then(|last| last.parse().ok()).unwrap_or(BUCKETS);
    let millis = u64::try_from(size.as_millis()).unwrap_or(u64::MAX);
    let newest = now.as_millis() / millis;
    let mut records = Vec::new();
    for bucket in (0..=newest).rev().take(usize::try_from(last).unwrap_or(usize::MAX)) {
        let start = Timestamp::from_millis(bucket * millis);
        let end = start.plus(size);
        if account.books.lines().first().is_none_or(|line| line.created >= end) {
            break;
        }
        for line in account.books.lines() {
            let within = |(from, to): &(Timestamp, Option<Timestamp>)| {
                to.unwrap_or(now).min(end).since((*from).max(start))
            };
            let spent: Duration = line.runs.iter().map(within).sum();
            let is_wanted = wanted.as_ref().is_none_or(|id| *id == line.id);
            if !is_wanted || spent.is_zero() {
                continue;
            }
            let gpu: Money = line.rate.over(spent);
            records.push(json!({
                "startTime": start.to_string(), "endTime": end.to_string(), "podId": line.id,
                "totalAmount": dollars(gpu), "gpuAmount": dollars(gpu), "cpuAmount": 0.0, "diskAmount": 0.0,
            }));
        }
    }
    json!({"records": records, "metadata": {"count": records.len()}})
}
