//! The socket on which a server tells how far our prompts are. It is a hint only: it may fall silent while it looks well,
//! and then only asking helps. So this reports, and closes with a reason; it never opens anew by itself.
//!
//! The server sends no pings, so we do: every 10 s, and after two without any answer the socket counts as closed. Frames
//! are bounded: a preview too large to be one is dropped, a frame too large for our memory closes the socket.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use reqwest::Url;
use serde_json::value::RawValue;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{self, Message as Frame, Utf8Bytes};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async_tls_with_config};

use super::client::{Error, not_connected};
use super::{Message, Target, json};
use remuda_net::text::one_line;

const PING_EVERY: Duration = Duration::from_secs(10);
const PINGS_MISSED_MAX: u32 = 2;

/// Large enough for the state of ten thousand nodes, and for a picture of 4096 pixels a side that a node sends as result.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A preview is a JPEG of 512 pixels a side and some 50 KB. Results that are sent like previews are PNG, and may be large.
const PREVIEW_BYTES_MAX: usize = 4 << 20;

/// A server that speaks differently does so in every message; one odd message a day must not matter.
const MALFORMED_MAX: u32 = 20;

#[derive(Debug)]
pub struct Socket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    ping_every: Duration,
    ping_at: Instant,
    /// Pings since anything was last heard.
    pings_unanswered: u32,
    malformed: u32,
    dropped: u32,
}

/// A message, and how it was said.
#[derive(Clone, Debug)]
pub struct Heard {
    pub message: Message,
    text: Option<Utf8Bytes>,
}

impl Heard {
    /// `{"type", "data"}` in the server's own words, mended where Python writes what is no JSON; nothing for pictures.
    pub fn raw(&self) -> Option<Box<RawValue>> {
        json::read(self.text.as_ref()?.as_bytes()).ok()
    }
}

/// Why a socket is of no more use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Closed {
    #[error("ComfyUI closed the socket: {0}")]
    ByServer(String),
    /// No close was said: the server died, or the network.
    #[error("the socket broke: {0}")]
    Broken(String),
    #[error("nothing came over the socket, not even answers to {PINGS_MISSED_MAX} pings")]
    Silent,
    #[error("ComfyUI sent a frame of more than {FRAME_BYTES_MAX} bytes")]
    TooLarge,
    #[error("ComfyUI sent {MALFORMED_MAX} messages that make no sense")]
    Malformed,
}

impl Socket {
    /// Give each agent a `client_id` of its own: of two sockets with one id, the newer goes deaf when the older closes.
    pub async fn connect(target: &Target, client_id: &str, within: Duration) -> Result<Socket, Error> {
        match timeout(within, Socket::open(target, client_id, PING_EVERY)).await {
            Ok(socket) => socket,
            Err(_) => Err(Error::Timeout(within)),
        }
    }

    pub(super) async fn open(
        target: &Target,
        client_id: &str,
        ping_every: Duration,
    ) -> Result<Socket, Error> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = address(target, client_id)?;
        let mut request =
            url.as_str().into_client_request().map_err(|error| Error::Target(error.to_string()))?;
        request.headers_mut().extend(target.header_map()?);
        let stream = dial(&url).await.map_err(|error| not_connected(&error))?;
        let config = WebSocketConfig::default()
            .max_frame_size(Some(FRAME_BYTES_MAX))
            .max_message_size(Some(FRAME_BYTES_MAX));
        let (mut stream, _) =
            client_async_tls_with_config(request, stream, Some(config), None).await.map_err(refused)?;
        // Only as the first message is this listened to.
        let flags = r#"{"type":"feature_flags","data":{"supports_preview_metadata":true}}"#;
        stream.send(Frame::text(flags)).await.map_err(|error| Error::Broken(error.to_string()))?;
        let ping_at = Instant::now() + ping_every;
        Ok(Socket { stream, ping_every, ping_at, pings_unanswered: 0, malformed: 0, dropped: 0 })
    }

    /// The next message, for whoever does not care how it was said.
    pub async fn next(&mut self) -> Result<Message, Closed> {
        Ok(self.hear().await?.message)
    }

    /// The next message. May be dropped while it waits, and called again, without losing one.
    pub async fn hear(&mut self) -> Result<Heard, Closed> {
        loop {
            let frame = match tokio::time::timeout_at(self.ping_at, self.stream.next()).await {
                Err(_) => {
                    self.ping().await?;
                    continue;
                }
                Ok(None) => return Err(Closed::Broken("it ended".to_owned())),
                Ok(Some(Err(error))) => return Err(closed(&error)),
                Ok(Some(Ok(frame))) => frame,
            };
            self.pings_unanswered = 0;
            let (message, text) = match frame {
                Frame::Text(text) => (Message::of_text(&text), Some(text)),
                Frame::Binary(bytes) => (Message::of_binary(&bytes), None),
                Frame::Close(why) => {
                    let why = why.map(|why| format!("{} {}", why.code, one_line(&why.reason, 120)));
                    return Err(Closed::ByServer(why.unwrap_or_else(|| "without a reason".to_owned())));
                }
                Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => continue,
            };
            match &message {
                Message::Preview { mime, bytes, .. }
                    if mime != "image/png" && bytes.len() > PREVIEW_BYTES_MAX =>
                {
                    self.dropped += 1;
                    continue;
                }
                Message::Malformed if self.malformed + 1 >= MALFORMED_MAX => return Err(Closed::Malformed),
                Message::Malformed => self.malformed += 1,
                _ => {}
            }
            return Ok(Heard { message, text });
        }
    }

    /// How many frames were dropped because they were too large for a preview.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Says goodbye, so that the server forgets this socket before another with the same id comes.
    pub async fn close(mut self) {
        // Whoever does not answer a goodbye within a second is gone too.
        let _ = timeout(Duration::from_secs(1), async {
            self.stream.close(None).await?;
            while self.stream.next().await.is_some_and(|frame| frame.is_ok()) {}
            Ok::<_, tungstenite::Error>(())
        })
        .await;
    }

    async fn ping(&mut self) -> Result<(), Closed> {
        if self.pings_unanswered >= PINGS_MISSED_MAX {
            return Err(Closed::Silent);
        }
        // Both before the waiting: this may be dropped in the middle of it.
        self.pings_unanswered += 1;
        self.ping_at = Instant::now() + self.ping_every;
        match timeout(self.ping_every, self.stream.send(Frame::Ping(Vec::new().into()))).await {
            Ok(sent) => sent.map_err(|error| closed(&error)),
            Err(_) => Err(Closed::Silent),
        }
    }
}

fn address(target: &Target, client_id: &str) -> Result<Url, Error> {
    let base = target.base()?;
    let wrong = || Error::Target(format!("{base} has no socket"));
    let mut url = base.join("ws").map_err(|_| wrong())?;
    let scheme = if base.scheme() == "https" { "wss" } else { "ws" };
    url.set_scheme(scheme).map_err(|()| wrong())?;
    url.query_pairs_mut().append_pair("clientId", client_id);
    Ok(url)
}

async fn dial(url: &Url) -> std::io::Result<TcpStream> {
    let addresses = url.socket_addrs(|| None)?;
    let stream = TcpStream::connect(&*addresses).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn refused(error: tungstenite::Error) -> Error {
    match error {
        tungstenite::Error::Http(response) => Error::Status {
            status: response.status().as_u16(),
            path: "/ws".to_owned(),
            text: one_line(&String::from_utf8_lossy(response.body().as_deref().unwrap_or_default()), 200),
        },
        error => Error::Broken(error.to_string()),
    }
}

fn closed(error: &tungstenite::Error) -> Closed {
    match error {
        tungstenite::Error::Capacity(_) => Closed::TooLarge,
        error => Closed::Broken(error.to_string()),
    }
}
