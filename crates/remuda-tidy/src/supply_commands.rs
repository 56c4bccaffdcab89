//! The commands of this program that concern dependencies: check them, list them, and make the copy of the advisory database.

use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::SystemTime;

use remuda_tidy::source::workspace_root;
use remuda_tidy::supply::advisories::AdvisoryCopy;
use remuda_tidy::supply::import::import_advisories;
use remuda_tidy::supply::licences::{check_licences, read_licences};
use remuda_tidy::supply::lock::{check_sources, read_lock};
use remuda_tidy::supply::policy::SupplyPolicy;
use remuda_tidy::supply::sbom::{parse_tree, write_sbom};
use remuda_tidy::supply::{AGE_MAX_DAYS, advisories_path, check_advisories};

/// Exit code 1 if a dependency is not accepted.
pub(super) fn check() -> ExitCode {
    match findings() {
        Ok(findings) if findings.is_empty() => ExitCode::SUCCESS,
        Ok(findings) => {
            eprintln!("{}", findings.join("\n"));
            ExitCode::FAILURE
        }
        Err(error) => failed(&error),
    }
}

fn findings() -> Result<Vec<String>, String> {
    let root = workspace_root();
    let (packages, policy) = (read_lock(&root)?, SupplyPolicy::read(&root)?);
    let licences = read_licences(&root, true)?;
    let mut findings = check_sources(&packages);
    findings.extend(check_licences(&licences, &policy));
    println!("{} packages are locked, {} licences of this system were read", packages.len(), licences.len());
    let path = advisories_path(&root);
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let copy = AdvisoryCopy::parse(&text).map_err(|error| format!("{}: {error}", path.display()))?;
            findings.extend(check_advisories(&packages, &copy, &policy));
            println!("{} advisories of {} were compared", copy.advisories.len(), copy.date);
            warn_if_old(&copy);
        }
        Err(error) => println!(
            "warning: advisories were not checked: {}: {error}; make the copy with `cargo run -p remuda-tidy -- \
             import-advisories CLONE`",
            path.display()
        ),
    }
    Ok(findings)
}

fn warn_if_old(copy: &AdvisoryCopy) {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let age = copy.age_days(now.as_secs());
    if age > AGE_MAX_DAYS {
        println!("warning: the copy of the advisory database is {age} days old; make a new one");
    }
}

/// Prints the list of parts of a release, which has every feature but CUDA.
pub(super) fn print_sbom() -> ExitCode {
    let root = workspace_root();
    let sbom = read_lock(&root).and_then(|packages| {
        write_sbom(&packages, &read_licences(&root, false)?, &parse_tree(&shipped_tree(&root)?))
    });
    match sbom {
        Ok(sbom) => {
            println!("{sbom:#}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

/// What `cargo build --profile dist --features full` puts into the program, or runs to build it.
fn shipped_tree(root: &Path) -> Result<String, String> {
    let args = "tree --locked -p remuda --features full --edges normal,build --prefix none --format {p}";
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo).args(args.split(' ')).current_dir(root).output();
    let output = output.map_err(|error| format!("cargo cannot be started: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("cargo tree: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Prints the pinned copy, made from a clone of the advisory database.
pub(super) fn print_copy(clone: &Path) -> ExitCode {
    match import_advisories(clone) {
        Ok(copy) => {
            print!("{copy}");
            ExitCode::SUCCESS
        }
        Err(error) => failed(&error),
    }
}

fn failed(error: &str) -> ExitCode {
    eprintln!("remuda-tidy: {error}");
    ExitCode::FAILURE
}
