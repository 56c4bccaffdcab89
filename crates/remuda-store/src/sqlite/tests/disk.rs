//! Behaviour on a full disk.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use remuda_core::record::Record;
use remuda_testkit::SmallDisk;
use tokio::sync::oneshot;

use super::super::files::{Lock, Reserve};
use super::super::place::Place;
use super::super::write::{QueuedRequest, Request, Writer};
use super::super::{open_proof, schema};
use super::Folder;
use crate::contract::sample::{accepted, body, completed, id, job, queued};
use crate::tenant_bytes::TenantBytes;
use crate::{RecordBatch, Store, StoreError};

fn url(disk: &SmallDisk) -> String {
    format!("sqlite:{}", disk.path().join("remuda.db").display())
}

/// Writes until nothing more fits.
fn fill(disk: &SmallDisk) -> PathBuf {
    let path = disk.path().join("other-file");
    let mut file = File::create(&path).unwrap();
    for chunk in [1 << 20, 4096, 1] {
        while file.write_all(&vec![1; chunk]).is_ok() {}
    }
    path
}

fn end(n: u128) -> RecordBatch {
    vec![
        Record::JobStatus { job: id(n), status: completed(2, 1) },
        Record::Result { job: id(n), result: body(r#"{"output":"a.png"}"#) },
    ]
    .into()
}

fn submit(n: u128) -> RecordBatch {
    vec![accepted(job(n), queued(1))].into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_full_disk_accepts_completions_refuses_submissions_and_recovers() {
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let mut store = Store::open(&url(&disk)).await.unwrap();
    let mut term = store.take_leadership().await.unwrap();
    for n in 0..50 {
        store.commit(term, submit(n)).await.unwrap();
    }
    assert!(store.has_reserve());

    let film = fill(&disk);
    let mut accepted = 50;
    let refused = loop {
        match store.commit(term, submit(accepted)).await {
            Ok(()) => accepted += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(refused, StoreError::Full { .. }), "{refused}");
    assert!(!store.has_reserve());
    for n in 0..50 {
        if n == 25 {
            drop(store);
            store = Store::open(&url(&disk)).await.unwrap();
            term = store.take_leadership().await.unwrap();
        }
        store.commit(term, end(n)).await.unwrap();
        assert!(matches!(store.commit(term, submit(999)).await, Err(StoreError::Full { .. })));
    }
    let open: Vec<u128> =
        store.restore().await.unwrap().jobs.iter().map(|(job, _)| job.id.as_u128()).collect();
    assert_eq!(open, (50..accepted).collect::<Vec<_>>());

    std::fs::remove_file(film).unwrap();
    let healed = async {
        while !store.has_reserve() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), healed).await.expect("the reserve is recreated");
    store.commit(term, submit(999)).await.unwrap();
    drop(store);
    let stored = Store::open(&url(&disk)).await.unwrap().restore().await.unwrap();
    assert_eq!(stored.jobs.len() as u128, accepted - 50 + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_reserve_lasts_for_thousands_of_completions() {
    const JOBS: u128 = 9000;
    let Some(disk) = SmallDisk::mount("96m") else { return };
    let store = Store::open(&url(&disk)).await.unwrap();
    let term = store.take_leadership().await.unwrap();
    let jobs: Vec<Record> = (0..JOBS).map(|n| accepted(job(n), queued(1))).collect();
    store.commit(term, jobs.into()).await.unwrap();
    fill(&disk);
    // One by one, which is the most expensive way: each writes whole pages to the WAL.
    for n in 0..JOBS {
        if let Err(error) = store.commit(term, end(n)).await {
            panic!("completion {n} was refused: {error}");
        }
    }
    assert!(store.restore().await.unwrap().jobs.is_empty());
}

/// The same without mounting a disk: the file itself is limited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_batch_without_space_is_refused_whole() {
    let folder = Folder::new();
    let (mut conn, lock) =
        (schema::open(&folder.path(), false).unwrap(), Lock::take(&folder.path()).unwrap());
    let proof = open_proof(&mut conn, &folder.path()).unwrap();
    conn.pragma_update(None, "max_page_count", 40).unwrap();
    let reserve = Arc::new(Reserve::create(&folder.path()));
    let place = Arc::new(Place::new(&folder.path()).unwrap());
    let (inbox, requests) = mpsc::channel();
    let writer =
        Writer::new(folder.path(), conn, lock, proof, reserve.clone(), place, TenantBytes::default())
            .unwrap()
            .spawn(requests)
            .unwrap();
    let commit = async |batch| {
        let (reply, answer) = oneshot::channel();
        let request = Request::Commit { term: remuda_core::id::Term(1), batch, reply };
        inbox.send(QueuedRequest { request, _permit: None }).unwrap();
        answer.await.unwrap()
    };
    commit(submit(1)).await.unwrap();
    let large = format!("\"{}\"", "x".repeat(1 << 20));
    let large = Record::JobAccepted { job: job(2).into(), status: queued(1), workflow: body(&large) };
    let refused = commit(vec![accepted(job(3), queued(1)), large].into()).await;
    assert!(matches!(refused, Err(StoreError::Full { .. })));
    assert!(!reserve.has_space());
    commit(end(1)).await.unwrap();
    inbox.send(QueuedRequest { request: Request::Close, _permit: None }).unwrap();
    writer.join().unwrap();

    let store = folder.try_open().await.unwrap();
    assert!(store.restore().await.unwrap().jobs.is_empty(), "job 1 ended, 2 and 3 were never there");
    assert!(store.has_reserve());
}
