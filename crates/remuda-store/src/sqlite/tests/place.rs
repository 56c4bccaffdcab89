//! Files that are deleted, moved or replaced under an open store.

use std::fs;

use super::Folder;
use crate::contract::StoreFixture;
use crate::contract::sample::{accepted, job, queued};
use crate::{JobFilter, StoreError};

#[tokio::test]
async fn j20_commit_into_a_deleted_folder_is_not_acknowledged() {
    let folder = Folder::new();
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    store.commit(term, vec![accepted(job(1), queued(1))].into()).await.unwrap();
    assert!(store.check_place().is_ok() && store.is_in_place());
    fs::remove_dir_all(folder.0.path()).unwrap();
    let error = store.commit(term, vec![accepted(job(2), queued(1))].into()).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Misplaced { what, .. } if what.contains("deleted or moved")),
        "{error:?}"
    );
    assert!(error.is_outcome_unknown() && !store.is_in_place());
}

#[tokio::test]
async fn j20_moved_folder_is_noticed_and_so_is_its_return() {
    let folder = Folder::new();
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    let aside = tempfile::tempdir().unwrap();
    let away = aside.path().join("away");
    fs::rename(folder.0.path(), &away).unwrap();
    assert!(matches!(store.check_place(), Err(StoreError::Misplaced { .. })));
    // Another store at the same path is not read instead.
    fs::create_dir(folder.0.path()).unwrap();
    fs::copy(away.join("remuda.db"), folder.path()).unwrap();
    assert!(
        matches!(store.check_place(), Err(StoreError::Misplaced { what, .. }) if what.contains("replaced"))
    );
    let read = store.jobs(JobFilter::default(), None, 10).await;
    assert!(matches!(read, Err(StoreError::Misplaced { .. })), "{read:?}");

    fs::remove_dir_all(folder.0.path()).unwrap();
    fs::rename(&away, folder.0.path()).unwrap();
    assert!(store.check_place().is_ok() && store.is_in_place());
    store.commit(term, vec![accepted(job(3), queued(1))].into()).await.unwrap();
    assert_eq!(store.jobs(JobFilter::default(), None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn watched_folder_counts_as_part_of_the_store() {
    let folder = Folder::new();
    let store = folder.open().await;
    let blobs = folder.0.path().join("blobs");
    fs::create_dir(&blobs).unwrap();
    store.watch(&blobs).unwrap();
    store.check_place().unwrap();
    fs::remove_dir(&blobs).unwrap();
    fs::create_dir(folder.0.path().join("other")).unwrap();
    fs::create_dir(&blobs).unwrap();
    let error = store.check_place().unwrap_err();
    assert!(error.to_string().contains("blobs was replaced"), "{error}");
}
