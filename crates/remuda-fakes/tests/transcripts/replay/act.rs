//! The client's actions: connects, requests, uploads.

use futures_util::SinkExt;
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{WebSocketStream, client_async, connect_async};

use super::{Answer, PATIENCE, Replay};
use crate::graphs::warm_part;
use crate::uploads;

impl Replay {
    pub(super) async fn act(&mut self, at: usize, label: &str, value: &Value) {
        if let Some(said) = value.get("json") {
            self.sockets.get_mut(label).unwrap().send(Message::text(said.to_string())).await.unwrap();
            return;
        }
        assert_eq!(value["event"], "connect");
        let url = format!("ws://{}{}", self.fake.address(), value["path"].as_str().unwrap());
        let channel = format!("ws:{label}");
        let next =
            self.recording.values().skip(at + 1).find(|(_, line)| line["ch"] == channel.as_str()).unwrap().1;
        if next.get("error").is_some() {
            let mut request = url.into_client_request().unwrap();
            request.headers_mut().insert("origin", "http://example.com".parse().unwrap());
            let refused = connect_async(request).await.unwrap_err();
            assert!(refused.to_string().contains("403"), "{refused}");
            return;
        }
        let (socket, _) = connect_async(url).await.unwrap();
        self.sockets.insert(label.to_owned(), socket);
    }

    pub(super) async fn connect_and_never_read(&self) -> WebSocketStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(self.fake.address()).await.unwrap();
        let url = format!("ws://{}/ws?clientId=stuck", self.fake.address());
        client_async(url, stream).await.unwrap().0
    }

    pub(super) async fn ask(&mut self, at: usize, value: &Value) {
        let path = value["path"].as_str().unwrap();
        if path.starts_with("/view?filename=gone_") {
            self.control().delete_outputs();
        }
        let method: Method = value["method"].as_str().unwrap().parse().unwrap();
        let is_multipart = value["body"] == "<multipart>";
        if is_multipart {
            let note = self.note.clone();
            self.answer = Some(self.upload(&note).await);
            return;
        }
        let body = match (self.body(at, value), value["body_raw"].as_str()) {
            (Some(body), _) => Some(body.into_bytes()),
            // 101 MiB of JSON.
            (None, Some(raw)) if raw.starts_with("b'{") => Some(vec![b'a'; 101 << 20]),
            (None, raw) => raw.map(|raw| raw.as_bytes().to_vec()),
        };
        self.answer = Some(self.send(method, path, &value["headers"], body).await);
    }

    /// The body: as recorded, or with a graph that the fake can run.
    fn body(&mut self, at: usize, value: &Value) -> Option<String> {
        #[derive(serde::Deserialize)]
        struct Sent {
            body: Option<Box<serde_json::value::RawValue>>,
        }
        let text = self.renamed(&self.recording.lines[at].text);
        let sent = serde_json::from_str::<Sent>(&text).unwrap().body?.get().to_owned();
        if !sent.contains("<graph") && !sent.contains("Research") {
            return Some(sent);
        }
        let mut body = value["body"].clone();
        body["prompt"] = match self.first.take_if(|(first, _)| *first == at) {
            Some((_, graph)) => graph,
            None => {
                let answer = self.answer_to(at);
                self.graphs.translate(
                    &self.recording,
                    at,
                    &answer,
                    &body["prompt"],
                    body["prompt_id"].as_str(),
                )
            }
        };
        Some(body.to_string())
    }

    /// The recorded answer to the request on this line.
    fn answer_to(&self, at: usize) -> Value {
        self.recording.values().skip(at + 1).find(|(_, line)| line["ch"] == "http").unwrap().1
    }

    /// Runs what the recorded server had cached before the recording started.
    pub(super) async fn warm_up(&mut self) {
        let is_submit = |line: &Value| line["method"] == "POST" && line["path"] == "/prompt";
        let Some((at, line)) = self.recording.values().find(|(_, line)| is_submit(line)) else { return };
        let answer = self.answer_to(at);
        let graph = self.graphs.translate(&self.recording, at, &answer, &line["body"]["prompt"], None);
        if let Some(part) = warm_part(&self.recording, at, &answer, &graph) {
            let body = json!({"prompt": part, "client_id": "before"}).to_string();
            self.send(Method::POST, "/prompt", &Value::Null, Some(body.into_bytes())).await;
            self.control().advance(PATIENCE).await;
        }
        self.first = Some((at, graph));
    }

    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &Value,
        body: Option<Vec<u8>>,
    ) -> Answer {
        let mut request = self.http.request(method, format!("{}{path}", self.fake.url()));
        for (name, value) in headers.as_object().into_iter().flatten() {
            let value = match name.as_str() {
                "If-None-Match" => self.tag.clone(),
                _ => value.as_str().unwrap().replace("8188", &self.fake.address().port().to_string()),
            };
            request = request.header(name, value);
        }
        if let Some(body) = body {
            request = request.body(body);
        }
        receive(request.send().await).await
    }

    pub(super) async fn upload(&self, note: &str) -> Answer {
        let request =
            self.http.post(format!("{}/upload/image", self.fake.url())).multipart(uploads::form(note));
        receive(request.send().await).await
    }
}

async fn receive(answer: Result<Response, reqwest::Error>) -> Answer {
    match answer {
        Ok(answer) => {
            let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
            Answer::Came { status, headers, body: answer.bytes().await.unwrap().to_vec() }
        }
        Err(error) => {
            // A pooled connection may turn out dead only when it is used.
            assert!(error.is_connect() || error.is_request(), "{error:?}");
            Answer::Refused
        }
    }
}
