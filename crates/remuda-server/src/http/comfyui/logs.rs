//! The log terminal of the web interface: `/internal/logs`, `/internal/logs/raw`, `/internal/logs/subscribe`.
//!
//! A ComfyUI server shows its own output there. The output of the plane and of the servers concerns all tenants, so a tenant
//! is shown what happened to its own prompts instead, one line for each event. The lines are in memory only, as in ComfyUI.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use remuda_core::event_kind::EventKind;
use remuda_core::id::Tenant;
use remuda_core::record::StoredEvent;
use remuda_net::text::one_line;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::{ApiError, Caller, Context};
use super::error::ComfyuiError;
use super::prompt::prompt_id;
use super::run_translator::ClientMessage;

/// As many as ComfyUI keeps.
const LINES_MAX: usize = 300;
const LINE_CHARS_MAX: usize = 500;
/// Tenants whose lines are kept; with more, those of the first by name are forgotten.
const TENANTS_MAX: usize = 1_000;

/// One line: its time and its text, which ends with a newline.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct LogLine {
    t: String,
    m: String,
}

impl LogLine {
    /// The line for an event; `None` for events that a user of ComfyUI does not expect in a log.
    pub(super) fn new(event: &StoredEvent) -> Option<LogLine> {
        let id = prompt_id(event.job?, &event.metadata);
        let worker = event.worker.as_ref().map_or("a worker", |worker| worker.as_str());
        let detail = |key: &str| event.detail.get(key).and_then(Value::as_str).unwrap_or_default();
        let why = [detail("message"), detail("reason")]
            .into_iter()
            .find(|it| !it.is_empty())
            .unwrap_or("no reason");
        let text = match event.kind {
            EventKind::JobQueued => format!("got prompt {id}"),
            EventKind::JobStarted => format!("prompt {id} runs on {worker}"),
            EventKind::JobRetrying => format!("prompt {id} is tried again: {why}"),
            EventKind::JobRecovered => format!("prompt {id}: its lost result was found on {worker}"),
            EventKind::JobCompleted => format!("prompt {id} executed"),
            EventKind::JobFailed => format!("prompt {id} failed: {why}"),
            EventKind::JobCancelled => format!("prompt {id} was cancelled"),
            _ => return None,
        };
        Some(LogLine { t: event.at.to_string(), m: format!("{}\n", one_line(&text, LINE_CHARS_MAX)) })
    }

    /// The message for a client that follows the log.
    pub(super) fn message(&self) -> ClientMessage {
        ClientMessage::new("logs", json!({ "entries": [self], "size": terminal_size() }))
    }
}

/// ComfyUI's, if it has no terminal.
fn terminal_size() -> Value {
    json!({ "cols": 80, "rows": 24 })
}

/// The newest lines of each tenant.
#[derive(Debug, Default)]
pub(super) struct LogLines(Mutex<BTreeMap<Tenant, VecDeque<LogLine>>>);

impl LogLines {
    pub(super) fn add(&self, tenant: &Tenant, line: LogLine) {
        let mut tenants = self.lock();
        if tenants.len() >= TENANTS_MAX && !tenants.contains_key(tenant) {
            tenants.pop_first();
        }
        let lines = tenants.entry(tenant.clone()).or_default();
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    fn read(&self, tenant: &Tenant) -> Vec<LogLine> {
        self.lock().get(tenant).map(|lines| lines.iter().cloned().collect()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Tenant, VecDeque<LogLine>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All lines in one text.
pub(super) async fn text(
    State(context): State<Context>,
    caller: Caller,
) -> Result<Json<String>, ComfyuiError> {
    let lines = context.comfyui.logs.read(&caller.tenant(None)?);
    Ok(Json(lines.iter().map(|line| format!("{} - {}", line.t, line.m)).collect()))
}

pub(super) async fn raw(State(context): State<Context>, caller: Caller) -> Result<Json<Value>, ComfyuiError> {
    let lines = context.comfyui.logs.read(&caller.tenant(None)?);
    Ok(Json(json!({ "entries": lines, "size": terminal_size() })))
}

#[derive(Debug, Deserialize)]
struct SubscribeRequest {
    #[serde(rename = "clientId")]
    client: String,
    enabled: bool,
}

/// From now on the sockets with this client id get new lines, or no longer.
pub(super) async fn subscribe(
    State(context): State<Context>,
    caller: Caller,
    body: Bytes,
) -> Result<StatusCode, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let request: SubscribeRequest = serde_json::from_slice(&body)
        .map_err(|error| ApiError::bad_request(format!("expected {{\"clientId\", \"enabled\"}}: {error}")))?;
    context.comfyui.clients.lock().follow_logs(&tenant, &request.client, request.enabled);
    Ok(StatusCode::OK)
}

#[cfg(test)]
mod tests {
    use remuda_core::id::{JobId, Sequence};
    use remuda_core::time::Timestamp;

    use super::*;

    fn event(kind: EventKind, detail: &Value) -> StoredEvent {
        StoredEvent {
            seq: Sequence(1),
            at: Timestamp::from_millis(1_000),
            kind,
            job: Some(JobId::from_u128(7)),
            worker: Some("gpu-1".parse().unwrap()),
            tenant: Some("t".parse().unwrap()),
            metadata: json!({"prompt_id": "p"}).as_object().unwrap().clone(),
            detail: detail.as_object().unwrap().clone(),
        }
    }

    #[test]
    fn events_of_prompts_are_lines_under_the_prompts_id() {
        for (kind, detail, text) in [
            (EventKind::JobStarted, json!({"attempt": 1}), "prompt p runs on gpu-1\n"),
            (
                EventKind::JobFailed,
                json!({"message": "node 4:\nValueError"}),
                "prompt p failed: node 4: ValueError\n",
            ),
            (EventKind::JobFailed, json!({"reason": "poison"}), "prompt p failed: poison\n"),
        ] {
            let line = LogLine::new(&event(kind, &detail)).unwrap();
            assert_eq!((&*line.t, &*line.m), ("1970-01-01T00:00:01.000Z", text));
        }
        assert_eq!(LogLine::new(&event(EventKind::WorkerOnline, &json!({}))), None);
    }

    /// Faults: X7, X16.
    #[test]
    fn lines_are_bounded_and_belong_to_one_tenant() {
        let logs = LogLines::default();
        let line = LogLine { t: String::new(), m: "x\n".to_owned() };
        for tenant in 0..TENANTS_MAX + 5 {
            logs.add(&format!("t{tenant}").parse().unwrap(), line.clone());
        }
        assert_eq!(logs.lock().len(), TENANTS_MAX);
        let mine: Tenant = "t999".parse().unwrap();
        (0..LINES_MAX * 2).for_each(|_| logs.add(&mine, line.clone()));
        assert_eq!(logs.read(&mine).len(), LINES_MAX);
        assert!(logs.read(&"other".parse().unwrap()).is_empty());
    }
}
