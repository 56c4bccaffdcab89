//! Wrong lists.

use std::collections::BTreeSet;

use super::harness::{Client, Seen, begin, plain};
use crate::runpod::{FakeRunpodOptions, RunpodFault};

async fn three() -> Client {
    let client = plain().await;
    for name in ["a", "b", "c"] {
        client.made(name).await;
        client.pass(1);
    }
    client
}

fn names(page: &Seen) -> Vec<&str> {
    page.body["pods"].as_array().unwrap().iter().map(|pod| pod["name"].as_str().unwrap()).collect()
}

/// The next page.
async fn next(client: &Client, page: &Seen, limit: &str) -> Seen {
    assert_eq!(page.body["pagination"]["hasNextPage"], true, "{}", page.text);
    let cursor = page.body["pagination"]["nextCursor"].as_str().unwrap();
    client.get(&format!("/pods?cursor={cursor}{limit}")).await
}

#[tokio::test]
async fn the_newest_pods_come_first_and_pages_follow_each_other() {
    let client = three().await;
    let first = client.get("/pods?limit=2").await;
    assert_eq!(names(&first), ["c", "b"]);
    let second = next(&client, &first, "&limit=2").await;
    assert_eq!(names(&second), ["a"]);
    assert_eq!(second.body["pagination"]["hasNextPage"], false);
    assert!(second.body["pagination"]["nextCursor"].is_null());
    assert_eq!(client.get("/pods?limit=0").await.status, 422);
    assert_eq!(client.get("/pods?cursor=%3F").await.status, 400);
}

/// A list that is empty, truncated, lacks a pod or has no list in it.
#[tokio::test]
async fn a_list_can_lack_pods_that_live_and_be_whole_the_next_time() {
    for (fault, left) in [(RunpodFault::EmptyList, 0), (RunpodFault::CutList, 1), (RunpodFault::Omit, 2)] {
        let client = three().await;
        client.fake.control().strike_next(fault);
        let page = client.get("/pods").await;
        assert_eq!((page.status, names(&page).len()), (200, left), "{fault}");
        assert_eq!(page.body["pagination"]["hasNextPage"], false, "{fault}");
        assert_eq!(client.names().await, ["c", "b", "a"], "{fault}");
        assert_eq!(client.fake.ledger().alive, 3);
    }
    let client = three().await;
    client.fake.control().strike_next(RunpodFault::NoArray);
    let page = client.get("/pods").await;
    assert_eq!((page.status, page.body.get("pods")), (200, None));
}

#[tokio::test]
async fn a_pod_can_be_on_two_pages() {
    let client = three().await;
    client.fake.control().strike_next(RunpodFault::Duplicate);
    let first = client.get("/pods").await;
    let second = next(&client, &first, "").await;
    assert_eq!((names(&first), names(&second)), (vec!["c", "b"], vec!["b", "a"]));
}

#[tokio::test]
async fn a_cursor_can_lead_to_where_one_is() {
    let client = three().await;
    client.fake.control().strike_next(RunpodFault::BadCursor);
    let first = client.get("/pods").await;
    client.fake.control().strike_next(RunpodFault::BadCursor);
    let second = next(&client, &first, "").await;
    assert_eq!(names(&first), names(&second));
    assert_eq!(second.body["pagination"]["nextCursor"], first.body["pagination"]["nextCursor"]);
}

#[tokio::test]
async fn a_new_pod_can_be_late_in_the_list_and_late_by_itself() {
    let client = plain().await;
    client.fake.control().strike_next(RunpodFault::LateList);
    let id = client.made("listed late").await;
    assert_eq!(client.pod(&id).await["name"], "listed late");
    assert!(client.names().await.is_empty());
    client.pass(20);
    assert_eq!(client.names().await, ["listed late"]);

    client.fake.control().strike_next(RunpodFault::LateGet);
    let id = client.made("found late").await;
    assert_eq!(client.names().await, ["found late", "listed late"]);
    assert_eq!(client.get(&format!("/pods/{id}")).await.status, 404);
    assert_eq!(client.delete(&id).await.status, 404, "which proves nothing");
    client.pass(20);
    assert_eq!(client.pod(&id).await["status"], "RUNNING");
    assert_eq!(client.delete(&id).await.status, 204);
}

/// Foreign pods have other names.
#[tokio::test]
async fn pods_of_others_are_in_the_list_and_not_in_the_sums() {
    let client = begin(FakeRunpodOptions { foreign: 2, ..FakeRunpodOptions::default() }).await;
    client.fake.control().strike_next(RunpodFault::Foreign);
    client.made("ours").await;
    let names: BTreeSet<String> = client.names().await.into_iter().collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().filter(|name| name.starts_with("jupyter-")).count() == 3);
    assert_eq!(client.fake.ledger().alive_max, 1);
}
