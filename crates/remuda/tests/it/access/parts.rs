//! What this program is made of: every part is locked, comes from where parts come from, and may be used.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use remuda_tidy::source::workspace_root;

/// Licences that ask for nothing but to be named.
const LICENCES: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "0BSD",
    "CC0-1.0",
    "Unlicense",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// Whether one may choose so that only licences of the list apply.
fn is_fine(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // An `AND` of choices is fine if one of each is: what stands between is looked at on its own.
    expression.split(" AND ").all(|part| part.split(" OR ").any(|licence| LICENCES.contains(&licence.trim())))
}

/// Of what this machine builds: what others need may not have been fetched here.
fn metadata() -> Value {
    let told = Command::new("rustc").arg("-vV").output().unwrap();
    let told = String::from_utf8(told.stdout).unwrap();
    let host = told.lines().find_map(|line| line.strip_prefix("host: ")).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["metadata", "--locked", "--offline", "--format-version", "1", "--filter-platform", host]);
    let output = cargo.current_dir(workspace_root()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Faults: X21.
#[test]
fn every_dependency_is_locked_and_has_allowed_licence() {
    let lock = std::fs::read_to_string(workspace_root().join("Cargo.lock")).unwrap();
    let mut locked = BTreeSet::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            package
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "))
                .map(|it| it.trim_matches('"'))
        };
        let name = field("name").unwrap();
        if let Some(source) = field("source") {
            assert_eq!(source, "registry+https://github.com/rust-lang/crates.io-index", "{name}");
            assert!(field("checksum").is_some_and(|sum| sum.len() == 64), "{name} has no checksum");
        }
        locked.insert((name.to_owned(), field("version").unwrap().to_owned()));
    }
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    assert!(packages.len() > 100);
    for package in packages {
        let text = |field: &str| package[field].as_str().unwrap_or_default().to_owned();
        let licence = text("license");
        assert!(is_fine(&licence), "{} {} is under {licence:?}", text("name"), text("version"));
        assert!(locked.contains(&(text("name"), text("version"))), "{} is not locked", text("name"));
    }
}

#[test]
fn restrictive_licence_is_detected() {
    for fine in
        ["MIT", "MIT OR GPL-3.0", "(MIT OR Apache-2.0) AND Unicode-3.0", "Apache-2.0/MIT", "ISC AND MIT"]
    {
        assert!(is_fine(fine), "{fine}");
    }
    for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "AGPL-3.0 OR SSPL-1.0"] {
        assert!(!is_fine(bad), "{bad}");
    }
}
