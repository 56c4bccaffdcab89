//! Clients: each submits one job after the other with an idempotency key, and asks again until it has an answer, whatever
//! happens to the plane meanwhile. Some repeat an answered submission, some cancel.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::ledger::{BAD_TENANT, Ledger, WorkflowKind};
use crate::schedule::DrillRng;

/// What all parts of a drill share.
#[derive(Clone, Debug)]
pub(crate) struct Drill {
    pub(crate) url: String,
    pub(crate) http: reqwest::Client,
    pub(crate) began: Instant,
    pub(crate) lease: Duration,
    ledger: Arc<Mutex<Ledger>>,
}

impl Drill {
    pub(crate) fn new(url: String, lease: Duration) -> anyhow::Result<Drill> {
        let http = remuda_net::http_client::client_builder().timeout(REQUEST_TIMEOUT).build()?;
        Ok(Drill { url, http, began: Instant::now(), lease, ledger: Arc::default() })
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer, if there is one that says yes. A plane that is away, busy or full is asked again later.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Option<Value>> {
        let Ok(answer) = self.http.post(format!("{}{path}", self.url)).json(body).send().await else {
            return Ok(None);
        };
        let status = answer.status();
        let Ok(text) = answer.text().await else { return Ok(None) };
        if status.is_success() {
            return Ok(Some(serde_json::from_str(&text).context("the plane's answer is no JSON")?));
        }
        let is_passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        anyhow::ensure!(is_passing, "{path} was refused with {status}: {text}");
        Ok(None)
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct LoadOptions {
    pub(crate) seed: u64,
    /// Submissions per second of this client.
    pub(crate) rate: f64,
    /// Submits nothing while so many jobs are open.
    pub(crate) open_max: usize,
}

/// Longer than a pause of the plane would be too long to see one end.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(50);
/// One of so many workflows is bad, one of so many jobs is cancelled, one of so many submissions is repeated.
const BAD_ONE_IN: u64 = 25;
const CANCEL_ONE_IN: u64 = 40;
const REPEAT_ONE_IN: u64 = 10;
/// What the node of a bad workflow says.
pub(crate) const ERROR_OF_BAD: &str = "RemudaFail";

/// Submits until `stop`.
pub(crate) async fn submit_until(
    drill: Drill,
    options: LoadOptions,
    client: usize,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    let mut rng = DrillRng::new(options.seed ^ (client as u64 + 1).wrapping_mul(0x9e37_79b9));
    let pause = Duration::from_secs_f64(1.0 / options.rate.max(0.001));
    for n in 0u64.. {
        tokio::select! {
            _ = stop.wait_for(|stop| *stop) => return Ok(()),
            () = tokio::time::sleep(pause.mul_f64(0.5 + rng.fraction())) => {}
        }
        if drill.ledger().open_jobs() >= options.open_max {
            continue;
        }
        let kind = if rng.below(BAD_ONE_IN) == 0 { WorkflowKind::Bad } else { WorkflowKind::Good };
        let key = format!("drill-{}-{client}-{n}", options.seed);
        let body = submission(&mut rng, kind, &key);
        let id = insist(&drill, "/remuda/v1/jobs", &body).await?;
        let id = id["id"].as_str().context("the answer to a submission has no id")?.to_owned();
        drill.ledger().acknowledge(drill.now(), &key, &id, kind);
        if rng.below(REPEAT_ONE_IN) == 0 {
            let again = insist(&drill, "/remuda/v1/jobs", &body).await?;
            drill.ledger().acknowledge(drill.now(), &key, again["id"].as_str().unwrap_or_default(), kind);
        }
        if rng.below(CANCEL_ONE_IN) == 0 {
            drill.ledger().mark_cancelled(&id);
            // The job may have ended meanwhile, which is refused: either is right.
            drop(drill.post(&format!("/remuda/v1/jobs/{id}/cancel"), &json!({})).await);
        }
    }
    Ok(())
}

async fn insist(drill: &Drill, path: &str, body: &Value) -> anyhow::Result<Value> {
    loop {
        if let Some(answer) = drill.post(path, body).await? {
            return Ok(answer);
        }
        tokio::time::sleep(ASK_AGAIN_AFTER).await;
    }
}

/// A picture of one colour that takes a moment.
fn submission(rng: &mut DrillRng, kind: WorkflowKind, key: &str) -> Value {
    let color = rng.below(1 << 24);
    let seconds = 0.05 + 0.35 * rng.fraction();
    let mut graph = json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": color } },
        "2": { "class_type": "RemudaSleep",
               "inputs": { "image": ["1", 0], "seconds": seconds, "steps": 4, "preview": false } },
        "3": { "class_type": "SaveImage", "inputs": { "images": ["2", 0], "filename_prefix": "drill" } },
    });
    if kind == WorkflowKind::Bad {
        graph["4"] = json!({ "class_type": "RemudaFail", "inputs": { "image": ["2", 0], "kind": "error" } });
        graph["3"]["inputs"]["images"] = json!(["4", 0]);
    }
    let tenant = match kind {
        WorkflowKind::Good => ["anna", "ben", "chen"][usize::try_from(rng.below(3)).unwrap_or(0)],
        WorkflowKind::Bad => BAD_TENANT,
    };
    json!({ "workflow": graph, "idempotency_key": key, "tenant": tenant })
}
