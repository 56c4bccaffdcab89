//! Waiting jobs of one tenant, and the tenants that take turns. `Level` decides whose turn it is, `Lane` which job of
//! the tenant goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::kinds::{Demand, JobKind};
use super::{Matcher, QueueEntry, ServedAt};
use crate::id::{JobId, Shape, Tenant};

/// Jobs of one priority.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    lanes: BTreeMap<Tenant, Lane>,
    /// Tenants by the turn at which each was last served, as far as this level knows: it was not earlier.
    turns: BTreeSet<(u64, Tenant)>,
    /// The oldest job of each tenant.
    oldest: BTreeSet<(JobId, Tenant)>,
}

/// Which job is looked for.
pub(super) struct Search<'a, M> {
    pub(super) matcher: &'a M,
    pub(super) look_ahead: usize,
    /// Jobs that have waited for less are not looked at.
    pub(super) waited_min: Duration,
}

impl<M> Clone for Search<'_, M> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M> Copy for Search<'_, M> {}

impl<M: Matcher> Search<'_, M> {
    fn is_old_enough(&self, job: JobId) -> bool {
        self.waited_min.is_zero() || self.matcher.waited(job) >= self.waited_min
    }
}

/// When its tenant was last served, and a job that could go next.
type Candidate = (u64, JobId);

impl Level {
    pub(super) fn is_empty(&self) -> bool {
        self.lanes.is_empty()
    }

    pub(super) fn insert(&mut self, entry: QueueEntry<'_>, served_at: &ServedAt) -> bool {
        let lane = self.lanes.entry(entry.tenant.clone()).or_insert_with(|| {
            let turn = served_at.get(entry.priority, entry.tenant);
            self.turns.insert((turn, entry.tenant.clone()));
            Lane { turn, ..Lane::default() }
        });
        let (before, is_new) = (lane.oldest_job(), lane.insert(entry.job, entry.kind));
        let after = lane.oldest_job();
        self.update_oldest(entry.tenant, before, after);
        is_new
    }

    pub(super) fn remove(&mut self, entry: QueueEntry<'_>) -> bool {
        let Some(lane) = self.lanes.get_mut(entry.tenant) else { return false };
        let before = lane.oldest_job();
        if !lane.remove(entry.job, entry.kind) {
            return false;
        }
        let after = lane.oldest_job();
        if lane.kinds.is_empty() {
            self.turns.remove(&(lane.turn, entry.tenant.clone()));
            self.lanes.remove(entry.tenant);
        }
        self.update_oldest(entry.tenant, before, after);
        true
    }

    fn update_oldest(&mut self, tenant: &Tenant, before: Option<JobId>, after: Option<JobId>) {
        if before != after {
            before.map(|job| self.oldest.remove(&(job, tenant.clone())));
            after.map(|job| self.oldest.insert((job, tenant.clone())));
        }
    }

    /// Notes who was served, here or elsewhere, for those who would be next.
    pub(super) fn update_turns(&mut self, priority: i8, served_at: &ServedAt) {
        while let Some((turn, tenant)) = self.turns.first() {
            let served = served_at.get(priority, tenant);
            if served <= *turn {
                return;
            }
            let Some((_, tenant)) = self.turns.pop_first() else { return };
            if let Some(lane) = self.lanes.get_mut(&tenant) {
                lane.turn = served;
            }
            self.turns.insert((served, tenant));
        }
    }

    /// The next job for this worker: of the tenant served longest ago that has one.
    pub(super) fn next(
        &self,
        search: Search<'_, impl Matcher>,
        served: impl Fn(&Tenant) -> u64,
    ) -> Option<Candidate> {
        if !self.oldest.first().is_some_and(|(job, _)| search.is_old_enough(*job)) {
            return None;
        }
        let mut best: Option<Candidate> = None;
        for (turn, tenant) in &self.turns {
            if best.is_some_and(|(best, _)| best <= *turn) {
                break;
            }
            let served = served(tenant).max(*turn);
            if best.is_some_and(|(best, _)| best <= served) {
                continue;
            }
            let job = self.lanes.get(tenant).and_then(|lane| lane.next(tenant, search));
            best = job.map(|job| (served, job)).or(best);
        }
        best
    }

    /// Waiting jobs by demand and shape.
    pub(super) fn waiting(&self) -> impl Iterator<Item = (&JobKind, usize)> {
        self.lanes.values().flat_map(|lane| &lane.kinds).map(|(kind, jobs)| (kind, jobs.len()))
    }
}

#[derive(Clone, Debug, Default)]
struct Lane {
    kinds: BTreeMap<JobKind, BTreeSet<JobId>>,
    /// The oldest job of each kind, so that a kind that may not run is skipped at once.
    heads: BTreeSet<(JobId, JobKind)>,
    /// Its place in `Level::turns`.
    turn: u64,
}

impl Lane {
    fn insert(&mut self, job: JobId, kind: &JobKind) -> bool {
        let jobs = self.kinds.entry(kind.clone()).or_default();
        let head = jobs.first().copied();
        if !jobs.insert(job) {
            return false;
        }
        if head.is_none_or(|head| job < head) {
            if let Some(head) = head {
                self.heads.remove(&(head, kind.clone()));
            }
            self.heads.insert((job, kind.clone()));
        }
        true
    }

    fn remove(&mut self, job: JobId, kind: &JobKind) -> bool {
        let Some(jobs) = self.kinds.get_mut(kind) else { return false };
        let was_head = jobs.first() == Some(&job);
        if !jobs.remove(&job) {
            return false;
        }
        if was_head {
            self.heads.remove(&(job, kind.clone()));
            match jobs.first() {
                Some(next) => {
                    self.heads.insert((*next, kind.clone()));
                }
                None => {
                    self.kinds.remove(kind);
                }
            }
        }
        true
    }

    fn oldest_job(&self) -> Option<JobId> {
        self.heads.first().map(|(job, _)| *job)
    }

    fn next(&self, tenant: &Tenant, search: Search<'_, impl Matcher>) -> Option<JobId> {
        let Search { matcher, look_ahead, .. } = search;
        let mut fits = FitMemo { matcher, last: None };
        let mut allowed = self
            .heads
            .iter()
            .take_while(|(oldest, _)| search.is_old_enough(*oldest))
            .filter(|(_, kind)| fits.fits(&kind.demand) && matcher.allows_shape(tenant, &kind.shape))
            .filter_map(|(_, kind)| Some((self.oldest_of(kind, search)?, &kind.shape)));
        let (oldest, shape) = allowed.next()?;
        if matcher.is_warm(shape) || matcher.is_overdue(oldest) {
            return Some(oldest);
        }
        let is_warm = |(_, shape): &(JobId, &Arc<Shape>)| matcher.is_warm(shape);
        let warm = allowed.take(look_ahead.saturating_sub(1)).find(is_warm);
        Some(warm.map_or(oldest, |(job, _)| job))
    }

    /// The oldest job of a kind that the worker accepts; it may be blocked for single workflows, and a job that failed
    /// there may avoid it.
    fn oldest_of(&self, kind: &JobKind, search: Search<'_, impl Matcher>) -> Option<JobId> {
        let jobs = self.kinds.get(kind)?.iter().copied().take(search.look_ahead.max(1));
        let mut jobs = jobs.take_while(|job| search.is_old_enough(*job));
        jobs.find(|job| search.matcher.accepts(*job))
    }
}

/// Kinds in a row often have the same needs: those are compared once.
struct FitMemo<'a, M> {
    matcher: &'a M,
    last: Option<(&'a Demand, bool)>,
}

impl<'a, M: Matcher> FitMemo<'a, M> {
    fn fits(&mut self, demand: &'a Demand) -> bool {
        match self.last {
            Some((last, fits)) if last.is_same(demand) => fits,
            Some(_) | None => {
                let fits = self.matcher.fits(demand);
                self.last = Some((demand, fits));
                fits
            }
        }
    }
}
