//! Requests by route and status. The routes come from a table and the statuses from the code, so the map stays small.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use super::page::Page;
use super::table;

/// For requests that match no route.
const OTHER: &str = "other";

#[derive(Debug, Default)]
pub struct HttpCounts(Mutex<BTreeMap<(&'static str, &'static str, u16), u64>>);

impl HttpCounts {
    /// `path`: the pattern of the route; empty if there is none.
    pub(crate) fn record(&self, method: &'static str, path: &'static str, status: u16) {
        let known = |name: &'static str| if name.is_empty() { OTHER } else { name };
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *counts.entry((known(method), known(path), status)).or_default() += 1;
    }

    pub(crate) fn write(&self, page: &mut Page) {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut family = page.family(&table::HTTP_REQUESTS);
        for ((method, path, status), count) in counts {
            family.sample([method, path, &status.to_string()], count);
        }
    }
}
