//! Quotas of single tenants. A quota that a section omits is the one of `[quota]`.

use std::collections::BTreeMap;

use remuda_core::settings::quota::TenantQuota;

use super::ValueOrigin;

/// One `[[tenant]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    pub name: String,
    pub quota: TenantQuota,
    /// Where the section begins.
    pub(super) declared_at: ValueOrigin,
    /// Origins of the settings that the section has.
    pub(super) origins: BTreeMap<&'static str, ValueOrigin>,
}

impl TenantConfig {
    /// With the quota of every tenant.
    pub(super) fn new(quota: TenantQuota, declared_at: ValueOrigin) -> TenantConfig {
        TenantConfig { name: String::new(), quota, declared_at, origins: BTreeMap::new() }
    }

    /// Where the value of a setting came from; `general` is the origin of the same setting under `[quota]`.
    pub(super) fn origin(&self, key: &str, general: impl FnOnce() -> ValueOrigin) -> ValueOrigin {
        self.origins.get(key).cloned().unwrap_or_else(general)
    }
}
