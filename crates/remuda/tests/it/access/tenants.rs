//! Tenants are separated.

use reqwest::{Method, StatusCode};
use serde_json::json;

use super::{client_of, closed, code, token};
use crate::harness::{Process, ScriptedWorker, Stream, answered, assert_contains_all, remuda};
use crate::start::run_as;

/// Faults: X16.
#[tokio::test]
async fn jobs_of_other_tenants_are_not_found() {
    let (_plane, admin) = closed(&[]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let job = anna.submit(json!({ "n": 1 })).await;
    assert_eq!(anna.job(&job).await["tenant"], "anna");
    for (method, rest) in [
        (Method::GET, ""),
        (Method::GET, "/why"),
        (Method::GET, "/workflow"),
        (Method::GET, "/result"),
        (Method::GET, "/preview"),
        (Method::POST, "/cancel"),
    ] {
        let path = format!("/remuda/v1/jobs/{job}{rest}");
        let nothing = "/remuda/v1/jobs/0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11".to_owned() + rest;
        let (status, refused) = answered(ben.request(method.clone(), &path)).await;
        let (_, unknown) = answered(ben.request(method.clone(), &nothing)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {path}: {refused}");
        // What is not one's own looks like what is not there at all.
        let told = |text: &serde_json::Value, id: &str| text.to_string().replace(id, "JOB");
        assert_eq!(told(&refused, &job), told(&unknown, "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11"));
        // Written in another way it is the same job.
        let escaped = format!("/remuda/v1/jobs/%{:x}{}{rest}", job.as_bytes()[0], &job[1..]);
        let (status, refused) = answered(ben.request(method.clone(), &escaped)).await;
        assert_eq!(status, StatusCode::NOT_FOUND, "{method} {escaped}: {refused}");
    }
    assert_eq!(anna.job(&job).await["state"], "queued");
    assert_eq!((ben.jobs().await.len(), anna.jobs().await.len(), admin.jobs().await.len()), (0, 1, 1));
    assert_eq!(code(&ben, Method::GET, "/remuda/v1/jobs?tenant=anna").await, (403, "forbidden".to_owned()));
    assert_eq!(code(&ben, Method::GET, "/remuda/v1/events?tenant=anna").await, (403, "forbidden".to_owned()));
    let (status, refused) =
        ben.post("/remuda/v1/jobs", &json!({ "workflow": { "n": 3 }, "tenant": "anna" })).await;
    assert_eq!(status, StatusCode::FORBIDDEN, "{refused}");
    // The same key of two tenants is two jobs.
    let keyed = json!({ "workflow": { "n": 2 }, "idempotency_key": "k" });
    assert_ne!(anna.submit_as(keyed.clone()).await, ben.submit_as(keyed).await);
}

#[tokio::test]
async fn client_role_can_run_jobs_with_files() {
    let (plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let joins = token(&admin, &json!({ "role": "worker" })).await;
    let mut worker = remuda(plane.folder());
    worker.args(["worker", "--url", &plane.url, "--name", "a", "--exec", "cat"]).env("REMUDA_TOKEN", &joins);
    let _worker = Process::start("the worker", &mut worker);
    std::fs::write(plane.folder().join("w.json"), r#"{ "n": 1 }"#).unwrap();
    let by = ["--url", &plane.url];
    let (code, said) =
        run_as(&anna.token, plane.folder(), &[&["run", "w.json", "-n", "3"], &by[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) =
        run_as(&anna.token, plane.folder(), &[&["blobs", "put", "w.json"], &by[..]].concat()).await;
    assert_eq!(code, 0, "{said}");
    let (_, said) = run_as(&anna.token, plane.folder(), &[&["jobs"], &by[..]].concat()).await;
    assert_eq!(said.matches("anna").count(), 3, "{said}");
    let (code, said) = run_as(&anna.token, plane.folder(), &[&["workers"], &by[..]].concat()).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["this token is for a client", "admin"]);
}

/// Faults: X16.
#[tokio::test]
async fn client_receives_only_its_own_events() {
    let (_plane, admin) = closed(&[]).await;
    let (anna, ben) = (client_of(&admin, "anna").await, client_of(&admin, "ben").await);
    let mut hand = ScriptedWorker::join(&admin, "a", 1).await;
    let theirs = anna.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    hand.complete(&attempt, json!({})).await;
    let own = ben.submit(json!({ "n": 2 })).await;
    ben.cancel(&own).await;
    let mut stream = Stream::open(&ben, "?after=0", None).await;
    loop {
        let event = stream.next().await;
        assert!(!event.data.to_string().contains(&theirs), "{event:?}");
        assert!(event.data["tenant"] == "ben" || event.name == "caught_up", "{event:?}");
        if event.name == "caught_up" {
            break;
        }
    }
    let mut hers = Stream::open(&ben, &format!("?after=0&job={theirs}"), None).await;
    assert_eq!(hers.next().await.name, "caught_up");
}
