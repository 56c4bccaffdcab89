//! Attempts that were replaced here by a newer attempt of the same job while the service still ran them. Their results
//! count for nothing, but a service that ignores their cancellation is sick: the prompt would hang there unnoticed.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Agent, AgentEffect};
use crate::id::{Attempt, JobId};
use crate::service::{ProbeResult, ProbeTrigger};
use crate::time::{Timestamp, humanize};

/// Between two probes of one attempt.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// More are never remembered: each is one prompt at the service.
const SUPERSEDED_MAX: usize = 64;

#[derive(Clone, Debug, Default)]
pub(super) struct Superseded(BTreeMap<(JobId, Attempt), SupersededAttempt>);

#[derive(Clone, Copy, Debug)]
struct SupersededAttempt {
    cancelled_at: Timestamp,
    probe_at: Timestamp,
}

impl Superseded {
    pub(super) fn add(&mut self, job: JobId, attempt: Attempt, cancelled_at: Timestamp, timeout: Duration) {
        if self.0.len() < SUPERSEDED_MAX {
            let probe_at = cancelled_at.plus(timeout);
            self.0.insert((job, attempt), SupersededAttempt { cancelled_at, probe_at });
        }
    }

    pub(super) fn contains(&self, job: JobId, attempt: Attempt) -> bool {
        self.0.contains_key(&(job, attempt))
    }

    /// Whether one still runs past the time in which a cancellation takes effect.
    pub(super) fn is_stuck(&self, now: Timestamp, timeout: Duration) -> bool {
        self.0.values().any(|it| now.since(it.cancelled_at) >= timeout)
    }

    pub(super) fn wake_at(&self) -> Option<Timestamp> {
        self.0.values().map(|it| it.probe_at).min()
    }

    /// The service has a new process, and with it none of them.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Agent {
    pub(super) fn probe_superseded(&mut self, now: Timestamp) {
        for ((job, attempt), it) in self.superseded.0.iter_mut().filter(|(_, it)| it.probe_at <= now) {
            it.probe_at = now.plus(PROBE_EVERY);
            let (job, attempt, trigger) = (*job, *attempt, ProbeTrigger::Cancelled);
            self.effects.push(AgentEffect::Probe { job, attempt, trigger });
        }
    }

    pub(super) fn superseded_probed(
        &mut self,
        now: Timestamp,
        job: JobId,
        attempt: Attempt,
        result: &ProbeResult,
    ) {
        let Some(it) = self.superseded.0.get(&(job, attempt)) else { return };
        let since = now.since(it.cancelled_at);
        match result {
            ProbeResult::Running => {
                let why = format!("it still runs an attempt {} after its cancellation", humanize(since));
                self.mark_sick(now, why);
            }
            ProbeResult::Pending { .. } => {
                let reason = "a newer attempt began".to_owned();
                self.effects.push(AgentEffect::Cancel { job, attempt, reason });
            }
            // A timeout is no evidence.
            ProbeResult::NoAnswer(_) => {}
            ProbeResult::Succeeded { .. }
            | ProbeResult::Failed(_)
            | ProbeResult::Interrupted
            | ProbeResult::Unknown
            | ProbeResult::Gone(_) => {
                self.superseded.0.remove(&(job, attempt));
            }
        }
    }
}
