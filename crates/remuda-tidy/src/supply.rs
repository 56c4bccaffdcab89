//! What this program is made of: every part is locked, has a licence that we accept and no advisory that we do not, and is
//! listed with the release.
//!
//! ```text
//!  Cargo.lock ──────────┬──▶ check ──▶ findings
//!  supply/policy.toml ──┤        (licences, accepted advisories)
//!  supply/advisories.tsv┘        (a pinned copy of the RustSec database: nothing is fetched)
//!  Cargo.lock, cargo metadata ──▶ sbom ──▶ CycloneDX JSON
//! ```
//!
//! Written here and not with cargo-deny or cargo-audit: both bring hundreds of crates, a git client among them,
//! which is minutes of building in every clean CI run on two cores; both want the database as a git repository; and what they
//! would do for us is the comparison in [`advisories`]. This crate is built for the other checks anyway.
//!
//! The check never depends on the day it runs: an old copy of the database is a warning, see [`AGE_MAX_DAYS`].

pub mod advisories;
pub mod import;
pub mod licences;
pub mod lock;
pub mod policy;
pub mod sbom;

use std::path::{Path, PathBuf};

use self::advisories::AdvisoryCopy;
use self::lock::LockedPackage;
use self::policy::SupplyPolicy;

/// A copy older than this is worth a warning: about one advisory a month concerned a package of ours in 2026.
pub const AGE_MAX_DAYS: u64 = 60;

/// The pinned copy: of this repository, or the file that `REMUDA_ADVISORIES` names.
pub fn advisories_path(root: &Path) -> PathBuf {
    std::env::var_os("REMUDA_ADVISORIES").map_or_else(|| root.join("supply/advisories.tsv"), PathBuf::from)
}

/// Every advisory that concerns a locked package and is not accepted, and every acceptance that is no longer needed.
pub fn check_advisories(
    packages: &[LockedPackage],
    copy: &AdvisoryCopy,
    policy: &SupplyPolicy,
) -> Vec<String> {
    let mut findings = Vec::new();
    let affected = copy.affecting(packages);
    for (advisory, package) in &affected {
        if !policy.accepts(&advisory.id, &package.name) {
            findings.push(format!(
                "{} {}: {} ({}); patched: {}; see https://rustsec.org/advisories/{}.html, then update it or accept it in \
                 supply/policy.toml",
                package.name, package.version, advisory.id, advisory.kind, advisory.patched_text(), advisory.id
            ));
        }
    }
    for accepted in &policy.accepted {
        let is_needed = affected
            .iter()
            .any(|(advisory, package)| advisory.id == accepted.advisory && package.name == accepted.package);
        if !is_needed {
            findings.push(format!(
                "{} of {} is accepted in supply/policy.toml and concerns no locked package: remove the entry",
                accepted.advisory, accepted.package
            ));
        }
    }
    findings
}
