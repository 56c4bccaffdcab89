//! Requests of clients, operators and workers over HTTP.

use reqwest::{Method, Response, StatusCode};
use serde_json::{Value, json};

use super::{Stream, wait_until};

#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) http: reqwest::Client,
    pub(crate) url: String,
    /// Sent with every request; empty if the plane requires none.
    pub(crate) token: String,
}

impl Client {
    pub(crate) fn new(url: String) -> Client {
        // A connection for each request: none is left over from a plane that was killed meanwhile.
        let http = remuda_net::http_client::client_builder().pool_max_idle_per_host(0).build().unwrap();
        Client { http, url, token: String::new() }
    }

    /// The same plane, with this token.
    pub(crate) fn with(&self, token: &str) -> Client {
        Client { token: token.to_owned(), ..self.clone() }
    }

    pub(crate) fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.url)).timeout(super::WAIT_MAX);
        if self.token.is_empty() { request } else { request.bearer_auth(&self.token) }
    }

    pub(crate) async fn get(&self, path: &str) -> Value {
        let (status, answer) = answered(self.request(Method::GET, path)).await;
        assert_eq!(status, StatusCode::OK, "GET {path}: {answer}");
        answer
    }

    pub(crate) async fn post(&self, path: &str, body: &Value) -> (StatusCode, Value) {
        answered(self.request(Method::POST, path).json(body)).await
    }

    /// Submits a job with `workflow` and returns its id.
    pub(crate) async fn submit(&self, workflow: Value) -> String {
        self.submit_as(json!({ "workflow": workflow })).await
    }

    pub(crate) async fn submit_as(&self, submission: Value) -> String {
        let (status, answer) = self.post("/remuda/v1/jobs", &submission).await;
        assert_eq!(status, StatusCode::CREATED, "{answer}");
        answer["id"].as_str().unwrap().to_owned()
    }

    pub(crate) async fn cancel(&self, job: &str) -> (StatusCode, Value) {
        self.post(&format!("/remuda/v1/jobs/{job}/cancel"), &json!({})).await
    }

    pub(crate) async fn job(&self, job: &str) -> Value {
        self.get(&format!("/remuda/v1/jobs/{job}")).await
    }

    pub(crate) async fn why(&self, job: &str) -> Value {
        self.get(&format!("/remuda/v1/jobs/{job}/why")).await
    }

    pub(crate) async fn worker(&self, worker: &str) -> Value {
        self.get(&format!("/remuda/v1/workers/{worker}")).await
    }

    pub(crate) async fn worker_until_offline(&self, worker: &str) {
        let what = format!("{worker} is offline");
        wait_until(&what, async || (self.worker(worker).await["presence"] == "offline").then_some(())).await;
    }

    /// Waits until the job fulfils a condition, and returns it.
    pub(crate) async fn job_until(&self, job: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let what = format!("job {job} {what}");
        wait_until(&what, async || Some(self.job(job).await).filter(|job| is_so(job))).await
    }

    pub(crate) async fn ended(&self, job: &str) -> Value {
        let is_open = |job: &Value| job["state"] == "queued" || job["state"] == "running";
        self.job_until(job, "ends", |job| !is_open(job)).await
    }

    /// Waits until a beat has named the job's attempt, and returns its worker's name.
    pub(crate) async fn runs_on(&self, job: &str) -> String {
        let running = self.job_until(job, "runs", |job| job["state"] == "running").await;
        running["worker"].as_str().unwrap().to_owned()
    }

    /// Every job there is, newest first.
    pub(crate) async fn jobs(&self) -> Vec<Value> {
        let mut jobs = Vec::new();
        let mut before = String::new();
        loop {
            let page = self.get(&format!("/remuda/v1/jobs?limit=1000{before}")).await;
            jobs.extend(page["jobs"].as_array().unwrap().iter().cloned());
            match page["next"].as_str() {
                Some(next) => before = format!("&before={next}"),
                None => return jobs,
            }
        }
    }

    /// Every event so far; a job that is cancelled at once marks the end.
    pub(crate) async fn history(&self) -> Vec<super::Event> {
        let mark = self.submit_as(json!({ "workflow": { "mark": 1 }, "service": "no-such-service" })).await;
        self.cancel(&mark).await;
        let mut stream = Stream::open(self, "?after=0", None).await;
        let mut events = Vec::new();
        loop {
            let event = stream.next().await;
            if event.data["job"] == *mark {
                return events;
            }
            // Only what is stored belongs to history.
            events.extend(Some(event).filter(|event| event.seq.is_some()));
        }
    }
}

/// The status and the body.
pub(crate) async fn answered(request: reqwest::RequestBuilder) -> (StatusCode, Value) {
    read(request.send().await.unwrap()).await
}

async fn read(response: Response) -> (StatusCode, Value) {
    let status = response.status();
    let text = response.text().await.unwrap();
    (status, serde_json::from_str(&text).unwrap_or(Value::String(text)))
}
