//! Who holds how much memory. It is reserved before a copy is started and given back when its thread has joined or its
//! process was reaped, and not before: a thread that hangs still has its model.

use std::collections::BTreeMap;

use super::CopyId;

#[derive(Debug)]
pub(crate) struct Ledger {
    limit_bytes: u64,
    held: BTreeMap<CopyId, u64>,
}

impl Ledger {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        Ledger { limit_bytes, held: BTreeMap::new() }
    }

    /// The only way in, and it never lets more in than there is.
    pub(crate) fn reserve(&mut self, copy: CopyId, bytes: u64) -> bool {
        let fits = bytes <= self.free_bytes() && !self.held.contains_key(&copy);
        if fits {
            self.held.insert(copy, bytes);
        }
        fits
    }

    /// Once: whoever releases a second time gets nothing.
    pub(crate) fn release(&mut self, copy: CopyId) -> u64 {
        self.held.remove(&copy).unwrap_or(0)
    }

    pub(crate) fn held_by(&self, copy: CopyId) -> u64 {
        self.held.get(&copy).copied().unwrap_or(0)
    }

    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.held.values().sum()
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.limit_bytes - self.reserved_bytes()
    }

    pub(crate) fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    #[cfg(test)]
    pub(crate) fn holders(&self) -> impl Iterator<Item = CopyId> + '_ {
        self.held.keys().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_there_is_cannot_be_reserved_and_nothing_is_given_back_twice() {
        let mut ledger = Ledger::new(100);
        assert!(ledger.reserve(CopyId(1), 60));
        assert!(!ledger.reserve(CopyId(2), 41));
        assert!(!ledger.reserve(CopyId(1), 1), "one reservation a copy");
        assert!(ledger.reserve(CopyId(2), 40));
        assert_eq!((ledger.release(CopyId(1)), ledger.release(CopyId(1))), (60, 0));
        assert_eq!((ledger.reserved_bytes(), ledger.free_bytes()), (40, 60));
    }
}
