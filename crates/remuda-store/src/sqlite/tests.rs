//! The contract, and faults of files, disks and processes. The prefixes `d1` and so on are rows of the fault catalogue.

mod child;
mod disk;
mod files;
mod load;
mod place;
mod proof;

use std::path::PathBuf;

use tempfile::TempDir;

use super::super::contract::{StoreFixture, store_contract_tests};
use super::super::{Store, StoreError};

struct Folder(TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("remuda.db")
    }

    fn sibling(&self, suffix: &str) -> PathBuf {
        super::files::sibling(&self.path(), suffix)
    }

    async fn try_open(&self) -> Result<Store, StoreError> {
        Store::open(&format!("sqlite:{}", self.path().display())).await
    }
}

impl StoreFixture for Folder {
    async fn open(&self) -> Store {
        self.try_open().await.unwrap()
    }
}

store_contract_tests!(Folder::new);
