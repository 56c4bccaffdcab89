//! Repeats what a recorded client did, and compares the answers.
//!
//! GPU time is manual. A step of a node happens when the recording mentions it, so the client always acts at the same
//! point as it did then. Where no socket was open, the recorded times say how far a run had come.

mod act;
mod compare;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use remuda_fakes::comfyui::{Control, Fake, Options, Version};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use crate::differences::{self, Treatment};
use crate::graphs::Graphs;
use crate::recording::{Line, Recording, parse};

/// When the simulated GPU advances.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Timing {
    /// When the recording mentions progress.
    Demand,
    /// By the recorded time.
    Clock,
}

/// Longer than any message takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// After this the next message needs GPU time to pass. Too short is harmless: nothing happens in between.
const HESITATION: Duration = Duration::from_millis(200);

pub(crate) async fn replay(name: &str, version: Version, timing: Timing) {
    // Fails if another test in this process has installed it.
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
        first: None,
        early: VecDeque::new(),
        recording,
    };
    if name == "ws-slow-reader-blocks-everyone" {
        replay.stuck = Some(replay.connect_and_never_read().await);
    }
    replay.warm_up().await;
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
    /// Recorded ids and file names, and their current counterparts.
    renames: Vec<(String, String)>,
    graphs: Graphs,
    answer: Option<Answer>,
    /// The latest note.
    note: String,
    /// The latest entity tag.
    tag: String,
    /// A step was allowed for the frame before its progress message.
    is_step_taken: bool,
    /// The first graph, and the line that submits it.
    first: Option<(usize, Value)>,
    /// Messages that arrived earlier than in the recording.
    early: VecDeque<Value>,
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
        let treatment = differences::of(&self.recording.name, &line.text);
        if matches!(treatment, Some(Treatment::Absent | Treatment::Undone)) {
            return;
        }
        let value = parse(&self.renamed(&line.text));
        let is_compared = treatment.is_none();
        let channel = value["ch"].as_str().unwrap_or_default().to_owned();
        match (value["dir"].as_str().unwrap(), channel.split_once(':')) {
            ("note", _) => self.heed_note(value["text"].as_str().unwrap(), &value["json"]).await,
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
    }

    /// Replaces recorded ids and names by the current ones, in one pass.
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

    /// File names in the same position.
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

    /// Advances to the recorded time, or only until everything that can happen has happened.
    async fn let_time_pass(&mut self, time: f64) {
        let by = match self.timing {
            Timing::Clock => (time - self.time).max(0.0),
            Timing::Demand => 0.0,
        };
        self.time = self.time.max(time);
        self.control().advance(Duration::from_secs_f64(by)).await;
    }

    /// Actions that have no line of their own.
    async fn heed_note(&mut self, note: &str, told: &Value) {
        self.note = note.to_owned();
        if note == "kill -KILL" {
            self.fake.kill().await;
        } else if note.starts_with("restarted: ") {
            self.fake.restart().await;
        } else if note.starts_with("overwriting the input file") {
            self.upload("overwritten").await;
        } else if note.starts_with("the stuck client's job itself finished") {
            self.control().advance(PATIENCE).await;
            self.control().advance(Duration::ZERO).await;
            let history = self.send(Method::GET, "/history/stuckjob", &Value::Null, None).await;
            assert!(matches!(history, Answer::Came { body, .. } if body.len() > 2));
        } else if note.starts_with("job 2: the new socket, still open, got 0 messages") {
            let heard = tokio::time::timeout(HESITATION, self.sockets.get_mut("new").unwrap().next()).await;
            assert!(heard.is_err(), "the newer socket is deaf: {heard:?}");
        } else if note.starts_with("5 s later the healthy socket") {
            // The two before were already read; any further message would be one too many.
            let early = tokio::time::timeout(HESITATION, self.sockets.get_mut("ok").unwrap().next()).await;
            assert!(early.is_err(), "a client that does not read holds up everyone: {early:?}");
        } else if note == "history of the half-valid prompt" {
            self.control().advance(Duration::ZERO).await;
            self.answer = Some(self.send(Method::GET, "/history/half", &Value::Null, None).await);
            let line = Line { number: 0, text: String::new(), time: 0.0 };
            self.compare_answer(&line, &json!({"status": 200, "json": {"half": told}}), true).await;
        } else if note == "closing the stuck socket" {
            self.stuck = None;
        } else if note.starts_with("5 MiB text message") {
            let socket = self.sockets.get_mut("W").unwrap();
            // It may be refused while it is still being sent.
            let _ = socket.send(Message::text("x".repeat(5 << 20))).await;
        }
    }
}
