//! A worker with a valid token that sends what no worker should: numbers beyond all bounds, giant lists, broken JSON. It
//! offers a service that no job asks for, so that it gets no work; what it costs the others is what the drill looks at.

use std::time::Duration;

use serde_json::{Value, json};

use crate::load::Drill;
use crate::schedule::DrillRng;

const PAUSE: Duration = Duration::from_millis(100);
const LONG_LIST: usize = 80_000;

/// Sends hostile messages for so long. Refusals are expected; an answer that never comes is noticed by the others.
pub(crate) async fn attack(drill: &Drill, rng: &mut DrillRng, length: Duration) {
    let until = drill.now() + length;
    while drill.now() < until {
        let (path, body) = message(rng);
        drop(drill.post(path, &body).await);
        let broken =
            drill.http.post(format!("{}{path}", drill.url)).body("{\"worker\": \"hostile\", \"slots\": ");
        drop(broken.send().await);
        tokio::time::sleep(PAUSE).await;
    }
}

fn message(rng: &mut DrillRng) -> (&'static str, Value) {
    const JOIN: &str = "/remuda/v1/workers";
    const BEAT: &str = "/remuda/v1/workers/hostile/beat";
    let held = json!({ "job": "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11", "attempt": 1 });
    match rng.below(5) {
        0 => {
            (JOIN, json!({ "worker": "hostile", "services": ["drill-none"], "slots": u32::MAX, "offer": {} }))
        }
        1 => (
            JOIN,
            json!({ "worker": "hostile", "services": ["drill-none"], "slots": 1, "incarnation": i64::MAX - 1 }),
        ),
        2 => (
            BEAT,
            json!({ "incarnation": 1, "seq": u64::MAX, "slots": u32::MAX, "held": vec![held; LONG_LIST] }),
        ),
        3 => (
            BEAT,
            json!({ "incarnation": i64::MAX, "seq": 1, "slots": 1, "held": [], "finished": vec![held; 1000] }),
        ),
        _ => (JOIN, json!({ "worker": "hostile\u{0}", "services": vec!["x"; 10_000], "slots": -1 })),
    }
}
