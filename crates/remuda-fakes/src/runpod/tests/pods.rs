//! Pods without faults.

use serde_json::{Value, json};

use super::harness::{begin, order, plain, seen};
use crate::runpod::{Capacity, FakeRunpodOptions, Volume};

/// The keys that the specification requires of every pod.
const KEYS: [&str; 23] = [
    "actions",
    "args",
    "cloud",
    "cost",
    "createdAt",
    "cudaVersion",
    "dataCenterId",
    "disk",
    "env",
    "globalNetworking",
    "gpu",
    "id",
    "image",
    "locked",
    "mounts",
    "name",
    "ports",
    "registry",
    "runtime",
    "ssh",
    "startedAt",
    "status",
    "template",
];

#[tokio::test]
async fn a_pod_is_made_becomes_usable_and_is_gone_after_its_deletion() {
    let client = plain().await;
    let made = client.create("fleet-1").await;
    assert_eq!(made.status, 201);
    let keys: Vec<&String> = made.body.as_object().unwrap().keys().collect();
    assert_eq!(keys, KEYS.to_vec());
    assert_eq!(made.body["status"], "RUNNING", "at once, as it was recorded");
    assert_eq!((&made.body["runtime"], &made.body["ssh"]["direct"]), (&Value::Null, &Value::Null));
    let id = made.body["id"].as_str().unwrap();
    assert!(
        id.len() == 14 && id.bytes().all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit())
    );
    client.pass(28);
    let pod = client.pod(id).await;
    assert_eq!(pod["runtime"]["uptime"], 0);
    assert_eq!(pod["ssh"]["direct"]["username"], "root");
    let ports = pod["runtime"]["ports"].as_array().unwrap();
    let ssh = ports.iter().find(|port| port["private"] == 22 && port["type"] == "tcp").unwrap();
    assert_eq!(ssh["public"], pod["ssh"]["direct"]["port"]);
    assert!(ports.iter().any(|port| port["private"] == 19123 && port["ip"] == "100.65.14.155"));
    assert_eq!(pod["cost"], 0.69);
    client.pass(41);
    assert_eq!(client.pod(id).await["runtime"]["uptime"], 41);
    let gone = client.delete(id).await;
    assert_eq!((gone.status, gone.text.as_str()), (204, ""));
    assert_eq!(client.get(&format!("/pods/{id}")).await.status, 404);
    assert!(client.names().await.is_empty());
    assert_eq!(client.delete(id).await.status, 404);
}

#[tokio::test]
async fn the_books_tell_what_was_made_and_paid() {
    let client = begin(FakeRunpodOptions { foreign: 1, ..FakeRunpodOptions::default() }).await;
    let first = client.made("fleet-1").await;
    client.pass(3600);
    client.made("fleet-2").await;
    client.pass(1800);
    client.delete(&first).await;
    client.pass(1800);
    let ledger = client.fake.ledger();
    assert_eq!(ledger.left_over().iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["fleet-2"]);
    assert!(ledger.made_twice().is_empty());
    assert_eq!((ledger.alive, ledger.alive_max), (1, 2));
    assert_eq!(ledger.rate_max, 1.38);
    assert_eq!(ledger.gpu_seconds, 9000.0);
    assert_eq!(ledger.cost, 0.69 * 2.5);
    assert_eq!(ledger.names["fleet-1"].orders, 1);
    assert_eq!(ledger.pods.iter().filter(|entry| entry.is_foreign).count(), 1);
    let over_http = client.http.get(format!("http://{}/_remuda/ledger", client.fake.address()));
    let over_http: Value = over_http.send().await.unwrap().json().await.unwrap();
    assert_eq!(over_http["gpu_seconds"], 9000.0);
    let bill = client.get(&format!("/billing/pods?bucketSize=day&podId={first}")).await;
    let total: f64 = bill.body["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line["totalAmount"].as_f64().unwrap())
        .sum();
    assert!((total - 0.69 * 1.5).abs() < 1e-4, "{}", bill.text);
}

#[tokio::test]
async fn a_stopped_pod_costs_nothing_and_comes_back_on_other_ports() {
    let client = plain().await;
    let id = client.made("p").await;
    client.pass(28);
    let port = client.pod(&id).await["ssh"]["direct"]["port"].clone();
    assert_eq!(client.act(&id, "start").await.status, 409, "it runs");
    assert_eq!(client.act(&id, "reset").await.status, 422);
    let stopped = client.act(&id, "stop").await;
    assert_eq!((stopped.status, &stopped.body["status"]), (200, &json!("EXITED")));
    assert_eq!(stopped.body["actions"], json!(["start", "terminate"]));
    assert_eq!(stopped.body["cost"], 0.0);
    assert_eq!(stopped.body["ssh"]["direct"], Value::Null);
    assert_ne!(stopped.body["ssh"]["proxy"], Value::Null);
    assert_eq!(client.act(&id, "stop").await.status, 409);
    client.pass(3600);
    assert!(client.fake.ledger().gpu_seconds < 30.0);
    assert_eq!(client.act(&id, "start").await.body["runtime"], Value::Null);
    client.pass(5);
    assert_ne!(client.pod(&id).await["ssh"]["direct"]["port"], port);
    let port = client.pod(&id).await["ssh"]["direct"]["port"].clone();
    assert_eq!(client.act(&id, "restart").await.status, 200);
    client.pass(5);
    assert_ne!(client.pod(&id).await["ssh"]["direct"]["port"], port);
    assert_eq!(client.act(&id, "terminate").await.status, 204);
    assert_eq!(client.fake.ledger().alive, 0);
}

#[tokio::test]
async fn a_change_of_what_runs_resets_the_container() {
    let client = plain().await;
    let id = client.made("p").await;
    client.pass(60);
    let patch =
        |body: Value| seen(client.request(reqwest::Method::PATCH, &format!("/pods/{id}")).json(&body));
    let renamed = patch(json!({"name": "q"})).await.unwrap();
    assert_eq!((&renamed.body["name"], &renamed.body["runtime"]["uptime"]), (&json!("q"), &json!(32)));
    let reset = patch(json!({"env": {"KEY": "other"}})).await.unwrap();
    assert_eq!((&reset.body["env"]["KEY"], &reset.body["runtime"]), (&json!("other"), &Value::Null));
    assert_eq!(patch(json!({"gpu": {}})).await.unwrap().status, 422);
}

#[tokio::test]
async fn what_there_is_runs_out_and_comes_back() {
    let rule = |text| Capacity::parse(text).unwrap();
    let capacity = vec![rule("NVIDIA GeForce RTX 4090@EU-RO-1=1"), rule("*/COMMUNITY=0")];
    let client = begin(FakeRunpodOptions { capacity, ..FakeRunpodOptions::default() }).await;
    let mut here = order("p");
    here["dataCenterIds"] = json!(["EU-RO-1"]);
    let first = client.post("/pods", &here).await;
    assert_eq!(first.body["dataCenterId"], "EU-RO-1");
    let second = client.post("/pods", &here).await;
    assert_eq!((second.status, second.kind.as_str()), (400, "application/problem+json"));
    assert!(second.body["detail"].as_str().unwrap().starts_with("There are no longer any instances"));
    assert_eq!(client.create("elsewhere").await.status, 201);
    let mut community = order("p");
    community["cloud"] = json!("COMMUNITY");
    assert_eq!(client.post("/pods", &community).await.status, 400);
    client.delete(first.body["id"].as_str().unwrap()).await;
    assert_eq!(client.post("/pods", &here).await.status, 201);
    client.fake.control().set_capacity(vec![rule("*=0")]);
    assert_eq!(client.create("anywhere").await.status, 400);
    let put = client.http.put(format!("http://{}/_remuda/capacity", client.fake.address()));
    assert_eq!(put.json(&json!([])).send().await.unwrap().status(), 200);
    assert_eq!(client.create("anywhere").await.status, 201);
    let mut uncounted = order("p");
    uncounted["gpu"] = json!({"id": "NVIDIA L4"});
    assert_eq!(client.post("/pods", &uncounted).await.status, 400, "no count matches no machine");
}

#[tokio::test]
async fn an_account_that_spends_too_much_finds_nothing_free() {
    let spend_max = Some("1".parse().unwrap());
    let client = begin(FakeRunpodOptions { spend_max, ..FakeRunpodOptions::default() }).await;
    client.made("p").await;
    assert_eq!(client.create("q").await.status, 400);
    assert_eq!(client.fake.ledger().names["q"].pods, 0);
}

#[tokio::test]
async fn a_network_volume_pins_its_pods_to_one_place() {
    let volume = Volume { id: "abc123".into(), data_center: "EU-RO-1".into(), size_gb: 100 };
    let client = begin(FakeRunpodOptions { volumes: vec![volume], ..FakeRunpodOptions::default() }).await;
    let mut order = order("p");
    order["mounts"] = json!({"network": [{"volumeId": "abc123", "path": "/workspace"}]});
    assert_eq!(client.post("/pods", &order).await.body["dataCenterId"], "EU-RO-1");
    order["dataCenterIds"] = json!(["US-KS-2"]);
    let refused = client.post("/pods", &order).await;
    assert_eq!(refused.status, 400);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(
        detail.contains("is in data center EU-RO-1, which is not in the requested set [US-KS-2]"),
        "{detail}"
    );
    order["mounts"]["network"][0]["volumeId"] = json!("other");
    assert_eq!(client.post("/pods", &order).await.status, 404);
    let volumes = client.get("/network-volumes").await;
    assert_eq!(volumes.body["networkVolumes"][0]["dataCenterId"], "EU-RO-1");
}

#[tokio::test]
async fn keys_of_the_account_come_into_a_pod_that_asks_for_them() {
    let client = plain().await;
    let keys = json!({"keys": ["ssh-ed25519 AAAA anna"]});
    seen(client.request(reqwest::Method::PUT, "/account/ssh-keys").json(&keys)).await.unwrap();
    assert_eq!(client.get("/account/ssh-keys").await.body, keys);
    let mut order = order("p");
    order["startSsh"] = json!(true);
    assert_eq!(client.post("/pods", &order).await.body["env"]["PUBLIC_KEY"], "ssh-ed25519 AAAA anna");
    order["env"]["PUBLIC_KEY"] = json!("ours");
    assert_eq!(client.post("/pods", &order).await.body["env"]["PUBLIC_KEY"], "ours");
}

#[tokio::test]
async fn logs_tell_how_far_a_pod_is_and_stay_open() {
    let client = plain().await;
    let id = client.made("p").await;
    let mut stream =
        client.request(reqwest::Method::GET, &format!("/pods/{id}/logs?source=system")).send().await.unwrap();
    assert_eq!(stream.headers()["content-type"], "text/event-stream");
    let first = stream.chunk().await.unwrap().unwrap();
    let first = String::from_utf8_lossy(&first).into_owned();
    assert!(first.starts_with("id: 20") && first.contains("pulling image ours:1"), "{first}");
    client.pass(28);
    let next = stream.chunk().await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&next).contains("start container"));
    client.delete(&id).await;
    assert_eq!(stream.chunk().await.unwrap(), None, "a pod that is gone says nothing more");
    assert_eq!(client.get(&format!("/pods/{id}/logs")).await.status, 404);
}
