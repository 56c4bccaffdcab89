//! Webhooks report how a job ended, whatever dies in between.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::response::IntoResponse;
use remuda_core::options::WebhookSecret;
use remuda_core::time::Timestamp;
use remuda_core::webhook::WebhookDelivery;
use serde_json::{Value, json};

use crate::harness::{Plane, QUICK, Stream, Worker, wait_until};

/// Where the receivers of these tests listen.
pub(crate) const HERE: &str = "webhooks.private_targets=127.0.0.1";

/// A webhook target that sometimes refuses.
#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    address: SocketAddr,
    told: Arc<Mutex<Vec<(HeaderMap, String)>>>,
    answers: Arc<Mutex<VecDeque<StatusCode>>>,
}

impl Receiver {
    /// Answers like this first, and with 204 from then on.
    pub(crate) async fn start(answers: &[StatusCode]) -> Receiver {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let receiver = Receiver {
            address: listener.local_addr().unwrap(),
            told: Arc::default(),
            answers: Arc::new(Mutex::new(answers.iter().copied().collect())),
        };
        let router = Router::new().fallback(hear).with_state(receiver.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        receiver
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/hook?who=anna", self.address)
    }

    fn told(&self) -> Vec<(HeaderMap, Value)> {
        let told = self.told.lock().unwrap();
        told.iter().map(|(headers, body)| (headers.clone(), serde_json::from_str(body).unwrap())).collect()
    }

    /// Waits until so much was said.
    pub(crate) async fn until(&self, count: usize) -> Vec<(HeaderMap, Value)> {
        wait_until(&format!("{count} webhooks came"), async || {
            Some(self.told()).filter(|told| told.len() >= count)
        })
        .await
    }
}

async fn hear(State(receiver): State<Receiver>, headers: HeaderMap, body: Bytes) -> impl IntoResponse {
    receiver.told.lock().unwrap().push((headers, String::from_utf8(body.to_vec()).unwrap()));
    let answer = receiver.answers.lock().unwrap().pop_front();
    let answer = answer.unwrap_or(StatusCode::NO_CONTENT);
    // Where a redirect would lead.
    (answer, [("location", "http://127.0.0.1:9/elsewhere")])
}

fn id(headers: &HeaderMap) -> &str {
    headers["remuda-webhook-id"].to_str().unwrap()
}

/// Faults: X10.
#[tokio::test]
async fn webhook_is_sent_once_and_signed() {
    let plane = Plane::start(&[QUICK, &["attempts_max=1", HERE]].concat()).await;
    let receiver = Receiver::start(&[]).await;
    let hook = json!({ "url": receiver.url(), "secret": "hush" });
    let submit = async |workflow: Value| {
        plane
            .submit_as(json!({ "workflow": workflow, "webhook": hook, "tenant": "t", "metadata": { "user": "anna" } }))
            .await
    };
    let cancelled = submit(json!({ "ends": "cancelled" })).await;
    plane.cancel(&cancelled).await;
    let _worker = Worker::start(&plane, "w", r#"grep -q '"completed"' && echo 1"#).await;
    let completed = submit(json!({ "ends": "completed" })).await;
    let failed = submit(json!({ "ends": "failed" })).await;
    for job in [&completed, &failed] {
        plane.ended(job).await;
    }
    let told = receiver.until(3).await;
    let mut told_of: Vec<_> =
        told.iter().map(|(_, body)| (body["job"].clone(), body["event"].clone())).collect();
    told_of.sort_by_key(|(_, event)| event.to_string());
    let expected = [(&cancelled, "cancelled"), (&completed, "completed"), (&failed, "failed")];
    assert_eq!(told_of, expected.map(|(job, how)| (json!(job), json!(format!("job:{how}")))));
    for (headers, body) in &told {
        assert_eq!((&body["metadata"]["user"], &body["tenant"]), (&json!("anna"), &json!("t")), "{body}");
        assert_eq!((id(headers), &body["id"]), (body["job"].as_str().unwrap(), &body["job"]));
    }
    // As anyone who has the secret checks it: HMAC-SHA256 of the time and the body, as they came.
    for (headers, body) in receiver.told.lock().unwrap().iter() {
        let signature = headers["remuda-signature"].to_str().unwrap();
        let unix: u64 = signature.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
        assert!(now.abs_diff(unix) < 120, "{signature} at {now}");
        let mut news: WebhookDelivery = serde_json::from_value(json!({
            "job": id(headers), "tenant": "t", "ended_at": 0, "url": "", "body": null,
        }))
        .unwrap();
        news.secret = Some(WebhookSecret::new("hush".to_owned()));
        news.body = Arc::from(serde_json::value::RawValue::from_string(body.clone()).unwrap());
        assert_eq!(news.signature(Timestamp::from_millis(unix * 1000)).unwrap(), signature);
    }
    let shown = plane.job(&completed).await;
    assert_eq!(shown["options"]["webhook"], json!({ "url": receiver.url(), "secret": "***" }));
    let mut events = Stream::open(&plane, "?after=0&name=webhook", None).await;
    for _ in 0..3 {
        let event = events.until("webhook:delivered").await;
        assert_eq!((&event.data["tenant"], &event.data["metadata"]["user"]), (&json!("t"), &json!("anna")));
    }
    assert_eq!(receiver.told().len(), 3, "and nothing was told twice");
}

/// Faults: C11.
#[tokio::test]
async fn webhook_id_survives_killed_plane() {
    let mut plane = Plane::start(&[QUICK, &[HERE]].concat()).await;
    let receiver = Receiver::start(&[StatusCode::INTERNAL_SERVER_ERROR, StatusCode::FOUND]).await;
    let job = plane.submit_as(json!({ "workflow": { "a": 1 }, "webhook": { "url": receiver.url() } })).await;
    plane.cancel(&job).await;
    receiver.until(1).await;
    plane.kill();
    plane.start_again().await;
    // Told again at once; the redirect is not followed, and is no yes.
    receiver.until(2).await;
    let told = receiver.until(3).await;
    let bodies: Vec<_> =
        told.iter().map(|(headers, body)| (id(headers).to_owned(), body.to_string())).collect();
    assert!(bodies.iter().all(|it| *it == bodies[0] && it.0 == job), "{bodies:?}");
    assert!(told.iter().all(|(headers, _)| !headers.contains_key("remuda-signature")), "there is no secret");
    let mut events = Stream::open(&plane, "?after=0", None).await;
    let event = events.until("webhook:delivered").await;
    assert_eq!(event.data["job"], job);
    plane.kill();
    plane.start_again().await;
    let next = plane.submit_as(json!({ "workflow": { "a": 2 }, "webhook": { "url": receiver.url() } })).await;
    plane.cancel(&next).await;
    let told = receiver.until(4).await;
    assert_eq!(id(&told[3].0), next, "what was taken is not told again");
}

/// More than is held for one receiver lies on the shelf: the others are told meanwhile, and in the end it is told everything.
///
/// Faults: C11.
#[tokio::test]
async fn dead_target_delays_no_other_and_gets_everything() {
    const MANY: usize = 230;
    let mut plane = Plane::start(&[QUICK, &[HERE]].concat()).await;
    let down = Receiver::start(&[StatusCode::SERVICE_UNAVAILABLE; 10 * MANY]).await;
    let mut jobs = Vec::new();
    for number in 0..MANY {
        let webhook = json!({ "url": down.url() });
        jobs.push(plane.submit_as(json!({ "workflow": { "a": number }, "webhook": webhook })).await);
        plane.cancel(&jobs[number]).await;
    }
    let up = Receiver::start(&[]).await;
    let job = plane.submit_as(json!({ "workflow": { "b": 1 }, "webhook": { "url": up.url() } })).await;
    plane.cancel(&job).await;
    assert_eq!(id(&up.until(1).await[0].0), job);
    plane.kill();
    down.answers.lock().unwrap().clear();
    down.told.lock().unwrap().clear();
    plane.start_again().await;
    let told = down.until(MANY).await;
    let mut told: Vec<_> = told.iter().map(|(headers, _)| id(headers)).collect();
    told.sort_unstable();
    jobs.sort_unstable();
    assert_eq!(told, jobs);
}

/// Faults: X5.
#[tokio::test]
async fn forbidden_webhook_address_is_refused_at_submission() {
    let plane = Plane::start(&[]).await;
    for url in [
        "http://169.254.169.254/latest/meta-data/",
        "http://metadata.google.internal/",
        "http://127.0.0.1:9000/",
        "http://10.0.0.1/",
        "ftp://example.org/",
        "nonsense",
    ] {
        let submission = json!({ "workflow": { "a": 1 }, "webhook": { "url": url } });
        let (status, answer) = plane.post("/remuda/v1/jobs", &submission).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{url}: {answer}");
        assert!(answer["error"]["message"].as_str().unwrap().starts_with("webhook: "), "{answer}");
    }
    assert_eq!(plane.get("/remuda/v1/jobs").await["jobs"], json!([]));
}
