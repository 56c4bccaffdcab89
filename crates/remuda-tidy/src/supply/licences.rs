//! The licence of every package, as `cargo metadata` tells it.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::policy::SupplyPolicy;

/// Licences by name and version.
pub type Licences = BTreeMap<(String, String), String>;

/// With `is_offline` only packages that this machine builds are known: what others need may not have been downloaded.
pub fn read_licences(root: &Path, is_offline: bool) -> Result<Licences, String> {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["metadata", "--locked", "--format-version", "1"]).current_dir(root);
    if is_offline {
        cargo.args(["--offline", "--filter-platform", &host()?]);
    }
    let output = cargo.output().map_err(|error| format!("cargo cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo metadata: {}", String::from_utf8_lossy(&output.stderr)));
    }
    let metadata: Value = serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has no packages")?;
    let text = |package: &Value, field: &str| package[field].as_str().unwrap_or_default().to_owned();
    let entry = |it: &Value| ((text(it, "name"), text(it, "version")), text(it, "license"));
    Ok(packages.iter().map(entry).collect())
}

fn host() -> Result<String, String> {
    let output = Command::new("rustc").arg("-vV").output().map_err(|error| format!("rustc: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not say its host".to_owned())
}

/// Packages whose licence is not accepted.
pub fn check_licences(licences: &Licences, policy: &SupplyPolicy) -> Vec<String> {
    let refused = licences.iter().filter(|(_, licence)| !policy.allows_licence(licence));
    refused
        .map(|((name, version), licence)| {
            format!("{name} {version} is under {licence:?}, which supply/policy.toml does not list")
        })
        .collect()
}
