//! Waiting jobs of one tenant, and the tenants that take turns. `Level` decides whose turn it is, `Lane` which job of the
//! tenant goes first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::kinds::{Demand, JobKind};
use super::name_groups::{Heads, NameGroups};
use super::{Matcher, QueueEntry, ServedAt};
use crate::id::{JobId, Shape, Tenant};

/// Jobs of one priority.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    lanes: BTreeMap<Tenant, Lane>,
    /// Tenants by the turn at which each was last served from here; at first, at all. What a tenant gets elsewhere later does
    /// not count: one that is served often by workers of one zone would never be served by those of another.
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

/// The next job for a worker that reaches these levels. Tenants take turns in each level, so that one that waits there is
/// not passed over again and again; between levels goes first the tenant that was served longest ago from any of them, so
/// that many different needs bring no tenant more than its share.
pub(super) fn next(levels: &[&Level], search: Search<'_, impl Matcher>) -> Option<JobId> {
    let candidates: Vec<_> = levels.iter().filter_map(|level| level.next(search)).collect();
    if let [] | [_] = &candidates[..] {
        return candidates.first().map(|candidate| candidate.job);
    }
    let last_served = last_served(levels, &candidates);
    let first = candidates.iter().min_by_key(|candidate| {
        // Of one tenant's levels the one that waits longer: else an older backlog elsewhere would hold this level up.
        (last_served.get(candidate.tenant), candidate.turn, candidate.job)
    });
    first.map(|candidate| candidate.job)
}

/// When each candidate's tenant was last served from any of the levels. Goes over the tenants of a level or over the
/// candidates, whichever are fewer, so that it never takes more steps than there are tenants in the levels.
fn last_served<'a>(levels: &[&Level], candidates: &[Candidate<'a>]) -> BTreeMap<&'a Tenant, u64> {
    let mut turns: BTreeMap<_, _> = candidates.iter().map(|candidate| (candidate.tenant, 0)).collect();
    for level in levels {
        if level.lanes.len() < turns.len() {
            for (tenant, lane) in &level.lanes {
                turns.get_mut(tenant).into_iter().for_each(|turn| *turn = lane.turn.max(*turn));
            }
        } else {
            for (tenant, turn) in &mut turns {
                *turn = level.lanes.get(*tenant).map_or(*turn, |lane| lane.turn.max(*turn));
            }
        }
    }
    turns
}

/// A job that could go next in its level.
struct Candidate<'a> {
    turn: u64,
    tenant: &'a Tenant,
    job: JobId,
}

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

    /// A job of this tenant was served from here: the others come first now.
    pub(super) fn record_served(&mut self, tenant: &Tenant, turn: u64) {
        if let Some(lane) = self.lanes.get_mut(tenant) {
            self.turns.remove(&(lane.turn, tenant.clone()));
            lane.turn = turn;
            self.turns.insert((turn, tenant.clone()));
        }
    }

    /// A job of the tenant that was served longest ago and has one for this worker.
    fn next(&self, search: Search<'_, impl Matcher>) -> Option<Candidate<'_>> {
        if !self.oldest.first().is_some_and(|(job, _)| search.is_old_enough(*job)) {
            return None;
        }
        self.turns.iter().find_map(|(turn, tenant)| {
            let job = self.lanes.get(tenant)?.next(tenant, search)?;
            Some(Candidate { turn: *turn, tenant, job })
        })
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
    heads: Heads,
    /// The same by a name that a worker may lack.
    groups: NameGroups,
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
        match head {
            None => self.groups.add_kind(job, kind),
            Some(head) if job < head => {
                self.heads.remove(&(head, kind.clone()));
                self.groups.replace_head(head, job, kind);
            }
            Some(_) => return true,
        }
        self.heads.insert((job, kind.clone()));
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
                    self.groups.replace_head(job, *next, kind);
                }
                None => {
                    self.groups.remove_kind(job, kind);
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
        let reachable = self.groups.reachable(matcher.profile().offer);
        let all = reachable.is_none().then(|| self.heads.iter());
        let mut allowed = reachable
            .into_iter()
            .flatten()
            .chain(all.into_iter().flatten())
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
