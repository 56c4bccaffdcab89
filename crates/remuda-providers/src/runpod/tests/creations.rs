use remuda_core::provider::{PodStatus, SshAddress};
use tokio::io::AsyncReadExt as _;
use tokio::net::TcpListener;

use super::super::NetworkVolume;
use super::*;

#[tokio::test]
async fn create_request_has_exactly_the_known_fields() {
    let answers = Answers::start([Answer::json(201, &ready()), Answer::json(201, &ready())]).await;
    let least = runpod(&answers);
    least.rent(order(TAG, "NVIDIA L4/COMMUNITY")).await.unwrap();
    let all = RunPodSettings {
        gpu_count: 2,
        disk_gb: 50,
        ports: vec!["22/tcp".to_owned()],
        environment: BTreeMap::from([
            ("MODELS".to_owned(), "/workspace".to_owned()),
            ("REMUDA_TOKEN".to_owned(), "not this one".to_owned()),
        ]),
        volume: Some(NetworkVolume { id: "abc123".to_owned(), path: "/workspace".to_owned() }),
        entrypoint: vec!["remuda".to_owned()],
        command: vec!["worker".to_owned()],
        registry: Some("reg1".to_owned()),
        cuda_min: Some("12.8".to_owned()),
        ..settings(&answers.url)
    };
    RunPodProvider::new(all, http()).unwrap().rent(order(TAG, "NVIDIA L4@EU-RO-1")).await.unwrap();

    let requests = answers.requests();
    let body = |at: usize| serde_json::from_slice::<Value>(&requests[at].body).unwrap();
    assert_eq!(
        body(0),
        json!({ "name": TAG, "image": "remuda/worker:1", "gpu": { "id": "NVIDIA L4", "count": 1 },
                "cloud": "COMMUNITY", "disk": 20, "env": { "REMUDA_TOKEN": TOKEN } })
    );
    assert_eq!(
        body(1),
        json!({ "name": TAG, "image": "remuda/worker:1", "cloud": "SECURE", "disk": 50, "ports": ["22/tcp"],
                "gpu": { "id": "NVIDIA L4", "count": 2, "minCudaVersion": "12.8" },
                "env": { "REMUDA_TOKEN": TOKEN, "MODELS": "/workspace" }, "dataCenterIds": ["EU-RO-1"],
                "mounts": { "network": [{ "volumeId": "abc123", "path": "/workspace" }] },
                "entrypoint": ["remuda"], "cmd": ["worker"], "registry": "reg1" })
    );
    assert_eq!((requests[0].method.as_str(), requests[0].path.as_str()), ("POST", "/v2/pods"));
    assert_eq!(requests[0].headers["authorization"], format!("Bearer {KEY}"));
    assert_eq!(requests[0].headers["content-type"], "application/json");
    assert!(requests[0].headers["user-agent"].to_str().unwrap().starts_with("remuda/"));
}

#[tokio::test]
async fn invalid_create_request_is_not_sent() {
    let answers = Answers::start([]).await;
    let many = (0..50).map(|n| (format!("V{n}"), String::new())).collect();
    let too_many = RunPodSettings { environment: many, ..settings(&answers.url) };
    let large = BTreeMap::from([("LARGE".to_owned(), "x".repeat(110_000))]);
    let too_large = RunPodSettings { environment: large, ..settings(&answers.url) };
    for (settings, offer, tag) in [
        (too_many, "NVIDIA L4", TAG),
        (too_large, "NVIDIA L4", TAG),
        (settings(&answers.url), "NVIDIA L4/ALL", TAG),
        (settings(&answers.url), "NVIDIA L4", ""),
    ] {
        let fault = RunPodProvider::new(settings, http()).unwrap().rent(order(tag, offer)).await.unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::Invalid, "{fault}");
    }
    assert_eq!(answers.requests().len(), 0);
}

#[tokio::test]
async fn pod_fields_are_read() {
    let direct = SshAddress { host: "203.0.113.7".to_owned(), port: 34446, user: "root".to_owned() };
    let gone = json!({ "direct": null, "proxy": { "host": "ssh.runpod.io", "port": 22, "username": "x" } });
    let cases = [
        (json!({}), PodStatus::Running, Some("0.69"), Some(&direct)),
        (json!({ "runtime": null, "ssh": gone }), PodStatus::Starting, Some("0.69"), None),
        (
            json!({ "status": "PROVISIONING", "runtime": {}, "startedAt": null }),
            PodStatus::Provisioning,
            Some("0.69"),
            None,
        ),
        (json!({ "status": "STARTING", "cost": 0.0 }), PodStatus::Starting, None, None),
        (json!({ "status": "EXITED", "cost": null }), PodStatus::Stopped, None, None),
        (json!({ "status": "ERROR", "cost": -1 }), PodStatus::Failed, None, None),
        (json!({ "status": "MIGRATING", "ssh": 7, "gpu": [] }), PodStatus::Starting, Some("0.69"), None),
        (json!({ "cost": 1e300, "ssh": { "direct": { "port": 99999 } } }), PodStatus::Running, None, None),
    ];
    for (changes, status, price, ssh) in cases {
        let answers = Answers::start([Answer::json(201, &with(ready(), &changes))]).await;
        let pod = runpod(&answers).rent(order(TAG, "NVIDIA GeForce RTX 4090")).await.unwrap();
        assert_eq!((pod.id.as_str(), pod.tag.as_str()), ("k3v9x2m7q1z8ab", TAG));
        assert_eq!(pod.status, status, "{changes}");
        assert_eq!(pod.price, price.map(|price| price.parse().unwrap()), "{changes}");
        assert_eq!(pod.ssh.as_ref(), ssh, "{changes}");
        assert_eq!(pod.place, "EU-RO-1");
        let kind = if changes.get("gpu").is_some() { "" } else { "NVIDIA GeForce RTX 4090" };
        assert_eq!(pod.kind, kind);
    }
}

/// Faults: P1.
#[tokio::test]
async fn creation_is_ambiguous_unless_answered_and_never_repeated() {
    let page = "<html><body>502 Bad Gateway</body></html>";
    for answer in [
        Answer::json(500, &json!({ "title": "Internal", "detail": "Something went wrong" })),
        Answer::text(502, page),
        Answer::text(201, page),
        Answer::text(201, ""),
        Answer::json(201, &json!({ "id": "..", "name": TAG, "status": "RUNNING" })),
        Answer::json(201, &with(ready(), &json!({ "name": "another" }))),
        Answer::json(201, &with(ready(), &json!({ "status": "TERMINATED" }))),
        Answer::never(),
    ] {
        let answers = Answers::start([answer.clone()]).await;
        let settings = RunPodSettings { create_max: Duration::from_millis(200), ..settings(&answers.url) };
        let fault =
            RunPodProvider::new(settings, http()).unwrap().rent(order(TAG, "NVIDIA L4")).await.unwrap_err();
        assert_eq!(fault.class, ProviderErrorClass::Ambiguous, "{answer:?}: {fault}");
        assert_eq!(answers.requests().len(), 1);
    }
}

/// Faults: P1.
#[tokio::test]
async fn broken_connection_is_ambiguous_only_if_it_existed() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v2", listener.local_addr().unwrap());
    let runpod = RunPodProvider::new(settings(&url), http()).unwrap();
    let hangs_up = async {
        let (mut socket, _) = listener.accept().await.unwrap();
        assert!(socket.read(&mut [0; 4096]).await.unwrap() > 0);
        drop(socket);
        listener
    };
    let (fault, listener) = tokio::join!(runpod.rent(order(TAG, "NVIDIA L4")), hangs_up);
    assert_eq!(fault.unwrap_err().class, ProviderErrorClass::Ambiguous);
    drop(listener);
    let fault = runpod.rent(order(TAG, "NVIDIA L4")).await.unwrap_err();
    assert_eq!(fault.class, ProviderErrorClass::Transient, "{fault}");
}
