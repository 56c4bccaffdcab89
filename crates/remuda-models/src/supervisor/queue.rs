//! The queue of one model: parts in order, bounded in tokens and bytes, cut into batches.
//!
//! All copies of a model share one queue, so a dead copy holds no requests and a failing copy does not look idle. A
//! part that was in flight when its copy died, or whose batch failed, returns to the front and is retried alone: parts
//! that shared a batch with a fatal part do not fail with it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::streamed::StreamedText;
use super::{CopyId, RequestId};
use crate::backend::Batching;
use crate::request::RequestPart;

/// The position of a part; smaller keys are served first, and the front grows downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct QueueKey(i64);

/// A part of a request that waits or is in flight, with its history.
#[derive(Clone, Debug)]
pub(crate) struct QueuedPart {
    pub(crate) request: RequestId,
    pub(crate) index: usize,
    pub(crate) part: Arc<RequestPart>,
    /// How many copies died with it in flight.
    pub(crate) deaths: u32,
    /// How many copies failed on it.
    pub(crate) failures: u32,
    /// Never batched with other parts.
    pub(crate) alone: bool,
    /// The copy it failed on last; another copy is preferred.
    pub(crate) avoid: Option<CopyId>,
    /// The text streamed so far, by any copy.
    pub(crate) streamed: StreamedText,
}

impl QueuedPart {
    pub(crate) fn new(request: RequestId, index: usize, part: RequestPart) -> Self {
        QueuedPart {
            request,
            index,
            part: Arc::new(part),
            deaths: 0,
            failures: 0,
            alone: false,
            avoid: None,
            streamed: StreamedText::default(),
        }
    }
}

/// How far to search for parts of similar length when the engine pads.
const LOOK_AHEAD: usize = 64;

#[derive(Debug, Default)]
pub(crate) struct PartQueue {
    items: BTreeMap<QueueKey, QueuedPart>,
    tokens: usize,
    bytes: usize,
    back: i64,
    front: i64,
}

impl PartQueue {
    pub(crate) fn push_back(&mut self, item: QueuedPart) -> QueueKey {
        self.back += 1;
        self.insert(QueueKey(self.back), item)
    }

    pub(crate) fn push_front(&mut self, item: QueuedPart) -> QueueKey {
        self.front -= 1;
        self.insert(QueueKey(self.front), item)
    }

    fn insert(&mut self, place: QueueKey, item: QueuedPart) -> QueueKey {
        self.tokens += weight(&item.part);
        self.bytes += item.part.bytes();
        self.items.insert(place, item);
        place
    }

    pub(crate) fn remove(&mut self, place: QueueKey) -> Option<QueuedPart> {
        let item = self.items.remove(&place)?;
        self.tokens -= weight(&item.part);
        self.bytes -= item.part.bytes();
        Some(item)
    }

    pub(crate) fn first(&self) -> Option<&QueuedPart> {
        self.items.values().next()
    }

    pub(crate) fn items(&self) -> impl Iterator<Item = (QueueKey, &QueuedPart)> {
        self.items.iter().map(|(place, item)| (*place, item))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.items.len()
    }

    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the first part and the parts that fit into a batch with it. Only texts to embed are batched.
    pub(crate) fn cut(&mut self, batching: Batching) -> Vec<(QueueKey, QueuedPart)> {
        let Some(first) = self.first() else { return Vec::new() };
        let (length, has_company) =
            (first.part.tokens(), matches!(*first.part, RequestPart::Tokens(_)) && !first.alone);
        let is_similar = |item: &QueuedPart| {
            let (short, long) = (length.min(item.part.tokens()), length.max(item.part.tokens()));
            !batching.pads || long - short <= long / 4
        };
        let mut taken: Vec<QueueKey> = Vec::new();
        let (mut tokens, mut longest) = (0, 0);
        for (place, item) in self.items.iter().take(LOOK_AHEAD.max(batching.parts_max)) {
            let own = item.part.tokens();
            let fits = has_company
                && matches!(*item.part, RequestPart::Tokens(_))
                && !item.alone
                && is_similar(item)
                && taken.len() < batching.parts_max
                && if batching.pads {
                    (taken.len() + 1) * own.max(longest) <= batching.tokens_max
                } else {
                    tokens + own <= batching.tokens_max
                };
            if taken.is_empty() || fits {
                taken.push(*place);
                tokens += own;
                longest = longest.max(own);
            } else if !batching.pads || !has_company {
                break;
            }
        }
        taken.into_iter().filter_map(|place| Some((place, self.remove(place)?))).collect()
    }
}

/// An empty text counts as one token, or there could be any number of them.
fn weight(part: &RequestPart) -> usize {
    part.tokens().max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue(lengths: &[usize]) -> PartQueue {
        let mut queue = PartQueue::default();
        for (index, length) in lengths.iter().enumerate() {
            queue.push_back(QueuedPart::new(RequestId(1), index, RequestPart::Tokens(vec![7; *length])));
        }
        queue
    }

    fn cut(queue: &mut PartQueue, batching: Batching) -> Vec<usize> {
        queue.cut(batching).iter().map(|(_, item)| item.index).collect()
    }

    #[test]
    fn batches_are_cut_by_tokens_in_order() {
        let batching = Batching { tokens_max: 10, parts_max: 3, pads: false };
        let mut queue = queue(&[4, 4, 4, 12, 1, 1, 1, 1]);
        assert_eq!(cut(&mut queue, batching), [0, 1]);
        assert_eq!(cut(&mut queue, batching), [2]);
        assert_eq!(cut(&mut queue, batching), [3], "larger than a batch: it goes alone");
        assert_eq!(cut(&mut queue, batching), [4, 5, 6]);
        assert_eq!((queue.len(), queue.tokens(), queue.bytes()), (1, 1, 4));
    }

    #[test]
    fn padding_engine_gets_parts_of_similar_length() {
        let batching = Batching { tokens_max: 300, parts_max: 8, pads: true };
        let mut queue = queue(&[100, 10, 95, 11, 100]);
        assert_eq!(cut(&mut queue, batching), [0, 2, 4]);
        assert_eq!(cut(&mut queue, batching), [1, 3]);
    }

    #[test]
    fn part_marked_alone_is_not_batched() {
        let batching = Batching { tokens_max: 100, parts_max: 8, pads: false };
        let mut queue = queue(&[1, 1]);
        let suspect =
            QueuedPart { alone: true, ..QueuedPart::new(RequestId(2), 9, RequestPart::Tokens(vec![7])) };
        queue.push_front(suspect);
        assert_eq!(cut(&mut queue, batching), [9]);
        assert_eq!(cut(&mut queue, batching), [0, 1]);
    }
}
