//! Events as a reader of the stream gets them.

use reqwest::{Method, Response, StatusCode};
use serde_json::Value;

use super::{Client, WAIT_MAX};

#[derive(Debug)]
pub(crate) struct Stream {
    response: Response,
    text: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Event {
    /// Only what is stored has a number.
    pub(crate) seq: Option<u64>,
    pub(crate) name: String,
    pub(crate) data: Value,
}

impl Stream {
    pub(crate) async fn open(client: &Client, query: &str, last: Option<u64>) -> Stream {
        let mut request = client.http.request(Method::GET, format!("{}/remuda/v1/events{query}", client.url));
        if !client.token.is_empty() {
            request = request.bearer_auth(&client.token);
        }
        if let Some(last) = last {
            request = request.header("last-event-id", last);
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        Stream { response, text: String::new() }
    }

    /// The stream of a response.
    pub(crate) fn of(response: Response) -> Stream {
        Stream { response, text: String::new() }
    }

    /// The next event; a stream that ends before it fails the test.
    pub(crate) async fn next(&mut self) -> Event {
        let event = tokio::time::timeout(WAIT_MAX, self.read()).await.expect("an event should have come");
        event.expect("the stream should have gone on")
    }

    /// The next one of this name.
    pub(crate) async fn until(&mut self, name: &str) -> Event {
        loop {
            let event = self.next().await;
            if event.name == name {
                return event;
            }
        }
    }

    /// None once the stream has ended.
    pub(crate) async fn read(&mut self) -> Option<Event> {
        loop {
            if let Some(end) = self.text.find("\n\n") {
                let event: String = self.text.drain(..end + 2).collect();
                match parse(&event) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let chunk = self.response.chunk().await.ok()??;
            self.text.push_str(std::str::from_utf8(&chunk).unwrap());
        }
    }
}

/// None for a comment, which only keeps the line open.
fn parse(event: &str) -> Option<Event> {
    let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some(Event {
        seq: field("id:").map(|seq| seq.parse().unwrap()),
        name: field("event:")?.to_owned(),
        data: serde_json::from_str(field("data:")?).unwrap(),
    })
}
