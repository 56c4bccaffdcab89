//! The source of the workspace as text: every Rust file, and which of its lines are only built for tests.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The root of the workspace.
pub fn workspace_root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    here.canonicalize().unwrap_or(here)
}

/// A Rust file of the workspace.
#[derive(Debug)]
pub struct SourceFile {
    /// Relative to `crates/`: `remuda-core/src/plane.rs`.
    pub name: String,
    pub text: String,
    /// The whole file is only built for tests.
    pub is_test: bool,
}

/// Every Rust file of every crate, sorted by name.
pub fn rust_files() -> Vec<SourceFile> {
    let crates = workspace_root().join("crates");
    let mut paths = Vec::new();
    collect(&crates, "rs", &mut paths);
    paths.sort();
    let files: Vec<_> = paths
        .into_iter()
        .filter_map(|path| {
            let text = std::fs::read_to_string(&path).ok()?;
            Some((path.strip_prefix(&crates).ok()?.display().to_string(), text))
        })
        .collect();
    let test_modules: BTreeSet<_> = files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let is_test = |name: &str| {
        name.contains("/tests/")
            || test_modules
                .iter()
                .any(|module| name == format!("{module}.rs") || name.starts_with(&format!("{module}/")))
    };
    files.into_iter().map(|(name, text)| SourceFile { is_test: is_test(&name), name, text }).collect()
}

/// Every Markdown file that users read, by its path relative to the root.
pub fn documents() -> Vec<(String, String)> {
    let root = workspace_root();
    let mut paths = Vec::new();
    for folder in ["docs", "crates", "examples", "models", "tests"] {
        collect(&root.join(folder), "md", &mut paths);
    }
    paths.extend(
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)),
    );
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.strip_prefix(&root).ok()?.display().to_string();
        Some((name, std::fs::read_to_string(&path).ok()?))
    };
    paths.into_iter().filter_map(read).collect()
}

fn collect(folder: &Path, extension: &str, paths: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        if path.is_dir() {
            collect(&path, extension, paths);
        } else if path.extension().is_some_and(|found| found == extension) {
            paths.push(path);
        }
    }
}

/// Modules in files of their own that are declared behind `#[cfg(test)]`, without their extension.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let Some(stem) = name.strip_suffix(".rs") else { return Vec::new() };
    let folder = match stem.rsplit_once('/') {
        Some((folder, "lib" | "main")) => folder,
        _ => stem,
    };
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let declared = lines.windows(2).filter(|pair| pair[0] == "#[cfg(test)]").filter_map(|pair| {
        let (_, module) = pair[1].split_once("mod ")?;
        Some(format!("{folder}/{}", module.strip_suffix(';')?))
    });
    declared.collect()
}

impl SourceFile {
    /// The crate it belongs to: `remuda-core`.
    pub fn crate_name(&self) -> &str {
        self.name.split('/').next().unwrap_or_default()
    }

    /// Whether it is part of what the crate's library or program is built from.
    pub fn is_production(&self) -> bool {
        !self.is_test && self.name.contains("/src/")
    }

    /// Every line with its number.
    pub fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// The lines that are built into the program.
    pub fn production_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.test_line_numbers();
        self.lines().filter(move |(at, _)| !tests.contains(at))
    }

    /// The lines that are only built for tests.
    pub fn test_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.test_line_numbers();
        self.lines().filter(move |(at, _)| tests.contains(at))
    }

    /// Every line of a test file; of any other file the lines of each item behind `#[cfg(test)]`.
    fn test_line_numbers(&self) -> BTreeSet<usize> {
        if self.is_test {
            return self.lines().map(|(at, _)| at).collect();
        }
        let mut tests = BTreeSet::new();
        let mut lines = self.lines();
        while let Some((at, line)) = lines.next() {
            if line.trim() != "#[cfg(test)]" {
                continue;
            }
            tests.insert(at);
            let indent = indent(line);
            // Up to the closing brace or semicolon at the indentation of the item itself.
            for (at, line) in lines.by_ref() {
                tests.insert(at);
                if self::indent(line) == indent && line.ends_with(['}', ';']) {
                    break;
                }
            }
        }
        tests
    }
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}
