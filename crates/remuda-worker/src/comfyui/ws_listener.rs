//! Keeps a WebSocket to the server open and turns its messages into agent events. Every message is only a hint: the agent
//! also finds out by probing what it would have said.

use std::sync::Arc;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use remuda_comfyui::{ComfyuiMessage, ComfyuiSocket, ProgressTracker, ReceivedMessage};
use remuda_core::agent::AgentEvent;
use remuda_core::service::ServiceEvent;
use remuda_core::service::outputs::sends_images;
use remuda_core::supervise::Backoff;
use tracing::{debug, info, warn};

use remuda_core::wire::live::{PROGRESS_TEXT, ProgressSnapshot};
use serde_json::json;
use serde_json::value::to_raw_value;

use super::{ComfyuiContext, Run};
use crate::live_reports::ServiceMessage;
use crate::plane_link::random_u64;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RECONNECT: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
/// Images of one attempt that are kept in memory because a node sent them over the socket as its result.
const SENT_BYTES_MAX: usize = 256 << 20;

/// An image that a node sent over the socket as its result.
#[derive(Clone, Debug)]
pub(super) struct SentImage {
    pub(super) node: String,
    pub(super) mime: String,
    pub(super) bytes: Vec<u8>,
}

/// Why a socket is no longer read.
enum CloseReason {
    Closed(String),
    Reopen,
}

impl ComfyuiContext {
    /// Connects again and again until the task is dropped.
    pub(super) async fn listen(self: Arc<Self>) {
        let (mut failures, mut is_open) = (0_u32, true);
        loop {
            let why = match ComfyuiSocket::connect(&self.target, &self.client_id, CONNECT_TIMEOUT).await {
                Ok(socket) => {
                    failures = 0;
                    match self.read_socket(socket, &mut is_open).await {
                        CloseReason::Reopen => continue,
                        CloseReason::Closed(why) => why,
                    }
                }
                Err(error) => error.to_string(),
            };
            self.incarnations.lock().suspect_restart();
            if is_open {
                is_open = false;
                warn!(%why, "socket to ComfyUI closed; reconnecting");
                self.send(AgentEvent::Service(ServiceEvent::SocketClosed { why })).await;
            }
            tokio::time::sleep(RECONNECT.equal_jitter(failures, random_u64())).await;
            failures += 1;
        }
    }

    async fn read_socket(&self, mut socket: ComfyuiSocket, is_open: &mut bool) -> CloseReason {
        let life = match self.incarnations.confirm(&self.client).await {
            Ok(life) => life,
            Err(error) => return CloseReason::Closed(error.to_string()),
        };
        if !*is_open {
            *is_open = true;
            info!("socket to ComfyUI open again");
        }
        self.send(AgentEvent::Service(ServiceEvent::SocketOpened { incarnation: life })).await;
        loop {
            tokio::select! {
                received = socket.recv() => match received {
                    Ok(received) => {
                        if let Some(event) = self.apply_message(&received) {
                            self.send(event).await;
                        }
                    }
                    Err(closed) => return CloseReason::Closed(closed.to_string()),
                },
                () = self.reopen.notified() => {
                    debug!("socket silent for too long; reopening it");
                    socket.close().await;
                    return CloseReason::Reopen;
                }
            }
        }
    }

    /// Updates the run that a message is about; returns what it means to the agent.
    fn apply_message(&self, received: &ReceivedMessage) -> Option<AgentEvent> {
        let message = &received.message;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, run) = match message.prompt() {
            Some(id) => (id.to_owned(), runs.get_mut(id)?),
            // Other messages without a prompt are ignored: the server repeats the running node to each new connection, and
            // a stuck prompt would look alive.
            None => match message {
                ComfyuiMessage::Text { node, .. } => {
                    let (id, run) = runs.iter_mut().find(|(_, run)| run.is_at(node))?;
                    (id.clone(), run)
                }
                _ => return None,
            },
        };
        let (job, attempt) = (run.job, run.attempt);
        run.node_times.apply(message, &run.classes, Instant::now());
        // A server sends a preview before the `progress` of its step to those who know its metadata, and after it to all
        // others, who rely on that.
        let preview = run.preview.take();
        match message {
            ComfyuiMessage::Preview { node, mime, bytes, .. } => {
                run.keep_image(node.0.as_deref(), mime, bytes);
                run.preview = Some((node.0.clone(), bytes.clone()));
            }
            ComfyuiMessage::Executed { node, output, .. } => {
                self.queue_early(&id, node.0.as_deref().unwrap_or_default(), output);
            }
            _ => {}
        }
        let step = run.progress.as_mut().and_then(|progress| progress.apply(message));
        let snapshot = step.as_ref().and(run.progress.as_ref()).map(snapshot);
        self.reports.add(job, attempt, report_message(received), snapshot);
        if let Some((node, bytes)) = preview {
            let hold = self.reports.hold(job, attempt);
            self.previews.add(job, attempt, node.as_deref(), &bytes, Some(hold));
        }
        if message.is_end_of(&id) {
            run.has_final_message.send_replace(true);
            self.reports.send_now(job, attempt);
            return Some(AgentEvent::CompletionHint { job, attempt });
        }
        // A message of an unknown type does not prove that the prompt makes progress.
        if matches!(message, ComfyuiMessage::Other { .. }) {
            return None;
        }
        let progress = step.as_ref().map_or(0.0, |step| step.fraction);
        if let Some(step) = step {
            run.phase = step.phase;
        }
        Some(AgentEvent::Signal { job, attempt, progress, phase: run.phase.clone() })
    }
}

/// The server's message, unchanged; a text of a node, which the server sends in a binary frame, as `progress_text`. Of
/// counters only the newest is passed on.
fn report_message(received: &ReceivedMessage) -> Option<ServiceMessage> {
    if let ComfyuiMessage::Text { node, text } = &received.message {
        let message = json!({ "type": PROGRESS_TEXT, "data": { "node": node, "text": text } });
        return to_raw_value(&message)
            .ok()
            .map(|raw| ServiceMessage { raw: Arc::from(raw), supersedes: None });
    }
    let supersedes = match &received.message {
        ComfyuiMessage::Progress { node, .. } => {
            Some(format!("progress {}", node.0.as_deref().unwrap_or_default()))
        }
        ComfyuiMessage::ProgressState { .. } => Some("progress_state".to_owned()),
        _ => None,
    };
    received.raw_json().map(|raw| ServiceMessage { raw: Arc::from(raw), supersedes })
}

fn snapshot(progress: &ProgressTracker) -> ProgressSnapshot {
    let standing = progress.state();
    ProgressSnapshot {
        value: f64::from(standing.fraction),
        nodes_done: standing.nodes_done as u64,
        nodes_total: standing.nodes_total as u64,
        current_node: standing.node.map(str::to_owned),
        current_node_class: standing.class.map(str::to_owned),
        step: standing.steps.map(|(step, _)| step),
        steps: standing.steps.map(|(_, steps)| steps),
        message: Some(standing.phase.to_owned()).filter(|phase| !phase.is_empty()),
    }
}

impl Run {
    /// Whether this node of the run is executing. A text does not name its prompt, and every client of the server gets it.
    fn is_at(&self, node: &str) -> bool {
        self.progress.as_ref().is_some_and(|progress| progress.state().node == Some(node))
    }

    /// Keeps an image if it is a node's result and not only a preview.
    fn keep_image(&mut self, node: Option<&str>, mime: &str, bytes: &[u8]) {
        let Some(node) = node.filter(|node| self.classes.get(*node).is_some_and(|class| sends_images(class)))
        else {
            return;
        };
        let kept: usize = self.sent_images.iter().map(|image| image.bytes.len()).sum();
        if kept + bytes.len() <= SENT_BYTES_MAX {
            let (node, mime, bytes) = (node.to_owned(), mime.to_owned(), bytes.to_owned());
            self.sent_images.push(SentImage { node, mime, bytes });
        }
    }
}
