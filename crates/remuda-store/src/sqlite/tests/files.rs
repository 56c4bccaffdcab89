//! Damaged and foreign files: refused with a hint, and left unchanged.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};

use super::Folder;
use crate::contract::StoreFixture;
use crate::contract::sample::{accepted, job, queued};
use crate::{JobFilter, Store, StoreError};

/// A store with a few hundred jobs, closed cleanly.
async fn filled() -> Folder {
    let folder = Folder::new();
    fill(&folder).await;
    folder
}

async fn fill(folder: &Folder) {
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    let jobs = (0..500).map(|n| accepted(job(n), queued(1))).collect::<Vec<_>>();
    store.commit(term, jobs.into()).await.unwrap();
    store.close().await.unwrap();
}

/// Opening is refused, the message contains all of `words`, and no file was changed.
async fn check_refused(folder: &Folder, words: &[&str]) {
    let before = fs::read(folder.path()).ok();
    let error = folder.try_open().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error:?}");
    let message = error.to_string();
    let path = folder.path().display().to_string();
    for word in words.iter().chain(&["Restore a backup", path.as_str()]) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    assert_eq!(fs::read(folder.path()).ok(), before);
}

#[tokio::test]
async fn d7_non_database_file_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path(), "# shopping list\n".repeat(1000)).unwrap();
    check_refused(&folder, &["not an SQLite database"]).await;
}

#[tokio::test]
async fn d7_foreign_database_is_refused() {
    let folder = Folder::new();
    let conn = rusqlite::Connection::open(folder.path()).unwrap();
    conn.execute_batch("CREATE TABLE moz_places (url TEXT)").unwrap();
    drop(conn);
    check_refused(&folder, &["another program"]).await;
}

#[tokio::test]
async fn d7_truncated_file_is_refused() {
    let folder = filled().await;
    let half = fs::metadata(folder.path()).unwrap().len() / 2;
    OpenOptions::new().write(true).open(folder.path()).unwrap().set_len(half).unwrap();
    check_refused(&folder, &["malformed"]).await;
}

#[tokio::test]
async fn d7_empty_file_with_a_wal_is_refused() {
    let folder = filled().await;
    fs::write(folder.path(), "").unwrap();
    fs::write(folder.sibling("-wal"), "something").unwrap();
    check_refused(&folder, &["its write-ahead log exists"]).await;
}

#[tokio::test]
async fn d7_corrupt_page_is_detected_on_read() {
    let folder = filled().await;
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    let pages = fs::metadata(folder.path()).unwrap().len() / 8192;
    (5..pages).for_each(|page| file.write_all_at(&[0x5a; 4096], page * 8192).unwrap());
    let answer = match folder.try_open().await {
        Ok(store) => store.jobs(JobFilter::default(), None, 1000).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(answer, Err(StoreError::Unreadable { .. })), "{answer:?}");
}

#[tokio::test]
async fn d7_removed_wal_is_detected() {
    // Simulates a crash by copying the files of an open store.
    let (open, crashed) = (Folder::new(), Folder::new());
    let store = open.open().await;
    let term = store.take_leadership().await.unwrap();
    store.commit(term, vec![accepted(job(1), queued(1))].into()).await.unwrap();
    for suffix in ["", "-wal", ".lock", ".proof"] {
        fs::copy(open.sibling(suffix), crashed.sibling(suffix)).unwrap();
    }
    let log = fs::read(crashed.sibling("-wal")).unwrap();
    fs::remove_file(crashed.sibling("-wal")).unwrap();
    check_refused(&crashed, &["write-ahead log (PATH-wal)", "remuda store recover --accept-loss"]).await;
    check_refused(&crashed, &["write-ahead log (PATH-wal)"]).await;

    fs::write(crashed.sibling("-wal"), log).unwrap();
    assert_eq!(crashed.open().await.restore().await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn single_file_backup_is_opened() {
    let (store, backup) = (filled().await, Folder::new());
    fs::copy(store.path(), backup.path()).unwrap();
    assert_eq!(backup.open().await.restore().await.unwrap().jobs.len(), 500);
}

#[tokio::test]
async fn d15_store_of_a_newer_program_is_refused() {
    let folder = filled().await;
    let conn = rusqlite::Connection::open(folder.path()).unwrap();
    conn.pragma_update(None, "user_version", 7).unwrap();
    drop(conn);
    let error = folder.try_open().await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { ours: 4, theirs: 7, .. }), "{error:?}");
    assert!(error.to_string().contains("schema 7, and this Remuda supports up to 4"), "{error}");
}

#[tokio::test]
async fn store_in_use_names_the_process() {
    let folder = Folder::new();
    let first = folder.open().await;
    let error = folder.try_open().await.unwrap_err();
    let pid = std::process::id();
    assert!(matches!(&error, StoreError::InUse { pid: Some(it), .. } if *it == pid), "{error:?}");
    assert!(error.to_string().contains(&format!("in use by process {pid}")), "{error}");
    drop(first);
    folder.open().await;
}

#[tokio::test]
async fn other_handles_see_that_the_store_is_closed() {
    let folder = Folder::new();
    let store = folder.open().await;
    let other = store.clone();
    store.close().await.unwrap();
    assert!(matches!(other.take_leadership().await, Err(StoreError::Closed)));
    assert!(matches!(other.restore().await, Err(StoreError::Closed)));
    folder.open().await;
}

#[tokio::test]
async fn missing_folder_is_named_in_the_error() {
    let error = Store::open("sqlite:/nowhere/at/all.db").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/at/all.db"), "{error}");
    for url in ["", "sqlite:", "mysql://x", "memory:x"] {
        assert!(matches!(Store::open(url).await, Err(StoreError::BadUrl { .. })), "{url}");
    }
}

fn mode(path: &std::path::Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

/// Faults: X3.
#[tokio::test]
async fn files_are_closed_to_other_users() {
    let folder = Folder::new();
    let store = folder.open().await;
    let files = ["", "-wal", "-shm", ".lock", ".proof", ".reserve"];
    for suffix in files {
        assert_eq!(mode(&folder.sibling(suffix)), 0o600, "{suffix:?}");
    }
    store.close().await.unwrap();
    let left = files.iter().filter(|suffix| folder.sibling(suffix).exists());
    left.for_each(|suffix| {
        fs::set_permissions(folder.sibling(suffix), fs::Permissions::from_mode(0o644)).unwrap();
    });
    let _store = folder.open().await;
    for suffix in files {
        assert_eq!(mode(&folder.sibling(suffix)), 0o600, "{suffix:?} of an older version");
    }
}
