//! A websocket client of the plane.

use std::time::Duration;

use futures_util::{SinkExt as _, StreamExt as _};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, connect_async};

use crate::harness::{Plane, WAIT_MAX};

#[derive(Debug)]
pub(super) struct WsClient {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    /// Queue length in the first status.
    pub(super) sid: String,
    pub(super) greeted_with: u64,
}

/// A message received over the socket.
#[derive(Clone, Debug)]
pub(super) enum Heard {
    Text(Value),
    Binary(Vec<u8>),
    Closed,
}

impl WsClient {
    pub(super) async fn open(plane: &Plane, client: &str) -> WsClient {
        WsClient::at(plane, &format!("/ws?clientId={client}")).await
    }

    pub(super) async fn at(plane: &Plane, path: &str) -> WsClient {
        WsClient::connect(&plane.url, path).await
    }

    /// At a plane or a ComfyUI server.
    pub(super) async fn connect(url: &str, path: &str) -> WsClient {
        let address = url.strip_prefix("http://").unwrap();
        let (socket, _) = connect_async(format!("ws://{address}{path}")).await.unwrap();
        let mut client = WsClient { socket, sid: String::new(), greeted_with: 0 };
        let greeting = client.text().await;
        assert_eq!(greeting["type"], "status", "the greeting comes first: {greeting}");
        client.sid = greeting["data"]["sid"].as_str().unwrap().to_owned();
        client.greeted_with = remaining(&greeting);
        client
    }

    pub(super) async fn say(&mut self, message: Value) {
        self.socket.send(Message::text(message.to_string())).await.unwrap();
    }

    /// Sends the feature flags of this client and returns those of the server.
    pub(super) async fn introduce(&mut self) -> Value {
        self.say(json!({"type": "feature_flags", "data": {"supports_preview_metadata": true}})).await;
        loop {
            let message = self.text().await;
            if message["type"] == "feature_flags" {
                return message["data"].clone();
            }
        }
    }

    pub(super) async fn next(&mut self) -> Heard {
        self.next_within(WAIT_MAX).await.expect("something should come over the socket")
    }

    pub(super) async fn next_within(&mut self, patience: Duration) -> Option<Heard> {
        loop {
            let message = tokio::time::timeout(patience, self.socket.next()).await.ok()?;
            return Some(match message {
                // Python writes NaN, which is no JSON.
                Some(Ok(Message::Text(text))) => Heard::Text(
                    serde_json::from_str(&text)
                        .or_else(|_| serde_json::from_str(&text.replace("NaN", "null")))
                        .unwrap(),
                ),
                Some(Ok(Message::Binary(bytes))) => Heard::Binary(bytes.to_vec()),
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => continue,
                Some(Ok(Message::Close(_)) | Err(_)) | None => Heard::Closed,
            });
        }
    }

    pub(super) async fn text(&mut self) -> Value {
        loop {
            match self.next().await {
                Heard::Text(message) => return message,
                Heard::Binary(_) => {}
                Heard::Closed => panic!("the socket was closed"),
            }
        }
    }

    /// All messages up to the end of a prompt.
    pub(super) async fn until_done(&mut self, id: &str) -> Vec<Value> {
        let mut heard = Vec::new();
        loop {
            let message = self.text().await;
            let is_end = is_end_of(&message, id);
            heard.push(message);
            if is_end {
                return heard;
            }
        }
    }

    /// All messages up to the first of a kind.
    pub(super) async fn until(&mut self, kind: &str) -> Vec<Value> {
        let mut heard = Vec::new();
        loop {
            let message = self.text().await;
            let is_it = message["type"] == kind;
            heard.push(message);
            if is_it {
                return heard;
            }
        }
    }

    pub(super) async fn close(mut self) {
        self.socket.close(None).await.unwrap();
        while !matches!(self.next().await, Heard::Closed) {}
    }
}

pub(super) fn is_end_of(message: &Value, id: &str) -> bool {
    message["type"] == "executing" && message["data"]["node"].is_null() && message["data"]["prompt_id"] == id
}

pub(super) fn remaining(status: &Value) -> u64 {
    status["data"]["status"]["exec_info"]["queue_remaining"].as_u64().unwrap()
}

/// Kinds of messages, without statuses.
pub(super) fn kinds(heard: &[Value]) -> Vec<&str> {
    heard.iter().map(|it| it["type"].as_str().unwrap()).filter(|kind| *kind != "status").collect()
}
