//! The output of a pod's container and host, as a bounded tail that can be followed.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::Response;
use futures_util::stream::unfold;
use remuda_core::time::Timestamp;
use serde_json::json;
use tokio::sync::watch;

/// The real one's maximum.
const LINES_MAX: usize = 5000;
/// The default number of lines.
const TAIL: usize = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Container,
    System,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Source::Container => "container",
            Source::System => "system",
        }
    }
}

#[derive(Clone, Debug)]
struct Line {
    at: Timestamp,
    number: u64,
    source: Source,
    text: String,
}

impl Line {
    fn id(&self) -> String {
        format!("{}/{}", self.at, self.number)
    }

    fn event(&self) -> String {
        let data = json!({"ts": self.at.to_string(), "source": self.source.name(), "line": self.text});
        format!("id: {}\ndata: {data}\n\n", self.id())
    }
}

/// Dropped together with its pod, which ends the streams of its followers.
#[derive(Debug)]
pub(super) struct Logs {
    lines: Arc<Mutex<VecDeque<Line>>>,
    newest: watch::Sender<u64>,
}

impl Default for Logs {
    fn default() -> Logs {
        Logs { lines: Arc::default(), newest: watch::Sender::new(0) }
    }
}

fn open(lines: &Mutex<VecDeque<Line>>) -> MutexGuard<'_, VecDeque<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Logs {
    pub(super) fn say(&self, at: Timestamp, source: Source, text: impl Into<String>) {
        let mut lines = open(&self.lines);
        let number = lines.back().map_or(1, |last| last.number + 1);
        lines.push_back(Line { at, number, source, text: text.into() });
        if lines.len() > LINES_MAX {
            lines.pop_front();
        }
        drop(lines);
        self.newest.send_replace(number);
    }

    /// The last lines, and everything after them while the client listens.
    pub(super) fn follow(&self, wish: &Wish) -> Response {
        let after = {
            let lines = open(&self.lines);
            let resumed = wish.after.as_ref().and_then(|id| lines.iter().find(|line| line.id() == *id));
            let wanted: Vec<u64> =
                lines.iter().filter(|line| wish.wants(line)).map(|line| line.number).collect();
            let skipped = wanted.len().saturating_sub(wish.tail);
            let before_tail = match wanted.get(skipped) {
                Some(first) => first - 1,
                None => lines.back().map_or(0, |last| last.number),
            };
            resumed.map_or(before_tail, |line| line.number)
        };
        let (lines, newest, wish) = (Arc::clone(&self.lines), self.newest.subscribe(), wish.clone());
        let events = unfold((after, lines, newest, wish), async |(after, lines, mut newest, wish)| {
            loop {
                newest.borrow_and_update();
                let fresh: Vec<Line> =
                    open(&lines).iter().filter(|line| line.number > after).cloned().collect();
                let text: String = fresh.iter().filter(|line| wish.wants(line)).map(Line::event).collect();
                if !text.is_empty() {
                    let after = fresh.last().map_or(after, |line| line.number);
                    return Some((Ok::<_, Infallible>(text), (after, lines, newest, wish)));
                }
                newest.changed().await.ok()?;
            }
        });
        let mut response = Response::new(Body::from_stream(events));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// Which lines a client requested.
#[derive(Clone, Debug)]
pub(super) struct Wish {
    source: Option<Source>,
    tail: usize,
    since: Option<String>,
    /// The id of the last event that the client has.
    after: Option<String>,
}

impl Wish {
    pub(super) fn read(ask: &dyn Fn(&str) -> Option<String>, after: Option<String>) -> Wish {
        let source = match ask("source").as_deref() {
            Some("container") => Some(Source::Container),
            Some("system") => Some(Source::System),
            _ => None,
        };
        let tail = ask("tail").and_then(|tail| tail.parse().ok()).unwrap_or(TAIL).min(LINES_MAX);
        Wish { source, tail, since: ask("since"), after }
    }

    /// Timestamps of one format sort as text.
    fn wants(&self, line: &Line) -> bool {
        let is_late = self.since.as_ref().is_none_or(|since| line.at.to_string() >= *since);
        is_late && self.source.is_none_or(|source| source == line.source)
    }
}
