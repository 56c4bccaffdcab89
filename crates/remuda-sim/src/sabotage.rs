//! Deliberate defects, and the laws that must detect each. A suite that stays green with one of them is too weak. The
//! hooks are in `world::sabotage`; some defects are a changed setting.

use std::time::Duration;

use remuda_core::settings::{BlockOn, Settings, StuckPolicy};

use crate::law::Law;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Clients get their acknowledgement before the batch is committed.
    AckBeforeCommit,
    /// A restart finds the store as it was one batch earlier.
    LoseBatch,
    /// A cancelled outcome overwrites a finished one.
    ChangeOutcome,
    /// A job's terminal event is published twice.
    DoubleTerminal,
    /// A report about a job counts for its current attempt, whichever worker sent it.
    DropFence,
    /// A beat counts regardless of its age and incarnation.
    AcceptStaleBeats,
    /// A copy of a join counts as the start of a new process.
    TrustRepeatedJoins,
    /// A restart forgets that an attempt number was used.
    ReuseAttempt,
    /// Orders are sent before the attempt is committed.
    OrdersBeforeCommit,
    /// A worker that does not answer in time is assumed to hold nothing.
    RequeueOnTimeout,
    /// A starting plane counts its own downtime as the workers' silence.
    NoStartGrace,
    /// The plane is given the time of a wall clock that is set while it runs.
    WallClockLeases,
    /// A plane never starts at a time before the latest stored one.
    KeepWrongTime,
    /// A plane whose time goes back leaves the stored times as they are.
    KeepWrongRecords,
    /// An attempt has a fixed time limit, regardless of its progress.
    FixedTimeLimit,
    /// A cut connection counts as closed by its worker, so that no brake holds when the plane is cut off.
    NoMassLossBrake,
    /// A worker is suspect before its next beat is due.
    HastySuspicion,
    /// Proof that messages arrive is believed after ten minutes only.
    DoubtProof,
    /// Dead workers keep their attempts for two minutes.
    PatientLease,
    /// A plane that stood still counts that time as its workers' silence.
    BlameForOwnFreeze,
    /// Attempts that a worker no longer lists are still assumed to run there.
    IgnoreInventory,
    /// A job may have any number of attempts.
    NoAttemptCap,
    /// A job that takes down workers gets another one.
    PoisonSpreads,
    /// One worker that went down is enough to call a job poison.
    HastyPoison,
    /// A job that failed may wait ten minutes for its retry.
    SlowRetries,
    /// A job whose worker died may wait two minutes for its retry.
    SlowRecovery,
    /// The store accepts writes of any term.
    NoTerm,
    /// Any number of blocks is kept.
    UnboundedBlocks,
    /// Blocks apply to the exact workflow, with its texts and seeds, whatever the evidence.
    BlockByHash,
    /// The first failure blocks the whole shape, for every tenant.
    BlockByShape,
    /// A shape is quarantined for failures that were not its own.
    QuarantineAnyFailure,
    /// Waiting jobs fail with the one that failed.
    FailUntried,
    /// An error that comes back is not recognised.
    ForgetErrors,
    /// A block that ends is removed at once, without a trial.
    NoHalfOpen,
    /// Blocks and quarantines never end.
    EndlessBlocks,
    /// Beats keep coming for dead workers.
    GhostBeats,
    /// Idle workers beat three times a second.
    BusyBeats,
    /// All jobs belong to one tenant: first come, first served.
    OneTenant,
    /// Some events are not stored.
    DropEvent,
    /// A result is confirmed as recorded and then dropped.
    SettleAndForget,
    /// A batch whose commit failed still takes effect.
    RunUncommittedEffects,
    /// Only the service's history is queried, so pending and running prompts are unknown.
    HistoryOnly,
    /// History is queried before the queue, so a prompt that ends in between is in neither.
    HistoryFirst,
    /// The id of an attempt at the service is recorded only after the service has answered.
    RecordIdAfterSubmit,
    /// A service that does not answer is assumed to know nothing.
    RequeueOnNoAnswer,
    /// A submission without an answer is sent again without a query.
    ResubmitBlindly,
    /// One "unknown" answer is enough to give an attempt up.
    TrustOneUnknown,
    /// A restarted service is assumed to still have its prompts.
    IgnoreServiceRestart,
    /// A socket that closed or fell silent is not opened again.
    NeverReopen,
    /// A "done" message is taken as the result.
    TrustDoneMessages,
    /// Remedies for sick services are reported as done, but not carried out.
    FakeRemedies,
    /// A silent service is never probed.
    NeverProbeSilence,
    /// Pins and exclusions of jobs are ignored.
    IgnorePins,
    /// The preferred workers of jobs are ignored.
    IgnorePreferences,
    /// A restart forgets the affinities set by operators.
    ForgetAffinities,
    /// A cancelled job is started once more.
    RestartCancelled,
    /// A creation whose answer was lost is repeated.
    RentAgain,
    /// A pod is requested before the rental is committed.
    RentBeforeCommit,
    /// A failed list counts as an empty one.
    TrustFailedLists,
    /// A pod missing from one list counts as gone.
    TrustOneList,
    /// Returns are reported as done, but not made.
    FakeReturns,
    /// Pods of another deployment are treated as ours.
    ClaimForeignPods,
    /// A fleet may have a thousand machines.
    NoMaximum,
    /// The hourly budget is ignored.
    NoHourlyBudget,
    /// The daily budget is ignored.
    NoDailyBudget,
    /// Fleets grow and shrink with every change of load.
    NoReversalCooldown,
    /// The provider is asked for its machines every second.
    BusyLists,
    /// Pods without a record are never returned.
    NoSweep,
    /// A drain has no time limit.
    EndlessDrains,
    /// A machine that was given up may still join.
    AdmitRetiredMachines,
    /// A restart forgets the rented machines.
    ForgetMachines,
    /// Work is assigned before a machine is ready.
    WorkBeforeReady,
    /// Rate limits and refused keys are ignored: the plane calls again at once.
    IgnoreWaits,
    /// An empty fleet stays empty although jobs wait.
    StayAtZero,
    /// After failed creations the next machine is rented at once.
    NoCreationBrake,
    /// A machine is accepted even if it is not what was ordered.
    AcceptAnyMachine,
    /// Drained machines still get work.
    AssignToDrained,
    /// One refused call stops every call for five minutes, returns included.
    StopOnRefusedKey,
    /// After one refused call the next list is believed to be refused, too.
    TrustOneRefusal,
    /// A lowered maximum is ignored.
    IgnoreLoweredLimits,
}

const TWO_MINUTES: Duration = Duration::from_secs(120);
const TEN_MINUTES: Duration = Duration::from_secs(600);

impl Sabotage {
    /// Every sabotage, with laws of which at least one must detect it.
    pub const ALL: [(Sabotage, &'static [Law]); 80] = [
        (Sabotage::AckBeforeCommit, &[Law::S1]),
        (Sabotage::LoseBatch, &[Law::S1]),
        (Sabotage::ChangeOutcome, &[Law::S2]),
        (Sabotage::DoubleTerminal, &[Law::S2]),
        (Sabotage::DropFence, &[Law::S3]),
        (Sabotage::AcceptStaleBeats, &[Law::S3]),
        (Sabotage::TrustRepeatedJoins, &[Law::S6]),
        (Sabotage::ReuseAttempt, &[Law::S4]),
        (Sabotage::OrdersBeforeCommit, &[Law::S5]),
        (Sabotage::RequeueOnTimeout, &[Law::S6]),
        (Sabotage::NoStartGrace, &[Law::S6]),
        (Sabotage::WallClockLeases, &[Law::S10]),
        (Sabotage::KeepWrongTime, &[Law::S10]),
        (Sabotage::KeepWrongRecords, &[Law::S10]),
        (Sabotage::FixedTimeLimit, &[Law::S6]),
        (Sabotage::NoMassLossBrake, &[Law::S6]),
        (Sabotage::HastySuspicion, &[Law::S16]),
        (Sabotage::DoubtProof, &[Law::L8]),
        (Sabotage::PatientLease, &[Law::L9]),
        (Sabotage::BlameForOwnFreeze, &[Law::L10]),
        (Sabotage::IgnoreInventory, &[Law::L4]),
        (Sabotage::NoAttemptCap, &[Law::S7]),
        (Sabotage::PoisonSpreads, &[Law::S7]),
        (Sabotage::HastyPoison, &[Law::S20]),
        (Sabotage::SlowRetries, &[Law::L1]),
        (Sabotage::SlowRecovery, &[Law::L3]),
        (Sabotage::NoTerm, &[Law::S9]),
        (Sabotage::UnboundedBlocks, &[Law::S11]),
        (Sabotage::BlockByHash, &[Law::S12]),
        (Sabotage::BlockByShape, &[Law::S17]),
        (Sabotage::QuarantineAnyFailure, &[Law::S18]),
        (Sabotage::FailUntried, &[Law::S19]),
        (Sabotage::ForgetErrors, &[Law::L7]),
        (Sabotage::NoHalfOpen, &[Law::S12]),
        (Sabotage::EndlessBlocks, &[Law::L1, Law::L6]),
        (Sabotage::GhostBeats, &[Law::L3, Law::L4]),
        (Sabotage::BusyBeats, &[Law::L5]),
        (Sabotage::OneTenant, &[Law::Fair]),
        (Sabotage::DropEvent, &[Law::Events]),
        (Sabotage::SettleAndForget, &[Law::L2]),
        (Sabotage::RunUncommittedEffects, &[Law::S1, Law::S5]),
        (Sabotage::HistoryOnly, &[Law::S6]),
        (Sabotage::HistoryFirst, &[Law::S6]),
        (Sabotage::RecordIdAfterSubmit, &[Law::S5]),
        (Sabotage::RequeueOnNoAnswer, &[Law::S6]),
        (Sabotage::ResubmitBlindly, &[Law::S4]),
        (Sabotage::TrustOneUnknown, &[Law::S6]),
        (Sabotage::IgnoreServiceRestart, &[Law::L4]),
        (Sabotage::NeverReopen, &[Law::L2]),
        (Sabotage::TrustDoneMessages, &[Law::S3]),
        (Sabotage::FakeRemedies, &[Law::L4]),
        (Sabotage::NeverProbeSilence, &[Law::L2]),
        (Sabotage::IgnorePins, &[Law::S12]),
        (Sabotage::IgnorePreferences, &[Law::S12]),
        (Sabotage::ForgetAffinities, &[Law::S12]),
        (Sabotage::RestartCancelled, &[Law::S2]),
        (Sabotage::RentAgain, &[Law::S5]),
        (Sabotage::RentBeforeCommit, &[Law::S5]),
        (Sabotage::TrustFailedLists, &[Law::S8]),
        (Sabotage::TrustOneList, &[Law::S8]),
        (Sabotage::FakeReturns, &[Law::L4]),
        (Sabotage::ClaimForeignPods, &[Law::S8]),
        (Sabotage::NoMaximum, &[Law::S8]),
        (Sabotage::NoHourlyBudget, &[Law::S8]),
        (Sabotage::NoDailyBudget, &[Law::S8]),
        (Sabotage::NoReversalCooldown, &[Law::L5]),
        (Sabotage::BusyLists, &[Law::L5]),
        (Sabotage::NoSweep, &[Law::L4]),
        (Sabotage::EndlessDrains, &[Law::L4]),
        (Sabotage::AdmitRetiredMachines, &[Law::S8]),
        (Sabotage::ForgetMachines, &[Law::S5, Law::S8]),
        (Sabotage::WorkBeforeReady, &[Law::S12]),
        (Sabotage::IgnoreWaits, &[Law::L5]),
        (Sabotage::StayAtZero, &[Law::L1]),
        (Sabotage::NoCreationBrake, &[Law::S8]),
        (Sabotage::AcceptAnyMachine, &[Law::S12]),
        (Sabotage::AssignToDrained, &[Law::S4]),
        (Sabotage::StopOnRefusedKey, &[Law::L4]),
        (Sabotage::TrustOneRefusal, &[Law::S8]),
        (Sabotage::IgnoreLoweredLimits, &[Law::S8]),
    ];

    /// Defects that a setting can express.
    pub(crate) fn configure(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        match self {
            Sabotage::NoAttemptCap => (core.attempts_max, core.infra_failures_max) = (u8::MAX, u8::MAX),
            Sabotage::PoisonSpreads => core.poison_after = u8::MAX,
            Sabotage::HastyPoison => core.poison_after = 1,
            Sabotage::SlowRetries => (core.retry_base, core.retry_max) = (TEN_MINUTES, TEN_MINUTES),
            Sabotage::SlowRecovery => (core.retry_base, core.retry_max) = (TWO_MINUTES, TWO_MINUTES),
            Sabotage::HastySuspicion => core.suspect_after = Duration::from_secs(2),
            Sabotage::DoubtProof => core.suspect_after = Duration::from_secs(600),
            Sabotage::PatientLease => core.lease = Duration::from_secs(120),
            Sabotage::FixedTimeLimit => core.stuck_policy = StuckPolicy::Age,
            Sabotage::BlockByHash => core.block_on = BlockOn::Exact,
            Sabotage::NoStartGrace | Sabotage::WallClockLeases | Sabotage::BlameForOwnFreeze => {
                core.plane_stall_max = never;
            }
            Sabotage::EndlessBlocks => {
                (core.block_cooldown, core.block_cooldown_max) = (never, never);
                core.quarantine_cooldown = never;
            }
            Sabotage::BusyBeats => core.beat_idle = Duration::from_millis(300),
            Sabotage::UnboundedBlocks => core.blocks_max = usize::MAX,
            _ => self.configure_fleets(core),
        }
    }

    /// Defects that a fleet setting can express.
    fn configure_fleets(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        for fleet in &mut core.fleets {
            match self {
                Sabotage::NoMaximum => fleet.scaling.machines_max = 1000,
                Sabotage::NoHourlyBudget => fleet.hour_max = None,
                Sabotage::NoDailyBudget => fleet.day_max = None,
                Sabotage::NoReversalCooldown => {
                    (fleet.scaling.reversal_cooldown, fleet.scaling.uptime_min) =
                        (Duration::ZERO, Duration::ZERO);
                }
                Sabotage::BusyLists => fleet.limits.list_every = Duration::from_secs(1),
                Sabotage::NoSweep => fleet.limits.orphan_grace = never,
                Sabotage::EndlessDrains => fleet.scaling.drain_timeout = never,
                _ => {}
            }
        }
    }
}
