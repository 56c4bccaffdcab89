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
    /// After the last fault everything must be well again within this time.
    pub(crate) calm_max: Duration,
    ledger: Arc<Mutex<Ledger>>,
}

impl Drill {
    pub(crate) fn new(url: String, lease: Duration) -> anyhow::Result<Drill> {
        let http = remuda_net::http_client::client_builder().timeout(REQUEST_TIMEOUT).build()?;
        let calm_max = CALM_MIN + lease * CALM_IN_LEASES;
        Ok(Drill { url, http, began: Instant::now(), lease, calm_max, ledger: Arc::default() })
    }

    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    pub(crate) fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fails if the plane refuses what it should take.
    pub(crate) async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Answer> {
        let answer = match self.http.post(format!("{}{path}", self.url)).json(body).send().await {
            Ok(answer) => answer,
            Err(error) => return Ok(Answer::NotNow(error.to_string())),
        };
        let status = answer.status();
        let text = match answer.text().await {
            Ok(text) => text,
            Err(error) => return Ok(Answer::NotNow(error.to_string())),
        };
        if status.is_success() {
            return Ok(Answer::Yes(serde_json::from_str(&text).context("the plane's answer is no JSON")?));
        }
        let is_passing = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        anyhow::ensure!(is_passing, "{path} was refused with {status}: {text}");
        Ok(Answer::NotNow(format!("{status}: {text}")))
    }

    pub(crate) async fn get(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.http.get(format!("{}{path}", self.url)).send().await?;
        Ok(answer.error_for_status()?.json().await?)
    }
}

/// What the plane said to a request.
#[derive(Debug)]
pub(crate) enum Answer {
    Yes(Value),
    /// It is away, busy or full, as the text says: ask again later.
    NotNow(String),
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
/// After the last fault every job must end within this time, in leases, and two minutes.
const CALM_IN_LEASES: u32 = 20;
const CALM_MIN: Duration = Duration::from_secs(120);
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
        let Some(id) = insist(&drill, &body, &mut stop).await? else { return Ok(()) };
        let id = id["id"].as_str().context("the answer to a submission has no id")?.to_owned();
        drill.ledger().acknowledge(drill.now(), &key, &id, kind);
        if rng.below(REPEAT_ONE_IN) == 0 {
            let Some(again) = insist(&drill, &body, &mut stop).await? else { return Ok(()) };
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

/// Submits until there is an answer. `None` if the faults are over and the plane still takes nothing: a plane that refuses
/// for ever must not keep the drill from its end, and is a finding.
async fn insist(
    drill: &Drill,
    body: &Value,
    stop: &mut watch::Receiver<bool>,
) -> anyhow::Result<Option<Value>> {
    let given_up = async {
        // A sender that is gone has ended the drill too.
        drop(stop.wait_for(|stop| *stop).await);
        tokio::time::sleep(drill.calm_max).await;
    };
    let mut refusal = String::new();
    let answered = async {
        loop {
            match drill.post("/remuda/v1/jobs", body).await? {
                Answer::Yes(answer) => return anyhow::Ok(answer),
                Answer::NotNow(reason) => refusal = reason,
            }
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    };
    tokio::select! {
        answered = answered => return answered.map(Some),
        () = given_up => {}
    }
    drill.ledger().refuse(drill.now(), &refusal);
    Ok(None)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A plane whose disk is full refuses for ever: the clients of a drill once waited for it for ever, too.
    #[tokio::test]
    async fn client_gives_up_when_the_faults_are_over_and_nothing_is_taken() {
        let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut drill = Drill::new(format!("http://{nobody}"), Duration::from_secs(6)).unwrap();
        drill.calm_max = Duration::ZERO;
        let (stop, stopped) = watch::channel(false);
        let options = LoadOptions { seed: 1, rate: 1000.0, open_max: 10 };
        let client = tokio::spawn(submit_until(drill.clone(), options, 0, stopped));
        stop.send_replace(true);
        client.await.unwrap().unwrap();
        let (_, mut stopped) = watch::channel(true);
        let given_up = insist(&drill, &json!({}), &mut stopped).await.unwrap();
        assert!(given_up.is_none());
        let ledger = std::mem::take(&mut *drill.ledger());
        let refused = ledger.conclude(ERROR_OF_BAD).complaints.refused;
        assert!(refused.iter().any(|refusal| refusal.contains("still took no job")), "{refused:?}");
    }
}
