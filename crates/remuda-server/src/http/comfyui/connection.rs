//! The outgoing queue of one connection: bounded in messages and in bytes. A message for several connections is encoded once.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::ws::Message;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::run_translator::ClientMessage;

/// Messages queued for one connection.
pub(super) const OUTBOX_MAX: usize = 1024;
/// From this length on, droppable messages are skipped.
pub(super) const OUTBOX_BUSY: usize = OUTBOX_MAX / 2;
/// The same limit in bytes of all kinds: about a dozen previews.
pub(super) const PREVIEW_BYTES_MAX: usize = 4 << 20;
/// Bytes of queued text messages. A client that leaves more unread is disconnected.
pub(super) const MESSAGES_BYTES_MAX: usize = 8 << 20;
/// Bytes of queued images. The result images of one prompt arrive together and must fit.
pub(super) const IMAGES_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) client: String,
    pub(super) outbox: Outbox,
    pub(super) knows_metadata: Arc<AtomicBool>,
    pub(super) owes_status: Arc<AtomicBool>,
    /// Gets lines of the log.
    pub(super) follows_logs: bool,
}

impl Connection {
    /// Returns false if the queue is full.
    pub(super) fn send_text(&self, text: &EncodedMessage) -> bool {
        self.outbox.push(text.frame.clone())
    }

    pub(super) fn send_image(&self, image: &EncodedImage<'_>) -> bool {
        self.outbox.push(Message::Binary(image.frame(self.knows_metadata.load(Ordering::Relaxed))))
    }
}

/// Bytes queued for one connection.
#[derive(Debug, Default)]
struct PendingBytes {
    messages: AtomicUsize,
    images: AtomicUsize,
}

impl PendingBytes {
    /// The counter, the size and the budget that apply to a message.
    fn budget(&self, message: &Message) -> (&AtomicUsize, usize, usize) {
        match message {
            Message::Binary(bytes) => (&self.images, bytes.len(), IMAGES_BYTES_MAX),
            Message::Text(text) => (&self.messages, text.len(), MESSAGES_BYTES_MAX),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => {
                (&self.messages, 0, MESSAGES_BYTES_MAX)
            }
        }
    }
}

pub(super) fn outbox_channel() -> (Outbox, OutboxReceiver) {
    let ((sender, receiver), pending) = (mpsc::channel(OUTBOX_MAX), Arc::<PendingBytes>::default());
    (Outbox { sender, pending: pending.clone() }, OutboxReceiver { receiver, pending })
}

#[derive(Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Message>,
    pending: Arc<PendingBytes>,
}

impl Outbox {
    /// True if droppable messages should be skipped.
    pub(super) fn is_busy(&self) -> bool {
        let bytes =
            self.pending.messages.load(Ordering::Relaxed) + self.pending.images.load(Ordering::Relaxed);
        self.sender.capacity() <= OUTBOX_BUSY || bytes >= PREVIEW_BYTES_MAX
    }

    /// Returns false if the queue is full. A message larger than the whole budget is accepted into an empty queue.
    fn push(&self, message: Message) -> bool {
        let (pending, size, max) = self.pending.budget(&message);
        let before = pending.fetch_add(size, Ordering::Relaxed);
        let is_pushed = (before == 0 || before + size <= max) && self.sender.try_send(message).is_ok();
        if !is_pushed {
            pending.fetch_sub(size, Ordering::Relaxed);
        }
        is_pushed
    }
}

#[derive(Debug)]
pub(super) struct OutboxReceiver {
    receiver: mpsc::Receiver<Message>,
    pending: Arc<PendingBytes>,
}

impl OutboxReceiver {
    /// The next message; `None` once the connection was removed from the registry.
    pub(super) async fn recv(&mut self) -> Option<Message> {
        let message = self.receiver.recv().await?;
        self.release(&message);
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    fn release(&self, message: &Message) {
        let (pending, size, _) = self.pending.budget(message);
        pending.fetch_sub(size, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl OutboxReceiver {
    pub(super) fn try_recv(&mut self) -> Result<Message, mpsc::error::TryRecvError> {
        let message = self.receiver.try_recv()?;
        self.release(&message);
        Ok(message)
    }

    pub(super) fn len(&self) -> usize {
        self.receiver.len()
    }
}

/// A message, encoded once for all connections that receive it.
#[derive(Debug)]
pub(super) struct EncodedMessage {
    pub(super) is_droppable: bool,
    frame: Message,
}

impl EncodedMessage {
    pub(super) fn new(message: &ClientMessage) -> EncodedMessage {
        EncodedMessage { is_droppable: message.is_droppable(), frame: message.to_frame() }
    }
}

/// An image that is sent over a socket.
#[derive(Debug)]
pub(super) struct SocketImage<'a> {
    pub(super) node: Option<&'a str>,
    pub(super) mime: &'static str,
    pub(super) bytes: &'a Bytes,
}

/// An image in both binary formats of ComfyUI, each encoded on first use.
#[derive(Debug)]
pub(super) struct EncodedImage<'a> {
    prompt: &'a str,
    image: &'a SocketImage<'a>,
    with_metadata: OnceCell<Bytes>,
    without_metadata: OnceCell<Bytes>,
}

impl<'a> EncodedImage<'a> {
    pub(super) fn new(prompt: &'a str, image: &'a SocketImage<'a>) -> EncodedImage<'a> {
        EncodedImage { prompt, image, with_metadata: OnceCell::new(), without_metadata: OnceCell::new() }
    }

    fn frame(&self, has_metadata: bool) -> Bytes {
        match has_metadata {
            true => self.with_metadata.get_or_init(|| metadata_frame(self.prompt, self.image).into()).clone(),
            false => self.without_metadata.get_or_init(|| plain_frame(self.image).into()).clone(),
        }
    }
}

/// `[1][image type][image]`
fn plain_frame(image: &SocketImage<'_>) -> Vec<u8> {
    let format: u32 = if image.mime == "image/png" { 2 } else { 1 };
    [&1_u32.to_be_bytes()[..], &format.to_be_bytes(), image.bytes].concat()
}

/// `[4][length][JSON][image]`
fn metadata_frame(prompt: &str, image: &SocketImage<'_>) -> Vec<u8> {
    let node = image.node.map_or(Value::Null, Value::from);
    let metadata = json!({
        "node_id": node, "prompt_id": prompt, "display_node_id": node, "parent_node_id": null, "real_node_id": node,
        "image_type": image.mime,
    });
    let metadata = metadata.to_string();
    let length = u32::try_from(metadata.len()).unwrap_or(0);
    [&4_u32.to_be_bytes()[..], &length.to_be_bytes(), metadata.as_bytes(), image.bytes].concat()
}
