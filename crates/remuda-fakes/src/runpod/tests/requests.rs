//! Access checks and early refusals.

use reqwest::Method;
use serde_json::{Value, json};

use super::harness::{begin, order, plain, seen};
use crate::runpod::{FakeRunpodOptions, RunpodFault, RunpodFaults};

#[tokio::test]
async fn without_a_name_of_its_own_a_program_is_kept_out_in_html() {
    let client = plain().await;
    for agent in ["", "python-requests/2.31"] {
        let request = client.request(Method::GET, "/pods").header("user-agent", agent);
        let seen = seen(request).await.unwrap();
        assert_eq!((seen.status, seen.kind.as_str()), (403, "text/html; charset=UTF-8"));
        assert!(seen.text.contains("1010"));
    }
    assert!(client.fake.requests().is_empty());
}

#[tokio::test]
async fn a_key_is_demanded_and_looked_at_after_the_size() {
    let client =
        begin(FakeRunpodOptions { token: Some("rpa_right".into()), ..FakeRunpodOptions::default() }).await;
    let url = format!("{}/pods", client.fake.url());
    let without = seen(client.http.get(&url)).await.unwrap();
    assert_eq!((without.status, &without.body["detail"]), (401, &json!("missing bearer token")));
    assert_eq!(without.kind, "application/problem+json");
    assert_eq!(client.get("/pods").await.status, 401);
    let large = seen(client.http.post(&url).body(vec![b' '; 102_401])).await.unwrap();
    assert_eq!(large.status, 413, "before the key");
    let right = seen(client.http.get(&url).bearer_auth("rpa_right")).await.unwrap();
    assert_eq!(right.status, 200);
}

#[tokio::test]
async fn the_key_in_a_pod_opens_that_pod_and_nothing_else() {
    let client = plain().await;
    let (id, other) = (client.made("p").await, client.made("q").await);
    let ask = async |method: Method, path: String| {
        let request = client.http.request(method, format!("{}{path}", client.fake.url()));
        seen(request.bearer_auth(format!("rpa_of_{id}"))).await.unwrap().status
    };
    assert_eq!(ask(Method::GET, format!("/pods/{id}")).await, 200);
    assert_eq!(ask(Method::GET, "/pods".to_owned()).await, 403);
    assert_eq!(ask(Method::DELETE, format!("/pods/{other}")).await, 403);
    assert_eq!(ask(Method::DELETE, format!("/pods/{id}")).await, 204);
}

#[tokio::test]
async fn everything_that_is_wrong_with_an_order_is_named() {
    let client = plain().await;
    let mut wrong = order("p");
    wrong["gpuTypeIds"] = json!(["NVIDIA L4"]);
    wrong["gpu"]["kind"] = json!("L4");
    wrong["cloud"] = json!("ALL");
    let refused = client.post("/pods", &wrong).await;
    assert_eq!((refused.status, &refused.body["detail"]), (422, &json!("Request validation failed.")));
    let errors: Vec<&str> =
        refused.body["errors"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        errors,
        [
            "$: additional properties 'gpuTypeIds' not allowed",
            "$.cloud: value must be one of 'SECURE', 'COMMUNITY'",
            "$.gpu: additional properties 'kind' not allowed",
        ]
    );
    for (key, value) in [
        ("name", json!("")),
        ("image", Value::Null),
        ("gpu", json!({"id": "RTX 4090", "count": 1})),
        ("gpu", json!({"id": "NVIDIA L4", "count": 0})),
        ("disk", json!(0)),
        ("ports", json!(["22/udp"])),
        ("env", json!({"A": 1})),
        ("dataCenterIds", json!(["MOON-1"])),
    ] {
        let mut wrong = order("p");
        wrong[key] = value;
        assert_eq!(client.post("/pods", &wrong).await.status, 422, "{key}");
    }
    let mut both = order("p");
    both["gpu"]["minCudaVersion"] = json!("12.8");
    both["gpu"]["allowedCudaVersions"] = json!(["12.8"]);
    assert_eq!(client.post("/pods", &both).await.status, 400);
    assert_eq!(client.get("/pods?frobnicate=1").await.status, 200, "a query may say anything");
    assert!(client.fake.ledger().pods.is_empty());
}

#[tokio::test]
async fn who_asks_too_often_is_told_how_long_to_wait() {
    let client =
        begin(FakeRunpodOptions { requests_per_minute: Some(3), ..FakeRunpodOptions::default() }).await;
    let first = client.get("/pods").await;
    let limit = first.rate_limit.unwrap();
    assert!(limit.starts_with("\"minute\";r=2;t=60, \"hour\";r=119;t=3600, \"day\";r=49999;"), "{limit}");
    client.get("/pods").await;
    client.get("/pods").await;
    client.pass(13);
    let refused = client.get("/pods").await;
    assert_eq!((refused.status, refused.retry_after.as_deref()), (429, Some("47")));
    assert_eq!(refused.body["detail"], "rate limit exceeded for the minute window");
    client.pass(47);
    assert_eq!(client.get("/pods").await.status, 200);
    let exempt = begin(FakeRunpodOptions { requests_per_minute: None, ..FakeRunpodOptions::default() }).await;
    assert_eq!(exempt.get("/pods").await.rate_limit, None);
}

#[tokio::test]
async fn any_request_may_meet_a_proxy_a_bad_key_or_a_limit() {
    let client = plain().await;
    for (fault, status, kind) in [
        (RunpodFault::Html502, 502, "text/html; charset=UTF-8"),
        (RunpodFault::Html403, 403, "text/html; charset=UTF-8"),
        (RunpodFault::Unauthorized, 401, "application/problem+json"),
        (RunpodFault::RateLimited, 429, "application/problem+json"),
    ] {
        client.fake.control().strike_next(fault);
        let seen = client.get("/pods").await;
        assert_eq!((seen.status, seen.kind.as_str()), (status, kind), "{fault}");
        assert_eq!(seen.retry_after.is_some(), fault == RunpodFault::RateLimited);
        assert_eq!(client.get("/pods").await.status, 200, "only once: {fault}");
    }
    client.fake.control().set_faults(RunpodFaults::none().with(RunpodFault::Unauthorized, 1.0));
    assert_eq!(client.create("p").await.status, 401);
    assert_eq!(client.get("/catalog/gpus").await.status, 401);
    assert!(client.fake.ledger().pods.is_empty());
}

#[tokio::test]
async fn the_catalog_is_read_by_ids_with_spaces_and_says_high_whatever_happens() {
    let client = plain().await;
    assert_eq!(client.get("/catalog/gpus?include=AVAILABILITY").await.status, 400);
    client.fake.control().set_faults(RunpodFaults::none().with(RunpodFault::NoCapacity, 1.0));
    assert_eq!(client.create("p").await.status, 400);
    let path = "/catalog/gpus/NVIDIA%20GeForce%20RTX%204090?include=AVAILABILITY&product=POD&count=1";
    let gpu = client.get(path).await;
    assert_eq!((gpu.status, &gpu.body["availability"]), (200, &json!("HIGH")));
    assert_eq!(gpu.body["price"], json!({"secure": 0.69, "community": 0.34}));
    assert_eq!(client.get("/catalog/gpus/RTX%204090").await.status, 404);
    let secure = client.get("/catalog/gpus?cloud=COMMUNITY").await;
    let gpus = secure.body["gpus"].as_array().unwrap();
    assert!(!gpus.is_empty() && gpus.iter().all(|gpu| gpu["community"] == true));
    let places = client.get("/catalog/datacenters?regions=EUROPE&include=GPU_AVAILABILITY").await;
    let places = places.body["dataCenters"].as_array().unwrap().clone();
    assert!(places.iter().all(|place| place["region"] == "EUROPE"));
    assert_eq!(places[0]["gpuAvailability"][0]["availability"], "HIGH");
    assert_eq!(client.get("/catalog/datacenters/EU-RO-1").await.status, 200);
    assert_eq!(client.get("/endpoints").await.status, 404);
}

#[tokio::test]
async fn faults_are_read_and_changed_while_it_runs() {
    let client = plain().await;
    let at = |path: &str| format!("http://{}/_remuda/{path}", client.fake.address());
    let put = seen(client.http.put(at("faults")).json(&json!({"omit": 0.5, "flicker": 1}))).await.unwrap();
    assert_eq!(put.body["faults"], json!({"omit": 0.5, "flicker": 1.0}));
    let cleared = seen(client.http.put(at("faults")).json(&json!({}))).await.unwrap();
    assert_eq!(cleared.body["faults"], json!({}));
    let unknown = seen(client.http.put(at("faults")).json(&json!({"melt": 1}))).await.unwrap();
    assert!(unknown.status == 400 && unknown.text.contains("late-list"));
    let strike = seen(client.http.post(at("strike")).json(&json!({"fault": "html-502"}))).await.unwrap();
    assert_eq!(strike.status, 200);
    assert_eq!(client.get("/pods").await.status, 502);
    let state = seen(client.http.get(at("faults"))).await.unwrap();
    assert_eq!(state.body["struck"], json!({"html-502": 1}));
    assert_eq!(state.body["requests"]["GET /v2/pods"], 1);
}
