//! Acknowledged data that went missing: a write-ahead log that was cut or flipped, files that were deleted or replaced. The
//! store refuses to open, says from where on, and continues only if an operator accepts the loss.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;

use remuda_core::event_kind::EventKind;
use remuda_core::id::Sequence;

use super::super::{GenerationCause, check_store, recover_store};
use super::Folder;
use crate::contract::sample::{accepted, event, job, queued};
use crate::contract::{StoreFixture, TestRng};
use crate::{Store, StoreError, StoreLoss};

const JOBS: u64 = 60;
const FILES: [&str; 4] = ["", "-wal", ".lock", ".proof"];

async fn submit(store: &Store, range: std::ops::RangeInclusive<u64>) {
    let term = store.take_leadership().await.unwrap();
    for n in range {
        let records =
            vec![accepted(job(n.into()), queued(n)), event(n, n, EventKind::JobQueued, Some(n.into()))];
        store.commit(term, records.into()).await.unwrap();
    }
}

/// Copies the files as they are, which is what a killed process leaves.
fn copy(from: &Folder, suffixes: &[&str]) -> Folder {
    let to = Folder::new();
    for suffix in suffixes {
        fs::copy(from.sibling(suffix), to.sibling(suffix)).unwrap();
    }
    to
}

/// A store with one commit a job, as after `kill -9`.
async fn crashed() -> Folder {
    let folder = Folder::new();
    let store = folder.open().await;
    submit(&store, 1..=JOBS).await;
    copy(&folder, &FILES)
}

async fn job_count(store: &Store) -> u64 {
    store.restore().await.unwrap().jobs.len() as u64
}

/// The files but the lock; SQLite may create an empty log.
fn contents(folder: &Folder) -> Vec<Vec<u8>> {
    let files = FILES.iter().filter(|suffix| **suffix != ".lock");
    files.map(|suffix| fs::read(folder.sibling(suffix)).unwrap_or_default()).collect()
}

/// Opening is refused with this loss, and nothing was changed.
async fn refused(folder: &Folder) -> StoreLoss {
    let before = contents(folder);
    let error = folder.try_open().await.unwrap_err();
    assert!(contents(folder) == before, "files were changed");
    let StoreError::Incomplete { loss, .. } = &error else { panic!("{error:?}") };
    for word in ["remuda store check", "remuda store recover --accept-loss", "Nothing was changed"] {
        assert!(error.to_string().contains(word), "{error}");
    }
    assert_eq!(check_store(&folder.path()).unwrap().loss, Some(**loss));
    assert!(contents(folder) == before, "files were changed");
    **loss
}

#[tokio::test]
async fn j20_cut_log_is_refused_and_says_from_where_on() {
    let folder = crashed().await;
    let half = fs::metadata(folder.sibling("-wal")).unwrap().len() / 2;
    OpenOptions::new().write(true).open(folder.sibling("-wal")).unwrap().set_len(half).unwrap();
    let StoreLoss::Behind { stored, proved } = refused(&folder).await else { panic!() };
    // The first commit is the term, and every other one job with one event.
    assert_eq!((proved.commit, proved.sequence), (JOBS + 1, Sequence(JOBS)));
    assert!(stored.sequence.0 > 5 && stored.sequence.0 < JOBS - 5, "{stored:?}");
    assert_eq!(stored.commit, stored.sequence.0 + 1);
    let said = folder.try_open().await.unwrap_err().to_string();
    let from = stored.sequence.0 + 1;
    assert!(said.contains(&format!("with events {from} to {JOBS}")), "{said}");

    let recovery = recover_store(&folder.path()).unwrap().unwrap();
    assert_eq!(recovery.generation.number, 2);
    assert_eq!(recovery.generation.kept_sequence, stored.sequence);
    assert_eq!(recovery.generation.first_sequence, Sequence(JOBS + 1), "no event number is used twice");
    assert!(recovery.kept_log.is_some_and(|log| fs::metadata(log).unwrap().len() == half));
    assert!(recover_store(&folder.path()).unwrap().is_none(), "nothing is missing any more");
    let store = folder.open().await;
    assert_eq!(job_count(&store).await, stored.sequence.0);
    assert_eq!(store.restore().await.unwrap().sequence, Sequence(JOBS));
    submit(&store, JOBS + 1..=JOBS + 3).await;
    store.close().await.unwrap();
    let report = check_store(&folder.path()).unwrap();
    assert!(report.is_whole() && report.generations.len() == 1, "{report:?}");
    folder.open().await;
}

/// Whatever is cut off or flipped, either everything is there or the store is refused.
#[tokio::test]
async fn j20_damage_to_the_log_is_always_noticed() {
    let (whole, mut rng) = (crashed().await, TestRng::new(20));
    let length = fs::metadata(whole.sibling("-wal")).unwrap().len();
    let mut refusals = 0;
    for round in 0..120 {
        let folder = copy(&whole, &FILES);
        let log = OpenOptions::new().read(true).write(true).open(folder.sibling("-wal")).unwrap();
        let at = rng.below(length);
        if round % 2 == 0 {
            log.set_len(at).unwrap();
        } else {
            let mut byte = [0];
            log.read_exact_at(&mut byte, at).unwrap();
            log.write_all_at(&[byte[0] ^ (1 << rng.below(8))], at).unwrap();
        }
        match folder.try_open().await {
            Ok(store) => assert_eq!(job_count(&store).await, JOBS, "round {round}, byte {at} of {length}"),
            Err(StoreError::Incomplete { .. }) => refusals += 1,
            // An empty log is a missing one, and a missing database file with a log is seen by other checks.
            Err(StoreError::Unreadable { .. }) => refusals += 1,
            Err(error) => panic!("{error:?}"),
        }
    }
    assert!(refusals > 100, "{refusals}");
}

#[tokio::test]
async fn j20_older_copy_put_back_is_refused() {
    let folder = Folder::new();
    let store = folder.open().await;
    submit(&store, 1..=20).await;
    store.close().await.unwrap();
    let backup = fs::read(folder.path()).unwrap();
    let store = folder.open().await;
    submit(&store, 21..=JOBS).await;
    store.close().await.unwrap();

    fs::write(folder.path(), &backup).unwrap();
    for suffix in ["-wal", "-shm", ".lock"] {
        fs::remove_file(folder.sibling(suffix)).ok();
    }
    let StoreLoss::Behind { stored, proved } = refused(&folder).await else { panic!() };
    assert_eq!((stored.sequence, proved.sequence), (Sequence(20), Sequence(JOBS)));
    recover_store(&folder.path()).unwrap().unwrap();
    let store = folder.open().await;
    assert_eq!(job_count(&store).await, 20);
    assert_eq!(store.restore().await.unwrap().sequence, Sequence(JOBS));
}

#[tokio::test]
async fn j20_deleted_or_foreign_database_is_refused() {
    let folder = Folder::new();
    let store = folder.open().await;
    submit(&store, 1..=5).await;
    store.close().await.unwrap();
    let other = Folder::new();
    let store = other.open().await;
    submit(&store, 1..=9).await;
    store.close().await.unwrap();
    fs::copy(other.path(), folder.path()).unwrap();
    assert!(matches!(refused(&folder).await, StoreLoss::ForeignProof { .. }));

    fs::remove_file(folder.path()).unwrap();
    fs::remove_file(folder.sibling("-wal")).ok();
    let error = folder.try_open().await.unwrap_err();
    let StoreError::Incomplete { loss, .. } = &error else { panic!("{error:?}") };
    assert!(matches!(**loss, StoreLoss::Emptied { .. }), "{error}");
    assert!(error.to_string().contains("commits 1 to 6 are missing"), "{error}");
    assert!(!folder.path().exists(), "the refusal made no new database");
    recover_store(&folder.path()).unwrap().unwrap();
    assert_eq!(folder.open().await.restore().await.unwrap().sequence, Sequence(5));
}

#[tokio::test]
async fn proof_that_was_removed_or_damaged_is_refused() {
    let folder = crashed().await;
    let proof = fs::read(folder.sibling(".proof")).unwrap();
    fs::remove_file(folder.sibling(".proof")).unwrap();
    assert!(matches!(refused(&folder).await, StoreLoss::ProofRemoved { .. }));
    fs::write(folder.sibling(".proof"), vec![0; proof.len()]).unwrap();
    assert!(matches!(refused(&folder).await, StoreLoss::ProofDamaged { .. }));
    fs::write(folder.sibling(".proof"), proof).unwrap();
    assert_eq!(job_count(&folder.open().await).await, JOBS);
}

/// Faults: D16.
#[tokio::test]
async fn copy_without_a_proof_opens_as_a_new_generation() {
    let folder = Folder::new();
    let store = folder.open().await;
    submit(&store, 1..=5).await;
    store.close().await.unwrap();
    let backup = copy(&folder, &[""]);
    let store = backup.open().await;
    assert_eq!(job_count(&store).await, 5);
    let sequence = store.restore().await.unwrap().sequence;
    assert_eq!(sequence, Sequence((1 << 32) - 1), "no event number of the original is used again");
    submit(&store, 1 << 32..=(1 << 32) + 2).await;
    store.close().await.unwrap();
    let report = check_store(&backup.path()).unwrap();
    assert_eq!(report.generations.len(), 1, "only once: {report:?}");
    assert_eq!(report.generations[0].cause, GenerationCause::RestoredCopy.as_str());
    backup.open().await.close().await.unwrap();
    assert_eq!(check_store(&backup.path()).unwrap().generations.len(), 1);
}

#[tokio::test]
async fn store_of_an_older_program_gets_its_proof() {
    let folder = Folder::new();
    let store = folder.open().await;
    submit(&store, 1..=5).await;
    store.close().await.unwrap();
    let conn = rusqlite::Connection::open(folder.path()).unwrap();
    conn.execute_batch(
        "DROP TABLE tenant_bytes; DROP TABLE generations; DELETE FROM meta WHERE key IN ('commit', 'store'); PRAGMA user_version = 3",
    )
    .unwrap();
    drop(conn);
    fs::remove_file(folder.sibling(".proof")).unwrap();
    let store = folder.open().await;
    assert_eq!((job_count(&store).await, store.restore().await.unwrap().sequence), (5, Sequence(5)));
    submit(&store, 6..=7).await;
    store.close().await.unwrap();
    let report = check_store(&folder.path()).unwrap();
    assert!(report.is_whole() && report.generations.is_empty(), "{report:?}");
}

#[tokio::test]
async fn running_store_is_checked_without_disturbing_it() {
    let folder = Folder::new();
    let store = folder.open().await;
    for n in 0..20 {
        submit(&store, n * 10 + 1..=n * 10 + 10).await;
        let report = check_store(&folder.path()).unwrap();
        assert!(report.is_in_use && report.is_whole(), "{report:?}");
    }
    let error = recover_store(&folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error:?}");
    assert_eq!(job_count(&store).await, 200);
}

#[tokio::test]
async fn damaged_database_is_not_recovered() {
    let folder = crashed().await;
    recover_store(&folder.path()).unwrap();
    let store = folder.open().await;
    store.close().await.unwrap();
    let pages = fs::metadata(folder.path()).unwrap().len() / 8192;
    let file = OpenOptions::new().write(true).open(folder.path()).unwrap();
    (4..pages).for_each(|page| file.write_all_at(&[0x5a; 4096], page * 8192).unwrap());
    let report = check_store(&folder.path()).unwrap();
    assert!(report.loss.is_none() && !report.is_whole(), "{report:?}");
    fs::remove_file(folder.sibling(".proof")).unwrap();
    fs::write(folder.sibling(".proof"), "").unwrap();
    let error = recover_store(&folder.path()).unwrap_err();
    assert!(matches!(error, StoreError::Unreadable { .. }), "{error:?}");
}
