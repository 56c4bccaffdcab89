//! The contract tests of all stores. `store_contract_tests!(fixture)` generates a test for each, where `fixture()` returns a
//! new [`StoreFixture`].

mod bodies;
mod documents;
mod model;
pub(super) mod sample;

use std::collections::BTreeSet;

use remuda_core::event_kind::EventKind;
use remuda_core::id::{Hash, JobId, Sequence, Term};
use remuda_core::machine::WorkerState;
use remuda_core::record::{Record, StoredEvent};
use remuda_core::rental::{RentalEvent, ReturnCause};
use remuda_core::time::Timestamp;
use serde_json::Value;

use super::{JobFilter, JobStateFilter, RecordBatch, StatusView, Store, StoreError, ViewRow};
pub(super) use bodies::bodies_are_returned_unchanged;
pub(super) use documents::documents_are_found_until_they_expire;
pub(super) use model::TestRng;
use sample::{accepted, at, body, completed, event, failed, job, queued, running, tenant, worker};

/// A location where a store can be opened, closed and reopened.
pub(super) trait StoreFixture {
    async fn open(&self) -> Store;
}

macro_rules! store_contract_tests {
    ($fixture:path) => {
        store_contract_tests! { $fixture:
            acknowledged_records_survive_reopening
            conflicting_batch_writes_nothing
            superseded_term_writes_nothing
            terms_rise_across_reopening
            pages_are_complete_while_jobs_arrive
            pages_respect_the_filter
            events_resume_after_any_sequence
            repeated_event_changes_nothing
            key_finds_only_its_own_job
            bodies_are_returned_unchanged
            last_record_of_an_object_wins
            open_jobs_are_paged_without_ended_ones
            records_written_twice_change_nothing
            retention_spares_open_jobs_and_respects_its_limit
            time_and_sequence_never_decrease
            concurrent_commits_lose_nothing
            batches_are_written_in_order
            cycle_reports_are_newest_first
            documents_are_found_until_they_expire
            views_match_the_records
            restore_returns_all_committed_records
        }
    };
    ($fixture:path: $($test:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                crate::contract::$test(&$fixture()).await;
            }
        )*
    };
}
pub(super) use store_contract_tests;

/// Opens a store and takes the leadership.
async fn open_as_leader(fixture: &impl StoreFixture) -> (Store, Term) {
    let store = fixture.open().await;
    let term = store.take_leadership().await.unwrap();
    (store, term)
}

async fn commit(store: &Store, term: Term, records: Vec<Record>) {
    store.commit(term, RecordBatch::from(records)).await.unwrap();
}

async fn ids(store: &Store, filter: JobFilter, before: Option<JobId>, limit: usize) -> Vec<u128> {
    let page = store.jobs(filter, before, limit).await.unwrap();
    page.iter().map(|(job, _)| job.id.as_u128()).collect()
}

async fn open_ids(store: &Store) -> Vec<u128> {
    store.restore().await.unwrap().jobs.iter().map(|(job, _)| job.id.as_u128()).collect()
}

async fn sequences(store: &Store, after: u64, limit: usize) -> Vec<u64> {
    store.events(Sequence(after), limit).await.unwrap().iter().map(|event| event.seq.0).collect()
}

pub(super) async fn acknowledged_records_survive_reopening(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let mut row = sample::worker_row("gpu-1", WorkerState::Active);
    row.metrics.insert("vram_total_bytes".to_owned(), Value::from(8_u64 << 30));
    let records = vec![
        accepted(job(1), queued(10)),
        Record::Worker(Box::new(row.clone())),
        event(1, 10, EventKind::JobQueued, Some(1)),
    ];
    commit(&store, term, records).await;
    commit(&store, term, vec![Record::JobStatus { job: sample::id(1), status: running(11, 1) }]).await;
    drop(store);

    let store = fixture.open().await;
    let stored = store.restore().await.unwrap();
    assert_eq!(stored.jobs, [(job(1), running(11, 1))]);
    assert_eq!(stored.workers, [row]);
    assert_eq!((stored.sequence, stored.latest), (Sequence(1), at(11)));
    assert_eq!(store.job(sample::id(1)).await.unwrap(), Some((job(1), running(11, 1))));
    assert_eq!(store.job(sample::id(2)).await.unwrap(), None);
}

pub(super) async fn conflicting_batch_writes_nothing(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let keyed = |id| accepted(sample::with_key(job(id), "mine", id), queued(1));
    commit(&store, term, vec![keyed(1)]).await;

    let good = store.enqueue(term, vec![accepted(job(2), queued(2))].into()).await.unwrap();
    let bad = vec![accepted(job(3), queued(3)), event(1, 3, EventKind::JobQueued, Some(3)), keyed(4)];
    let bad = store.enqueue(term, bad.into()).await.unwrap();
    let also_good = store.enqueue(term, vec![accepted(job(5), queued(5))].into()).await.unwrap();

    good.await.unwrap();
    assert!(matches!(bad.await, Err(StoreError::Conflict { .. })));
    also_good.await.unwrap();
    assert_eq!(open_ids(&store).await, [1, 2, 5]);
    assert!(sequences(&store, 0, 10).await.is_empty());
    assert_eq!(store.workflow(sample::id(3)).await.unwrap().map(|body| body.get().to_owned()), None);
}

pub(super) async fn superseded_term_writes_nothing(fixture: &impl StoreFixture) {
    let (store, old) = open_as_leader(fixture).await;
    commit(&store, old, vec![accepted(job(1), queued(1))]).await;
    let new = store.take_leadership().await.unwrap();
    assert!(new > old);

    let late =
        vec![accepted(job(2), queued(2)), Record::JobStatus { job: sample::id(1), status: completed(2, 1) }];
    let late = store.commit(old, late.into()).await;
    assert!(matches!(late, Err(StoreError::Superseded { ours, theirs }) if (ours, theirs) == (old, new)));
    assert_eq!(store.restore().await.unwrap().jobs, [(job(1), queued(1))]);
    commit(&store, new, vec![accepted(job(2), queued(2))]).await;
    assert_eq!(open_ids(&store).await, [1, 2]);
}

pub(super) async fn terms_rise_across_reopening(fixture: &impl StoreFixture) {
    let (store, first) = open_as_leader(fixture).await;
    drop(store);
    let (store, second) = open_as_leader(fixture).await;
    assert!(second > first);
    let late = store.commit(first, RecordBatch::default()).await;
    assert!(matches!(late, Err(StoreError::Superseded { .. })), "even an empty batch");
}

pub(super) async fn pages_are_complete_while_jobs_arrive(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    commit(&store, term, (1..=10).map(|id| accepted(job(id), queued(1))).collect()).await;
    let (mut seen, mut before) = (Vec::new(), None);
    for newcomer in 11.. {
        let page = ids(&store, JobFilter::default(), before, 3).await;
        let Some(last) = page.last() else { break };
        before = Some(JobId::from_u128(*last));
        seen.extend(page);
        commit(&store, term, vec![accepted(job(newcomer), queued(2))]).await;
    }
    assert_eq!(seen, (1..=10).rev().collect::<Vec<u128>>());
}

pub(super) async fn pages_respect_the_filter(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let lives = [queued(1), running(2, 1), completed(3, 1), failed(4), sample::cancelled(5)];
    let jobs = (1..=10).zip(lives.iter().cycle());
    let records = jobs.map(|(id, status)| {
        accepted(sample::with_tenant(job(id), if id > 5 { "b" } else { "a" }), status.clone())
    });
    commit(&store, term, records.collect()).await;
    for (state, (newer, older)) in
        JobStateFilter::ALL.into_iter().zip([(6, 1), (7, 2), (8, 3), (9, 4), (10, 5)])
    {
        let filter = JobFilter { state: Some(state), tenant: None };
        assert_eq!(ids(&store, filter.clone(), None, 9).await, [newer, older], "{state}");
        let page = ids(&store, filter, Some(JobId::from_u128(newer)), 9).await;
        assert_eq!(page, [older], "{state}");
        let filter = JobFilter { state: Some(state), tenant: Some(tenant("b")) };
        assert_eq!(ids(&store, filter, None, 9).await, [newer], "{state}");
    }
    let filter = JobFilter { state: None, tenant: Some(tenant("a")) };
    assert_eq!(ids(&store, filter, None, 9).await, [5, 4, 3, 2, 1]);
    assert_eq!(open_ids(&store).await, [1, 2, 6, 7]);
}

pub(super) async fn events_resume_after_any_sequence(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let events = |range: std::ops::RangeInclusive<u64>| {
        range.map(|n| event(n, n, EventKind::JobQueued, None)).collect()
    };
    commit(&store, term, events(1..=5)).await;
    commit(&store, term, events(6..=6)).await;
    commit(&store, term, events(7..=1300)).await;
    for after in [0, 1, 3, 5, 6, 7, 500, 600, 1299, 1300, u64::MAX] {
        let wanted: Vec<u64> = (after.saturating_add(1)..=1300).take(4).collect();
        assert_eq!(sequences(&store, after, 4).await, wanted, "after {after}");
    }
    assert_eq!(sequences(&store, 2, usize::MAX).await, (3..=1300).collect::<Vec<_>>());
    let first = &store.events(Sequence(0), 1).await.unwrap()[0];
    let Record::Event(wanted) = event(1, 1, EventKind::JobQueued, None) else { unreachable!() };
    assert_eq!(*first, StoredEvent::clone(&wanted));
}

pub(super) async fn repeated_event_changes_nothing(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let events =
        || vec![event(1, 1, EventKind::JobQueued, Some(1)), event(2, 2, EventKind::JobStarted, Some(1))];
    commit(&store, term, events()).await;
    commit(&store, term, events()).await;
    commit(
        &store,
        term,
        vec![event(2, 2, EventKind::JobStarted, Some(1)), event(3, 3, EventKind::JobCompleted, Some(1))],
    )
    .await;
    assert_eq!(sequences(&store, 0, 9).await, [1, 2, 3]);
}

pub(super) async fn key_finds_only_its_own_job(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let a = sample::with_key(job(1), "once", 7);
    let b = sample::with_key(sample::with_tenant(job(2), "b"), "once", 8);
    commit(&store, term, vec![accepted(a, queued(1)), accepted(b, queued(1)), accepted(job(3), queued(1))])
        .await;
    let fingerprint = |n: u128| Hash::digest(&n.to_be_bytes());
    let found = store.job_by_key(&tenant("a"), "once").await.unwrap();
    assert_eq!(found, Some((sample::id(1), fingerprint(7))));
    let found = store.job_by_key(&tenant("b"), "once").await.unwrap();
    assert_eq!(found, Some((sample::id(2), fingerprint(8))));
    assert_eq!(store.job_by_key(&tenant("c"), "once").await.unwrap(), None);
    assert_eq!(store.job_by_key(&tenant("a"), "twice").await.unwrap(), None);
}

pub(super) async fn last_record_of_an_object_wins(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let status = |id, status| Record::JobStatus { job: sample::id(id), status };
    let block = |failures| Record::Block(sample::block("gpu-1", 1, failures));
    let quarantine_row = |trials| Record::Quarantine(sample::quarantine_row(1, trials));
    let lifted =
        || Record::BlockLifted { worker: worker("gpu-1"), scope: sample::block("gpu-1", 1, 0).scope };
    let records = vec![
        accepted(job(1), queued(1)),
        status(1, running(2, 1)),
        accepted(job(2), queued(1)),
        status(2, running(2, 1)),
        status(2, completed(3, 1)),
        status(1, queued(4)),
        Record::Worker(Box::new(sample::worker_row("gpu-1", WorkerState::Spawning))),
        Record::Worker(Box::new(sample::worker_row("gpu-1", WorkerState::Active))),
        block(1),
        lifted(),
        block(2),
        quarantine_row(1),
        quarantine_row(2),
    ];
    commit(&store, term, records).await;
    let stored = store.restore().await.unwrap();
    assert_eq!(stored.jobs, [(job(1), queued(4))]);
    assert_eq!(stored.workers[0].state, WorkerState::Active);
    assert_eq!(stored.blocks, [sample::block("gpu-1", 1, 2)]);
    assert_eq!(stored.quarantine, [sample::quarantine_row(1, 2)]);
    assert_eq!(store.job(sample::id(2)).await.unwrap(), Some((job(2), completed(3, 1))));

    let forgotten = Record::WorkerForgotten { worker: worker("gpu-1") };
    commit(
        &store,
        term,
        vec![lifted(), Record::QuarantineLifted(sample::quarantine_row(1, 0).jobs), forgotten],
    )
    .await;
    let stored = store.restore().await.unwrap();
    assert_eq!((stored.blocks, stored.quarantine, stored.workers), (vec![], vec![], vec![]));
}

pub(super) async fn open_jobs_are_paged_without_ended_ones(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let open = (1..=7).map(|n| accepted(job(n), queued(1)));
    let ended = [4, 7].map(|n| Record::JobStatus { job: sample::id(n), status: completed(2, 1) });
    commit(&store, term, open.chain(ended).collect()).await;
    let mut pages = Vec::new();
    let mut after = None;
    loop {
        let page = store.open_jobs(after, 2).await.unwrap();
        let Some((last, _)) = page.last() else { break };
        after = Some(last.id);
        pages.push(page);
    }
    assert_eq!(pages.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
    assert_eq!(pages.concat(), store.restore().await.unwrap().jobs);
    assert!(store.restore_fleet().await.unwrap().jobs.is_empty());
}

pub(super) async fn records_written_twice_change_nothing(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let keyed = || accepted(sample::with_key(job(1), "k", 1), queued(1));
    let ended = || {
        vec![
            Record::JobStatus { job: sample::id(1), status: completed(2, 1) },
            Record::Result { job: sample::id(1), result: body("1") },
        ]
    };
    let mut bytes = Vec::new();
    for batch in [vec![keyed()], vec![keyed()], ended(), ended()] {
        commit(&store, term, batch).await;
        bytes.push(store.bytes_of(&tenant("a")));
    }
    let workflow = bytes[0];
    assert_eq!(bytes, [workflow, workflow, workflow + 1, workflow + 1], "a repetition is not counted again");
    drop(store);
    let store = fixture.open().await;
    assert_eq!(store.bytes_of(&tenant("a")), workflow + 1, "kept over a restart");
    assert_eq!(ids(&store, JobFilter::default(), None, 9).await, [1]);
    assert_eq!(store.job(sample::id(1)).await.unwrap().unwrap().1, completed(2, 1));
}

pub(super) async fn retention_spares_open_jobs_and_respects_its_limit(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let status = |id: u128| match id % 4 {
        0 => queued(5),
        1 => completed(5, 1),
        2 => failed(5),
        _ => completed(500, 1),
    };
    let jobs = (0..400).map(|id| accepted(sample::with_key(job(id), &id.to_string(), id), status(id)));
    commit(&store, term, jobs.collect()).await;
    let before = store.bytes_of(&tenant("a"));
    assert!(before > 0 && before.is_multiple_of(400), "{before} bytes for 400 workflows");
    commit(&store, term, vec![Record::Result { job: sample::id(1), result: body("1") }]).await;
    assert_eq!(store.bytes_of(&tenant("a")), before + 1);
    commit(
        &store,
        term,
        vec![event(1, 5, EventKind::JobQueued, None), Record::Cycle { at: at(5), report: body("1") }],
    )
    .await;
    commit(&store, term, vec![event(2, 500, EventKind::JobQueued, None)]).await;

    let mut deleted = Vec::new();
    loop {
        match store.delete_ended_before(at(100), 60).await.unwrap() {
            0 => break,
            step => deleted.push(step),
        }
    }
    assert!(deleted.iter().all(|step| *step <= 60), "{deleted:?}");
    assert_eq!(deleted.iter().sum::<usize>(), 202, "200 jobs, a row of events and a cycle report");
    let left: BTreeSet<u128> = ids(&store, JobFilter::default(), None, 999).await.into_iter().collect();
    assert_eq!(left, (0..400).filter(|id| matches!(id % 4, 0 | 3)).collect());
    assert_eq!(open_ids(&store).await.len(), 100);
    assert_eq!(store.bytes_of(&tenant("a")), before / 2, "half of the workflows are left, and no result");
    assert_eq!(sequences(&store, 0, 9).await, [2]);
    assert!(store.cycles(9).await.unwrap().is_empty());
    assert!(store.workflow(sample::id(1)).await.unwrap().is_none());
    assert!(store.result(sample::id(1)).await.unwrap().is_none());
    assert!(store.workflow(sample::id(0)).await.unwrap().is_some());
    assert_eq!(store.job_by_key(&tenant("a"), "1").await.unwrap(), None, "deleting a job frees its key");
    commit(&store, term, vec![accepted(sample::with_key(job(1000), "1", 1), queued(600))]).await;
}

pub(super) async fn time_and_sequence_never_decrease(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    commit(
        &store,
        term,
        vec![accepted(job(1), completed(50, 1)), event(9, 60, EventKind::JobCompleted, Some(1))],
    )
    .await;
    commit(&store, term, vec![accepted(job(2), queued(40))]).await;
    // A time in the future does not count.
    commit(&store, term, vec![Record::Block(sample::block("gpu-1", 1, 1))]).await;
    while store.delete_ended_before(at(1000), 10).await.unwrap() > 0 {}
    drop(store);
    let stored = fixture.open().await.restore().await.unwrap();
    assert_eq!((stored.sequence, stored.latest), (Sequence(9), at(60)));
}

pub(super) async fn concurrent_commits_lose_nothing(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let committers = (0..8).map(|committer| {
        let store = store.clone();
        tokio::spawn(async move {
            for batch in 0..25 {
                let first = committer * 1000 + batch * 10;
                let records = (first..first + 3).map(|id| accepted(job(id), queued(1))).collect();
                commit(&store, term, records).await;
                let ended = Record::JobStatus { job: sample::id(first), status: completed(2, 1) };
                commit(&store, term, vec![ended]).await;
            }
        })
    });
    for committer in committers.collect::<Vec<_>>() {
        committer.await.unwrap();
    }
    assert_eq!(ids(&store, JobFilter::default(), None, 9999).await.len(), 8 * 25 * 3);
    assert_eq!(open_ids(&store).await.len(), 8 * 25 * 2);
}

pub(super) async fn batches_are_written_in_order(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let mut sent = vec![store.enqueue(term, vec![accepted(job(1), queued(0))].into()).await.unwrap()];
    for n in 1..=300 {
        let record = Record::JobStatus { job: sample::id(1), status: running(u64::from(n), n) };
        sent.push(store.enqueue(term, vec![record].into()).await.unwrap());
    }
    for written in sent {
        written.await.unwrap();
    }
    assert_eq!(store.job(sample::id(1)).await.unwrap().unwrap().1, running(300, 300));
}

pub(super) async fn cycle_reports_are_newest_first(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let cycle = |n: u64| Record::Cycle { at: at(n), report: body(&n.to_string()) };
    commit(&store, term, (1..=5).map(cycle).collect()).await;
    let cycles = store.cycles(2).await.unwrap();
    let shown: Vec<(Timestamp, &str)> = cycles.iter().map(|(at, report)| (*at, report.get())).collect();
    assert_eq!(shown, [(at(5), "5"), (at(4), "4")]);
}

pub(super) async fn views_match_the_records(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let status = view(&store, StatusView::OrchestratorStatus).await;
    assert_eq!(
        (status.len(), &status[0]["queued_tasks"], &status[0]["total_workers"]),
        (1, &0.into(), &0.into())
    );

    let jobs = [queued(1), queued(1), queued(1), running(2, 1), running(2, 1), completed(3, 1), failed(3)];
    let jobs = (1..).zip(jobs).map(|(id, status)| accepted(job(id), status));
    commit(&store, term, jobs.chain(sample::fleet().map(Box::new).map(Record::Worker)).collect()).await;
    let status = view(&store, StatusView::OrchestratorStatus).await;
    let wanted = serde_json::json!([{
        "queued_tasks": 3, "running_tasks": 2, "spawning_workers": 1, "active_workers": 2, "terminating_workers": 1,
        "total_workers": 4, "error_workers": 1, "online_workers": 2, "suspect_workers": 1, "offline_workers": 1,
        "stale_workers": 1, "stale_metrics_workers": 1,
    }]);
    assert_eq!(serde_json::to_value(&status).unwrap(), wanted);

    let pod = sample::pod();
    let seen = RentalEvent::Seen(&pod);
    let rented = [
        ("machine-1", &[seen][..]),
        ("m-2", &[seen]),
        ("m-3", &[]),
        ("m-4", &[seen, RentalEvent::Ready]),
        ("m-5", &[RentalEvent::GiveUp(ReturnCause::NotWanted)]),
    ];
    let machines = rented.map(|(machine, events)| sample::machine(machine, events));
    commit(&store, term, machines.map(Record::Document).to_vec()).await;
    let status = view(&store, StatusView::OrchestratorStatus).await;
    let count = |name: &str| status[0][name].as_u64().unwrap();
    let counts = ["spawning_workers", "active_workers", "error_workers", "total_workers", "offline_workers"]
        .map(count);
    assert_eq!(
        counts,
        [3, 3, 1, 7, 4],
        "machines without a worker count by their phase, the others by their worker"
    );

    let health = view(&store, StatusView::ActiveWorkersHealth).await;
    let names: Vec<&Value> = health.iter().map(|row| &row["worker"]).collect();
    assert_eq!(names, ["gpu-1", "gpu-2", "gpu-3", "gpu-4"]);
    let first = &health[0];
    assert_eq!((&first["presence"], &first["running_attempts"]), (&"online".into(), &2.into()));
    assert_eq!((&first["vram_used_bytes"], &first["vram_percent"]), (&1024.into(), &25.0.into()));
    assert!(first["metrics_age_seconds"].is_number() && first["silent_seconds"].is_number());
    assert_eq!((&health[1]["running_attempts"], &health[1]["vram_percent"]), (&0.into(), &Value::Null));

    let performance = view(&store, StatusView::WorkerPerformance).await;
    assert_eq!(performance.len(), 6);
    let first = &performance[0];
    assert_eq!((&first["completed"], &first["failed"], &first["lost"]), (&6.into(), &1.into(), &1.into()));
    assert_eq!((&first["success_rate"], &first["mean_processing_seconds"]), (&0.75.into(), &2.5.into()));
    let (fifth, sixth) = (&performance[4], &performance[5]);
    assert_eq!((&fifth["success_rate"], &fifth["mean_processing_seconds"]), (&Value::Null, &Value::Null));
    assert_eq!(sixth["uptime_seconds"], 0.9, "the uptime of an ended worker does not change");
}

async fn view(store: &Store, view: StatusView) -> Vec<ViewRow> {
    let rows = store.view(view).await.unwrap();
    assert!(
        rows.iter().all(|row| row.keys().all(|column| !column.contains("token"))),
        "views contain no secrets"
    );
    rows
}

pub(super) async fn restore_returns_all_committed_records(fixture: &impl StoreFixture) {
    const SEED: u64 = 0x5eed;
    let (mut model, mut rng) = (model::Model::default(), TestRng::new(SEED));
    for round in 0..6 {
        let (store, term) = open_as_leader(fixture).await;
        for _ in 0..40 {
            let records = model.random_batch(&mut rng);
            model.apply(&records);
            commit(&store, term, records).await;
        }
        model.check(&store).await;
        drop(store);
        let store = fixture.open().await;
        model.check(&store).await;
        assert!(!model.jobs.is_empty(), "round {round} of seed {SEED:#x}");
    }
}
