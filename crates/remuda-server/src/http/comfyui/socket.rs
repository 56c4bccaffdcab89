//! `/ws`: one socket, from its greeting to its end. Reading and writing go their own ways; what a client says matters only
//! once, when it introduces itself.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::{StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream::SplitSink;
use futures_util::{SinkExt as _, StreamExt as _};
use remuda_core::id::Tenant;
use serde_json::Value;
use tokio::sync::OwnedSemaphorePermit;
use tracing::{debug, warn};

use super::super::{ApiError, Caller, Context};
use super::client_registry::{Missed, Taken};
use super::error::Refused;
use super::publisher::retell;
use super::queue::query;
use super::run_translator::Word;
use super::server_info::features;
use crate::shutdown::stopped;

/// The most a client may say at once, as in ComfyUI.
const MESSAGE_MAX: usize = 4 << 20;
/// Messages are small, and there may be a thousand sockets: the library's own choice is 128 KiB for each.
const BUFFER: usize = 4 << 10;
/// A client's id is on every event of its jobs.
const CLIENT_BYTES_MAX: usize = 200;
/// Some clients give a socket up that says nothing for ten seconds, and a job may wait for longer than that.
const QUIET_MAX: std::time::Duration = std::time::Duration::from_secs(4);
/// Whoever answers no ping for twice as long is gone, though nobody said so.
const PING_EVERY: std::time::Duration = std::time::Duration::from_secs(30);
/// A peer that takes nothing for so long is gone.
const WRITE_MAX: std::time::Duration = std::time::Duration::from_secs(30);

pub(super) async fn open(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refused> {
    let tenant = caller.tenant(None)?;
    let upgrade = upgrade.map_err(|rejection| ApiError::bad_request(rejection.to_string()))?;
    let client = query(&uri).remove("clientId").filter(|client| !client.is_empty());
    if client.as_ref().is_some_and(|client| client.len() > CLIENT_BYTES_MAX) {
        return Err(ApiError::bad_request(format!("clientId has at most {CLIENT_BYTES_MAX} bytes")).into());
    }
    let client = client.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let place = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many event streams and sockets are open (limits.streams_max)";
        let mut problem = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message);
        problem.retry_after = Some(5);
        problem
    })?;
    let upgrade = upgrade.max_message_size(MESSAGE_MAX).read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    Ok(upgrade.on_upgrade(move |socket| attend(context, caller, tenant, client, socket, place)))
}

async fn attend(
    context: Context,
    caller: Caller,
    tenant: Tenant,
    client: String,
    socket: WebSocket,
    _place: OwnedSemaphorePermit,
) {
    let mut taken = match context.comfyui.hub.enter(&context, &tenant, &client).await {
        Ok(taken) => taken,
        Err(error) => {
            debug!(%error, "a socket came while the plane cannot say what is open");
            return;
        }
    };
    tokio::select! {
        () = talk(&context, &tenant, socket, &mut taken) => {}
        () = caller.revoked(context.plane.clock) => {}
    }
    context.comfyui.hub.leave(&tenant, taken.serial, taken.missed);
}

async fn talk(context: &Context, tenant: &Tenant, socket: WebSocket, taken: &mut Taken) {
    let Taken { serial, inbox, knows_metadata, owes_status, missed } = taken;
    let (mut outbox, mut said) = socket.split();
    let mut is_first = true;
    let mut stopping = context.stopping.clone();
    let mut quiet = tokio::time::interval(QUIET_MAX);
    quiet.reset();
    let mut ping = tokio::time::interval(PING_EVERY);
    ping.reset();
    let mut pings_unanswered = 0;
    loop {
        if inbox.is_empty() && owes_status.swap(false, Ordering::Relaxed) {
            let status = context.comfyui.hub.rooms().status(tenant);
            if let Some(status) = status
                && !send(&mut outbox, Message::Text(status.text().into())).await
            {
                return;
            }
        }
        tokio::select! {
            message = inbox.recv() => match message {
                Some(message) => {
                    quiet.reset();
                    if !send(&mut outbox, message).await {
                        return;
                    }
                }
                // It was too slow: what it would be told from here on would have a hole in it.
                None => break,
            },
            // Straight to the socket: there may be more of it than an outbox holds.
            () = std::future::ready(()), if !missed.is_empty() && inbox.is_empty() => {
                quiet.reset();
                if !tell_missed(context, tenant, &mut outbox, missed).await {
                    return;
                }
            }
            message = said.next() => {
                pings_unanswered = 0;
                let text = match message {
                    Some(Ok(Message::Text(text))) => text,
                    Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                };
                let introduction = std::mem::take(&mut is_first).then(|| serde_json::from_str::<Value>(&text).ok()).flatten();
                let Some(said) = introduction.filter(|said| said["type"] == "feature_flags") else { continue };
                let knows = said["data"]["supports_preview_metadata"] == true;
                knows_metadata.store(knows, Ordering::Relaxed);
                let answer = Word::new("feature_flags", features(context));
                context.comfyui.hub.rooms().tell_one(tenant, *serial, &[answer]);
            }
            _ = quiet.tick() => {
                owes_status.fetch_or(context.comfyui.hub.rooms().has_open(tenant), Ordering::Relaxed);
            }
            _ = ping.tick() => {
                pings_unanswered += 1;
                if pings_unanswered > 2 || !send(&mut outbox, Message::Ping(Bytes::new())).await {
                    return;
                }
            }
            () = stopped(&mut stopping) => break,
        }
    }
    send(&mut outbox, Message::Close(None)).await;
}

/// How the next prompt ended that the client was not there to hear of; it is missed until all of that is sent.
async fn tell_missed(
    context: &Context,
    tenant: &Tenant,
    outbox: &mut SplitSink<WebSocket, Message>,
    missed: &mut VecDeque<Missed>,
) -> bool {
    let Some(job) = missed.front().map(|missed| missed.job) else { return true };
    let words = retell(context, tenant, job).await.unwrap_or_else(|error| {
        warn!(%job, %error, "a client that came back is not told how its prompt ended");
        Vec::new()
    });
    for word in words {
        if !send(outbox, Message::Text(word.text().into())).await {
            return false;
        }
    }
    missed.pop_front();
    true
}

/// Whether it was taken.
async fn send(outbox: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(tokio::time::timeout(WRITE_MAX, outbox.send(message)).await, Ok(Ok(())))
}
