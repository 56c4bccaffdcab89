//! Models in the program: fetched by name, examined, served.

mod both;
mod chat;
mod embed;
mod flags;
mod fleet;
mod get;
mod host;
mod killed;
mod openai;
mod sight;
mod streamed;

use std::path::{Path, PathBuf};

use crate::harness::remuda;
use crate::source::root;

/// Where the models are that tests compute with: `REMUDA_MODELS`, or a folder that outlives the tests.
fn shelf() -> PathBuf {
    std::env::var_os("REMUDA_MODELS").map_or_else(|| root().join("target/models"), PathBuf::from)
}

/// The folder of a real model, fetched the way users fetch it if it is not there yet. Tests that want the same at the same
/// time wait for each other, as users would.
pub(crate) fn folder(name: &str) -> PathBuf {
    let shelf = shelf();
    std::fs::create_dir_all(&shelf).unwrap();
    let mut get = remuda(Path::new("/"));
    let got = get.args(["models", "get", name, "--into"]).arg(&shelf).output().unwrap();
    assert!(got.status.success(), "{}", String::from_utf8_lossy(&got.stderr));
    shelf.join(name)
}
