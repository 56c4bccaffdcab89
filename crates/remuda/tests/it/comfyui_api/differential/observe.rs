//! Everything that a client can see of one case, as one JSON value. Ids, names and times that differ from run to run are
//! replaced by what they stand for.

use std::io::Cursor;

use reqwest::Method;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::super::ws_client::{Heard, WsClient, is_end_of};
use super::cases::{Case, InterruptPoint};
use crate::harness::{Client, answered, wait_until};

/// A server, or a plane in front of one.
pub(super) struct Side {
    pub(super) client: Client,
    /// Whether the server has `/api/jobs`.
    pub(super) has_jobs: bool,
}

impl Side {
    /// Runs a prompt that has nothing in common with any case: of the results before it, the server keeps none.
    pub(super) async fn clear_cache(&self, unique: &str) {
        let image = json!({ "width": 8, "height": 8, "batch_size": 1, "color": 1 });
        let text = json!({ "text": unique });
        let graph = json!({ "901": { "class_type": "EmptyImage", "inputs": image },
            "902": { "class_type": "RemudaText", "inputs": text },
            "903": { "class_type": "PreviewImage", "inputs": { "images": ["901", 0] } } });
        let (status, answer) = self.client.post("/prompt", &json!({ "prompt": graph })).await;
        assert!(status.is_success(), "{answer}");
        self.ended(answer["prompt_id"].as_str().unwrap()).await;
    }

    /// The history entry of a prompt, once it is there.
    async fn ended(&self, id: &str) -> Value {
        wait_until(&format!("{id} is in the history of {}", self.client.url), async || {
            let mut history = self.get(&format!("/history/{id}")).await;
            history[id].is_object().then(|| history[id].take())
        })
        .await
    }

    async fn get(&self, path: &str) -> Value {
        let text = self.client.request(Method::GET, path).send().await.unwrap().text().await.unwrap();
        read_json(&text)
    }

    /// What `/view` shows for a file of an output or an upload.
    pub(super) async fn view(&self, file: &Value) -> Value {
        let part = |key: &str| file[key].as_str().unwrap_or_default().to_owned();
        let query =
            [("filename", part("filename")), ("subfolder", part("subfolder")), ("type", part("type"))];
        let answer = self.client.request(Method::GET, "/view").query(&query).send().await.unwrap();
        let status = answer.status().as_u16();
        let media = answer.headers().get("content-type").map(|it| it.to_str().unwrap().to_owned());
        let bytes = answer.bytes().await.unwrap();
        json!({ "status": status, "media": media, "picture": picture(&bytes) })
    }
}

/// Python writes `NaN`, which is no JSON.
fn read_json(text: &str) -> Value {
    let read = serde_json::from_str(text);
    read.or_else(|_| serde_json::from_str(&text.replace("NaN", "null"))).unwrap_or_else(|_| text.into())
}

/// Size, pixels and texts of a PNG.
fn picture(bytes: &[u8]) -> Value {
    let Ok(mut reader) = png::Decoder::new(Cursor::new(bytes)).read_info() else { return Value::Null };
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    reader.next_frame(&mut pixels).unwrap();
    reader.finish().unwrap();
    let info = reader.info();
    let plain = info.uncompressed_latin1_text.iter().map(|it| (it.keyword.clone(), it.text.clone()));
    let utf8 = info.utf8_text.iter().map(|it| (it.keyword.clone(), it.get_text().unwrap()));
    let texts: Map<String, Value> = plain.chain(utf8).map(|(key, text)| (key, read_json(&text))).collect();
    let color = format!("{:?}", info.color_type);
    json!({ "size": info.size(), "color": color, "pixels": hex::encode(pixels), "texts": texts })
}

/// Runs a case and returns all that is seen of it.
pub(super) async fn observe(side: &Side, case: &Case, unique: &str) -> Value {
    if case.is_repeated {
        let first = Run::start(side, case, unique, "first").await;
        first.finish(case).await;
    }
    let run = Run::start(side, case, unique, "anna").await;
    let id = run.id.clone().unwrap_or_else(|| "(no id)".to_owned());
    let mut seen = run.finish(case).await;
    seen["name"] = case.name.into();
    seen["has_number"] = case.has_number().into();
    seen["id_is_uuid"] = uuid::Uuid::parse_str(&id).is_ok().into();
    let text = seen.to_string().replace(&id, "(its id)").replace(unique, "(unique)");
    let mut seen = serde_json::from_str(&text).unwrap();
    replace_times(&mut seen);
    if case.interrupted.is_some() {
        replace_steps(&mut seen["messages"]);
    }
    seen
}

/// A submitted prompt and what was heard of it so far.
struct Run<'a> {
    side: &'a Side,
    socket: WsClient,
    id: Option<String>,
    seen: Value,
    heard: Vec<Heard>,
}

impl Run<'_> {
    async fn start<'a>(side: &'a Side, case: &Case, unique: &str, client: &str) -> Run<'a> {
        let client = format!("{client}-{unique}");
        let mut socket = WsClient::connect(&side.client.url, &format!("/ws?clientId={client}")).await;
        if case.takes_metadata {
            socket.introduce().await;
        }
        let request = side.client.request(Method::POST, "/prompt").body(case.body(unique, &client));
        let (status, answer) = answered(request).await;
        let id = answer["prompt_id"].as_str().map(str::to_owned);
        let seen = json!({ "status": status.as_u16(), "answer": answer });
        Run { side, socket, id: id.filter(|_| status.is_success()), seen, heard: Vec::new() }
    }

    async fn finish(mut self, case: &Case) -> Value {
        let Some(id) = self.id.clone() else { return self.seen };
        if let Some(point) = &case.interrupted {
            self.interrupt(&id, point).await;
        }
        self.listen(&id, case.has_client()).await;
        let history = self.side.ended(&id).await;
        let (messages, previews) = messages(&self.heard);
        self.seen["messages"] = messages.into();
        self.seen["previews"] = previews.into();
        let mut files = Vec::new();
        for file in files_of(&history["outputs"]) {
            files.push(self.side.view(&file).await);
        }
        self.seen["files"] = files.into();
        self.seen["history"] = history;
        if self.side.has_jobs {
            self.seen["job"] = self.side.get(&format!("/api/jobs/{id}")).await;
        }
        self.seen["queue"] = self.side.get("/queue").await;
        self.seen
    }

    async fn interrupt(&mut self, id: &str, point: &InterruptPoint) {
        loop {
            let next = self.next().await;
            let is_now = matches!(&next, Heard::Text(message) if message["type"] == point.message);
            self.heard.push(next);
            if is_now {
                break;
            }
        }
        let body = point.body.to_string().replace("ITS_ID", id);
        let path = point.path.replace("ITS_ID", id);
        let request = self.side.client.request(Method::POST, &path).body(body);
        let (status, answer) = answered(request).await;
        self.seen["interrupted"] = json!([status.as_u16(), answer]);
    }

    async fn next(&mut self) -> Heard {
        let next = self.socket.next().await;
        assert!(!matches!(next, Heard::Closed), "the socket was closed");
        next
    }

    /// Until the prompt has ended. Without a client id the queue is empty again then.
    async fn listen(&mut self, id: &str, has_client: bool) {
        let mut was_busy = false;
        loop {
            let next = self.next().await;
            let mut is_end = false;
            if let Heard::Text(message) = &next {
                let remaining = message["data"]["status"]["exec_info"]["queue_remaining"].as_u64();
                is_end = match has_client {
                    true => is_end_of(message, id),
                    false => was_busy && remaining == Some(0),
                };
                was_busy |= remaining > Some(0);
            }
            self.heard.push(next);
            if is_end {
                return;
            }
        }
    }
}

/// Messages in order, and previews. Counters between two other messages are one entry with the last of each kind, because
/// their number depends on time. So are statuses; those before the prompt was queued belong to another.
fn messages(heard: &[Heard]) -> (Vec<Value>, Vec<Value>) {
    let (mut messages, mut previews): (Vec<Value>, Vec<Value>) = (Vec::new(), Vec::new());
    for it in heard {
        let message = match it {
            Heard::Text(message) => message.clone(),
            Heard::Binary(frame) => match frame_of(frame) {
                (3, text) => json!({ "type": "text", "data": text }),
                (kind, preview) => {
                    previews.push(json!([kind, preview]));
                    let counters = counters_at_the_end(&mut messages);
                    let count = counters["previews"].as_u64().unwrap_or(0);
                    counters["previews"] = (count + 1).into();
                    continue;
                }
            },
            Heard::Closed => continue,
        };
        let kind = message["type"].as_str().unwrap().to_owned();
        match &*kind {
            "status" => {
                let remaining = &message["data"]["status"]["exec_info"]["queue_remaining"];
                match messages.last_mut() {
                    None if *remaining == 0 => {}
                    Some(last) if last["type"] == "status" => last["remaining"] = remaining.clone(),
                    _ => messages.push(json!({ "type": "status", "remaining": remaining })),
                }
            }
            "progress" | "progress_state" => {
                counters_at_the_end(&mut messages)[&kind] = message["data"].clone();
            }
            _ => messages.push(message),
        }
    }
    (messages, previews)
}

/// The entry for counters and previews since the last other message.
fn counters_at_the_end(messages: &mut Vec<Value>) -> &mut Value {
    if messages.last().is_none_or(|last| last["type"] != "counters") {
        messages.push(json!({ "type": "counters" }));
    }
    messages.last_mut().unwrap()
}

/// Kind of a binary frame, and what it holds.
fn frame_of(frame: &[u8]) -> (u32, Value) {
    let number = |at: usize| u32::from_be_bytes(frame[at..at + 4].try_into().unwrap());
    let (kind, length) = (number(0), number(4) as usize);
    let content = match kind {
        1 => json!({ "type": length, "image": hash(&frame[8..]) }),
        3 => {
            let (node, text) = frame[8..].split_at(length);
            json!({ "node": String::from_utf8_lossy(node), "text": String::from_utf8_lossy(text) })
        }
        _ => {
            let (about, image) = frame[8..].split_at(length);
            let about = read_json(&String::from_utf8_lossy(about));
            json!({ "about": about, "image": hash(image) })
        }
    };
    (kind, content)
}

fn hash(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Files that outputs name, by node and key.
fn files_of(outputs: &Value) -> Vec<Value> {
    let keys = outputs.as_object().into_iter().flatten().flat_map(|(_, keys)| keys.as_object());
    let items = keys.flat_map(|keys| keys.values()).filter_map(Value::as_array).flatten();
    items.filter(|item| item["filename"].is_string()).cloned().collect()
}

/// A node goes on until it hears of the interruption: how far it comes depends on time.
fn replace_steps(messages: &mut Value) {
    for counters in messages.as_array_mut().into_iter().flatten() {
        if let Some(value) = counters.pointer_mut("/progress/value") {
            *value = "(some steps)".into();
        }
        let nodes = counters.pointer_mut("/progress_state/nodes").and_then(Value::as_object_mut);
        for node in nodes.into_iter().flat_map(Map::values_mut).filter(|node| node["state"] == "running") {
            node["value"] = "(some steps)".into();
        }
    }
}

/// Times differ; that they are numbers does not.
fn replace_times(value: &mut Value) {
    const TIMES: [&str; 4] = ["timestamp", "create_time", "execution_start_time", "execution_end_time"];
    match value {
        Value::Array(items) => items.iter_mut().for_each(replace_times),
        Value::Object(members) => {
            for (key, member) in members {
                if TIMES.contains(&key.as_str()) && member.is_number() {
                    *member = "(a time)".into();
                }
                replace_times(member);
            }
        }
        _ => {}
    }
}
