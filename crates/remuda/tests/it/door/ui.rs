//! The web interface's files, and whoever may not have them.

use reqwest::Method;

use super::*;
use crate::harness::{Process, free_address, remuda};

#[tokio::test]
async fn the_web_interface_is_served_from_where_it_is_installed() {
    let folder = tempfile::tempdir().unwrap();
    let files = folder.path().join("packages/comfyui_frontend_package/static");
    std::fs::create_dir_all(files.join("assets")).unwrap();
    std::fs::write(files.join("index.html"), "<!doctype html>").unwrap();
    std::fs::write(files.join("assets/index-abc.js"), "run()").unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    let address = free_address();
    let mut command = remuda(folder.path());
    command.args(["serve", "--data", "data", "--ui", "packages", "--listen", &address.to_string()]);
    let mut process = Process::start("the plane", &mut command);
    assert!(process.line("serves on").await.is_some(), "{}", process.said());
    let plane = Client::new(format!("http://{address}"));
    let get = async |path: &str| plane.request(Method::GET, path).send().await.unwrap();
    let page = get("/").await;
    assert_eq!(page.headers()["content-type"], "text/html; charset=utf-8");
    assert_eq!(page.headers()["cache-control"], "no-cache");
    let tag = page.headers()["etag"].clone();
    assert_eq!(page.text().await.unwrap(), "<!doctype html>");
    let known = plane.request(Method::GET, "/").header("if-none-match", tag).send().await.unwrap();
    assert_eq!(known.status(), StatusCode::NOT_MODIFIED);
    let script = get("/assets/index-abc.js").await;
    assert_eq!(script.headers()["content-type"], "text/javascript; charset=utf-8");
    assert!(script.headers()["cache-control"].to_str().unwrap().contains("immutable"));
    for path in ["/%2e%2e/%2e%2e/%2e%2e/secret", "/user.css", "/assets"] {
        assert_eq!(get(path).await.status(), StatusCode::NOT_FOUND, "{path}");
    }
    assert_eq!(plane.get("/users").await["storage"], "server", "routes come first");
}

#[tokio::test]
async fn a_folder_without_the_web_interface_is_said_to_be_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = remuda(folder.path());
    command.args(["serve", "--data", "data", "--ui", "."]);
    let mut process = Process::start("the plane", &mut command);
    assert!(!process.ended().await.success());
    assert!(process.said().contains("comfyui-frontend-package"), "{}", process.said());
}

/// What custom nodes bring to the web interface is read from a server beside the plane.
#[tokio::test]
async fn what_only_a_server_can_say_is_asked_of_one_that_was_started_with_the_plane() {
    let server = Server::fake(Options::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let address = free_address();
    let mut command = remuda(folder.path());
    command.args(["up", "--data", "data", "--comfyui", &server.url(), "--listen", &address.to_string()]);
    let mut process = Process::start("the plane", &mut command);
    assert!(process.line("is up on").await.is_some(), "{}", process.said());
    let plane = Client::new(format!("http://{address}"));
    let before = server.counts().requests.get("GET /extensions").copied().unwrap_or(0);
    assert_eq!(plane.get("/api/extensions").await, json!([]));
    assert_eq!(server.counts().requests["GET /extensions"], before + 1, "it was asked");
    let unknown = plane.request(Method::GET, "/no/such/thing").send().await.unwrap();
    assert_eq!(unknown.status(), StatusCode::NOT_FOUND);
}

/// Faults: X16.
#[tokio::test]
async fn nobody_sees_what_belongs_to_another_tenant() {
    let stage = Stage::fake().await;
    let (status, admin) = stage.post("/fleet/tokens", &json!({ "role": "admin", "name": "boss" })).await;
    assert_eq!(status, StatusCode::CREATED, "{admin}");
    let token = |answer: &Value| answer["token"].as_str().unwrap().to_owned();
    let boss = token(&admin);
    let make = async |tenant: &str| {
        let asked = json!({ "role": "client", "name": tenant, "tenant": tenant });
        let request = stage.request(Method::POST, "/fleet/tokens").bearer_auth(&boss).json(&asked);
        token(&crate::harness::answered(request).await.1)
    };
    let (anna, bert) = (make("anna").await, make("bert").await);
    let ask = async |method: Method, path: &str, who: &str, body: Value| {
        let request = stage.request(method, path).bearer_auth(who).json(&body);
        crate::harness::answered(request).await
    };
    let body = json!({ "prompt": crate::comfyui::graph::picture(95).saved(), "client_id": "same" });
    let (status, answer) = ask(Method::POST, "/prompt", &anna, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let id = answer["prompt_id"].as_str().unwrap();
    let entry = wait_until("it has ended", async || {
        let (_, history) = ask(Method::GET, &format!("/history/{id}"), &anna, Value::Null).await;
        history[id].is_object().then(|| history[id].clone())
    })
    .await;
    let file = &entry["outputs"]["2"]["images"][0];
    let view = format!(
        "/view?filename={}&subfolder={}&type=output",
        file["filename"].as_str().unwrap(),
        file["subfolder"].as_str().unwrap()
    );
    assert_eq!(ask(Method::GET, &view, &anna, Value::Null).await.0, StatusCode::OK);
    assert_eq!(ask(Method::GET, &view, &bert, Value::Null).await.0, StatusCode::NOT_FOUND);
    assert_eq!(ask(Method::GET, &format!("/history/{id}"), &bert, Value::Null).await.1, json!({}));
    assert_eq!(ask(Method::GET, "/history", &bert, Value::Null).await.1, json!({}));
    assert_eq!(
        ask(Method::GET, &format!("/api/jobs/{id}"), &bert, Value::Null).await.0,
        StatusCode::NOT_FOUND
    );
    assert_eq!(ask(Method::GET, "/queue", "", Value::Null).await.0, StatusCode::UNAUTHORIZED);
}
