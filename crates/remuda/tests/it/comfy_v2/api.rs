//! A client that checks every answer against the contract.

use std::sync::LazyLock;

use reqwest::header::{HeaderMap, HeaderValue};
use reqwest::multipart::{Form, Part};
use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::schema::{resolved, wrong};
use crate::harness::{Client, Event, Stream, WAIT_MAX, wait_until};

static CONTRACT: LazyLock<Value> = LazyLock::new(|| {
    serde_json::from_str(include_str!("../../../../remuda-server/src/http/comfy_v2/contract.json")).unwrap()
});

/// Statuses that the contract neither excludes nor lists; our additions document them.
const ADDED: &[u16] = &[405, 408, 413, 422, 429];
const NOT_MODIFIED: u16 = 304;

#[derive(Clone, Debug)]
pub(super) struct Api {
    pub(super) client: Client,
}

#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) bytes: Vec<u8>,
    pub(super) body: Value,
}

impl Answer {
    /// Asserts status and code of an error and returns its message.
    pub(super) fn is_error(&self, status: u16, code: &str) -> String {
        let is = (self.status.as_u16(), self.body["error"]["code"].as_str().unwrap_or_default());
        assert_eq!(is, (status, code), "{}", self.body);
        self.body["error"]["message"].as_str().unwrap().to_owned()
    }

    /// The body of a successful answer.
    pub(super) fn of(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }
}

impl Api {
    pub(super) fn new(client: &Client) -> Api {
        Api { client: client.clone() }
    }

    pub(super) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, &format!("/api/v2{path}"))
    }

    pub(super) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub(super) async fn post(&self, path: &str, body: &Value) -> Answer {
        self.send(self.request(Method::POST, path).json(body)).await
    }

    pub(super) async fn send(&self, request: reqwest::RequestBuilder) -> Answer {
        let (http, request) = request.build_split();
        let request = request.unwrap();
        let (method, path) = (request.method().clone(), request.url().path().to_owned());
        let response = http.execute(request).await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = response.bytes().await.unwrap().to_vec();
        let body = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        let answer = Answer { status, headers, bytes, body };
        check(&method, &path, &answer);
        answer
    }

    /// An upload with these parts before the file.
    pub(super) fn upload(&self, content: &[u8], fields: &[(&str, &str)]) -> reqwest::RequestBuilder {
        let mut form = Form::new();
        for (name, value) in fields {
            form = form.text((*name).to_owned(), (*value).to_owned());
        }
        let file = Part::bytes(content.to_vec()).file_name("photo.png");
        self.request(Method::POST, "/assets").multipart(form.part("file", file))
    }

    /// Uploads an image and returns the asset.
    pub(super) async fn picture(&self, content: &[u8]) -> Value {
        let fields = [("content_type", "image/png"), ("file_path", "photo.png")];
        let answer = self.send(self.upload(content, &fields)).await;
        assert!(answer.status.is_success(), "{}", answer.body);
        answer.body
    }

    /// Submits a workflow and returns the job.
    pub(super) async fn submit(&self, workflow: &Value) -> Value {
        self.post("/jobs", &json!({ "workflow": workflow })).await.of(201)
    }

    pub(super) async fn job(&self, id: &str) -> Value {
        self.get(&format!("/jobs/{id}")).await.of(200)
    }

    /// Polls until the job has ended, as clients do.
    pub(super) async fn ended(&self, job: &Value) -> Value {
        self.job_until(job, "has ended", |job| job["status"] != "queued" && job["status"] != "running").await
    }

    pub(super) async fn job_until(&self, job: &Value, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let id = job["id"].as_str().unwrap();
        wait_until(&format!("job {id} {what}"), async || Some(self.job(id).await).filter(|job| is_so(job)))
            .await
    }

    pub(super) async fn content(&self, asset: &Value) -> Vec<u8> {
        let answer = self.get(&format!("/assets/{}/content", asset["id"].as_str().unwrap())).await;
        assert_eq!(answer.status, StatusCode::OK, "{}", answer.body);
        answer.bytes
    }

    /// The event stream of a job, starting with its snapshot.
    pub(super) async fn events(&self, job: &Value, headers: &[(&str, &str)]) -> Listener {
        let path = job["urls"]["events"].as_str().unwrap();
        let mut request = self.client.http.get(format!("{}{path}", self.client.url));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let response = tokio::time::timeout(WAIT_MAX, request.send()).await.unwrap().unwrap();
        assert_eq!(
            (response.status(), &response.headers()["content-type"]),
            (StatusCode::OK, &EVENTS),
            "{job}"
        );
        Listener(Stream::of(response))
    }
}

static EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");

/// A subscriber that checks every event against the contract.
#[derive(Debug)]
pub(super) struct Listener(Stream);

impl Listener {
    /// `None` once the stream has ended.
    pub(super) async fn next(&mut self) -> Option<Event> {
        let event = tokio::time::timeout(WAIT_MAX, self.0.read()).await.expect("an event, or the end")?;
        check_event(&event.name, &event.data);
        Some(event)
    }

    /// All events to the end.
    pub(super) async fn rest(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        while let Some(event) = self.next().await {
            events.push(event);
        }
        events
    }

    /// The next event of this name.
    pub(super) async fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await.unwrap_or_else(|| panic!("no {name} came"));
            if event.name == name {
                return event;
            }
        }
    }
}

/// An asset reference.
pub(super) fn named(asset: &Value) -> Value {
    json!({ "__type": "core/ASSET", "info": { "id": asset["id"] } })
}

/// Checks the data of an event against the contract.
fn check_event(name: &str, data: &Value) {
    let events = &CONTRACT["paths"]["/api/v2/jobs/{id}/events"]["get"]["x-sse-events"];
    let schema = events[name]["schema"].as_str().unwrap_or_else(|| panic!("no event is called {name}"));
    let wrongs = wrong(&CONTRACT, &json!({ "$ref": schema }), data);
    assert!(wrongs.is_empty(), "{name} {data}: {wrongs:?}");
}

fn check(method: &Method, path: &str, answer: &Answer) {
    let Some(operation) = operation(method, path) else {
        assert!(matches!(answer.status.as_u16(), 404 | 405), "{method} {path}: {}", answer.status);
        return check_error(method, path, answer);
    };
    let status = answer.status.as_u16();
    let listed = resolved(&CONTRACT, &operation["responses"][status.to_string()]);
    if status == NOT_MODIFIED {
        return;
    }
    let is_listed = listed.is_object();
    assert!(is_listed || ADDED.contains(&status), "{method} {path}: {status} is not listed: {}", answer.body);
    if !is_listed {
        return check_error(method, path, answer);
    }
    let content_type = answer.headers.get("content-type").map_or("", |it| it.to_str().unwrap());
    if let Some(schema) = listed["content"].get("application/json").map(|content| &content["schema"])
        && method != Method::HEAD
    {
        assert_eq!(content_type, "application/json", "{method} {path}");
        let wrongs = wrong(&CONTRACT, schema, &answer.body);
        assert!(wrongs.is_empty(), "{method} {path}: {}: {wrongs:?}", answer.body);
    }
    if status == 429 {
        assert!(answer.headers.contains_key("retry-after"), "{method} {path}");
    }
}

fn check_error(method: &Method, path: &str, answer: &Answer) {
    let schema = json!({ "$ref": "#/components/schemas/ErrorEnvelope" });
    let wrongs = wrong(&CONTRACT, &schema, &answer.body);
    assert!(wrongs.is_empty() || *method == Method::HEAD, "{method} {path}: {}: {wrongs:?}", answer.body);
}

/// The operation of a request. A fixed path is not an id.
fn operation(method: &Method, path: &str) -> Option<&'static Value> {
    let is_it = |template: &str| {
        let (mut parts, mut given) = (template.split('/'), path.split('/'));
        loop {
            match (parts.next(), given.next()) {
                (None, None) => return true,
                (Some(part), Some(given)) if part == given || part.starts_with('{') && !given.is_empty() => {}
                _ => return false,
            }
        }
    };
    let paths = CONTRACT["paths"].as_object().unwrap();
    let exact = paths.get(path);
    let found = exact.or_else(|| paths.iter().find(|(template, _)| is_it(template)).map(|(_, item)| item));
    found?.get(method.as_str().to_lowercase())
}
