//! What a drill found: for people, for scripts, and as a page for the documents.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use remuda_net::terminal::table;
use serde_json::{Value, json};

use crate::ledger::Findings;
use crate::schedule::FaultKind;

#[derive(Debug)]
pub(crate) struct DrillReport {
    pub(crate) seed: u64,
    pub(crate) length: Duration,
    pub(crate) workers: usize,
    pub(crate) lease: Duration,
    pub(crate) faults: BTreeMap<FaultKind, usize>,
    pub(crate) not_tried: Vec<(FaultKind, String)>,
    pub(crate) own_ends: u32,
    pub(crate) findings: Findings,
}

/// Complaints of one kind that are listed; the rest is counted.
const LISTED_MAX: usize = 20;

impl DrillReport {
    /// Retries without need cost time, but break no promise: they are shown and do not fail a drill.
    pub(crate) fn is_success(&self) -> bool {
        let complaints = &self.findings.complaints;
        [&complaints.lost, &complaints.refused, &complaints.doubled, &complaints.false_verdicts]
            .into_iter()
            .all(Vec::is_empty)
    }

    fn faults_total(&self) -> usize {
        self.faults.values().sum()
    }

    fn recovery(&self, percent: usize) -> Duration {
        let sorted = &self.findings.recoveries;
        let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        sorted.get(at).copied().unwrap_or_default()
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let Findings { complaints, .. } = &self.findings;
        let seconds = |time: Duration| format!("{:.1} s", time.as_secs_f64());
        vec![
            ("seed", self.seed.to_string()),
            ("length", seconds(self.length)),
            ("workers", self.workers.to_string()),
            ("lease", seconds(self.lease)),
            ("jobs acknowledged", self.findings.accepted.to_string()),
            ("completed", self.findings.completed.to_string()),
            ("failed, as they had to", self.findings.failed_as_expected.to_string()),
            ("cancelled", self.findings.cancelled.to_string()),
            ("faults", self.faults_total().to_string()),
            ("parts that ended by themselves", self.own_ends.to_string()),
            ("lost", complaints.lost.len().to_string()),
            ("refused long after the last fault", complaints.refused.len().to_string()),
            ("doubled", complaints.doubled.len().to_string()),
            ("false verdicts", complaints.false_verdicts.len().to_string()),
            ("attempts ended by a fault", self.findings.retries_needed.to_string()),
            ("attempts run twice without need", complaints.needless_retries.len().to_string()),
            ("lost completions found again", self.findings.recovered_completions.to_string()),
            ("from a fault to the next attempt, p50", seconds(self.recovery(50))),
            ("from a fault to the next attempt, p99", seconds(self.recovery(99))),
        ]
    }

    fn complaints(&self) -> [(&'static str, &[String]); 5] {
        let complaints = &self.findings.complaints;
        [
            ("lost", &complaints.lost),
            ("refused", &complaints.refused),
            ("doubled", &complaints.doubled),
            ("false verdict", &complaints.false_verdicts),
            ("run twice without need", &complaints.needless_retries),
        ]
    }

    pub(crate) fn to_text(&self) -> String {
        let rows: Vec<_> =
            self.figures().into_iter().map(|(name, value)| vec![name.to_owned(), value]).collect();
        let mut text = table(&["WHAT", "VALUE"], &rows);
        let faults: Vec<_> =
            self.faults.iter().map(|(kind, count)| vec![kind.to_string(), count.to_string()]).collect();
        let _ = write!(text, "\n\n{}", table(&["FAULT", "TIMES"], &faults));
        for (kind, why) in &self.not_tried {
            let _ = write!(text, "\nnot tried: {kind}: {why}");
        }
        for (name, complaints) in self.complaints() {
            for complaint in complaints.iter().take(LISTED_MAX) {
                let _ = write!(text, "\n{name}: {complaint}");
            }
            if complaints.len() > LISTED_MAX {
                let _ = write!(text, "\n{name}: and {} more", complaints.len() - LISTED_MAX);
            }
        }
        text
    }

    pub(crate) fn to_markdown(&self, command: &str) -> String {
        let mut text = format!("```sh\n{command}\n```\n\n| | |\n|---|---|\n");
        for (name, value) in self.figures() {
            let _ = writeln!(text, "| {name} | {value} |");
        }
        text.push_str("\n| fault | times |\n|---|---|\n");
        for (kind, count) in &self.faults {
            let _ = writeln!(text, "| {kind} | {count} |");
        }
        for (kind, why) in &self.not_tried {
            let _ = writeln!(text, "| {kind} | not tried: {why} |");
        }
        for (name, complaints) in self.complaints() {
            for complaint in complaints.iter().take(LISTED_MAX) {
                let _ = writeln!(text, "\n- {name}: {complaint}");
            }
        }
        text
    }

    pub(crate) fn to_json(&self) -> Value {
        let complaints = &self.findings.complaints;
        let faults: BTreeMap<_, _> = self.faults.iter().map(|(kind, count)| (kind.name(), count)).collect();
        let not_tried: BTreeMap<_, _> = self.not_tried.iter().map(|(kind, why)| (kind.name(), why)).collect();
        json!({
            "seed": self.seed,
            "seconds": self.length.as_secs_f64(),
            "workers": self.workers,
            "lease_seconds": self.lease.as_secs_f64(),
            "jobs": {
                "acknowledged": self.findings.accepted,
                "completed": self.findings.completed,
                "failed_as_expected": self.findings.failed_as_expected,
                "cancelled": self.findings.cancelled,
            },
            "faults": faults,
            "faults_total": self.faults_total(),
            "not_tried": not_tried,
            "own_ends": self.own_ends,
            "lost": complaints.lost,
            "refused": complaints.refused,
            "doubled": complaints.doubled,
            "false_verdicts": complaints.false_verdicts,
            "needless_retries": complaints.needless_retries,
            "retries_needed": self.findings.retries_needed,
            "recovered_completions": self.findings.recovered_completions,
            "recovery_seconds": {
                "p50": self.recovery(50).as_secs_f64(),
                "p99": self.recovery(99).as_secs_f64(),
            },
            "success": self.is_success(),
        })
    }
}
