//! What happened, for subscribers. The plane publishes these values; `describe` is the one place that turns them into
//! a kind and the JSON detail that is stored and sent.

use std::time::Duration;

use serde_json::{Map, Value};

use super::FleetEvent;
use crate::affinity::Affinity;
use crate::block::Block;
use crate::cause::Cause;
use crate::clock::{ClockDifference, ClockStart};
use crate::event_kind::EventKind;
use crate::id::{Attempt, Incarnation, Shape, WorkerId};
use crate::job::Job;
use crate::machine::{Presence, WorkerState};
use crate::scope::{BlockScope, TenantShape};
use crate::time::Timestamp;
use crate::webhook::DeliveryResult;
use crate::worker::Worker;

pub(super) enum DomainEvent<'a> {
    JobQueued(&'a Job),
    JobStarted {
        job: &'a Job,
        worker: &'a WorkerId,
    },
    JobRetrying {
        job: &'a Job,
        worker: Option<&'a WorkerId>,
        failure: &'a FailureNotice,
    },
    /// A completion whose message was lost was found.
    JobRecovered {
        job: &'a Job,
        worker: &'a WorkerId,
        reason: &'a str,
    },
    JobEnded {
        job: &'a Job,
        worker: Option<&'a WorkerId>,
        ending: &'a JobEnding,
    },
    WorkerJoined {
        worker: &'a WorkerId,
        incarnation: Incarnation,
    },
    WorkerBack(&'a WorkerId),
    WorkerOffline {
        worker: &'a WorkerId,
        reason: &'a str,
    },
    /// Its lifecycle state changed, or whether it takes work in that state.
    WorkerState {
        worker: &'a Worker,
        reason: &'a str,
    },
    WorkerUnreliable {
        worker: &'a WorkerId,
        stale_in_an_hour: usize,
    },
    WorkerWarning {
        worker: &'a WorkerId,
        reason: &'a str,
    },
    WorkerForgotten(&'a WorkerId),
    /// Whether the worker is usable, for subscribers that need nothing else.
    ClientState(&'a Worker),
    Blocked {
        job: &'a Job,
        worker: &'a WorkerId,
        scope: &'a BlockScope,
        block: &'a Block,
    },
    Unblocked {
        worker: &'a WorkerId,
        scope: &'a BlockScope,
        block: &'a Block,
        reason: &'a str,
    },
    Quarantined {
        jobs: &'a TenantShape,
        failed_on: &'a [&'a str],
        trial_at: Timestamp,
    },
    Released {
        jobs: &'a TenantShape,
        reason: &'a str,
    },
    AffinitySet {
        shape: Shape,
        affinity: &'a Affinity,
    },
    AffinityRemoved(Shape),
    Fleet(FleetEvent<'a>),
    BrakeOn {
        reason: String,
    },
    BrakeReleased,
    WebhookSettled(&'a DeliveryResult),
    SettingsReloaded,
    PlaneAway(Duration),
    /// The plane started with a clock that a person should check.
    ClockAtStart(&'a ClockStart),
    /// The machine's clock was set while the plane runs.
    ClockChanged(ClockDifference),
}

/// A failed attempt.
pub(super) struct FailureNotice {
    pub(super) attempt: Attempt,
    pub(super) cause: Cause,
    pub(super) reason: String,
    pub(super) retry_at: Option<Timestamp>,
}

/// How a job got its outcome.
pub(super) enum JobEnding {
    Completed {
        attempt: Attempt,
        took: Duration,
    },
    Failed(FailureNotice),
    /// The plane failed it between attempts, or over the head of a running one.
    Condemned {
        reason: String,
    },
    Cancelled {
        reason: String,
    },
}

/// An event as it is stored and sent.
pub(super) struct EventDescription<'a> {
    pub(super) kind: EventKind,
    pub(super) job: Option<&'a Job>,
    pub(super) worker: Option<&'a WorkerId>,
    /// For a job that is no longer in memory.
    pub(super) delivery: Option<&'a DeliveryResult>,
    pub(super) detail: Map<String, Value>,
}

impl<'a> EventDescription<'a> {
    pub(super) fn new<const N: usize>(kind: EventKind, detail: [(&str, Value); N]) -> Self {
        let detail = detail.into_iter().map(|(name, value)| (name.to_owned(), value)).collect();
        EventDescription { kind, job: None, worker: None, delivery: None, detail }
    }

    fn job(mut self, job: &'a Job) -> Self {
        self.job = Some(job);
        self
    }

    pub(super) fn worker(mut self, worker: impl Into<Option<&'a WorkerId>>) -> Self {
        self.worker = worker.into();
        self
    }

    pub(super) fn with(mut self, name: &str, value: Option<Value>) -> Self {
        self.detail.extend(value.map(|value| (name.to_owned(), value)));
        self
    }
}

impl<'a> From<FleetEvent<'a>> for DomainEvent<'a> {
    fn from(event: FleetEvent<'a>) -> Self {
        DomainEvent::Fleet(event)
    }
}

impl<'a> DomainEvent<'a> {
    #[expect(clippy::too_many_lines, reason = "one arm for each event")]
    pub(super) fn describe(self, now: Timestamp) -> EventDescription<'a> {
        use EventDescription as It;
        use EventKind as Kind;
        match self {
            DomainEvent::JobQueued(job) => It::new(Kind::JobQueued, []).job(job),
            DomainEvent::JobStarted { job, worker } => {
                It::new(Kind::JobStarted, [("attempt", job.attempt().0.into())]).job(job).worker(worker)
            }
            DomainEvent::JobRetrying { job, worker, failure } => {
                It::new(Kind::JobRetrying, failure.detail()).job(job).worker(worker)
            }
            DomainEvent::JobRecovered { job, worker, reason } => {
                let detail = [("attempt", job.attempt().0.into()), ("reason", reason.into())];
                It::new(Kind::JobRecovered, detail).job(job).worker(worker)
            }
            DomainEvent::JobEnded { job, worker, ending } => ending.describe().job(job).worker(worker),
            DomainEvent::WorkerJoined { worker, incarnation } => {
                It::new(Kind::WorkerOnline, [("incarnation", incarnation.0.into())]).worker(worker)
            }
            DomainEvent::WorkerBack(worker) => It::new(Kind::WorkerOnline, []).worker(worker),
            DomainEvent::WorkerOffline { worker, reason } => {
                It::new(Kind::WorkerOffline, [("reason", reason.into())]).worker(worker)
            }
            DomainEvent::WorkerState { worker, reason } => worker_state(now, worker, reason),
            DomainEvent::WorkerUnreliable { worker, stale_in_an_hour } => {
                let stales = [("stale_in_an_hour", stale_in_an_hour.into())];
                It::new(Kind::WorkerUnreliable, stales).worker(worker)
            }
            DomainEvent::WorkerWarning { worker, reason } => {
                It::new(Kind::WorkerWarning, [("reason", reason.into())]).worker(worker)
            }
            DomainEvent::WorkerForgotten(worker) => It::new(Kind::WorkerForgotten, []).worker(worker),
            DomainEvent::ClientState(worker) => client_state(now, worker),
            DomainEvent::Blocked { job, worker, scope, block } => {
                let ends = block.until().to_string();
                let it = block_detail(Kind::ClientBlocked, scope, block, &block.reason);
                it.with("until", Some(ends.into())).job(job).worker(worker)
            }
            DomainEvent::Unblocked { worker, scope, block, reason } => {
                block_detail(Kind::ClientUnblocked, scope, block, reason).worker(worker)
            }
            DomainEvent::Quarantined { jobs, failed_on, trial_at } => It::new(
                Kind::WorkflowQuarantined,
                [
                    ("shape", jobs.shape.to_string().into()),
                    ("tenant", jobs.tenant.as_str().into()),
                    ("failed_on", failed_on.into()),
                    ("trial_at", trial_at.to_string().into()),
                ],
            ),
            DomainEvent::Released { jobs, reason } => It::new(
                Kind::WorkflowReleased,
                [
                    ("shape", jobs.shape.to_string().into()),
                    ("tenant", jobs.tenant.as_str().into()),
                    ("reason", reason.into()),
                ],
            ),
            DomainEvent::AffinitySet { shape, affinity } => It::new(
                Kind::AffinitySet,
                [
                    ("shape", shape.to_string().into()),
                    ("preferred", affinity.preferred.iter().map(WorkerId::as_str).collect()),
                    ("excluded", affinity.excluded.iter().map(WorkerId::as_str).collect()),
                ],
            ),
            DomainEvent::AffinityRemoved(shape) => {
                It::new(Kind::AffinityRemoved, [("shape", shape.to_string().into())])
            }
            DomainEvent::Fleet(event) => event.describe(),
            DomainEvent::BrakeOn { reason } => It::new(Kind::FleetBrake, [("reason", reason.into())]),
            DomainEvent::BrakeReleased => It::new(Kind::FleetBrakeReleased, []),
            DomainEvent::WebhookSettled(result) => webhook_settled(result),
            DomainEvent::SettingsReloaded => It::new(Kind::PlaneSettings, []),
            DomainEvent::PlaneAway(away) => It::new(Kind::PlaneAway, [("millis", millis(away))]),
            DomainEvent::ClockAtStart(start) => clock_at_start(start),
            DomainEvent::ClockChanged(difference) => It::new(Kind::PlaneClock, difference.detail()),
        }
    }
}

impl FailureNotice {
    fn detail(&self) -> [(&'static str, Value); 4] {
        [
            ("attempt", self.attempt.0.into()),
            ("cause", self.cause.as_str().into()),
            ("reason", self.reason.clone().into()),
            ("retry_at", self.retry_at.map_or(Value::Null, |at| at.to_string().into())),
        ]
    }
}

impl JobEnding {
    /// Why it ended, for the worker that still holds it.
    pub(super) fn reason(&self) -> &str {
        match self {
            JobEnding::Completed { .. } => "completed",
            JobEnding::Failed(failure) => &failure.reason,
            JobEnding::Condemned { reason } | JobEnding::Cancelled { reason } => reason,
        }
    }

    fn describe<'a>(&self) -> EventDescription<'a> {
        match self {
            JobEnding::Completed { attempt, took } => EventDescription::new(
                EventKind::JobCompleted,
                [("attempt", attempt.0.into()), ("millis", millis(*took))],
            ),
            JobEnding::Failed(failure) => EventDescription::new(EventKind::JobFailed, failure.detail()),
            JobEnding::Condemned { reason } => {
                EventDescription::new(EventKind::JobFailed, [("reason", reason.clone().into())])
            }
            JobEnding::Cancelled { reason } => {
                EventDescription::new(EventKind::JobCancelled, [("reason", reason.clone().into())])
            }
        }
    }
}

/// `state` is always a word of `WorkerState`; `available` says whether the worker takes work in it.
fn worker_state<'a>(now: Timestamp, worker: &'a Worker, reason: &str) -> EventDescription<'a> {
    let detail = [
        ("state", worker.state().as_str().into()),
        ("available", worker.availability(now).is_ready().into()),
        ("reason", reason.into()),
    ];
    let probation = worker.probation.until().filter(|until| now < *until);
    EventDescription::new(EventKind::WorkerState, detail)
        .with("probation_until", probation.map(|until| until.to_string().into()))
        .worker(&worker.id)
}

fn client_state(now: Timestamp, worker: &Worker) -> EventDescription<'_> {
    let is_online = worker.presence() == Presence::Online && worker.state() == WorkerState::Active;
    let detail = [
        ("online", is_online.into()),
        ("available", worker.availability(now).is_ready().into()),
        ("presence", worker.presence().as_str().into()),
        ("state", worker.state().as_str().into()),
        ("busy", worker.assignments.len().into()),
        ("slots", worker.slots.into()),
        ("reason", worker.shown_reason().into()),
    ];
    EventDescription::new(EventKind::ClientState, detail).worker(&worker.id)
}

/// A worker and a workflow that fail together.
fn block_detail<'a>(
    kind: EventKind,
    scope: &BlockScope,
    block: &Block,
    reason: &str,
) -> EventDescription<'a> {
    let detail = [
        ("scope", scope.name().into()),
        ("shape", block.shape.to_string().into()),
        ("workflow_hash", block.workflow_hash.to_string().into()),
        ("failures", block.failures().into()),
        ("reason", reason.into()),
    ];
    EventDescription::new(kind, detail)
}

fn clock_at_start<'a>(start: &ClockStart) -> EventDescription<'a> {
    let difference = ClockDifference::new(start.now, start.wall);
    let detail = [("ahead_millis", difference.ahead_millis.into()), ("problem", start.problem().into())];
    EventDescription::new(EventKind::PlaneClock, detail)
        .with("from", start.set_back.map(|it| it.from.to_string().into()))
        .with("to", start.set_back.map(|it| it.to.to_string().into()))
}

fn webhook_settled(result: &DeliveryResult) -> EventDescription<'_> {
    let kind = if result.problem.is_none() { EventKind::WebhookDelivered } else { EventKind::WebhookGivenUp };
    let mut it = EventDescription::new(kind, [("tries", result.tries.into())])
        .with("reason", result.problem.clone().map(Into::into));
    it.delivery = Some(result);
    it
}

fn millis(time: Duration) -> Value {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX).into()
}
