//! Does again what a recorded client did, and compares what it hears.
//!
//! The GPU's time goes by hand. A step of a node happens when the recording tells of it, so the client always acts in
//! the very moment in which it acted then. Where nobody listened, the recorded times say how far a run had come.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use remuda_adapters::fake::comfyui::{Control, Fake, Options, Version};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use tokio::net::{TcpSocket, TcpStream};
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream, client_async, connect_async};

use crate::differences::{self, Treatment};
use crate::graphs::Graphs;
use crate::recording::{Line, Recording, parse};
use crate::{shape, uploads};

/// When the imagined GPU goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timing {
    /// When the recording tells of progress.
    Demand,
    /// When the recorded time has come.
    Clock,
}

/// Longer than any message takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// After this the next message needs time to pass on the GPU. Too short does no harm: nothing is done in between.
const HESITATION: Duration = Duration::from_millis(200);

pub(crate) async fn replay(name: &str, version: Version, timing: Timing) {
    // A second test in this process finds it installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let recording = Recording::read(name);
    differences::check_words(name, &recording.lines);
    let options = Options { version, manual_time: true, models: Vec::new(), ..Options::default() };
    let mut replay = Replay {
        fake: Fake::start(options).await.unwrap(),
        http: reqwest::Client::new(),
        timing,
        time: 0.0,
        sockets: BTreeMap::new(),
        stuck: None,
        renames: Vec::new(),
        graphs: Graphs::default(),
        answer: None,
        note: String::new(),
        tag: String::new(),
        is_step_taken: false,
        recording,
    };
    if name == "ws-slow-reader-blocks-everyone" {
        replay.stuck = Some(replay.connect_and_never_read().await);
    }
    for at in 0..replay.recording.lines.len() {
        replay.line(at).await;
    }
    replay.hear_nothing_more().await;
}

type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

struct Replay {
    fake: Fake,
    http: reqwest::Client,
    recording: Recording,
    timing: Timing,
    time: f64,
    sockets: BTreeMap<String, Socket>,
    stuck: Option<WebSocketStream<TcpStream>>,
    /// What was recorded, and what stands for it now: ids and file names.
    renames: Vec<(String, String)>,
    graphs: Graphs,
    answer: Option<Answer>,
    /// The latest note.
    note: String,
    /// The latest entity tag.
    tag: String,
    /// A step was let through for the frame that comes before its progress.
    is_step_taken: bool,
}

enum Answer {
    Refused,
    Came { status: u16, headers: reqwest::header::HeaderMap, body: Vec<u8> },
}

enum Heard {
    Json(Value),
    Binary(Vec<u8>),
    Closed { has_frame: bool },
}

impl Replay {
    fn control(&self) -> Control {
        self.fake.control()
    }

    async fn line(&mut self, at: usize) {
        let line = self.recording.lines[at].clone();
        let difference = differences::of(&self.recording.name, &line.text);
        let treatment = difference.as_ref().map(|difference| difference.treatment);
        if matches!(treatment, Some(Treatment::NotAwaited | Treatment::NotDone)) {
            return;
        }
        let value = parse(&self.renamed(&line.text));
        let is_compared = treatment.is_none();
        let channel = value["ch"].as_str().unwrap_or_default().to_owned();
        match (value["dir"].as_str().unwrap(), channel.split_once(':')) {
            ("note", _) => self.heed_note(value["text"].as_str().unwrap()).await,
            ("client>server", None) => {
                self.let_time_pass(line.time).await;
                self.ask(at, &value).await;
            }
            ("client>server", Some((_, label))) => {
                self.let_time_pass(line.time).await;
                self.act(at, label, &value).await;
            }
            (_, None) => self.compare_answer(&line, &value, is_compared).await,
            (_, Some((_, label))) => self.compare_message(&line, label, &value, is_compared).await,
        }
        if let Some(difference) = difference {
            println!("line {}: not compared: {}", line.number, difference.why());
        }
    }

    /// Ids and names of now in the place of the recorded ones, in one go.
    fn renamed(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (at, (then, _)) in self.renames.iter().enumerate() {
            text = text.replace(then, &format!("\u{1}{at}\u{1}"));
        }
        for (at, (_, now)) in self.renames.iter().enumerate() {
            text = text.replace(&format!("\u{1}{at}\u{1}"), now);
        }
        text
    }

    fn rename(&mut self, then: &Value, now: &Value) {
        if let (Some(then), Some(now)) = (then.as_str(), now.as_str())
            && then != now
            && !self.renames.iter().any(|(known, _)| known == then)
        {
            self.renames.push((then.to_owned(), now.to_owned()));
        }
    }

    /// File names that came in the same place.
    fn rename_files(&mut self, then: &Value, now: &Value) {
        match (then, now) {
            (Value::Object(one), Value::Object(other)) => {
                for (key, then) in one {
                    let Some(now) = other.get(key) else { continue };
                    if key == "filename" { self.rename(then, now) } else { self.rename_files(then, now) }
                }
            }
            (Value::Array(one), Value::Array(other)) => {
                one.iter().zip(other).for_each(|(then, now)| self.rename_files(then, now));
            }
            _ => {}
        }
    }

    /// Up to the recorded moment, or only until everything that can happen has happened.
    async fn let_time_pass(&mut self, time: f64) {
        let by = match self.timing {
            Timing::Clock => (time - self.time).max(0.0),
            Timing::Demand => 0.0,
        };
        self.time = self.time.max(time);
        self.control().advance(Duration::from_secs_f64(by)).await;
    }

    /// What was done without a line of its own.
    async fn heed_note(&mut self, note: &str) {
        self.note = note.to_owned();
        if note == "kill -KILL" {
            self.fake.kill().await;
        } else if note.starts_with("restarted: ") {
            self.fake.restart().await;
        } else if note.starts_with("overwriting the input file") {
            self.upload("overwritten").await;
        } else if note.starts_with("the stuck client's job itself finished") {
            self.control().advance(PATIENCE).await;
            let history = self.send(Method::GET, "/history/stuckjob", &Value::Null, None).await;
            assert!(matches!(history, Answer::Came { body, .. } if body.len() > 2));
        } else if note == "closing the stuck socket" {
            self.stuck = None;
        } else if note.starts_with("5 MiB text message") {
            let socket = self.sockets.get_mut("W").unwrap();
            // It may be refused while it is still being sent.
            let _ = socket.send(Message::text("x".repeat(5 << 20))).await;
        }
    }
}

/// What the client does.
impl Replay {
    async fn act(&mut self, at: usize, label: &str, value: &Value) {
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

    async fn connect_and_never_read(&self) -> WebSocketStream<TcpStream> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        let stream = socket.connect(self.fake.address()).await.unwrap();
        let url = format!("ws://{}/ws?clientId=stuck", self.fake.address());
        client_async(url, stream).await.unwrap().0
    }

    async fn ask(&mut self, at: usize, value: &Value) {
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
        let mut body = value.get("body").cloned();
        if let Some(graph) = body.as_ref().and_then(|body| body.get("prompt")).cloned() {
            let recorded =
                self.recording.values().skip(at + 1).find(|(_, line)| line["ch"] == "http").unwrap().1;
            let id = recorded["json"]["prompt_id"].as_str();
            let translated = self.graphs.translate(&self.recording, at, id, &graph);
            body.as_mut().unwrap()["prompt"] = translated;
        }
        let body = match (body, value["body_raw"].as_str()) {
            (Some(body), _) => Some(body.to_string().into_bytes()),
            // A hundred and one mebibytes of JSON.
            (None, Some(raw)) if raw.starts_with("b'{") => Some(vec![b'a'; 101 << 20]),
            (None, raw) => raw.map(|raw| raw.as_bytes().to_vec()),
        };
        self.answer = Some(self.send(method, path, &value["headers"], body).await);
    }

    async fn send(&self, method: Method, path: &str, headers: &Value, body: Option<Vec<u8>>) -> Answer {
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

    async fn upload(&self, note: &str) -> Answer {
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
            assert!(error.is_connect(), "{error:?}");
            Answer::Refused
        }
    }
}

/// What the server says.
impl Replay {
    async fn compare_answer(&mut self, line: &Line, recorded: &Value, is_compared: bool) {
        let answer = self.answer.take().expect("an answer follows its request");
        let place = format!("{} line {}", self.recording.name, line.number);
        let Answer::Came { status, headers, body } = answer else {
            assert!(recorded.get("error").is_some(), "{place}: refused");
            return;
        };
        if let Some(tag) = headers.get("etag") {
            self.tag = tag.to_str().unwrap().to_owned();
        }
        let text = String::from_utf8_lossy(&body);
        assert_eq!(recorded["status"], status, "{place}: {text}");
        if !is_compared {
            return;
        }
        let header = |name: &str| headers.get(name).map(|value| value.to_str().unwrap());
        if let Some(kind) = recorded.get("content_type") {
            assert_eq!(kind.as_str(), header("content-type"), "{place}");
        }
        if let Some(allowed) = recorded["headers"]["Allow"].as_str() {
            assert_eq!(header("allow"), Some(allowed), "{place}");
        }
        if let Some(told) = recorded.get("json") {
            let mut actual = parse(&text);
            if self.recording.is_abridged() && recorded["path"].as_str().unwrap().starts_with("/api/jobs/") {
                forget_unrecorded(told, &mut actual);
            }
            self.rename(&told["prompt_id"], &actual["prompt_id"]);
            self.rename_files(told, &actual);
            let actual = shape::abridge(told, &actual);
            assert_same(&place, told, &actual, &|value| self.renamed_value(value));
        } else if let Some(told) = recorded.get("text").or_else(|| recorded.get("body")) {
            assert_eq!(told.as_str().unwrap(), text, "{place}");
        } else if let Some(head) = recorded["binary"]["head_hex"].as_str() {
            assert_eq!(&head[..8], &hex(&body)[..8], "{place}");
        }
    }

    /// Renames can be learned from the very answer that is compared.
    fn renamed_value(&self, value: &Value) -> Value {
        parse(&self.renamed(&value.to_string()))
    }

    async fn compare_message(&mut self, line: &Line, label: &str, recorded: &Value, is_compared: bool) {
        let place = format!("{} line {}", self.recording.name, line.number);
        match recorded["event"].as_str() {
            Some("closing") => return self.close(label).await,
            Some(event) => {
                let heard = self.hear(label, &place).await;
                assert!(
                    matches!(heard, Heard::Closed { has_frame } if has_frame == (event == "close")),
                    "{place}"
                );
                return;
            }
            None if recorded.get("error").is_some() => return,
            None => {}
        }
        if self.timing == Timing::Demand {
            self.let_step_through(recorded).await;
        } else {
            self.let_time_pass(line.time).await;
        }
        match self.hear(label, &place).await {
            Heard::Json(actual) => {
                self.rename_files(&recorded["json"], &actual);
                if is_compared {
                    assert_same(&place, &recorded["json"], &actual, &|value| self.renamed_value(value));
                }
            }
            Heard::Binary(bytes) => {
                let told = recorded["binary"]["head_hex"].as_str().unwrap_or_default();
                if is_compared {
                    // The event, and the kind of picture or the length of a node's id; metadata has its own length.
                    let same = if told.starts_with("00000004") { 8 } else { 16 };
                    assert_eq!(told.get(..same), hex(&bytes).get(..same), "{place}");
                }
            }
            Heard::Closed { .. } => panic!("{place}: the socket closed instead of {recorded}"),
        }
    }

    /// Progress, the picture before it and the end of an interrupted node come with a step of time.
    async fn let_step_through(&mut self, recorded: &Value) {
        let is_early_frame =
            recorded["binary"]["head_hex"].as_str().is_some_and(|head| head.starts_with("00000004"));
        let is_step = match recorded["json"]["type"].as_str() {
            Some("progress") => recorded["json"]["data"]["value"] != 0 && !self.is_step_taken,
            Some("progress_state") => tells_of_step(&recorded["json"]["data"]["nodes"]),
            Some("execution_interrupted") => true,
            _ => is_early_frame,
        };
        let is_shown_before = self.recording.has("progress_state") && recorded["json"]["type"] == "progress";
        if is_step && !is_shown_before {
            self.control().advance_to_next().await;
        }
        self.is_step_taken = is_early_frame;
    }

    /// The next message that the recording would have kept.
    async fn hear(&mut self, label: &str, place: &str) -> Heard {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let control = self.control();
            let socket = self.sockets.get_mut(label).unwrap();
            let Ok(message) = tokio::time::timeout(HESITATION, socket.next()).await else {
                assert!(tokio::time::Instant::now() < deadline, "{place}: nothing came");
                if self.timing == Timing::Demand {
                    control.advance_to_next().await;
                }
                continue;
            };
            let heard = match message {
                None | Some(Err(_)) => return Heard::Closed { has_frame: false },
                Some(Ok(Message::Close(_))) => return Heard::Closed { has_frame: true },
                Some(Ok(Message::Binary(bytes))) => return Heard::Binary(bytes.to_vec()),
                Some(Ok(Message::Text(text))) => parse(&text),
                Some(Ok(_)) => continue,
            };
            if self.is_kept(&heard) {
                return Heard::Json(heard);
            }
        }
    }

    fn is_kept(&self, message: &Value) -> bool {
        match message["type"].as_str().unwrap() {
            "status" if message["data"]["sid"].is_string() => true,
            kind @ ("status" | "progress" | "progress_state") => self.recording.has(kind),
            _ => true,
        }
    }

    async fn close(&mut self, label: &str) {
        let mut socket = self.sockets.remove(label).unwrap();
        let before = self.fake.counts().sockets_open;
        socket.close(None).await.unwrap();
        while self.fake.counts().sockets_open == before {
            tokio::task::yield_now().await;
        }
    }

    /// At the end there is nothing left to hear: a change of the queue is the next that everyone is told.
    async fn hear_nothing_more(&mut self) {
        self.control().advance(Duration::ZERO).await;
        let is_deaf = self.recording.name == "ws-two-sockets-same-clientid";
        let answer = self.send(Method::POST, "/queue", &json!({}), Some(br#"{"clear":true}"#.to_vec())).await;
        if matches!(answer, Answer::Refused) || is_deaf || !self.recording.has("status") {
            return;
        }
        let labels: Vec<String> = self.sockets.keys().filter(|label| *label != "W").cloned().collect();
        for label in labels {
            let place = format!("{} after its end", self.recording.name);
            match self.hear(&label, &place).await {
                Heard::Json(message) => assert_eq!(message["type"], "status", "{place}: {message}"),
                Heard::Binary(_) => panic!("{place}: a binary frame"),
                Heard::Closed { .. } => {}
            }
        }
    }
}

/// A recorded `progress_state` in the middle of a node.
fn tells_of_step(nodes: &Value) -> bool {
    let told = shape::plain(&json!({"nodes": nodes}));
    let told = told["nodes"].as_str().unwrap_or_default();
    let running =
        told.split(", ").find_map(|node| node.split_once(":running ")).map(|(_, progress)| progress);
    running.is_some_and(|progress| !progress.starts_with('0'))
}

/// Answers about jobs were shortened too: only what was kept can be compared.
fn forget_unrecorded(told: &Value, actual: &mut Value) {
    if let (Some(told), Some(actual)) = (told.as_object(), actual.as_object_mut()) {
        actual.retain(|key, _| told.contains_key(key));
    }
}

fn assert_same(place: &str, then: &Value, now: &Value, renamed: &dyn Fn(&Value) -> Value) {
    let (then, now) = (shape::plain(&renamed(then)), shape::plain(now));
    assert!(then == now, "{place}\n  recorded: {then}\n  now:      {now}");
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
