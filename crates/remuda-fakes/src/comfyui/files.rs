//! The folders of a server, in memory. Output and input folders survive a crash, the temporary one does not.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::body::Bytes;

/// Files kept in each folder; beyond that the first names are dropped.
const FILES_MAX: usize = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Folder {
    Output,
    Input,
    Temp,
}

impl Folder {
    pub(super) fn named(name: &str) -> Option<Folder> {
        match name {
            "output" => Some(Folder::Output),
            "input" => Some(Folder::Input),
            "temp" => Some(Folder::Temp),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Folder::Output => "output",
            Folder::Input => "input",
            Folder::Temp => "temp",
        }
    }
}

/// The path of a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) folder: Folder,
    pub(super) subfolder: String,
    pub(super) name: String,
}

impl Place {
    pub(super) fn leaves_its_folder(&self) -> bool {
        resolve(&self.subfolder).is_none() || self.name == ".."
    }

    /// With the folder that its path leads to.
    fn resolved(mut self) -> Place {
        self.subfolder = resolve(&self.subfolder).unwrap_or(self.subfolder);
        self
    }
}

/// Python's `normpath`; `None` if the path leads out of its folder.
fn resolve(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    (!path.starts_with('/')).then(|| parts.join("/"))
}

#[derive(Debug, Default)]
struct Shelves {
    files: BTreeMap<Place, Bytes>,
    /// Changes with each restart, so that temporary names are unique.
    temp_series: u64,
}

#[derive(Debug, Default)]
pub(super) struct Disk(Mutex<Shelves>);

impl Disk {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self, place: &Place) -> Option<Bytes> {
        self.shelves().files.get(&place.clone().resolved()).cloned()
    }

    pub(super) fn write(&self, place: Place, bytes: Bytes) {
        let mut shelves = self.shelves();
        if shelves.files.len() >= FILES_MAX {
            shelves.files.pop_first();
        }
        shelves.files.insert(place.resolved(), bytes);
    }

    pub(super) fn remove(&self, place: &Place) {
        self.shelves().files.remove(&place.clone().resolved());
    }

    /// Writes under the prefix and the next number, one above the highest.
    pub(super) fn write_numbered(
        &self,
        folder: Folder,
        subfolder: &str,
        prefix: &str,
        bytes: Bytes,
    ) -> Place {
        let place = |name: String| Place { folder, subfolder: subfolder.to_owned(), name }.resolved();
        let highest = {
            let shelves = self.shelves();
            let range = place(format!("{prefix}_00000_.png"))..=place(format!("{prefix}_99999_.png"));
            shelves.files.range(range).rev().find_map(|(place, _)| {
                let number = place.name.strip_prefix(prefix)?.strip_prefix('_')?.strip_suffix("_.png")?;
                number.parse::<u32>().ok()
            })
        };
        let written = place(format!("{prefix}_{:05}_.png", highest.unwrap_or(0) + 1));
        self.write(written.clone(), bytes);
        written
    }

    /// Resolves `name`, `sub/name`, `name [output]` or `name [temp]`.
    pub(super) fn annotated(&self, name: &str) -> Option<Bytes> {
        let (name, folder) = [Folder::Output, Folder::Input, Folder::Temp]
            .into_iter()
            .find_map(|folder| Some((name.strip_suffix(&format!(" [{}]", folder.name()))?, folder)))
            .unwrap_or((name, Folder::Input));
        let (subfolder, name) = name.rsplit_once('/').unwrap_or(("", name));
        self.read(&Place { folder, subfolder: subfolder.to_owned(), name: name.to_owned() })
    }

    /// Names at the top level of a folder.
    pub(super) fn names(&self, folder: Folder) -> Vec<String> {
        let shelves = self.shelves();
        let names = shelves.files.keys().filter(|place| place.folder == folder && place.subfolder.is_empty());
        names.map(|place| place.name.clone()).collect()
    }

    /// Deletes temporary files, as a crash does.
    pub(super) fn wipe_temp(&self) {
        let mut shelves = self.shelves();
        shelves.files.retain(|place, _| place.folder != Folder::Temp);
        shelves.temp_series += 1;
    }

    pub(super) fn wipe_output(&self) {
        self.shelves().files.retain(|place, _| place.folder != Folder::Output);
    }

    /// The original appends five random letters; these differ after each restart.
    pub(super) fn temp_prefix(&self) -> String {
        let mut series = self.shelves().temp_series;
        let letters: String = (0..5)
            .map(|_| {
                let letter = b'a' + u8::try_from(series % 26).unwrap_or(0);
                series /= 26;
                char::from(letter)
            })
            .collect();
        format!("ComfyUI_temp_{letters}")
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;

    use super::{Disk, Folder};

    #[test]
    fn numbers_go_on_from_the_highest_of_their_prefix() {
        let disk = Disk::default();
        let save =
            |prefix: &str| disk.write_numbered(Folder::Output, "", prefix, Bytes::from_static(b"x")).name;
        assert_eq!(save("a"), "a_00001_.png");
        assert_eq!(save("a"), "a_00002_.png");
        assert_eq!(save("a_b"), "a_b_00001_.png");
        assert_eq!(save("a"), "a_00003_.png");
    }

    #[test]
    fn a_death_takes_the_temporary_files_only() {
        let disk = Disk::default();
        for folder in [Folder::Output, Folder::Temp] {
            disk.write_numbered(folder, "", "x", Bytes::from_static(b"x"));
        }
        let before = disk.temp_prefix();
        disk.wipe_temp();
        assert_eq!(disk.names(Folder::Output), ["x_00001_.png"]);
        assert!(disk.names(Folder::Temp).is_empty());
        assert_ne!(disk.temp_prefix(), before);
    }
}
