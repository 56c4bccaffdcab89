//! Alerts reach people once for each incident, whatever dies in between.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Plane, QUICK, Worker, answered, wait_until};
use crate::start::run;

/// Looked at often, so that the tests need not wait.
const OFTEN: &str = "alerts.check_every=50ms";

/// A receiver of messages that refuses the first ones if it is told to.
#[derive(Clone, Debug)]
struct Receiver {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<(String, Value)>>>,
    refusals: Arc<Mutex<usize>>,
}

impl Receiver {
    async fn start(refusals: usize) -> Receiver {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let receiver = Receiver { address, heard: Arc::default(), refusals: Arc::new(Mutex::new(refusals)) };
        let router = Router::new().fallback(hear).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    /// The messages that it accepted at this path.
    fn at(&self, path: &str) -> Vec<Value> {
        let heard = self.heard.lock().unwrap();
        heard.iter().filter(|(at, _)| at == path).map(|(_, body)| body.clone()).collect()
    }

    async fn until(&self, path: &str, count: usize) -> Vec<Value> {
        let what = format!("{count} messages came to {path}");
        wait_until(&what, async || Some(self.at(path)).filter(|heard| heard.len() >= count)).await
    }
}

async fn hear(State(receiver): State<Receiver>, uri: Uri, body: Bytes) -> StatusCode {
    let mut refusals = receiver.refusals.lock().unwrap();
    if *refusals > 0 {
        *refusals -= 1;
        return StatusCode::INTERNAL_SERVER_ERROR;
    }
    let body = serde_json::from_slice(&body).unwrap();
    receiver.heard.lock().unwrap().push((uri.path().to_owned(), body));
    StatusCode::NO_CONTENT
}

/// A plane with these alerts in its file.
async fn plane_with(folder: &Path, alerts: &str) -> Plane {
    let file = folder.join("alerts.toml");
    std::fs::write(&file, alerts).unwrap();
    let settings = [QUICK, &[OFTEN]].concat();
    Plane::plan(&settings).arguments(&["--config", file.to_str().unwrap()]).start().await
}

async fn alert(plane: &Plane, name: &str) -> Value {
    let answer = plane.get("/remuda/v1/alerts").await;
    let found = answer["alerts"].as_array().unwrap().iter().find(|alert| alert["name"] == name).cloned();
    found.unwrap_or_else(|| panic!("no alert {name} in {answer}"))
}

async fn until_state(plane: &Plane, name: &str, state: &str) -> Value {
    let what = format!("alert {name} is {state}");
    wait_until(&what, async || Some(alert(plane, name).await).filter(|it| it["state"] == state)).await
}

/// Waits until every condition was looked at once more from the beginning.
async fn until_checked_again(plane: &Plane) {
    let checks = async || plane.get("/remuda/v1/alerts").await["checks"].as_u64().unwrap();
    let before = checks().await;
    wait_until("the conditions were looked at again", async || (checks().await > before + 1).then_some(()))
        .await;
}

#[tokio::test]
async fn incident_is_told_once_and_its_recovery_once_over_a_killed_plane() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start(0).await);
    let told = folder.path().join("told");
    let alerts = format!(
        "[[alert]]\nname = 'waiting'\nwhen = 'oldest_waiting'\ntime_limit = '200ms'\nrecover_after = '100ms'\n\
         webhook = 'http://{address}/hook'\nslack = 'http://{address}/slack'\n\
         command = '''echo \"$REMUDA_ALERT_STATE $(cat)\" >>'{told}' '''\n",
        address = receiver.address,
        told = told.display(),
    );
    let mut plane = plane_with(folder.path(), &alerts).await;
    assert_eq!(alert(&plane, "waiting").await["state"], "ok");
    let job = plane.submit(json!({ "n": 1 })).await;
    let raised = receiver.until("/hook", 1).await.remove(0);
    assert_eq!((&raised["alert"], &raised["state"]), (&json!("waiting"), &json!("raised")), "{raised}");
    assert_eq!(
        (&raised["condition"], raised["text"].as_str().unwrap().contains(&job)),
        (&json!("oldest_waiting"), true)
    );
    let is_delivered = |alert: &Value| alert["incidents"][0]["undelivered"] == 0;
    wait_until("all of it is delivered", async || {
        is_delivered(&alert(&plane, "waiting").await).then_some(())
    })
    .await;

    for _ in 0..2 {
        plane.kill();
        plane.start_again().await;
        let firing = until_state(&plane, "waiting", "firing").await;
        assert_eq!(firing["incidents"][0]["id"], raised["incident"], "the same incident");
        until_checked_again(&plane).await;
    }
    assert_eq!(receiver.at("/hook").len(), 1, "nothing is told again");
    plane.cancel(&job).await;
    let recovered = receiver.until("/hook", 2).await.remove(1);
    assert_eq!((&recovered["state"], &recovered["incident"]), (&json!("recovered"), &raised["incident"]));
    until_state(&plane, "waiting", "ok").await;
    wait_until("nothing is left of it", async || {
        (alert(&plane, "waiting").await["incidents"] == json!([])).then_some(())
    })
    .await;
    plane.kill();
    plane.start_again().await;
    until_checked_again(&plane).await;
    assert_eq!((receiver.at("/hook").len(), receiver.at("/slack").len()), (2, 2));
    assert!(receiver.at("/slack")[0]["text"].as_str().unwrap().starts_with("ALERT waiting: job "));
    let told = std::fs::read_to_string(&told).unwrap();
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines.len(), 2, "{told}");
    assert!(
        lines[0].starts_with("raised ALERT waiting") && lines[1].starts_with("recovered RECOVERED waiting")
    );
}

#[tokio::test]
async fn message_that_was_refused_is_sent_by_the_next_plane() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start(1).await);
    let alerts = format!(
        "[[alert]]\nname = 'idle'\nwhen = 'no_capacity'\nfor = '0s'\nrecover_after = '0s'\nwebhook = 'http://{}/hook'\n",
        receiver.address
    );
    let mut plane = plane_with(folder.path(), &alerts).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let line = plane.process.line("alert message not accepted").await;
    assert!(line.unwrap().contains("500"), "{}", plane.process.said());
    plane.kill();
    plane.start_again().await;
    let raised = receiver.until("/hook", 1).await.remove(0);
    assert_eq!(
        (&raised["state"], &raised["text"]),
        (&json!("raised"), &json!("1 jobs wait and no worker is ready; `remuda status` shows why"))
    );
    let _worker = Worker::start(&plane, "w", "echo 1").await;
    plane.ended(&job).await;
    assert_eq!(receiver.until("/hook", 2).await[1]["state"], "recovered");
}

#[tokio::test]
async fn test_message_shows_whether_a_channel_works() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start(0).await);
    let alerts = format!(
        "[[alert]]\nname = 'disk'\nwhen = 'store_full'\nwebhook = 'http://{}/hook'\n\
         slack = 'http://127.0.0.1:9/canary-4711'\ncommand = 'echo broken >&2; exit 3'\n",
        receiver.address
    );
    let plane = plane_with(folder.path(), &alerts).await;
    let (code, said) = run(plane.folder(), &["alerts", "test", "disk", "--url", &plane.url]).await;
    assert_eq!(code, 1, "{said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert_eq!((lines[0], lines[3]), ("webhook: accepted", "log: accepted"));
    assert!(lines[1].starts_with("slack: not accepted: ") && lines[1].contains("refused"), "{said}");
    assert!(lines[2].starts_with("command: not accepted: ") && lines[2].contains("broken"), "{said}");
    assert_eq!(receiver.at("/hook")[0]["state"], "test");
    let (code, said) = run(plane.folder(), &["alerts", "--url", &plane.url]).await;
    assert_eq!(code, 0);
    assert!(said.contains("disk") && said.contains("store_full") && said.contains("ok"), "{said}");
    let (code, said) = run(plane.folder(), &["alerts", "test", "disc", "--url", &plane.url]).await;
    assert!(code == 1 && said.contains("no alert is called \"disc\""), "{said}");
    let shown = answered(plane.request(Method::GET, "/remuda/v1/alerts")).await.1.to_string();
    assert!(
        !shown.contains("canary-4711") && !plane.process.said().contains("canary-4711"),
        "an address is a secret"
    );
}

#[tokio::test]
async fn reload_changes_the_alerts_of_a_running_plane() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start(0).await);
    let plane = plane_with(folder.path(), "").await;
    assert_eq!(plane.get("/remuda/v1/alerts").await["alerts"], json!([]));
    plane.submit(json!({ "n": 1 })).await;
    let alerts = format!(
        "[[alert]]\nname = 'idle'\nwhen = 'no_capacity'\nfor = '0s'\nwebhook = 'http://{}/hook'\n",
        receiver.address
    );
    std::fs::write(folder.path().join("alerts.toml"), alerts).unwrap();
    let (status, answer) = plane.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!((status, &answer["needs_restart"]), (StatusCode::OK, &json!(false)), "{answer}");
    receiver.until("/hook", 1).await;
    std::fs::write(folder.path().join("alerts.toml"), "").unwrap();
    plane.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!(plane.get("/remuda/v1/alerts").await["alerts"], json!([]));
    assert_eq!(receiver.at("/hook").len(), 1, "an alert that is gone says nothing more");
}
