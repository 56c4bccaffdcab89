//! The client side of the protocol.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::runpod::{FakeRunpod, FakeRunpodOptions, RunpodFault};

pub(super) struct Client {
    pub(super) fake: FakeRunpod,
    pub(super) http: reqwest::Client,
}

/// Any answer.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) status: u16,
    pub(super) kind: String,
    pub(super) retry_after: Option<String>,
    pub(super) rate_limit: Option<String>,
    pub(super) text: String,
    pub(super) body: Value,
}

/// An account in manual time, and a client of it.
pub(super) async fn begin(options: FakeRunpodOptions) -> Client {
    // Fails if another test in this process has installed it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let fake = FakeRunpod::start(FakeRunpodOptions { manual_time: true, ..options }).await.unwrap();
    // Pooled connections would be cut, which is not what these tests are about.
    let http = reqwest::Client::builder().pool_max_idle_per_host(0).user_agent("story/1").build().unwrap();
    Client { fake, http }
}

pub(super) async fn plain() -> Client {
    begin(FakeRunpodOptions::default()).await
}

/// The smallest order that gets a machine.
pub(super) fn order(name: &str) -> Value {
    json!({
        "name": name, "image": "ours:1", "cloud": "SECURE", "ports": ["22/tcp", "8000/http"],
        "gpu": {"id": "NVIDIA GeForce RTX 4090", "count": 1}, "env": {"KEY": "value"}, "disk": 50,
    })
}

impl Client {
    pub(super) fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("{}{path}", self.fake.url())).bearer_auth("rpa_story")
    }

    pub(super) async fn get(&self, path: &str) -> Seen {
        seen(self.request(Method::GET, path)).await.unwrap()
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Seen {
        seen(self.request(Method::POST, path).json(body)).await.unwrap()
    }

    pub(super) async fn delete(&self, id: &str) -> Seen {
        seen(self.request(Method::DELETE, &format!("/pods/{id}"))).await.unwrap()
    }

    pub(super) async fn create(&self, name: &str) -> Seen {
        self.post("/pods", &order(name)).await
    }

    /// Creates a pod and returns its id.
    pub(super) async fn made(&self, name: &str) -> String {
        let seen = self.create(name).await;
        assert_eq!(seen.status, 201, "{}", seen.text);
        seen.body["id"].as_str().unwrap().to_owned()
    }

    /// Creates a pod with this fault.
    pub(super) async fn made_with(&self, fault: RunpodFault) -> String {
        self.fake.control().strike_next(fault);
        let id = self.made("p").await;
        assert_eq!(self.fake.struck()[fault.name()], 1);
        id
    }

    pub(super) async fn pod(&self, id: &str) -> Value {
        let seen = self.get(&format!("/pods/{id}")).await;
        assert_eq!(seen.status, 200, "{}", seen.text);
        seen.body
    }

    /// The names on the first page of the list.
    pub(super) async fn names(&self) -> Vec<String> {
        let seen = self.get("/pods").await;
        assert_eq!(seen.status, 200, "{}", seen.text);
        let pods = seen.body["pods"].as_array().unwrap();
        pods.iter().map(|pod| pod["name"].as_str().unwrap().to_owned()).collect()
    }

    pub(super) async fn act(&self, id: &str, action: &str) -> Seen {
        self.post(&format!("/pods/{id}/action"), &json!({"action": action})).await
    }

    pub(super) fn pass(&self, seconds: u64) {
        self.fake.control().advance(Duration::from_secs(seconds));
    }
}

/// Sends a request; an error means that there was no answer.
pub(super) async fn seen(request: RequestBuilder) -> Result<Seen, reqwest::Error> {
    let answer = request.send().await?;
    let header = |name| answer.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
    let (status, kind) = (answer.status().as_u16(), header("content-type").unwrap_or_default());
    let (retry_after, rate_limit) = (header("retry-after"), header("ratelimit"));
    let text = answer.text().await?;
    let body = serde_json::from_str(&text).unwrap_or_default();
    Ok(Seen { status, kind, retry_after, rate_limit, text, body })
}
