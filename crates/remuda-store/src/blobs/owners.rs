//! Which tenant brought a blob, and how much each has stored.
//!
//! The owner of `FOLDER/ab/cdef…` is in the file `FOLDER/ab/cdef….owner`: the tenant's name. The first tenant that brings a
//! content is counted for it; others that bring the same later store nothing. The file goes with its blob. It is not synced:
//! after a power failure a blob may be there that counts for no tenant. Rejected: a table in the store, which every upload
//! would have to commit to, and which a restored copy of the store would set back while the files stay.
//!
//! The sums are in memory. Each subfolder is counted once after the start, under its lock; what changes in one that was not
//! counted yet is left to the count.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use remuda_core::id::Tenant;

use super::{BlobError, BlobHash, BlobStore, Shared};
use crate::tenant_bytes::{TenantBytes, signed};

const SUFFIX: &str = ".owner";

#[derive(Debug)]
pub(super) struct Owners {
    bytes: TenantBytes,
    is_counted: Mutex<[bool; 256]>,
}

impl Default for Owners {
    fn default() -> Self {
        Owners { bytes: TenantBytes::default(), is_counted: Mutex::new([false; 256]) }
    }
}

impl BlobStore {
    /// Bytes of the blobs that this tenant brought, as far as they were counted since the start.
    pub fn bytes_of(&self, tenant: &Tenant) -> u64 {
        self.0.owners.bytes.get(tenant)
    }

    /// Counts what was stored before the start, one subfolder at a time.
    pub async fn count_owned(&self) -> Result<(), BlobError> {
        for shard in 0..=u8::MAX {
            self.run(move |shared| shared.count_shard(shard).map_err(|error| shared.failed(error))).await?;
        }
        Ok(())
    }

    /// Counts blobs that exist and have no owner yet for a tenant: what a worker brought for its job.
    pub async fn claim_all(&self, hashes: BTreeSet<BlobHash>, tenant: Tenant) -> Result<(), BlobError> {
        if hashes.is_empty() {
            return Ok(());
        }
        let claim = move |shared: &Shared| {
            hashes.iter().try_for_each(|hash| {
                let _guard = shared.lock_for(*hash);
                match shared.metadata(*hash) {
                    Ok(Some(meta)) => shared.claim_locked(*hash, meta.len(), &tenant),
                    Ok(None) => Ok(()),
                    Err(error) => Err(error),
                }
                .map_err(|error| shared.failed(error))
            })
        };
        self.run(claim).await
    }
}

impl Shared {
    /// Makes the tenant the owner unless the blob has one. The subfolder is locked.
    pub(super) fn claim_locked(&self, hash: BlobHash, size_bytes: u64, tenant: &Tenant) -> io::Result<()> {
        let path = self.owner_path(hash);
        let mut file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            opened => opened?,
        };
        if let Err(error) = file.write_all(tenant.as_str().as_bytes()) {
            // Half of a name would be another tenant's.
            fs::remove_file(&path).ok();
            return Err(error);
        }
        self.change(hash.shard(), tenant, size_bytes, 1);
        Ok(())
    }

    /// The blob was deleted. The subfolder is locked.
    pub(super) fn disown_locked(&self, hash: BlobHash, size_bytes: u64) {
        let path = self.owner_path(hash);
        let Some(tenant) = read_owner(&path) else { return };
        // If it stays, the next blob of this name has an owner already, which is what it says.
        if fs::remove_file(&path).is_ok() {
            self.change(hash.shard(), &tenant, size_bytes, -1);
        }
    }

    fn change(&self, shard: u8, tenant: &Tenant, size_bytes: u64, sign: i64) {
        let is_counted = self.owners.is_counted.lock().unwrap_or_else(PoisonError::into_inner);
        if is_counted[usize::from(shard)] {
            let change = sign * signed(usize::try_from(size_bytes).unwrap_or(usize::MAX));
            self.owners.bytes.apply(&[(tenant.clone(), change)].into());
        }
    }

    fn count_shard(&self, shard: u8) -> io::Result<()> {
        let _guard = self.lock_shard(shard);
        let is_counted = || self.owners.is_counted.lock().unwrap_or_else(PoisonError::into_inner);
        if is_counted()[usize::from(shard)] {
            return Ok(());
        }
        let entries = match fs::read_dir(self.shard(shard)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            entries => Some(entries?),
        };
        is_counted()[usize::from(shard)] = true;
        for entry in entries.into_iter().flatten() {
            let name = entry?.file_name();
            let hash =
                name.to_str().and_then(|name| BlobHash::from_file_name(shard, name.strip_suffix(SUFFIX)?));
            let Some(hash) = hash else { continue };
            match (self.metadata(hash)?, read_owner(&self.owner_path(hash))) {
                (Some(meta), Some(tenant)) => self.change(shard, &tenant, meta.len(), 1),
                // Its blob was deleted, and then the process died.
                (None, _) => drop(fs::remove_file(self.owner_path(hash))),
                (Some(_), None) => {}
            }
        }
        Ok(())
    }

    fn owner_path(&self, hash: BlobHash) -> PathBuf {
        self.shard(hash.shard()).join(format!("{}{SUFFIX}", hash.file_name()))
    }
}

fn read_owner(path: &std::path::Path) -> Option<Tenant> {
    fs::read_to_string(path).ok()?.parse().ok()
}
