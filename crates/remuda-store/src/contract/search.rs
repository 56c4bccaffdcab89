//! Search for jobs, and the newest events.

use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Sequence};

use super::sample::{self, accepted, completed, event, failed, job, queued, running, with_key, with_tenant};
use super::{StoreFixture, commit, open_as_leader};
use crate::{JobFilter, JobSearch, JobStateFilter, SEARCH_SCAN_MAX, Store};

async fn found(store: &Store, search: JobSearch) -> Vec<u128> {
    let page = store.search_jobs(search, None, 9).await.unwrap();
    page.jobs.iter().map(|(job, _)| job.id.as_u128()).collect()
}

fn text(text: &str) -> JobSearch {
    JobSearch { text: Some(text.to_owned()), ..JobSearch::default() }
}

pub(crate) async fn search_finds_what_people_know_of_a_job(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let mut labelled = job(2);
    labelled.labels = [("Customer".to_owned(), "Anna".to_owned())].into();
    labelled.shape = sample::shape(7);
    let records = vec![
        accepted(with_tenant(job(1), "studio"), queued(1)),
        accepted(labelled, running(2, 1)),
        accepted(with_key(job(3), "order-4711", 1), completed(3, 1)),
        accepted(job(4), failed(4)),
    ];
    commit(&store, term, records).await;
    let error = failed(4).state.failure().map(|(_, message)| message.to_owned()).unwrap();
    for (wanted, expected) in [
        ("studio", &[1][..]),
        ("customer=anna", &[2]),
        ("ORDER-47", &[3]),
        (&JobId::from_u128(3).to_string()[30..], &[3]),
        (&error.to_uppercase(), &[4]),
        ("comfyui", &[4, 3, 2, 1]),
        ("no such thing", &[]),
    ] {
        assert_eq!(found(&store, text(wanted)).await, expected, "{wanted}");
    }
    let search = JobSearch { worker: Some(sample::worker("gpu-1")), ..JobSearch::default() };
    assert!(found(&store, search).await.contains(&2), "it ran there");
    let search = JobSearch { shape: Some(sample::shape(7)), ..JobSearch::default() };
    assert_eq!(found(&store, search).await, [2]);
    let filter = JobFilter { state: Some(JobStateFilter::Failed), tenant: None };
    assert_eq!(found(&store, JobSearch { filter, ..text("comfyui") }).await, [4]);
}

/// A search without a match ends after a bounded number of jobs, and can be continued from there.
pub(crate) async fn search_is_bounded_and_goes_on(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let all = SEARCH_SCAN_MAX as u128 + 5;
    let oldest = accepted(with_tenant(job(1), "studio"), completed(1, 1));
    let others = (2..=all).map(|id| accepted(job(id), completed(1, 1)));
    commit(&store, term, std::iter::once(oldest).chain(others).collect()).await;
    let first = store.search_jobs(text("studio"), None, 9).await.unwrap();
    assert_eq!((first.jobs.len(), first.scanned), (0, SEARCH_SCAN_MAX));
    let rest = store.search_jobs(text("studio"), first.next, 9).await.unwrap();
    assert_eq!((rest.jobs.len(), rest.scanned, rest.next), (1, 5, None));
}

pub(crate) async fn recent_events_are_newest_first(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    assert!(store.recent_events(None, 5).await.unwrap().is_empty());
    for range in [1..=5, 6..=6, 7..=40] {
        let events = range.map(|n| event(n, n, EventKind::JobQueued, None)).collect();
        commit(&store, term, events).await;
    }
    for (before, limit, expected) in [
        (None, 3, vec![40, 39, 38]),
        (Some(8), 3, vec![7, 6, 5]),
        (Some(4), 9, vec![3, 2, 1]),
        (Some(1), 9, vec![]),
    ] {
        let events = store.recent_events(before.map(Sequence), limit).await.unwrap();
        let numbers: Vec<_> = events.iter().map(|event| event.seq.0).collect();
        assert_eq!(numbers, expected, "before {before:?}");
    }
}
