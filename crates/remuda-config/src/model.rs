//! Configuration of the models that this machine serves.

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_models::ModelSpec;

use super::ValueOrigin;

/// Settings of all models.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelsSettings {
    /// Memory for all copies together; by default a share of the machine's memory.
    pub memory_bytes: Option<u64>,
    /// Longest time for a call.
    pub request_timeout: Duration,
    /// Each `[[model]]`.
    pub own: Vec<ModelConfig>,
}

impl Default for ModelsSettings {
    fn default() -> Self {
        // The default timeout of OpenAI's own clients.
        ModelsSettings { memory_bytes: None, request_timeout: Duration::from_secs(600), own: Vec::new() }
    }
}

/// A model that this machine serves.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    pub spec: ModelSpec,
    /// Where the section begins.
    pub(super) declared_at: ValueOrigin,
    /// Origins of the settings that are not defaults.
    pub(super) origins: BTreeMap<&'static str, ValueOrigin>,
}

impl ModelConfig {
    pub(super) fn new(name: &str, declared_at: ValueOrigin) -> ModelConfig {
        ModelConfig { spec: ModelSpec::new(name, ""), declared_at, origins: BTreeMap::new() }
    }

    /// Where the value of a setting came from.
    pub(super) fn origin(&self, key: &str) -> ValueOrigin {
        self.origins.get(key).cloned().unwrap_or(ValueOrigin::Default)
    }
}
