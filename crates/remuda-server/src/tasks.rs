//! Supervision of the plane's own background tasks. Every task that has to run for as long as the plane does is started
//! through `Supervisor`, in `serve.rs` (`Parts::spawn_all`), so that one table knows them all: name, purpose, restarts,
//! last tick. A task that panics or ends unexpectedly is
//! restarted after a growing delay; one that does so too often is down, `/health/ready` names it, and the rest continues.
//!
//! ```text
//!            ends, panics             more than `restarts_max` within `within`
//!  running ───────────────▶ restarting ───────────────────────────────────────▶ down
//!     ▲                         │ delay
//!     └─────────────────────────┘
//! ```
//!
//! Not in the table: the event loop owns the plane's state, so its end is the end of the process (`MainTask` in
//! `serve.rs` waits for it). The store's writer is a thread, whose end is an error of the store. The watchdog that looks for a stuck event loop is a thread of its own, because such a loop may block tasks.
//! Restarting the whole process for any other task was rejected, because it interrupts every request and long poll.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use remuda_core::supervise::{Backoff, BudgetVerdict, WindowedBudget, panic_message};
use remuda_core::time::Timestamp;
use serde::Serialize;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use tracing::{error, warn};

use crate::shutdown::stopped;

/// How often a task may be restarted before it is given up, and the delays in between.
#[derive(Clone, Copy, Debug)]
pub struct RestartPolicy {
    pub restarts_max: u32,
    pub within: Duration,
    pub delay: Backoff,
}

impl Default for RestartPolicy {
    /// Five restarts in ten minutes: a fault that comes back every few hours is ridden out, one that comes back at once
    /// is reported within a minute.
    fn default() -> Self {
        RestartPolicy {
            restarts_max: 5,
            within: Duration::from_secs(600),
            delay: Backoff::new(Duration::from_secs(1), Duration::from_secs(30)),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskState {
    Running,
    /// It ended unexpectedly and waits for its restart.
    Restarting,
    /// It ended unexpectedly too often and is not restarted again.
    Down,
    /// It ended because the plane stops.
    Stopped,
}

/// A row of the table, as `/remuda/v1/status` shows it.
#[derive(Clone, Debug, Serialize)]
pub struct TaskStatus {
    pub name: &'static str,
    pub purpose: &'static str,
    pub state: TaskState,
    pub restarts: u32,
    /// Since the task last reported that it works; a task that waits for hours between two runs is quiet for hours.
    pub tick_age_millis: u64,
    /// Why it last ended unexpectedly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_failure: Option<String>,
}

#[derive(Debug)]
struct TaskRow {
    purpose: &'static str,
    state: TaskState,
    restarts: u32,
    ticker: Ticker,
    last_failure: Option<String>,
}

/// The table, and the way to start a task. Clones share it.
#[derive(Clone, Debug)]
pub struct Supervisor {
    rows: Arc<Mutex<BTreeMap<&'static str, TaskRow>>>,
    running: Arc<Mutex<Vec<AbortHandle>>>,
    stopping: watch::Receiver<bool>,
    policy: RestartPolicy,
}

/// Given to a task, which calls `tick` each time around its loop. Without a lock, because some loops are hot.
#[derive(Clone, Debug)]
pub struct Ticker {
    epoch: Instant,
    ticked_millis: Arc<AtomicU64>,
}

impl Ticker {
    pub(crate) fn new() -> Ticker {
        Ticker { epoch: Instant::now(), ticked_millis: Arc::default() }
    }

    pub fn tick(&self) {
        self.ticked_millis.store(self.elapsed_millis(), Ordering::Relaxed);
    }

    fn age_millis(&self) -> u64 {
        self.elapsed_millis().saturating_sub(self.ticked_millis.load(Ordering::Relaxed))
    }

    fn elapsed_millis(&self) -> u64 {
        u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl Supervisor {
    pub fn new(stopping: watch::Receiver<bool>, policy: RestartPolicy) -> Supervisor {
        Supervisor { rows: Arc::default(), running: Arc::default(), stopping, policy }
    }

    /// As this one, with another policy for the tasks it starts; the table is shared.
    #[cfg(test)]
    pub(crate) fn with_policy(mut self, policy: RestartPolicy) -> Supervisor {
        self.policy = policy;
        self
    }

    /// Starts a task and keeps it running until the plane stops. `start` makes its future, once more for every restart.
    pub fn spawn<F, T>(&self, name: &'static str, purpose: &'static str, start: F)
    where
        F: Fn(Ticker) -> T + Send + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        let ticker = Ticker::new();
        let row = TaskRow {
            purpose,
            state: TaskState::Running,
            restarts: 0,
            ticker: ticker.clone(),
            last_failure: None,
        };
        lock(&self.rows).insert(name, row);
        let supervised = self.clone().supervise(name, ticker, start);
        lock(&self.running).push(tokio::spawn(supervised).abort_handle());
    }

    async fn supervise<F, T>(mut self, name: &'static str, ticker: Ticker, start: F)
    where
        F: Fn(Ticker) -> T,
        T: Future<Output = ()> + Send + 'static,
    {
        let began = Instant::now();
        let mut budget = RestartBudget::new(self.policy);
        let mut is_first = true;
        loop {
            // A set of one: dropping it aborts the task, so that it never outlives its supervisor.
            let mut task = JoinSet::new();
            ticker.tick();
            match is_first && is_named_by_test(name) {
                true => task.spawn(async { panic!("a test asked for it") }),
                false => task.spawn(start(ticker.clone())),
            };
            is_first = false;
            let ended = task.join_next().await;
            if *self.stopping.borrow() {
                return self.change(name, |row| row.state = TaskState::Stopped);
            }
            let failure = match ended {
                Some(Err(error)) => failure_text(error),
                Some(Ok(())) | None => "ended unexpectedly".to_owned(),
            };
            let Some(delay) = budget.next_delay(Timestamp::ZERO.plus(began.elapsed())) else {
                error!(task = name, failure, "background task down");
                return self.change(name, |row| {
                    (row.state, row.last_failure) = (TaskState::Down, Some(failure));
                });
            };
            warn!(task = name, failure, ?delay, "background task failed; restarting");
            self.change(name, |row| {
                (row.state, row.last_failure) = (TaskState::Restarting, Some(failure));
            });
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = stopped(&mut self.stopping) => {
                    return self.change(name, |row| row.state = TaskState::Stopped);
                }
            }
            self.change(name, |row| (row.state, row.restarts) = (TaskState::Running, row.restarts + 1));
        }
    }

    /// Every task, by name.
    pub fn statuses(&self) -> Vec<TaskStatus> {
        let rows = lock(&self.rows);
        let statuses = rows.iter().map(|(name, row)| TaskStatus {
            name,
            purpose: row.purpose,
            state: row.state,
            restarts: row.restarts,
            tick_age_millis: row.ticker.age_millis(),
            last_failure: row.last_failure.clone(),
        });
        statuses.collect()
    }

    /// Names of the tasks that are down.
    pub fn down(&self) -> Vec<&'static str> {
        let rows = lock(&self.rows);
        rows.iter().filter(|(_, row)| row.state == TaskState::Down).map(|(name, _)| *name).collect()
    }

    /// Waits until a task has ended for good.
    pub async fn ended(&self, name: &'static str) {
        const CHECK_EVERY: Duration = Duration::from_millis(10);
        let is_over = |row: &TaskRow| matches!(row.state, TaskState::Stopped | TaskState::Down);
        while lock(&self.rows).get(name).is_some_and(|row| !is_over(row)) {
            tokio::time::sleep(CHECK_EVERY).await;
        }
    }

    /// Ends every task at once.
    pub fn abort_all(&self) {
        for task in lock(&self.running).drain(..) {
            task.abort();
        }
    }

    fn change(&self, name: &'static str, change: impl FnOnce(&mut TaskRow)) {
        if let Some(row) = lock(&self.rows).get_mut(name) {
            change(row);
        }
    }
}

/// For tests of the whole program: the task of this name panics when it is first started. No setting, so its name does not
/// begin like one.
const PANIC_VARIABLE: &str = "__REMUDA_TASK_TEST_PANIC";

fn is_named_by_test(name: &str) -> bool {
    std::env::var_os(PANIC_VARIABLE).is_some_and(|named| named == name)
}

/// How long a failed task waits before its restart, within the policy's budget.
#[derive(Debug)]
struct RestartBudget {
    delay: Backoff,
    restarts: WindowedBudget,
}

impl RestartBudget {
    fn new(policy: RestartPolicy) -> RestartBudget {
        let restarts = WindowedBudget::new(policy.restarts_max, policy.within);
        RestartBudget { delay: policy.delay, restarts }
    }

    /// The delay doubles with each recent restart; `None` if there were too many.
    fn next_delay(&mut self, now: Timestamp) -> Option<Duration> {
        match self.restarts.spend(now) {
            BudgetVerdict::Apply(restart) => Some(self.delay.delay(restart - 1)),
            BudgetVerdict::Escalate => None,
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn failure_text(error: tokio::task::JoinError) -> String {
    let Ok(panic) = error.try_into_panic() else { return "was cancelled".to_owned() };
    format!("panicked: {}", panic_message(panic.as_ref()))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    const POLICY: RestartPolicy = RestartPolicy {
        restarts_max: 2,
        within: Duration::from_secs(60),
        delay: Backoff::new(Duration::ZERO, Duration::ZERO),
    };

    /// A task that panics the first `panics` times and then runs until the end.
    fn spawn_flaky(supervisor: &Supervisor, panics: usize) {
        let starts = Arc::new(AtomicUsize::new(0));
        supervisor.spawn("flaky", "fails in tests", move |ticker| {
            let start = starts.fetch_add(1, Ordering::Relaxed);
            async move {
                ticker.tick();
                assert!(start >= panics, "start {start} failed");
                std::future::pending::<()>().await;
            }
        });
    }

    async fn until(supervisor: &Supervisor, is_so: impl Fn(&TaskStatus) -> bool) -> TaskStatus {
        loop {
            let status = supervisor.statuses().remove(0);
            if is_so(&status) {
                return status;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Faults: C6.
    #[tokio::test]
    async fn task_that_panics_is_restarted() {
        let (_stop, stopping) = watch::channel(false);
        let supervisor = Supervisor::new(stopping, POLICY);
        spawn_flaky(&supervisor, 1);
        let is_back = |status: &TaskStatus| status.state == TaskState::Running && status.restarts == 1;
        let status = until(&supervisor, is_back).await;
        assert_eq!(status.last_failure.as_deref(), Some("panicked: start 0 failed"));
        assert!(supervisor.down().is_empty());
    }

    /// Faults: C6.
    #[tokio::test]
    async fn task_that_panics_over_its_budget_is_down() {
        let (_stop, stopping) = watch::channel(false);
        let supervisor = Supervisor::new(stopping, POLICY);
        spawn_flaky(&supervisor, usize::MAX);
        supervisor.ended("flaky").await;
        let status = supervisor.statuses().remove(0);
        assert_eq!((status.state, status.restarts), (TaskState::Down, 2));
        assert_eq!(supervisor.down(), ["flaky"]);
    }

    #[tokio::test]
    async fn task_that_ends_unexpectedly_is_restarted_until_the_plane_stops() {
        let (stop, stopping) = watch::channel(false);
        let supervisor = Supervisor::new(stopping, RestartPolicy { restarts_max: u32::MAX, ..POLICY });
        supervisor.spawn("short", "ends at once in tests", |_| async {});
        let status = until(&supervisor, |status| status.restarts > 3).await;
        assert_eq!(status.last_failure.as_deref(), Some("ended unexpectedly"));
        stop.send_replace(true);
        supervisor.ended("short").await;
        assert_eq!(supervisor.statuses()[0].state, TaskState::Stopped);
    }

    #[test]
    fn failures_in_a_row_wait_longer_each_time_and_then_end_the_budget() {
        let seconds = Duration::from_secs;
        let delay = Backoff::new(seconds(1), seconds(4));
        let policy = RestartPolicy { restarts_max: 4, within: seconds(60), delay };
        let mut budget = RestartBudget::new(policy);
        let delays: Vec<_> = (0..5).map(|_| budget.next_delay(Timestamp::ZERO)).collect();
        assert_eq!(delays, [Some(seconds(1)), Some(seconds(2)), Some(seconds(4)), Some(seconds(4)), None]);
    }
}
