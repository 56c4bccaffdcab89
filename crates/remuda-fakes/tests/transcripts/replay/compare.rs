//! Compares what the server sends with the recording.

use std::time::Duration;

use futures_util::StreamExt;
use reqwest::Method;
use serde_json::{Value, json};
use tokio_tungstenite::tungstenite::Message;

use super::{Answer, HESITATION, Heard, PATIENCE, Replay, Timing};
use crate::recording::{Line, parse};
use crate::shape;

impl Replay {
    pub(super) async fn compare_answer(&mut self, line: &Line, recorded: &Value, is_compared: bool) {
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
        for name in ["Allow", "Connection", "Content-Disposition"] {
            if let Some(told) = recorded["headers"][name].as_str() {
                assert_eq!(header(name), Some(told), "{place}");
            }
        }
        if let Some(told) = recorded.get("json") {
            let mut actual = parse(&text);
            let told = &without_older_jobs(told, &actual);
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

    /// Renames can be learned from the answer that is being compared.
    fn renamed_value(&self, value: &Value) -> Value {
        parse(&self.renamed(&value.to_string()))
    }

    pub(super) async fn compare_message(
        &mut self,
        line: &Line,
        label: &str,
        recorded: &Value,
        is_compared: bool,
    ) {
        let place = format!("{} line {}", self.recording.name, line.number);
        match recorded["event"].as_str() {
            Some("closing") => return self.close(label).await,
            Some(event) => {
                // Messages in flight may be lost with the server, or not.
                loop {
                    if let Heard::Closed { has_frame } = self.hear(label, &place).await {
                        assert_eq!(has_frame, event == "close", "{place}");
                        return;
                    }
                }
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
                let actual = self.in_recorded_order(label, &place, &recorded["json"], actual).await;
                self.rename_files(&recorded["json"], &actual);
                if is_compared {
                    assert_same(&place, &recorded["json"], &actual, &|value| self.renamed_value(value));
                }
            }
            Heard::Binary(bytes) => {
                let told = recorded["binary"]["head_hex"].as_str().unwrap_or_default();
                if is_compared {
                    // The event, and the image type or the length of a node's id; metadata has its own length.
                    let same = if told.starts_with("00000004") { 8 } else { 16 };
                    assert_eq!(told.get(..same), hex(&bytes).get(..same), "{place}");
                }
            }
            Heard::Closed { .. } => panic!("{place}: the socket closed instead of {recorded}"),
        }
    }

    /// A client's change of the queue races with the executor: the two messages may come in either order.
    async fn in_recorded_order(
        &mut self,
        label: &str,
        place: &str,
        recorded: &Value,
        actual: Value,
    ) -> Value {
        if recorded["type"] != "status" || actual["type"] == "status" {
            return actual;
        }
        let Heard::Json(next) = self.hear(label, place).await else { panic!("{place}: no status came") };
        self.early.push_back(actual);
        next
    }

    /// Progress, the preview before it and the end of an interrupted node need a step of time.
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
        if let Some(early) = self.early.pop_front() {
            return Heard::Json(early);
        }
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

    /// At the end there are no more messages: a change of the queue must be the next broadcast.
    pub(super) async fn hear_nothing_more(&mut self) {
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

/// A recorded list of jobs goes further back than ours.
fn without_older_jobs(told: &Value, actual: &Value) -> Value {
    let mut told = told.clone();
    if let (Some(jobs), Some(ours)) = (told["jobs"].as_array().cloned(), actual["jobs"].as_array()) {
        told["jobs"] = jobs.into_iter().take(ours.len()).collect();
        told["pagination"]["total"] = actual["pagination"]["total"].clone();
        told["pagination"]["has_more"] = actual["pagination"]["has_more"].clone();
    }
    told
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
