//! What is sent to RunPod and how its answers are read: with recorded answers, with answers from its manual, and with
//! the fake account, which knows what really happened.

mod account;
mod answers;
mod creations;
mod lists;
mod refusals;

use std::collections::BTreeMap;
use std::time::Duration;

use remuda_core::id::PodId;
use remuda_core::money::Money;
use remuda_core::provider::ProviderErrorClass;
use serde_json::{Value, json};

use super::{Cloud, RunPodProvider, RunPodSettings};
use crate::{Provider as _, RentOrder};
use answers::{Answer, Answers};
use remuda_net::secret::Secret;

const KEY: &str = "rpa_canary_of_the_key";
const TOKEN: &str = "rmj_canary_of_the_machine";
const TAG: &str = "remuda-0a1b2c3d-gpus-1";

pub(super) fn http() -> reqwest::ClientBuilder {
    drop(rustls::crypto::ring::default_provider().install_default());
    reqwest::Client::builder().no_proxy()
}

pub(super) fn settings(url: &str) -> RunPodSettings {
    let gpus = vec!["NVIDIA GeForce RTX 4090".to_owned(), "NVIDIA L4".to_owned()];
    RunPodSettings {
        url: url.to_owned(),
        create_max: Duration::from_secs(10),
        read_max: Duration::from_secs(10),
        ..RunPodSettings::new(Secret::new(KEY), gpus, "remuda/worker:1".to_owned())
    }
}

fn runpod(answers: &Answers) -> RunPodProvider {
    RunPodProvider::new(settings(&answers.url), http()).unwrap()
}

pub(super) fn order(tag: &str, offer: &str) -> RentOrder {
    RentOrder {
        machine: "gpus-1".parse().unwrap(),
        tag: tag.to_owned(),
        offer: offer.to_owned(),
        environment: BTreeMap::from([("REMUDA_TOKEN".to_owned(), TOKEN.to_owned())]),
    }
}

fn id(text: &str) -> PodId {
    text.parse().unwrap()
}

/// A ready pod, as recorded.
fn ready() -> Value {
    json!({
        "id": "k3v9x2m7q1z8ab", "name": TAG, "status": "RUNNING", "actions": ["stop", "restart", "terminate"],
        "image": "remuda/worker:1", "args": "", "disk": 50, "ports": ["22/tcp"], "env": { "REMUDA_TOKEN": TOKEN },
        "registry": null, "mounts": {}, "locked": false, "template": null,
        "gpu": { "id": "NVIDIA GeForce RTX 4090", "count": 1, "vcpuCount": 16, "memory": 64 },
        "cloud": "SECURE", "dataCenterId": "EU-RO-1", "cudaVersion": "12.8", "cost": 0.69,
        "ssh": {
            "proxy": { "host": "ssh.runpod.io", "port": 22, "username": "k3v9x2m7q1z8ab-64411abc", "command": "" },
            "direct": { "host": "203.0.113.7", "port": 34446, "username": "root", "command": "" },
        },
        "runtime": { "uptime": 41, "gpus": [{ "util": 0, "memoryUtil": 0 }], "ports": [] },
        "createdAt": "2026-11-15T06:16:19.436Z", "startedAt": "2026-11-15T06:16:19.430Z",
    })
}

fn with(mut pod: Value, changes: &Value) -> Value {
    for (name, value) in changes.as_object().unwrap() {
        pod[name] = value.clone();
    }
    pod
}

#[tokio::test]
async fn price_covers_all_gpus_of_a_machine() {
    let answers = Answers::start([Answer::json(
        200,
        &json!({ "gpus": [
            { "id": "NVIDIA GeForce RTX 4090", "secure": true, "community": true,
              "price": { "secure": 0.69, "community": 0.34 } },
            { "id": "NVIDIA L4", "secure": true, "community": false,
              "price": { "secure": 0.0, "community": 0.2 } },
            { "id": "AMD Instinct MI300X OAM", "price": {} },
        ] }),
    )])
    .await;
    let settings = RunPodSettings {
        gpu_count: 2,
        clouds: vec![Cloud::Secure, Cloud::Community],
        data_centres: vec!["EU-RO-1".to_owned(), "US-KS-2".to_owned()],
        ..settings(&answers.url)
    };
    let runpod = RunPodProvider::new(settings, http()).unwrap();
    let offers = runpod.offers();
    assert_eq!(
        offers[..4],
        [
            "NVIDIA GeForce RTX 4090@EU-RO-1/SECURE",
            "NVIDIA GeForce RTX 4090@EU-RO-1/COMMUNITY",
            "NVIDIA GeForce RTX 4090@US-KS-2/SECURE",
            "NVIDIA GeForce RTX 4090@US-KS-2/COMMUNITY",
        ]
    );
    assert_eq!(offers.len(), 8);
    let prices: Vec<_> = runpod.prices().await.unwrap().into_iter().collect();
    let (secure, community) = (Money::from_micros(1_380_000), Money::from_micros(680_000));
    // The other GPU is unavailable: it costs 0 dollars or is not offered.
    let expected = [(1, community), (0, secure), (3, community), (2, secure)];
    assert_eq!(prices, expected.map(|(at, price)| (offers[at].clone(), price)));
    assert_eq!(answers.requests()[0].path, "/v2/catalog/gpus");
}

#[test]
fn invalid_settings_are_reported_at_start() {
    let good = || settings("https://api.runpod.io/v2");
    assert!(RunPodProvider::new(good(), http()).is_ok());
    let bad = [
        RunPodSettings { gpus: vec![], ..good() },
        RunPodSettings { gpus: vec!["A@B".to_owned()], ..good() },
        RunPodSettings { clouds: vec![], ..good() },
        RunPodSettings { gpu_count: 0, ..good() },
        RunPodSettings { image: " ".to_owned(), ..good() },
        RunPodSettings { disk_gb: 0, ..good() },
        RunPodSettings { args: Some(String::new()), ..good() },
        RunPodSettings { args: Some("x".to_owned()), command: vec!["y".to_owned()], ..good() },
        RunPodSettings { key: Secret::new(""), ..good() },
        RunPodSettings { key: Secret::new("rpa_canary_of_the_key\nx"), ..good() },
        RunPodSettings { url: "api.runpod.io".to_owned(), ..good() },
        RunPodSettings { url: "http://api.runpod.io/v2".to_owned(), ..good() },
        RunPodSettings { url: "https://me:canary@api.runpod.io/v2".to_owned(), ..good() },
    ];
    for settings in bad {
        let fault = RunPodProvider::new(settings, http()).unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::Invalid, "{fault}");
        assert!(!fault.message.contains("canary"), "{fault}");
    }
}

/// Faults: X10.
#[tokio::test]
async fn errors_contain_no_keys_and_environments() {
    let echo = json!({ "title": "No", "detail": format!("$.env.REMUDA_TOKEN: {TOKEN} is too long") });
    let broken = format!("{{\"id\":\"k3v9\",\"name\":7,\"env\":{{\"REMUDA_TOKEN\":\"{TOKEN}\"}}");
    let listed = json!({ "pods": [with(ready(), &json!({ "status": [TOKEN] }))], "pagination": {} });
    let answers = Answers::start([
        Answer::json(422, &echo),
        Answer::text(201, &broken),
        Answer::text(500, &broken),
        Answer::json(200, &listed),
    ])
    .await;
    let runpod = runpod(&answers);
    let mut output = format!("{runpod:?}");
    for _ in 0..3 {
        output += &format!("{:?}", runpod.rent(order(TAG, "NVIDIA L4")).await.unwrap_err());
    }
    output += &format!("{:?}", runpod.list().await.unwrap_err());
    assert!(output.contains("*** is too long"), "{output}");
    assert!(!output.contains("canary"), "{output}");
}

#[tokio::test]
async fn last_log_lines_are_read_from_an_endless_stream() {
    let events = "id: 1/1\ndata: {\"ts\":\"t\",\"source\":\"system\",\"line\":\"pull access denied\"}\n\n";
    let answers =
        Answers::start([Answer::endless(events), Answer::json(404, &json!({ "title": "no" }))]).await;
    let runpod = runpod(&answers);
    assert_eq!(runpod.system_log(&id("k3v9x2m7q1z8ab")).await.unwrap(), ["pull access denied"]);
    assert_eq!(answers.requests()[0].path, "/v2/pods/k3v9x2m7q1z8ab/logs");
    assert!(answers.requests()[0].query.starts_with("source=system&tail="));
    assert_eq!(runpod.system_log(&id("gone")).await.unwrap_err().class, ProviderErrorClass::NotFound);
}
