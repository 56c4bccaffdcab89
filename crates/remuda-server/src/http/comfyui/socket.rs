//! `/ws`: one websocket connection. Of the messages a client sends only the first matters, which carries its feature flags.

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
use super::client_registry::{MissedEnd, OpenConnection};
use super::error::ComfyuiError;
use super::publisher::missed_end_messages;
use super::queue::query;
use super::run_translator::ClientMessage;
use super::server_info::features;
use crate::shutdown::stopped;

/// The largest message a client may send, as in ComfyUI.
const MESSAGE_MAX: usize = 4 << 20;
/// Messages are small and there may be a thousand sockets: the default of the library is 128 KiB each.
const BUFFER: usize = 4 << 10;
/// The client id is copied into every event of its jobs.
const CLIENT_BYTES_MAX: usize = 200;
/// Some clients give up after ten seconds of silence, and a job may wait longer than that.
const STATUS_INTERVAL: std::time::Duration = std::time::Duration::from_secs(4);
/// A client that misses two pings is considered gone.
const PING_INTERVAL: std::time::Duration = std::time::Duration::from_secs(30);
/// A peer that accepts no data for this long is considered gone.
const WRITE_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

pub(super) async fn open(
    State(context): State<Context>,
    caller: Caller,
    uri: Uri,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, ComfyuiError> {
    let tenant = caller.tenant(None)?;
    let upgrade = upgrade.map_err(|rejection| ApiError::bad_request(rejection.to_string()))?;
    let client = query(&uri).remove("clientId").filter(|client| !client.is_empty());
    if client.as_ref().is_some_and(|client| client.len() > CLIENT_BYTES_MAX) {
        return Err(ApiError::bad_request(format!("clientId has at most {CLIENT_BYTES_MAX} bytes")).into());
    }
    let client = client.unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let permit = context.streams.clone().try_acquire_owned().map_err(|_| {
        let message = "too many event streams and sockets are open (limits.streams_max)";
        let mut problem = ApiError::new(StatusCode::TOO_MANY_REQUESTS, "too_many_streams", message);
        problem.retry_after = Some(5);
        problem
    })?;
    let upgrade = upgrade.max_message_size(MESSAGE_MAX).read_buffer_size(BUFFER).write_buffer_size(BUFFER);
    Ok(upgrade.on_upgrade(move |socket| serve(context, caller, tenant, client, socket, permit)))
}

async fn serve(
    context: Context,
    caller: Caller,
    tenant: Tenant,
    client: String,
    socket: WebSocket,
    _permit: OwnedSemaphorePermit,
) {
    let mut connection = match context.comfyui.clients.connect(&context, &tenant, &client).await {
        Ok(connection) => connection,
        Err(error) => {
            debug!(%error, "websocket refused: the plane could not count open jobs");
            return;
        }
    };
    tokio::select! {
        () = run(&context, &tenant, socket, &mut connection) => {}
        () = caller.revoked(context.plane.clock) => {}
    }
    context.comfyui.clients.disconnect(&tenant, connection.serial, connection.missed);
}

async fn run(context: &Context, tenant: &Tenant, socket: WebSocket, connection: &mut OpenConnection) {
    let OpenConnection { serial, inbox, knows_metadata, owes_status, missed } = connection;
    let (mut sink, mut incoming) = socket.split();
    let mut is_first = true;
    let mut stopping = context.stopping.clone();
    let mut quiet = tokio::time::interval(STATUS_INTERVAL);
    quiet.reset();
    let mut ping = tokio::time::interval(PING_INTERVAL);
    ping.reset();
    let mut pings_unanswered = 0;
    loop {
        if inbox.is_empty() && owes_status.swap(false, Ordering::Relaxed) {
            let status = context.comfyui.clients.lock().status_message(tenant);
            if let Some(status) = status
                && !send(&mut sink, Message::Text(status.to_json().into())).await
            {
                return;
            }
        }
        tokio::select! {
            message = inbox.recv() => match message {
                Some(message) => {
                    quiet.reset();
                    if !send(&mut sink, message).await {
                        return;
                    }
                }
                // The client was too slow; later messages would have a gap.
                None => break,
            },
            // Written to the socket directly: there may be more messages than the queue holds.
            () = std::future::ready(()), if !missed.is_empty() && inbox.is_empty() => {
                quiet.reset();
                if !send_missed(context, tenant, &mut sink, missed).await {
                    return;
                }
            }
            message = incoming.next() => {
                pings_unanswered = 0;
                let text = match message {
                    Some(Ok(Message::Text(text))) => text,
                    Some(Ok(Message::Binary(_) | Message::Ping(_) | Message::Pong(_))) => continue,
                    Some(Ok(Message::Close(_)) | Err(_)) | None => return,
                };
                let hello = std::mem::take(&mut is_first).then(|| serde_json::from_str::<Value>(&text).ok()).flatten();
                let Some(flags) = hello.filter(|flags| flags["type"] == "feature_flags") else { continue };
                let supports = flags["data"]["supports_preview_metadata"] == true;
                knows_metadata.store(supports, Ordering::Relaxed);
                let answer = ClientMessage::new("feature_flags", features(context));
                context.comfyui.clients.lock().reply(tenant, *serial, &[answer]);
            }
            _ = quiet.tick() => {
                owes_status.fetch_or(context.comfyui.clients.lock().has_open(tenant), Ordering::Relaxed);
            }
            _ = ping.tick() => {
                pings_unanswered += 1;
                if pings_unanswered > 2 || !send(&mut sink, Message::Ping(Bytes::new())).await {
                    return;
                }
            }
            () = stopped(&mut stopping) => break,
        }
    }
    send(&mut sink, Message::Close(None)).await;
}

/// Sends the end of the next missed prompt; it counts as missed until all its messages are sent.
async fn send_missed(
    context: &Context,
    tenant: &Tenant,
    sink: &mut SplitSink<WebSocket, Message>,
    missed: &mut VecDeque<MissedEnd>,
) -> bool {
    let Some(job) = missed.front().map(|missed| missed.job) else { return true };
    let messages = missed_end_messages(context, tenant, job).await.unwrap_or_else(|error| {
        warn!(%job, %error, "could not send the end of a missed prompt");
        Vec::new()
    });
    for message in messages {
        if !send(sink, Message::Text(message.to_json().into())).await {
            return false;
        }
    }
    missed.pop_front();
    true
}

/// Returns false if the message could not be written.
async fn send(sink: &mut SplitSink<WebSocket, Message>, message: Message) -> bool {
    matches!(tokio::time::timeout(WRITE_TIMEOUT, sink.send(message)).await, Ok(Ok(())))
}
