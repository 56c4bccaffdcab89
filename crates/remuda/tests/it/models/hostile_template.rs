//! A GGUF file from a stranger: its chat template takes as much memory as a caller says.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::host::{Host, copies};
use super::sample::Sample;
use crate::harness::assert_contains_all;

/// Doubles a text as often as the message is long, if it begins with `!`.
const DOUBLES: &str = "{% set n = namespace(x='ab') %}{% set text = messages[0].content %}{% for i in range(text | length if text is startingwith('!') else 0) %}{% set n.x = n.x ~ n.x %}{% endfor %}<|im_start|>{{ n.x | length }}";

/// The most memory that a process has had so far, in MiB.
fn peak_mebibytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
}

async fn ask(host: &Host, model: &str, doublings: usize) -> (StatusCode, Value) {
    let text = format!("{:!<doublings$}", "");
    let messages = json!([{ "role": "user", "content": text }]);
    let body = json!({ "model": model, "messages": messages, "max_tokens": 4 });
    host.post("/v1/chat/completions", &body).await
}

/// Faults: X19.
#[tokio::test]
async fn template_that_takes_all_memory_costs_only_its_caller() {
    let folder = tempfile::tempdir().unwrap();
    let file = Sample::model("llama").text("tokenizer.chat_template", DOUBLES).write(folder.path());
    let models = ["thread", "process"].map(|it| format!("{it}={},isolation={it}", file.display()));
    let host = Host::up(&models.each_ref().map(String::as_str)).await;
    for model in ["thread", "process"] {
        let (status, answer) = ask(&host, model, 3).await;
        assert_eq!(status, StatusCode::OK, "{answer}");
        let (before, had) = (copies(&host.model(model).await), peak_mebibytes(host.process.id()));
        // 2^28 bytes: more than the limit, and less than an allocator reserves when a program starts.
        for doublings in [27, 60] {
            let ((status, answer), (other, _)) =
                tokio::join!(ask(&host, model, doublings), ask(&host, model, 3));
            let message = answer["error"]["message"].as_str().unwrap();
            assert_eq!(status, StatusCode::BAD_REQUEST, "{answer}");
            assert_contains_all(message, &["the chat template of model.gguf was stopped", "MiB of memory"]);
            assert_eq!(other, StatusCode::OK, "another caller is answered meanwhile");
        }
        let (after, has) = (copies(&host.model(model).await), peak_mebibytes(host.process.id()));
        assert!(has < had + 64, "the plane took {has} MiB after {had}");
        assert_eq!(
            (&before[0]["id"], &before[0]["pid"]),
            (&after[0]["id"], &after[0]["pid"]),
            "the same copy: {after:?}"
        );
    }
}

/// Faults: T2.
#[tokio::test]
async fn model_whose_template_takes_all_memory_is_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let file = Sample::model("llama")
        .text("tokenizer.chat_template", &format!("{{{{ {} }}}}", ["'x' * 90000000"; 20].join(" ~ ")))
        .write(folder.path());
    let (code, said) = crate::start::run(folder.path(), &["models", "check", file.to_str().unwrap()]).await;
    assert_ne!(code, 0, "{said}");
    assert_contains_all(&said, &["the chat template of model.gguf was stopped", "MiB of memory"]);
}
