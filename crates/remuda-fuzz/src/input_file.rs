//! The input as a file, for code that reads from a path.

use std::path::Path;

use tempfile::TempDir;

/// A folder with these files, gone afterwards. In memory where the machine has such a folder: a run is a few microseconds
/// long otherwise.
pub(crate) fn folder_with(files: &[(&str, &[u8])]) -> TempDir {
    let memory = Path::new("/dev/shm");
    let folder = match memory.is_dir() {
        true => tempfile::tempdir_in(memory),
        false => tempfile::tempdir(),
    };
    let folder = folder.expect("a temporary folder can be made");
    for (name, bytes) in files {
        std::fs::write(folder.path().join(name), bytes).expect("a file of a few kilobytes can be written");
    }
    folder
}
