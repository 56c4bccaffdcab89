//! Late, repeated and mistaken messages are normal. They get a `Refusal`, which is an answer and not an error:
//! nothing changed, and it says why.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use crate::id::{FleetId, Incarnation, JobId, MachineId, Tenant, WorkerId};
use crate::time::humanize;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The job may not start before its retry time.
    TooEarly,
    /// A newer attempt, another worker or another incarnation holds the job.
    StaleAttempt,
    /// The job has no running attempt.
    NotRunning,
    /// The job has its outcome, and an outcome never changes.
    Ended {
        state: &'static str,
    },
    /// This outcome is already recorded; the answer to the first report was lost.
    AlreadyRecorded,
    UnknownJob(JobId),
    UnknownWorker(WorkerId),
    UnknownMachine(MachineId),
    UnknownFleet(FleetId),
    /// A worker of a rented machine joined without the machine's token, or with one that was already used.
    IdentityUnproven(MachineId),
    /// The machine was given up and is being returned: its worker must stop.
    MachineRetired(MachineId),
    /// A newer incarnation joined under this name.
    StaleIncarnation {
        current: Incarnation,
    },
    /// A copy of a join that was seen before, or one that its process sent before its newest.
    RepeatedJoin(WorkerId),
    /// A worker joined and offers no service.
    NoService(WorkerId),
    /// A worker sent more than its join agreed on.
    OutOfBounds {
        what: &'static str,
        found: usize,
        max: usize,
    },
    /// A later beat of the same worker was already seen.
    StaleBeat {
        newest: u64,
    },
    WrongToken,
    /// The same idempotency key came with another body.
    KeyConflict {
        job: JobId,
    },
    /// The plane holds the maximum of unfinished jobs.
    QueueFull {
        open_max: usize,
        retry_after: Duration,
    },
    /// The tenant has or does as much as it may; other tenants are not affected.
    QuotaExceeded {
        tenant: Tenant,
        quota: QuotaKind,
        limit: u64,
        current: u64,
        /// Where waiting helps.
        retry_after: Option<Duration>,
    },
    /// No worker has these model files and node classes, and no fleet could bring them. Both are empty if each exists
    /// somewhere, and nowhere all of them.
    NoCapability {
        models: BTreeSet<String>,
        classes: BTreeSet<String>,
    },
    /// The operator does not let this tenant use a node class of the workflow.
    ForbiddenClass {
        tenant: Tenant,
        class: String,
    },
    /// The job asks for workers of another pool than its tenant's.
    ForeignPool {
        tenant: Tenant,
        label: String,
    },
    /// The worker is draining or has left.
    Leaving(WorkerId),
    MachineLeaving(MachineId),
    /// The maximum of affinities is reached.
    TooManyAffinities {
        max: usize,
    },
    /// There is no such block, quarantine or affinity.
    NothingToRemove {
        what: String,
    },
}

/// What a tenant has or does too much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuotaKind {
    OpenJobs,
    SubmissionRate,
    DistinctNeeds,
    /// Of blobs, workflows and results.
    StoredBytes,
    /// Of one of its tokens.
    TokenOpenJobs,
    /// Of one of its tokens.
    TokenSubmissionRate,
}

impl QuotaKind {
    /// For programs.
    pub fn as_str(self) -> &'static str {
        match self {
            QuotaKind::OpenJobs => "open_jobs",
            QuotaKind::SubmissionRate => "submissions_per_second",
            QuotaKind::DistinctNeeds => "distinct_needs",
            QuotaKind::StoredBytes => "stored_bytes",
            QuotaKind::TokenOpenJobs => "token_open_jobs",
            QuotaKind::TokenSubmissionRate => "token_submissions_per_second",
        }
    }

    /// The setting with the limit.
    pub fn setting(self) -> &'static str {
        match self {
            QuotaKind::OpenJobs => "quota.open_jobs_max",
            QuotaKind::SubmissionRate => "quota.submissions_per_second",
            QuotaKind::DistinctNeeds => "quota.distinct_needs_max",
            QuotaKind::StoredBytes => "quota.stored_bytes_max",
            QuotaKind::TokenOpenJobs => "quota.token_open_jobs_max",
            QuotaKind::TokenSubmissionRate => "quota.token_submissions_per_second",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::TooEarly => f.write_str("the job waits for its retry time"),
            Refusal::StaleAttempt => f.write_str("this attempt is no longer the job's current one"),
            Refusal::NotRunning => f.write_str("the job has no attempt under way"),
            Refusal::Ended { state } => write!(f, "the job is already {state}, and an outcome never changes"),
            Refusal::AlreadyRecorded => f.write_str("this outcome is already recorded"),
            Refusal::UnknownJob(job) => write!(f, "job {job} is unknown or has ended"),
            Refusal::UnknownWorker(worker) => write!(f, "there is no worker {worker}: it has to join first"),
            Refusal::UnknownMachine(machine) => write!(f, "there is no machine {machine}"),
            Refusal::UnknownFleet(fleet) => {
                write!(f, "there is no fleet {fleet}: fleets are [[fleet]] in remuda.toml")
            }
            Refusal::IdentityUnproven(machine) => {
                write!(
                    f,
                    "machine {machine} is rented: a worker there must join with the machine's own token, which is valid \
                     once"
                )
            }
            Refusal::MachineRetired(machine) => {
                write!(f, "machine {machine} was given up and is being returned: stop")
            }
            Refusal::StaleIncarnation { current } => {
                write!(
                    f,
                    "a newer worker of this name has joined (incarnation {current}): stop, or join again"
                )
            }
            Refusal::RepeatedJoin(worker) => {
                write!(f, "this join of {worker} is a copy or came late: join again")
            }
            Refusal::NoService(worker) => write!(f, "worker {worker} offers no service: name at least one"),
            Refusal::OutOfBounds { what, found, max } => {
                write!(f, "{found} {what} are more than this worker may report: at most {max}")
            }
            Refusal::StaleBeat { newest } => {
                write!(f, "a later beat (number {newest}) has been seen already")
            }
            Refusal::WrongToken => {
                f.write_str("the token is not the one this worker was given when it joined")
            }
            Refusal::KeyConflict { job } => {
                write!(f, "this idempotency key was used for job {job} with a different body")
            }
            Refusal::QueueFull { open_max, retry_after } => {
                write!(
                    f,
                    "{open_max} jobs are unfinished, the maximum (`limits.open_jobs_max`): try again in {}",
                    humanize(*retry_after)
                )
            }
            Refusal::QuotaExceeded { tenant, quota, limit, current, retry_after } => {
                write_quota(f, tenant, *quota, (*limit, *current), *retry_after)
            }
            Refusal::NoCapability { models, classes } => write_lacking(f, models, classes),
            Refusal::ForbiddenClass { tenant, class } => write_forbidden(f, tenant, class),
            Refusal::ForeignPool { tenant, label } => {
                write!(f, "jobs of tenant {tenant} run on its own workers: ask for no other {label:?} label")
            }
            Refusal::Leaving(worker) => write!(f, "worker {worker} is already leaving"),
            Refusal::MachineLeaving(machine) => write!(f, "machine {machine} is already leaving"),
            Refusal::TooManyAffinities { max } => {
                write!(f, "the maximum of {max} affinities is reached: remove one first")
            }
            Refusal::NothingToRemove { what } => write!(f, "there is no {what}"),
        }
    }
}

fn write_forbidden(f: &mut fmt::Formatter<'_>, tenant: &Tenant, class: &str) -> fmt::Result {
    write!(
        f,
        "tenant {tenant} may not use the node class {class:?} on this plane: remove the node, or ask its operator"
    )
}

fn write_quota(
    f: &mut fmt::Formatter<'_>,
    tenant: &Tenant,
    quota: QuotaKind,
    (limit, current): (u64, u64),
    retry_after: Option<Duration>,
) -> fmt::Result {
    let setting = quota.setting();
    match quota {
        QuotaKind::OpenJobs => write!(
            f,
            "tenant {tenant} has {current} unfinished jobs and may have {limit} ({setting}): cancel some or wait until some \
             have ended"
        )?,
        QuotaKind::SubmissionRate => write!(
            f,
            "tenant {tenant} is {current} submissions ahead of its {limit} a second ({setting}): submit more slowly"
        )?,
        QuotaKind::DistinctNeeds => write!(
            f,
            "tenant {tenant} has unfinished jobs with {current} different needs and may have {limit} ({setting}): give jobs \
             the same needs, or wait until some have ended"
        )?,
        QuotaKind::StoredBytes => write!(
            f,
            "tenant {tenant} has stored {current} bytes of files, workflows and results and may store {limit} ({setting}): \
             delete assets, or wait until what is old is cleared away (`retention`)"
        )?,
        QuotaKind::TokenOpenJobs => write!(
            f,
            "this token of tenant {tenant} has {current} unfinished jobs and may have {limit} ({setting}): cancel some or \
             wait until some have ended"
        )?,
        QuotaKind::TokenSubmissionRate => write!(
            f,
            "this token of tenant {tenant} is {current} submissions ahead of its {limit} a second ({setting}): submit more \
             slowly"
        )?,
    }
    retry_after.map_or(Ok(()), |wait| write!(f, "; try again in {}", humanize(wait)))
}

fn write_lacking(
    f: &mut fmt::Formatter<'_>,
    models: &BTreeSet<String>,
    classes: &BTreeSet<String>,
) -> fmt::Result {
    let names = |kind: &str, names: &BTreeSet<String>| {
        let names: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
        (!names.is_empty()).then(|| format!("{kind} {}", names.join(", ")))
    };
    let lacking = [names("model", models), names("node class", classes)];
    let lacking: Vec<_> = lacking.into_iter().flatten().collect();
    match lacking.is_empty() {
        true => f.write_str("no worker has all models and node classes that the job needs")?,
        false => write!(f, "no worker has {}", lacking.join(" and "))?,
    }
    f.write_str(
        ", and no fleet could bring it: correct the name, or submit with wait_for_capability to wait for one",
    )
}
