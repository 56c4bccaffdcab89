//! `Cargo.lock`: every package of every build, with the hash of what is downloaded.

use std::path::Path;

use semver::Version;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

#[derive(Clone, Debug, Deserialize)]
pub struct LockedPackage {
    pub name: String,
    #[serde(deserialize_with = "version")]
    pub version: Version,
    /// None for packages of this workspace.
    pub source: Option<String>,
    /// SHA-256 of the downloaded file.
    pub checksum: Option<String>,
    /// `NAME`, or `NAME VERSION` where the lock has several.
    #[serde(default)]
    pub dependencies: Vec<String>,
}

fn version<'de, D: Deserializer<'de>>(from: D) -> Result<Version, D::Error> {
    String::deserialize(from)?.parse().map_err(D::Error::custom)
}

#[derive(Deserialize)]
struct LockFile {
    package: Vec<LockedPackage>,
}

/// The packages of the lock file in this folder.
pub fn read_lock(root: &Path) -> Result<Vec<LockedPackage>, String> {
    let path = root.join("Cargo.lock");
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    parse_lock(&text).map_err(|error| format!("{}: {error}", path.display()))
}

pub fn parse_lock(text: &str) -> Result<Vec<LockedPackage>, String> {
    let lock: LockFile = toml::from_str(text).map_err(|error| error.to_string())?;
    Ok(lock.package)
}

/// Packages that are not from the registry, or have no hash.
pub fn check_sources(packages: &[LockedPackage]) -> Vec<String> {
    let downloaded = packages.iter().filter(|package| package.source.is_some());
    let mut findings = Vec::new();
    for LockedPackage { name, version, source, checksum, .. } in downloaded {
        if source.as_deref() != Some(REGISTRY) {
            findings
                .push(format!("{name} {version} is from {source:?}; packages are from the registry only"));
        }
        if checksum.as_ref().is_none_or(|sum| sum.len() != 64) {
            findings.push(format!("{name} {version} has no checksum in Cargo.lock"));
        }
    }
    findings
}

impl LockedPackage {
    /// The package's name in bills of materials.
    pub fn purl(&self) -> String {
        // A `+` of build metadata has to be escaped there.
        format!("pkg:cargo/{}@{}", self.name, self.version.to_string().replace('+', "%2B"))
    }

    /// The locked packages that this one depends on.
    pub fn dependencies_in<'a>(&self, packages: &'a [LockedPackage]) -> Vec<&'a LockedPackage> {
        let find = |text: &String| {
            let mut words = text.split(' ');
            let (name, version) = (words.next()?, words.next());
            packages
                .iter()
                .find(|it| it.name == name && version.is_none_or(|version| it.version.to_string() == version))
        };
        self.dependencies.iter().filter_map(find).collect()
    }
}
