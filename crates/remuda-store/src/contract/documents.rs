//! The contract of documents.

use std::sync::Arc;

use remuda_core::document::{Collection, Document};
use remuda_core::record::Record;

use super::sample::{at, body, tenant};
use super::{StoreFixture, commit, open_as_leader};

pub(crate) async fn documents_are_found_until_they_expire(fixture: &impl StoreFixture) {
    let (store, term) = open_as_leader(fixture).await;
    let document = |collection, id: &str, index_key: &str, expires_at: Option<u64>, text: &str| {
        Arc::new(Document {
            collection,
            id: id.to_owned(),
            tenant: Some(tenant("a")),
            index_key: index_key.to_owned(),
            expires_at: expires_at.map(at),
            body: body(text),
        })
    };
    let photo = document(Collection::Asset, "1", "blake3:aa", Some(100), "{\"n\": 1}");
    let copy = document(Collection::Asset, "2", "blake3:aa", None, "{}");
    let other = document(Collection::Asset, "3", "blake3:bb", Some(50), "[]");
    let affinity = document(Collection::Affinity, "1", "", None, "{}");
    let all = [&photo, &copy, &other, &affinity].map(|it| Record::Document(it.clone()));
    commit(&store, term, all.to_vec()).await;
    drop(store);
    let store = fixture.open().await;
    let term = store.take_leadership().await.unwrap();
    assert_eq!(store.document(Collection::Asset, "1").await.unwrap(), Some(photo.clone()));
    assert_eq!(store.document(Collection::Token, "1").await.unwrap(), None);
    assert_eq!(
        store.find_by_index_key(Collection::Asset, "blake3:aa").await.unwrap(),
        [photo.clone(), copy.clone()]
    );
    assert_eq!(store.documents(Collection::Asset, "1", 1).await.unwrap(), std::slice::from_ref(&copy));
    assert_eq!(store.restore().await.unwrap().documents, [affinity]);

    let changed = document(Collection::Asset, "2", "blake3:cc", None, "{\"new\": true}");
    let gone = Record::DocumentDeleted { collection: Collection::Asset, id: "9".to_owned() };
    commit(&store, term, vec![Record::Document(changed.clone()), gone]).await;
    assert_eq!(
        store.find_by_index_key(Collection::Asset, "blake3:aa").await.unwrap(),
        std::slice::from_ref(&photo)
    );
    assert_eq!(store.delete_expired(at(49), 10).await.unwrap(), 0);
    assert_eq!(store.delete_expired(at(100), 10).await.unwrap(), 2);
    assert_eq!(store.documents(Collection::Asset, "", 10).await.unwrap(), [changed]);
    commit(&store, term, vec![Record::DocumentDeleted { collection: Collection::Asset, id: "2".to_owned() }])
        .await;
    assert!(store.documents(Collection::Asset, "", 10).await.unwrap().is_empty());
}
