//! What every pod cost, whether or not a client was told of it: with this a test can prove that nothing was left over
//! or created twice and that no limit was exceeded.

use std::collections::BTreeMap;

use remuda_core::money::Money;
use remuda_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// The ledger of an account at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ledger {
    /// In order of creation, with deleted ones.
    pub pods: Vec<Entry>,
    /// The orders under each name.
    pub names: BTreeMap<String, Named>,
    /// Existing pods, also exited ones, without foreign ones.
    pub alive: usize,
    /// The most at one moment.
    pub alive_max: usize,
    /// The highest price per hour of everything running at one moment, in dollars.
    pub rate_max: f64,
    pub gpu_seconds: f64,
    /// In dollars.
    pub cost: f64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    pub id: String,
    pub name: String,
    /// What was delivered.
    pub gpu: String,
    pub gpu_count: u32,
    pub data_center: String,
    pub cloud: String,
    /// Dollars an hour.
    pub rate: f64,
    pub created: String,
    pub deleted: Option<String>,
    /// From creation to deletion, without the time in which it was stopped.
    pub gpu_seconds: f64,
    pub cost: f64,
    /// Foreign: not in any sum.
    pub is_foreign: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named {
    /// Requested creations, also refused ones.
    pub orders: u32,
    /// Pods that were created.
    pub pods: u32,
}

impl Ledger {
    /// Our pods that were not deleted.
    pub fn left_over(&self) -> Vec<&Entry> {
        self.pods.iter().filter(|entry| entry.deleted.is_none() && !entry.is_foreign).collect()
    }

    /// Names with more than one pod.
    pub fn made_twice(&self) -> Vec<&str> {
        self.names.iter().filter(|(_, named)| named.pods > 1).map(|(name, _)| name.as_str()).collect()
    }
}

/// An entry that may still change.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) gpu: &'static str,
    pub(super) gpu_count: u32,
    pub(super) data_center: String,
    pub(super) cloud: &'static str,
    pub(super) rate: Money,
    pub(super) created: Timestamp,
    pub(super) deleted: Option<Timestamp>,
    pub(super) is_foreign: bool,
    /// Billed intervals; the last may be open.
    pub(super) runs: Vec<(Timestamp, Option<Timestamp>)>,
}

impl Line {
    fn seconds(&self, now: Timestamp) -> f64 {
        self.runs.iter().map(|(from, to)| to.unwrap_or(now).since(*from).as_secs_f64()).sum()
    }

    pub(super) fn cost(&self, now: Timestamp) -> Money {
        self.runs.iter().map(|(from, to)| self.rate.over(to.unwrap_or(now).since(*from))).sum()
    }

    fn is_running(&self) -> bool {
        self.runs.last().is_some_and(|(_, to)| to.is_none())
    }

    fn entry(&self, now: Timestamp) -> Entry {
        Entry {
            id: self.id.clone(),
            name: self.name.clone(),
            gpu: self.gpu.to_owned(),
            gpu_count: self.gpu_count,
            data_center: self.data_center.clone(),
            cloud: self.cloud.to_owned(),
            rate: super::catalog::dollars(self.rate),
            created: self.created.to_string(),
            deleted: self.deleted.map(|at| at.to_string()),
            gpu_seconds: self.seconds(now) * f64::from(self.gpu_count),
            cost: super::catalog::dollars(self.cost(now)),
            is_foreign: self.is_foreign,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Books {
    lines: Vec<Line>,
    names: BTreeMap<String, Named>,
    alive_max: usize,
    rate_max: Money,
}

impl Books {
    pub(super) fn ordered(&mut self, name: &str) {
        self.names.entry(name.to_owned()).or_default().orders += 1;
    }

    pub(super) fn made(&mut self, line: Line) {
        if !line.is_foreign {
            self.names.entry(line.name.clone()).or_default().pods += 1;
        }
        self.lines.push(line);
        self.look();
    }

    pub(super) fn stopped(&mut self, id: &str, now: Timestamp) {
        if let Some(line) = self.line(id)
            && let Some((_, to @ None)) = line.runs.last_mut()
        {
            *to = Some(now);
        }
    }

    pub(super) fn started(&mut self, id: &str, now: Timestamp) {
        if let Some(line) = self.line(id)
            && !line.is_running()
        {
            line.runs.push((now, None));
        }
        self.look();
    }

    pub(super) fn deleted(&mut self, id: &str, now: Timestamp) {
        self.stopped(id, now);
        if let Some(line) = self.line(id) {
            line.deleted = Some(now);
        }
    }

    fn line(&mut self, id: &str) -> Option<&mut Line> {
        self.lines.iter_mut().rev().find(|line| line.id == id)
    }

    pub(super) fn lines(&self) -> &[Line] {
        &self.lines
    }

    fn alive(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.deleted.is_none() && !line.is_foreign)
    }

    /// The price per hour of everything that runs.
    pub(super) fn rate(&self) -> Money {
        self.alive().filter(|line| line.is_running()).map(|line| line.rate).sum()
    }

    fn look(&mut self) {
        self.alive_max = self.alive_max.max(self.alive().count());
        self.rate_max = self.rate_max.max(self.rate());
    }

    pub(super) fn ledger(&self, now: Timestamp) -> Ledger {
        let pods: Vec<Entry> = self.lines.iter().map(|line| line.entry(now)).collect();
        let ours = || pods.iter().filter(|entry| !entry.is_foreign);
        Ledger {
            names: self.names.clone(),
            alive: self.alive().count(),
            alive_max: self.alive_max,
            rate_max: super::catalog::dollars(self.rate_max),
            gpu_seconds: ours().map(|entry| entry.gpu_seconds).sum(),
            cost: ours().map(|entry| entry.cost).sum(),
            pods,
        }
    }
}
