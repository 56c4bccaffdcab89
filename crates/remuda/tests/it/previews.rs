//! Previews: who may send and see them, and that nothing is kept.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{
    Plane, Process, QUICK, ScriptedWorker, Stream, answered, assert_contains_all, remuda, wait_until,
};

const JPEG: &[u8] = b"\xff\xd8\xff\xe0 a picture, as far as anyone can tell";

/// What a worker shows, and what it is told.
async fn show(hand: &ScriptedWorker, attempt: &Value, bytes: &[u8]) -> (StatusCode, Value) {
    let (job, number) = (attempt["job"].as_str().unwrap(), &attempt["attempt"]);
    let path = format!("/remuda/v1/workers/{}/preview?job={job}&attempt={number}", hand.name);
    let request = hand.client.request(Method::PUT, &path).bearer_auth(&hand.token).body(bytes.to_vec());
    answered(request).await
}

#[tokio::test]
async fn preview_exists_only_while_job_runs() {
    let plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let mut stream = Stream::open(&plane, "?name=job:preview", None).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let path = format!("/remuda/v1/jobs/{job}/preview");
    assert_eq!(answered(plane.request(Method::GET, &path)).await.0, StatusCode::NOT_FOUND);
    let (status, answer) = show(&hand, &attempt, JPEG).await;
    assert_eq!(status, StatusCode::OK, "{answer}");

    let event = stream.next().await;
    assert_eq!((event.seq, event.name.as_str()), (None, "job:preview"));
    let told = json!({ "name": "job:preview", "job": job, "worker": "w", "tenant": "default", "attempt": 1, "media": "image/jpeg",
                       "url": path, "size_bytes": JPEG.len() });
    assert_eq!(event.data, told);

    let seen = plane.request(Method::GET, &path).send().await.unwrap();
    let header = |name: &str| seen.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("content-type"), "image/jpeg");
    assert_eq!(header("content-disposition"), "attachment; filename=\"preview.jpg\"");
    assert_eq!(header("x-content-type-options"), "nosniff");
    assert_eq!(header("cache-control"), "no-store");
    assert_eq!(seen.bytes().await.unwrap(), JPEG);

    assert_eq!(hand.complete(&attempt, json!(1)).await, "recorded");
    plane.ended(&job).await;
    assert_eq!(answered(plane.request(Method::GET, &path)).await.0, StatusCode::NOT_FOUND);
    assert_eq!(show(&hand, &attempt, JPEG).await.0, StatusCode::CONFLICT);
    let stored = plane.history().await;
    assert!(stored.iter().all(|event| event.name != "job:preview"), "it is live only");
}

/// Faults: X4.
#[tokio::test]
async fn only_current_worker_may_send_image_previews() {
    let plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    let attempt = hand.take().await;
    let thief = ScriptedWorker::join(&plane, "thief", 1).await;
    let next = json!({ "job": job, "attempt": 2 });
    let guessing = ScriptedWorker { token: "guessed".to_owned(), ..hand.clone() };
    let large = [JPEG, &vec![0; 1 << 20]].concat();
    for (who, attempt, bytes, status, code) in [
        (&thief, &attempt, JPEG, 409, "refused"),
        (&guessing, &attempt, JPEG, 403, "wrong_token"),
        (&hand, &next, JPEG, 409, "refused"),
        (&hand, &attempt, b"<svg onload=alert(1)>".as_slice(), 422, "invalid"),
        (&hand, &attempt, b"", 422, "invalid"),
        (&hand, &attempt, large.as_slice(), 413, "too_large"),
    ] {
        let (given, answer) = show(who, attempt, bytes).await;
        assert_eq!((given.as_u16(), &answer["error"]["code"]), (status, &json!(code)), "{answer}");
    }
    let unnamed =
        plane.request(Method::PUT, "/remuda/v1/workers/w/preview").bearer_auth(&hand.token).body(JPEG);
    assert_eq!(answered(unnamed).await.0, StatusCode::BAD_REQUEST);
    let path = format!("/remuda/v1/jobs/{job}/preview");
    assert_eq!(answered(plane.request(Method::GET, &path)).await.0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn newest_preview_is_written_to_file() {
    let plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    std::fs::write(plane.folder().join("job.json"), r#"{"n": 1}"#).unwrap();
    let mut command = remuda(plane.folder());
    command.args(["run", "job.json", "--preview", "now.jpg", "--url", &plane.url]);
    let mut run = Process::start("run", &mut command);
    let attempt = hand.take().await;
    assert!(run.line("running on w").await.is_some(), "{}", run.said());
    for last in 1..=3_u8 {
        let picture = [JPEG, &[last]].concat();
        assert_eq!(show(&hand, &attempt, &picture).await.0, StatusCode::OK);
        wait_until("it is in the file", async || {
            let kept = std::fs::read(plane.folder().join("now.jpg")).unwrap_or_default();
            (kept == picture).then_some(())
        })
        .await;
        hand.say(&json!([attempt]), &json!([])).await;
    }
    hand.complete(&attempt, json!(1)).await;
    assert_eq!(run.ended().await.code(), Some(0), "{}", run.said());
    assert!(!plane.folder().join("now.jpg.part").exists());
}

/// A stand-in for ComfyUI, and a worker that works with it.
async fn comfyui(plane: &Plane) -> (Process, Process) {
    let mut command = remuda(plane.folder());
    let mut fake =
        Process::start("fake", command.args(["fake", "comfyui", "--listen", "127.0.0.1:0", "--json"]));
    let line = fake.line("urls").await.unwrap_or_else(|| panic!("it should be ready: {}", fake.said()));
    let told: Value = serde_json::from_str(&line).unwrap();
    let mut command = remuda(plane.folder());
    command.args([
        "worker",
        "--url",
        &plane.url,
        "--name",
        "c",
        "--comfyui",
        told["urls"][0].as_str().unwrap(),
    ]);
    let worker = Process::start("worker", &mut command);
    wait_until("the worker is online", async || {
        let (_, worker) = answered(plane.request(Method::GET, "/remuda/v1/workers/c")).await;
        (worker["presence"] == "online").then_some(())
    })
    .await;
    (fake, worker)
}

#[tokio::test]
async fn image_to_image_with_previews() {
    let plane = Plane::start(QUICK).await;
    let (_fake, _worker) = comfyui(&plane).await;
    let graph = json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": "x.png" } },
        "2": { "class_type": "RemudaSleep", "inputs": { "image": ["1", 0], "seconds": 9, "steps": 9, "preview": false } },
        "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": "hello" } },
    });
    std::fs::write(plane.folder().join("graph.json"), graph.to_string()).unwrap();
    std::fs::write(plane.folder().join("photo.png"), png()).unwrap();
    let mut command = remuda(plane.folder());
    command.args([
        "run",
        "graph.json",
        "--input",
        "LoadImage.image=photo.png",
        "--set",
        "RemudaSleep.preview=true",
    ]);
    command.args(["--set", "2.seconds=1.5", "-o", "out", "--preview", "now.jpg", "--url", &plane.url]);
    let mut run = Process::start("run", &mut command);
    assert_eq!(run.ended().await.code(), Some(0), "{}", run.said());
    assert_contains_all(&run.said(), &["RemudaSleep", "out/hello_00001_.png"]);
    let kept = std::fs::read(plane.folder().join("now.jpg")).unwrap();
    assert!(kept.starts_with(b"\xff\xd8\xff"), "a JPEG as the server sent it");
    assert!(std::fs::read(plane.folder().join("out/hello_00001_.png")).unwrap().starts_with(b"\x89PNG"));
    let job = plane.jobs().await[0]["id"].as_str().unwrap().to_owned();
    let why = plane.why(&job).await;
    assert!(why["attempts"][0]["service"]["service_job_id"].is_string(), "{why}");
}

/// A picture of one pixel.
fn png() -> Vec<u8> {
    const PNG: &str = "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d4944415478da63fcff\
                       9fa11e00078203023c7dd4ef0000000049454e44ae426082";
    (0..PNG.len()).step_by(2).map(|at| u8::from_str_radix(&PNG[at..at + 2], 16).unwrap()).collect()
}

/// Faults: J18. What a worker may not send is dropped before it is read, counted, and costs another worker nothing.
#[tokio::test]
async fn flood_of_live_reports_is_dropped_and_others_still_report() {
    let plane = Plane::start(QUICK).await;
    let mut flooding = ScriptedWorker::join(&plane, "flooding", 1).await;
    plane.submit(json!({ "n": 1 })).await;
    let attempt = flooding.take().await;
    let mut quiet = ScriptedWorker::join(&plane, "quiet", 1).await;
    plane.submit(json!({ "n": 2 })).await;
    let other = quiet.take().await;
    let mut answers = std::collections::BTreeMap::<u16, u32>::new();
    let mut refused = Value::Null;
    for n in 0..200 {
        let (status, answer) =
            report(&flooding, &attempt, &json!({ "messages": [{ "type": "x", "data": n }] })).await;
        *answers.entry(status.as_u16()).or_default() += 1;
        if status == StatusCode::TOO_MANY_REQUESTS {
            refused = answer;
        }
    }
    // 120 at once, and 40 a second while the test sends them.
    assert!(answers.get(&200).is_some_and(|taken| *taken >= 120), "{answers:?}");
    assert!(answers.get(&429).is_some_and(|dropped| *dropped > 0), "{answers:?}");
    assert_eq!(refused["error"]["code"], "too_many_reports");
    assert_contains_all(refused["error"]["message"].as_str().unwrap(), &["flooding", "40 reports a second"]);
    let (status, _) = show(&flooding, &attempt, JPEG).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS, "previews count as well");
    let (status, answer) = report(&quiet, &other, &json!({ "messages": [] })).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    // Another worker cannot use up the budget of the one that it names.
    let thief = ScriptedWorker { name: "quiet".to_owned(), ..flooding.clone() };
    assert_eq!(report(&thief, &other, &json!({})).await.0, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(report(&quiet, &other, &json!({})).await.0, StatusCode::OK);
    assert!(plane.get("/remuda/v1/status").await["live_reports_dropped"].as_u64().unwrap() > 0);
    assert_eq!(flooding.complete(&attempt, json!(1)).await, "recorded", "its results are no reports");
}

async fn report(hand: &ScriptedWorker, attempt: &Value, body: &Value) -> (StatusCode, Value) {
    let (job, number) = (attempt["job"].as_str().unwrap(), &attempt["attempt"]);
    let path = format!("/remuda/v1/workers/{}/live?job={job}&attempt={number}", hand.name);
    answered(hand.client.request(Method::PUT, &path).bearer_auth(&hand.token).json(body)).await
}
