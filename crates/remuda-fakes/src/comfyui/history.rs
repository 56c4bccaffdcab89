//! Finished prompts, oldest first, in memory and bounded.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::queue::Item;
use super::values;

/// The original removes one when there are more than 10 000 before it adds one.
pub(super) const HISTORY_MAX: usize = 10_001;

/// How a prompt ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Outcome {
    Success,
    Error,
    Interrupted,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) item: Arc<Item>,
    pub(super) outcome: Outcome,
    /// By node, in order of arrival.
    pub(super) outputs: Vec<(String, Value)>,
    pub(super) meta: Map<String, Value>,
    /// `[kind, data]` pairs.
    pub(super) messages: Vec<(&'static str, Value)>,
}

impl Entry {
    pub(super) fn status(&self) -> Value {
        let messages: Vec<Value> = self.messages.iter().map(|(kind, data)| json!([kind, data])).collect();
        let is_success = self.outcome == Outcome::Success;
        json!({
            "status_str": if is_success { "success" } else { "error" }, "completed": is_success, "messages": messages,
        })
    }

    pub(super) fn outputs(&self) -> Value {
        self.outputs.iter().cloned().collect::<Map<_, _>>().into()
    }

    pub(super) fn message(&self, kind: &str) -> Option<&Value> {
        self.messages.iter().rev().find(|(name, _)| *name == kind).map(|(_, data)| data)
    }

    fn to_text(&self) -> String {
        format!(
            "{{\"prompt\":{},\"outputs\":{},\"status\":{},\"meta\":{}}}",
            self.item.to_text(),
            values::text(&self.outputs()),
            values::text(&self.status()),
            Value::from(self.meta.clone())
        )
    }
}

#[derive(Debug, Default)]
pub(super) struct History {
    order: VecDeque<String>,
    entries: HashMap<String, Arc<Entry>>,
}

impl History {
    /// A repeated id keeps its position and gets the new entry.
    pub(super) fn put(&mut self, entry: Entry) {
        let id = entry.item.id.clone();
        if !self.entries.contains_key(&id) {
            if self.order.len() >= HISTORY_MAX
                && let Some(oldest) = self.order.pop_front()
            {
                self.entries.remove(&oldest);
            }
            self.order.push_back(id.clone());
        }
        self.entries.insert(id, Arc::new(entry));
    }

    pub(super) fn get(&self, id: &str) -> Option<&Arc<Entry>> {
        self.entries.get(id)
    }

    /// Oldest first.
    pub(super) fn all(&self) -> Vec<Arc<Entry>> {
        self.order.iter().filter_map(|id| self.entries.get(id)).map(Arc::clone).collect()
    }

    pub(super) fn delete(&mut self, id: &str) {
        if self.entries.remove(id).is_some() {
            self.order.retain(|other| other != id);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = History::default();
    }
}

/// The newest `max_items`, or that many from `offset` on; everything without either.
pub(super) fn page(all: &[Arc<Entry>], max_items: Option<i64>, offset: i64) -> &[Arc<Entry>] {
    let count = i64::try_from(all.len()).unwrap_or(i64::MAX);
    let first = match max_items {
        Some(max) if offset < 0 => (count - max).clamp(0, count),
        _ => offset.clamp(0, count),
    };
    let last = max_items.map_or(count, |max| (first + max.max(0)).min(count));
    &all[usize::try_from(first).unwrap_or(0)..usize::try_from(last).unwrap_or(0)]
}

/// `{id: entry, …}`.
pub(super) fn to_text(entries: &[Arc<Entry>]) -> String {
    let told: Vec<String> = entries
        .iter()
        .map(|entry| format!("{}:{}", Value::from(entry.item.id.as_str()), entry.to_text()))
        .collect();
    format!("{{{}}}", told.join(","))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::{Entry, HISTORY_MAX, History, Outcome, page};
    use crate::comfyui::graph::Graph;
    use crate::comfyui::queue::{Item, Number};

    fn entry(id: &str) -> Entry {
        let item = Item {
            number: Number::Counted(0),
            id: id.into(),
            graph: Graph::default(),
            extra: serde_json::Map::new(),
            outputs: Vec::new(),
            faults: BTreeSet::new(),
        };
        Entry {
            item: Arc::new(item),
            outcome: Outcome::Success,
            outputs: Vec::new(),
            meta: serde_json::Map::new(),
            messages: Vec::new(),
        }
    }

    #[test]
    fn the_oldest_go_first_and_the_newest_are_paged() {
        let mut history = History::default();
        for number in 0..HISTORY_MAX + 49 {
            history.put(entry(&number.to_string()));
        }
        let all = history.all();
        let ids = |max, offset| {
            page(&all, max, offset).iter().map(|entry| entry.item.id.clone()).collect::<Vec<_>>()
        };
        assert_eq!(all.len(), HISTORY_MAX);
        assert_eq!(ids(Some(2), -1), ["10048", "10049"]);
        assert_eq!(ids(Some(2), 0), ["49", "50"]);
        assert_eq!(ids(None, -1).len(), HISTORY_MAX);
        assert!(ids(Some(0), -1).is_empty());
        history.put(entry("10049"));
        assert_eq!(history.all().len(), HISTORY_MAX, "an id that comes again is no second entry");
    }
}
