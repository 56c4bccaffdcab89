//! One tenant's kinds of work by a model file or node class that they need, so that a worker which lists what it has never
//! looks at kinds that need something else.
//!
//! Every demand is in one group: the common one as long as that is small, else under one of the names that it needs; of
//! several names the one with the fewest demands, so that demands that share a common name and differ in another are told
//! apart by the other. A worker merges the common group and those of its names by age, so the order of jobs is the same with
//! and without groups.
//!
//! Rejected: buckets by name in the needs index. Tenants take turns in each bucket, so the jobs of a tenant would no longer
//! go by age, and a worker would not find work that it has warm in another bucket.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, btree_set};
use std::ops::Bound;

use super::kinds::{Demand, JobKind};
use crate::id::JobId;
use crate::need::Capabilities;

/// A group with fewer demands counts as empty: comparing so many costs about as much as visiting one more group.
const GROUP_DEMANDS: usize = 8;

/// The oldest job of each kind, by age.
pub(super) type Heads = BTreeSet<(JobId, JobKind)>;

#[derive(Clone, Debug, Default)]
pub(super) struct NameGroups {
    common: Group,
    models: BTreeMap<String, Group>,
    classes: BTreeMap<String, Group>,
    filed: BTreeMap<Demand, Filed>,
}

#[derive(Clone, Debug, Default)]
struct Group {
    heads: Heads,
    demands: usize,
}

/// Where the kinds of a demand are, and how many there are.
#[derive(Clone, Debug)]
struct Filed {
    under: GroupKey,
    kinds: usize,
}

#[derive(Clone, Debug)]
enum GroupKey {
    Common,
    Model(String),
    Class(String),
}

impl NameGroups {
    /// A kind has waiting jobs from now on; this is the oldest.
    pub(super) fn add_kind(&mut self, job: JobId, kind: &JobKind) {
        if !self.filed.contains_key(&kind.demand) {
            let under = self.choose(&kind.demand);
            self.group(&under).demands += 1;
            self.filed.insert(kind.demand.clone(), Filed { under, kinds: 0 });
        }
        if let Some(filed) = self.filed.get_mut(&kind.demand) {
            filed.kinds += 1;
        }
        self.add_head(job, kind);
    }

    /// Another job of the kind is the oldest now.
    pub(super) fn replace_head(&mut self, before: JobId, after: JobId, kind: &JobKind) {
        self.remove_head(before, kind);
        self.add_head(after, kind);
    }

    /// The kind has no waiting jobs any more; this was the last.
    pub(super) fn remove_kind(&mut self, job: JobId, kind: &JobKind) {
        self.remove_head(job, kind);
        let Some(filed) = self.filed.get_mut(&kind.demand) else { return };
        filed.kinds -= 1;
        if filed.kinds > 0 {
            return;
        }
        let Some(Filed { under, .. }) = self.filed.remove(&kind.demand) else { return };
        let group = self.group(&under);
        group.demands -= 1;
        if group.demands == 0 {
            match &under {
                GroupKey::Common => {}
                GroupKey::Model(name) => drop(self.models.remove(name)),
                GroupKey::Class(name) => drop(self.classes.remove(name)),
            }
        }
    }

    fn add_head(&mut self, job: JobId, kind: &JobKind) {
        if let Some(under) = self.filed.get(&kind.demand).map(|filed| filed.under.clone()) {
            self.group(&under).heads.insert((job, kind.clone()));
        }
    }

    fn remove_head(&mut self, job: JobId, kind: &JobKind) {
        if let Some(under) = self.filed.get(&kind.demand).map(|filed| filed.under.clone()) {
            self.group(&under).heads.remove(&(job, kind.clone()));
        }
    }

    fn choose(&self, demand: &Demand) -> GroupKey {
        let crowd = |group: Option<&Group>| group.map_or(0, |group| group.demands) / GROUP_DEMANDS;
        let common = crowd(Some(&self.common));
        if common == 0 {
            return GroupKey::Common;
        }
        let needs = demand.needs();
        let models =
            needs.models.iter().map(|name| (crowd(self.models.get(name)), GroupKey::Model(name.clone())));
        let classes =
            needs.classes.iter().map(|name| (crowd(self.classes.get(name)), GroupKey::Class(name.clone())));
        let rarest = models.chain(classes).min_by_key(|(crowd, _)| *crowd);
        rarest.filter(|(crowd, _)| *crowd < common).map_or(GroupKey::Common, |(_, key)| key)
    }

    fn group(&mut self, key: &GroupKey) -> &mut Group {
        match key {
            GroupKey::Common => &mut self.common,
            GroupKey::Model(name) => self.models.entry(name.clone()).or_default(),
            GroupKey::Class(name) => self.classes.entry(name.clone()).or_default(),
        }
    }

    /// The kinds that a worker with these capabilities may be able to run, oldest first; `None` if that may be all of them.
    pub(super) fn reachable(&self, offer: &Capabilities) -> Option<ByAge<'_>> {
        let is_everything = |groups: &BTreeMap<String, Group>, listed: &Option<BTreeSet<String>>| {
            groups.is_empty() || listed.is_none()
        };
        if is_everything(&self.models, &offer.models) && is_everything(&self.classes, &offer.classes) {
            return None;
        }
        let mut found = vec![&self.common];
        collect(&self.models, offer.models.as_ref(), &mut found);
        collect(&self.classes, offer.classes.as_ref(), &mut found);
        Some(ByAge::new(found.into_iter().map(|group| &group.heads)))
    }
}

/// Adds the groups whose names are listed. Both are sorted, so runs of names that only one of them has are skipped: it takes
/// at most twice as many steps as the shorter has names.
fn collect<'a>(
    groups: &'a BTreeMap<String, Group>,
    listed: Option<&BTreeSet<String>>,
    found: &mut Vec<&'a Group>,
) {
    let Some(listed) = listed else { return found.extend(groups.values()) };
    let mut from: Bound<&str> = Bound::Unbounded;
    while let Some((name, group)) = groups.range::<str, _>((from, Bound::Unbounded)).next() {
        let name = name.as_str();
        match listed.range::<str, _>((Bound::Included(name), Bound::Unbounded)).next() {
            Some(has) if has == name => {
                found.push(group);
                from = Bound::Excluded(name);
            }
            Some(next) => from = Bound::Included(next),
            None => return,
        }
    }
}

/// Several lists of heads as one, oldest first.
pub(super) struct ByAge<'a> {
    lists: Vec<btree_set::Iter<'a, (JobId, JobKind)>>,
    next: BinaryHeap<Reverse<(JobId, usize)>>,
    heads: Vec<Option<&'a (JobId, JobKind)>>,
}

impl<'a> ByAge<'a> {
    fn new(lists: impl Iterator<Item = &'a Heads>) -> ByAge<'a> {
        let mut lists: Vec<_> = lists.map(|heads| heads.iter()).collect();
        let heads: Vec<_> = lists.iter_mut().map(Iterator::next).collect();
        let first =
            heads.iter().enumerate().filter_map(|(at, head)| head.map(|(job, _)| Reverse((*job, at))));
        ByAge { next: first.collect(), lists, heads }
    }
}

impl<'a> Iterator for ByAge<'a> {
    type Item = &'a (JobId, JobKind);

    fn next(&mut self) -> Option<Self::Item> {
        let Reverse((_, at)) = self.next.pop()?;
        let following = self.lists[at].next();
        if let Some((job, _)) = following {
            self.next.push(Reverse((*job, at)));
        }
        std::mem::replace(&mut self.heads[at], following)
    }
}
