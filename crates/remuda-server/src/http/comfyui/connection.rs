//! One listener's place: what waits for it is bounded in number and in bytes, and what is the same for several is kept once.

use std::cell::OnceCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use axum::extract::ws::{Message, Utf8Bytes};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::run_translator::Word;

/// Messages that wait for one socket.
pub(super) const OUTBOX_MAX: usize = 1024;
/// From here on it gets only what it cannot do without.
pub(super) const OUTBOX_LIGHT: usize = OUTBOX_MAX / 2;
/// The same in bytes of all kinds: a dozen previews.
pub(super) const PREVIEW_BYTES_MAX: usize = 4 << 20;
/// Words that wait; whoever leaves more unread is let go.
pub(super) const WORDS_BYTES_MAX: usize = 8 << 20;
/// Pictures that wait. Those of one prompt that are results come all at once and must fit.
pub(super) const PICTURES_BYTES_MAX: usize = 64 << 20;

#[derive(Debug)]
pub(super) struct Seat {
    pub(super) client: String,
    pub(super) outbox: Outbox,
    pub(super) knows_metadata: Arc<AtomicBool>,
    pub(super) owes_status: Arc<AtomicBool>,
}

impl Seat {
    /// Whether there was room for it.
    pub(super) fn tell(&self, text: &Text) -> bool {
        self.outbox.put(Message::Text(text.json.clone()))
    }

    pub(super) fn send(&self, frames: &Frames<'_>) -> bool {
        self.outbox.put(Message::Binary(frames.get(self.knows_metadata.load(Ordering::Relaxed))))
    }
}

/// Bytes on their way to one socket.
#[derive(Debug, Default)]
struct Waiting {
    words: AtomicUsize,
    pictures: AtomicUsize,
}

impl Waiting {
    /// Where a message counts, and how much of that there may be.
    fn of(&self, message: &Message) -> (&AtomicUsize, usize, usize) {
        match message {
            Message::Binary(bytes) => (&self.pictures, bytes.len(), PICTURES_BYTES_MAX),
            Message::Text(text) => (&self.words, text.len(), WORDS_BYTES_MAX),
            Message::Ping(_) | Message::Pong(_) | Message::Close(_) => (&self.words, 0, WORDS_BYTES_MAX),
        }
    }
}

pub(super) fn outbox() -> (Outbox, Inbox) {
    let ((sender, receiver), waiting) = (mpsc::channel(OUTBOX_MAX), Arc::<Waiting>::default());
    (Outbox { sender, waiting: waiting.clone() }, Inbox { receiver, waiting })
}

#[derive(Debug)]
pub(super) struct Outbox {
    sender: mpsc::Sender<Message>,
    waiting: Arc<Waiting>,
}

impl Outbox {
    /// Whether it gets only what it cannot do without.
    pub(super) fn is_busy(&self) -> bool {
        let bytes =
            self.waiting.words.load(Ordering::Relaxed) + self.waiting.pictures.load(Ordering::Relaxed);
        self.sender.capacity() <= OUTBOX_LIGHT || bytes >= PREVIEW_BYTES_MAX
    }

    /// Whether there was room for it. A message that is larger than all the room goes alone.
    fn put(&self, message: Message) -> bool {
        let (waiting, size, max) = self.waiting.of(&message);
        let before = waiting.fetch_add(size, Ordering::Relaxed);
        let is_put = (before == 0 || before + size <= max) && self.sender.try_send(message).is_ok();
        if !is_put {
            waiting.fetch_sub(size, Ordering::Relaxed);
        }
        is_put
    }
}

#[derive(Debug)]
pub(super) struct Inbox {
    receiver: mpsc::Receiver<Message>,
    waiting: Arc<Waiting>,
}

impl Inbox {
    /// The next; nothing once its owner was let go.
    pub(super) async fn recv(&mut self) -> Option<Message> {
        let message = self.receiver.recv().await?;
        self.taken(&message);
        Some(message)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.receiver.is_empty()
    }

    fn taken(&self, message: &Message) {
        let (waiting, size, _) = self.waiting.of(message);
        waiting.fetch_sub(size, Ordering::Relaxed);
    }
}

#[cfg(test)]
impl Inbox {
    pub(super) fn try_recv(&mut self) -> Result<Message, mpsc::error::TryRecvError> {
        let message = self.receiver.try_recv()?;
        self.taken(&message);
        Ok(message)
    }

    pub(super) fn len(&self) -> usize {
        self.receiver.len()
    }
}

/// A word as it is sent, once for all who hear it.
#[derive(Debug)]
pub(super) struct Text {
    pub(super) is_light: bool,
    json: Utf8Bytes,
}

impl Text {
    pub(super) fn of(word: &Word) -> Text {
        Text { is_light: word.is_light(), json: word.text().into() }
    }
}

/// A picture on its way.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) node: Option<&'a str>,
    pub(super) mime: &'static str,
    pub(super) bytes: &'a Bytes,
}

/// A picture in both forms in which clients can read it, each made once if anybody wants it.
#[derive(Debug)]
pub(super) struct Frames<'a> {
    prompt: &'a str,
    picture: &'a Picture<'a>,
    named: OnceCell<Bytes>,
    plain: OnceCell<Bytes>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(prompt: &'a str, picture: &'a Picture<'a>) -> Frames<'a> {
        Frames { prompt, picture, named: OnceCell::new(), plain: OnceCell::new() }
    }

    fn get(&self, is_named: bool) -> Bytes {
        match is_named {
            true => self.named.get_or_init(|| named_frame(self.prompt, self.picture).into()).clone(),
            false => self.plain.get_or_init(|| plain_frame(self.picture).into()).clone(),
        }
    }
}

/// `[1][image type][image]`
fn plain_frame(picture: &Picture<'_>) -> Vec<u8> {
    let kind: u32 = if picture.mime == "image/png" { 2 } else { 1 };
    [&1_u32.to_be_bytes()[..], &kind.to_be_bytes(), picture.bytes].concat()
}

/// `[4][length][JSON][image]`
fn named_frame(prompt: &str, picture: &Picture<'_>) -> Vec<u8> {
    let node = picture.node.map_or(Value::Null, Value::from);
    let about = json!({
        "node_id": node, "prompt_id": prompt, "display_node_id": node, "parent_node_id": null, "real_node_id": node,
        "image_type": picture.mime,
    });
    let about = about.to_string();
    let length = u32::try_from(about.len()).unwrap_or(0);
    [&4_u32.to_be_bytes()[..], &length.to_be_bytes(), about.as_bytes(), picture.bytes].concat()
}
