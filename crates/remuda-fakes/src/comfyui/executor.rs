//! Runs prompts, one after the other. A prompt can kill the executor while HTTP keeps working.
//!
//! ```text
//!  pop ─▶ status ─▶ start, cached ─▶ node, node, … ─▶ success or error ─▶ history ─▶ status ─▶ executing(null)
//!                                                             └── a gap: success is announced before history has it
//! ```

mod run;
mod service;
mod speech;
mod strike;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

pub(super) use run::Run;

use super::clock::Rest;
use super::faults::Fault;
use super::history::Outcome;
use super::server::Server;

/// How often history lags noticeably behind the success message; 1 to 30 in 100 were observed.
const LATE_HISTORY: f64 = 0.03;
const LATE_HISTORY_BY: Duration = Duration::from_millis(2);

/// How a run ended.
#[derive(Debug)]
pub(super) enum Ended {
    Well(super::history::Entry),
    /// The executor is dead, and the prompt stays listed as running forever.
    ExecutorDead,
    /// The process is about to die.
    ProcessDead,
}

/// Runs queued prompts until something kills it.
pub(super) async fn run(server: Arc<Server>) {
    run_all(&server).await;
    server.clock.set(Rest::Dead);
}

async fn run_all(server: &Arc<Server>) {
    loop {
        let item = match server.queue.pop() {
            Ok(item) => item,
            Err(_) => {
                tracing::debug!("two prompts cannot be put in order: the stand-in's executor died");
                return;
            }
        };
        let Some(item) = item else {
            server.clock.set(Rest::Idle);
            server.queue.changed().await;
            server.clock.catch_up();
            heed_flags(server);
            continue;
        };
        server.tell_status();
        *server.estate.tally.change().executions.entry(item.id.clone()).or_default() += 1;
        match Run::new(Arc::clone(server), item).execute().await {
            Ended::Well(entry) => conclude(server, entry).await,
            Ended::ExecutorDead => return,
            Ended::ProcessDead => {
                server.die();
                return;
            }
        }
        heed_flags(server);
    }
}

async fn conclude(server: &Server, entry: super::history::Entry) {
    let item = Arc::clone(&entry.item);
    if entry.outcome == Outcome::Success {
        *server.estate.tally.change().successes.entry(item.id.clone()).or_default() += 1;
    }
    tokio::task::yield_now().await;
    if server.estate.falls(LATE_HISTORY) {
        tokio::time::sleep(LATE_HISTORY_BY).await;
    }
    server.queue.finish();
    if item.faults.contains(&Fault::HistoryCleared) {
        server.history().clear();
    } else {
        server.history().put(entry);
    }
    if item.faults.contains(&Fault::SlowHttp) {
        server.set_http_delay(Duration::ZERO);
    }
    server.tell_status();
    let is_told =
        !item.faults.contains(&Fault::DropCompletion) && !item.faults.contains(&Fault::DropAllMessages);
    if let Some(Ok(client)) = item.client()
        && is_told
    {
        server.sockets.post(Some(client), "executing", &json!({"node": null, "prompt_id": item.id}));
    }
}

/// Applies pending `/free` requests.
fn heed_flags(server: &Server) {
    let flags = server.queue.take_flags();
    if flags.free_memory {
        server.cache().clear();
    }
    if flags.unload_models || flags.free_memory {
        server.models_loaded().clear();
    }
}
