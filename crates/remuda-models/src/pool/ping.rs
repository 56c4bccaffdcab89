//! Pings from outside callers, each with its own nonce.
//!
//! The computing thread is never pinged: for a thread copy its exit and beacon are read, and a child process answers
//! from its side thread. A pong with an unknown or closed nonce is dropped, so a late pong proves nothing.

use std::collections::BTreeMap;

use crate::supervisor::CopyId;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Nonce(pub(crate) u64);

#[derive(Debug, Default)]
pub(super) struct PingTable {
    last: u64,
    open: BTreeMap<Nonce, OpenPing>,
    pub(super) dropped: u64,
}

#[derive(Debug)]
struct OpenPing {
    copy: CopyId,
    is_answered: bool,
}

/// More pings are open only if copies do not answer; then the oldest is dropped.
const OPEN_MAX: usize = 256;

impl PingTable {
    pub(super) fn open(&mut self, copy: CopyId) -> Nonce {
        if self.open.len() >= OPEN_MAX {
            self.open.pop_first();
        }
        self.last += 1;
        let nonce = Nonce(self.last);
        self.open.insert(nonce, OpenPing { copy, is_answered: false });
        nonce
    }

    /// True if this nonce was open for this copy and had no answer yet.
    pub(super) fn answer(&mut self, copy: CopyId, nonce: Nonce) -> bool {
        let open = self.open.get_mut(&nonce).filter(|open| open.copy == copy && !open.is_answered);
        let is_ours = open.is_some();
        match open {
            Some(open) => open.is_answered = true,
            None => self.dropped += 1,
        }
        is_ours
    }

    pub(super) fn is_answered(&self, nonce: Nonce) -> bool {
        self.open.get(&nonce).is_some_and(|open| open.is_answered)
    }

    pub(super) fn is_open(&self, nonce: Nonce) -> bool {
        self.open.get(&nonce).is_some_and(|open| !open.is_answered)
    }

    pub(super) fn close(&mut self, nonce: Nonce) {
        self.open.remove(&nonce);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: T5.
    #[test]
    fn late_and_foreign_pongs_are_dropped() {
        let mut pings = PingTable::default();
        let (one, other) = (CopyId(1), CopyId(2));
        let old = pings.open(one);
        pings.close(old);
        let new = pings.open(one);
        assert!(!pings.answer(one, old), "late: it was closed");
        assert!(!pings.answer(other, new), "another copy's ping");
        assert!(!pings.is_answered(new));
        assert!(pings.answer(one, new));
        assert!(!pings.answer(one, new), "twice");
        assert!(pings.is_answered(new));
        assert_eq!(pings.dropped, 3);
    }
}
