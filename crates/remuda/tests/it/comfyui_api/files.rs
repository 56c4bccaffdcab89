//! Uploads, files in graphs, `/view`, and user data.

use reqwest::Method;
use reqwest::multipart::{Form, Part};

use super::*;
use crate::comfyui::graph::{loaded, picture};

/// Uploads a file, with the other fields before or after it.
async fn upload(plane: &Client, name: &str, bytes: &[u8], fields: &[(&str, &str)], is_first: bool) -> Value {
    let mut form = Form::new();
    let part = || Part::bytes(bytes.to_vec()).file_name(name.to_owned());
    if is_first {
        form = form.part("image", part());
    }
    for (key, value) in fields {
        form = form.text(key.to_string(), value.to_string());
    }
    if !is_first {
        form = form.part("image", part());
    }
    let answer = plane.request(Method::POST, "/upload/image").multipart(form).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK, "{}", answer.text().await.unwrap());
    answer.json().await.unwrap()
}

/// An image that a server produced.
async fn some_picture(stage: &ComfyFixture) -> Vec<u8> {
    let mut client = WsClient::open(&stage.plane, "painter").await;
    let id = prompt(stage, "painter", &picture(80).saved()).await;
    client.until_done(&id).await;
    let file = entry(stage, &id).await["outputs"]["2"]["images"][0].clone();
    view(stage, &file).await.bytes().await.unwrap().to_vec()
}

#[tokio::test]
async fn uploaded_image_is_loaded_by_name_on_any_worker() {
    let stage = ComfyFixture::fake().await;
    let bytes = some_picture(&stage).await;
    let sent = upload(&stage, "me.png", &bytes, &[("subfolder", "faces")], false).await;
    assert_eq!(sent, json!({ "name": "me.png", "subfolder": "faces", "type": "input" }));
    let shown = view(&stage, &json!({ "filename": "me.png", "subfolder": "faces", "type": "input" })).await;
    assert_eq!(shown.bytes().await.unwrap(), bytes);
    let mut client = WsClient::open(&stage.plane, "anna").await;
    for name in ["faces/me.png", "faces/me.png [input]"] {
        let id = prompt(&stage, "anna", &loaded(&json!(name))).await;
        let heard = client.until_done(&id).await;
        assert!(heard.iter().any(|it| it["type"] == "execution_success"), "{heard:?}");
        let entry = entry(&stage, &id).await;
        assert_eq!(entry["prompt"][2]["1"]["inputs"]["image"], *name, "as it was submitted: {entry}");
    }
    let info = stage.get("/object_info/LoadImage").await;
    let choices = info["LoadImage"]["input"]["required"]["image"][0].as_array().unwrap();
    assert!(choices.contains(&json!("faces/me.png")), "{choices:?}");
    assert!(choices.iter().all(|it| !it.as_str().unwrap().starts_with("remuda-")), "{choices:?}");
}

/// Faults: B9, X6.
#[tokio::test]
async fn file_names_are_numbered_as_in_comfyui_and_never_paths() {
    let stage = ComfyFixture::fake().await;
    let name = |answer: &Value| answer["name"].as_str().unwrap().to_owned();
    assert_eq!(name(&upload(&stage, "a.png", b"one", &[], true).await), "a.png");
    assert_eq!(name(&upload(&stage, "a.png", b"one", &[], true).await), "a.png");
    assert_eq!(name(&upload(&stage, "a.png", b"two", &[], true).await), "a (1).png");
    assert_eq!(name(&upload(&stage, "a.png", b"six", &[("overwrite", "true")], true).await), "a.png");
    let shown = view(&stage, &json!({ "filename": "a.png", "subfolder": "", "type": "input" })).await;
    assert_eq!(shown.bytes().await.unwrap(), "six");
    for (name, folder) in [("../a.png", ""), ("a.png", "../x"), ("a.png", "/etc")] {
        let part = Part::bytes(b"x".to_vec()).file_name(name);
        let form = Form::new().part("image", part).text("subfolder", folder);
        let answer = stage.request(Method::POST, "/upload/image").multipart(form).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST, "{name} in {folder}");
    }
    let form = Form::new().text("image", "no file");
    let answer = stage.request(Method::POST, "/api/upload/image").multipart(form).send().await.unwrap();
    assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
}

/// Faults: X7.
#[tokio::test]
async fn form_has_one_file_and_few_parts() {
    let stage = ComfyFixture::fake().await;
    let file = |bytes: &str| Part::bytes(bytes.as_bytes().to_vec()).file_name("a.png");
    let twice = Form::new().part("image", file("first")).part("image", file("second"));
    let many =
        (0..100).fold(Form::new().part("image", file("third")), |form, n| form.text(format!("f{n}"), "x"));
    for form in [twice, many] {
        let answer = stage.request(Method::POST, "/upload/image").multipart(form).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    }
    let shown = view(&stage, &json!({ "filename": "a.png", "subfolder": "", "type": "input" })).await;
    assert_eq!(shown.status(), StatusCode::NOT_FOUND, "nothing of it got a name");
}

/// Faults: X7, B7.
#[tokio::test]
async fn file_is_shown_inline_without_a_runnable_type() {
    let stage = ComfyFixture::fake().await;
    upload(&stage, "evil.svg", b"<svg onload=alert(1)>", &[], true).await;
    upload(&stage, "a.png", b"0123456789", &[], true).await;
    let get = async |query: &str, range: Option<&str>| {
        let mut request = stage.request(Method::GET, &format!("/view?{query}"));
        if let Some(range) = range {
            request = request.header("range", range);
        }
        request.send().await.unwrap()
    };
    let answer = get("filename=evil.svg&type=input", None).await;
    let head = answer.headers();
    assert_eq!(head["content-type"], "application/octet-stream");
    assert_eq!(head["x-content-type-options"], "nosniff");
    assert_eq!(head["content-security-policy"], "default-src 'none'; sandbox");
    assert!(head["content-disposition"].to_str().unwrap().starts_with("inline"), "{head:?}");
    let answer = get("filename=a.png&type=input&preview=webp;50&channel=rgb", None).await;
    assert_eq!(answer.headers()["content-type"], "image/png");
    let tag = answer.headers()["etag"].clone();
    assert_eq!(answer.bytes().await.unwrap(), "0123456789", "the original: nothing is decoded here");
    let answer = get("filename=a.png&type=input", Some("bytes=2-4")).await;
    assert_eq!((answer.status(), answer.bytes().await.unwrap()), (StatusCode::PARTIAL_CONTENT, "234".into()));
    let known = stage.request(Method::GET, "/view?filename=a.png&type=input").header("if-none-match", tag);
    assert_eq!(known.send().await.unwrap().status(), StatusCode::NOT_MODIFIED);
    let head = stage.request(Method::HEAD, "/api/view?filename=a.png&type=input").send().await.unwrap();
    assert_eq!((head.status(), &head.headers()["content-length"]), (StatusCode::OK, &"10".parse().unwrap()));
    for (query, status) in [
        ("filename=b.png&type=input", StatusCode::NOT_FOUND),
        ("filename=a.png", StatusCode::NOT_FOUND),
        ("filename=../a.png&type=input", StatusCode::BAD_REQUEST),
        ("filename=a.png&type=models", StatusCode::BAD_REQUEST),
        ("type=input", StatusCode::BAD_REQUEST),
    ] {
        assert_eq!(get(query, None).await.status(), status, "{query}");
    }
}

#[tokio::test]
async fn settings_and_saved_workflows_survive_a_restart() {
    let mut stage = ComfyFixture::fake().await;
    let (status, _) = stage.post("/api/settings/Comfy.Theme", &json!("dark")).await;
    assert_eq!(status, StatusCode::OK);
    let path = "/api/userdata/workflows%2Fmine.json";
    let save = |query: &str| stage.request(Method::POST, &format!("{path}{query}")).body("{\"nodes\":[]}");
    let (status, saved) = crate::harness::answered(save("?overwrite=false&full_info=true")).await;
    assert_eq!((status, &saved["path"]), (StatusCode::OK, &json!("workflows/mine.json")), "{saved}");
    let (status, _) = crate::harness::answered(save("?overwrite=false")).await;
    assert_eq!(status, StatusCode::CONFLICT);
    stage.plane.kill();
    stage.plane.start_again().await;
    assert_eq!(stage.get("/settings").await, json!({ "Comfy.Theme": "dark" }));
    let listed = stage.get("/userdata?dir=workflows&recurse=true&split=false&full_info=true").await;
    assert_eq!(
        (listed[0]["path"].as_str(), listed[0]["size"].as_u64()),
        (Some("mine.json"), Some(12)),
        "{listed}"
    );
    assert_eq!(stage.get(path).await, json!({ "nodes": [] }));
    let (status, moved) =
        stage.post("/userdata/workflows%2Fmine.json/move/workflows%2Fother.json", &json!({})).await;
    assert_eq!((status, moved), (StatusCode::OK, json!("workflows/other.json")));
    let gone = stage.request(Method::DELETE, "/userdata/workflows%2Fother.json").send().await.unwrap();
    assert_eq!(gone.status(), StatusCode::NO_CONTENT);
    let none = stage.request(Method::GET, "/userdata?dir=workflows").send().await.unwrap();
    assert_eq!(none.status(), StatusCode::NOT_FOUND);
}

/// Faults: X7.
#[tokio::test]
async fn user_data_is_bounded_in_total() {
    let stage = ComfyFixture::fake().await;
    let save = async |name: String, text: String| {
        let path = format!("/userdata/workflows%2F{name}");
        stage.request(Method::POST, &path).body(text).send().await.unwrap().status()
    };
    assert_eq!(save("large".to_owned(), "x".repeat((1 << 20) + 1)).await, StatusCode::PAYLOAD_TOO_LARGE);
    // Each takes six times its size when stored.
    let text = "\u{1}".repeat(1 << 20);
    for number in 0..5 {
        assert_eq!(save(number.to_string(), text.clone()).await, StatusCode::OK, "{number}");
    }
    assert_eq!(save("5".to_owned(), text.clone()).await, StatusCode::INSUFFICIENT_STORAGE);
    assert_eq!(save("4".to_owned(), text).await, StatusCode::OK, "what is there may be changed");
    assert_eq!(save("small".to_owned(), "{}".to_owned()).await, StatusCode::OK);
}

#[tokio::test]
async fn fleet_answers_as_one_server() {
    let stage = ComfyFixture::fake().await;
    let info = wait_until("the classes are known", async || {
        let info = stage.get("/api/object_info").await;
        info["SaveImage"].is_object().then_some(info)
    })
    .await;
    assert_eq!(info["SaveImage"]["output_node"], true);
    assert_eq!(stage.get("/object_info/NoSuchNode").await, json!({}));
    let stats = stage.get("/system_stats").await;
    assert!(stats["system"]["os"].is_string() && stats["devices"][0]["vram_total"].is_u64(), "{stats}");
    for path in ["/features", "/users", "/i18n", "/extensions", "/embeddings", "/models", "/global_subgraphs"]
    {
        stage.get(path).await;
        stage.get(&format!("/api{path}")).await;
    }
    let free = stage.post("/free", &json!({ "unload_models": true })).await;
    assert_eq!(free.0, StatusCode::OK);
    let hello = stage.request(Method::GET, "/").send().await.unwrap();
    assert!(hello.text().await.unwrap().contains("Remuda"));
}
