//! A worker that sends exactly the messages that a test wants.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::{Client, answered, wait_until};

#[derive(Clone, Debug)]
pub(crate) struct ScriptedWorker {
    pub(crate) client: Client,
    pub(crate) name: String,
    pub(crate) token: String,
    pub(crate) incarnation: u64,
    pub(crate) term: u64,
    pub(crate) seq: u64,
}

impl ScriptedWorker {
    pub(crate) async fn join(client: &Client, name: &str, slots: u32) -> ScriptedWorker {
        let join = json!({ "worker": name, "services": ["exec"], "slots": slots });
        let (status, joined) = client.post("/remuda/v1/workers", &join).await;
        assert_eq!(status, StatusCode::CREATED, "{joined}");
        ScriptedWorker {
            // From now on it goes by what it was given.
            client: client.with(""),
            name: name.to_owned(),
            token: joined["token"].as_str().unwrap().to_owned(),
            incarnation: joined["incarnation"].as_u64().unwrap(),
            term: joined["term"].as_u64().unwrap(),
            seq: 0,
        }
    }

    /// A beat as it goes over the wire; `seq` and `term` are kept up to date.
    pub(crate) fn beat(&mut self, held: &Value, finished: &Value, wait: f64) -> reqwest::RequestBuilder {
        self.seq += 1;
        let beat = json!({
            "incarnation": self.incarnation, "seq": self.seq, "term": self.term, "held": held, "finished": finished,
        });
        let path = format!("/remuda/v1/workers/{}/beat?wait={wait}", self.name);
        self.client.request(Method::POST, &path).bearer_auth(&self.token).json(&beat)
    }

    /// Beats and expects success.
    pub(crate) async fn say(&mut self, held: &Value, finished: &Value) -> Value {
        loop {
            let beat = self.beat(held, finished, 0.0);
            let (status, reply) = answered(beat).await;
            assert_eq!(status, StatusCode::OK, "{reply}");
            self.term = reply["term"].as_u64().unwrap();
            if reply["beat_again"] != true {
                return reply;
            }
        }
    }

    /// Beats without held attempts until it gets a start order; returns job and attempt.
    pub(crate) async fn take(&mut self) -> Value {
        let what = format!("{} is given something", self.name);
        wait_until(&what, async || {
            let reply = self.say(&json!([]), &json!([])).await;
            let start = reply["start"].get(0)?;
            Some(json!({ "job": start["job"], "attempt": start["attempt"] }))
        })
        .await
    }

    /// Reports an attempt as completed, and returns the plane's verdict.
    pub(crate) async fn complete(&mut self, attempt: &Value, result: Value) -> String {
        let mut finished = attempt.clone();
        (finished["outcome"], finished["result"]) = (json!("completed"), result);
        let reply = self.say(&json!([]), &json!([finished])).await;
        reply["settled"][0]["refused"].as_str().unwrap_or("recorded").to_owned()
    }
}
