//! The memory budget per device. Memory is reserved before a copy starts and released when its thread has joined or its
//! process was reaped, not earlier: a hung thread still holds its model. Card memory is counted separately from main
//! memory.

use std::collections::BTreeMap;

use super::CopyId;
use crate::spec::Device;

#[derive(Debug)]
pub(crate) struct MemoryBudget {
    limits: BTreeMap<Device, u64>,
    held: BTreeMap<CopyId, (Device, u64)>,
}

impl MemoryBudget {
    pub(crate) fn new(limit_bytes: u64) -> Self {
        MemoryBudget { limits: BTreeMap::from([(Device::Cpu, limit_bytes)]), held: BTreeMap::new() }
    }

    /// Adds a device. The limit of a known device is kept, because it may be reserved already.
    pub(crate) fn extend(&mut self, device: Device, limit_bytes: u64) {
        self.limits.entry(device).or_insert(limit_bytes);
    }

    /// The only way to reserve; never exceeds the limit.
    pub(crate) fn reserve(&mut self, copy: CopyId, device: Device, bytes: u64) -> bool {
        let fits = bytes <= self.free_bytes(device) && !self.held.contains_key(&copy);
        if fits {
            self.held.insert(copy, (device, bytes));
        }
        fits
    }

    /// Releasing a second time returns zero.
    pub(crate) fn release(&mut self, copy: CopyId) -> u64 {
        self.held.remove(&copy).map_or(0, |(_, bytes)| bytes)
    }

    pub(crate) fn held_by(&self, copy: CopyId) -> u64 {
        self.held.get(&copy).map_or(0, |(_, bytes)| *bytes)
    }

    pub(crate) fn reserved_bytes(&self, device: Device) -> u64 {
        self.held.values().filter(|(on, _)| *on == device).map(|(_, bytes)| bytes).sum()
    }

    pub(crate) fn free_bytes(&self, device: Device) -> u64 {
        self.limit_bytes(device) - self.reserved_bytes(device)
    }

    /// Zero for an unknown device.
    pub(crate) fn limit_bytes(&self, device: Device) -> u64 {
        self.limits.get(&device).copied().unwrap_or(0)
    }

    pub(crate) fn devices(&self) -> impl Iterator<Item = Device> + '_ {
        self.limits.keys().copied()
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
    fn limit_is_never_exceeded_and_memory_is_released_once() {
        let mut memory = MemoryBudget::new(100);
        let cpu = Device::Cpu;
        assert!(memory.reserve(CopyId(1), cpu, 60));
        assert!(!memory.reserve(CopyId(2), cpu, 41));
        assert!(!memory.reserve(CopyId(1), cpu, 1), "one reservation per copy");
        assert!(memory.reserve(CopyId(2), cpu, 40));
        assert_eq!((memory.release(CopyId(1)), memory.release(CopyId(1))), (60, 0));
        assert_eq!((memory.reserved_bytes(cpu), memory.free_bytes(cpu)), (40, 60));
    }

    #[test]
    fn card_memory_is_counted_separately() {
        let mut memory = MemoryBudget::new(100);
        let [card, other] = [0, 1].map(Device::Cuda);
        assert!(!memory.reserve(CopyId(1), card, 1), "unknown device");
        memory.extend(card, 50);
        memory.extend(card, 70);
        memory.extend(other, 30);
        assert!(memory.reserve(CopyId(1), Device::Cpu, 100));
        assert!(memory.reserve(CopyId(2), card, 50));
        assert!(!memory.reserve(CopyId(3), card, 1), "the first limit stays");
        assert!(memory.reserve(CopyId(3), other, 30));
        assert_eq!((memory.release(CopyId(2)), memory.free_bytes(card)), (50, 50));
        assert_eq!((memory.free_bytes(Device::Cpu), memory.free_bytes(other)), (0, 0));
    }
}
