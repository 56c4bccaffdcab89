//! What a look makes of answers at moments and of sizes that no real server can be held to.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use remuda_core::service::{ProbeResult, ProbeTrigger};

use crate::{Client, Target};

const ID: &str = "c4b069c6-19b6-4062-9edb-8ea621236d76";

/// A server on which a prompt runs while the first `running` requests are answered, and has ended when the next comes.
async fn server(running: usize) -> Client {
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

async fn serve(routes: Router) -> Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = Target::new(format!("http://{}", listener.local_addr().unwrap()));
    tokio::spawn(async move { axum::serve(listener, routes).await });
    Client::new(&target, Duration::from_secs(5)).unwrap()
}

/// Faults: V6.
#[tokio::test]
async fn a_prompt_that_ends_between_two_reads_is_never_unknown() {
    for running in 0..4 {
        for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint, ProbeTrigger::Recheck] {
            let seen = server(running).await.look(ID, trigger).await;
            assert!(
                matches!(seen, ProbeResult::Running | ProbeResult::Succeeded { .. }),
                "{running} {trigger:?}: {seen:?}"
            );
        }
    }
}

#[tokio::test]
async fn thousands_that_wait_are_read_past() {
    let graph = format!(r#"{{"1": {{"class_type": "A", "inputs": {{"text": "{}"}}}}}}"#, "x".repeat(2000));
    let items: Vec<String> = (0..2000).map(|at| format!(r#"[{at}, "{at}", {graph}, {{}}, ["1"]]"#)).collect();
    let queue = format!(
        r#"{{"queue_running": [], "queue_pending": [{}, [1, "{ID}", {{}}, {{}}, []]]}}"#,
        items.join(",")
    );
    let client = serve(Router::new().route("/queue", get(move || async move { queue }))).await;
    assert!(matches!(client.look(ID, ProbeTrigger::Silence).await, ProbeResult::Pending { ahead: None }));
}

#[tokio::test]
async fn what_is_no_comfyui_knows_nothing_and_that_is_no_answer() {
    for page in ["<html>Welcome</html>", "{}", "[]", "null", "", r#"{"queue_running": []}"#] {
        let client = serve(Router::new().fallback(get(move || async move { page }))).await;
        for trigger in [ProbeTrigger::Silence, ProbeTrigger::CompletionHint] {
            let seen = client.look(ID, trigger).await;
            assert!(matches!(seen, ProbeResult::NoAnswer(_)), "{page}: {seen:?}");
        }
        assert!(client.stats().await.is_err() && client.inventory().await.is_err(), "{page}");
        assert!(client.ours(&"w".parse().unwrap()).await.is_err(), "{page}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_given_up() {
    let endless = || async {
        let chunk = axum::body::Bytes::from(vec![b' '; 1 << 20]);
        let chunks = futures_util::stream::repeat_with(move || Ok::<_, std::io::Error>(chunk.clone()));
        axum::body::Body::from_stream(chunks)
    };
    let client = serve(Router::new().fallback(get(endless))).await;
    let seen = client.look(ID, ProbeTrigger::Silence).await;
    assert!(matches!(&seen, ProbeResult::NoAnswer(why) if why.contains("more than")), "{seen:?}");
}
