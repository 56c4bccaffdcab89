//! Reconciliation of a beat: it lists every attempt the worker holds. An attempt that an earlier beat listed and this one
//! omits is lost; one that was never listed is sent again, and is lost after a grace period; one that the plane does not
//! know is cancelled.

use std::collections::BTreeSet;

use super::attempts::Blame;
use super::workers::PresenceChange;
use super::{DomainEvent, Plane, PlaneAnswer, PlaneEffect};
use crate::cause::Cause;
use crate::id::{Hash, JobId, WorkerId};
use crate::machine::{Presence, WorkerState};
use crate::record::Record;
use crate::refusal::Refusal;
use crate::time::Timestamp;
use crate::verdict::AttemptVerdict;
use crate::wire::{AttemptOutcome, Beat, BeatReply, CancelOrder, HeldAttempt, SettledAttempt, StartOrder};
use crate::worker::{Assignment, ContactEvent, LifeEvent, PendingCancel, WorkerLine};
use crate::workflow::JobKeys;

/// A worker's row is stored at most this often because of beats alone.
const ROW_EVERY: std::time::Duration = std::time::Duration::from_secs(30);
/// And at most this often because of its counters: a crash may lose this much of them.
const COUNTS_EVERY: std::time::Duration = std::time::Duration::from_secs(1);
/// Start orders sent before the attempt counts as never received. While the store is slow a reply comes late, and a
/// beat with progress or results may overtake the one whose reply carries the order.
const SENDS_MIN: u32 = 3;
/// Beats that queued up while the plane was busy are answered together and count as one order sent: a busy worker
/// beats this often.
const RESEND_AFTER: std::time::Duration = std::time::Duration::from_secs(5);

impl Plane {
    pub(super) fn beat(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        token_hash: Hash,
        beat: &Beat,
        long_poll: bool,
    ) -> Result<PlaneAnswer, Refusal> {
        let term = self.term;
        // Checked before the token, which changed with the incarnation: a replaced worker should learn that, not that
        // its token is wrong.
        match self.workers.get(id).map(|worker| worker.incarnation) {
            Some(current) if beat.incarnation < current => return Err(Refusal::StaleIncarnation { current }),
            // An incarnation from the future: the store was restored from a backup. The worker must join again.
            Some(current) if beat.incarnation > current => return Err(Refusal::UnknownWorker(id.clone())),
            Some(_) | None => {}
        }
        self.workers.authenticate(id, token_hash)?;
        let worker = self.workers.expect(id)?;
        if beat.incarnation != worker.incarnation {
            return Err(Refusal::StaleIncarnation { current: worker.incarnation });
        }
        if worker.has_left {
            // The worker left after sending this beat: it does not come back to life. If it is still running, it
            // joins again.
            return Err(Refusal::UnknownWorker(id.clone()));
        }
        beat.check(worker.slots_max)?;
        if beat.term != term {
            // The beat may be from before the restart, or a copy of one: it is no evidence of anything.
            return Ok(PlaneAnswer::Reply(BeatReply { term, beat_again: true, ..BeatReply::default() }));
        }
        if beat.seq <= worker.beat_seq {
            return Err(Refusal::StaleBeat { newest: worker.beat_seq });
        }
        (worker.beat_seq, worker.line) = (beat.seq, WorkerLine::Quiet);
        let (seq, is_draining) = (beat.seq, beat.draining);
        let has_other_room = beat.slots_within(worker.slots_max).is_some_and(|slots| slots != worker.slots);
        // Not a beat that ends an attempt: a worker that overstates its slots would be retried after every job.
        let is_idle = worker.assignments.is_empty()
            && worker.cancels.is_empty()
            && beat.held.is_empty()
            && beat.finished.is_empty();
        self.apply_beat(now, id, beat);
        let settled = self.settle(now, id, beat);
        if let Some(worker) = self.workers.get_mut(id).filter(|_| has_other_room || is_idle) {
            // Orders it rejected before say nothing about its slots now; of an idle worker's slots some may have been
            // taken by its previous process.
            worker.slots_observed = None;
        }
        self.reconcile(now, id, beat);
        self.assign(now, id);
        let mut reply = self.orders(now, id, seq);
        reply.settled = settled;
        let again = self.settings.beat_busy;
        let Some(worker) = self.workers.get_mut(id) else { return Ok(PlaneAnswer::Reply(reply)) };
        let sends_drain = reply.drain && !is_draining && is_due(now, worker.drain_sent_at, again);
        if reply.is_empty() && !sends_drain && long_poll {
            worker.line = WorkerLine::Polling;
            return Ok(PlaneAnswer::Pending);
        }
        worker.drain_sent_at = Some(now).filter(|_| reply.drain);
        Ok(PlaneAnswer::Reply(reply))
    }

    /// The worker is alive; takes over what it reports about itself.
    fn apply_beat(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        // A rented worker was given up together with its machine, which is being returned.
        let is_rented = self.fleets.is_rented(&worker.machine);
        worker.watch.signal(now);
        let age = now.since(worker.stored_at);
        let is_old = age >= ROW_EVERY || age >= COUNTS_EVERY && worker.counts != worker.stored_counts;
        let has_restarted =
            beat.service_restarts > worker.service_restarts && worker.service_restarts.is_some();
        worker.service_restarts = beat.service_restarts.or(worker.service_restarts);
        if has_restarted {
            self.trust.service_restarted(now, id, &mut self.outbox);
            self.router.offer_again();
        }
        let change = worker.take_report(now, beat);
        if change.fits_other_jobs {
            self.router.offer_again();
        }
        let is_news = change.is_news || is_old;
        let is_coming = worker.state() == WorkerState::Spawning;
        let life = LifeEvent::Beat { is_draining: beat.draining, is_rented };
        let reason = if beat.draining { "the worker asked to be drained" } else { "the worker beats again" };
        let has_moved = worker.apply(now, life, reason).is_ok();
        let was = worker.contact(ContactEvent::Heard);
        worker.has_beaten = true;
        worker.reliability.mark_up(now);
        if change.has_turned {
            let reason = worker.unavailable_reason.as_deref().unwrap_or_default();
            self.outbox.publish_with_state(now, worker, DomainEvent::WorkerState { worker, reason });
        }
        self.workers.hear(now, id, was == Presence::Online, &self.settings, &mut self.outbox);
        if was == Presence::Offline {
            self.workers.publish(now, id, DomainEvent::WorkerBack(id), &mut self.outbox);
            self.workers.update_machine_presence(
                now,
                id,
                PresenceChange::Up,
                &self.settings,
                &mut self.outbox,
            );
        }
        if was == Presence::Suspect {
            self.workers.publish_usable(now, id, &mut self.outbox);
        }
        if was != Presence::Online {
            self.workers.watch(now, id, &self.settings, &mut self.outbox);
        }
        if is_coming && (is_news || change.has_turned || was != Presence::Online) {
            self.cycle_soon(now);
        }
        if has_moved {
            self.worker_moved(now, id);
            self.drain_with_workers(now, id, reason);
        } else if is_news || was == Presence::Offline {
            self.workers.store(now, id, &mut self.outbox);
        }
    }

    /// Records what ended. Every report gets a definite answer, after which the worker may forget it.
    fn settle(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) -> Vec<SettledAttempt> {
        beat.finished
            .iter()
            .map(|finished| {
                let refused = self.finish(now, id, beat.incarnation, finished).err();
                match refused {
                    Some(Refusal::AlreadyRecorded) => self.refusals.already_recorded += 1,
                    Some(_) => self.refusals.stale_attempts += 1,
                    None => {}
                }
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.cancels.remove(&(finished.job, finished.attempt));
                }
                let refused = refused.map(|refusal| refusal.to_string());
                SettledAttempt { job: finished.job, attempt: finished.attempt, refused }
            })
            .collect()
    }

    /// Compares the attempts the worker lists with those the plane assigned to it.
    fn reconcile(&mut self, now: Timestamp, id: &WorkerId, beat: &Beat) {
        let mut named = BTreeSet::new();
        for held in &beat.held {
            if self.renew(now, id, held) {
                named.insert(held.job);
            }
        }
        self.workers.cancel_unknown(id, &beat.held);
        let Some(worker) = self.workers.get_mut(id) else { return };
        // A cancel whose attempt the worker no longer lists was carried out or was never needed.
        let held: BTreeSet<_> = beat.held.iter().map(|held| (held.job, held.attempt)).collect();
        worker.cancels.retain(|attempt, _| held.contains(attempt));
        let grace = self.settings.order_grace;
        let missing: Vec<_> = worker
            .assignments
            .iter()
            .filter(|(job, hold)| {
                let is_overdue = hold.own_sends() >= SENDS_MIN && now.since(hold.assigned_at) >= grace;
                !named.contains(job) && (hold.is_confirmed || is_overdue)
            })
            .map(|(job, hold)| (*job, hold.is_confirmed))
            .collect();
        for (job, was_named) in missing {
            let (verdict, what, blame) = if was_named {
                (AttemptVerdict::NoLongerHeld, "no longer holds it", Blame::Pair)
            } else {
                (AttemptVerdict::NeverReceived, "never received it", Blame::Unrelated)
            };
            self.lose(now, job, verdict, format!("worker {id} {what}"), blame);
        }
        // An order that is not confirmed yet is sent again: the reply may have been lost.
        if let Some(worker) = self.workers.get_mut(id) {
            worker
                .assignments
                .values_mut()
                .filter(|hold| !hold.is_confirmed)
                .for_each(|hold| hold.sent_with = None);
        }
    }

    /// Whether the plane assigned this attempt to the worker.
    fn renew(&mut self, now: Timestamp, id: &WorkerId, held: &HeldAttempt) -> bool {
        let Some(worker) = self.workers.get_mut(id) else { return false };
        let Some(hold) = worker.assignments.get_mut(&held.job).filter(|hold| hold.attempt == held.attempt)
        else {
            return false;
        };
        hold.is_confirmed = true;
        let begins = !hold.is_running && Assignment::is_reported_running(held);
        if begins {
            (hold.is_running, hold.progressed_at) = (true, now);
        }
        let node_limit = hold.node_limit.filter(|_| begins);
        if let Some(note) = &held.service
            && let Some(job) = self.jobs.note_service(now, held.job, note)
        {
            self.outbox.record(Record::JobStatus { job: held.job, status: job.status(now) });
        }
        let progress = if held.progress.is_finite() { held.progress.clamp(0.0, 1.0) } else { 0.0 };
        if held.step > hold.step || progress > hold.progress {
            hold.step = hold.step.max(held.step);
            hold.progress = hold.progress.max(progress);
            hold.progressed_at = now;
            held.phase.clone_into(&mut hold.phase);
            let progress = hold.progress;
            if let Some(job) = self.jobs.get(held.job) {
                self.outbox.effect(PlaneEffect::Progress {
                    job: held.job,
                    tenant: job.tenant.clone(),
                    metadata: job.metadata(),
                    worker: id.clone(),
                    progress,
                    phase: held.phase.clone(),
                });
            }
        }
        if node_limit.is_some() {
            self.hasten_alarm(now, id, node_limit);
        }
        true
    }

    /// Everything the worker must do; start orders count as sent with the reply to this beat. A pending cancel is not
    /// repeated in every reply: the worker would beat again at once, in a loop.
    fn orders(&mut self, now: Timestamp, id: &WorkerId, seq: u64) -> BeatReply {
        let mut reply = BeatReply { term: self.term, ..BeatReply::default() };
        let Some(worker) = self.workers.get_mut(id) else { return reply };
        reply.drain = matches!(worker.state(), WorkerState::Terminating | WorkerState::Terminated);
        for (job, hold) in worker.assignments.iter_mut().filter(|(_, hold)| hold.sent_with.is_none()) {
            let Some(header) = self.jobs.get(*job) else { continue };
            if hold.sends == 0 || now.since(hold.sent_at) >= RESEND_AFTER {
                (hold.sends, hold.sent_at) = (hold.sends.saturating_add(1), now);
            }
            hold.sent_with = Some(seq);
            reply.start.push(StartOrder {
                job: *job,
                attempt: hold.attempt,
                service: header.kind.demand.service().clone(),
                service_job_id: job.service_job_id(hold.attempt),
                include_outputs: header.options().map(|it| it.include_outputs.clone()).unwrap_or_default(),
                workflow: None,
                keys: JobKeys::default(),
            });
        }
        let again = self.settings.beat_busy;
        for ((job, attempt), stop) in &mut worker.cancels {
            if is_due(now, stop.sent_at, again) {
                stop.sent_at = Some(now);
                reply.cancel.push(CancelOrder { job: *job, attempt: *attempt, reason: stop.reason.clone() });
            }
        }
        reply
    }

    /// Sends orders that arose while long polls were open, one reply per worker.
    pub(super) fn flush(&mut self, now: Timestamp) -> PlaneAnswer {
        for id in self.workers.take_undelivered() {
            let Some(worker) = self.workers.get(&id).filter(|worker| worker.line == WorkerLine::Polling)
            else {
                continue;
            };
            let seq = worker.beat_seq;
            let reply = self.orders(now, &id, seq);
            if reply.is_empty() && !reply.drain {
                continue;
            }
            if let Some(worker) = self.workers.get_mut(&id) {
                worker.line = WorkerLine::Quiet;
                worker.drain_sent_at = Some(now).filter(|_| reply.drain);
            }
            self.outbox.effect(PlaneEffect::SendOrders { worker: id, reply });
        }
        PlaneAnswer::Done
    }

    /// The worker's end closed its long poll, usually to send its next beat: no suspicion.
    pub(super) fn connection_dropped(
        &mut self,
        now: Timestamp,
        id: &WorkerId,
        seq: u64,
    ) -> Result<PlaneAnswer, Refusal> {
        let worker = self.workers.expect(id)?;
        // A newer beat came before the end of the old one was noticed: nothing is missing.
        if (worker.beat_seq, worker.line) == (seq, WorkerLine::Polling) {
            worker.close_line(now);
            self.workers.watch(now, id, &self.settings, &mut self.outbox);
        }
        Ok(PlaneAnswer::Done)
    }

    /// The attempt is taken from the worker, which is ordered to cancel it.
    pub(super) fn revoke(&mut self, now: Timestamp, id: &WorkerId, job: JobId, reason: &str) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        if let Some(hold) = worker.release(now, &job) {
            if hold.sent_with.is_some() {
                worker.cancels.insert((job, hold.attempt), PendingCancel::new(reason.to_owned()));
                self.workers.deliver_at_next_flush(id);
            }
            if let Some(job) = self.jobs.get(job) {
                self.trust.release(id, job);
                self.router.offer_again();
            }
        }
        self.assign(now, id);
    }
}

/// Whether an order that may have been lost is due to be sent again.
fn is_due(now: Timestamp, told_at: Option<Timestamp>, again: std::time::Duration) -> bool {
    told_at.is_none_or(|told_at| now.since(told_at) >= again)
}

impl AttemptOutcome {
    /// The cause of a failure that the worker did not classify.
    pub(super) fn default_cause(self) -> Cause {
        match self {
            AttemptOutcome::Failed => Cause::Job,
            AttemptOutcome::Completed | AttemptOutcome::Cancelled | AttemptOutcome::Rejected => Cause::Worker,
        }
    }
}
