//! Listing and changing queue, history and jobs.

use super::*;
use crate::comfyui::graph::picture;
use crate::harness::{Plane, QUICK};

#[tokio::test]
async fn queue_is_listed_and_changed_as_in_comfyui() {
    let stage = ComfyFixture::fake().await;
    let running = prompt(&stage, "anna", &picture(40).sleep(600.0, 6000).saved()).await;
    wait_until("it runs", async || {
        let queue = stage.get("/queue").await;
        (queue["queue_running"][0][1] == *running).then_some(())
    })
    .await;
    let first = prompt(&stage, "anna", &picture(41).saved()).await;
    let second = prompt(&stage, "bert", &picture(42).saved()).await;
    let hurried = json!({ "prompt": picture(43).saved(), "front": true, "extra_data": { "a": 1 } });
    let (_, answer) = stage.post("/api/prompt", &hurried).await;
    let hurried = answer["prompt_id"].as_str().unwrap().to_owned();
    assert!(answer["number"].as_f64().unwrap() < 0.0, "{answer}");
    assert_eq!(stage.get("/prompt").await["exec_info"]["queue_remaining"], 4);
    let queue = stage.get("/api/queue").await;
    let pending: Vec<&Value> = queue["queue_pending"].as_array().unwrap().iter().collect();
    let ids: Vec<&Value> = pending.iter().map(|it| &it[1]).collect();
    assert_eq!(ids, [&json!(hurried), &json!(first), &json!(second)], "{queue}");
    assert_eq!(pending[1][2], picture(41).saved(), "{queue}");
    assert_eq!((&pending[1][3]["client_id"], &pending[0][3]["a"]), (&json!("anna"), &json!(1)), "{queue}");
    assert_eq!(pending[1][4], json!(["2"]), "{queue}");
    let jobs = stage.get("/api/jobs?status=in_progress,pending&limit=200&offset=0").await;
    assert_eq!(
        (&jobs["pagination"]["total"], jobs["jobs"].as_array().unwrap().len()),
        (&json!(4), 4),
        "{jobs}"
    );
    assert_eq!(stage.get(&format!("/api/jobs/{first}")).await["status"], "pending");

    let (status, _) = stage.post("/queue", &json!({ "delete": [first, running, "nobody"] })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(stage.get("/prompt").await["exec_info"]["queue_remaining"], 3, "what runs is spared");
    assert_eq!(stage.get(&format!("/history/{first}")).await, json!({}), "it leaves no trace");
    let (status, _) = stage.post("/queue", &json!({ "clear": true })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(stage.get("/prompt").await["exec_info"]["queue_remaining"], 1);
    // Without a body: all running prompts.
    let interrupt = stage.request(reqwest::Method::POST, "/interrupt").send().await.unwrap();
    assert_eq!(interrupt.status(), StatusCode::OK);
    let entry = entry(&stage, &running).await;
    assert_eq!(entry["status"]["messages"][2][0], "execution_interrupted", "{entry}");
    assert_eq!(stage.get("/prompt").await["exec_info"]["queue_remaining"], 0);
    assert_eq!(stage.get(&format!("/api/jobs/{running}")).await["status"], "cancelled");
}

/// Faults: X7.
#[tokio::test]
async fn queue_of_large_graphs_is_bounded_and_lists_every_prompt() {
    let plane = Plane::start(QUICK).await;
    let mut ids = Vec::new();
    for seed in 0..4 {
        let mut graph = picture(seed).saved();
        graph["1"]["_meta"] = json!({ "title": "x".repeat(7 << 20) });
        ids.push(json!(prompt(&plane, "anna", &graph).await));
    }
    let answer = plane.request(reqwest::Method::GET, "/queue").send().await.unwrap().text().await.unwrap();
    assert!(answer.len() < 17 << 20, "{} bytes", answer.len());
    let queue: Value = serde_json::from_str(&answer).unwrap();
    let pending = queue["queue_pending"].as_array().unwrap();
    assert_eq!(pending.iter().map(|it| it[1].clone()).collect::<Vec<_>>(), ids);
    let with_graph = pending.iter().filter(|it| it[2]["1"].is_object()).count();
    assert_eq!(with_graph, 2, "the next to run have theirs");
    for path in ["/queue", "/history"] {
        let (status, answer) = plane.post(path, &json!({ "delete": vec!["nobody"; 1001] })).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{path}: {answer}");
    }
    let (status, _) = plane.post("/queue", &json!({ "delete": ids })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(plane.get("/prompt").await["exec_info"]["queue_remaining"], 0);
}

#[tokio::test]
async fn history_is_paged_and_deletion_only_hides_entries() {
    let stage = ComfyFixture::fake().await;
    let mut ids = Vec::new();
    let mut client = WsClient::open(&stage.plane, "anna").await;
    for number in 0..4 {
        let id = prompt(&stage, "anna", &picture(50 + number).saved()).await;
        client.until_done(&id).await;
        ids.push(id);
    }
    let listed = async |query: &str| -> Vec<String> {
        let text = stage.request(reqwest::Method::GET, &format!("/history{query}")).send().await.unwrap();
        let text = text.text().await.unwrap();
        let mut found: Vec<(usize, &String)> =
            ids.iter().filter_map(|id| Some((text.find(&format!("\"{id}\":"))?, id))).collect();
        found.sort();
        found.into_iter().map(|(_, id)| id.clone()).collect()
    };
    assert_eq!(listed("").await, ids, "the oldest first");
    assert_eq!(listed("?max_items=2").await, ids[2..]);
    for number in [i64::MIN, -1, 0, i64::MAX] {
        let (shown, skipped) = (format!("?max_items={number}"), format!("?max_items=2&offset={number}"));
        assert_eq!(listed(&shown).await.len(), if number > 0 { 4 } else { 0 }, "{shown}");
        assert_eq!(listed(&skipped).await.len(), if number > 0 { 0 } else { 2 }, "{skipped}");
    }
    assert_eq!(listed("?max_items=2&offset=0").await, ids[..2]);
    assert_eq!(listed("?max_items=2&offset=3").await, ids[3..]);
    let (status, _) = stage.post("/history", &json!({ "delete": [ids[1]] })).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(listed("").await, [&ids[..1], &ids[2..]].concat());
    assert_eq!(stage.get(&format!("/history/{}", ids[1])).await, json!({}));
    stage.post("/history", &json!({ "clear": true })).await;
    assert!(listed("").await.is_empty());
    let jobs = stage.get("/api/jobs?status=completed,failed,cancelled&limit=64&offset=0").await;
    assert_eq!(jobs["pagination"]["total"], 0, "{jobs}");
    assert_eq!(stage.jobs().await.len(), 4, "the jobs are all there");
    let id = prompt(&stage, "anna", &picture(60).saved()).await;
    client.until_done(&id).await;
    let jobs = stage.get("/api/jobs?status=completed").await;
    assert_eq!((&jobs["jobs"][0]["id"], &jobs["pagination"]["total"]), (&json!(id), &json!(1)), "{jobs}");
    assert_eq!(jobs["jobs"][0]["preview_output"]["mediaType"], "images", "{jobs}");
}

#[tokio::test]
async fn prompt_id_of_the_client_is_idempotent() {
    let stage = ComfyFixture::fake().await;
    let id = "11111111-2222-4333-8444-555555555555";
    let graph = picture(70).saved();
    let ask = async |graph: &Value, client: &str| {
        let body = json!({ "prompt": graph, "prompt_id": id, "client_id": client });
        stage.post("/prompt", &body).await
    };
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let (status, first) = ask(&graph, "anna").await;
    assert_eq!((status, &first["prompt_id"]), (StatusCode::OK, &json!(id)), "{first}");
    let heard = client.until_done(id).await;
    assert!(heard.iter().any(|it| it["type"] == "executed" && it["data"]["prompt_id"] == id), "{heard:?}");
    let (status, again) = ask(&graph, "somebody else").await;
    assert_eq!((status, again), (StatusCode::OK, first));
    assert_eq!(stage.jobs().await.len(), 1);
    let (status, other) = ask(&picture(71).saved(), "anna").await;
    assert_eq!((status, &other["error"]["type"]), (StatusCode::BAD_REQUEST, &json!("invalid_prompt_id")));
    assert_eq!(entry(&stage, id).await["prompt"][1], id);
    let (status, cancelled) = stage.post(&format!("/api/jobs/{id}/cancel"), &json!({})).await;
    assert_eq!((status, cancelled), (StatusCode::OK, json!({ "cancelled": false })), "it is over");
}

/// Many clients take the first running prompt for theirs: ComfyUI runs only one.
#[tokio::test]
async fn client_that_names_itself_sees_and_stops_its_own_running_prompt() {
    let stage = ComfyFixture::fake().await;
    let other = Server::fake(Options::default()).await;
    let _other = crate::comfyui::fixture::worker(&stage, "other", &other.url(), &[]).await;
    let annas = prompt(&stage, "anna", &picture(44).sleep(600.0, 6000).saved()).await;
    let berts = prompt(&stage, "bert", &picture(45).sleep(600.0, 6000).saved()).await;
    wait_until("both run", async || {
        (stage.get("/queue").await["queue_running"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    for (client, first) in [("anna", &annas), ("bert", &berts)] {
        let queue = stage.get(&format!("/queue?client_id={client}")).await;
        assert_eq!(queue["queue_running"][0][1], **first, "{queue}");
        assert_eq!(queue["queue_running"].as_array().unwrap().len(), 2, "{queue}");
    }
    let (status, _) = stage.post("/interrupt?client_id=bert", &json!({})).await;
    assert_eq!(status, StatusCode::OK);
    wait_until("it is over", async || {
        let history = stage.get(&format!("/history/{berts}")).await;
        history[&berts].is_object().then_some(())
    })
    .await;
    assert_eq!(stage.get("/queue").await["queue_running"][0][1], *annas, "it runs on");
}

/// comfyui_utils does not name itself, and fails if two prompts run.
#[tokio::test]
async fn queue_can_list_one_running_prompt_and_the_others_as_next() {
    let server = Server::fake(Options::default()).await;
    let stage = ComfyFixture::with(server, &["comfyui.one_running=true"], &[]).await;
    let other = Server::fake(Options::default()).await;
    let _other = crate::comfyui::fixture::worker(&stage, "other", &other.url(), &[]).await;
    let mut ids = Vec::new();
    for color in 46..49 {
        ids.push(prompt(&stage, "anna", &picture(color).sleep(600.0, 6000).saved()).await);
    }
    wait_until("two run", async || {
        let jobs = stage.get("/api/jobs?status=in_progress").await;
        (jobs["jobs"].as_array().unwrap().len() == 2).then_some(())
    })
    .await;
    let listed = async || {
        let queue = stage.get("/queue").await;
        ["queue_running", "queue_pending"].map(|list| {
            let items = queue[list].as_array().unwrap();
            items.iter().map(|item| item[1].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        })
    };
    let [running, pending] = listed().await;
    assert_eq!([running.clone(), pending.clone()].concat(), ids, "each is listed once");
    assert_eq!(running.len(), 1);
    // What is listed as pending can be removed.
    stage.post("/queue", &json!({ "delete": [ids[0], ids[1]] })).await;
    wait_until("the next one runs", async || {
        let [running, pending] = listed().await;
        ([running, pending].concat() == [ids[0].clone(), ids[2].clone()]).then_some(())
    })
    .await;
    stage.post("/queue", &json!({ "clear": true })).await;
    wait_until("the first is left", async || {
        let [running, pending] = listed().await;
        (running == ids[..1] && pending.is_empty()).then_some(())
    })
    .await;
}

/// ComfyUI moves a prompt from one list to the other in one step, and comfyui_utils relies on it.
#[tokio::test]
async fn prompt_that_has_left_the_queue_is_in_the_history() {
    let stage = ComfyFixture::fake().await;
    for color in 0..60 {
        let id = prompt(&stage, "anna", &picture(color).saved()).await;
        // Without a pause: the moment between the two lists is short.
        while stage.get("/queue").await.to_string().contains(&id) {}
        let history = stage.get("/history").await;
        assert!(history[&id].is_object(), "{id}, prompt {color}, is in neither list");
    }
}
