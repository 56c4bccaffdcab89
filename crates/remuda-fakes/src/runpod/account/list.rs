//! The list, newest first, page by page, with all its faults.

use serde_json::{Value, json};

use super::Account;
use crate::runpod::answer::Answer;
use crate::runpod::faults::{Occasion, RunpodFault};

const LIMIT_MAX: usize = 1000;

impl Account {
    /// A cursor is the number of the last pod of the previous page.
    pub(in crate::runpod) fn list(&mut self, limit: Option<&str>, cursor: Option<&str>) -> Answer {
        let limit = match limit.map(str::parse::<usize>) {
            None => LIMIT_MAX,
            Some(Ok(limit @ 1..=LIMIT_MAX)) => limit,
            Some(_) => return Answer::invalid(vec!["$.limit: want 1 to 1000".to_owned()]),
        };
        let below = match cursor.map(|cursor| u64::from_str_radix(cursor, 36)) {
            None => u64::MAX,
            Some(Ok(number)) => number,
            Some(Err(_)) => return Answer::bad_request("invalid cursor"),
        };
        let drawn = self.luck.draw(Occasion::List);
        let now = self.now();
        let listed = self.pods.iter().rev().filter(|pod| pod.is_listed(now) && pod.number < below);
        let mut numbers: Vec<u64> = listed.map(|pod| pod.number).collect();
        if self.luck.strikes(&drawn, RunpodFault::NoArray) {
            return Answer::ok(json!({"pagination": {"nextCursor": null, "hasNextPage": false}}));
        }
        if self.luck.strikes(&drawn, RunpodFault::EmptyList) {
            numbers.clear();
        }
        if numbers.len() > 1 && self.luck.strikes(&drawn, RunpodFault::CutList) {
            numbers.truncate(numbers.len() / 2);
        }
        if !numbers.is_empty() && self.luck.strikes(&drawn, RunpodFault::Omit) {
            let at = self.luck.dice(self.number ^ numbers.len() as u64).below(numbers.len() as u64);
            numbers.remove(at as usize);
        }
        let mut has_more = numbers.len() > limit;
        numbers.truncate(limit);
        let mut next = numbers.last().copied().unwrap_or_default();
        // Repeating a page of one pod would never end.
        if numbers.len() > 1
            && (has_more || cursor.is_none())
            && self.luck.strikes(&drawn, RunpodFault::Duplicate)
        {
            if !has_more {
                numbers.truncate(numbers.len().div_ceil(2));
                has_more = true;
            }
            next = numbers.last().copied().unwrap_or_default() + 1;
        }
        if !numbers.is_empty() && self.luck.strikes(&drawn, RunpodFault::BadCursor) {
            has_more = true;
            next = below.min(numbers[0] + 1);
        }
        let pods: Value = numbers.into_iter().map(|number| self.picture(number)).collect();
        let cursor = has_more.then(|| base36(next));
        Answer::ok(json!({"pods": pods, "pagination": {"nextCursor": cursor, "hasNextPage": has_more}}))
    }
}

fn base36(mut number: u64) -> String {
    let mut digits = Vec::new();
    loop {
        digits.push(super::LETTERS[(number % 36) as usize]);
        number /= 36;
        if number == 0 {
            break;
        }
    }
    digits.reverse();
    String::from_utf8(digits).unwrap_or_default()
}
