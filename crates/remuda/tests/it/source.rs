//! The source as text, for tests that read it.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// A file of ours.
#[derive(Debug)]
pub(crate) struct Source {
    /// As people name it: `remuda-core/src/plane.rs`.
    pub(crate) name: String,
    pub(crate) text: String,
    /// All of it is for tests.
    pub(crate) is_test: bool,
}

/// Every Rust file of every crate, in order.
pub(crate) fn all() -> Vec<Source> {
    let crates = root().join("crates");
    let mut paths = Vec::new();
    collect(&crates, &mut paths);
    paths.sort();
    let read = |path: PathBuf| {
        (path.strip_prefix(&crates).unwrap().display().to_string(), std::fs::read_to_string(path).unwrap())
    };
    let files: Vec<_> = paths.into_iter().map(read).collect();
    let tests: BTreeSet<_> = files.iter().flat_map(|(name, text)| test_modules(name, text)).collect();
    let is_test = |name: &str| {
        name.contains("/tests/")
            || tests.iter().any(|test| name == format!("{test}.rs") || name.starts_with(&format!("{test}/")))
    };
    files.into_iter().map(|(name, text)| Source { is_test: is_test(&name), name, text }).collect()
}

fn collect(folder: &Path, paths: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, paths);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            paths.push(path);
        }
    }
}

/// Modules in files of their own that stand behind `#[cfg(test)]`, without their ending.
fn test_modules(name: &str, text: &str) -> Vec<String> {
    let stem = name.strip_suffix(".rs").unwrap();
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

impl Source {
    /// Every line, with its number.
    pub(crate) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.text.lines().enumerate().map(|(at, line)| (at + 1, line))
    }

    /// What is built into the program.
    pub(crate) fn production(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.test_lines();
        self.lines().filter(move |(at, _)| !tests.contains(at))
    }

    pub(crate) fn tests(&self) -> impl Iterator<Item = (usize, &str)> {
        let tests = self.test_lines();
        self.lines().filter(move |(at, _)| tests.contains(at))
    }

    /// All lines of a file for tests; of any other those of each item behind `#[cfg(test)]`.
    fn test_lines(&self) -> BTreeSet<usize> {
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
            // Up to the brace or semicolon as far in as the item itself.
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
