//! Makes the pinned copy from a clone of the advisory database, bare or not.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::advisories::AdvisoryCopy;

/// The front matter of an advisory, in TOML.
#[derive(Deserialize)]
struct Document {
    advisory: Head,
    #[serde(default)]
    versions: Versions,
}

#[derive(Deserialize)]
struct Head {
    id: String,
    package: String,
    informational: Option<String>,
    withdrawn: Option<toml::Value>,
}

#[derive(Default, Deserialize)]
struct Versions {
    #[serde(default)]
    patched: Vec<String>,
    #[serde(default)]
    unaffected: Vec<String>,
}

/// The text of the copy, made from the newest commit of the clone.
pub fn import_advisories(clone: &Path) -> Result<String, String> {
    let head = git(clone, &["log", "-1", "--format=%H %cs", "HEAD"])?;
    let mut copy = format!("# rustsec/advisory-db {}\n", head.trim());
    copy.push_str(
        "# made by `cargo run -p remuda-tidy -- import-advisories CLONE`; public domain (CC0-1.0)\n",
    );
    let paths = git(clone, &["ls-tree", "-r", "--name-only", "HEAD", "crates"])?;
    let mut lines = Vec::new();
    for path in paths.lines().filter(|path| path.ends_with(".md")) {
        let document = git(clone, &["show", &format!("HEAD:{path}")])?;
        lines.extend(line(&document).map_err(|error| format!("{path}: {error}"))?);
    }
    lines.sort();
    for line in lines {
        writeln!(copy, "{line}").map_err(|error| error.to_string())?;
    }
    AdvisoryCopy::parse(&copy)?;
    Ok(copy)
}

/// The line of an advisory; none for one that was withdrawn.
fn line(document: &str) -> Result<Option<String>, String> {
    let front = document.split_once("```toml\n").and_then(|(_, rest)| rest.split_once("```"));
    let (front, _) = front.ok_or("no front matter in TOML")?;
    let Document { advisory, versions } = toml::from_str(front).map_err(|error| error.to_string())?;
    let kind = advisory.informational.as_deref().unwrap_or("vulnerability");
    let Versions { patched, unaffected } = versions;
    Ok(advisory.withdrawn.is_none().then(|| {
        [&advisory.id, &advisory.package, kind, &patched.join(";"), &unaffected.join(";")].join("\t")
    }))
}

fn git(clone: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new("git").arg("-C").arg(clone).args(args).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    match output.status.success() {
        true => String::from_utf8(output.stdout).map_err(|error| error.to_string()),
        false => Err(format!("git {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}
