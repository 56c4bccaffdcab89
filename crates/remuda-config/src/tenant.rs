//! What single tenants may have and use. A quota that a section omits is the one of `[quota]`; the section of `*` holds
//! rules for every tenant, and no quotas.

use std::collections::BTreeMap;

use remuda_core::settings::quota::TenantQuota;
use remuda_core::tenant_rules::TenantRule;

use super::ValueOrigin;

/// The name of the section with rules for every tenant.
pub(super) const EVERY: &str = "*";

/// One `[[tenant]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantConfig {
    pub name: String,
    pub quota: TenantQuota,
    pub rule: TenantRule,
    /// Where the section begins.
    pub(super) declared_at: ValueOrigin,
    /// Origins of the settings that the section has.
    pub(super) origins: BTreeMap<&'static str, ValueOrigin>,
}

impl TenantConfig {
    /// With the quota of every tenant.
    pub(super) fn new(quota: TenantQuota, declared_at: ValueOrigin) -> TenantConfig {
        let (name, rule, origins) = (String::new(), TenantRule::default(), BTreeMap::new());
        TenantConfig { name, quota, rule, declared_at, origins }
    }

    pub(super) fn is_for_every_tenant(&self) -> bool {
        self.name == EVERY
    }

    /// Where the value of a setting came from; `general` is the origin of the same setting under `[quota]`.
    pub(super) fn origin(&self, key: &str, general: impl FnOnce() -> ValueOrigin) -> ValueOrigin {
        self.origins.get(key).cloned().unwrap_or_else(general)
    }
}
