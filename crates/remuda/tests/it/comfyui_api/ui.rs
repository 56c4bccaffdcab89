//! Files of the web interface, and access to them.

use reqwest::Method;
use reqwest::multipart::{Form, Part};

use super::*;
use crate::comfyui::graph::picture;
use crate::harness::{Plane, Process, QUICK, answered, free_address, remuda};

#[tokio::test]
async fn web_interface_is_served_from_its_folder() {
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
async fn folder_without_web_interface_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = remuda(folder.path());
    command.args(["serve", "--data", "data", "--ui", "."]);
    let mut process = Process::start("the plane", &mut command);
    assert!(!process.ended().await.success());
    assert!(process.said().contains("comfyui-frontend-package"), "{}", process.said());
}

/// Scripts of custom nodes are read from a server started with the plane; data of tenants on that server is not.
///
/// Faults: X16.
#[tokio::test]
async fn server_scripts_are_forwarded_from_a_local_server() {
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
    for path in
        ["/no/such/thing", "/%68istory", "/api/%71ueue", "/%75serdata", "/internal/other", "/v2/userdata"]
    {
        let answer = plane.request(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), StatusCode::NOT_FOUND, "{path}");
    }
    let asked = server.counts().requests;
    let is_private =
        |asked: &&String| ["/no/", "%", "/internal", "/v2"].iter().any(|part| asked.contains(part));
    assert_eq!(asked.keys().find(is_private), None, "no server is asked for these");
}

/// Faults: X16.
#[tokio::test]
async fn objects_of_another_tenant_are_hidden() {
    let plane = Plane::start(QUICK).await;
    let ask = async |method: Method, path: &str, who: &str, body: Value| {
        let request = plane.request(method, path).json(&body);
        answered(if who.is_empty() { request } else { request.bearer_auth(who) }).await
    };
    let make = async |role: &str, name: &str, who: &str| {
        let mut asked = json!({ "role": role, "name": name });
        if role == "client" {
            asked["tenant"] = name.into();
        }
        let (status, made) = ask(Method::POST, "/remuda/v1/tokens", who, asked).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
        made["token"].as_str().unwrap().to_owned()
    };
    let boss = make("admin", "boss", "").await;
    let (anna, bert) = (make("client", "anna", &boss).await, make("client", "bert", &boss).await);
    let body = json!({ "prompt": picture(95).saved(), "client_id": "same" });
    let (status, answer) = ask(Method::POST, "/prompt", &anna, body).await;
    assert_eq!(status, StatusCode::OK, "{answer}");
    let id = answer["prompt_id"].as_str().unwrap();
    let form = Form::new().part("image", Part::bytes(b"annas".to_vec()).file_name("me.png"));
    let upload = plane.request(Method::POST, "/upload/image").bearer_auth(&anna).multipart(form);
    assert_eq!(answered(upload).await.0, StatusCode::OK);
    ask(Method::POST, "/settings/theme", &anna, json!("dark")).await;

    let look = async |path: &str, who: &str| ask(Method::GET, path, who, Value::Null).await;
    let file = "/view?filename=me.png&type=input";
    assert_eq!(
        (look(file, &anna).await.0, look(file, &bert).await.0),
        (StatusCode::OK, StatusCode::NOT_FOUND)
    );
    assert_eq!(look("/queue", &anna).await.1["queue_pending"][0][1], id);
    assert_eq!(look("/queue", &bert).await.1["queue_pending"], json!([]));
    assert_eq!(look("/prompt", &bert).await.1["exec_info"]["queue_remaining"], 0);
    assert_eq!(look(&format!("/api/jobs/{id}"), &bert).await.0, StatusCode::NOT_FOUND);
    assert_eq!(look("/settings", &bert).await.1, json!({}));
    let (_, cancelled) = ask(Method::POST, &format!("/api/jobs/{id}/cancel"), &bert, Value::Null).await;
    assert_eq!(cancelled, json!({ "cancelled": false }));
    ask(Method::POST, "/queue", &bert, json!({ "clear": true, "delete": [id] })).await;
    assert_eq!(look(&format!("/api/jobs/{id}"), &anna).await.1["status"], "pending");
    assert_eq!(look("/queue", "").await.0, StatusCode::UNAUTHORIZED);
}

/// The web interface reads the list of jobs with a schema: one error without a node would blank the whole panel.
#[tokio::test]
async fn failed_jobs_are_listed_as_the_web_interface_reads_them() {
    let stage = ComfyFixture::with(Server::fake(Options::default()).await, &["attempts_max=1"], &[]).await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let id = prompt(&stage, "anna", &picture(96).fail("error").saved()).await;
    client.until_done(&id).await;
    // The plane ends this one: no server says anything about it.
    let late = json!({ "workflow": picture(97).sleep(600.0, 6000).saved(), "deadline_seconds": 1 });
    let (status, answer) = stage.post("/api/v2/jobs", &late).await;
    assert_eq!(status, StatusCode::CREATED, "{answer}");
    stage.ended(answer["id"].as_str().unwrap()).await;
    let jobs = stage.get("/api/jobs?status=failed").await;
    let jobs = jobs["jobs"].as_array().unwrap();
    assert_eq!(jobs.len(), 2, "{jobs:?}");
    for error in jobs.iter().map(|job| &job["execution_error"]) {
        for key in ["node_id", "node_type", "exception_message", "exception_type"] {
            assert!(error[key].is_string(), "{key}: {error}");
        }
        assert!(error["traceback"].as_array().unwrap().iter().all(Value::is_string), "{error}");
    }
}

/// The log terminal, the panel of imported files, and the folders.
#[tokio::test]
async fn internal_routes_answer_with_what_belongs_to_the_caller() {
    let stage = ComfyFixture::fake().await;
    let mut client = WsClient::open(&stage.plane, "anna").await;
    let subscribe = json!({ "enabled": true, "clientId": "anna" });
    let subscribed =
        stage.request(Method::PATCH, "/internal/logs/subscribe").json(&subscribe).send().await.unwrap();
    assert_eq!(subscribed.status(), StatusCode::OK);
    let id = prompt(&stage, "anna", &picture(99).saved()).await;
    let heard = client.until_done(&id).await;
    let lines: Vec<&str> = heard
        .iter()
        .filter(|it| it["type"] == "logs")
        .map(|it| it["data"]["entries"][0]["m"].as_str().unwrap())
        .collect();
    assert!(lines.len() >= 2 && lines[0] == format!("got prompt {id}\n"), "{lines:?}");
    let raw = stage.get("/internal/logs/raw").await;
    assert_eq!(raw["size"], json!({ "cols": 80, "rows": 24 }));
    assert_eq!(raw["entries"][0]["m"], format!("got prompt {id}\n"), "{raw}");
    let text = stage.get("/internal/logs").await;
    assert!(text.as_str().unwrap().contains(&format!("prompt {id} executed")), "{text}");

    let form = Form::new().part("image", Part::bytes(b"annas".to_vec()).file_name("me.png"));
    let upload = stage.request(Method::POST, "/upload/image").multipart(form);
    assert_eq!(answered(upload).await.0, StatusCode::OK);
    assert_eq!(stage.get("/internal/files/input").await, json!(["me.png"]));
    assert!(stage.get("/internal/files/output").await.is_array());
    let wrong = stage.request(Method::GET, "/internal/files/models").send().await.unwrap();
    assert_eq!(wrong.status(), StatusCode::BAD_REQUEST);
    assert!(stage.get("/internal/folder_paths").await["checkpoints"].is_array());
}
