//! Probes against scripted answers whose timing and size no real server could reproduce.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use remuda_core::service::{ProbeResult, ProbeTrigger};

use crate::{ComfyuiClient, ComfyuiTarget};

const ID: &str = "c4b069c6-19b6-4062-9edb-8ea621236d76";

/// A server whose prompt runs during the first `running` requests and has ended at the next.
async fn server(running: usize) -> ComfyuiClient {
    let asked = Arc::new(AtomicUsize::new(0));
    let is_running = move || asked.fetch_add(1, Ordering::SeqCst) < running;
    let is_queued = is_running.clone();
    let queue = move || async move {
        let item = if is_queued() { format!(r#"[1, "{ID}", {{}}, {{}}, []]"#) } else { String::new() };
        format!(r#"{{"queue_running": [{item}], "queue_pending": []}}"#)
    };
    let history = move |Path(id): Path<String>| async move {
        if is_running() {
            return "{}".to_owned();
        }
        format!(r#"{{"{id}": {{"outputs": {{}}, "status": {{"status_str": "success", "messages": []}}}}}}"#)
    };
    serve(Router::new().route("/queue", get(queue)).route("/history/{id}", get(history))).await
}

async fn serve(routes: Router) -> ComfyuiClient {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = ComfyuiTarget::new(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    ComfyuiClient::new(&target, Duration::from_secs(5)).unwrap()
}

/// Faults: V6.
#[tokio::test]
async fn prompt_that_ends_between_two_reads_is_found() {
    for running in 0..4 {
        for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint, ProbeTrigger::Recheck] {
            let seen = server(running).await.probe(ID, trigger).await;
            assert!(
                matches!(seen, ProbeResult::Running | ProbeResult::Succeeded { .. }),
                "{running} {trigger:?}: {seen:?}"
            );
        }
    }
}

#[tokio::test]
async fn probe_handles_thousands_of_waiting_prompts() {
    let graph = format!(r#"{{"1": {{"class_type": "A", "inputs": {{"text": "{}"}}}}}}"#, "x".repeat(2000));
    let items: Vec<String> = (0..2000).map(|at| format!(r#"[{at}, "{at}", {graph}, {{}}, ["1"]]"#)).collect();
    let queue = format!(
        r#"{{"queue_running": [], "queue_pending": [{}, [1, "{ID}", {{}}, {{}}, []]]}}"#,
        items.join(",")
    );
    let client = serve(Router::new().route("/queue", get(move || async move { queue }))).await;
    assert!(matches!(client.probe(ID, ProbeTrigger::Silence).await, ProbeResult::Pending { ahead: None }));
}

#[tokio::test]
async fn other_server_gives_no_verdict() {
    for page in ["<html>Welcome</html>", "{}", "[]", "null", "", r#"{"queue_running": []}"#] {
        let client = serve(Router::new().fallback(get(move || async move { page }))).await;
        for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint] {
            let seen = client.probe(ID, trigger).await;
            assert!(matches!(seen, ProbeResult::NoAnswer(_)), "{page}: {seen:?}");
        }
        assert!(client.stats().await.is_err() && client.inventory().await.is_err(), "{page}");
        assert!(client.tagged_prompts(&"w".parse().unwrap()).await.is_err(), "{page}");
    }
}

#[tokio::test]
async fn endless_answer_is_aborted() {
    let endless = || async {
        let chunk = axum::body::Bytes::from(vec![b' '; 1 << 20]);
        let chunks = futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
        axum::body::Body::from_stream(chunks)
    };
    let client = serve(Router::new().fallback(get(endless))).await;
    let seen = client.probe(ID, ProbeTrigger::Silence).await;
    assert!(matches!(&seen, ProbeResult::NoAnswer(why) if why.contains("it exceeds")), "{seen:?}");
}
