//! Every route with every role, against the route table; over real HTTP.

use std::collections::BTreeMap;

use reqwest::Method;
use serde_json::{Value, json};

use super::super::routes;
use super::{Access, Role, TokenRequest};
use crate::serve::Serving;
use remuda_config::ResolvedConfig;
use remuda_net::secret::Secret;

struct Plane {
    serving: Serving,
    http: reqwest::Client,
    _folder: tempfile::TempDir,
}

impl Plane {
    async fn start() -> Plane {
        let folder = tempfile::tempdir().unwrap();
        let mut resolved = ResolvedConfig::defaults(folder.path().to_path_buf());
        resolved.serve.listen.set_port(0);
        let serving = Serving::start(&resolved).await.unwrap();
        Plane { serving, http: remuda_net::http_client::client_builder().build().unwrap(), _folder: folder }
    }

    async fn request(&self, method: &str, path: &str, token: &str, body: Value) -> (u16, Value) {
        let method: Method = method.parse().unwrap();
        let mut request = self.http.request(method, format!("{}{path}", self.serving.url()));
        if !token.is_empty() {
            request = request.bearer_auth(token);
        }
        if !body.is_null() {
            request = request.json(&body);
        }
        let response = request.send().await.unwrap();
        let status = response.status().as_u16();
        let kind = response.headers().get("content-type").cloned();
        let is_stream = kind.is_some_and(|kind| kind == "text/event-stream");
        let body = if is_stream { Value::Null } else { response.json().await.unwrap_or_default() };
        (status, body)
    }

    async fn token(&self, admin: &str, role: Role) -> String {
        let tenant = (role == Role::Client).then(|| "anna".parse().unwrap());
        let wanted = TokenRequest { role, tenant, name: None, workers: Vec::new(), expires_seconds: None };
        let (status, made) = self.request("POST", "/remuda/v1/tokens", admin, json!(wanted)).await;
        assert_eq!(status, 201, "{made}");
        made["token"].as_str().unwrap().to_owned()
    }
}

fn filled(path: &str) -> String {
    let id = if path.contains("/jobs/") { "0193e7a0-5b1c-7d52-9c7e-0a4b6f0e2d11" } else { "missing" };
    path.replace("{id}", id)
        .replace("{worker}", "missing")
        .replace("{hash}", &format!("blake3:{}", "0".repeat(64)))
        .replace("{shape}", &"0".repeat(64))
        .replace("{name}", "orchestrator_status")
}

/// Whether the request reached its handler. An answer to HEAD has no body.
fn is_let_through(status: u16, body: &Value) -> bool {
    let code = body["error"]["code"].as_str().unwrap_or("forbidden");
    !(status == 401 || status == 403 && code == "forbidden")
}

/// Faults: X17, X11.
#[tokio::test]
async fn every_route_admits_exactly_the_roles_of_its_table_entry() {
    let plane = Plane::start().await;
    let admin = plane.token("", Role::Admin).await;
    let mut tokens = BTreeMap::from([("no token", String::new()), ("a stranger", "rmd_00_11".to_owned())]);
    for role in [Role::Client, Role::Worker] {
        tokens.insert(role.as_str(), plane.token(&admin, role).await);
    }
    tokens.insert("admin", admin);
    for route in routes::all() {
        let (method, path, access) = (route.method, route.path, route.access);
        for (name, token) in &tokens {
            let (status, body) = plane.request(method, &filled(path), token, Value::Null).await;
            let role = name.parse::<Role>().ok();
            // As `docs/http.md` documents it.
            let listed = access.as_str().split(", ").any(|it| role.is_some_and(|role| it == role.as_str()));
            let expected = access == Access::Public || listed;
            let request = format!("{method} {path} for {name}: {status} {body}");
            assert_eq!(is_let_through(status, &body), expected, "{request}");
            if !expected {
                assert_eq!(status, if role.is_some() { 403 } else { 401 }, "{request}");
            }
        }
    }
    plane.serving.stop().await.unwrap();
}

/// Unknown paths are refused like known ones: they reveal nothing to a caller without a token.
#[tokio::test]
async fn caller_without_token_cannot_tell_known_paths_from_unknown() {
    let plane = Plane::start().await;
    plane.token("", Role::Admin).await;
    for path in [
        "/remuda/v1",
        "/remuda/v1/overview",
        "/remuda/v1/nothing",
        "/api/v2/jobs",
        "/prompt",
        "/metrics",
        "/docs",
        "/.git/config",
    ] {
        for method in ["GET", "POST", "OPTIONS", "PATCH"] {
            let (status, body) = plane.request(method, path, "", Value::Null).await;
            let word = if path.starts_with("/api/v2") { "unauthorized" } else { "no_token" };
            assert_eq!((status, &body["error"]["code"]), (401, &json!(word)), "{method} {path}");
        }
    }
    // The dashboard's page is for everyone: it holds no data, and asks for a token. Nothing else is at its paths.
    for path in ["/", "/remuda/"] {
        for method in ["POST", "PATCH"] {
            let (status, body) = plane.request(method, path, "", Value::Null).await;
            assert_eq!((status, &body["error"]["code"]), (401, &json!("no_token")), "{method} {path}");
        }
    }
    plane.serving.stop().await.unwrap();
}

#[tokio::test]
async fn workers_of_this_process_join_with_its_own_token() {
    let plane = Plane::start().await;
    plane.token("", Role::Admin).await;
    let own: Secret = plane.serving.own_token();
    let join = json!({ "worker": "a", "services": ["exec"] });
    let (status, joined) = plane.request("POST", "/remuda/v1/workers", own.reveal(), join).await;
    assert_eq!(status, 201, "{joined}");
    plane.serving.stop().await.unwrap();
}
