//! Connections that have not sent a request yet, by address and age. When one has to go, it is the oldest of the address
//! that has the most: a flood from one address closes its own connections, not those of others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use super::super::connection::ConnectionEnd;

#[derive(Debug, Default)]
pub(super) struct UnprovenConnections {
    by_address: HashMap<IpAddr, BTreeMap<u64, Arc<ConnectionEnd>>>,
    /// Every address with its number of connections; the last one has the most.
    by_count: BTreeSet<(usize, IpAddr)>,
    len: usize,
    next: u64,
}

impl UnprovenConnections {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn of(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).map_or(0, BTreeMap::len)
    }

    /// Returns the number by which it is removed.
    pub(super) fn insert(&mut self, address: IpAddr, end: Arc<ConnectionEnd>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.change(address, |connections| {
            connections.insert(number, end);
        });
        number
    }

    pub(super) fn remove(&mut self, address: IpAddr, number: u64) {
        self.change(address, |connections| {
            connections.remove(&number);
        });
    }

    pub(super) fn remove_oldest(&mut self) -> Option<Arc<ConnectionEnd>> {
        let (_, address) = *self.by_count.last()?;
        self.remove_oldest_of(address)
    }

    pub(super) fn remove_oldest_of(&mut self, address: IpAddr) -> Option<Arc<ConnectionEnd>> {
        self.change(address, |connections| connections.pop_first()).map(|(_, end)| end)
    }

    fn change<T>(
        &mut self,
        address: IpAddr,
        change: impl FnOnce(&mut BTreeMap<u64, Arc<ConnectionEnd>>) -> T,
    ) -> T {
        let connections = self.by_address.entry(address).or_default();
        let before = connections.len();
        let result = change(connections);
        let after = connections.len();
        self.len = self.len + after - before;
        self.by_count.remove(&(before, address));
        if after == 0 {
            self.by_address.remove(&address);
        } else {
            self.by_count.insert((after, address));
        }
        result
    }
}
