//! Keeps a socket to the server open and passes on what it says. All of it is a hint: nothing is lost if it is.

use std::sync::Arc;
use std::sync::PoisonError;
use std::time::Duration;

use remuda_comfyui::{Heard, Message, Progress, Socket};
use remuda_core::agent::AgentEvent;
use remuda_core::service::ServiceEvent;
use tracing::{debug, info, warn};

use super::{Run, Shared};
use crate::link::luck;
use crate::reports::Said;
use remuda_core::wire::live::ProgressSnapshot;

const CONNECT_MAX: Duration = Duration::from_secs(5);
const RETRY_BASE: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Pictures that nodes send over the socket as their result; more than this one attempt cannot keep in memory.
const SENT_BYTES_MAX: usize = 256 << 20;
/// The one node of ComfyUI that gives its result this way.
const SENDS_IMAGES: &str = "SaveImageWebsocket";

/// A picture that a node sent as its result.
#[derive(Clone, Debug)]
pub(super) struct SentImage {
    pub(super) node: String,
    pub(super) mime: String,
    pub(super) bytes: Vec<u8>,
}

/// Why a socket was left.
enum Left {
    Closed(String),
    Reopen,
}

impl Shared {
    /// Never ends by itself.
    pub(super) async fn listen(self: Arc<Self>) {
        let (mut failures, mut is_open) = (0_u32, true);
        loop {
            let why = match Socket::connect(&self.target, &self.client_id, CONNECT_MAX).await {
                Ok(socket) => {
                    failures = 0;
                    match self.hear(socket, &mut is_open).await {
                        Left::Reopen => continue,
                        Left::Closed(why) => why,
                    }
                }
                Err(error) => error.to_string(),
            };
            self.lives.doubt();
            if is_open {
                is_open = false;
                warn!(%why, "no socket to ComfyUI; trying on");
                self.tell(AgentEvent::Service(ServiceEvent::SocketClosed { why })).await;
            }
            let ceiling = RETRY_BASE.saturating_mul(1 << failures.min(8)).min(RETRY_MAX).as_millis() as u64;
            failures += 1;
            tokio::time::sleep(Duration::from_millis(ceiling / 2 + luck() % (ceiling / 2 + 1))).await;
        }
    }

    async fn hear(&self, mut socket: Socket, is_open: &mut bool) -> Left {
        let life = match self.lives.settle(&self.client).await {
            Ok(life) => life,
            Err(error) => return Left::Closed(error.to_string()),
        };
        if !*is_open {
            *is_open = true;
            info!("the socket to ComfyUI is open again");
        }
        self.tell(AgentEvent::Service(ServiceEvent::SocketOpened { life })).await;
        loop {
            tokio::select! {
                heard = socket.hear() => match heard {
                    Ok(heard) => {
                        if let Some(event) = self.heard(&heard) {
                            self.tell(event).await;
                        }
                    }
                    Err(closed) => return Left::Closed(closed.to_string()),
                },
                () = self.reopen.notified() => {
                    debug!("nothing came over the socket for long: opening it anew");
                    socket.close().await;
                    return Left::Reopen;
                }
            }
        }
    }

    /// What a message means to the agent.
    fn heard(&self, heard: &Heard) -> Option<AgentEvent> {
        let message = &heard.message;
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let (id, run) = match message.prompt() {
            Some(id) => (id.to_owned(), runs.get_mut(id)?),
            // It does not say whose it is: ours, if there is only one. Whoever connects late is told the running node in
            // the same way; but that was asked for by connecting, and a prompt that stands still would look alive.
            None if runs.len() == 1 && matches!(message, Message::Text { .. }) => {
                runs.iter_mut().next().map(|(id, run)| (id.clone(), run))?
            }
            None => return None,
        };
        let (job, attempt) = (run.job, run.attempt);
        match message {
            Message::Preview { node, mime, bytes, .. } => {
                run.keep(node.0.as_deref(), mime, bytes);
                self.previews.offer(job, attempt, node.0.as_deref(), bytes);
            }
            Message::Executed { node, output, .. } => {
                self.put_out(&id, node.0.as_deref().unwrap_or_default(), output);
            }
            _ => {}
        }
        let step = run.progress.as_mut().and_then(|progress| progress.heard(message));
        let snapshot = step.as_ref().and(run.progress.as_ref()).map(snapshot);
        self.reports.heard(job, attempt, said(heard), snapshot);
        if message.is_end_of(&id) {
            run.is_heard_out = true;
            self.reports.hurry(job, attempt);
            return Some(AgentEvent::SaidDone { job, attempt });
        }
        // Who knows what it means; surely not that the prompt gets on.
        if matches!(message, Message::Other { .. }) {
            return None;
        }
        let progress = step.as_ref().map_or(0.0, |step| step.fraction);
        if let Some(step) = step {
            run.phase = step.phase;
        }
        Some(AgentEvent::Signal { job, attempt, progress, phase: run.phase.clone() })
    }
}

/// In the server's own words; counts are named, so that only the newest is passed on.
fn said(heard: &Heard) -> Option<Said> {
    let count_of = match &heard.message {
        Message::Progress { node, .. } => Some(format!("progress {}", node.0.as_deref().unwrap_or_default())),
        Message::ProgressState { .. } => Some("progress_state".to_owned()),
        _ => None,
    };
    heard.raw().map(|raw| Said { raw: Arc::from(raw), count_of })
}

fn snapshot(progress: &Progress) -> ProgressSnapshot {
    let standing = progress.standing();
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
    /// Keeps a picture if it is a node's result and not only a preview of it.
    fn keep(&mut self, node: Option<&str>, mime: &str, bytes: &[u8]) {
        let Some(node) = node.filter(|node| self.classes.get(*node).is_some_and(|it| it == SENDS_IMAGES))
        else {
            return;
        };
        let kept: usize = self.sent.iter().map(|image| image.bytes.len()).sum();
        if kept + bytes.len() <= SENT_BYTES_MAX {
            let (node, mime, bytes) = (node.to_owned(), mime.to_owned(), bytes.to_owned());
            self.sent.push(SentImage { node, mime, bytes });
        }
    }

    /// Whether a node of this class sends its result over the socket.
    pub(super) fn sends_images(&self) -> bool {
        self.classes.values().any(|class| class == SENDS_IMAGES)
    }
}
