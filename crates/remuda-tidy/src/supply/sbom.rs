//! The list of parts of a release, as CycloneDX 1.5: every package of `Cargo.lock` with its hash, its licence and what it
//! depends on. The same lock gives the same text: no time, no random number.
//!
//! Packages that no release has (tests, other systems) are listed with the scope `excluded`, so that the list can be compared
//! with the lock, line by line.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::licences::Licences;
use super::lock::LockedPackage;

/// `shipped` has the names and versions of what is built into a release.
pub fn write_sbom(
    packages: &[LockedPackage],
    licences: &Licences,
    shipped: &BTreeSet<(String, String)>,
) -> Result<Value, String> {
    let product = packages
        .iter()
        .find(|package| package.name == "remuda" && package.source.is_none())
        .ok_or("Cargo.lock has no package `remuda`")?;
    let components = packages
        .iter()
        .filter(|package| package.purl() != product.purl())
        .map(|package| component(package, licences, shipped));
    let dependencies = packages.iter().map(|package| {
        let on: Vec<String> =
            package.dependencies_in(packages).into_iter().map(LockedPackage::purl).collect();
        json!({ "ref": package.purl(), "dependsOn": on })
    });
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": component(product, licences, shipped) },
        "components": components.collect::<Vec<_>>(),
        "dependencies": dependencies.collect::<Vec<_>>(),
    }))
}

fn component(package: &LockedPackage, licences: &Licences, shipped: &BTreeSet<(String, String)>) -> Value {
    let key = (package.name.clone(), package.version.to_string());
    let kind = if package.name == "remuda" { "application" } else { "library" };
    let mut component = json!({
        "type": kind,
        "bom-ref": package.purl(),
        "name": package.name,
        "version": key.1,
        "purl": package.purl(),
        "scope": if shipped.contains(&key) { "required" } else { "excluded" },
    });
    if let Some(sum) = &package.checksum {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    if let Some(licence) = licences.get(&key).filter(|licence| !licence.is_empty()) {
        component["licenses"] = json!([{ "expression": licence.replace('/', " OR ") }]);
    }
    component
}

/// Reads `cargo tree --prefix none --format {p}`: lines like `name v1.2.3 (proc-macro)`.
pub fn parse_tree(text: &str) -> BTreeSet<(String, String)> {
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
        Some((name.to_owned(), version.to_owned()))
    };
    text.lines().filter_map(entry).collect()
}
