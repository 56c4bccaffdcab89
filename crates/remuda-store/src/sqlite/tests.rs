//! The contract, and what can only go wrong with files and processes. `d1` and so on are rows of the fault catalogue.

mod child;
mod disk;
mod files;
mod load;

use std::path::PathBuf;

use tempfile::TempDir;

use super::super::contract::{Place, passes_the_contract};
use super::super::{Store, StoreError};

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("remuda.db")
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        super::files::beside(&self.path(), suffix)
    }

    async fn try_open(&self) -> Result<Store, StoreError> {
        Store::open(&format!("sqlite:{}", self.path().display())).await
    }
}

impl Place for Folder {
    async fn open(&self) -> Store {
        self.try_open().await.unwrap()
    }
}

passes_the_contract!(Folder::new);
