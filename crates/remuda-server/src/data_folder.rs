//! The data folder is for its owner only: it holds prompts, results, webhook secrets and credentials.
//!
//! A folder that we create gets 0700, and every file in it 0600. Files of an older version are tightened, which takes nothing
//! from their owner. A folder that was there before is tightened only if everything in it is ours: the mode of a shared
//! folder (`/tmp`, a home) is not ours to change. If others may write in such a folder, they could replace the store, so it
//! is refused, with the command to run; if they may only list it, our files are closed to them, and a warning says so.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

use anyhow::{Context as _, bail};
use tracing::warn;

const PRIVATE_FOLDER: u32 = 0o700;
const PRIVATE_FILE: u32 = 0o600;
/// What group and others may do.
const FOREIGN_BITS: u32 = 0o077;
const FOREIGN_WRITE_BITS: u32 = 0o022;
/// Names in the data folder that are ours; a name that ends with `*` is a prefix.
const OUR_NAMES: &[&str] = &[
    "remuda.sqlite*",
    "blobs",
    "audit.jsonl*",
    "fleets",
    "models",
    "ssh",
    "workers",
    "remuda.toml",
    "lost+found",
];
/// Those of them whose content must be closed to others. Settings are written by people, and models are no secret; the
/// store closes its own files.
const SECRET_NAMES: &[&str] = &["blobs", "audit.jsonl*", "fleets", "ssh", "workers"];

/// Creates the folder, or checks and tightens the one that is there.
pub fn prepare(folder: &Path) -> anyhow::Result<()> {
    let cannot = || format!("cannot create the data folder {}", folder.display());
    match fs::metadata(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(parent) = folder.parent() {
                fs::create_dir_all(parent).with_context(cannot)?;
            }
            match DirBuilder::new().mode(PRIVATE_FOLDER).create(folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created.with_context(cannot)?,
            }
        }
        Err(error) => return Err(error).with_context(cannot),
        Ok(_) => {}
    }
    check_owner(folder)?;
    let names = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
        .with_context(|| format!("cannot read the data folder {}", folder.display()))?;
    let is_ours = |name: &&std::ffi::OsString| matches(name, OUR_NAMES);
    tighten_folder(folder, names.iter().all(|name| is_ours(&name)))?;
    for name in names.iter().filter(|name| matches(name, SECRET_NAMES)) {
        tighten(&folder.join(name))?;
    }
    Ok(())
}

fn matches(name: &std::ffi::OsStr, known: &[&str]) -> bool {
    let Some(name) = name.to_str() else { return false };
    known.iter().any(|known| match known.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == *known,
    })
}

/// A folder of another user can be opened to others again at any time.
fn check_owner(folder: &Path) -> anyhow::Result<()> {
    let (owner, ours) = (fs::metadata(folder)?.uid(), rustix::process::geteuid().as_raw());
    if owner == ours || ours == 0 {
        return Ok(());
    }
    bail!(
        "the data folder {} belongs to user {owner}, and this plane runs as user {ours}: run `chown -R {ours} {}` as root, or \
         choose another with --data",
        folder.display(),
        folder.display()
    )
}

fn tighten_folder(folder: &Path, has_only_ours: bool) -> anyhow::Result<()> {
    let mode = fs::metadata(folder)?.mode();
    let shown = folder.display();
    if mode & FOREIGN_BITS == 0 {
        return Ok(());
    }
    if has_only_ours {
        return set_mode(folder, PRIVATE_FOLDER);
    }
    if mode & FOREIGN_WRITE_BITS != 0 {
        bail!(
            "other users may write in the data folder {shown}, and so replace the store. It also holds files that are not \
             Remuda's, so its mode was not changed: choose a folder of its own with --data, or run `chmod 700 {shown}`"
        );
    }
    warn!(folder = %shown, "other users may list the data folder; `chmod 700` closes it (its mode was not changed, because it holds other files too)");
    Ok(())
}

fn tighten(path: &Path) -> anyhow::Result<()> {
    let found = fs::symlink_metadata(path)?;
    match found.mode() & FOREIGN_BITS {
        0 => Ok(()),
        // The target is the operator's own choice of place.
        _ if found.is_symlink() => Ok(()),
        _ if found.is_dir() => set_mode(path, PRIVATE_FOLDER),
        _ => set_mode(path, PRIVATE_FILE),
    }
}

fn set_mode(path: &Path, mode: u32) -> anyhow::Result<()> {
    let shown = path.display();
    fs::set_permissions(path, Permissions::from_mode(mode)).with_context(|| {
        format!("other users may read {shown}, and that cannot be changed: run `chmod go-rwx {shown}` as its owner")
    })?;
    warn!(path = %shown, mode = format!("{mode:o}"), "closed to other users");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn make(path: &Path, bits: u32) {
        fs::write(path, "x").unwrap();
        fs::set_permissions(path, Permissions::from_mode(bits)).unwrap();
    }

    #[test]
    fn new_folder_is_for_its_owner_only() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("a/b");
        prepare(&folder).unwrap();
        assert_eq!(mode(&folder), 0o700);
        prepare(&folder).unwrap();
    }

    /// Faults: X3.
    #[test]
    fn open_files_of_an_older_version_are_closed() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("data");
        fs::create_dir(&folder).unwrap();
        fs::create_dir(folder.join("blobs")).unwrap();
        for name in ["audit.jsonl", "remuda.toml"] {
            make(&folder.join(name), 0o644);
        }
        for path in [&folder, &folder.join("blobs")] {
            fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
        }
        prepare(&folder).unwrap();
        assert_eq!((mode(&folder), mode(&folder.join("blobs"))), (0o700, 0o700));
        assert_eq!(mode(&folder.join("audit.jsonl")), 0o600);
        assert_eq!(mode(&folder.join("remuda.toml")), 0o644, "settings are written by people");
    }

    /// Faults: X3.
    #[test]
    fn mode_of_a_shared_folder_is_not_changed() {
        let folder = tempfile::tempdir().unwrap();
        make(&folder.path().join("diary.txt"), 0o644);
        make(&folder.path().join("audit.jsonl"), 0o644);
        for (bits, is_refused) in [(0o755, false), (0o1777, true), (0o775, true)] {
            fs::set_permissions(folder.path(), Permissions::from_mode(bits)).unwrap();
            let prepared = prepare(folder.path());
            assert_eq!(prepared.is_err(), is_refused, "{bits:o}: {prepared:?}");
            assert_eq!(mode(folder.path()), bits);
            if let Err(error) = prepared {
                assert!(error.to_string().contains("run `chmod 700 "), "{error}");
            }
        }
        assert_eq!(mode(&folder.path().join("audit.jsonl")), 0o600);
        assert_eq!(mode(&folder.path().join("diary.txt")), 0o644);
    }
}
