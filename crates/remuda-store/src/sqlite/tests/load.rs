//! Concurrency, and a long history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use remuda_core::event_kind::EventKind;
use remuda_core::id::Sequence;
use remuda_core::record::Record;
use rusqlite::Connection;

use super::super::{read, retention};
use super::Folder;
use crate::contract::StoreFixture;
use crate::contract::sample::{accepted, at, completed, event, id, job, queued};
use crate::{JobFilter, JobStateFilter, StatusView, Store};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_readers_and_writer_never_see_busy() {
    let folder = Folder::new();
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    let is_over = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..8).map(|_| tokio::spawn(read_until(store.clone(), is_over.clone()))).collect();
    for n in 0..200_u32 {
        let id_now = u128::from(n);
        let mut records =
            vec![accepted(job(id_now), queued(1)), event(u64::from(n) + 1, 1, EventKind::JobQueued, None)];
        if n > 0 {
            records.push(Record::JobStatus { job: id(id_now - 1), status: completed(2, 1) });
        }
        store.commit(term, records.into()).await.unwrap();
    }
    is_over.store(true, Ordering::Relaxed);
    for reader in readers {
        assert!(reader.await.unwrap() > 0);
    }
}

/// Every read succeeds and sees whole batches: a job together with its event.
async fn read_until(store: Store, is_over: Arc<AtomicBool>) -> usize {
    let mut rounds = 0;
    while rounds == 0 || !is_over.load(Ordering::Relaxed) {
        let stored = store.restore().await.unwrap();
        let jobs = store.jobs(JobFilter::default(), None, 500).await.unwrap();
        assert!(jobs.len() as u64 >= stored.sequence.0);
        assert!(stored.jobs.len() <= 1, "each batch ends the job of the previous one");
        assert!(store.events(Sequence(0), 500).await.unwrap().len() >= jobs.len());
        store.view(StatusView::OrchestratorStatus).await.unwrap();
        rounds += 1;
    }
    rounds
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d1_foreign_short_transaction_is_waited_for() {
    let folder = Folder::new();
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    let shell = Connection::open(folder.path()).unwrap();
    shell.execute_batch("BEGIN IMMEDIATE; DELETE FROM cycles").unwrap();
    let sent = store.enqueue(term, vec![accepted(job(1), queued(1))].into()).await.unwrap();
    assert!(store.job(id(1)).await.unwrap().is_none(), "reads are not blocked");
    shell.execute_batch("COMMIT").unwrap();
    sent.await.unwrap();
    assert!(store.job(id(1)).await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d18_commits_run_between_retention_steps() {
    let folder = Folder::new();
    let store = folder.open().await;
    let term = store.take_leadership().await.unwrap();
    for first in (0..5000).step_by(1000) {
        let old = (first..first + 1000).map(|n| accepted(job(n), completed(5, 1))).collect::<Vec<_>>();
        store.commit(term, old.into()).await.unwrap();
    }
    let deleting = tokio::spawn({
        let store = store.clone();
        async move { store.delete_ended_before(at(100), 5000).await.unwrap() }
    });
    let mut commits_in_between = 0;
    for n in 5000.. {
        store.commit(term, vec![accepted(job(n), queued(1))].into()).await.unwrap();
        if deleting.is_finished() {
            break;
        }
        commits_in_between += 1;
    }
    assert_eq!(deleting.await.unwrap(), 5000);
    assert!(commits_in_between > 1, "retention blocked the writer all the time");
}

#[tokio::test]
async fn d18_no_query_scans_history() {
    let folder = Folder::new();
    drop(folder.open().await);
    let conn = Connection::open(folder.path()).unwrap();
    let plan = |sql: &str| -> String {
        let mut explain = conn.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let nothing = rusqlite::params_from_iter(vec![None::<i64>; explain.parameter_count()]);
        let steps = explain.query_map(nothing, |row| row.get::<_, String>(3)).unwrap();
        steps.map(Result::unwrap).collect::<Vec<_>>().join("; ")
    };
    for sql in [
        read::OPEN_JOBS.to_owned(),
        read::OPEN_JOBS_PAGE.to_owned(),
        retention::ENDED_JOBS.to_owned(),
        read::page(Some(JobStateFilter::Queued)),
        read::page(Some(JobStateFilter::Running)),
        read::page(Some(JobStateFilter::Failed)),
        read::page(Some(JobStateFilter::Cancelled)),
        "SELECT * FROM orchestrator_status".to_owned(),
        read::BY_KEY.to_owned(),
    ] {
        let plan = plan(&sql);
        assert!(
            plan.contains("jobs USING INDEX jobs_") || plan.contains("jobs USING COVERING INDEX jobs_"),
            "{sql}: {plan}"
        );
        assert!(!plan.contains("SCAN jobs") && !plan.contains("TEMP B-TREE"), "{sql}: {plan}");
    }
    let plan = plan(&read::page(None));
    assert!(plan.contains("SEARCH jobs USING PRIMARY KEY"), "the table is ordered by id: {plan}");
}

/// Finished jobs, and ten that are open, as a long history would leave them.
fn fill(conn: &Connection, finished: u32) {
    conn.execute_batch("BEGIN; DELETE FROM jobs").unwrap();
    conn.execute(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?1 + 10)
         INSERT INTO jobs SELECT CAST(printf('%016d', i) AS BLOB), 'a', 'key-' || i,
             CASE WHEN i > ?1 THEN 'queued' WHEN i % 10 = 0 THEN 'failed' ELSE 'completed' END,
             CASE WHEN i > ?1 THEN NULL ELSE i END, '{}', '{}' FROM n",
        [finished],
    )
    .unwrap();
    conn.execute_batch("COMMIT").unwrap();
}

/// How many instructions of SQLite's machine each query takes, and how many rows it finds.
fn costs(conn: &Connection) -> Vec<(String, i32, usize)> {
    let queued = read::page(Some(JobStateFilter::Queued));
    let failed = read::page(Some(JobStateFilter::Failed));
    let mut costs = Vec::new();
    for sql in [read::OPEN_JOBS, read::OPEN_JOBS_PAGE, read::BY_KEY, retention::ENDED_JOBS, &queued, &failed]
    {
        let mut query = conn.prepare(sql).unwrap();
        let parameters: Vec<&dyn rusqlite::ToSql> = match sql {
            read::OPEN_JOBS => vec![],
            read::OPEN_JOBS_PAGE => vec![&[0_u8; 16], &100],
            read::BY_KEY => vec![&"a", &"key-7"],
            retention::ENDED_JOBS => vec![&i64::MAX, &256],
            _ => return_page_parameters(query.parameter_count()),
        };
        let mut rows = query.query(&parameters[..]).unwrap();
        let mut found = 0;
        while rows.next().unwrap().is_some() {
            found += 1;
        }
        drop(rows);
        costs.push((sql.to_owned(), query.get_status(rusqlite::StatementStatus::VmStep), found));
    }
    costs
}

/// The first page, of any tenant.
fn return_page_parameters(count: usize) -> Vec<&'static dyn rusqlite::ToSql> {
    vec![&rusqlite::types::Null; count]
}

/// What a claim, a restart, a retry with a key and a step of retention read costs the same after 200 finished jobs and after
/// a thousand times as many. Counted in instructions, because times differ between runs.
#[tokio::test]
async fn d18_cost_of_a_query_does_not_grow_with_history() {
    let folder = Folder::new();
    drop(folder.open().await);
    let conn = Connection::open(folder.path()).unwrap();
    fill(&conn, 500);
    let few = costs(&conn);
    fill(&conn, 200_000);
    let many = costs(&conn);
    for ((sql, before, found_before), (_, after, found)) in few.iter().zip(&many) {
        assert!(*found_before > 0 && found == found_before, "{sql}: {found_before} rows, then {found}");
        assert!(*after <= before + before / 10, "{sql}: {before} instructions, then {after}");
    }
}
