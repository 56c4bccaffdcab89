//! Invalid input is refused in one format that says what is wrong, and leaves nothing behind.

use std::time::{Duration, Instant};

use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};

use crate::harness::{Plane, Raw, ScriptedWorker, answered, assert_contains_all};

/// Each body is refused with this status and these words, and stores nothing.
async fn check(cases: &[(&str, u16, &[&str])]) {
    let plane = Plane::start(&[]).await;
    for (body, status, words) in cases {
        check_one(&plane, body.as_bytes().to_vec(), *status, words).await;
    }
    works_and_has_no_jobs(&plane).await;
}

async fn check_one(plane: &Plane, body: Vec<u8>, status: u16, words: &[&str]) {
    let shown = String::from_utf8_lossy(&body[..body.len().min(200)]).into_owned();
    let (answer_status, answer) = answered(plane.request(Method::POST, "/remuda/v1/jobs").body(body)).await;
    assert_eq!(answer_status.as_u16(), status, "{shown}: {answer}");
    assert_contains_all(told(&answer), words);
}

/// The one form of every error.
fn told(answer: &Value) -> &str {
    let code = answer["error"]["code"].as_str();
    assert!(code.is_some_and(|code| !code.is_empty()), "an error has a code: {answer}");
    answer["error"]["message"].as_str().unwrap_or_else(|| panic!("an error has a message: {answer}"))
}

/// A refused request stores nothing, and the next request is served.
async fn works_and_has_no_jobs(plane: &Plane) {
    assert_eq!(plane.jobs().await, Vec::<Value>::new());
    assert_eq!(plane.get("/remuda/v1/status").await["open_jobs"], 0);
    let mut hand = ScriptedWorker::join(plane, "after-all", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    assert_eq!(hand.complete(&attempt, json!("done")).await, "recorded");
    assert_eq!(plane.ended(&job).await["result"], "done");
}

/// Faults: B1.
#[tokio::test]
async fn oversized_body_is_refused_unread() {
    let plane = Plane::start(&["limits.body_bytes_max=64KiB"]).await;
    let asked_at = Instant::now();
    // Not a byte of the body ever comes.
    let raw = Raw::submit(plane.address, "content-length: 1000000000000").await;
    let (status, error) = raw.refusal().await;
    assert_eq!((status, &error["code"]), (413, &json!("too_large")));
    assert_contains_all(error["message"].as_str().unwrap(), &["65536 bytes", "limits.body_bytes_max"]);
    assert!(asked_at.elapsed() < Duration::from_secs(5), "it waited for the body: {:?}", asked_at.elapsed());

    // A body that does not say how large it is, in pieces of 16 KiB.
    let mut raw = Raw::submit(plane.address, "transfer-encoding: chunked").await;
    for _ in 0..5 {
        raw.send(&format!("4000\r\n{}\r\n", "x".repeat(0x4000))).await;
    }
    assert_eq!(raw.refusal().await.0, 413);

    let just_too_large = format!("{{\"workflow\":{{\"n\":\"{}\"}}}}", "x".repeat(64 << 10));
    check_one(&plane, just_too_large.into_bytes(), 413, &["65536 bytes"]).await;
    let join = plane.request(Method::POST, "/remuda/v1/workers").body("x".repeat(65 << 10));
    assert_eq!(answered(join).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    works_and_has_no_jobs(&plane).await;
}

/// Faults: B1. What is held in memory for each open job is small, whatever it is.
#[tokio::test]
async fn submission_options_are_bounded() {
    let plane = Plane::start(&[]).await;
    let long = "x".repeat(17_000);
    for asked in [
        json!({ "labels": { "a": long } }),
        json!({ "needs": { "labels": { "a": long } } }),
        json!({ "needs": { "models": [long] } }),
        json!({ "needs": { "classes": [long] } }),
        json!({ "needs": { "excluded": (0..2000).map(|n| format!("worker-{n}")).collect::<Vec<_>>() } }),
        json!({ "preferred": (0..2000).map(|n| format!("worker-{n}")).collect::<Vec<_>>() }),
        json!({ "include_outputs": [long] }),
        json!({ "webhook": { "url": "http://127.0.0.1/", "secret": long } }),
    ] {
        let mut body = asked;
        body["workflow"] = json!({ "n": 1 });
        let words = ["beside the workflow", "limit is 16384"];
        check_one(&plane, body.to_string().into_bytes(), 422, &words).await;
    }
    works_and_has_no_jobs(&plane).await;
}

fn nested(depth: usize) -> String {
    format!("{{\"workflow\":{}1{}}}", "{\"a\":".repeat(depth), "}".repeat(depth))
}

/// Faults: B2.
#[tokio::test]
async fn deep_json_is_refused() {
    let too_deep: &[&str] = &["nested deeper than 64 levels"];
    let in_metadata = format!(
        "{{\"workflow\":{{\"n\":1}},\"metadata\":{{\"a\":{}{}}}}}",
        "[".repeat(9999),
        "]".repeat(9999)
    );
    check(&[
        (&nested(65), 422, too_deep),
        (&nested(127), 422, too_deep),
        (&nested(129), 422, too_deep),
        (&nested(1_000_000), 422, too_deep),
        (&in_metadata, 400, &["recursion limit"]),
    ])
    .await;
}

/// Faults: B3.
#[tokio::test]
async fn wide_json_is_refused() {
    let nodes: Vec<_> =
        (0..10_001).map(|n| format!("\"{n}\":{{\"class_type\":\"A\",\"inputs\":{{}}}}")).collect();
    let nodes = format!("{{\"workflow\":{{{}}}}}", nodes.join(","));
    let values = format!("{{\"workflow\":{{\"a\":[{}0]}}}}", "0,".repeat(1_000_000));
    check(&[(&nodes, 422, &["more than 10000 nodes"]), (&values, 422, &["more than 1000000 values"])]).await;
}

/// Faults: B4.
#[tokio::test]
async fn invalid_graph_is_refused_with_node_name() {
    check(&[
        (
            r#"{"workflow":{"7":{"class_type":"A","inputs":{"x":["8",0]}},"8":{"class_type":"B","inputs":{"y":["7",0]}}}}"#,
            422,
            &["\"7\"", "\"8\"", "loop"],
        ),
        (
            r#"{"workflow":{"7":{"class_type":"A","inputs":{"x":["99",0]}}}}"#,
            422,
            &["node \"7\", input \"x\"", "\"99\""],
        ),
        (r#"{"workflow":{"7":{"class_type":"A","inputs":[1]}}}"#, 422, &["node \"7\"", "inputs is not an object"]),
        (r#"{"workflow":{"7":{"class_type":"A","inputs":{}},"8":5}}"#, 422, &["node \"8\"", "class_type"]),
    ])
    .await;
}

/// Faults: B5.
#[tokio::test]
async fn ambiguous_json_is_refused() {
    check(&[
        (r#"{"workflow":{"n":NaN}}"#, 400, &["not JSON"]),
        (r#"{"workflow":{"n":-Infinity}}"#, 400, &["not JSON"]),
        (r#"{"workflow":{"n":1,"n":2}}"#, 422, &["\"n\" twice"]),
        (r#"{"workflow":{"n":1},"workflow":{"n":2}}"#, 422, &["duplicate field"]),
        (r#"{"workflow":{"n":"a\u0000b"}}"#, 422, &["NUL"]),
        (r#"{"workflow":{"n":"\ud800"}}"#, 400, &["not JSON"]),
        (r#"{"workflow":{"n":1}} {"workflow":{"n":2}}"#, 400, &["not JSON", "trailing"]),
        (r#"{"workflow":{"n":1"#, 400, &["not JSON"]),
        ("", 400, &["not JSON"]),
        ("\u{feff}{\"workflow\":{\"n\":1}}", 400, &["not JSON"]),
    ])
    .await;
    let plane = Plane::start(&[]).await;
    check_one(&plane, b"{\"workflow\":{\"n\":\"\xff\xfe\"}}".to_vec(), 400, &["not UTF-8"]).await;
    works_and_has_no_jobs(&plane).await;
}

/// Faults: B4, B5.
#[tokio::test]
async fn malformed_submission_explains_format() {
    let metadata = format!(r#"{{"workflow":{{"n":1}},"metadata":{{"a":"{}"}}}}"#, "x".repeat(5000));
    let key = format!(r#"{{"workflow":{{"n":1}},"idempotency_key":"{}"}}"#, "k".repeat(256));
    check(&[
        (r#"{"workflow":{"n":1},"prioritty":1}"#, 422, &["prioritty", "a submission is an object with"]),
        (r#"{"workflow":{"n":1},"priority":"high"}"#, 422, &["\"high\""]),
        (r#"{"workflow":{"n":1},"priority":1000}"#, 422, &["1000"]),
        (r#"{"workflow":{"n":1},"tenant":"a/b"}"#, 422, &[]),
        (r#"{"workflow":{"n":1},"deadline_seconds":-1}"#, 422, &["-1"]),
        (r#"{"workflow":{"n":1},"labels":[]}"#, 422, &[]),
        (r#"{"workflow":{"n":1},"idempotency_key":""}"#, 422, &["1 to 255 characters"]),
        (r#"{"priority":1}"#, 422, &["missing field `workflow`"]),
        (r#"{"workflow":[]}"#, 422, &["a workflow is a JSON object"]),
        (r#"{"workflow":{}}"#, 422, &["empty"]),
        (r#""hello""#, 422, &["a submission is an object with"]),
        (&metadata, 422, &["metadata", "4096"]),
        (&key, 422, &["1 to 255 characters"]),
    ])
    .await;
}

/// Each request is refused with this status, in the one form.
async fn check_requests(plane: &Plane, cases: &[(Method, &str, u16)]) {
    for (method, path, status) in cases {
        let (answer_status, answer) = answered(plane.request(method.clone(), path)).await;
        assert_eq!(answer_status.as_u16(), *status, "{method} {path}: {answer}");
        told(&answer);
    }
}

#[tokio::test]
async fn every_error_has_the_same_format() {
    let plane = Plane::start(&[]).await;
    let unknown = "/remuda/v1/jobs/0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11";
    let shape = "ab".repeat(32);
    check_requests(
        &plane,
        &[
            (Method::GET, "/nothing", 404),
            (Method::GET, "/remuda/v1/nothing", 404),
            (Method::PUT, "/remuda/v1/jobs", 405),
            (Method::DELETE, "/remuda/v1/events", 405),
            (Method::GET, "/remuda/v1/jobs/17", 400),
            (Method::GET, "/remuda/v1/jobs/%ff", 400),
            (Method::GET, "/remuda/v1/jobs/..%2f..%2fetc%2fpasswd", 400),
            (Method::GET, unknown, 404),
            (Method::GET, &format!("{unknown}/why"), 404),
            (Method::GET, &format!("{unknown}/workflow"), 404),
            (Method::GET, &format!("{unknown}/result"), 404),
            (Method::POST, &format!("{unknown}/cancel"), 404),
            (Method::POST, "/remuda/v1/jobs/17/cancel", 400),
            (Method::GET, "/remuda/v1/jobs?limit=many", 400),
            (Method::GET, "/remuda/v1/jobs?state=lost", 400),
            (Method::GET, "/remuda/v1/jobs?color=red", 400),
            (Method::GET, "/remuda/v1/jobs?before=yesterday", 400),
            (Method::GET, "/remuda/v1/events?after=-1", 400),
            (Method::GET, "/remuda/v1/workers/no-such-worker", 404),
            (Method::GET, "/remuda/v1/workers/no%20body", 400),
            (Method::DELETE, "/remuda/v1/workers/no-such-worker", 404),
            (Method::DELETE, "/remuda/v1/workers/no-such-worker?reason=a&reason=b", 400),
            (Method::POST, "/remuda/v1/workers/no-such-worker/drain", 404),
            (Method::DELETE, "/remuda/v1/blocks/no-such-worker/17", 400),
            (Method::DELETE, &format!("/remuda/v1/blocks/no-such-worker/{shape}"), 404),
            (Method::DELETE, &format!("/remuda/v1/quarantine/{shape}"), 404),
            (Method::GET, "/remuda/v1/views/sunset", 404),
        ],
    )
    .await;
    let events = plane.request(Method::GET, "/remuda/v1/events").header("last-event-id", "soon");
    let (status, answer) = answered(events).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_contains_all(told(&answer), &["Last-Event-ID"]);
    works_and_has_no_jobs(&plane).await;
}

/// Faults: X4, X14.
#[tokio::test]
async fn malformed_worker_messages_change_nothing() {
    let plane = Plane::start(&[]).await;
    let joins = [
        (json!({ "worker": "w", "services": ["exec"], "slots": 5000 }), 422, "slots"),
        (json!({ "worker": "w", "services": [] }), 422, "service"),
        (json!({ "worker": "w w", "services": ["exec"] }), 422, ""),
    ];
    for (join, expected, word) in joins {
        let (status, answer) = plane.post("/remuda/v1/workers", &join).await;
        assert_eq!(status.as_u16(), expected, "{join}: {answer}");
        assert_contains_all(told(&answer), &[word]);
    }
    let text = plane.request(Method::POST, "/remuda/v1/workers").body("worker=w");
    assert_eq!(answered(text).await.0, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let mut forged = attempt.clone();
    (forged["outcome"], forged["result"]) = (json!("completed"), json!("forged"));
    let honest = hand.clone();

    let mut thief = ScriptedWorker { token: "guessed".to_owned(), ..honest.clone() };
    let (status, answer) = answered(thief.beat(&json!([]), &json!([forged]), 0.0)).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::FORBIDDEN, &json!("wrong_token")));
    let mut other = ScriptedWorker::join(&plane, "other", 1).await;
    let reply = other.say(&json!([]), &json!([forged])).await;
    assert_eq!(reply["settled"][0]["refused"], "this attempt is no longer the job's current one");
    let (status, answer) =
        answered(ScriptedWorker { seq: 0, ..honest.clone() }.beat(&json!([]), &json!([forged]), 0.0)).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::CONFLICT, &json!("stale_beat")));
    let bare = plane.request(Method::POST, "/remuda/v1/workers/w/beat");
    let (status, answer) =
        answered(bare.json(&json!({ "incarnation": 1, "seq": 99, "term": hand.term }))).await;
    assert_eq!((status, &answer["error"]["code"]), (StatusCode::UNAUTHORIZED, &json!("no_token")));
    assert_eq!(plane.job(&job).await["state"], "running");
    assert_eq!(plane.get("/remuda/v1/status").await["refused"]["stale_attempts"], 1);

    assert_eq!(hand.complete(&attempt, json!("genuine")).await, "recorded");
    assert_eq!(plane.ended(&job).await["result"], "genuine");
}

#[tokio::test]
async fn extreme_numbers_do_no_harm() {
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    for wait in [-1.0, 1e-12, 1e-300] {
        let (status, reply) = answered(hand.beat(&json!([]), &json!([]), wait)).await;
        assert_eq!(status, StatusCode::OK, "wait={wait}: {reply}");
    }
    // Longer than any allowed wait: cut to the maximum, and answered when there is work.
    let line = tokio::spawn(answered(hand.beat(&json!([]), &json!([]), 1e300)));
    let last = u64::MAX;
    let submission =
        |seconds: u64| json!({ "workflow": { "n": 1 }, "deadline_seconds": seconds, "attempts_max": 0 });
    let (status, refused) = plane.post("/remuda/v1/jobs", &submission(last)).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{refused}");
    let job = plane.submit_as(submission(315_360_000)).await;
    let (status, reply) = line.await.unwrap();
    assert_eq!((status, &reply["start"][0]["job"]), (StatusCode::OK, &json!(job)));
    let held = json!([{ "job": job, "attempt": 1, "progress": 1e30, "step": last }]);
    hand.say(&held, &json!([])).await;
    assert_eq!(plane.worker("w").await["holds"][0]["progress"], 1.0);
    let page = plane.get(&format!("/remuda/v1/jobs?limit={last}")).await;
    assert_eq!(page["jobs"][0]["id"], job);
    let attempt = json!({ "job": job, "attempt": 1 });
    assert_eq!(hand.complete(&attempt, json!(null)).await, "recorded");
}

/// Faults: B6.
#[tokio::test]
async fn abandoned_uploads_leave_nothing() {
    let plane = Plane::start(&["limits.connections_max=8", "limits.streams_max=4"]).await;
    let files = || std::fs::read_dir(format!("/proc/{}/fd", plane.process.id())).unwrap().count();
    plane.get("/health/live").await;
    let before = files();
    for n in 0..40 {
        let mut raw = Raw::submit(plane.address, "content-length: 1000").await;
        raw.send(&"{\"workflow\":{\"n\":"[..n % 16]).await;
    }
    works_and_has_no_jobs(&plane).await;
    crate::harness::wait_until("every connection is closed", async || (files() <= before + 2).then_some(()))
        .await;
}

/// Faults: B6, N10.
#[tokio::test]
async fn idle_connections_are_closed() {
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let begun_at = Instant::now();
    let mut silent = Raw::open(plane.address).await;
    let mut slow_head = Raw::open(plane.address).await;
    slow_head.send("POST /remuda/v1/jobs HTTP/1.1\r\nhost: pl").await;
    let mut slow_body = Raw::submit(plane.address, "content-length: 100").await;
    slow_body.send("{\"workflow\"").await;
    let line = answered(hand.beat(&json!([]), &json!([]), 3600.0));
    let (_, _, body, (status, _)) = tokio::join!(silent.rest(), slow_head.rest(), slow_body.refusal(), line);
    assert_eq!((body.0, &body.1["code"]), (408, &json!("too_slow")));
    assert_eq!(status, StatusCode::OK);
    // Below the 30 s after which the first boxes between here and there forget a connection.
    assert!(begun_at.elapsed() < Duration::from_secs(29), "it took {:?}", begun_at.elapsed());
    assert_eq!(answered(plane.request(Method::DELETE, "/remuda/v1/workers/w")).await.0, StatusCode::OK);
    works_and_has_no_jobs(&plane).await;
}

/// Faults: C17.
#[tokio::test]
async fn non_text_idempotency_key_is_refused() {
    let plane = Plane::start(&[]).await;
    let key = header::HeaderValue::from_bytes(b"\xff\xfe").unwrap();
    let request = plane.request(Method::POST, "/remuda/v1/jobs").header("idempotency-key", key);
    let (status, answer) = answered(request.json(&json!({ "workflow": { "n": 1 } }))).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_contains_all(told(&answer), &["Idempotency-Key"]);
    works_and_has_no_jobs(&plane).await;
}
