//! What a client sees without faults, except those of the graph itself.

use std::time::Duration;

use serde_json::json;

use super::harness::{begin, picture, sleep, through};
use crate::comfyui::{Options, Version};

#[tokio::test]
async fn a_fresh_run_tells_every_node_and_a_second_one_only_its_output() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    let first = client.submit(&picture(1)).await;
    let fresh = [
        "status(1)",
        "status(1)",
        "execution_start",
        "execution_cached",
        "executing(1)",
        "executing(2)",
        "executing(3)",
        "executed(3)",
        "execution_success",
        "status(0)",
        "executing(null)",
    ];
    assert_eq!(ear.hear_out().await, fresh);
    let entry = client.ended(&first).await;
    assert_eq!(entry["outputs"]["3"]["images"][0]["filename"], "p_00001_.png");
    let file = client.bytes("/view?filename=p_00001_.png").await;
    assert!(file.starts_with(b"\x89PNG"));

    let second = client.submit(&picture(1)).await;
    let cached = [
        "status(1)",
        "status(1)",
        "execution_start",
        "execution_cached",
        "executed(3)",
        "execution_success",
        "status(0)",
        "executing(null)",
    ];
    assert_eq!(ear.hear_out().await, cached);
    assert_eq!(client.ended(&second).await["outputs"], entry["outputs"]);
    let counts = client.fake.counts();
    assert_eq!((counts.prompts_accepted, counts.ran_twice()), (2, vec![]));
    client.fake.stop().await;
}

#[tokio::test]
async fn an_error_of_a_node_ends_the_run_without_success() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    let failing =
        through(1, &json!({"class_type": "RemudaFail", "inputs": {"image": ["1", 0], "kind": "oom"}}));
    let id = client.submit(&failing).await;
    let heard = ear.hear_out().await;
    assert_eq!(heard[5..], ["executing(2)", "execution_error", "status(0)", "executing(null)"]);
    let entry = client.ended(&id).await;
    assert_eq!(entry["status"]["status_str"], "error");
    let error = &entry["status"]["messages"][2][1];
    assert_eq!(error["exception_type"], "torch.OutOfMemoryError");
    assert_eq!(error["executed"], json!(["1"]));
}

#[tokio::test]
async fn an_interrupt_by_id_stops_that_prompt_and_no_other() {
    let client = begin(Options { speed: 1000.0, ..Options::default() }).await;
    let mut ear = client.listen().await;
    let id = client.submit(&sleep(3600.0, 10_000)).await;
    ear.hear_until("progress(1/10000)").await;
    client.post("/interrupt", &json!({"prompt_id": "someone-else"})).await.unwrap();
    ear.hear_until("progress(3/10000)").await;
    client.post("/interrupt", &json!({"prompt_id": id})).await.unwrap();
    let heard = ear.hear_out().await;
    assert_eq!(heard[heard.len() - 3..], ["execution_interrupted", "status(0)", "executing(null)"]);
    assert_eq!(client.json(&format!("/api/jobs/{id}")).await["status"], "cancelled");
}

#[tokio::test]
async fn a_run_without_a_client_has_its_outputs_only_in_the_newest_version() {
    for (version, has_outputs) in [(Version::V0_7_0, false), (Version::V0_30_0, true)] {
        let client = begin(Options { version, ..Options::default() }).await;
        let mut ids = Vec::new();
        for _ in 0..2 {
            let id = uuid::Uuid::new_v4().to_string();
            client.post("/prompt", &json!({"prompt": picture(1), "prompt_id": id})).await.unwrap();
            ids.push(id);
        }
        assert!(client.ended(&ids[0]).await["outputs"]["3"].is_object());
        assert_eq!(client.ended(&ids[1]).await["outputs"]["3"].is_object(), has_outputs, "{version:?}");
    }
}

#[tokio::test]
async fn the_stock_workflow_runs_and_a_missing_model_is_named() {
    let client = begin(Options { models: vec!["sd.safetensors".into()], ..Options::default() }).await;
    let graph = |model: &str| {
        json!({
            "3": {"class_type": "KSampler", "inputs": {"seed": 7, "steps": 4, "cfg": 8, "sampler_name": "euler",
                "scheduler": "normal", "denoise": 1, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0],
                "latent_image": ["5", 0]}},
            "4": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": model}},
            "5": {"class_type": "EmptyLatentImage", "inputs": {"width": 512, "height": 512, "batch_size": 1}},
            "6": {"class_type": "CLIPTextEncode", "inputs": {"text": "a horse", "clip": ["4", 1]}},
            "7": {"class_type": "CLIPTextEncode", "inputs": {"text": "text", "clip": ["4", 1]}},
            "8": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
            "9": {"class_type": "SaveImage", "inputs": {"filename_prefix": "ComfyUI", "images": ["8", 0]}},
        })
    };
    let mut ear = client.listen().await;
    client.submit(&graph("sd.safetensors")).await;
    let heard = ear.hear_out().await;
    assert_eq!(heard.iter().filter(|word| word.starts_with("progress(")).count(), 4, "{heard:?}");
    assert_eq!(heard.iter().filter(|word| *word == "binary(1)").count(), 4, "{heard:?}");
    assert!(heard.contains(&"executed(9)".to_owned()));
    let (status, text) =
        client.try_submit(&graph("other.safetensors"), &uuid::Uuid::new_v4().to_string()).await.unwrap();
    assert_eq!(status, 400);
    assert!(
        text.contains("value_not_in_list") && text.contains("'other.safetensors' not in ['sd.safetensors']"),
        "{text}"
    );
}

#[tokio::test]
async fn after_a_death_everything_is_gone_but_the_output_folder() {
    let client = begin(Options::default()).await;
    let mut ear = client.listen().await;
    let id = client.submit(&picture(1)).await;
    client.ended(&id).await;
    client.fake.kill().await;
    while ear.raw().await.is_some_and(|message| !message.is_close()) {}
    assert!(reqwest::get(format!("{}/prompt", client.fake.url())).await.unwrap_err().is_connect());
    client.fake.restart().await;
    assert_eq!(client.json("/history").await, json!({}));
    assert!(client.bytes("/view?filename=p_00001_.png").await.starts_with(b"\x89PNG"));
    let again = client.submit(&picture(1)).await;
    let entry = client.ended(&again).await;
    assert_eq!(entry["prompt"][0], 0, "the counter begins again");
    assert_eq!(client.fake.counts().lives, 2);
}

#[tokio::test]
async fn a_base_path_and_a_token_are_demanded() {
    let options = Options { base_path: "/comfy".into(), token: Some("secret".into()), ..Options::default() };
    let client = begin(options).await;
    assert_eq!(client.get("/prompt").await.0, 401);
    let outside = format!("http://{}/prompt", client.fake.address());
    let asked = reqwest::Client::new();
    assert_eq!(asked.get(&outside).bearer_auth("secret").send().await.unwrap().status(), 404);
    let inside = format!("{}/prompt", client.fake.url());
    assert_eq!(asked.get(&inside).bearer_auth("secret").send().await.unwrap().status(), 200);
}

#[tokio::test]
async fn of_two_sockets_with_one_id_the_newer_goes_deaf_when_the_older_closes() {
    let client = begin(Options::default()).await;
    let older = client.listen().await;
    let mut newer = client.listen().await;
    client.submit(&picture(1)).await;
    newer.hear_out().await;
    drop(older);
    client.until(|counts| counts.sockets_open == 1).await;
    let id = client.submit(&picture(2)).await;
    client.ended(&id).await;
    assert_eq!(newer.ping().await, Vec::<String>::new(), "it answers pings and hears nothing");
}

#[tokio::test]
async fn older_versions_lack_what_came_later() {
    for (version, list, one, cancel) in [
        (Version::V0_3_75, 404, 404, 405),
        (Version::V0_7_0, 200, 404, 405),
        (Version::V0_30_0, 200, 404, 200),
    ] {
        let client = begin(Options { version, ..Options::default() }).await;
        assert_eq!(client.get("/api/jobs").await.0, list, "{version:?}");
        assert_eq!(client.get("/api/jobs/x").await.0, one, "{version:?}");
        assert_eq!(client.get("/jobs").await.0, 404, "only under /api");
        assert_eq!(client.post("/api/jobs/x/cancel", &json!({})).await.unwrap().0, cancel, "{version:?}");
        let cross = if version == Version::V0_30_0 { 403 } else { 200 };
        let request = reqwest::Client::new().get(format!("{}/prompt", client.fake.url()));
        let answer = request.header("Sec-Fetch-Site", "cross-site").send().await.unwrap();
        assert_eq!(answer.status().as_u16(), cross, "{version:?}");
    }
}

#[tokio::test]
async fn time_by_hand_stops_a_run_in_the_middle() {
    let client = begin(Options { manual_time: true, speed: 2.0, ..Options::default() }).await;
    let id = client.submit(&sleep(4.0, 4)).await;
    let control = client.fake.control();
    control.advance(Duration::from_millis(1_999)).await;
    assert_eq!(client.json(&format!("/api/jobs/{id}")).await["status"], "in_progress");
    control.advance(Duration::from_millis(2)).await;
    assert_eq!(client.json(&format!("/api/jobs/{id}")).await["status"], "completed");
}

#[tokio::test]
async fn only_the_last_prompt_is_remembered() {
    let client = begin(Options::default()).await;
    let mut cached = Vec::new();
    for color in [1, 2, 1, 1] {
        let id = client.submit(&picture(color)).await;
        cached.push(client.ended(&id).await["status"]["messages"][1][1]["nodes"].as_array().unwrap().len());
    }
    assert_eq!(cached, [0, 0, 0, 3]);
    client.post("/free", &json!({"free_memory": true})).await.unwrap();
    let id = client.submit(&picture(1)).await;
    assert_eq!(client.ended(&id).await["status"]["messages"][1][1]["nodes"], json!([]));
}
