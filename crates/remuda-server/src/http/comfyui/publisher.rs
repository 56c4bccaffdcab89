//! Listens to all news and tells those who listen at the door. What it says of an end, the history has already: it speaks
//! only of what is stored. If news were missed, the store says how things ended.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt as _;
use remuda_core::document::{Document, Shelf};
use remuda_core::id::{JobId, Tenant};
use remuda_core::plane::Event;
use remuda_core::record::Happened;
use remuda_store::blobs::pieces;
use remuda_store::{Filter, StoreError};
use serde_json::value::to_raw_value;
use serde_json::{Map, Value, json};
use tokio::sync::broadcast::error::RecvError;
use tracing::warn;

use super::super::Context;
use super::client_registry::MISSED_FOR;
use super::connection::Picture;
use super::history_entry::{Ended, last_words_id, so_far, stored_outputs};
use super::prompt::{self, Prompt, Workflow};
use super::run_translator::{Run, Word};
use crate::live::LiveUpdate;
use crate::live::{LiveEvent, PreviewUpdate};
use crate::shutdown::stopped;

/// How much of what a service said of a failure is kept: a traceback, and not the tensors it was given.
const LAST_WORDS_BYTES_MAX: usize = 64 << 10;
/// Pictures of one prompt that are sent whole over a socket; what goes beyond is read with `/view`. A seat has room for
/// twice as much.
const SENT_BYTES_MAX: u64 = 32 << 20;
/// Ends of the last moments before a start: who was to hear of them may not have.
const BEFORE_START: std::time::Duration = std::time::Duration::from_secs(30);
const BEFORE_START_MAX: usize = 500;

/// Until the program stops.
pub async fn run_publisher(context: Context) {
    let mut news = context.events.subscribe();
    let mut stopping = context.stopping.clone();
    let publisher = Publisher { context };
    if let Err(error) = publisher.remember_before_start().await {
        warn!(%error, "what ended right before the start is told to nobody");
    }
    loop {
        let heard = tokio::select! {
            heard = news.recv() => heard,
            () = stopped(&mut stopping) => return,
        };
        let told = match heard {
            Ok(LiveEvent::Stored(happened)) => publisher.happened(&happened).await,
            Ok(LiveEvent::Update(told)) => {
                publisher.told(&told).await;
                Ok(())
            }
            Ok(LiveEvent::Preview(shown)) => publisher.shown(&shown).await,
            Ok(LiveEvent::Progress { .. }) => Ok(()),
            Err(RecvError::Lagged(_)) => publisher.catch_up().await,
            Err(RecvError::Closed) => return,
        };
        if let Err(error) = told {
            warn!(%error, "clients at the ComfyUI door were not told of something");
        }
    }
}

struct Publisher {
    context: Context,
}

impl Publisher {
    async fn happened(&self, happened: &Happened) -> Result<(), StoreError> {
        let (Some(job), Some(tenant)) = (happened.job, &happened.tenant) else {
            self.context.comfyui.hub.rooms().heard = happened.seq;
            return Ok(());
        };
        {
            let mut rooms = self.context.comfyui.hub.rooms();
            rooms.heard = happened.seq;
            match &*happened.name {
                "job:queued" => {
                    rooms.count(tenant, happened.seq, 1);
                    rooms.tell_status(tenant);
                }
                "job:started" => {
                    let attempt = happened.detail.get("attempt").and_then(Value::as_u64).unwrap_or(0);
                    let attempt = u32::try_from(attempt).unwrap_or(0);
                    let new = || Run::new(job, tenant.clone(), &happened.metadata, attempt);
                    rooms.runs.entry(job).or_insert_with(new).begin(attempt);
                    rooms.tell_status(tenant);
                }
                _ => {}
            }
        }
        match &*happened.name {
            "job:completed" | "job:failed" | "job:cancelled" => self.ended(job, Some(happened)).await,
            _ => Ok(()),
        }
    }

    async fn told(&self, told: &LiveUpdate) {
        let (job, attempt) = (told.job, told.attempt.0);
        if !self.context.comfyui.hub.rooms().runs.contains_key(&job) {
            // Begun before we listened.
            let Ok(Some(metadata)) =
                self.context.plane.read(move |plane, _| plane.job(job).map(|job| job.metadata())).await
            else {
                return;
            };
            let run = Run::new(job, told.tenant.clone(), &metadata, attempt);
            self.context.comfyui.hub.rooms().runs.insert(job, run);
        }
        let stored =
            self.context.live_attempts.find(job).map(|doing| so_far(&doing.outputs)).unwrap_or_default();
        let mut rooms = self.context.comfyui.hub.rooms();
        let Some(run) = rooms.runs.get_mut(&job).filter(|run| run.attempt <= attempt) else { return };
        run.begin(attempt);
        for message in &told.report.messages {
            if let Ok(message) = serde_json::from_str::<Value>(message.get()) {
                run.hear(&message);
            }
        }
        let words = run.ready(&stored);
        let (tenant, client) = (run.tenant.clone(), run.client.clone());
        match client {
            Some(client) => rooms.tell(&tenant, Some(&client), &words),
            // As ComfyUI has it: without a client, how far it is is told to everyone, and the rest to nobody.
            None => {
                let light: Vec<Word> = words.into_iter().filter(Word::is_light).collect();
                rooms.tell(&tenant, None, &light);
            }
        }
    }

    async fn shown(&self, shown: &PreviewUpdate) -> Result<(), StoreError> {
        let Some(preview) = self.context.previews.find(shown.job) else { return Ok(()) };
        let is_new =
            self.context.comfyui.hub.rooms().runs.get(&shown.job).is_some_and(|run| run.senders.is_none());
        let senders = if is_new { Some(self.senders(shown.job).await?) } else { None };
        let mut rooms = self.context.comfyui.hub.rooms();
        let Some(run) = rooms.runs.get_mut(&shown.job) else { return Ok(()) };
        run.senders = senders.or(run.senders.take());
        let node = preview.node.clone();
        let node = node.or_else(|| Some(run.executing.as_ref()?["node"].as_str()?.to_owned()));
        // Its pictures are results: all of them are sent when they are stored.
        if node.as_ref().is_some_and(|node| run.senders.as_ref().is_some_and(|it| it.contains(node))) {
            return Ok(());
        }
        let picture = Picture { node: node.as_deref(), mime: preview.media.as_str(), bytes: &preview.bytes };
        if let Some(run) = rooms.runs.get(&shown.job) {
            rooms.show(run, &picture);
        }
        Ok(())
    }

    /// Nodes of the one class that gives its results over the socket.
    async fn senders(&self, job: JobId) -> Result<BTreeSet<String>, StoreError> {
        let body = match self.context.workflows.find(job) {
            Some(body) => Some(body),
            None => self.context.store.workflow(job).await?,
        };
        let graph = body.map(|body| Workflow::read(&body).graph).unwrap_or_default();
        let nodes = graph.as_object().into_iter().flatten();
        let senders = nodes.filter(|(_, node)| node["class_type"] == "SaveImageWebsocket");
        Ok(senders.map(|(id, _)| id.clone()).collect())
    }

    /// Pictures that a node gave over its socket, as they are to be sent on: which node, what kind, and what is in it.
    async fn sent_pictures(&self, job: JobId) -> Result<Vec<(String, &'static str, Bytes)>, StoreError> {
        let outputs = stored_outputs(&self.context, job).await?;
        let (mut pictures, mut bytes_left) = (Vec::new(), SENT_BYTES_MAX);
        for output in outputs.into_iter().filter(|output| output.kind == "socket") {
            let Ok(hash) = output.hash.parse() else { continue };
            let Ok(Some(blob)) = self.context.blobs.read(hash, self.context.plane.clock.now()).await else {
                continue;
            };
            if blob.size_bytes > bytes_left {
                continue;
            }
            bytes_left -= blob.size_bytes;
            let mut bytes = Vec::new();
            let mut pieces = Box::pin(pieces(blob.file, 0, blob.size_bytes));
            while let Some(Ok(piece)) = pieces.next().await {
                bytes.extend_from_slice(&piece);
            }
            let mime = if output.name.ends_with(".png") { "image/png" } else { "image/jpeg" };
            pictures.push((output.node, mime, bytes.into()));
        }
        Ok(pictures)
    }

    /// The last words, in the order in which ComfyUI says them.
    async fn ended(&self, job: JobId, happened: Option<&Happened>) -> Result<(), StoreError> {
        let mut run = self.context.comfyui.hub.rooms().runs.remove(&job);
        if let Some(run) = &mut run {
            if happened.is_some_and(|it| it.name == "job:cancelled") && run.last_words.is_none() {
                run.last_words = self.interrupted(run).await?;
            }
            if let Some(words) = &run.last_words {
                self.keep_last_words(job, words).await;
            }
        }
        // Without a client there is nobody to tell of it, and nothing to look up.
        let has_client = happened.is_none_or(|it| prompt::client(&it.metadata).is_some());
        let found = if has_client { Prompt::read(&self.context, job).await? } else { None };
        let Some((tenant, prompt)) = found else {
            if let Some((happened, tenant)) = happened.zip(happened.and_then(|it| it.tenant.as_ref())) {
                let mut rooms = self.context.comfyui.hub.rooms();
                rooms.count(tenant, happened.seq, -1);
                rooms.tell_status(tenant);
            }
            return Ok(());
        };
        let is_told = prompt.is_history()
            && prompt
                .client
                .as_ref()
                .is_some_and(|it| self.context.comfyui.hub.rooms().is_heard(&tenant, it));
        let (words, pictures) = match is_told {
            true => {
                let pictures = self.sent_pictures(job).await?;
                (ending(&prompt, run, &Ended::read(&self.context, &prompt).await?), pictures)
            }
            false => (Vec::new(), Vec::new()),
        };
        let mut rooms = self.context.comfyui.hub.rooms();
        if let Some(happened) = happened {
            rooms.count(&tenant, happened.seq, -1);
        }
        match &prompt.client {
            Some(client) if is_told => {
                let (last, first) = words
                    .split_last()
                    .map_or((&[][..], &[][..]), |(last, first)| (std::slice::from_ref(last), first));
                rooms.tell(&tenant, Some(client), first);
                for (node, mime, bytes) in &pictures {
                    let data = json!({ "node": node, "display_node": node, "prompt_id": prompt.id });
                    rooms.tell(&tenant, Some(client), &[Word::new("executing", data)]);
                    let picture = Picture { node: Some(node), mime, bytes };
                    rooms.send(&tenant, client, &prompt.id, &picture);
                }
                rooms.tell(&tenant, Some(client), last);
            }
            Some(client) if prompt.is_history() => {
                rooms.miss(tenant.clone(), client.clone(), job, prompt.life.changed_at);
            }
            Some(_) | None => {}
        }
        rooms.tell_status(&tenant);
        if is_told {
            rooms.tell(&tenant, prompt.client.as_deref(), &[end_of(&prompt)]);
        }
        Ok(())
    }

    /// It is stopped here before its service says where it stopped.
    async fn interrupted(&self, run: &Run) -> Result<Option<Map<String, Value>>, StoreError> {
        let Some(node) = run.executing.as_ref().and_then(|data| data["node"].as_str()) else {
            return Ok(None);
        };
        let workflow = self.context.store.workflow(run.job).await?;
        let class = workflow.map(|body| Workflow::read(&body).graph[node]["class_type"].clone());
        let now = self.context.plane.clock.now().as_millis();
        let words = json!({
            "prompt_id": run.prompt, "node_id": node, "node_type": class.unwrap_or_default(), "executed": run.told,
            "timestamp": now,
        });
        Ok(words.as_object().cloned())
    }

    /// For the history: the store keeps one sentence of a failure, and people look for the traceback.
    async fn keep_last_words(&self, job: JobId, words: &Map<String, Value>) {
        let mut words = words.clone();
        if json!(words).to_string().len() > LAST_WORDS_BYTES_MAX {
            words.remove("current_inputs");
            words.remove("current_outputs");
        }
        let Ok(body) = to_raw_value(&words) else { return };
        if body.get().len() > LAST_WORDS_BYTES_MAX {
            return;
        }
        let document = Document {
            shelf: Shelf::Comfyui,
            id: last_words_id(job),
            tenant: None,
            mark: String::new(),
            expires_at: Some(self.context.plane.clock.now().plus(self.context.retention)),
            body: Arc::from(body),
        };
        if let Err(error) = self.context.plane.request(Event::Keep(Arc::new(document))).await {
            warn!(%job, %error, "what the service said of a failure is not kept");
        }
    }

    /// Some news were missed: whatever ended meanwhile is told now.
    async fn catch_up(&self) -> Result<(), StoreError> {
        if let Err(error) = self.context.comfyui.hub.recount(&self.context).await {
            warn!(%error, "the door could not count what is open");
        }
        let jobs: Vec<JobId> = self.context.comfyui.hub.rooms().runs.keys().copied().collect();
        for job in jobs {
            let stored = self.context.store.job(job).await?;
            if stored.is_none_or(|(_, life)| !life.state.is_open()) {
                self.ended(job, None).await?;
            }
        }
        Ok(())
    }

    async fn remember_before_start(&self) -> Result<(), StoreError> {
        let now = self.context.plane.clock.now();
        let newest = self.context.store.jobs(Filter::default(), None, BEFORE_START_MAX).await?;
        let mut rooms = self.context.comfyui.hub.rooms();
        for (accepted, life) in newest.into_iter().rev() {
            let (tenant, at) = (accepted.tenant.clone(), life.changed_at);
            let Some(prompt) = Prompt::of(&accepted, life) else { continue };
            let is_fresh = now.since(at) < BEFORE_START.min(MISSED_FOR);
            if let Some(client) = prompt.client.clone().filter(|_| prompt.is_history() && is_fresh) {
                rooms.miss(tenant, client, prompt.job, now);
            }
        }
        Ok(())
    }
}

/// All that is to be said up to the last word; `run` is what was told so far.
pub(super) fn ending(prompt: &Prompt, run: Option<Run>, ended: &Ended) -> Vec<Word> {
    let is_success = ended.words.last().is_some_and(|(kind, _)| *kind == "execution_success");
    let (has_begun, told, held) = match run {
        Some(mut run) => {
            let held = run.rest(is_success);
            (run.has_begun, run.told, held)
        }
        None => (false, Default::default(), Vec::new()),
    };
    let (last, first) = match ended.words.split_last() {
        Some((last, first)) => (Some(last), first),
        None => (None, &[][..]),
    };
    let mut words = held;
    if !has_begun {
        words.extend(first.iter().map(|(kind, data)| Word::new(kind, data.clone())));
    }
    for (node, output) in ended.outputs.iter().filter(|(node, _)| !told.contains(*node)) {
        let data = json!({ "node": node, "display_node": node, "output": output, "prompt_id": prompt.id });
        words.push(Word::new("executed", data));
    }
    words.extend(last.map(|(kind, data)| Word::new(kind, data.clone())));
    words
}

/// Nothing more will come of this prompt.
pub(super) fn end_of(prompt: &Prompt) -> Word {
    Word::new("executing", json!({ "node": null, "prompt_id": prompt.id }))
}

/// What a client that was away is told of a prompt that ended meanwhile.
pub(super) async fn retell(context: &Context, tenant: &Tenant, job: JobId) -> Result<Vec<Word>, StoreError> {
    let Some((owner, prompt)) = Prompt::read(context, job).await? else { return Ok(Vec::new()) };
    if owner != *tenant {
        return Ok(Vec::new());
    }
    let mut words = ending(&prompt, None, &Ended::read(context, &prompt).await?);
    words.push(end_of(&prompt));
    Ok(words)
}
