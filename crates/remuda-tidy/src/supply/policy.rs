//! `supply/policy.toml`: the licences and the advisories that we accept.

use std::path::Path;

use serde::Deserialize;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SupplyPolicy {
    pub licences: Vec<String>,
    #[serde(default)]
    pub accepted: Vec<AcceptedAdvisory>,
}

/// An advisory that we live with. It is accepted for one package only.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceptedAdvisory {
    pub advisory: String,
    pub package: String,
    /// `YYYY-MM-DD`.
    pub since: String,
    pub reason: String,
}

impl SupplyPolicy {
    pub fn read(root: &Path) -> Result<SupplyPolicy, String> {
        let path = root.join("supply/policy.toml");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        SupplyPolicy::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub fn parse(text: &str) -> Result<SupplyPolicy, String> {
        let policy: SupplyPolicy = toml::from_str(text).map_err(|error| error.to_string())?;
        match policy.accepted.iter().find(|it| it.since.trim().is_empty() || it.reason.trim().is_empty()) {
            Some(it) => Err(format!("{} is accepted without a date or a reason", it.advisory)),
            None => Ok(policy),
        }
    }

    pub fn accepts(&self, advisory: &str, package: &str) -> bool {
        self.accepted.iter().any(|it| it.advisory == advisory && it.package == package)
    }

    /// Whether one may choose so that only accepted licences apply to this SPDX expression.
    pub fn allows_licence(&self, expression: &str) -> bool {
        let is_listed = |licence: &str| self.licences.iter().any(|it| it == licence.trim());
        let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
        // An `AND` of choices is fine if one of each is: what stands between is looked at on its own.
        expression.split(" AND ").all(|part| part.split(" OR ").any(is_listed))
    }
}
