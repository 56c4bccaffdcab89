//! What tests need from the machine they run on. Tests install nothing: `tests/prepare` does, and `./test` runs it first. A
//! test that finds something missing returns early and reports that it was skipped; `./test` counts those reports, takes
//! them from the number of passed tests, and fails on one that `tests/allowed-skips` does not list.
//!
//! ```ignore
//! let Some(sshd) = remuda_testkit::program("sshd") else { return };
//! ```
//!
//! Rust's test harness has no way to skip a test while it runs. `#[ignore]` was rejected because what is missing is only
//! known at run time; failing was rejected because `cargo test` should work offline with what is there.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Names the file to which every skipped test is appended: `test name<TAB>what is missing`.
const REPORT: &str = "IT_SKIPPED";

/// Reports that the current test is skipped because `missing` is not here. Return from the test right after it.
pub fn skip(missing: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // Written past the harness, which shows the output of failed tests only.
    drop(writeln!(std::io::stderr(), "skipped: {test}: no {missing} here"));
    if let Some(path) = std::env::var_os(REPORT) {
        let file = OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| file.write_all(format!("{test}\t{missing}\n").as_bytes()));
        written.expect("the report of skipped tests can be written");
    }
}

/// The path of a program, searched in `PATH` and in the folders of system programs; otherwise the test is skipped.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file());
    if found.is_none() {
        skip(name);
    }
    found
}

/// `strace`, if this process may trace its children; otherwise the test is skipped.
pub fn strace() -> Option<PathBuf> {
    let strace = program("strace")?;
    let works =
        Command::new(&strace).args(["-o", "/dev/null", "true"]).output().is_ok_and(|it| it.status.success());
    if !works {
        skip("permission to trace processes");
    }
    works.then_some(strace)
}

/// A file system in memory of a fixed size, unmounted when dropped.
#[derive(Debug)]
pub struct SmallDisk(TempDir);

impl SmallDisk {
    /// `size` as `mount` reads it: `96m`. Without permission to mount, the test is skipped.
    pub fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "none"]).arg(folder.path());
        if !mount.output().is_ok_and(|it| it.status.success()) {
            skip("permission to mount a file system");
            return None;
        }
        Some(SmallDisk(folder))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Mounts it again with other options: `ro`, `rw`, `size=1m`.
    pub fn remount(&self, options: &str) {
        let mut mount = Command::new("mount");
        mount.args(["-o", &format!("remount,{options}")]).arg(self.path());
        let done = mount.output().expect("mount was there before");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        drop(Command::new("umount").arg("-l").arg(self.path()).output());
    }
}

/// Where `tests/prepare` puts what it fetches: `IT_TOOLS`, or `target/test-tools` of the workspace.
pub fn tools_folder() -> PathBuf {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("IT_TOOLS").map_or_else(|| workspace.join("target/test-tools"), PathBuf::from)
}

/// A folder of prepared packages, if it was made from exactly this list; otherwise the test is skipped.
pub fn prepared(name: &str, list: &str) -> Option<PathBuf> {
    let folder = tools_folder().join(name);
    let is_current =
        std::fs::read_to_string(folder.join("prepared-from")).is_ok_and(|made_from| made_from == list);
    if !is_current {
        skip(&format!("{name} packages (tests/prepare fetches them)"));
    }
    is_current.then_some(folder)
}

/// The folder of a real model, if it was fetched; otherwise the test is skipped.
pub fn model(name: &str) -> Option<PathBuf> {
    let models = std::env::var_os("REMUDA_MODELS");
    let folder = models.map_or_else(|| tools_folder().join("models"), PathBuf::from).join(name);
    let is_there = folder.join("remuda-model.json").is_file();
    if !is_there {
        skip(&format!("model {name} (tests/prepare fetches it)"));
    }
    is_there.then_some(folder)
}
