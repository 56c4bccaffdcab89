//! Jobs: submission, state, outputs, cancellation, listing.

use remuda_fakes::comfyui::Options;
use reqwest::Method;
use serde_json::{Value, json};

use super::api::{Answer, Api, named};
use crate::comfyui::fixture::{ComfyFixture, Server, files, prompt_id};
use crate::comfyui::graph::{loaded, picture};
use crate::comfyui::live::two_pictures;
use crate::harness::{Plane, QUICK, ScriptedWorker, TestRng, wait_until};

/// An image of a unique colour.
async fn some_picture(stage: &ComfyFixture) -> Vec<u8> {
    let ended = stage.run(picture(TestRng::new().below(1 << 24)).saved()).await;
    files(stage, &ended).await.remove(0).1
}

fn id(job: &Value) -> &str {
    job["id"].as_str().unwrap()
}

async fn cancel(api: &Api, job: &Value) -> Value {
    // Without body and content type, as clients do.
    let path = job["urls"]["cancel"].as_str().unwrap().strip_prefix("/api/v2").unwrap();
    api.send(api.request(Method::POST, path)).await.of(200)
}

#[tokio::test]
async fn image_is_uploaded_processed_and_downloaded() {
    let mut stage = ComfyFixture::any().await;
    let api = Api::new(&stage);
    let asset = api.picture(&some_picture(&stage).await).await;
    let workflow = loaded(&named(&asset));
    let job = api.submit(&workflow).await;
    let ended = api.ended(&job).await;
    assert_eq!(ended["status"], "succeeded", "{ended}");
    let outputs = ended["outputs"].as_array().unwrap();
    assert_eq!((outputs.len(), &outputs[0]["type"]), (1, &json!("image")), "{ended}");
    let content = api.content(&outputs[0]).await;
    assert_eq!(outputs[0]["size_bytes"], content.len());
    assert!(content.starts_with(b"\x89PNG") && content.ends_with(b"IEND\xaeB`\x82"));
    for metric in ["queue_ms", "execution_ms"] {
        assert!(ended["metrics"][metric].is_u64(), "{ended}");
    }
    // A restarted plane still has all of it.
    stage.plane.kill();
    stage.plane.start_again().await;
    assert_eq!(api.job(id(&job)).await, ended);
    assert_eq!(api.content(&outputs[0]).await, content);
    let shown = api.get(&format!("/jobs/{}/workflow", id(&job))).await.of(200);
    let info = &shown["workflow"]["1"]["inputs"]["image"]["info"];
    let known = json!({ "id": asset["id"], "hash": asset["hash"], "file_path": "photo.png" });
    assert_eq!((info, &shown["format"]), (&known, &json!("api")));
    // An output can be used as an input like an upload.
    let next = api.ended(&api.submit(&loaded(&named(&outputs[0]))).await).await;
    assert_eq!(next["status"], "succeeded", "{next}");
}

#[tokio::test]
async fn outputs_appear_while_the_job_runs_and_keep_their_ids() {
    let stage = ComfyFixture::fake().await;
    let api = Api::new(&stage);
    let job = api.submit(&two_pictures(11, 2.0)).await;
    let running = api.job_until(&job, "has an output", |job| job["outputs"][0].is_object()).await;
    assert_eq!(running["status"], "running", "{running}");
    let early = running["outputs"][0].clone();
    assert!(api.content(&early).await.starts_with(b"\x89PNG"));
    let running = api.job_until(&job, "is in its steps", |job| job["progress"]["step"].is_u64()).await;
    assert_eq!(running["progress"]["nodes_total"], 4, "{running}");
    let ended = api.ended(&job).await;
    let ids: Vec<_> = ended["outputs"].as_array().unwrap().iter().map(|output| &output["id"]).collect();
    assert!(ids.len() == 2 && ids.contains(&&early["id"]), "{ended}");
}

#[tokio::test]
async fn text_of_a_node_is_an_output() {
    let plane = Plane::start(QUICK).await;
    let api = Api::new(&plane);
    let job = api.submit(&picture(1).saved()).await;
    let mut hand = comfyui_hand(&plane).await;
    let attempt = hand.take().await;
    let values = json!([{ "node": "3", "key": "text", "value": ["a cat"] }]);
    hand.complete(&attempt, json!({ "outputs": [], "values": values })).await;
    let ended = api.ended(&job).await;
    let output = &ended["outputs"][0];
    assert_eq!((&output["type"], &output["name"]), (&json!("text"), &json!("3_text_00001.txt")), "{ended}");
    assert_eq!(api.content(output).await, b"a cat");
    let path = format!("/assets/{}/content", id(output));
    let part = api.send(api.request(Method::GET, &path).header("range", "bytes=2-")).await;
    assert_eq!((part.status.as_u16(), part.bytes.as_slice()), (206, &b"cat"[..]));
}

/// A scripted worker that claims to run ComfyUI.
async fn comfyui_hand(plane: &Plane) -> ScriptedWorker {
    let mut hand = ScriptedWorker::join(plane, "hand", 1).await;
    let join = json!({ "worker": "hand", "services": ["comfyui"], "slots": 1 });
    let (status, joined) = plane.post("/remuda/v1/workers", &join).await;
    assert!(status.is_success(), "{joined}");
    hand.token = joined["token"].as_str().unwrap().to_owned();
    hand.incarnation = joined["incarnation"].as_u64().unwrap();
    hand
}

/// Faults: X10.
#[tokio::test]
async fn key_for_partner_nodes_reaches_only_the_worker() {
    const SECRET: &str = "comfyui-canary-5f2b";
    let plane = Plane::start(QUICK).await;
    let api = Api::new(&plane);
    let mut hand = comfyui_hand(&plane).await;
    let extra = json!({ "api_key_comfy_org": SECRET });
    let body = json!({ "workflow": picture(1).saved(), "extra_data": extra, "metadata": { "order": "1" } });
    let job = api.post("/jobs", &body).await.of(201);
    let order = wait_until("there is an order", async || {
        hand.say(&json!([]), &json!([])).await["start"].get(0).cloned()
    })
    .await;
    assert_eq!(order["keys"], extra, "{order}");
    assert_eq!(order["workflow"], picture(1).saved());
    let shown = [
        api.job(id(&job)).await,
        api.get(&format!("/jobs/{}/workflow", id(&job))).await.of(200),
        plane.job(id(&job)).await,
        plane.why(id(&job)).await,
    ];
    assert!(shown.iter().all(|shown| !shown.to_string().contains(SECRET)), "{shown:?}");
    assert_eq!(shown[1]["workflow"], picture(1).saved());
    let attempt = json!({ "job": order["job"], "attempt": order["attempt"] });
    hand.complete(&attempt, json!({ "outputs": [] })).await;
    for event in plane.history().await {
        assert!(!event.data.to_string().contains(SECRET), "{event:?}");
    }
    for file in ["remuda.sqlite", "remuda.sqlite-wal"] {
        let stored = std::fs::read(plane.store().with_file_name(file)).unwrap_or_default();
        let has_it = stored.windows(SECRET.len()).any(|piece| piece == SECRET.as_bytes());
        assert!(!has_it, "{file} has the key in it");
    }
    assert!(!plane.process.said().contains(SECRET));
    for extra in [json!({ "auth_token_comfy_org": "x" }), json!({ "api_key_comfy_org": 1 }), json!([])] {
        let body = json!({ "workflow": picture(1).saved(), "extra_data": extra });
        api.post("/jobs", &body).await.is_error(422, "invalid_request");
    }
}

/// Faults: B4.
#[tokio::test]
async fn invalid_graph_is_refused_with_its_nodes_named() {
    let stage = ComfyFixture::fake().await;
    let api = Api::new(&stage);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut graph = picture(1).saved();
        change(&mut graph);
        graph
    };
    let loops = with(&|graph| graph["1"]["inputs"]["image"] = json!(["2", 0]));
    let cases = [
        (loops, "1", Value::Null, "loop"),
        (
            with(&|graph| graph["2"]["inputs"]["images"] = json!(["9", 0])),
            "2",
            json!("images"),
            "dangling_link",
        ),
        (with(&|graph| graph["1"]["class_type"] = json!(7)), "1", json!("class_type"), "missing_class_type"),
        (with(&|graph| graph["1"]["inputs"] = json!([])), "1", json!("inputs"), "not_an_object"),
        (
            with(&|graph| graph["1"]["class_type"] = json!("NoSuch")),
            "1",
            json!("class_type"),
            "unknown_node_class",
        ),
    ];
    for (workflow, node, field, reason) in cases {
        let answer = api.post("/jobs", &json!({ "workflow": workflow })).await;
        answer.is_error(422, "invalid_workflow");
        let error = &answer.body["error"]["details"]["node_errors"][node][0];
        assert_eq!((&error["field"], &error["reason"]), (&field, &json!(reason)), "{}", answer.body);
    }
    for workflow in [json!({}), json!({ "scene": "a horse" }), json!({ "prompt": picture(1).saved() })] {
        api.post("/jobs", &json!({ "workflow": workflow })).await.is_error(422, "invalid_workflow");
    }
    let drawn = json!({ "last_node_id": 2, "nodes": [{ "id": 1 }], "links": [[1, 1, 0, 2, 0, "IMAGE"]] });
    let message = api.post("/jobs", &json!({ "workflow": drawn })).await.is_error(422, "workflow_format_ui");
    assert!(message.contains("Export (API)"), "{message}");
    let mut asset = loaded(&json!({ "__type": "core/ASSET", "info": { "hash": "blake3:00" } }));
    let answer = api.post("/jobs", &json!({ "workflow": asset })).await;
    answer.is_error(422, "missing_asset");
    asset["1"]["inputs"]["image"] = json!([{ "__type": "core/ASSET", "info": { "id": "../x" } }]);
    let answer = api.post("/jobs", &json!({ "workflow": asset })).await;
    answer.is_error(422, "missing_asset");
    assert_eq!(answer.body["error"]["details"]["node_errors"]["1"][0]["field"], "image", "{}", answer.body);
    let nowhere = json!({ "url": "ftp://example.org" });
    for (name, value) in
        [("webhook_url", json!("http://x")), ("inputs", json!({})), ("wings", json!(2)), ("webhook", nowhere)]
    {
        let body = json!({ "workflow": picture(1).saved(), name: value });
        api.post("/jobs", &body).await.is_error(422, "invalid_request");
    }
    assert_eq!(stage.jobs().await.len(), 0);
}

/// Faults: B5.
#[tokio::test]
async fn ambiguous_json_is_refused() {
    let plane = Plane::start(QUICK).await;
    let api = Api::new(&plane);
    let graph = |inputs: &str| format!(r#"{{"workflow":{{"1":{{"class_type":"A","inputs":{inputs}}}}}}}"#);
    let bodies = [
        (graph(r#"{"x":NaN}"#).into_bytes(), "invalid_request"),
        (graph(r#"{"x":Infinity}"#).into_bytes(), "invalid_request"),
        (graph(r#"{"x":1,"x":2}"#).into_bytes(), "invalid_workflow"),
        (graph(r#"{"x":"a\u0000b"}"#).into_bytes(), "invalid_workflow"),
        (graph(r#"{"x":"\ud800"}"#).into_bytes(), "invalid_workflow"),
        (graph("{\"x\":\"\u{1}\"}").into_bytes(), "invalid_request"),
        (b"{\"workflow\":\"\xff\"}".to_vec(), "invalid_request"),
        (br#"{"workflow":{},"workflow":{}}"#.to_vec(), "invalid_request"),
        (
            graph(&format!("{{\"x\":{}1{}}}", "[".repeat(100), "]".repeat(100))).into_bytes(),
            "invalid_workflow",
        ),
        (vec![b'['; 100_000], "invalid_request"),
        (Vec::new(), "invalid_request"),
    ];
    for (body, code) in bodies {
        let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
        let answer = api.send(api.request(Method::POST, "/jobs").body(body)).await;
        eprintln!("{shown}: {}", answer.body);
        answer.is_error(422, code);
    }
}

#[tokio::test]
async fn job_waits_while_no_worker_reports_classes() {
    let plane = Plane::start(QUICK).await;
    let api = Api::new(&plane);
    let odd = json!({ "1": { "class_type": "NoSuch", "inputs": {} } });
    let [first, second] = [api.submit(&odd).await, api.submit(&odd).await];
    assert_eq!([&first["queue_position"], &second["queue_position"]], [&json!(1), &json!(2)]);
    for name in ["started_at", "completed_at", "progress", "error"] {
        assert_eq!(first[name], Value::Null, "{first}");
    }
    assert_eq!(first["metrics"], json!({ "queue_ms": null, "execution_ms": null }));
    let canceled = cancel(&api, &first).await;
    assert_eq!(
        (&canceled["status"], &canceled["queue_position"]),
        (&json!("canceled"), &Value::Null),
        "{canceled}"
    );
    assert_eq!(cancel(&api, &first).await, canceled, "once more changes nothing");
    assert_eq!(api.job(id(&second)).await["queue_position"], 1);
    let hasty = json!({ "workflow": odd, "deadline_seconds": 1 });
    let expired = api.ended(&api.post("/jobs", &hasty).await.of(201)).await;
    let is = (&expired["status"], &expired["error"]["code"]);
    assert_eq!(is, (&json!("expired"), &json!("deadline_exceeded")), "{expired}");
    cancel(&api, &second).await;
}

#[tokio::test]
async fn failed_job_names_its_node_and_cancelled_job_does_not_run() {
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, &["attempts_max=1"], &[]).await;
    let api = Api::new(&stage);
    let failed = api.ended(&api.submit(&picture(1).fail("error").saved()).await).await;
    let error = &failed["error"];
    let is = (&failed["status"], &error["code"], &error["node_id"], &error["class_type"]);
    let expected = (&json!("failed"), &json!("node_execution_error"), &json!("2"), &json!("RemudaFail"));
    assert_eq!(is, expected, "{failed}");
    let running = api.submit(&picture(2).hold(30.0).saved()).await;
    api.job_until(&running, "runs", |job| job["status"] == "running").await;
    let waiting = api.submit(&picture(3).saved()).await;
    assert_eq!(cancel(&api, &waiting).await["status"], "canceled");
    assert_eq!(cancel(&api, &running).await["status"], "canceled");
    let last = api.ended(&api.submit(&picture(4).saved()).await).await;
    assert_eq!(last["status"], "succeeded", "{last}");
    let counts = stage.fake_counts();
    assert!(!counts.executions.contains_key(&prompt_id(id(&waiting), 1)), "{counts:?}");
    assert_eq!(cancel(&api, &last).await, last);
}

fn keyed(api: &Api, key: &str, workflow: &Value) -> impl Future<Output = Answer> {
    let request = api.request(Method::POST, "/jobs").header("idempotency-key", key);
    let (api, request) = (api.clone(), request.json(&json!({ "workflow": workflow })));
    async move { api.send(request).await }
}

#[tokio::test]
async fn key_is_valid_for_one_job_across_restarts() {
    let mut plane = Plane::start(&[QUICK, &["limits.open_jobs_max=3"]].concat()).await;
    let api = Api::new(&plane);
    let [one, other] = [1, 2].map(|color| picture(color).saved());
    // A refused submission releases its key.
    keyed(&api, "a", &json!({})).await.is_error(422, "invalid_workflow");
    let all = futures_util::future::join_all((0..8).map(|_| keyed(&api, "a", &one))).await;
    let (taken, refused): (Vec<_>, Vec<_>) = all.into_iter().partition(|answer| answer.status == 201);
    assert_eq!((taken.len(), refused.len()), (1, 7));
    refused.iter().for_each(|answer| drop(answer.is_error(422, "idempotency_key_reuse")));
    keyed(&api, "a", &other).await.is_error(422, "idempotency_key_reuse");
    // The key of another tenant is another key.
    let fleet = json!({ "workflow": other, "idempotency_key": "a" });
    let (status, answer) = plane.post("/remuda/v1/jobs", &fleet).await;
    assert_eq!(status, 201, "{answer}");
    plane.kill();
    plane.start_again().await;
    keyed(&api, "a", &one).await.is_error(422, "idempotency_key_reuse");
    let first = taken[0].body.clone();
    cancel(&api, &first).await;
    keyed(&api, "a", &one).await.is_error(422, "idempotency_key_reuse");
    // A submission refused for lack of capacity releases its key, too.
    let [second, _] = [keyed(&api, "b", &one).await.of(201), keyed(&api, "c", &one).await.of(201)];
    keyed(&api, "d", &one).await.is_error(429, "queue_full");
    cancel(&api, &second).await;
    keyed(&api, "d", &one).await.of(201);
}

#[tokio::test]
async fn jobs_are_listed_newest_first_and_filtered_by_metadata() {
    let plane = Plane::start(QUICK).await;
    let api = Api::new(&plane);
    let mut jobs = Vec::new();
    for number in 0..5 {
        let note = json!({ "parity": (number % 2).to_string(), "number": number.to_string() });
        let body = json!({ "workflow": picture(number).saved(), "metadata": note, "priority": -3, "labels": { "a": "b" } });
        jobs.push(api.post("/jobs", &body).await.of(201));
    }
    assert_eq!(jobs[3]["metadata"]["number"], "3");
    let list = async |query: &str| {
        let page = plane.get(&format!("/api/v2/jobs?{query}")).await;
        let ids = page["jobs"].as_array().unwrap().iter().map(|job| id(job).to_owned()).collect::<Vec<_>>();
        (ids, page["next_cursor"].as_str().map(str::to_owned))
    };
    let expected = |numbers: &[usize]| numbers.iter().map(|at| id(&jobs[*at]).to_owned()).collect::<Vec<_>>();
    assert_eq!(list("").await, (expected(&[4, 3, 2, 1, 0]), None));
    let (first, cursor) = list("limit=2").await;
    assert_eq!(first, expected(&[4, 3]));
    assert_eq!(list(&format!("cursor={}", cursor.unwrap())).await, (expected(&[2, 1, 0]), None));
    assert_eq!(list("metadata%5Bparity%5D=1").await.0, expected(&[3, 1]));
    for (query, code) in [
        ("cursor=x", "invalid_cursor"),
        ("metadata=1", "invalid_metadata_filter"),
        ("limit=many", "invalid_request"),
        ("limit=0", "invalid_request"),
        ("wings=2", "invalid_request"),
    ] {
        let (status, answer) =
            crate::harness::answered(plane.request(Method::GET, &format!("/api/v2/jobs?{query}"))).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (422, &json!(code)), "{answer}");
    }
    let body = json!({ "workflow": picture(1).saved(), "metadata": { "a": 1 } });
    api.post("/jobs", &body).await.is_error(422, "metadata_invalid");
}
