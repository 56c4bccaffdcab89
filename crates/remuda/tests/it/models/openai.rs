//! OpenAI's own client, as its documentation uses it, on models of the plane's own process.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::host::{Host, copies, ended_well, python};
use crate::harness::{answered, assert_contains_all, wait_until};

const BOTH: [&str; 2] = ["embed=embed.fake", "chat=chat.fake"];

#[tokio::test]
async fn openai_package_works_directly() {
    let Some(python) = python() else { return };
    let host = Host::up(&BOTH).await;
    let said = ended_well(host.script(&python, "client.py", &["embed", "chat"])).await;
    assert_contains_all(&said, &["models chat embed", "floats equal base64", "streamed", "refused", "done"]);
    // Asked directly: no job was made of any of it.
    assert_eq!(host.jobs().await.len(), 0);
}

#[tokio::test]
async fn openai_package_gets_images() {
    let Some(python) = python() else { return };
    let host = Host::up(&["draw=draw.fake"]).await;
    assert_contains_all(&ended_well(host.script(&python, "pictures.py", &["draw"])).await, &["done"]);
}

#[tokio::test]
async fn full_model_queue_answers_429_with_retry_after() {
    let Some(python) = python() else { return };
    let host = Host::up(&["embed=embed.fake"]).await;
    assert_contains_all(
        &ended_well(host.script(&python, "full.py", &["embed"])).await,
        &["RateLimitError", "done"],
    );
}

/// Faults: X17.
#[tokio::test]
async fn missing_token_has_openai_error_format() {
    let host = Host::up(&BOTH).await;
    let (_, made) = host.post("/remuda/v1/tokens", &json!({ "role": "admin" })).await;
    let admin = host.with(made["token"].as_str().unwrap());
    let (_, made) = admin.post("/remuda/v1/tokens", &json!({ "role": "client", "tenant": "anna" })).await;
    let anna = host.with(made["token"].as_str().unwrap());
    let (_, made) = admin.post("/remuda/v1/tokens", &json!({ "role": "worker" })).await;
    let worker = host.with(made["token"].as_str().unwrap());
    for (client, status, kind) in [
        (&host.with(""), StatusCode::UNAUTHORIZED, "authentication_error"),
        (&host.with("rmd_unknown"), StatusCode::UNAUTHORIZED, "authentication_error"),
        (&worker, StatusCode::FORBIDDEN, "permission_error"),
    ] {
        let (found, answer) = answered(client.request(Method::GET, "/v1/models")).await;
        assert_eq!((found, &answer["error"]["type"]), (status, &json!(kind)), "{answer}");
        assert!(answer["error"]["message"].is_string() && answer["error"].get("param").is_some(), "{answer}");
    }
    assert_eq!(anna.get("/v1/models").await["data"].as_array().unwrap().len(), 2);
    // How copies are is for those who run them.
    assert_eq!(answered(anna.request(Method::GET, "/remuda/v1/models")).await.0, StatusCode::FORBIDDEN);
}

#[tokio::test]
async fn invalid_requests_have_status_and_param() {
    let host = Host::up(&BOTH).await;
    let text = json!({ "role": "user", "content": "hello" });
    for (path, body, status, param) in [
        ("embeddings", json!({ "model": "embed" }), 400, json!("input")),
        ("embeddings", json!({ "input": "x" }), 400, json!("model")),
        ("embeddings", json!({ "model": "embed", "input": [1, 2] }), 400, json!("input")),
        (
            "embeddings",
            json!({ "model": "embed", "input": "x", "dimensions": 4096 }),
            400,
            json!("dimensions"),
        ),
        ("embeddings", json!({ "model": "none", "input": "x" }), 404, json!("model")),
        ("embeddings", json!({ "model": "chat", "input": "x" }), 400, json!("model")),
        ("embeddings", json!([]), 400, Value::Null),
        ("chat/completions", json!({ "model": "chat", "messages": [text], "n": 3 }), 400, json!("n")),
        (
            "chat/completions",
            json!({ "model": "chat", "messages": [text], "tools": [{}] }),
            400,
            json!("tools"),
        ),
        ("chat/completions", json!({ "model": "embed", "messages": [text] }), 400, json!("model")),
        ("images/generations", json!({ "model": "chat", "prompt": "x" }), 400, json!("model")),
        ("images/generations", json!({ "model": "chat", "prompt": "x", "n": 99 }), 400, json!("n")),
        ("audio/speech", json!({}), 404, Value::Null),
    ] {
        let (found, answer) = host.post(&format!("/v1/{path}"), &body).await;
        assert_eq!((found.as_u16(), &answer["error"]["param"]), (status, &param), "{path} {body}: {answer}");
        assert_eq!(answer["error"]["type"], "invalid_request_error", "{answer}");
    }
    let (_, answer) = host.post("/v1/embeddings", &json!({ "model": "none", "input": "x" })).await;
    assert_eq!(answer["error"]["code"], "model_not_found");
    assert_contains_all(answer["error"]["message"].as_str().unwrap(), &["none", "chat", "embed"]);
}

/// Faults: T1, T10.
#[tokio::test]
async fn failing_model_maps_to_status() {
    let host = Host::up(&["embed=embed.fake"]).await;
    let ask = async |text: &str, more: Value| {
        let mut body = json!({ "model": "embed", "input": text });
        body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        host.post("/v1/embeddings", &body).await
    };
    for (text, more, status, kind) in [
        ("!input", json!({}), 400, "invalid_request_error"),
        ("!fail", json!({}), 500, "server_error"),
        ("!oom", json!({}), 503, "server_error"),
        ("!busy 5000", json!({ "deadline_seconds": 0.2 }), 504, "server_error"),
    ] {
        let (found, answer) = ask(text, more).await;
        assert_eq!((found.as_u16(), &answer["error"]["type"]), (status, &json!(kind)), "{text}: {answer}");
    }
    // And goes on.
    let (found, answer) = ask("one", json!({})).await;
    assert_eq!(found, StatusCode::OK, "{answer}");
}

#[tokio::test]
async fn closed_connection_frees_copy() {
    let host = Host::up(&["embed=embed.fake"]).await;
    let call = {
        let client = host.with("");
        let busy = json!({ "model": "embed", "input": "!busy 600000" });
        tokio::spawn(async move { client.post("/v1/embeddings", &busy).await })
    };
    let in_flight = async || copies(&host.model("embed").await)[0]["in_flight"].clone();
    wait_until("the copy is busy", async || (in_flight().await == 1).then_some(())).await;
    call.abort();
    wait_until("the copy is free", async || (in_flight().await == 0).then_some(())).await;
}
