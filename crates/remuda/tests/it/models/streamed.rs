//! Copies are killed in the middle of streamed answers: the caller gets the whole text once.

use reqwest::{Method, Response, StatusCode};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::host::{Host, copies, stand_in};
use crate::harness::{Client, Plane, QUICK, Worker, wait_until};

/// The first copy that reaches the middle of this text hangs.
const TEXT: &str = "a wild !once hang horse";
const ANSWER_TEXT: &str = "a wild horse";

/// An answer as it comes.
struct Answer {
    response: Response,
    raw: String,
    text: String,
    /// All other events, in order.
    events: Vec<Value>,
}

impl Answer {
    async fn ask(client: &Client, text: &str) -> Answer {
        Answer::ask_with(client, text, &json!({})).await
    }

    /// As `ask`, with more fields.
    async fn ask_with(client: &Client, text: &str, more: &Value) -> Answer {
        let messages = json!([{ "role": "user", "content": text }]);
        let mut body = json!({ "model": "chat", "messages": messages, "stream": true });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
        let request = client.request(Method::POST, "/v1/chat/completions").json(&body);
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Answer { response, raw: String::new(), text: String::new(), events: Vec::new() }
    }

    /// Reads until this many bytes of text have arrived, or to the end.
    async fn read_until(&mut self, bytes: usize) {
        while self.text.len() < bytes {
            let Some(chunk) = self.response.chunk().await.unwrap() else { return };
            self.raw.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some(end) = self.raw.find("\n\n") {
                let event: String = self.raw.drain(..end + 2).collect();
                let Some(data) = event.trim().strip_prefix("data: ") else { continue };
                let data: Value = serde_json::from_str(data).unwrap_or_else(|_| json!(data));
                match data["choices"][0]["delta"]["content"].as_str() {
                    Some(words) => self.text.push_str(words),
                    None => self.events.push(data),
                }
            }
        }
    }

    /// Reads to the end, which must have this finish reason, and returns the text.
    async fn ended(mut self, why: &str) -> String {
        self.read_until(usize::MAX).await;
        let [finish, done] = &self.events[..] else { panic!("{:?} {:?}", self.text, self.events) };
        assert_eq!((&finish["choices"][0]["finish_reason"], done), (&json!(why), &json!("[DONE]")));
        self.text
    }
}

/// Kills the one that is at work.
fn kill(copies: &[Value]) -> Option<()> {
    let pid = copies.iter().find(|copy| copy["state"] == "busy")?["pid"].as_i64()?;
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).ok()
}

/// Faults: T1.
#[tokio::test]
async fn stream_survives_killed_copy() {
    let host = Host::up(&["chat=chat.fake,copies=2,isolation=process"]).await;
    let mut answer = Answer::ask(&host, TEXT).await;
    answer.read_until("a wild ".len()).await;
    wait_until("a busy copy was killed", async || kill(&copies(&host.model("chat").await))).await;
    assert_eq!(answer.ended("stop").await, ANSWER_TEXT);
    let model = host.model("chat").await;
    assert_eq!((&model["here"]["moved"], &model["here"]["deaths"]["exited"]), (&json!(1), &json!(1)));
}

/// Faults: T1. Two texts are never made into one.
#[tokio::test]
async fn diverging_stream_ends_with_error() {
    let host = Host::up(&["chat=chat.fake,copies=2,isolation=process"]).await;
    let mut answer = Answer::ask(&host, "I am !stray !once panic and so on").await;
    answer.read_until(usize::MAX).await;
    let [event] = &answer.events[..] else { panic!("{:?}", answer.events) };
    assert_eq!(event["error"]["code"], "stream_diverged", "{event}");
    assert!(answer.text.starts_with("I am ") && !answer.text.contains("so on"), "{}", answer.text);
}

/// The pool of a worker does the same for jobs: no attempt is lost for it.
///
/// Faults: T1.
#[tokio::test]
async fn job_stream_survives_killed_copy() {
    let plane = Plane::start(QUICK).await;
    stand_in(plane.folder(), "chat.fake");
    let what = ["--model", "chat=chat.fake,copies=2,isolation=process"];
    let _mule = Worker::start_doing(&plane, "mule", &what).await;
    let mut answer = Answer::ask(&plane, TEXT).await;
    answer.read_until("a wild ".len()).await;
    wait_until("a busy copy was killed", async || {
        let status = plane.get("/remuda/v1/models").await;
        let copies = status["models"][0]["workers"]["mule"]["copies"].as_array().cloned();
        kill(&copies.unwrap_or_default())
    })
    .await;
    assert_eq!(answer.ended("stop").await, ANSWER_TEXT);
    let job = plane.jobs().await.remove(0);
    assert_eq!((&job["state"], &job["attempt"]), (&json!("completed"), &json!(1)), "{job}");
}

/// With real weights and sampling.
///
/// Faults: T1.
#[tokio::test]
async fn stream_of_real_model_survives_killed_copy() {
    let Some(folder) = remuda_testkit::model("smollm2-135m") else { return };
    let host = Host::up(&[&format!("chat={},copies=2,isolation=process", folder.display())]).await;
    let more = json!({ "temperature": 1, "seed": 7, "max_tokens": 120 });
    let ask = async || Answer::ask_with(&host, "Tell me about wild horses.", &more).await;
    let mut answer = ask().await;
    answer.read_until(40).await;
    wait_until("a busy copy was killed", async || kill(&copies(&host.model("chat").await))).await;
    let said = answer.ended("length").await;
    assert_eq!(host.model("chat").await["here"]["moved"], 1, "it was in the middle of it");
    assert_eq!(said, ask().await.ended("length").await, "as if no copy had been killed");
}
