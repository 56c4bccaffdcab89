//! Files that are not what they should be: refused with a word on what to do, and left as they are.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use super::Folder;
use crate::contract::Place;
use crate::contract::sample::{accepted, job, queued};
use crate::{Filter, Store, StoreError};

/// A store with a few hundred jobs, closed in order.
async fn filled() -> Folder {
    let folder = Folder::new();
    fill(&folder).await;
    folder
}

async fn fill(folder: &Folder) {
    let store = folder.open().await;
    let term = store.lead().await.unwrap();
    let jobs = (0..500).map(|n| accepted(job(n), queued(1))).collect::<Vec<_>>();
    store.commit(term, jobs.into()).await.unwrap();
    store.close().await.unwrap();
}

/// Opening is refused, the message says all of `words`, and nothing was touched.
async fn check_refused(folder: &Folder, words: &[&str]) {
    let before = fs::read(folder.path()).ok();
    let error = folder.try_open().await.unwrap_err();
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error:?}");
    let message = error.to_string();
    let path = folder.path().display().to_string();
    for word in words.iter().chain(&["Put back a copy", path.as_str()]) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
    assert_eq!(fs::read(folder.path()).ok(), before);
}

#[tokio::test]
async fn d7_a_file_that_is_no_database_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path(), "# shopping list\n".repeat(1000)).unwrap();
    check_refused(&folder, &["not an SQLite database"]).await;
}

#[tokio::test]
async fn d7_the_database_of_another_program_is_refused() {
    let folder = Folder::new();
    let conn = rusqlite::Connection::open(folder.path()).unwrap();
    conn.execute_batch("CREATE TABLE moz_places (url TEXT)").unwrap();
    drop(conn);
    check_refused(&folder, &["another program"]).await;
}

#[tokio::test]
async fn d7_a_truncated_file_is_refused() {
    let folder = filled().await;
    let half = fs::metadata(folder.path()).unwrap().len() / 2;
    OpenOptions::new().write(true).open(folder.path()).unwrap().set_len(half).unwrap();
    check_refused(&folder, &["malformed"]).await;
}

#[tokio::test]
async fn d7_an_emptied_file_with_a_log_beside_it_is_refused() {
    let folder = filled().await;
    fs::write(folder.path(), "").unwrap();
    fs::write(folder.beside("-wal"), "something").unwrap();
    check_refused(&folder, &["write-ahead log is there"]).await;
}

#[tokio::test]
async fn d7_a_corrupt_page_is_noticed_when_it_is_read() {
    let folder = filled().await;
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    let pages = fs::metadata(folder.path()).unwrap().len() / 8192;
    (5..pages).for_each(|page| file.write_all_at(&[0x5a; 4096], page * 8192).unwrap());
    let answer = match folder.try_open().await {
        Ok(store) => store.jobs(Filter::default(), None, 1000).await.map(drop),
        Err(error) => Err(error),
    };
    assert!(matches!(answer, Err(StoreError::Unreadable { .. })), "{answer:?}");
}

#[tokio::test]
async fn d7_a_removed_log_is_noticed() {
    // As a crash leaves it: the files of an open store, copied under its feet.
    let (open, crashed) = (Folder::new(), Folder::new());
    let store = open.open().await;
    let term = store.lead().await.unwrap();
    store.commit(term, vec![accepted(job(1), queued(1))].into()).await.unwrap();
    for suffix in ["", "-wal", ".lock"] {
        fs::copy(open.beside(suffix), crashed.beside(suffix)).unwrap();
    }
    let log = fs::read(crashed.beside("-wal")).unwrap();
    fs::remove_file(crashed.beside("-wal")).unwrap();
    check_refused(&crashed, &["write-ahead log (PATH-wal)", "remove PATH.lock"]).await;
    check_refused(&crashed, &["write-ahead log (PATH-wal)"]).await;

    fs::write(crashed.beside("-wal"), log).unwrap();
    assert_eq!(crashed.open().await.restore().await.unwrap().jobs.len(), 1);
}

#[tokio::test]
async fn a_backup_in_one_file_is_opened() {
    let (store, backup) = (filled().await, Folder::new());
    fs::copy(store.path(), backup.path()).unwrap();
    assert_eq!(backup.open().await.restore().await.unwrap().jobs.len(), 500);
}

#[tokio::test]
async fn d15_the_file_of_a_newer_program_is_refused() {
    let folder = filled().await;
    let conn = rusqlite::Connection::open(folder.path()).unwrap();
    conn.pragma_update(None, "user_version", 7).unwrap();
    drop(conn);
    let error = folder.try_open().await.unwrap_err();
    assert!(matches!(error, StoreError::NewerSchema { ours: 3, theirs: 7, .. }), "{error:?}");
    assert!(error.to_string().contains("schema 7, and this Remuda knows up to 3"), "{error}");
}

#[tokio::test]
async fn a_store_in_use_says_by_whom() {
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
async fn a_closed_store_says_so_to_other_handles() {
    let folder = Folder::new();
    let store = folder.open().await;
    let other = store.clone();
    store.close().await.unwrap();
    assert!(matches!(other.lead().await, Err(StoreError::Closed)));
    assert!(matches!(other.restore().await, Err(StoreError::Closed)));
    folder.open().await;
}

#[tokio::test]
async fn a_place_that_is_not_there_is_named() {
    let error = Store::open("sqlite:/nowhere/at/all.db").await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error:?}");
    assert!(error.to_string().contains("/nowhere/at/all.db"), "{error}");
    for url in ["", "sqlite:", "mysql://x", "memory:x"] {
        assert!(matches!(Store::open(url).await, Err(StoreError::BadUrl { .. })), "{url}");
    }
}
