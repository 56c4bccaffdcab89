//! Workflows and results come back byte for byte, one by one and in pages.

use std::sync::Arc;

use remuda_core::record::Record;

use super::sample::{self, body, completed, job, queued};
use super::{StoreFixture, commit, open_as_leader};

pub(crate) async fn bodies_are_returned_unchanged(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    // Spaces, order, escapes and repeated keys must not change.
    let strange = r#"{ "b" : 1.0, "a":[ "\u00e9", "é\u0000" ], "b": 1e2 }"#;
    let large = format!(r#"{{"text":"{}"}}"#, "x".repeat(3_000_000));
    let accept =
        |id, text: &str| Record::JobAccepted { job: job(id).into(), status: queued(1), workflow: body(text) };
    commit(&store, term, vec![accept(1, strange), accept(2, &large)]).await;
    let ended = Record::JobStatus { job: sample::id(1), status: completed(2, 1) };
    commit(&store, term, vec![ended, Record::Result { job: sample::id(1), result: body(strange) }]).await;

    let text = |body: Option<Arc<serde_json::value::RawValue>>| body.map(|body| body.get().to_owned());
    assert_eq!(text(store.workflow(sample::id(1)).await.unwrap()).as_deref(), Some(strange));
    assert_eq!(text(store.workflow(sample::id(2)).await.unwrap()), Some(large));

    commit(&store, term, vec![accept(3, "{}"), accept(4, "[]")]).await;
    let ids = async |from, limit, bytes_max| {
        let page = store.workflows_from(sample::id(from), limit, bytes_max).await.unwrap();
        page.into_iter().map(|(id, _)| id).collect::<Vec<_>>()
    };
    assert_eq!(ids(1, 10, 10_000_000).await, [1, 2, 3, 4].map(sample::id));
    assert_eq!(ids(2, 2, 10_000_000).await, [2, 3].map(sample::id), "limited by number");
    assert_eq!(ids(1, 10, 1_000_000).await, [1].map(sample::id), "limited by bytes");
    assert_eq!(ids(2, 10, 1).await, [2].map(sample::id), "the first comes even if it is too large");
    assert_eq!(ids(5, 10, 1).await, []);
    assert_eq!(text(store.result(sample::id(1)).await.unwrap()).as_deref(), Some(strange));
    assert_eq!(text(store.result(sample::id(2)).await.unwrap()), None);
}
