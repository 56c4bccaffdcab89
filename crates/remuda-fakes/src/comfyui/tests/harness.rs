//! The client side of the protocol.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::comfyui::{Fake, Options};

/// Longer than anything takes on a busy machine; a test that waits this long has failed.
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) struct Client {
    pub(super) fake: Fake,
    http: reqwest::Client,
    pub(super) id: String,
}

/// A server without delays, and a client of it.
pub(super) async fn begin(options: Options) -> Client {
    let options =
        Options { speed: if options.speed == 1.0 { f64::INFINITY } else { options.speed }, ..options };
    // Fails if another test in this process has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fake = Fake::start(options).await.unwrap();
    // Pooled connections would fail after a crash, which is not what these tests are about.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
    Client { fake, http, id: "c".into() }
}

impl Client {
    pub(super) async fn get(&self, path: &str) -> (u16, String) {
        let answer = self.http.get(format!("{}{path}", self.fake.url())).send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    }

    pub(super) async fn bytes(&self, path: &str) -> Vec<u8> {
        let answer = self.http.get(format!("{}{path}", self.fake.url())).send().await.unwrap();
        answer.bytes().await.unwrap().to_vec()
    }

    pub(super) async fn json(&self, path: &str) -> Value {
        let (status, text) = self.get(path).await;
        assert_eq!(status, 200, "{path}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<(u16, String), reqwest::Error> {
        let answer = self.http.post(format!("{}{path}", self.fake.url())).json(body).send().await?;
        Ok((answer.status().as_u16(), answer.text().await?))
    }

    /// Submits a graph under an id of the client.
    pub(super) async fn submit(&self, graph: &Value) -> String {
        let id = uuid::Uuid::new_v4().to_string();
        let (status, text) = self.try_submit(graph, &id).await.unwrap();
        assert_eq!(status, 200, "{text}");
        id
    }

    pub(super) async fn try_submit(&self, graph: &Value, id: &str) -> Result<(u16, String), reqwest::Error> {
        self.post("/prompt", &json!({"prompt": graph, "client_id": self.id, "prompt_id": id})).await
    }

    pub(super) async fn listen(&self) -> Ear {
        let url = format!("{}/ws?clientId={}", self.fake.url().replace("http", "ws"), self.id);
        let (socket, _) = tokio_tungstenite::connect_async(url).await.unwrap();
        let mut ear = Ear(socket);
        assert_eq!(ear.next().await.unwrap(), "status(0)", "the greeting comes first");
        ear
    }

    /// Polls until history has it.
    pub(super) async fn ended(&self, id: &str) -> Value {
        let asking = async {
            loop {
                let history = self.json(&format!("/history/{id}")).await;
                if let Some(entry) = history.get(id) {
                    return entry.clone();
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap()
    }

    /// Polls until the answer contains these words, whether it is JSON or not.
    pub(super) async fn until_text(&self, path: &str, words: &str) {
        let asking = async { while !self.get(path).await.1.contains(words) {} };
        tokio::time::timeout(PATIENCE, asking).await.unwrap();
    }

    /// Waits until the counts match.
    pub(super) async fn until(&self, is_so: impl Fn(&super::super::Counts) -> bool) {
        let asking = async {
            while !is_so(&self.fake.counts()) {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, asking).await.unwrap();
    }
}

/// A socket that reads each message as a short word.
pub(super) struct Ear(WebSocketStream<MaybeTlsStream<TcpStream>>);

impl Ear {
    pub(super) async fn raw(&mut self) -> Option<Message> {
        let message = tokio::time::timeout(PATIENCE, self.0.next()).await.unwrap();
        message.and_then(Result::ok)
    }

    /// The next message; `None` once the socket is closed.
    pub(super) async fn next(&mut self) -> Option<String> {
        Some(match self.raw().await? {
            Message::Text(text) => word(&text),
            Message::Binary(bytes) => format!("binary({})", bytes.get(3).copied().unwrap_or(0)),
            other => format!("{other:?}"),
        })
    }

    /// Everything up to the message that ends a run, without progress_state.
    pub(super) async fn hear_out(&mut self) -> Vec<String> {
        self.hear_until("executing(null)").await
    }

    /// Everything before the answer to a ping.
    pub(super) async fn ping(&mut self) -> Vec<String> {
        self.0.send(Message::Ping(b"x".to_vec().into())).await.unwrap();
        let mut heard = self.hear_until("Pong(b\"x\")").await;
        heard.pop();
        heard
    }

    pub(super) async fn hear_until(&mut self, last: &str) -> Vec<String> {
        let mut heard = Vec::new();
        while let Some(word) = self.next().await {
            if word != "progress_state" {
                heard.push(word);
            }
            if heard.last().is_some_and(|word| word == last) {
                break;
            }
        }
        heard
    }
}

fn word(text: &str) -> String {
    let Ok(message) = serde_json::from_str::<Value>(text) else { return format!("not JSON: {text}") };
    let (kind, data) = (message["type"].as_str().unwrap_or("?"), &message["data"]);
    match kind {
        "status" => format!("status({})", data["status"]["exec_info"]["queue_remaining"]),
        "executing" if data["node"].is_null() => "executing(null)".to_owned(),
        "executing" | "executed" => format!("{kind}({})", data["node"].as_str().unwrap_or("?")),
        "progress" => format!("progress({}/{})", data["value"], data["max"]),
        other => other.to_owned(),
    }
}

/// An image of one colour, inverted and saved.
pub(super) fn picture(color: u32) -> Value {
    through(color, &json!({"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}}))
}

/// An image that passes through one node and is saved.
pub(super) fn through(color: u32, node: &Value) -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": color}},
        "2": node,
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "p"}},
    })
}

pub(super) fn sleep(seconds: f64, steps: u32) -> Value {
    let inputs = json!({"image": ["1", 0], "seconds": seconds, "steps": steps, "preview": false});
    through(1, &json!({"class_type": "RemudaSleep", "inputs": inputs}))
}
