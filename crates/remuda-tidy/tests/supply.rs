//! The dependencies of this workspace, and the checks themselves on made-up ones.

use std::collections::BTreeSet;

use remuda_tidy::source::workspace_root;
use remuda_tidy::supply::advisories::AdvisoryCopy;
use remuda_tidy::supply::licences::{Licences, check_licences, read_licences};
use remuda_tidy::supply::lock::{LockedPackage, check_sources, parse_lock, read_lock};
use remuda_tidy::supply::policy::SupplyPolicy;
use remuda_tidy::supply::sbom::{parse_tree, write_sbom};
use remuda_tidy::supply::{advisories_path, check_advisories};

const COPY: &str = "# rustsec/advisory-db 0123456789abcdef 2026-08-21
# a remark
RUSTSEC-2020-0001\told\tvulnerability\t>= 1.2.3;>= 0.9.5, < 0.10.0\t< 0.9.0
RUSTSEC-2024-0002\tforsaken\tunmaintained\t\t
RUSTSEC-2024-0003\tremuda\tvulnerability\t\t
";

/// A locked package from the registry.
fn locked(name: &str, version: &str) -> LockedPackage {
    LockedPackage {
        name: name.to_owned(),
        version: version.parse().expect("a version"),
        source: Some("registry+https://github.com/rust-lang/crates.io-index".to_owned()),
        checksum: Some("0".repeat(64)),
        dependencies: Vec::new(),
    }
}

fn policy(accepted: &str) -> SupplyPolicy {
    SupplyPolicy::parse(&format!(
        "licences = [\"MIT\", \"ISC\", \"Unicode-3.0\", \"Apache-2.0\"]\n{accepted}"
    ))
    .expect("a policy")
}

fn accepted(advisory: &str, package: &str) -> String {
    format!(
        "[[accepted]]\nadvisory = \"{advisory}\"\npackage = \"{package}\"\nsince = \"2026-11-18\"\nreason = \"r\"\n"
    )
}

/// Faults: X21.
#[test]
fn every_dependency_is_locked_and_has_allowed_licence() {
    let (root, policy) = (workspace_root(), SupplyPolicy::read(&workspace_root()).unwrap());
    let packages = read_lock(&root).unwrap();
    let licences = read_licences(&root, true).unwrap();
    assert!(packages.len() > 400 && licences.len() > 100, "{} {}", packages.len(), licences.len());
    let known: BTreeSet<_> = packages.iter().map(|it| (it.name.clone(), it.version.to_string())).collect();
    let unlocked: Vec<_> = licences.keys().filter(|key| !known.contains(key)).collect();
    assert!(unlocked.is_empty(), "{unlocked:?}");
    let findings = [check_sources(&packages), check_licences(&licences, &policy)].concat();
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Faults: X21.
#[test]
fn no_dependency_has_an_advisory_that_is_not_accepted() {
    let root = workspace_root();
    let Ok(text) = std::fs::read_to_string(advisories_path(&root)) else {
        return remuda_testkit::skip("copy of the advisory database");
    };
    let copy = AdvisoryCopy::parse(&text).unwrap();
    assert!(copy.advisories.len() > 500, "{}", copy.advisories.len());
    let findings = check_advisories(&read_lock(&root).unwrap(), &copy, &SupplyPolicy::read(&root).unwrap());
    assert!(findings.is_empty(), "{}", findings.join("\n"));
}

/// Faults: X21.
#[test]
fn advisory_concerns_exactly_the_affected_versions() {
    let copy = AdvisoryCopy::parse(COPY).unwrap();
    for (version, is_affected) in [
        ("0.8.9", false),
        ("0.9.0", true),
        ("0.9.4", true),
        ("0.9.5", false),
        ("0.10.0", true),
        ("1.2.2", true),
        ("1.2.3", false),
        ("2.0.0", false),
        // Cargo's ranges have no pre-releases: rather one finding too many.
        ("2.0.0-rc.1", true),
    ] {
        let packages = [locked("old", version)];
        let findings = check_advisories(&packages, &copy, &policy(""));
        assert_eq!(findings.len(), usize::from(is_affected), "{version}: {findings:?}");
    }
    let findings = check_advisories(&[locked("forsaken", "9.9.9")], &copy, &policy(""));
    assert!(
        findings[0].starts_with("forsaken 9.9.9: RUSTSEC-2024-0002 (unmaintained); patched: none"),
        "{findings:?}"
    );
    let own = LockedPackage { source: None, ..locked("remuda", "0.1.0") };
    assert!(check_advisories(&[own], &copy, &policy("")).is_empty(), "not the package of that name");
}

#[test]
fn acceptance_names_one_package_and_ends_with_its_need() {
    let copy = AdvisoryCopy::parse(COPY).unwrap();
    let packages = [locked("forsaken", "1.0.0")];
    let of = |accepted: &str| check_advisories(&packages, &copy, &policy(accepted));
    assert!(of(&accepted("RUSTSEC-2024-0002", "forsaken")).is_empty());
    assert_eq!(
        of(&accepted("RUSTSEC-2024-0002", "old")).len(),
        2,
        "for another package, and not needed there"
    );
    let both = accepted("RUSTSEC-2024-0002", "forsaken") + &accepted("RUSTSEC-2020-0001", "old");
    assert!(of(&both)[0].contains("remove the entry"));
    let unreasoned = "licences = []\n[[accepted]]\nadvisory = \"A\"\npackage = \"b\"\nsince = \"2026-01-01\"\nreason = \" \"\n";
    assert!(SupplyPolicy::parse(unreasoned).unwrap_err().contains("without a date or a reason"));
}

#[test]
fn damaged_copy_is_refused() {
    for (text, with) in [
        ("", "the first line"),
        ("# rustsec/advisory-db abc yesterday\n", "no date"),
        ("# rustsec/advisory-db abc 2026-08-21\nRUSTSEC-1\tp\tnotice\n", "3 fields"),
        ("# rustsec/advisory-db abc 2026-08-21\nRUSTSEC-1\tp\tnotice\tnever\t\n", "never"),
    ] {
        let error = AdvisoryCopy::parse(text).unwrap_err();
        assert!(error.contains(with), "{error}");
    }
}

#[test]
fn age_of_the_copy_is_counted_in_days() {
    let copy = AdvisoryCopy::parse(COPY).unwrap();
    // 2026-08-21 is day 20,686 since 1970.
    for (day, age) in [(20_686, 0), (20_687, 1), (20_775, 89), (20_000, 0)] {
        assert_eq!(copy.age_days(day * 86_400 + 5), age, "day {day}");
    }
}

#[test]
fn restrictive_licence_is_detected() {
    let policy = policy("");
    for fine in
        ["MIT", "MIT OR GPL-3.0", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0/MIT", "ISC AND MIT"]
    {
        assert!(policy.allows_licence(fine), "{fine}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "AGPL-3.0 OR SSPL-1.0"] {
        assert!(!policy.allows_licence(bad), "{bad}");
    }
}

#[test]
fn package_from_elsewhere_or_without_checksum_is_found() {
    let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nsource = \"git+https://example.org/a#0123\"\n
        [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
    let findings = check_sources(&parse_lock(lock).unwrap());
    assert_eq!(findings.len(), 2, "{findings:?}");
    assert!(check_sources(&[locked("b", "1.0.0")]).is_empty());
}

/// Faults: X21.
#[test]
fn list_of_parts_has_every_locked_package() {
    let root = workspace_root();
    let packages = read_lock(&root).unwrap();
    let shipped = parse_tree(
        "remuda v0.1.0 (/here)\nserde v1.0.229\nserde_derive v1.0.229 (proc-macro)\nserde v1.0.229 (*)\n",
    );
    assert_eq!(shipped.len(), 3);
    let licences = Licences::from([(("paste".to_owned(), "1.0.15".to_owned()), "MIT/Apache-2.0".to_owned())]);
    let sbom = write_sbom(&packages, &licences, &shipped).unwrap();
    assert_eq!((&sbom["bomFormat"], &sbom["specVersion"]), (&"CycloneDX".into(), &"1.5".into()));
    let components = sbom["components"].as_array().unwrap();
    let mut listed: BTreeSet<String> =
        components.iter().map(|it| it["bom-ref"].as_str().unwrap().to_owned()).collect();
    assert_eq!(listed.len(), components.len(), "each once");
    listed.insert(sbom["metadata"]["component"]["bom-ref"].as_str().unwrap().to_owned());
    assert_eq!(listed, packages.iter().map(LockedPackage::purl).collect::<BTreeSet<_>>());
    for component in components.iter().filter(|it| !it["name"].as_str().unwrap().starts_with("remuda-")) {
        assert_eq!(component["hashes"][0]["content"].as_str().map(str::len), Some(64), "{component}");
    }
    let edges = sbom["dependencies"].as_array().unwrap();
    assert!(edges.iter().all(|edge| listed.contains(edge["ref"].as_str().unwrap())));
    let named: usize = packages.iter().map(|it| it.dependencies.len()).sum();
    let written: usize = edges.iter().map(|edge| edge["dependsOn"].as_array().unwrap().len()).sum();
    assert_eq!(written, named, "every dependency of the lock is an edge");
    let find = |name: &str| components.iter().find(|it| it["name"] == name).unwrap();
    assert_eq!(
        (&find("serde")["scope"], &find("proptest")["scope"]),
        (&"required".into(), &"excluded".into())
    );
    assert_eq!(find("paste")["licenses"][0]["expression"], "MIT OR Apache-2.0");
}
