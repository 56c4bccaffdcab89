//! Pending and running prompts. The pending ones are a heap with exactly the steps of Python's heapq, because clients
//! see the heap's array, and because two entries with the same number and id cannot be compared there:
//!
//! - pushing such a second entry fails after it was appended: HTTP 500, but it is queued;
//! - popping with two such entries left fails after the first was removed: it is lost, and the executor dies.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};
use tokio::sync::Notify;

use super::faults::Fault;
use super::graph::Graph;

/// The queue number: counted by the server, or chosen by the client, which makes it a float.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Number {
    Counted(i64),
    Chosen(f64),
}

impl Number {
    fn value(self) -> f64 {
        match self {
            Number::Counted(number) => number as f64,
            Number::Chosen(number) => number,
        }
    }

    pub(super) fn to_json(self) -> Value {
        match self {
            Number::Counted(number) => number.into(),
            Number::Chosen(number) => number.into(),
        }
    }
}

/// An accepted prompt.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) number: Number,
    pub(super) id: String,
    pub(super) graph: Graph,
    pub(super) extra: Map<String, Value>,
    /// The output nodes that will run.
    pub(super) outputs: Vec<String>,
    pub(super) faults: BTreeSet<Fault>,
}

impl Item {
    /// The client that gets the messages; `Some(Err)` if its id cannot name a socket.
    pub(super) fn client(&self) -> Option<Result<&str, ()>> {
        match self.extra.get("client_id") {
            None | Some(Value::Null) => None,
            Some(Value::String(client)) => Some(Ok(client)),
            Some(Value::Array(_) | Value::Object(_)) => Some(Err(())),
            // A number or boolean is hashable, but matches no socket.
            Some(_) => Some(Ok("\u{0}")),
        }
    }

    /// `[number, id, graph, extra_data, [output ids]]`, as JSON.
    pub(super) fn to_text(&self) -> String {
        let id = Value::from(self.id.as_str());
        let extra = serde_json::to_string(&self.extra).unwrap_or_default();
        let outputs = Value::from(self.outputs.clone());
        format!("[{},{id},{},{extra},{outputs}]", self.number.to_json(), self.graph.text())
    }
}

/// Two entries that cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Uncomparable;

/// What `/free` requests; applied after the current prompt.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags {
    pub(super) unload_models: bool,
    pub(super) free_memory: bool,
}

#[derive(Debug, Default)]
struct Inner {
    heap: Vec<Arc<Item>>,
    running: Option<Arc<Item>>,
    flags: Flags,
}

#[derive(Debug, Default)]
pub(super) struct Queue {
    inner: Mutex<Inner>,
    changed: Notify,
}

impl Queue {
    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a prompt, even if it returns an error.
    pub(super) fn push(&self, item: Arc<Item>) -> Result<(), Uncomparable> {
        let mut inner = self.inner();
        inner.heap.push(item);
        let last = inner.heap.len() - 1;
        sift_down(&mut inner.heap, 0, last)?;
        self.changed.notify_one();
        Ok(())
    }

    /// Takes the next prompt. On an error one entry is lost, and the executor dies.
    pub(super) fn pop(&self) -> Result<Option<Arc<Item>>, Uncomparable> {
        let mut inner = self.inner();
        let Some(last) = inner.heap.pop() else { return Ok(None) };
        let item = match inner.heap.first_mut() {
            None => last,
            Some(first) => {
                let item = std::mem::replace(first, last);
                sift_up(&mut inner.heap, 0)?;
                item
            }
        };
        inner.running = Some(Arc::clone(&item));
        Ok(Some(item))
    }

    /// The running prompt has ended.
    pub(super) fn finish(&self) {
        self.inner().running = None;
    }

    /// Waits for a push or a `/free` request since the last call.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Removes the first pending entry with this id. Returns how many status messages the original sends.
    pub(super) fn delete(&self, id: &str) -> Result<u32, Uncomparable> {
        let mut inner = self.inner();
        let Some(at) = inner.heap.iter().position(|item| item.id == id) else { return Ok(0) };
        inner.heap.remove(at);
        if inner.heap.is_empty() {
            return Ok(2);
        }
        let count = inner.heap.len();
        for at in (0..count / 2).rev() {
            sift_up(&mut inner.heap, at)?;
        }
        Ok(1)
    }

    pub(super) fn clear(&self) {
        self.inner().heap.clear();
    }

    /// Running and pending.
    pub(super) fn remaining(&self) -> usize {
        let inner = self.inner();
        inner.heap.len() + usize::from(inner.running.is_some())
    }

    pub(super) fn running(&self) -> Option<Arc<Item>> {
        self.inner().running.clone()
    }

    /// In heap order, which is not the execution order.
    pub(super) fn waiting(&self) -> Vec<Arc<Item>> {
        self.inner().heap.clone()
    }

    pub(super) fn ask(&self, flags: Flags) {
        let mut inner = self.inner();
        inner.flags.unload_models |= flags.unload_models;
        inner.flags.free_memory |= flags.free_memory;
        self.changed.notify_one();
    }

    pub(super) fn take_flags(&self) -> Flags {
        std::mem::take(&mut self.inner().flags)
    }
}

fn is_less(one: &Item, other: &Item) -> Result<bool, Uncomparable> {
    match one.number.value().partial_cmp(&other.number.value()) {
        Some(std::cmp::Ordering::Equal) if one.id == other.id => Err(Uncomparable),
        Some(std::cmp::Ordering::Equal) => Ok(one.id < other.id),
        order => Ok(order == Some(std::cmp::Ordering::Less)),
    }
}

fn sift_down(heap: &mut [Arc<Item>], start: usize, mut at: usize) -> Result<(), Uncomparable> {
    while at > start {
        let parent = (at - 1) / 2;
        if !is_less(&heap[at], &heap[parent])? {
            break;
        }
        heap.swap(at, parent);
        at = parent;
    }
    Ok(())
}

fn sift_up(heap: &mut [Arc<Item>], start: usize) -> Result<(), Uncomparable> {
    let (mut at, end) = (start, heap.len());
    while 2 * at + 1 < end {
        let (left, right) = (2 * at + 1, 2 * at + 2);
        let child = if right < end && !is_less(&heap[left], &heap[right])? { right } else { left };
        heap.swap(at, child);
        at = child;
    }
    sift_down(heap, start, at)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;

    use super::{Item, Number, Queue, Uncomparable};
    use crate::comfyui::graph::Graph;

    fn item(number: f64, id: &str) -> Arc<Item> {
        Arc::new(Item {
            number: Number::Chosen(number),
            id: id.into(),
            graph: Graph::default(),
            extra: serde_json::Map::new(),
            outputs: Vec::new(),
            faults: BTreeSet::new(),
        })
    }

    fn ids(queue: &Queue) -> Vec<String> {
        queue.waiting().iter().map(|item| item.id.clone()).collect()
    }

    /// The array of the recording queue-operations.
    #[test]
    fn the_array_is_in_the_order_of_the_originals_heap() {
        let queue = Queue::default();
        for (number, id) in
            [(54.0, "p1"), (55.0, "p2"), (-56.0, "p3"), (-57.0, "p4"), (0.5, "p5"), (-100.0, "p6")]
        {
            queue.push(item(number, id)).unwrap();
        }
        assert_eq!(ids(&queue), ["p6", "p3", "p4", "p2", "p5", "p1"]);
        assert_eq!(queue.delete("p1"), Ok(1));
        assert_eq!(ids(&queue), ["p6", "p3", "p4", "p2", "p5"]);
    }

    #[test]
    fn a_second_entry_with_number_and_id_is_queued_and_refused() {
        let queue = Queue::default();
        queue.push(item(7.0, "same")).unwrap();
        assert_eq!(queue.push(item(7.0, "same")), Err(Uncomparable));
        assert_eq!(queue.remaining(), 2);
        assert_eq!(queue.pop().unwrap().unwrap().id, "same");
        queue.finish();
        assert_eq!(queue.pop().unwrap().unwrap().id, "same");
    }

    #[test]
    fn with_three_of_them_one_is_lost_and_the_executor_dies() {
        let queue = Queue::default();
        queue.push(item(7.0, "same")).unwrap();
        for _ in 0..3 {
            assert_eq!(queue.push(item(7.0, "same")), Err(Uncomparable));
        }
        assert_eq!(queue.pop().unwrap_err(), Uncomparable);
        assert_eq!(queue.remaining(), 3);
        assert!(queue.running().is_none());
    }
}
