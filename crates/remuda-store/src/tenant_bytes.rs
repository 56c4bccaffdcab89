//! Bytes stored for each tenant. The owner of the bytes counts them: the store its workflows and results, the blob folder its
//! files. Read at the start from what is stored, so a restart forgets nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use remuda_core::id::Tenant;

/// Clones share the numbers.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantBytes(Arc<Mutex<BTreeMap<Tenant, u64>>>);

/// What a change adds for each tenant; less than zero if it deletes.
pub(crate) type ByteChanges = BTreeMap<Tenant, i64>;

impl TenantBytes {
    pub(crate) fn new(bytes: BTreeMap<Tenant, u64>) -> TenantBytes {
        TenantBytes(Arc::new(Mutex::new(bytes)))
    }

    pub(crate) fn get(&self, tenant: &Tenant) -> u64 {
        self.lock().get(tenant).copied().unwrap_or(0)
    }

    pub(crate) fn apply(&self, changes: &ByteChanges) {
        let mut all = self.lock();
        for (tenant, change) in changes {
            let bytes = all.entry(tenant.clone()).or_default();
            *bytes = bytes.saturating_add_signed(*change);
            if *bytes == 0 {
                all.remove(tenant);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, u64>> {
        // Every change is complete once it is made.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds to the change of one tenant.
pub(crate) fn add(changes: &mut ByteChanges, tenant: &Tenant, bytes: i64) {
    if bytes != 0 {
        *changes.entry(tenant.clone()).or_default() += bytes;
    }
}

/// A length as a change; no text is longer.
pub(crate) fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
