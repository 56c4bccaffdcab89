//! Applies a sabotage at the boundary between the core and the world: forged beats, answers, probes and commits. Each
//! hook stands for a line of code that could be deleted by mistake. `fleets` has the hooks that need a provider.

mod fleets;

use remuda_core::event_kind::EventKind;
use remuda_core::id::Term;
use remuda_core::plane::PlaneEvent;
use remuda_core::record::{JobStatus, QuarantineRow, Record, StateRow, StoredState};
use remuda_core::scope::{BlockScope, TenantShape};
use remuda_core::service::{FailingNode, ProbeResult, ServiceFailure, ServiceFault, ServiceIncarnation};
use remuda_core::wire::{AttemptOutcome, FinishedAttempt, HeldAttempt, StartOrder};

use super::World;
use crate::driver::Driver;
use crate::net::{AgentResponse, Caller, PlaneCall, PlaneRequest};
use crate::sabotage::Sabotage;
use crate::service::Key;

impl World<'_> {
    pub(super) fn acquire_term(&mut self) -> Term {
        if self.is_sabotaged(Sabotage::LoseBatch)
            && let Some(previous_store) = self.previous_store.take()
        {
            let term = self.store.term;
            self.store = *previous_store;
            self.store.term = term;
        }
        self.store.lead()
    }

    pub(super) fn restore(&mut self) -> StoredState {
        let mut stored = self.store.restore();
        if self.is_sabotaged(Sabotage::ReuseAttempt) {
            let waiting =
                stored.jobs.iter_mut().filter(|(_, status)| matches!(status.state, StateRow::Queued { .. }));
            waiting.for_each(|(_, status)| status.attempt.0 = status.attempt.0.saturating_sub(1));
        }
        if self.is_sabotaged(Sabotage::ForgetAffinities) {
            stored.documents.clear();
        }
        self.maybe_forget_machines(&mut stored);
        stored
    }

    /// Commits a batch. Returns whether the store accepted its term.
    pub(super) fn commit(&mut self, term: Term, mut records: Vec<Record>) -> bool {
        if term < self.store.term && !self.is_sabotaged(Sabotage::NoTerm) {
            return false;
        }
        self.tamper(&mut records);
        if self.is_sabotaged(Sabotage::LoseBatch) {
            self.previous_store = Some(Box::new(self.store.clone()));
        }
        self.laws.committed(self.now, term, &records, &self.store, &self.scenario);
        self.laws.rentals_committed(self.now, &records, &self.account, &self.scenario);
        records.into_iter().for_each(|record| self.store.apply(record));
        true
    }

    fn tamper(&mut self, records: &mut Vec<Record>) {
        match self.sabotage {
            Some(Sabotage::ChangeOutcome) => {
                let done = self.store.jobs.iter().find(|(_, (_, status))| !status.state.is_open());
                if let Some((job, (_, status))) = done {
                    let mut status = status.clone();
                    status.state = StateRow::Cancelled { message: "forged".to_owned() };
                    records.push(Record::JobStatus { job: *job, status });
                }
            }
            Some(Sabotage::DoubleTerminal) => {
                let is_end = |record: &&Record| matches!(record, Record::Event(it) if it.kind == EventKind::JobCompleted);
                if let Some(end) = records.iter().find(is_end).cloned() {
                    records.push(end);
                }
            }
            Some(Sabotage::BlockByShape) => {
                for record in records {
                    if let Record::Block(row) = record {
                        row.scope = BlockScope::Shape(row.shape);
                    }
                }
            }
            Some(Sabotage::QuarantineAnyFailure) => {
                let blocked = records.iter().find_map(|record| match record {
                    Record::Block(row) => Some(row.clone()),
                    _ => None,
                });
                records.extend(blocked.map(|row| {
                    Record::Quarantine(QuarantineRow {
                        jobs: TenantShape { shape: row.shape, tenant: row.tenant },
                        failed_on: [row.worker].into(),
                        trial_at: Some(row.until),
                        trials_failed: 0,
                        reason: row.reason,
                    })
                }));
            }
            Some(Sabotage::FailUntried) => {
                for record in records {
                    if let Record::JobStatus { status, .. } = record
                        && matches!(status.state, StateRow::Failed { .. })
                    {
                        status.attempts.clear();
                    }
                }
            }
            Some(Sabotage::DropEvent) => {
                let at = records.iter().position(|record| matches!(record, Record::Event(_)));
                if let Some(at) = at.filter(|_| self.random.permille(100)) {
                    records.remove(at);
                }
            }
            _ => {}
        }
    }

    /// The beat that the plane sees.
    pub(super) fn forged_beat(&mut self, driver: &Driver, event: PlaneEvent) -> PlaneEvent {
        let (Some(sabotage), PlaneEvent::Beat { worker, token_hash, mut beat, long_poll }) =
            (self.sabotage, event.clone())
        else {
            return event;
        };
        let plane = &driver.plane;
        match sabotage {
            Sabotage::IgnoreInventory => {
                let holds = plane.worker(&worker).into_iter().flat_map(|worker| &worker.assignments);
                for (job, hold) in holds {
                    let is_over = beat.finished.iter().any(|it| it.job == *job && it.attempt == hold.attempt);
                    if !is_over && beat.held.iter().all(|held| held.job != *job) {
                        beat.held.push(forged(*job, hold.attempt));
                    }
                }
            }
            Sabotage::AcceptStaleBeats => {
                let Some(worker) = plane.worker(&worker) else { return event };
                (beat.incarnation, beat.term) = (worker.incarnation, driver.term);
                beat.seq = beat.seq.max(worker.beat_seq + 1);
                return PlaneEvent::Beat {
                    worker: worker.id.clone(),
                    token_hash: worker.token_hash,
                    beat,
                    long_poll,
                };
            }
            Sabotage::DropFence => {
                let holder = |it: &FinishedAttempt| {
                    let current = plane.workers().find(|worker| worker.assignments.contains_key(&it.job))?;
                    (current.id != worker).then_some(current)
                };
                let Some((finished, holder)) =
                    beat.finished.iter().find_map(|it| Some((it.clone(), holder(it)?)))
                else {
                    return event;
                };
                let attempt =
                    holder.assignments.get(&finished.job).map_or(finished.attempt, |hold| hold.attempt);
                (beat.incarnation, beat.seq, beat.term) =
                    (holder.incarnation, holder.beat_seq + 1, driver.term);
                beat.held = holder.assignments.iter().map(|(job, hold)| forged(*job, hold.attempt)).collect();
                beat.held.retain(|held| held.job != finished.job);
                beat.finished = vec![FinishedAttempt { attempt, ..finished }];
                return PlaneEvent::Beat {
                    worker: holder.id.clone(),
                    token_hash: holder.token_hash,
                    beat,
                    long_poll: false,
                };
            }
            Sabotage::ForgetErrors => {
                for finished in &mut beat.finished {
                    let id = self.random.draw().to_string();
                    finished.node = Some(Box::new(FailingNode { id, class: None, exception: None }));
                }
            }
            Sabotage::SettleAndForget if self.random.permille(100) => {
                let is_completed = |it: &FinishedAttempt| it.outcome == AttemptOutcome::Completed;
                self.falsely_settled.extend(
                    beat.finished.iter().filter(|it| is_completed(it)).map(|it| (it.job, it.attempt)),
                );
                beat.finished.retain(|it| !is_completed(it));
            }
            _ => {}
        }
        PlaneEvent::Beat { worker, token_hash, beat, long_poll }
    }

    pub(super) fn forged_answer(&mut self, answer: AgentResponse) -> AgentResponse {
        match answer {
            AgentResponse::Reply(mut reply) if !self.falsely_settled.is_empty() => {
                for (job, attempt) in std::mem::take(&mut self.falsely_settled) {
                    reply.settled.push(remuda_core::wire::SettledAttempt { job, attempt, refused: None });
                }
                AgentResponse::Reply(reply)
            }
            AgentResponse::Reply(mut reply) if self.is_sabotaged(Sabotage::RestartCancelled) => {
                reply.start.extend(self.start_cancelled_job());
                AgentResponse::Reply(reply)
            }
            answer => answer,
        }
    }

    fn start_cancelled_job(&self) -> Option<StartOrder> {
        let is_cancelled = |status: &JobStatus| matches!(status.state, StateRow::Cancelled { .. });
        let (job, (accepted, status)) =
            self.store.jobs.iter().find(|(_, (_, status))| is_cancelled(status))?;
        let attempt = status.attempt.next();
        Some(StartOrder {
            job: *job,
            attempt,
            service: accepted.service.clone(),
            service_job_id: job.service_job_id(attempt),
            include_outputs: std::collections::BTreeSet::new(),
            workflow: Some(self.result.clone()),
            keys: Default::default(),
        })
    }

    /// The probe result that the agent sees.
    pub(super) fn forged_seen(
        &self,
        key: Key,
        status: ServiceIncarnation,
        seen: ProbeResult,
    ) -> (ServiceIncarnation, ProbeResult) {
        match (self.sabotage, seen) {
            (Some(Sabotage::RequeueOnNoAnswer), ProbeResult::NoAnswer(_)) => (status, ProbeResult::Unknown),
            (Some(Sabotage::TrustOneUnknown), ProbeResult::Unknown) => {
                let failure = ServiceFailure::new(ServiceFault::Lost, "the service does not know it");
                (status, ProbeResult::Failed(failure))
            }
            (Some(Sabotage::IgnoreServiceRestart), ProbeResult::Unknown)
                if self.accepted_in.get(&key).is_some_and(|then| *then < status) =>
            {
                (status, ProbeResult::Running)
            }
            (_, seen) => (status, seen),
        }
    }

    /// Treats a silent worker as one that holds nothing.
    pub(super) fn maybe_forge_empty_inventory(&mut self, host: usize) {
        if self.is_sabotaged(Sabotage::RequeueOnTimeout) {
            self.forge_beat(host, false);
        }
    }

    /// Reports a cut connection as one that its worker closed.
    pub(super) fn maybe_forge_close(&mut self, host: usize) {
        if !self.is_sabotaged(Sabotage::NoMassLossBrake) {
            return;
        }
        let worker = self.hosts[host].name().clone();
        let parked = self.lead.and_then(|at| self.drivers[at].as_ref()?.parked.get(&worker).copied());
        if let Some(poll) = parked {
            let request = PlaneRequest::ConnectionLost { worker, seq: poll.call & 0xffff_ffff };
            let id = self.next_call();
            self.arrive(PlaneCall { from: Caller::None, id, request });
        }
    }

    /// Sends beats for dead workers.
    pub(super) fn maybe_forge_ghost_beats(&mut self) {
        if self.is_sabotaged(Sabotage::GhostBeats) {
            let dead: Vec<_> = (0..self.hosts.len()).filter(|host| self.hosts[*host].is_removed).collect();
            dead.into_iter().for_each(|host| self.forge_beat(host, true));
        }
    }

    fn forge_beat(&mut self, host: usize, names_all: bool) {
        let id = self.next_call();
        let it = &self.hosts[host];
        let Some(driver) = self.lead.and_then(|at| self.drivers[at].as_ref()) else { return };
        let Some(worker) = driver.plane.worker(it.name()) else { return };
        let held = worker.assignments.iter().map(|(job, hold)| forged(*job, hold.attempt));
        let beat = remuda_core::wire::Beat {
            incarnation: worker.incarnation,
            seq: worker.beat_seq + 1,
            term: driver.term,
            held: if names_all { held.collect() } else { Vec::new() },
            finished: Vec::new(),
            unavailable_reason: None,
            slots: None,
            offer: None,
            metrics: serde_json::Map::new(),
            check: None,
            draining: false,
            service_restarts: None,
            probes: Default::default(),
        };
        let request = PlaneRequest::Beat {
            worker: worker.id.clone(),
            token: worker.token_hash,
            beat: Box::new(beat),
            wait: 0,
        };
        self.arrive(PlaneCall { from: Caller::None, id, request });
    }

    /// Removes a block as soon as it ends, without a trial.
    pub(super) fn maybe_lift(&mut self, driver: &Driver) -> Option<PlaneEvent> {
        if !self.is_sabotaged(Sabotage::NoHalfOpen) {
            return None;
        }
        let over = driver.plane.blocks().iter().find(|(_, _, block)| !block.is_blocked());
        over.map(|(worker, _, block)| PlaneEvent::LiftBlock { worker: worker.clone(), hash: block.shape })
    }
}

fn forged(job: remuda_core::id::JobId, attempt: remuda_core::id::Attempt) -> HeldAttempt {
    HeldAttempt { job, attempt, progress: 0.0, step: 0, phase: String::new(), service: None }
}
