//! A server that gives scripted answers in order and records the requests.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::response::Response;
use futures_util::StreamExt as _;
use futures_util::stream;
use reqwest::header::HeaderMap;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::task::AbortHandle;

#[derive(Clone, Debug)]
pub(super) struct Answer {
    status: u16,
    headers: Vec<(&'static str, &'static str)>,
    body: String,
    ends: bool,
}

impl Answer {
    pub(super) fn text(status: u16, body: &str) -> Answer {
        Answer { status, headers: Vec::new(), body: body.to_owned(), ends: true }
    }

    pub(super) fn json(status: u16, body: &Value) -> Answer {
        Answer::text(status, &body.to_string())
    }

    /// An answer that never ends.
    pub(super) fn endless(body: &str) -> Answer {
        Answer { ends: false, ..Answer::text(200, body) }
    }

    /// An answer that never comes.
    pub(super) fn never() -> Answer {
        Answer::text(0, "")
    }

    pub(super) fn with(mut self, name: &'static str, value: &'static str) -> Answer {
        self.headers.push((name, value));
        self
    }
}

#[derive(Clone, Debug)]
pub(super) struct RecordedRequest {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

#[derive(Debug)]
pub(super) struct Answers {
    pub(super) url: String,
    script: Arc<Script>,
    server: AbortHandle,
}

#[derive(Debug)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<RecordedRequest>>,
}

impl Answers {
    pub(super) async fn start(answers: impl IntoIterator<Item = Answer>) -> Answers {
        let answers = Mutex::new(answers.into_iter().collect());
        let script = Arc::new(Script { answers, requests: Mutex::default() });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v2", listener.local_addr().unwrap());
        let router = Router::new().fallback(answer).with_state(Arc::clone(&script));
        let server = tokio::spawn(async move { axum::serve(listener, router).await }).abort_handle();
        Answers { url, script, server }
    }

    pub(super) fn requests(&self) -> Vec<RecordedRequest> {
        self.script.requests.lock().unwrap().clone()
    }
}

impl Drop for Answers {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn answer(State(script): State<Arc<Script>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await.unwrap();
    script.requests.lock().unwrap().push(RecordedRequest {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: parts.uri.query().unwrap_or_default().to_owned(),
        headers: parts.headers,
        body,
    });
    let answer = script.answers.lock().unwrap().pop_front().expect("a question too many");
    if answer.status == 0 {
        std::future::pending::<()>().await;
    }
    let mut response = Response::builder().status(answer.status);
    for (name, value) in answer.headers {
        response = response.header(name, value);
    }
    let body = if answer.ends {
        Body::from(answer.body)
    } else {
        let first = stream::iter([Ok::<_, Infallible>(Bytes::from(answer.body))]);
        Body::from_stream(first.chain(stream::pending()))
    };
    response.body(body).unwrap()
}
