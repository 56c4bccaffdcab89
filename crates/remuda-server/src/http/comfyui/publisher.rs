//! Publishes events, live reports and previews to connected ComfyUI clients.
//!
//! The end of a prompt, and the traceback of its error, is published only after it is stored, so a client that hears of it
//! finds it in the history. After
//! missed events the store tells how prompts ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_core::document::{Collection, Document};
use remuda_core::event_kind::EventKind;
use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::PlaneEvent;
use remuda_core::record::StoredEvent;
use remuda_core::workflow::InputGraph;
use remuda_store::blobs::read_chunks;
use remuda_store::{JobFilter, StoreError};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use tracing::warn;

use super::super::Context;
use super::client_registry::MISSED_TTL;
use super::connection::SocketImage;
use super::history_entry::{EndedPrompt, StoredOutput, final_error_id, parse_outputs};
use super::logs::LogLine;
use super::output_names::JobNames;
use super::prompt::{self, Prompt};
use super::run_translator::{ClientMessage, RunTranslator, reported_outputs};
use crate::follower::Followed;
use crate::live::{LiveEvent, LiveUpdate, PreviewUpdate};
use crate::tasks::Ticker;

/// Size limit of a stored error message: a traceback fits, the tensors it mentions do not.
/// The one class that sends its results over the socket.
const SOCKET_CLASS: &str = "SaveImageWebsocket";
const FINAL_ERROR_BYTES_MAX: usize = 64 << 10;
const SOCKET_IMAGES_BYTES_MAX: u64 = 32 << 20;
/// Ends shortly before a restart are remembered for their clients, who may not have received them.
const REPLAY_WINDOW: std::time::Duration = std::time::Duration::from_secs(30);
const REPLAY_MAX: usize = 500;

/// Runs until the program stops.
pub async fn run_publisher(context: Context, ticker: Ticker) {
    let mut events = context.follow(None);
    let publisher = Publisher { context };
    if let Err(error) = publisher.replay_recent_ends().await {
        warn!(%error, "could not replay job completions from before the restart");
    }
    ticker.tick();
    while let Some(followed) = events.next().await {
        let published = match followed {
            Followed::Event(LiveEvent::Stored(event)) => publisher.on_event(&event).await,
            Followed::Event(LiveEvent::Update(update)) => {
                publisher.on_live_report(&update).await;
                Ok(())
            }
            Followed::Event(LiveEvent::Preview(preview)) => publisher.on_preview(&preview).await,
            Followed::Gap { is_replayed: false, .. } | Followed::Restored { .. } => {
                publisher.catch_up().await
            }
            Followed::Event(LiveEvent::Progress { .. }) | Followed::Gap { .. } | Followed::CaughtUp => Ok(()),
        };
        if let Err(error) = published {
            warn!(%error, "failed to publish an event to ComfyUI clients");
        }
        ticker.tick();
    }
}

struct Publisher {
    context: Context,
}

impl Publisher {
    async fn on_event(&self, event: &StoredEvent) -> Result<(), StoreError> {
        let (Some(job), Some(tenant)) = (event.job, &event.tenant) else {
            self.context.comfyui.clients.lock().last_seq = event.seq;
            return Ok(());
        };
        {
            let line = LogLine::new(event);
            let mut clients = self.context.comfyui.clients.lock();
            clients.last_seq = event.seq;
            if let Some(line) = line {
                clients.publish_log(tenant, &line);
                self.context.comfyui.logs.add(tenant, line);
            }
            match event.kind {
                EventKind::JobQueued => {
                    clients.adjust_open(tenant, event.seq, 1);
                    clients.publish_status(tenant);
                }
                EventKind::JobStarted => {
                    let attempt = event.detail.get("attempt").and_then(Value::as_u64).unwrap_or(0);
                    let attempt = u32::try_from(attempt).unwrap_or(0);
                    let new = || RunTranslator::new(job, tenant.clone(), &event.metadata, attempt);
                    clients.runs.entry(job).or_insert_with(new).start_attempt(attempt);
                    clients.publish_status(tenant);
                }
                _ => {}
            }
        }
        if event.kind.is_job_end() { self.publish_end(job, Some(event)).await } else { Ok(()) }
    }

    async fn on_live_report(&self, update: &LiveUpdate) {
        let (job, attempt) = (update.job, update.attempt.0);
        if !self.context.comfyui.clients.lock().runs.contains_key(&job) {
            // The attempt started before this task subscribed.
            let Ok(Some(metadata)) =
                self.context.plane.read(move |plane, _| plane.job(job).map(|job| job.metadata())).await
            else {
                return;
            };
            let run = RunTranslator::new(job, update.tenant.clone(), &metadata, attempt);
            self.context.comfyui.clients.lock().runs.insert(job, run);
        }
        let stored = self
            .context
            .live_attempts
            .find(job)
            .map(|doing| parse_outputs(&doing.outputs))
            .unwrap_or_default();
        let messages = update.report.messages.iter();
        let messages: Vec<Value> = messages.filter_map(|it| serde_json::from_str(it.get()).ok()).collect();
        let names = self.name_outputs(job, &messages).await;
        let mut clients = self.context.comfyui.clients.lock();
        let Some(run) = clients.runs.get_mut(&job).filter(|run| run.attempt <= attempt) else { return };
        run.start_attempt(attempt);
        run.names.extend(names);
        for message in &messages {
            run.accept(message);
        }
        let messages = run.take_ready(&stored);
        let (tenant, client) = (run.tenant.clone(), run.client.clone());
        match client {
            Some(client) => clients.publish(&tenant, Some(&client), &messages),
            // As in ComfyUI: without a client id, progress goes to all connections and everything else to none.
            None => {
                let droppable: Vec<ClientMessage> =
                    messages.into_iter().filter(ClientMessage::is_droppable).collect();
                clients.publish(&tenant, None, &droppable);
            }
        }
    }

    /// Names of the files that these messages report.
    async fn name_outputs(&self, job: JobId, messages: &[Value]) -> JobNames {
        let outputs: Vec<StoredOutput> = messages.iter().flat_map(reported_outputs).collect();
        let tenant = {
            let clients = self.context.comfyui.clients.lock();
            clients.runs.get(&job).filter(|run| run.is_named).map(|run| run.tenant.clone())
        };
        let Some(tenant) = tenant.filter(|_| !outputs.is_empty()) else { return JobNames::default() };
        let names = &self.context.comfyui.output_names;
        names.assign(&self.context, &tenant, job, &outputs).await.unwrap_or_else(|error| {
            // They are named when the prompt has ended.
            warn!(%job, %error, "could not name the outputs of a running prompt");
            JobNames::default()
        })
    }

    async fn on_preview(&self, shown: &PreviewUpdate) -> Result<(), StoreError> {
        let Some(preview) = self.context.previews.find_number(shown.job, shown.number) else { return Ok(()) };
        let is_new = self
            .context
            .comfyui
            .clients
            .lock()
            .runs
            .get(&shown.job)
            .is_some_and(|run| run.websocket_nodes.is_none());
        let websocket_nodes = if is_new { Some(self.websocket_nodes(shown.job).await?) } else { None };
        let mut clients = self.context.comfyui.clients.lock();
        let Some(run) = clients.runs.get_mut(&shown.job) else { return Ok(()) };
        run.websocket_nodes = websocket_nodes.or(run.websocket_nodes.take());
        let node = preview.node.clone();
        let node = node.or_else(|| Some(run.executing.as_ref()?["node"].as_str()?.to_owned()));
        // Images of this node are results; they are sent when they are stored.
        if node.as_ref().is_some_and(|node| run.websocket_nodes.as_ref().is_some_and(|it| it.contains(node)))
        {
            return Ok(());
        }
        let image =
            SocketImage { node: node.as_deref(), mime: preview.media.as_str(), bytes: &preview.bytes };
        if let Some(run) = clients.runs.get(&shown.job) {
            clients.publish_preview(run, &image);
        }
        Ok(())
    }

    /// Nodes of the one class that sends its results over the socket.
    async fn websocket_nodes(&self, job: JobId) -> Result<BTreeSet<String>, StoreError> {
        let body = match self.context.workflows.find(job) {
            Some(body) => Some(body),
            None => self.context.store.workflow(job).await?,
        };
        // Few workflows have such a node; the others are not read for it. The name may be written with escapes.
        let body = body.filter(|body| [SOCKET_CLASS, "\\u"].iter().any(|it| body.get().contains(it)));
        let nodes =
            body.and_then(|body| InputGraph::read(&body)).map(|graph| graph.nodes).unwrap_or_default();
        Ok(nodes.into_iter().filter(|(_, node)| node.class() == SOCKET_CLASS).map(|(id, _)| id).collect())
    }

    /// Stored images that a node sent over its socket: node, media type and content.
    async fn websocket_images(&self, outputs: &[StoredOutput]) -> Vec<(String, &'static str, Bytes)> {
        let (mut images, mut bytes_left) = (Vec::new(), SOCKET_IMAGES_BYTES_MAX);
        for output in outputs {
            let Ok(hash) = output.hash.parse() else { continue };
            let Ok(Some(blob)) = self.context.blobs.read(hash, self.context.plane.clock.now()).await else {
                continue;
            };
            if blob.size_bytes > bytes_left {
                continue;
            }
            bytes_left -= blob.size_bytes;
            let mut bytes = Vec::new();
            let mut read_chunks = Box::pin(read_chunks(blob.file, 0, blob.size_bytes));
            while let Some(Ok(piece)) = read_chunks.next().await {
                bytes.extend_from_slice(&piece);
            }
            let mime = if output.name.ends_with(".png") { "image/png" } else { "image/jpeg" };
            images.push((output.node.clone(), mime, bytes.into()));
        }
        images
    }

    /// Publishes the final messages in the order in which ComfyUI sends them.
    async fn publish_end(&self, job: JobId, event: Option<&StoredEvent>) -> Result<(), StoreError> {
        let mut run = self.context.comfyui.clients.lock().runs.remove(&job);
        if let Some(run) = &mut run {
            if event.is_some_and(|it| it.kind == EventKind::JobCancelled) && run.final_error.is_none() {
                run.final_error = self.interruption(run).await?;
            }
            run.final_error = run.final_error.take().and_then(bounded_error);
            if let Some(error) = &run.final_error {
                self.store_final_error(job, error).await;
            }
        }
        self.publish_final(job, event, run).await
    }

    async fn publish_final(
        &self,
        job: JobId,
        event: Option<&StoredEvent>,
        run: Option<RunTranslator>,
    ) -> Result<(), StoreError> {
        // Without a client id there is no recipient, and nothing has to be read.
        let has_client = event.is_none_or(|it| prompt::client_id(&it.metadata).is_some());
        let found = if has_client { Prompt::read(&self.context, job).await? } else { None };
        let Some((tenant, prompt)) = found else {
            if let Some((event, tenant)) = event.zip(event.and_then(|it| it.tenant.as_ref())) {
                // The last states may have waited for a file that is stored now.
                let held = run.map(|mut run| run.take_held(false)).unwrap_or_default();
                let states: Vec<ClientMessage> =
                    held.into_iter().filter(ClientMessage::is_droppable).collect();
                let mut clients = self.context.comfyui.clients.lock();
                clients.publish(tenant, None, &states);
                clients.adjust_open(tenant, event.seq, -1);
                clients.publish_status(tenant);
            }
            return Ok(());
        };
        let is_delivered = prompt.is_history()
            && prompt
                .client
                .as_ref()
                .is_some_and(|it| self.context.comfyui.clients.lock().is_connected(&tenant, it));
        let mut executing = run.as_ref().and_then(|run| run.executing.clone()).unwrap_or_default();
        let (messages, images) = match is_delivered {
            true => {
                // What this task has heard of the run is not read from the store again.
                let ended = match &run {
                    Some(run) => {
                        let (error, names) = (run.final_error.clone(), run.names.clone());
                        EndedPrompt::read_result(&self.context, &prompt, error, names).await?
                    }
                    None => EndedPrompt::read(&self.context, &prompt).await?,
                };
                let images = self.websocket_images(&ended.socket_images).await;
                (final_messages(&prompt, run, &ended), images)
            }
            false => (Vec::new(), Vec::new()),
        };
        let mut clients = self.context.comfyui.clients.lock();
        if let Some(event) = event {
            clients.adjust_open(&tenant, event.seq, -1);
        }
        match &prompt.client {
            Some(client) if is_delivered => {
                let (last, first) = messages
                    .split_last()
                    .map_or((&[][..], &[][..]), |(last, first)| (std::slice::from_ref(last), first));
                clients.publish(&tenant, Some(client), first);
                for (node, mime, bytes) in &images {
                    // Clients tell whose image a frame is by the node that is executed.
                    if executing["node"] != **node {
                        executing = json!({ "node": node, "display_node": node, "prompt_id": prompt.id });
                        let message = ClientMessage::new("executing", executing.clone());
                        clients.publish(&tenant, Some(client), &[message]);
                    }
                    let image = SocketImage { node: Some(node), mime, bytes };
                    clients.publish_image(&tenant, client, &prompt.id, &image);
                }
                clients.publish(&tenant, Some(client), last);
            }
            Some(client) if prompt.is_history() => {
                clients.record_missed(tenant.clone(), client.clone(), job, prompt.life.changed_at);
            }
            Some(_) | None => {}
        }
        clients.publish_status(&tenant);
        if is_delivered {
            clients.publish(&tenant, prompt.client.as_deref(), &[idle_message(&prompt)]);
        }
        Ok(())
    }

    /// The job was cancelled before its service reported where it stopped.
    async fn interruption(&self, run: &RunTranslator) -> Result<Option<Map<String, Value>>, StoreError> {
        let Some(node) = run.executing.as_ref().and_then(|data| data["node"].as_str()) else {
            return Ok(None);
        };
        let workflow = self.context.store.workflow(run.job).await?;
        let graph = workflow.and_then(|body| InputGraph::read(&body));
        let class = graph.and_then(|mut graph| graph.nodes.remove(node)?.class);
        let now = self.context.plane.clock.now().as_millis();
        let messages = json!({
            "prompt_id": run.prompt, "node_id": node, "node_type": class.unwrap_or_default(), "executed": run.executed_nodes,
            "timestamp": now,
        });
        Ok(messages.as_object().cloned())
    }

    /// The store keeps one sentence of a failure; users look for the traceback.
    async fn store_final_error(&self, job: JobId, error: &Map<String, Value>) {
        let Ok(body) = to_raw_value(error) else { return };
        let document = Document {
            collection: Collection::Comfyui,
            id: final_error_id(job),
            tenant: None,
            index_key: String::new(),
            expires_at: Some(self.context.plane.clock.now().plus(self.context.retention)),
            body: Arc::from(body),
        };
        if let Err(error) = self.context.plane.request(PlaneEvent::PutDocument(Arc::new(document))).await {
            warn!(%job, %error, "error details of the service not stored");
        }
    }

    /// Events were missed and do not come again: publish the prompts that ended meanwhile.
    async fn catch_up(&self) -> Result<(), StoreError> {
        if let Err(error) = self.context.comfyui.clients.recount(&self.context).await {
            warn!(%error, "open jobs of ComfyUI clients could not be counted");
        }
        let jobs: Vec<JobId> = self.context.comfyui.clients.lock().runs.keys().copied().collect();
        for job in jobs {
            let stored = self.context.store.job(job).await?;
            if stored.is_none_or(|(_, life)| !life.state.is_open()) {
                self.publish_end(job, None).await?;
            }
        }
        Ok(())
    }

    async fn replay_recent_ends(&self) -> Result<(), StoreError> {
        let now = self.context.plane.clock.now();
        let newest = self.context.store.jobs(JobFilter::default(), None, REPLAY_MAX).await?;
        let mut clients = self.context.comfyui.clients.lock();
        for (accepted, life) in newest.into_iter().rev() {
            let (tenant, at) = (accepted.tenant.clone(), life.changed_at);
            let Some(prompt) = Prompt::from_record(&accepted, life) else { continue };
            let is_fresh = now.since(at) < REPLAY_WINDOW.min(MISSED_TTL);
            if let Some(client) = prompt.client.clone().filter(|_| prompt.is_history() && is_fresh) {
                clients.record_missed(tenant, client, prompt.job, now);
            }
        }
        Ok(())
    }
}

/// An error that is small enough to be stored: without its values if it has to be, and `None` if it is still too large.
fn bounded_error(mut error: Map<String, Value>) -> Option<Map<String, Value>> {
    let is_small = |error: &Map<String, Value>| json!(error).to_string().len() <= FINAL_ERROR_BYTES_MAX;
    if !is_small(&error) {
        error.remove("current_inputs");
        error.remove("current_outputs");
    }
    is_small(&error).then_some(error)
}

/// All messages up to the final one; `run` tells what was already sent.
pub(super) fn final_messages(
    prompt: &Prompt,
    run: Option<RunTranslator>,
    ended: &EndedPrompt,
) -> Vec<ClientMessage> {
    let is_success = ended.messages.last().is_some_and(|(kind, _)| *kind == "execution_success");
    let (has_started, reported, held) = match run {
        Some(mut run) => {
            let held = run.take_held(is_success);
            (run.has_started, run.reported_nodes, held)
        }
        None => (false, Default::default(), Vec::new()),
    };
    let (last, first) = match ended.messages.split_last() {
        Some((last, first)) => (Some(last), first),
        None => (None, &[][..]),
    };
    let mut messages = held;
    if !has_started {
        messages.extend(first.iter().map(|(kind, data)| ClientMessage::new(kind, data.clone())));
    }
    for (node, output) in ended.outputs.iter().filter(|(node, _)| !reported.contains(*node)) {
        let data = json!({ "node": node, "display_node": node, "output": output, "prompt_id": prompt.id });
        messages.push(ClientMessage::new("executed", data));
    }
    messages.extend(last.map(|(kind, data)| ClientMessage::new(kind, data.clone())));
    messages
}

/// No more messages follow for this prompt.
pub(super) fn idle_message(prompt: &Prompt) -> ClientMessage {
    ClientMessage::new("executing", json!({ "node": null, "prompt_id": prompt.id }))
}

/// The messages for a client that was disconnected when its prompt ended.
pub(super) async fn missed_end_messages(
    context: &Context,
    tenant: &Tenant,
    job: JobId,
) -> Result<Vec<ClientMessage>, StoreError> {
    let Some((owner, prompt)) = Prompt::read(context, job).await? else { return Ok(Vec::new()) };
    if owner != *tenant {
        return Ok(Vec::new());
    }
    let mut messages = final_messages(&prompt, None, &EndedPrompt::read(context, &prompt).await?);
    messages.push(idle_message(&prompt));
    Ok(messages)
}
