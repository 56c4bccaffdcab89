//! Every breakage by its name, and which laws have to notice.

use std::time::Duration;

use remuda_core::settings::{BlockOn, Settings, StuckPolicy};

use crate::law::Law;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sabotage {
    /// Submitters are answered before the batch is committed.
    AckBeforeCommit,
    /// A restart finds the store as it was one batch earlier.
    LoseBatch,
    /// A failed outcome is written over a completed one.
    ChangeOutcome,
    /// A job's end is told twice.
    DoubleTerminal,
    /// What anyone reports about a job is taken for its current attempt.
    DropFence,
    /// A beat counts however old it is, and whoever sent it.
    AnyBeat,
    /// A restart forgets that an attempt's number was given out.
    ReuseAttempt,
    /// Orders leave before the attempt is stored.
    OrdersBeforeCommit,
    /// A worker that does not answer in time is taken to hold nothing.
    RequeueOnTimeout,
    /// A plane that starts blames the workers for its own absence.
    NoStartGrace,
    /// Leases are counted by a wall clock that jumps.
    WallClockLeases,
    /// An attempt may not take longer than a fixed time, however well it goes.
    FixedTimeLimit,
    /// Nothing is held back when most of the fleet falls silent at once.
    NoBrake,
    /// What a worker does not name is believed to be there all the same.
    IgnoreInventory,
    NoAttemptCap,
    PoisonSpreads,
    /// The store duration writes of any term.
    NoTerm,
    UnboundedBlocks,
    /// Blocks are kept by the whole workflow, texts and seeds included.
    BlockByHash,
    /// A block that ends is forgotten, and everything comes back at once.
    NoHalfOpen,
    EndlessBlocks,
    /// Something goes on beating for workers that are dead.
    GhostBeats,
    BusyBeats,
    /// Everyone is the same tenant: first come, first served.
    OneTenant,
    DropEvent,
    /// A report is called recorded, and is not.
    SettleAndForget,
    /// A batch that could not be stored is carried out all the same.
    CarryOutUnstored,
    /// Only a service's history is asked: what waits or runs there is not known.
    HistoryOnly,
    /// History first, then the queue: what ends in between is in neither.
    HistoryFirst,
    /// The service's own name for an attempt is written down when it has answered.
    NameAfterwards,
    /// A service that does not answer is taken to know nothing.
    RequeueOnNoAnswer,
    /// A submission whose answer was lost is sent again without looking.
    HandInBlindly,
    /// One "I do not know it" is enough.
    OneLook,
    /// A service that restarted is believed to have what it had.
    IgnoreNewLife,
    NeverReopen,
    /// A message that something is done is taken for its result.
    BelieveMessages,
    /// Sick services are said to be treated, and are not.
    PretendToTreat,
    /// Messages are waited for, however long none comes.
    NeverAskTheSilent,
    /// A pinned job runs anywhere, and with whom it excludes.
    IgnorePins,
    IgnorePreferences,
    /// A restart forgets what operators said about shapes.
    ForgetAffinities,
    /// A job that was cancelled is handed out once more.
    RestartCancelled,
    /// A creation whose answer was lost is asked for once more.
    RentAgain,
    /// A pod is asked for before anyone wrote down that it is wanted.
    RentBeforeCommit,
    /// A list that failed is taken for an empty one.
    BelieveFailedLists,
    /// What one list lacks is gone.
    TrustOneList,
    /// Returns are said to be made, and are not.
    PretendToReturn,
    /// Another deployment's pods are taken for ours.
    ReturnStrangers,
    NoMaximum,
    NoHourlyBudget,
    NoDailyBudget,
    /// Fleets grow and shrink as the load swings.
    NoDamper,
    BusyLists,
    /// Pods that nobody knows of are left alone.
    NoSweep,
    EndlessDrains,
    /// A machine that was given up is let in all the same.
    LetInTheLate,
    /// A restart forgets what was rented.
    ForgetMachines,
    /// Work is given out before a machine can do it.
    WorkBeforeReady,
    /// Whoever is asked to wait asks again.
    DeafToWaits,
    /// A fleet that is empty stays so, whatever waits.
    StayAtZero,
    /// However many machines come to nothing, the next is rented at once.
    NoCreationBrake,
    /// What is delivered is taken, whatever was ordered.
    TakeAnything,
    /// Who is drained gets work all the same.
    FeedTheDrained,
}

impl Sabotage {
    /// Every one, with the laws of which at least one must notice.
    pub const ALL: [(Sabotage, &'static [Law]); 63] = [
        (Sabotage::AckBeforeCommit, &[Law::S1]),
        (Sabotage::LoseBatch, &[Law::S1]),
        (Sabotage::ChangeOutcome, &[Law::S2]),
        (Sabotage::DoubleTerminal, &[Law::S2]),
        (Sabotage::DropFence, &[Law::S3]),
        (Sabotage::AnyBeat, &[Law::S3]),
        (Sabotage::ReuseAttempt, &[Law::S4]),
        (Sabotage::OrdersBeforeCommit, &[Law::S5]),
        (Sabotage::RequeueOnTimeout, &[Law::S6]),
        (Sabotage::NoStartGrace, &[Law::S6]),
        (Sabotage::WallClockLeases, &[Law::S6, Law::S10]),
        (Sabotage::FixedTimeLimit, &[Law::S6]),
        (Sabotage::NoBrake, &[Law::S6]),
        (Sabotage::IgnoreInventory, &[Law::L4]),
        (Sabotage::NoAttemptCap, &[Law::S7]),
        (Sabotage::PoisonSpreads, &[Law::S7]),
        (Sabotage::NoTerm, &[Law::S9]),
        (Sabotage::UnboundedBlocks, &[Law::S11]),
        (Sabotage::BlockByHash, &[Law::S12]),
        (Sabotage::NoHalfOpen, &[Law::S12]),
        (Sabotage::EndlessBlocks, &[Law::L1, Law::L6]),
        (Sabotage::GhostBeats, &[Law::L3, Law::L4]),
        (Sabotage::BusyBeats, &[Law::L5]),
        (Sabotage::OneTenant, &[Law::Fair]),
        (Sabotage::DropEvent, &[Law::Events]),
        (Sabotage::SettleAndForget, &[Law::L2]),
        (Sabotage::CarryOutUnstored, &[Law::S1, Law::S5]),
        (Sabotage::HistoryOnly, &[Law::S6]),
        (Sabotage::HistoryFirst, &[Law::S6]),
        (Sabotage::NameAfterwards, &[Law::S5]),
        (Sabotage::RequeueOnNoAnswer, &[Law::S6]),
        (Sabotage::HandInBlindly, &[Law::S4]),
        (Sabotage::OneLook, &[Law::S6]),
        (Sabotage::IgnoreNewLife, &[Law::L4]),
        (Sabotage::NeverReopen, &[Law::L2]),
        (Sabotage::BelieveMessages, &[Law::S3]),
        (Sabotage::PretendToTreat, &[Law::L4]),
        (Sabotage::NeverAskTheSilent, &[Law::L2]),
        (Sabotage::IgnorePins, &[Law::S12]),
        (Sabotage::IgnorePreferences, &[Law::S12]),
        (Sabotage::ForgetAffinities, &[Law::S12]),
        (Sabotage::RestartCancelled, &[Law::S2]),
        (Sabotage::RentAgain, &[Law::S5]),
        (Sabotage::RentBeforeCommit, &[Law::S5]),
        (Sabotage::BelieveFailedLists, &[Law::S8]),
        (Sabotage::TrustOneList, &[Law::S8]),
        (Sabotage::PretendToReturn, &[Law::L4]),
        (Sabotage::ReturnStrangers, &[Law::S8]),
        (Sabotage::NoMaximum, &[Law::S8]),
        (Sabotage::NoHourlyBudget, &[Law::S8]),
        (Sabotage::NoDailyBudget, &[Law::S8]),
        (Sabotage::NoDamper, &[Law::L5]),
        (Sabotage::BusyLists, &[Law::L5]),
        (Sabotage::NoSweep, &[Law::L4]),
        (Sabotage::EndlessDrains, &[Law::L4]),
        (Sabotage::LetInTheLate, &[Law::S8]),
        (Sabotage::ForgetMachines, &[Law::S5, Law::S8]),
        (Sabotage::WorkBeforeReady, &[Law::S12]),
        (Sabotage::DeafToWaits, &[Law::L5]),
        (Sabotage::StayAtZero, &[Law::L1]),
        (Sabotage::NoCreationBrake, &[Law::S8]),
        (Sabotage::TakeAnything, &[Law::S12]),
        (Sabotage::FeedTheDrained, &[Law::S4]),
    ];

    /// Breakages that a setting can express.
    pub(crate) fn configure(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        match self {
            Sabotage::NoAttemptCap => (core.attempts_max, core.infra_failures_max) = (u8::MAX, u8::MAX),
            Sabotage::PoisonSpreads => core.poison_after = u8::MAX,
            Sabotage::NoBrake => core.mass_loss_percent = u8::MAX,
            Sabotage::FixedTimeLimit => core.stuck_policy = StuckPolicy::Age,
            Sabotage::BlockByHash => core.block_on = BlockOn::Exact,
            Sabotage::NoStartGrace | Sabotage::WallClockLeases => core.plane_stall_max = never,
            Sabotage::EndlessBlocks => {
                (core.block_cooldown, core.block_cooldown_max) = (never, never);
                core.quarantine_cooldown = never;
            }
            Sabotage::BusyBeats => core.beat_idle = Duration::from_millis(300),
            Sabotage::UnboundedBlocks => core.blocks_max = usize::MAX,
            _ => self.configure_fleets(core),
        }
    }

    /// Breakages that a fleet's setting can express.
    fn configure_fleets(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        for fleet in &mut core.fleets {
            match self {
                Sabotage::NoMaximum => fleet.scaling.machines_max = 1000,
                Sabotage::NoHourlyBudget => fleet.hour_max = None,
                Sabotage::NoDailyBudget => fleet.day_max = None,
                Sabotage::NoDamper => {
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
