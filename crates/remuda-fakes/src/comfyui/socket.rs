//! WebSockets and the single outbox behind them. Messages are sent in order to one socket after the other, so a client
//! that does not read blocks all others, as in the original.
//!
//! Sockets are keyed by client id. A second socket with an id replaces the first; whichever closes first removes the
//! entry, and the other one then gets no more messages.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, Utf8Bytes, WebSocket};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use super::server::Server;
use super::{info, values};

/// Messages waiting for delivery. The original has no limit; beyond this one, messages are dropped.
const OUTBOX_MAX: usize = 200_000;
/// Messages buffered per socket; a stuck socket blocks the outbox after that.
const SOCKET_MAX: usize = 8;
/// Largest message from a client.
pub(super) const MESSAGE_MAX: usize = 4 << 20;

#[derive(Debug)]
enum Parcel {
    /// Without a client: to all.
    Message { client: Option<String>, message: Message },
    /// Kills the process that tries to deliver it.
    Poison,
}

/// How long the process lives after that, so that earlier messages arrive.
const POISON_TAKES: Duration = Duration::from_millis(50);

/// A socket in the table.
#[derive(Clone, Debug)]
struct Socket {
    inbox: mpsc::Sender<Message>,
    serial: u64,
    has_preview_metadata: Arc<AtomicBool>,
}

/// Faults of the sockets.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Mood {
    /// Sockets with a lower serial number are cut.
    cut_below: u64,
    /// Sockets with a lower serial number are neither read nor written.
    frozen_below: u64,
    /// Nothing is delivered.
    is_held: bool,
}

#[derive(Debug)]
pub(super) struct Sockets {
    by_client: Mutex<BTreeMap<String, Socket>>,
    outbox: mpsc::Sender<Parcel>,
    mood: watch::Sender<Mood>,
    serial: AtomicU64,
}

impl Sockets {
    pub(super) fn new() -> (Sockets, Outbox) {
        let (outbox, parcels) = mpsc::channel(OUTBOX_MAX);
        let (mood, _) = watch::channel(Mood::default());
        let sockets = Sockets { by_client: Mutex::default(), outbox, mood, serial: AtomicU64::new(0) };
        (sockets, Outbox(parcels))
    }

    fn by_client(&self) -> MutexGuard<'_, BTreeMap<String, Socket>> {
        self.by_client.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message into the outbox, for one client or for all.
    pub(super) fn post(&self, client: Option<&str>, kind: &str, data: &Value) {
        self.post_message(client, Message::Text(envelope(kind, data)));
    }

    pub(super) fn post_binary(&self, client: Option<&str>, frame: Vec<u8>) {
        self.post_message(client, Message::Binary(frame.into()));
    }

    pub(super) fn post_message(&self, client: Option<&str>, message: Message) {
        self.enqueue(Parcel::Message { client: client.map(str::to_owned), message });
    }

    /// Queues a message that kills the process that delivers it.
    pub(super) fn poison(&self) {
        self.enqueue(Parcel::Poison);
    }

    fn enqueue(&self, parcel: Parcel) {
        if self.outbox.try_send(parcel).is_err() {
            tracing::debug!("a stand-in's outbox is full");
        }
    }

    /// Whether this client supports previews with metadata.
    pub(super) fn has_preview_metadata(&self, client: Option<&str>) -> bool {
        let sockets = self.by_client();
        client
            .and_then(|client| sockets.get(client))
            .is_some_and(|socket| socket.has_preview_metadata.load(Ordering::Relaxed))
    }

    /// Cuts every open socket without a close frame.
    pub(super) fn cut(&self) {
        let below = self.serial.load(Ordering::Relaxed);
        self.mood.send_modify(|mood| mood.cut_below = below);
    }

    /// Keeps every open socket open, but stops reading and writing.
    pub(super) fn freeze(&self) {
        let below = self.serial.load(Ordering::Relaxed);
        self.mood.send_modify(|mood| mood.frozen_below = below);
    }

    /// Stops or resumes delivery.
    pub(super) fn hold(&self, is_held: bool) {
        self.mood.send_modify(|mood| mood.is_held = is_held);
    }
}

fn envelope(kind: &str, data: &Value) -> Utf8Bytes {
    format!("{{\"type\":\"{kind}\",\"data\":{}}}", values::text(data)).into()
}

/// The receiving end of the outbox.
#[derive(Debug)]
pub(super) struct Outbox(mpsc::Receiver<Parcel>);

/// Delivers the outbox, message by message, socket by socket.
pub(super) async fn publish(server: Arc<Server>, mut outbox: Outbox) {
    let mut mood = server.sockets.mood.subscribe();
    while let Some(parcel) = outbox.0.recv().await {
        if mood.wait_for(|mood| !mood.is_held).await.is_err() {
            return;
        }
        let Parcel::Message { client, message } = parcel else {
            tokio::time::sleep(POISON_TAKES).await;
            server.die();
            return;
        };
        let targets: Vec<Socket> = {
            let sockets = server.sockets.by_client();
            match &client {
                Some(client) => sockets.get(client).cloned().into_iter().collect(),
                None => sockets.values().cloned().collect(),
            }
        };
        for socket in targets {
            // A closed socket needs no message.
            let _ = socket.inbox.send(message.clone()).await;
        }
    }
}

/// Waits for a state of the sockets; returns never if the server is gone, because its tasks end with it.
async fn until(mood: &mut watch::Receiver<Mood>, is_reached: impl FnMut(&Mood) -> bool) {
    let _ = mood.wait_for(is_reached).await;
}

/// Serves one socket, starting with the greeting.
pub(super) async fn attend(server: Arc<Server>, mut socket: WebSocket, client: Option<String>) {
    let client = client
        .filter(|client| !client.is_empty())
        .unwrap_or_else(|| uuid::Uuid::new_v4().simple().to_string());
    let (sender, inbox) = mpsc::channel(SOCKET_MAX);
    let serial = server.sockets.serial.fetch_add(1, Ordering::Relaxed);
    let flag = Arc::new(AtomicBool::new(false));
    let entry = Socket { inbox: sender, serial, has_preview_metadata: Arc::clone(&flag) };
    let _seat = Seat::take(&server, &client, entry);
    let mut attended = Attended { server: &server, client: &client, serial, inbox, is_first: true };
    let mut mood = server.sockets.mood.subscribe();
    tokio::select! {
        () = attended.talk(&mut socket) => {}
        () = until(&mut mood, |mood| serial < mood.cut_below) => {}
    }
}

/// An entry in the table of sockets; removed however the socket ends, also when the server dies.
struct Seat<'a> {
    server: &'a Server,
    client: &'a str,
}

impl Seat<'_> {
    fn take<'a>(server: &'a Server, client: &'a str, entry: Socket) -> Seat<'a> {
        server.sockets.by_client().insert(client.to_owned(), entry);
        let mut counts = server.estate.tally.change();
        counts.sockets_open += 1;
        counts.sockets_opened += 1;
        Seat { server, client }
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        // Whichever socket has the id now: the original checks only the id.
        self.server.sockets.by_client().remove(self.client);
        self.server.estate.tally.change().sockets_open -= 1;
    }
}

struct Attended<'a> {
    server: &'a Server,
    client: &'a str,
    serial: u64,
    inbox: mpsc::Receiver<Message>,
    /// Only the first message may declare client features.
    is_first: bool,
}

impl Attended<'_> {
    async fn talk(&mut self, socket: &mut WebSocket) {
        let greeting = json!({"status": self.server.exec_info(), "sid": self.client});
        if socket.send(Message::Text(envelope("status", &greeting))).await.is_err() {
            return;
        }
        let node = {
            let focus = self.server.focus();
            focus.node.clone().filter(|_| focus.client.as_deref() == Some(self.client))
        };
        if let Some(node) = node {
            let message = Message::Text(envelope("executing", &json!({"node": node})));
            if socket.send(message).await.is_err() {
                return;
            }
        }
        let mut mood = self.server.sockets.mood.subscribe();
        let serial = self.serial;
        loop {
            tokio::select! {
                message = self.inbox.recv() => match message {
                    Some(message) => if socket.send(message).await.is_err() { return },
                    // Another socket with this id has closed and removed the entry: no more messages, but still open.
                    None => return self.be_deaf(socket).await,
                },
                message = socket.recv() => match message {
                    Some(Ok(message)) => if !self.hear(socket, &message).await { return },
                    Some(Err(_)) => {
                        let frame = CloseFrame { code: 1009, reason: Utf8Bytes::default() };
                        let _ = socket.send(Message::Close(Some(frame))).await;
                        return;
                    }
                    None => return,
                },
                () = until(&mut mood, |mood| serial < mood.frozen_below) => return self.be_frozen().await,
            }
        }
    }

    /// Keeps reading so that pings are answered, and sends nothing.
    async fn be_deaf(&mut self, socket: &mut WebSocket) {
        while let Some(Ok(message)) = socket.recv().await {
            if !self.hear(socket, &message).await {
                return;
            }
        }
    }

    /// Discards messages for the client, and reads nothing.
    async fn be_frozen(&mut self) {
        while self.inbox.recv().await.is_some() {}
        std::future::pending::<()>().await;
    }

    /// Handles a client message; only the first matters. Returns whether the socket stays open.
    async fn hear(&mut self, socket: &mut WebSocket, message: &Message) -> bool {
        let text = match message {
            Message::Text(text) => text,
            Message::Close(_) => return false,
            Message::Binary(_) | Message::Ping(_) | Message::Pong(_) => return true,
        };
        let Ok(said) = serde_json::from_str::<Value>(text) else { return true };
        let is_introduction = self.is_first && said["type"] == "feature_flags";
        self.is_first = false;
        if !is_introduction {
            return true;
        }
        let registered = self.server.sockets.by_client().get(self.client).cloned();
        let Some(registered) = registered else { return true };
        let can = said["data"]["supports_preview_metadata"] == true;
        registered.has_preview_metadata.store(can, Ordering::Relaxed);
        let answer = Message::Text(envelope("feature_flags", &info::features(self.server)));
        if registered.serial == self.serial {
            return socket.send(answer).await.is_ok();
        }
        let _ = registered.inbox.send(answer).await;
        true
    }
}
