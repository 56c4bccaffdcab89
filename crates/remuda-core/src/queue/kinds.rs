//! What jobs have in common, stored once: needs, shapes and tenants.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::Arc;

use crate::id::{Service, Shape, Tenant};
use crate::need::Requirements;

/// A service and other requirements, shared by all jobs with the same ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand(Arc<(Service, Requirements)>);

impl Demand {
    pub(crate) fn new(service: Service, needs: Requirements) -> Self {
        Demand(Arc::new((service, needs)))
    }

    pub fn service(&self) -> &Service {
        &self.0.0
    }

    pub fn needs(&self) -> &Requirements {
        &self.0.1
    }

    /// Whether both are the same interned value. Two values that differ in this may still be equal.
    pub(super) fn is_same(&self, other: &Demand) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// By value; the common case, the same interned one, costs one comparison of addresses.
impl Ord for Demand {
    fn cmp(&self, other: &Self) -> Ordering {
        if self.is_same(other) { Ordering::Equal } else { self.0.cmp(&other.0) }
    }
}

impl PartialOrd for Demand {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Jobs of the same kind are interchangeable for routing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobKind {
    pub demand: Demand,
    pub shape: Arc<Shape>,
}

impl JobKind {
    #[cfg(test)]
    pub(crate) fn for_tests(shape: Shape) -> Self {
        let demand = Demand::new("exec".parse().unwrap(), Requirements::default());
        JobKind { demand, shape: Arc::new(shape) }
    }
}

/// Interns demands, shapes and tenants: most of a million jobs share them.
#[derive(Clone, Debug, Default)]
pub struct JobKinds {
    demands: Interned<Demand>,
    shapes: Interned<Arc<Shape>>,
    tenants: BTreeSet<Tenant>,
}

impl JobKinds {
    pub fn kind(&mut self, service: Service, needs: Requirements, shape: Shape) -> JobKind {
        JobKind { demand: self.demand(service, needs), shape: self.shape(shape) }
    }

    fn demand(&mut self, service: Service, needs: Requirements) -> Demand {
        let demand = Demand::new(service, needs);
        match self.demands.known.get(&demand) {
            Some(known) => known.clone(),
            None => self.demands.insert(demand, |demand| Arc::strong_count(&demand.0) > 1),
        }
    }

    pub fn shape(&mut self, shape: Shape) -> Arc<Shape> {
        match self.shapes.known.get::<Shape>(shape.borrow()) {
            Some(known) => known.clone(),
            None => self.shapes.insert(Arc::new(shape), |shape| Arc::strong_count(shape) > 1),
        }
    }

    pub fn tenant(&mut self, tenant: Tenant) -> Tenant {
        if let Some(known) = self.tenants.get(&tenant) {
            return known.clone();
        }
        self.tenants.insert(tenant.clone());
        tenant
    }
}

#[derive(Clone, Debug)]
struct Interned<T> {
    known: BTreeSet<T>,
    sweep_at: usize,
}

/// Fewer unused entries than this are not worth a sweep.
const SWEEP_MIN: usize = 4096;

impl<T> Default for Interned<T> {
    fn default() -> Self {
        Interned { known: BTreeSet::new(), sweep_at: SWEEP_MIN }
    }
}

impl<T: Ord + Clone> Interned<T> {
    /// Adds a value. Unused ones are swept when the number has doubled since the last sweep, so that a sweep costs each
    /// addition a constant, however many are in use.
    fn insert(&mut self, value: T, is_used: impl Fn(&T) -> bool) -> T {
        if self.known.len() >= self.sweep_at {
            self.known.retain(is_used);
            self.sweep_at = SWEEP_MIN.max(2 * self.known.len());
        }
        self.known.insert(value.clone());
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With as many values in use as are swept at, every new one used to sweep them all.
    #[test]
    fn sweeps_stay_rare_while_many_values_are_in_use() {
        let looked_at = std::cell::Cell::new(0_usize);
        let mut values = Interned::default();
        for n in 0..5 * SWEEP_MIN {
            values.insert(n, |_| {
                looked_at.set(looked_at.get() + 1);
                true
            });
        }
        assert!(looked_at.get() <= 2 * 5 * SWEEP_MIN, "{} values were looked at", looked_at.get());
    }
}
