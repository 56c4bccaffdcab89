//! The condition of a worker's service, as its agent sees it. A sick service gets one remedy after another, mildest
//! first, each followed by a self-test. When nothing helps it is given up and only rechecked.
//!
//! ```text
//!        ignores cancellations     ┌─────────────────────────────── passed ──────────────────────────────┐
//!  well ─────────────────────▶ freeing ──▶ testing ──failed──▶ restarting (if we started it) ──▶ testing ─┤──▶ well
//!   │ │  broken device, exited                                     ▲                             │
//!   │ └────────────────────────────────────────────────────────────┘          failed, too often  │
//!   │    disk full                                                                               ▼
//!   └───────────────────────────────────────────────────────────────────────────────────────▶ given up
//! ```
//!
//! A service that was given up is restarted once more after `REPAIR_AGAIN_AFTER`, and is well again as soon as a self-test
//! passes: a person may have repaired it.

use std::time::Duration;

use crate::service::ServiceRemedy;
use crate::supervise::{Budget, BudgetVerdict};
use crate::time::Timestamp;

/// Restarts in a row without a success in between.
const RESTARTS_MAX: u32 = 3;
/// When a service that was given up gets another round of remedies.
const REPAIR_AGAIN_AFTER: Duration = Duration::from_secs(600);
/// A remedy or self-test without a result by then has failed. A start may load models for minutes.
pub(super) const REMEDY_TIMEOUT: Duration = Duration::from_secs(600);

#[derive(Clone, Debug)]
pub(super) struct ServiceCondition {
    state: ConditionState,
    restarts: Budget,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ConditionState {
    Well,
    /// It unloads models and empties caches.
    Freeing {
        why: String,
        until: Timestamp,
    },
    Restarting {
        why: String,
        until: Timestamp,
    },
    /// `after`: the last remedy.
    Testing {
        why: String,
        after: Option<ServiceRemedy>,
        until: Timestamp,
    },
    GivenUp {
        why: String,
        since: Timestamp,
    },
}

#[derive(Clone, Debug)]
pub(super) enum ConditionEvent {
    /// A new process answers: another one restarted it.
    Replaced,
    /// The process that we started has exited.
    Exited {
        why: String,
    },
    DeviceBroken {
        why: String,
    },
    DiskFull {
        why: String,
    },
    /// It is sick for an unknown cause.
    Sickened {
        why: String,
    },
    /// `is_stuck`: it still runs what was cancelled long ago.
    RemedyDone {
        remedy: ServiceRemedy,
        problem: Option<String>,
        is_stuck: bool,
    },
    Tested {
        problem: Option<String>,
    },
    /// A self-test waited behind an attempt of ours until its time was over: it is repeated.
    TestQueued,
    /// Time has passed.
    Tick,
}

/// What to do about the service now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Repair {
    Nothing,
    FreeMemory,
    /// `takes_attempts`: the process still ran, so our restart takes the attempts there with it.
    Restart {
        takes_attempts: bool,
    },
    SelfTest,
}

impl Default for ServiceCondition {
    fn default() -> Self {
        ServiceCondition { state: ConditionState::Well, restarts: Budget::new(RESTARTS_MAX) }
    }
}

impl ServiceCondition {
    /// The only place where the condition changes.
    #[expect(clippy::too_many_lines, reason = "one table of states and events")]
    pub(super) fn apply(&mut self, now: Timestamp, event: ConditionEvent) -> Repair {
        use ConditionEvent as On;
        use ConditionState::{Freeing, GivenUp, Restarting, Testing, Well};
        use ServiceRemedy::{FreeMemory, Restart};
        let until = now.plus(REMEDY_TIMEOUT);
        let test = |why, after| (Testing { why, after, until }, Repair::SelfTest);
        let free = |why| (Freeing { why, until }, Repair::FreeMemory);
        let give_up = |why| (GivenUp { why, since: now }, Repair::Nothing);
        let restart = |restarts: &mut Budget, why, takes_attempts| match restarts.spend() {
            BudgetVerdict::Apply(_) => (Restarting { why, until }, Repair::Restart { takes_attempts }),
            BudgetVerdict::Escalate => give_up(format!("{RESTARTS_MAX} restarts did not help: {why}")),
        };
        let restarts = &mut self.restarts;
        let state = std::mem::replace(&mut self.state, Well);
        let (state, repair) = match (state, event) {
            (Well | GivenUp { .. }, On::Replaced) => test("the service restarted".to_owned(), None),
            (Well, On::Exited { why }) => restart(restarts, why, false),
            (Well, On::DeviceBroken { why }) => restart(restarts, why, true),
            (Well, On::DiskFull { why }) => give_up(why),
            (Well, On::Sickened { why }) => free(why),
            // Caches are emptied after the running work, and a self-test would wait behind it.
            (Freeing { why, .. }, On::RemedyDone { remedy: FreeMemory, problem: None, is_stuck: true }) => {
                restart(restarts, why, true)
            }
            (Freeing { why, .. }, On::RemedyDone { remedy: FreeMemory, problem: None, .. }) => {
                test(why, Some(FreeMemory))
            }
            (Freeing { why, .. }, On::RemedyDone { remedy: FreeMemory, problem: Some(problem), .. }) => {
                restart(restarts, format!("{why}; {problem}"), true)
            }
            (Restarting { why, .. }, On::RemedyDone { remedy: Restart, problem: None, .. }) => {
                test(why, Some(Restart))
            }
            (Restarting { why, .. }, On::RemedyDone { remedy: Restart, problem: Some(problem), .. }) => {
                give_up(format!("{why}; {problem}"))
            }
            (_, On::Tested { problem: None }) => {
                restarts.earn_back();
                (Well, Repair::Nothing)
            }
            (Well, On::Tested { problem: Some(problem) }) => free(problem),
            (Testing { why, after: None, .. }, On::Tested { problem: Some(problem) }) => {
                free(format!("{why}; {problem}"))
            }
            (
                Testing { why, after: Some(_), .. } | Freeing { why, .. },
                On::Tested { problem: Some(problem) },
            ) => restart(restarts, format!("{why}; {problem}"), true),
            (Testing { why, after, .. }, On::TestQueued) => test(why, after),
            (GivenUp { since, .. }, On::Tested { problem: Some(why) }) => {
                (GivenUp { why, since }, Repair::Nothing)
            }
            (
                Restarting { why, until } | Testing { why, after: Some(Restart), until },
                On::Tick,
            ) if until <= now => give_up(format!("{why}; the restart timed out")),
            (Freeing { why, until } | Testing { why, until, .. }, On::Tick) if until <= now => {
                restart(restarts, format!("{why}; the remedy timed out"), true)
            }
            (GivenUp { why, since }, On::Tick) if now.since(since) >= REPAIR_AGAIN_AFTER => {
                // The cause may have gone away: one more round of restarts.
                restarts.earn_back();
                restart(restarts, why, true)
            }
            (state @ (Freeing { .. } | Restarting { .. } | Testing { .. }), On::Replaced)
            | (
                state @ (Freeing { .. } | Restarting { .. } | Testing { .. } | GivenUp { .. }),
                On::Exited { .. } | On::DeviceBroken { .. } | On::DiskFull { .. } | On::Sickened { .. },
            )
            // The answer to an earlier remedy, or to a self-test from before the restart.
            | (state, On::RemedyDone { .. } | On::TestQueued)
            | (state @ Restarting { .. }, On::Tested { problem: Some(_) })
            | (state, On::Tick) => (state, Repair::Nothing),
        };
        self.state = state;
        repair
    }

    /// An attempt succeeded: the restarts are earned back. A job that breaks the service repeatedly is for the plane to
    /// stop.
    pub(super) fn proved(&mut self) {
        self.restarts.earn_back();
    }

    pub(super) fn is_well(&self) -> bool {
        self.state == ConditionState::Well
    }

    pub(super) fn is_given_up(&self) -> bool {
        matches!(self.state, ConditionState::GivenUp { .. })
    }

    pub(super) fn is_testing(&self) -> bool {
        matches!(self.state, ConditionState::Testing { .. })
    }

    /// Why it is not well.
    pub(super) fn problem(&self) -> Option<&str> {
        match &self.state {
            ConditionState::Well => None,
            ConditionState::Freeing { why, .. }
            | ConditionState::Restarting { why, .. }
            | ConditionState::Testing { why, .. }
            | ConditionState::GivenUp { why, .. } => Some(why),
        }
    }

    /// When the present remedy or self-test times out.
    pub(super) fn timeout_at(&self) -> Option<Timestamp> {
        match &self.state {
            ConditionState::Freeing { until, .. }
            | ConditionState::Restarting { until, .. }
            | ConditionState::Testing { until, .. } => Some(*until),
            ConditionState::Well | ConditionState::GivenUp { .. } => None,
        }
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> &ConditionState {
        &self.state
    }
}
