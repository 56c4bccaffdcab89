//! Phase four: drained workers are terminated, failed machines returned, surplus workers drained. Phase five: outdated
//! machines are replaced.

use std::time::Duration;

use super::{Cycle, CycleAction, WorkerView};
use crate::machine::WorkerState;
use crate::money::Money;
use crate::rental::ReturnCause;
use crate::scale::{self, ScalingDirection};
use crate::time::humanize;
use crate::verdict::AttemptVerdict;

impl Cycle<'_> {
    pub(super) fn shrink(&mut self) {
        if self.is_held {
            return;
        }
        self.end_terminating();
        self.return_failed();
        if !self.snapshot.can_rent {
            return;
        }
        if let Some(spent) = &self.snapshot.spent {
            return self.drain_all(&spent.clone());
        }
        self.drain_over_limits();
        match (&self.snapshot.paused, self.snapshot.ordered) {
            (Some(_), _) => {}
            (None, Some(ordered)) => self.drain_to(ordered),
            (None, None) => self.drain_idle(),
        }
    }

    fn end_terminating(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Terminating) {
            let grace = match worker.drain_until {
                Some(until) => until.since(worker.since),
                None => self.settings.scaling.drain_timeout,
            };
            let is_over = match worker.drain_until {
                Some(until) => until <= self.now,
                None => self.is_past(worker.since, grace),
            };
            if worker.is_rented && !self.snapshot.can_rent || !worker.attempts.is_empty() && !is_over {
                continue;
            }
            let reason = if worker.attempts.is_empty() {
                "drained: it holds no attempts".to_owned()
            } else {
                let grace = humanize(grace);
                let why = format!("worker {} still had work {grace} after its drain began", worker.id);
                self.reset(worker, AttemptVerdict::DrainOverdue, &why);
                format!("it still had work {grace} after its drain began")
            };
            self.go(
                at,
                WorkerState::Terminated,
                CycleAction::Terminate { worker: worker.id.clone(), cause: ReturnCause::NotWanted, reason },
            );
        }
    }

    fn return_failed(&mut self) {
        for (at, worker) in self.unmoved(WorkerState::Error) {
            if worker.is_rented && self.snapshot.can_rent {
                let reason = "failed: its machine is returned".to_owned();
                self.go(
                    at,
                    WorkerState::Terminated,
                    CycleAction::Terminate { worker: worker.id.clone(), cause: ReturnCause::Failed, reason },
                );
            }
        }
    }

    /// The order in which workers are drained: fewest losses first (idle ones, then those with the fewest attempts, then
    /// those that began last), then outdated settings, then the longest idle, then the one warm for the fewest shapes;
    /// ties by name, so that every run decides alike.
    fn drain_order(&self, may_go: impl Fn(&WorkerView) -> bool) -> Vec<(usize, WorkerView)> {
        let active = self.unmoved(WorkerState::Active).into_iter();
        let mut workers: Vec<_> = active
            .filter(|(_, worker)| worker.is_rented && may_go(worker))
            .map(|(at, worker)| (at, worker.clone()))
            .collect();
        workers.sort_by_key(|(_, worker)| {
            let done: Duration = worker.attempts.iter().map(|it| self.now.since(it.started_at)).sum();
            let loss = (worker.attempts.len(), done);
            (loss, !worker.is_outdated, worker.idle_from(), worker.warm, worker.id.clone())
        });
        workers
    }

    fn drain_idle(&mut self) {
        let active = self.count(WorkerState::Active);
        let uptime_min = self.settings.scaling.uptime_min;
        let idle = self
            .drain_order(|worker| worker.attempts.is_empty() && self.now.since(worker.since) >= uptime_min);
        let idle_count = u32::try_from(idle.len()).unwrap_or(u32::MAX);
        let wanted = self.wanted();
        let surplus = scale::surplus(wanted, active, idle_count);
        let free_at =
            self.snapshot.heading.allowed_at(ScalingDirection::Down, self.settings.scaling.reversal_cooldown);
        if surplus > 0 && self.now < free_at {
            self.held_back.push(format!(
                "{surplus} idle machines are kept until {free_at}, because the fleet has just grown"
            ));
            return;
        }
        for (at, worker) in idle.into_iter().take(surplus as usize) {
            let idle_for = humanize(self.now.since(worker.idle_from()));
            let reason = format!("idle for {idle_for}: {active} active, {wanted} wanted");
            self.drain(at, &worker, reason);
        }
    }

    /// Manually ordered number; busy workers may finish their attempts.
    fn drain_to(&mut self, ordered: u32) {
        let active = self.count(WorkerState::Active);
        let surplus = active.saturating_sub(ordered.min(self.settings.scaling.machines_max));
        for (at, worker) in self.drain_order(|_| true).into_iter().take(surplus as usize) {
            self.drain(at, &worker, format!("{active} active, {ordered} ordered"));
        }
    }

    /// Machines that are still starting are billed like any other.
    fn drain_all(&mut self, reason: &str) {
        for (at, worker) in self.dismissal_order() {
            self.dismiss(at, &worker, reason.to_owned());
        }
    }

    /// A maximum or a budget was lowered, or a price was raised: what is too much goes, busy or not.
    fn drain_over_limits(&mut self) {
        let staying = self.dismissal_order();
        let (mut count, mut price) = (staying.len(), staying.iter().map(|(_, it)| it.price).sum::<Money>());
        let (most, hour_max) = (self.settings.scaling.machines_max, self.snapshot.hour_max);
        let too_many = format!("there are {count} machines, and the maximum is {most}");
        let too_dear = hour_max.map(|max| format!("its fleet costs {price} an hour, and {max} are allowed"));
        for (at, worker) in staying {
            let reason = match &too_dear {
                _ if count > most as usize => too_many.clone(),
                Some(too_dear) if hour_max.is_some_and(|max| price > max) => too_dear.clone(),
                Some(_) | None => return,
            };
            (count, price) = (count - 1, price.minus(worker.price));
            self.dismiss(at, &worker, reason);
        }
    }

    /// Everything that is rented and meant to stay, fewest losses first: what is still starting has nothing to lose.
    fn dismissal_order(&self) -> Vec<(usize, WorkerView)> {
        let starting = self.unmoved(WorkerState::Spawning).into_iter().filter(|(_, worker)| worker.is_rented);
        let starting = starting.map(|(at, worker)| (at, worker.clone()));
        starting.chain(self.drain_order(|_| true)).collect()
    }

    fn dismiss(&mut self, at: usize, worker: &WorkerView, reason: String) {
        if worker.state == WorkerState::Spawning {
            let (worker, cause) = (worker.id.clone(), ReturnCause::OverLimit);
            self.go(at, WorkerState::Terminated, CycleAction::Terminate { worker, cause, reason });
        } else {
            self.drain(at, worker, reason);
        }
    }

    /// Replaces outdated machines one by one: first a new one, where the maximum allows it, then an old one is drained.
    pub(super) fn replace(&mut self) {
        let is_free = !self.is_held
            && self.snapshot.can_rent
            && self.snapshot.paused.is_none()
            && self.snapshot.spent.is_none();
        let mut states = self.snapshot.workers.iter().zip(&self.states);
        let is_going = |(worker, state): (&WorkerView, &WorkerState)| {
            worker.counts_against_max && matches!(state, WorkerState::Terminating | WorkerState::Terminated)
        };
        let is_replacing = states.any(is_going) || self.count(WorkerState::Spawning) > 0 || self.spawned > 0;
        let outdated = self.drain_order(|worker| worker.is_outdated);
        let Some((at, worker)) = outdated.into_iter().next().filter(|_| is_free && !is_replacing) else {
            return;
        };
        let has_spare = self.count(WorkerState::Active) > self.wanted();
        let reason = format!("{} was created from an older settings revision", worker.id);
        if has_spare || self.room() == 0 {
            self.drain(at, &worker, reason);
        } else {
            self.spawn(1, reason);
        }
    }

    fn drain(&mut self, at: usize, worker: &WorkerView, reason: String) {
        self.go(at, WorkerState::Terminating, CycleAction::Drain { worker: worker.id.clone(), reason });
    }
}
