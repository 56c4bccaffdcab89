//! The WebSocket on which a server reports the progress of our prompts. Its messages are only hints: a socket may go silent
//! while it stays open, and then only a probe helps. This module reports messages and closes with a reason; the caller
//! reconnects.
//!
//! The server sends no pings, so we send one every 10 s; after two without any answer the socket counts as closed. Frames
//! are bounded: an oversized preview is dropped, and a frame that is too large for our memory closes the socket.

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

use super::error::{ComfyuiError, not_connected};
use super::{ComfyuiMessage, ComfyuiTarget, json};
use remuda_net::text::one_line;

const PING_EVERY: Duration = Duration::from_secs(10);
const PINGS_MISSED_MAX: u32 = 2;

/// Large enough for the state of ten thousand nodes, and for a result image of 4096 x 4096 pixels.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A preview is a JPEG of 512 x 512 pixels, some 50 KB. Result images are sent like previews, but as PNG, and may be large.
const PREVIEW_BYTES_MAX: usize = 4 << 20;

/// An incompatible server sends only malformed messages; an occasional one must not close the socket.
const MALFORMED_MAX: u32 = 20;

#[derive(Debug)]
pub struct ComfyuiSocket {
    stream: WebSocketStream<MaybeTlsStream<TcpStream>>,
    ping_every: Duration,
    ping_at: Instant,
    /// Pings since the last received frame.
    pings_unanswered: u32,
    malformed: u32,
    dropped: u32,
}

/// A parsed message and its original text.
#[derive(Clone, Debug)]
pub struct ReceivedMessage {
    pub message: ComfyuiMessage,
    text: Option<Utf8Bytes>,
}

impl ReceivedMessage {
    /// The original `{"type", "data"}`, with Python's deviations from JSON repaired; `None` for images.
    pub fn raw_json(&self) -> Option<Box<RawValue>> {
        json::parse(self.text.as_ref()?.as_bytes()).ok()
    }
}

/// Why a socket was closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SocketClosed {
    #[error("ComfyUI closed the socket: {0}")]
    ByServer(String),
    /// The connection ended without a close frame: the server or the network failed.
    #[error("the socket broke: {0}")]
    Broken(String),
    #[error("the socket is silent: {PINGS_MISSED_MAX} pings were not answered")]
    Silent,
    #[error("ComfyUI sent a frame of more than {FRAME_BYTES_MAX} bytes")]
    TooLarge,
    #[error("ComfyUI sent {MALFORMED_MAX} malformed messages")]
    Malformed,
}

impl ComfyuiSocket {
    /// Use a distinct `client_id` for each agent: of two sockets with the same id, the newer stops receiving when the older
    /// closes.
    pub async fn connect(
        target: &ComfyuiTarget,
        client_id: &str,
        within: Duration,
    ) -> Result<ComfyuiSocket, ComfyuiError> {
        match timeout(within, ComfyuiSocket::open(target, client_id, PING_EVERY)).await {
            Ok(socket) => socket,
            Err(_) => Err(ComfyuiError::Timeout(within)),
        }
    }

    pub(super) async fn open(
        target: &ComfyuiTarget,
        client_id: &str,
        ping_every: Duration,
    ) -> Result<ComfyuiSocket, ComfyuiError> {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let url = socket_url(target, client_id)?;
        let mut request =
            url.as_str().into_client_request().map_err(|error| ComfyuiError::Target(error.to_string()))?;
        request.headers_mut().extend(target.header_map()?);
        let stream = dial(&url).await.map_err(|error| not_connected(&error))?;
        let config = WebSocketConfig::default()
            .max_frame_size(Some(FRAME_BYTES_MAX))
            .max_message_size(Some(FRAME_BYTES_MAX));
        let (mut stream, _) =
            client_async_tls_with_config(request, stream, Some(config), None).await.map_err(refused)?;
        // ComfyUI reads the feature flags only from the first message.
        let flags = r#"{"type":"feature_flags","data":{"supports_preview_metadata":true}}"#;
        stream.send(Frame::text(flags)).await.map_err(|error| ComfyuiError::Broken(error.to_string()))?;
        let ping_at = Instant::now() + ping_every;
        Ok(ComfyuiSocket { stream, ping_every, ping_at, pings_unanswered: 0, malformed: 0, dropped: 0 })
    }

    /// The next message without its original text.
    pub async fn recv_message(&mut self) -> Result<ComfyuiMessage, SocketClosed> {
        Ok(self.recv().await?.message)
    }

    /// The next message. Cancel-safe: dropping the future loses no message.
    pub async fn recv(&mut self) -> Result<ReceivedMessage, SocketClosed> {
        loop {
            let frame = match tokio::time::timeout_at(self.ping_at, self.stream.next()).await {
                Err(_) => {
                    self.ping().await?;
                    continue;
                }
                Ok(None) => return Err(SocketClosed::Broken("end of stream".to_owned())),
                Ok(Some(Err(error))) => return Err(closed(&error)),
                Ok(Some(Ok(frame))) => frame,
            };
            self.pings_unanswered = 0;
            let (message, text) = match frame {
                Frame::Text(text) => (ComfyuiMessage::from_text(&text), Some(text)),
                Frame::Binary(bytes) => (ComfyuiMessage::from_binary(&bytes), None),
                Frame::Close(why) => {
                    let why = why.map(|why| format!("{} {}", why.code, one_line(&why.reason, 120)));
                    return Err(SocketClosed::ByServer(why.unwrap_or_else(|| "without a reason".to_owned())));
                }
                Frame::Ping(_) | Frame::Pong(_) | Frame::Frame(_) => continue,
            };
            match &message {
                ComfyuiMessage::Preview { mime, bytes, .. }
                    if mime != "image/png" && bytes.len() > PREVIEW_BYTES_MAX =>
                {
                    self.dropped += 1;
                    continue;
                }
                ComfyuiMessage::Malformed if self.malformed + 1 >= MALFORMED_MAX => {
                    return Err(SocketClosed::Malformed);
                }
                ComfyuiMessage::Malformed => self.malformed += 1,
                _ => {}
            }
            return Ok(ReceivedMessage { message, text });
        }
    }

    /// Number of previews that were dropped because of their size.
    pub fn dropped(&self) -> u32 {
        self.dropped
    }

    /// Closes the socket properly, so that the server removes it before another one with the same id connects.
    pub async fn close(mut self) {
        // A server that does not answer the close frame within a second is gone.
        let _ = timeout(Duration::from_secs(1), async {
            self.stream.close(None).await?;
            while self.stream.next().await.is_some_and(|frame| frame.is_ok()) {}
            Ok::<_, tungstenite::Error>(())
        })
        .await;
    }

    async fn ping(&mut self) -> Result<(), SocketClosed> {
        if self.pings_unanswered >= PINGS_MISSED_MAX {
            return Err(SocketClosed::Silent);
        }
        // Both before the await: this future may be dropped during it.
        self.pings_unanswered += 1;
        self.ping_at = Instant::now() + self.ping_every;
        match timeout(self.ping_every, self.stream.send(Frame::Ping(Vec::new().into()))).await {
            Ok(sent) => sent.map_err(|error| closed(&error)),
            Err(_) => Err(SocketClosed::Silent),
        }
    }
}

fn socket_url(target: &ComfyuiTarget, client_id: &str) -> Result<Url, ComfyuiError> {
    let base = target.base()?;
    let wrong = || ComfyuiError::Target(format!("{base} has no WebSocket address"));
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

fn refused(error: tungstenite::Error) -> ComfyuiError {
    match error {
        tungstenite::Error::Http(response) => ComfyuiError::Status {
            status: response.status().as_u16(),
            path: "/ws".to_owned(),
            text: one_line(&String::from_utf8_lossy(response.body().as_deref().unwrap_or_default()), 200),
        },
        error => ComfyuiError::Broken(error.to_string()),
    }
}

fn closed(error: &tungstenite::Error) -> SocketClosed {
    match error {
        tungstenite::Error::Capacity(_) => SocketClosed::TooLarge,
        error => SocketClosed::Broken(error.to_string()),
    }
}
