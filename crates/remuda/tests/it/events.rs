//! Readers of events: reconnecting, slow and filtered ones.

use std::collections::BTreeSet;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::harness::{Client, Plane, QUICK, Raw, ScriptedWorker, Stream, answered, sleep_for};

/// Submits a job and completes it.
async fn run_one(plane: &Plane, hand: &mut ScriptedWorker, submission: Value) -> String {
    let job = plane.submit_as(submission).await;
    let attempt = hand.take().await;
    hand.complete(&attempt, json!(null)).await;
    job
}

/// Faults: C10.
#[tokio::test]
async fn reconnecting_reader_gets_every_event_once() {
    let mut plane = Plane::start(QUICK).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let mut seen = Vec::new();
    let mut stream = Stream::open(&plane, "?after=0", None).await;
    for round in 0..8 {
        run_one(&plane, &mut hand, json!({ "workflow": { "n": round } })).await;
        // Left at a different place each time, with something still unread; once the plane itself goes away.
        let mut wanted = 1 + round % 3;
        while wanted > 0 {
            let event = stream.next().await;
            if let Some(seq) = event.seq {
                seen.push(seq);
                wanted -= 1;
            }
        }
        drop(stream);
        if round == 4 {
            plane.kill();
            plane.start_again().await;
        }
        stream = Stream::open(&plane, "", seen.last().copied()).await;
    }
    let all: Vec<_> = plane.history().await.into_iter().map(|event| event.seq.unwrap()).collect();
    while seen.len() < all.len() {
        seen.extend(stream.next().await.seq);
    }
    assert_eq!(seen, all);
    assert!(all.iter().copied().eq(1..=all.len() as u64), "{all:?}");
}

/// Faults: C9.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_gets_gap_mark_and_delays_no_one() {
    const JOBS: usize = 2600;
    let plane = Plane::start(&[]).await;
    let mut quick = Stream::open(&plane, "?after=0", None).await;
    let mut slow = Raw::open_narrow(plane.address).await;
    slow.send("GET /remuda/v1/events?after=0 HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    let hand = ScriptedWorker::join(&plane, "w", 1000).await;
    let work = tokio::spawn(work_through(hand, JOBS));
    let quick = tokio::spawn(async move {
        let mut ends = 0;
        let mut last = 0;
        while ends < JOBS {
            let event = quick.next().await;
            let Some(seq) = event.seq else { continue };
            assert_eq!(seq, last + 1, "a reader that keeps up misses nothing");
            (last, ends) = (seq, ends + usize::from(event.name == "job:completed"));
        }
        last
    });
    submit_many(&plane, JOBS).await;
    work.await.unwrap();
    let last = quick.await.unwrap();

    // Only now the slow one reads: a mark where it fell behind, and then all of it from the store.
    let mut seen = BTreeSet::new();
    let mut marks = 0;
    let mut lines = Lines { raw: slow, text: String::new() };
    while !seen.contains(&last) {
        let line = lines.next().await;
        marks += usize::from(line == "event: gap");
        if let Some(seq) = line.strip_prefix("id: ") {
            assert!(seen.insert(seq.parse::<u64>().unwrap()), "{seq} came twice");
        }
    }
    assert!(seen.into_iter().eq(1..=last), "what it missed it got later");
    assert!(marks > 0, "it was never behind: the test is too small");
}

/// Lines of a stream that is read by hand.
struct Lines {
    raw: Raw,
    text: String,
}

impl Lines {
    async fn next(&mut self) -> String {
        use tokio::io::AsyncReadExt;
        loop {
            if let Some(end) = self.text.find('\n') {
                let line: String = self.text.drain(..=end).collect();
                return line.trim_end().to_owned();
            }
            let mut piece = vec![0; 64 << 10];
            let read = tokio::time::timeout(crate::harness::WAIT_MAX, self.raw.0.read(&mut piece)).await;
            let read = read.expect("more should have come").unwrap();
            assert!(read > 0, "the stream should have gone on");
            self.text.push_str(&String::from_utf8_lossy(&piece[..read]));
        }
    }
}

/// Jobs whose events are large, from several clients at once.
async fn submit_many(plane: &Plane, jobs: usize) {
    let http = remuda_net::http_client::client_builder().build().unwrap();
    let client = Client { http, url: plane.url.clone(), token: String::new() };
    let mut clients = JoinSet::new();
    for lane in 0..12 {
        let client = client.clone();
        clients.spawn(async move {
            for n in (lane..jobs).step_by(12) {
                let metadata = json!({ "padding": "x".repeat(4000) });
                client.submit_as(json!({ "workflow": { "n": n }, "metadata": metadata })).await;
            }
        });
    }
    clients.join_all().await;
}

/// Accepts every order and completes it with the next beat.
async fn work_through(mut hand: ScriptedWorker, jobs: usize) {
    let mut finished = json!([]);
    let mut done = 0;
    while done < jobs {
        let reply = hand.say(&json!([]), &finished).await;
        done += reply["settled"].as_array().map_or(0, Vec::len);
        let starts = reply["start"].as_array().cloned().unwrap_or_default();
        let completed = starts
            .iter()
            .map(|start| json!({ "job": start["job"], "attempt": start["attempt"], "outcome": "completed" }));
        finished = completed.collect();
        if starts.is_empty() {
            sleep_for(std::time::Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn event_filters_select_exactly() {
    let plane = Plane::start(&[]).await;
    let mut hand = ScriptedWorker::join(&plane, "w", 1).await;
    let anna = run_one(&plane, &mut hand, json!({ "workflow": { "n": 1 }, "tenant": "anna" })).await;
    let bert =
        run_one(&plane, &mut hand, json!({ "workflow": { "n": 2 }, "metadata": { "user": "b" } })).await;
    let life = |job| ["job:queued", "job:started", "job:completed"].map(|name| (name, Some(job)));
    follows(&plane, &format!("job={bert}"), &life(&bert)).await;
    follows(&plane, "tenant=anna", &life(&anna)).await;
    follows(&plane, "name=job:completed", &[life(&anna)[2], life(&bert)[2]]).await;
    follows(&plane, "name=worker", &[("worker:online", None)]).await;
    let mut stream = Stream::open(&plane, &format!("?after=0&job={bert}"), None).await;
    for _ in 0..3 {
        assert_eq!(
            stream.next().await.data["metadata"],
            json!({ "user": "b" }),
            "metadata is on every event"
        );
    }
}

/// That these are all the events a follower is told who asks for them: name, and the job it is about.
async fn follows(plane: &Plane, query: &str, expected: &[(&str, Option<&String>)]) {
    let mut stream = Stream::open(plane, &format!("?after=0&{query}"), None).await;
    let mut told = Vec::new();
    loop {
        let event = stream.next().await;
        if event.name == "caught_up" {
            break;
        }
        told.push((event.name, event.data["job"].as_str().map(str::to_owned)));
    }
    let expected: Vec<_> = expected.iter().map(|(name, job)| ((*name).to_owned(), job.cloned())).collect();
    assert_eq!(told, expected, "{query}");
}

#[tokio::test]
async fn event_streams_are_capped_and_released() {
    let plane = Plane::start(&["limits.streams_max=2"]).await;
    let first = Stream::open(&plane, "", None).await;
    let _second = Stream::open(&plane, "", None).await;
    let third = plane.request(Method::GET, "/remuda/v1/events").send().await.unwrap();
    assert_eq!(third.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(third.headers().contains_key("retry-after"));
    drop(first);
    crate::harness::wait_until("the place is free again", async || {
        let stream = plane.request(Method::GET, "/remuda/v1/events").send().await.unwrap();
        stream.status().is_success().then_some(())
    })
    .await;
    let (status, _) = answered(plane.request(Method::GET, "/remuda/v1/events?after=soon")).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
}
