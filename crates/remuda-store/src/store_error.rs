//! Errors of a store, by what the caller can do.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use remuda_core::id::Term;

use crate::loss::StoreLoss;

/// The cause of an error. It is shared because one transaction contains the batches of many callers.
pub type SharedError = Arc<dyn Error + Send + Sync>;

/// Errors of a store, by what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// Stop; take the leadership and restore to continue.
    #[error("term {ours} is over: another plane leads in term {theirs}")]
    Superseded { ours: Term, theirs: Term },

    /// Nothing was written; retry soon.
    #[error("the store is busy")]
    Busy(#[source] SharedError),

    /// The file cannot be accessed; retry after fixing the cause.
    #[error("{} cannot be opened", path.display())]
    Unreachable {
        path: PathBuf,
        #[source]
        source: SharedError,
    },

    /// Nothing was written; accept no jobs until `has_reserve`.
    #[error("no disk space left for {}: free some, and the store continues by itself", path.display())]
    Full { path: PathBuf },

    /// The batch may or may not be written: close the store and open it again.
    #[error("writing to {} failed; the store must be reopened", path.display())]
    Broken {
        path: PathBuf,
        #[source]
        source: SharedError,
    },

    /// Nothing was written, and a retry cannot succeed.
    #[error("the batch contradicts stored records: {what}")]
    Conflict { what: String },

    /// Needs an operator.
    #[error(
        "{} cannot be read as a Remuda store: {what}. Nothing was changed. Restore a backup (PATH, PATH-wal, PATH.proof \
         and PATH.lock together, or a single file made with sqlite3's .backup and none of the others), or move the files \
         away to start with an empty store",
        path.display()
    )]
    Unreadable { path: PathBuf, what: String },

    /// Needs an operator.
    #[error(
        "{} is not what was acknowledged: {loss}. Nothing was changed. `remuda store check` shows more. Put the missing \
         files back, or restore a backup; then, or to go on with what is there: `remuda store recover --accept-loss`",
        path.display()
    )]
    Incomplete { path: PathBuf, loss: Box<StoreLoss> },

    /// The batch may be written to files that are gone; retry once `check_place` succeeds again.
    #[error(
        "{} is not in its place: {what}. Put it back, and the plane continues; it holds the files open, so do not stop it \
         before you saved them",
        path.display()
    )]
    Misplaced { path: PathBuf, what: String },

    /// Another process has it open.
    #[error("{} is in use by process {}: stop that process first", path.display(), pid.map_or("?".to_owned(), |pid| pid.to_string()))]
    InUse { path: PathBuf, pid: Option<u32> },

    /// Written by a newer version of Remuda.
    #[error("{} has schema {theirs}, and this Remuda supports up to {ours}: use the newer Remuda", path.display())]
    NewerSchema { path: PathBuf, ours: u32, theirs: u32 },

    #[error("{url:?} is not a store URL: expected sqlite:PATH or memory:")]
    BadUrl { url: String },

    /// The last batches may or may not be written; reopen the store to find out.
    #[error("the store was closed")]
    Closed,
}

impl StoreError {
    /// Whether the batch may be written although its commit failed: only a reopened store can tell.
    pub fn is_outcome_unknown(&self) -> bool {
        matches!(self, StoreError::Broken { .. } | StoreError::Misplaced { .. } | StoreError::Closed)
    }
}
