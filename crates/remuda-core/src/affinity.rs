//! Placement rules that operators set for a shape, kept across restarts.
//!
//! A preferred worker that is free is chosen first; other workers take the job otherwise. An excluded worker never
//! gets the job, even if no other worker could take it; then the job waits, and `why` says so.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::document::{Collection, Document};
use crate::id::{Shape, WorkerId};

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Affinity {
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub preferred: BTreeSet<WorkerId>,
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub excluded: BTreeSet<WorkerId>,
}

#[derive(Clone, Debug, Default)]
pub struct Affinities(BTreeMap<Shape, Affinity>);

/// Bounds the memory; each rule is consulted when a job of its shape is assigned.
pub const AFFINITIES_MAX: usize = 10_000;

impl Affinities {
    pub fn get(&self, shape: &Shape) -> Option<&Affinity> {
        // Most fleets have none.
        if self.0.is_empty() { None } else { self.0.get(shape) }
    }

    pub fn set(&mut self, shape: Shape, affinity: Affinity) {
        self.0.insert(shape, affinity);
    }

    pub fn remove(&mut self, shape: &Shape) -> bool {
        self.0.remove(shape).is_some()
    }

    pub fn is_full_for(&self, shape: &Shape) -> bool {
        self.0.len() >= AFFINITIES_MAX && !self.0.contains_key(shape)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&Shape, &Affinity)> {
        self.0.iter()
    }

    /// An unreadable rule is ignored.
    pub fn restore(&mut self, document: &Document) {
        let shape = document.id.parse();
        let affinity = serde_json::from_str(document.body.get());
        if let (Collection::Affinity, Ok(shape), Ok(affinity)) = (document.collection, shape, affinity) {
            self.0.insert(shape, affinity);
        }
    }
}

impl Affinity {
    pub fn document(&self, shape: &Shape) -> Arc<Document> {
        let body = serde_json::value::to_raw_value(self).expect("names can be written as JSON");
        Arc::new(Document {
            collection: Collection::Affinity,
            id: shape.to_string(),
            tenant: None,
            index_key: String::new(),
            expires_at: None,
            body: Arc::from(body),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_affinity_comes_back_as_it_was_kept() {
        let (shape, worker) = (Shape::digest(b"s"), "a".parse::<WorkerId>().unwrap());
        let affinity = Affinity { preferred: [worker].into(), ..Affinity::default() };
        let mut affinities = Affinities::default();
        affinities.restore(&affinity.document(&shape));
        assert_eq!(affinities.get(&shape), Some(&affinity));
        assert_eq!(affinities.get(&Shape::digest(b"t")), None);
    }
}
