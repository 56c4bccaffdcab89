//! Reads `[[tenant]]` sections.

use remuda_core::id::{BadId, Tenant};
use remuda_core::settings::Settings;
use remuda_core::settings::quota::TenantQuota;

use super::file::Section;
use super::key::Key;
use super::table::tenants::{KEYS, is_quota};
use super::tenant::TenantConfig;
use super::{ConfigError, suggest};

impl TenantConfig {
    pub(super) fn read(section: &Section, general: &TenantQuota) -> Result<TenantConfig, ConfigError> {
        let mut tenant = TenantConfig::new(general.clone(), section.origin());
        for pair in section.pairs() {
            let key = key(&pair.name).ok_or_else(|| section.unknown(pair, hint(&pair.name)))?;
            let entry = section.entry(key, pair)?;
            entry.key.write(&mut tenant, entry.value);
            tenant.origins.insert(entry.key.name, entry.origin);
        }
        if tenant.name.is_empty() {
            let declared_at = &tenant.declared_at;
            return Err(ConfigError::Conflict(format!(
                "a tenant ({declared_at}) has no `name`: give it one"
            )));
        }
        if let Some((key, origin)) = tenant.origins.iter().find(|(key, _)| is_quota(key))
            && tenant.is_for_every_tenant()
        {
            return Err(ConfigError::Conflict(format!(
                "tenant * ({origin}) is for rules: write the quota of every tenant as `{key}` under `[quota]`"
            )));
        }
        Ok(tenant)
    }
}

/// Quotas and rules by tenant. Names must be unique.
pub(super) fn apply(tenants: &[TenantConfig], settings: &mut Settings) -> Result<(), ConfigError> {
    let mut has_general = false;
    for config in tenants {
        let TenantConfig { name, quota, rule, declared_at, .. } = config;
        let is_repeated = if config.is_for_every_tenant() {
            settings.tenants.every = rule.clone();
            std::mem::replace(&mut has_general, true)
        } else {
            let tenant: Tenant = name.parse().map_err(|bad: BadId| {
                ConfigError::Conflict(format!("a tenant ({declared_at}) has a bad name: {bad}"))
            })?;
            settings.tenants.own.insert(tenant.clone(), rule.clone());
            settings.tenant_quotas.insert(tenant, quota.clone()).is_some()
        };
        if is_repeated {
            let message = format!("tenant {name} ({declared_at}) has a section already: write both as one");
            return Err(ConfigError::Conflict(message));
        }
    }
    Ok(())
}

fn key(name: &str) -> Option<&'static Key<TenantConfig>> {
    KEYS.iter().find(|key| key.name == name)
}

fn hint(written: &str) -> String {
    let names = || KEYS.iter().map(|key| key.name);
    match suggest::closest_name(written, names()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("settings of a tenant are {}", names().collect::<Vec<_>>().join(", ")),
    }
}
