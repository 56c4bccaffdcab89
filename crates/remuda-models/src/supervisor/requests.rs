//! Requests in progress: their queued parts, their answers so far and their deadlines.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::RequestId;
use super::queue::QueueKey;
use crate::request::{ModelAnswer, PartAnswer};

#[derive(Debug)]
pub(crate) struct PendingRequest {
    pub(crate) model: Arc<str>,
    pub(crate) since: Duration,
    pub(crate) deadline: Option<Duration>,
    pub(crate) waiting: BTreeSet<QueueKey>,
    prompt_tokens: u64,
    answers: Vec<Option<PartAnswer>>,
    missing: usize,
}

impl PendingRequest {
    pub(crate) fn new(model: Arc<str>, now: Duration, deadline: Option<Duration>, tokens: &[usize]) -> Self {
        PendingRequest {
            model,
            since: now,
            deadline,
            waiting: BTreeSet::new(),
            prompt_tokens: tokens.iter().map(|tokens| *tokens as u64).sum(),
            answers: vec![None; tokens.len()],
            missing: tokens.len(),
        }
    }

    /// Stores the answer to a part. Returns the complete answer if this was the last part; a part is answered once.
    pub(crate) fn answered(&mut self, index: usize, answer: PartAnswer) -> Option<ModelAnswer> {
        let slot = self.answers.get_mut(index).filter(|slot| slot.is_none())?;
        *slot = Some(answer);
        self.missing -= 1;
        self.whole()
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> usize {
        self.answers.len()
    }

    #[cfg(test)]
    pub(crate) fn missing(&self) -> usize {
        self.missing
    }

    pub(crate) fn whole(&mut self) -> Option<ModelAnswer> {
        let is_whole = self.missing == 0;
        is_whole.then(|| ModelAnswer {
            parts: self.answers.drain(..).flatten().collect(),
            prompt_tokens: self.prompt_tokens,
        })
    }
}

/// Requests by id and by deadline.
#[derive(Debug, Default)]
pub(crate) struct PendingRequests {
    by_id: BTreeMap<RequestId, PendingRequest>,
    deadlines: BTreeSet<(Duration, RequestId)>,
}

impl PendingRequests {
    pub(crate) fn insert(&mut self, id: RequestId, pending: PendingRequest) {
        self.deadlines.extend(pending.deadline.map(|deadline| (deadline, id)));
        self.by_id.insert(id, pending);
    }

    pub(crate) fn remove(&mut self, id: RequestId) -> Option<PendingRequest> {
        let pending = self.by_id.remove(&id)?;
        if let Some(deadline) = pending.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(pending)
    }

    pub(crate) fn get(&self, id: RequestId) -> Option<&PendingRequest> {
        self.by_id.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: RequestId) -> Option<&mut PendingRequest> {
        self.by_id.get_mut(&id)
    }

    pub(crate) fn is_wanted(&self, id: RequestId) -> bool {
        self.by_id.contains_key(&id)
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.by_id.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn first_deadline(&self) -> Option<Duration> {
        self.deadlines.first().map(|(deadline, _)| *deadline)
    }

    /// Requests whose deadline has passed.
    pub(crate) fn late(&self, now: Duration) -> Vec<RequestId> {
        self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now).map(|(_, id)| *id).collect()
    }
}
