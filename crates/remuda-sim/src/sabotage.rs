//! Deliberate breakages, one at a time, at the boundary between the core and the world (or in its settings): each stands
//! for a line somebody might delete, and a suite that stays green with it is too weak. A law never seen to fail proves
//! nothing. `fleets` holds those that need a provider.

mod fleets;

use std::time::Duration;

use remuda_core::id::Term;
use remuda_core::plane::Event;
use remuda_core::record::{Life, Record, StateRow, Stored};
use remuda_core::service::{Seen, ServiceLife};
use remuda_core::settings::{BlockOn, Settings, StuckPolicy};
use remuda_core::wire::{Finished, Held, Outcome, Start};

use crate::driver::Driver;
use crate::laws::Law;
use crate::net::{Answered, Ask, Call, Caller};
use crate::service::Key;
use crate::world::World;

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
    /// The store takes writes of any term.
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
    pub(crate) fn set(self, core: &mut Settings) {
        let never = Duration::from_secs(1 << 32);
        match self {
            Sabotage::NoAttemptCap => (core.attempts_max, core.mishaps_max) = (u8::MAX, u8::MAX),
            Sabotage::PoisonSpreads => core.poison_after = u8::MAX,
            Sabotage::NoBrake => core.mass_loss_percent = u8::MAX,
            Sabotage::FixedTimeLimit => core.stuck_policy = StuckPolicy::Age,
            Sabotage::BlockByHash => core.block_on = BlockOn::Exact,
            Sabotage::NoStartGrace | Sabotage::WallClockLeases => core.own_delay_max = never,
            Sabotage::EndlessBlocks => {
                (core.block_cooldown, core.block_cooldown_max) = (never, never);
                core.quarantine_cooldown = never;
            }
            Sabotage::BusyBeats => core.beat_idle = Duration::from_millis(300),
            Sabotage::UnboundedBlocks => core.blocks_max = usize::MAX,
            _ => self.set_fleets(core),
        }
    }
}

impl World<'_> {
    pub(crate) fn take_the_lead(&mut self) -> Term {
        if self.is_sabotaged(Sabotage::LoseBatch)
            && let Some(earlier) = self.earlier.take()
        {
            let term = self.store.term;
            self.store = *earlier;
            self.store.term = term;
        }
        self.store.lead()
    }

    pub(crate) fn restore(&mut self) -> Stored {
        let mut stored = self.store.restore();
        if self.is_sabotaged(Sabotage::ReuseAttempt) {
            let waiting =
                stored.jobs.iter_mut().filter(|(_, life)| matches!(life.state, StateRow::Queued { .. }));
            waiting.for_each(|(_, life)| life.attempt.0 = life.attempt.0.saturating_sub(1));
        }
        if self.is_sabotaged(Sabotage::ForgetAffinities) {
            stored.documents.clear();
        }
        self.maybe_forget_machines(&mut stored);
        stored
    }

    /// What the store does with a batch; whether it took it.
    pub(crate) fn keep(&mut self, term: Term, mut records: Vec<Record>) -> bool {
        if term < self.store.term && !self.is_sabotaged(Sabotage::NoTerm) {
            return false;
        }
        self.tamper(&mut records);
        if self.is_sabotaged(Sabotage::LoseBatch) {
            self.earlier = Some(Box::new(self.store.clone()));
        }
        self.laws.committed(self.now, term, &records, &self.store, &self.scene);
        self.laws.rentals_committed(self.now, &records, &self.account, &self.scene);
        records.into_iter().for_each(|record| self.store.apply(record));
        true
    }

    fn tamper(&mut self, records: &mut Vec<Record>) {
        match self.sabotage {
            Some(Sabotage::ChangeOutcome) => {
                let done = self.store.jobs.iter().find(|(_, (_, life))| !life.state.is_open());
                if let Some((job, (_, life))) = done {
                    let mut life = life.clone();
                    life.state = StateRow::Cancelled { message: "or was it?".to_owned() };
                    records.push(Record::Life { job: *job, life });
                }
            }
            Some(Sabotage::DoubleTerminal) => {
                let is_end =
                    |record: &&Record| matches!(record, Record::Happened(it) if it.name == "job:completed");
                if let Some(end) = records.iter().find(is_end).cloned() {
                    records.push(end);
                }
            }
            Some(Sabotage::DropEvent) => {
                let at = records.iter().position(|record| matches!(record, Record::Happened(_)));
                if let Some(at) = at.filter(|_| self.random.permille(100)) {
                    records.remove(at);
                }
            }
            _ => {}
        }
    }

    /// A beat as the saboteur lets the plane see it.
    pub(crate) fn forged_beat(&mut self, driver: &Driver, event: Event) -> Event {
        let (Some(sabotage), Event::Beat { worker, token_hash, mut beat, waits }) =
            (self.sabotage, event.clone())
        else {
            return event;
        };
        let plane = &driver.plane;
        match sabotage {
            Sabotage::IgnoreInventory => {
                let holds = plane.worker(&worker).into_iter().flat_map(|worker| &worker.holds);
                for (job, hold) in holds {
                    let is_over = beat.finished.iter().any(|it| it.job == *job && it.attempt == hold.attempt);
                    if !is_over && beat.held.iter().all(|held| held.job != *job) {
                        beat.held.push(forged(*job, hold.attempt));
                    }
                }
            }
            Sabotage::AnyBeat => {
                let Some(worker) = plane.worker(&worker) else { return event };
                (beat.incarnation, beat.term) = (worker.incarnation, driver.term);
                beat.seq = beat.seq.max(worker.beat_seq + 1);
                return Event::Beat { worker: worker.id.clone(), token_hash: worker.token_hash, beat, waits };
            }
            Sabotage::DropFence => {
                let holder = |it: &Finished| {
                    let current = plane.workers().find(|worker| worker.holds.contains_key(&it.job))?;
                    (current.id != worker).then_some(current)
                };
                let Some((finished, holder)) =
                    beat.finished.iter().find_map(|it| Some((it.clone(), holder(it)?)))
                else {
                    return event;
                };
                let attempt = holder.holds.get(&finished.job).map_or(finished.attempt, |hold| hold.attempt);
                (beat.incarnation, beat.seq, beat.term) =
                    (holder.incarnation, holder.beat_seq + 1, driver.term);
                beat.held = holder.holds.iter().map(|(job, hold)| forged(*job, hold.attempt)).collect();
                beat.held.retain(|held| held.job != finished.job);
                beat.finished = vec![Finished { attempt, ..finished }];
                return Event::Beat {
                    worker: holder.id.clone(),
                    token_hash: holder.token_hash,
                    beat,
                    waits: false,
                };
            }
            Sabotage::SettleAndForget if self.random.permille(100) => {
                let is_completed = |it: &Finished| it.outcome == Outcome::Completed;
                self.forgotten.extend(
                    beat.finished.iter().filter(|it| is_completed(it)).map(|it| (it.job, it.attempt)),
                );
                beat.finished.retain(|it| !is_completed(it));
            }
            _ => {}
        }
        Event::Beat { worker, token_hash, beat, waits }
    }

    pub(crate) fn forged_answer(&mut self, answer: Answered) -> Answered {
        match answer {
            Answered::Reply(mut reply) if !self.forgotten.is_empty() => {
                for (job, attempt) in std::mem::take(&mut self.forgotten) {
                    let verdict = "recorded".to_owned();
                    reply.settled.push(remuda_core::wire::Settled { job, attempt, verdict });
                }
                Answered::Reply(reply)
            }
            Answered::Reply(mut reply) if self.is_sabotaged(Sabotage::RestartCancelled) => {
                reply.start.extend(self.cancelled_once_more());
                Answered::Reply(reply)
            }
            answer => answer,
        }
    }

    fn cancelled_once_more(&self) -> Option<Start> {
        let is_cancelled = |life: &Life| matches!(life.state, StateRow::Cancelled { .. });
        let (job, (accepted, life)) = self.store.jobs.iter().find(|(_, (_, life))| is_cancelled(life))?;
        let attempt = life.attempt.next();
        Some(Start {
            job: *job,
            attempt,
            service: accepted.service.clone(),
            service_job_id: job.service_job_id(attempt),
            include_outputs: std::collections::BTreeSet::new(),
            workflow: Some(self.result.clone()),
        })
    }

    /// What a service says as the saboteur lets the agent hear it.
    pub(crate) fn forged_seen(&self, key: Key, life: ServiceLife, seen: Seen) -> (ServiceLife, Seen) {
        match (self.sabotage, seen) {
            (Some(Sabotage::RequeueOnNoAnswer), Seen::NoAnswer(_)) => (life, Seen::Unknown),
            (Some(Sabotage::OneLook), Seen::Unknown) => (ServiceLife(life.0 + 1), Seen::Unknown),
            (Some(Sabotage::IgnoreNewLife), Seen::Unknown)
                if self.taken_in.get(&key).is_some_and(|then| *then < life) =>
            {
                (life, Seen::Running)
            }
            (_, seen) => (life, seen),
        }
    }

    /// Silence taken for an empty hand.
    pub(crate) fn maybe_forge_empty_inventory(&mut self, host: usize) {
        if self.is_sabotaged(Sabotage::RequeueOnTimeout) {
            self.forge_beat(host, false);
        }
    }

    /// The dead go on beating.
    pub(crate) fn maybe_beat_for_the_dead(&mut self) {
        if self.is_sabotaged(Sabotage::GhostBeats) {
            let dead: Vec<_> = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_gone).collect();
            dead.into_iter().for_each(|host| self.forge_beat(host, true));
        }
    }

    fn forge_beat(&mut self, host: usize, names_all: bool) {
        let id = self.next_call();
        let it = &self.hosts[host];
        let Some(driver) = self.lead.and_then(|at| self.drivers[at].as_ref()) else { return };
        let Some(worker) = driver.plane.worker(it.name()) else { return };
        let held = worker.holds.iter().map(|(job, hold)| forged(*job, hold.attempt));
        let beat = remuda_core::wire::Beat {
            incarnation: worker.incarnation,
            seq: worker.beat_seq + 1,
            term: driver.term,
            held: if names_all { held.collect() } else { Vec::new() },
            finished: Vec::new(),
            closed: String::new(),
            slots: None,
            offer: None,
            metrics: serde_json::Map::new(),
            check: None,
            draining: false,
        };
        let ask =
            Ask::Beat { worker: worker.id.clone(), token: worker.token_hash, beat: Box::new(beat), wait: 0 };
        self.arrive(Call { from: Caller::Nobody, id, ask });
    }

    /// Full traffic returns as soon as a block ends.
    pub(crate) fn maybe_lift(&mut self, driver: &Driver) -> Option<Event> {
        if !self.is_sabotaged(Sabotage::NoHalfOpen) {
            return None;
        }
        let over = driver.plane.blocks().iter().find(|(_, _, block)| !block.is_blocked());
        over.map(|(worker, shape, _)| Event::Lift { worker: worker.clone(), shape: *shape })
    }
}

fn forged(job: remuda_core::id::JobId, attempt: remuda_core::id::Attempt) -> Held {
    Held { job, attempt, progress: 0.0, step: 0, phase: String::new(), service: None }
}
