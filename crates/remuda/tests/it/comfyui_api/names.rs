//! Names of output files: as one ComfyUI server would have given them, whatever server wrote them.

use super::*;
use crate::comfyui::fixture::worker;
use crate::comfyui::graph::{loaded, picture};

fn saved_as(color: u64, prefix: &str) -> Value {
    let mut graph = picture(color).saved();
    graph["2"]["inputs"]["filename_prefix"] = prefix.into();
    graph
}

async fn run(stage: &ComfyFixture, graph: &Value) -> (String, Value) {
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(stage, "anna", graph).await;
    let heard = client.until_done(&id).await;
    // Right after a restart the client also hears how its last prompts ended.
    let is_its = |it: &&Value| it["type"] == "executed" && it["data"]["prompt_id"] == *id;
    let executed = heard.iter().find(is_its).unwrap_or_else(|| panic!("{heard:?}"));
    let file = executed["data"]["output"]["images"][0].clone();
    let node = executed["data"]["node"].as_str().unwrap();
    assert_eq!(entry(stage, &id).await["outputs"][node]["images"][0], file, "the history says the same");
    (id, file)
}

fn file(folder: &str, name: &str) -> Value {
    json!({ "filename": name, "subfolder": folder, "type": "output" })
}

#[tokio::test]
async fn outputs_are_numbered_as_by_one_server() {
    let mut stage = ComfyFixture::fake().await;
    let other = Server::fake(Options::default()).await;
    let _other = worker(&stage, "other", &other.url(), &[]).await;
    for number in 1..=4 {
        let (_, shown) = run(&stage, &saved_as(200 + number, "cats/picture")).await;
        assert_eq!(shown, file("cats", &format!("picture_{number:05}_.png")));
        assert_eq!(view(&stage, &shown).await.status(), StatusCode::OK, "{shown}");
    }
    let (_, shown) = run(&stage, &saved_as(210, "dog")).await;
    assert_eq!(shown, file("", "dog_00001_.png"), "another prefix, another number");
    let listed = stage.get("/internal/files/output").await;
    assert_eq!(listed, json!(["dog_00001_.png"]), "those in no folder");

    stage.plane.kill();
    stage.plane.start_again().await;
    let first = view(&stage, &file("cats", "picture_00001_.png")).await;
    assert_eq!(first.status(), StatusCode::OK, "a restart forgets no name");
    let (_, shown) = run(&stage, &saved_as(205, "cats/picture")).await;
    assert_eq!(shown, file("cats", "picture_00005_.png"), "and counts on");
    let (id, _) = run(&stage, &loaded(&json!("cats/picture_00002_.png [output]"))).await;
    assert_eq!(entry(&stage, &id).await["status"]["completed"], true);
}

/// A script that only polls has no client id.
#[tokio::test]
async fn output_of_a_prompt_without_client_has_its_name_too() {
    let stage = ComfyFixture::fake().await;
    let (_, answer) = stage.post("/prompt", &json!({ "prompt": saved_as(211, "x") })).await;
    let id = answer["prompt_id"].as_str().unwrap().to_owned();
    let done = wait_until("it is done", async || {
        let mut history = stage.get(&format!("/history/{id}")).await;
        history[&id].is_object().then(|| history[&id].take())
    })
    .await;
    assert_eq!(done["outputs"]["2"]["images"][0], file("", "x_00001_.png"));
    let jobs = stage.get("/api/jobs").await;
    assert_eq!(jobs["jobs"][0]["preview_output"]["filename"], "x_00001_.png", "{jobs}");
}

#[tokio::test]
async fn prompt_in_a_picture_is_the_one_that_was_submitted() {
    let stage = ComfyFixture::fake().await;
    let (_, shown) = run(&stage, &saved_as(212, "cats/picture")).await;
    let bytes = view(&stage, &shown).await.bytes().await.unwrap();
    let reader = png::Decoder::new(std::io::Cursor::new(&bytes)).read_info().unwrap();
    let text = reader.info().utf8_text[0].get_text().unwrap();
    let written: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(written["2"]["inputs"]["filename_prefix"], "cats/picture", "{text}");
    assert!(!text.contains("remuda/"), "{text}");
}
