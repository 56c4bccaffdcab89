//! Access: tokens and roles, limits, TLS, the audit log.

mod audit;
mod limits;
mod secrets;
mod start;
mod surfaces;
mod tenants;
mod tls;
mod workers;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use crate::harness::{Client, Plane, answered, assert_contains_all};
use crate::start::{run, run_as};

/// A plane with an admin token, and that admin's client.
pub(crate) async fn closed(settings: &[&str]) -> (Plane, Client) {
    let plane = Plane::start(settings).await;
    let admin = plane.with(&token(&plane, &json!({ "role": "admin", "name": "root" })).await);
    (plane, admin)
}

/// Makes a token and gives its secret.
async fn token(admin: &Client, wanted: &Value) -> String {
    let (status, made) = admin.post("/remuda/v1/tokens", wanted).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    made["token"].as_str().unwrap().to_owned()
}

pub(crate) async fn client_of(admin: &Client, tenant: &str) -> Client {
    let wanted = json!({ "role": "client", "tenant": tenant, "name": format!("{tenant}'s laptop") });
    admin.with(&token(admin, &wanted).await)
}

async fn code(client: &Client, method: Method, path: &str) -> (u16, String) {
    let (status, body) = answered(client.request(method, path)).await;
    (status.as_u16(), body["error"]["code"].as_str().unwrap_or_default().to_owned())
}

#[tokio::test]
async fn first_token_makes_tokens_required() {
    let plane = Plane::start(&[]).await;
    let (status, refused) =
        plane.post("/remuda/v1/tokens", &json!({ "role": "client", "tenant": "anna" })).await;
    assert_eq!((status.as_u16(), &refused["error"]["code"]), (409, &json!("no_admin")), "{refused}");
    plane.submit(json!({ "n": 1 })).await;
    let admin = plane.with(&token(&plane, &json!({ "role": "admin" })).await);
    assert_eq!(code(&plane, Method::GET, "/remuda/v1/jobs").await, (401, "no_token".to_owned()));
    assert_eq!(code(&plane, Method::GET, "/health/live").await.0, 200);
    assert_eq!(admin.jobs().await.len(), 1);
    // The last admin does not leave others behind, but may be the last to leave.
    let anna = client_of(&admin, "anna").await;
    let root = admin.get("/remuda/v1/tokens").await["tokens"][0]["id"].as_str().unwrap().to_owned();
    let path = format!("/remuda/v1/tokens/{root}");
    assert_eq!(code(&admin, Method::DELETE, &path).await, (409, "last_admin".to_owned()));
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/anna's%20laptop").await.0, 200);
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/jobs").await, (401, "wrong_token".to_owned()));
    assert_eq!(code(&admin, Method::DELETE, &path).await.0, 200);
    assert_eq!(code(&plane, Method::GET, "/remuda/v1/jobs").await.0, 200, "as it was in the beginning");
}

/// Faults: X3. Revoked for the very next request, for streams that are open, and after a restart.
#[tokio::test]
async fn revoked_token_is_refused_at_once() {
    let (mut plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let mut stream = crate::harness::Stream::open(&anna, "?after=0", None).await;
    anna.submit(json!({ "n": 1 })).await;
    stream.until("job:queued").await;
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/anna's%20laptop").await.0, 200);
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/jobs").await, (401, "wrong_token".to_owned()));
    let ended = async { while stream.read().await.is_some() {} };
    tokio::time::timeout(std::time::Duration::from_secs(1), ended)
        .await
        .expect("the stream should end at once");
    plane.kill();
    plane.start_again().await;
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/jobs").await, (401, "wrong_token".to_owned()));
    assert_eq!(admin.jobs().await.len(), 1, "and the others are still good");
}

/// Faults: X3, X8. A socket opened by a page has its token among its protocols, and goes with it.
#[tokio::test]
async fn socket_needs_token_and_closes_when_it_is_revoked() {
    let (plane, admin) = closed(&["limits.streams_per_token_max=1"]).await;
    let anna = client_of(&admin, "anna").await;
    let open = async |protocols: &str| {
        let mut raw = crate::harness::Raw::open(plane.address).await;
        let head = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n\
                    sec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
        let host = plane.address;
        raw.send(&format!("GET /ws?clientId=a HTTP/1.1\r\nhost: {host}\r\n{head}{protocols}\r\n")).await;
        let answer = raw.head().await;
        (raw, answer.to_lowercase())
    };
    let (_, answer) = open("").await;
    assert_contains_all(&answer, &["401 unauthorized"]);
    let protocols = format!("sec-websocket-protocol: remuda, remuda.token.{}\r\n", anna.token);
    let (mut raw, answer) = open(&protocols).await;
    assert_contains_all(&answer, &["101 switching", "sec-websocket-protocol: remuda\r\n"]);
    let (_, answer) = open(&protocols).await;
    assert_contains_all(&answer, &["429 too many"]);
    assert_eq!(code(&admin, Method::DELETE, "/remuda/v1/tokens/anna's%20laptop").await.0, 200);
    let ended = tokio::time::timeout(std::time::Duration::from_secs(1), raw.rest());
    ended.await.expect("the socket should end at once");
}

/// Faults: X3.
#[tokio::test]
async fn stolen_data_folder_contains_no_usable_token() {
    let (mut plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    plane.kill();
    let data = plane.store().parent().unwrap().to_owned();
    for entry in std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path()) {
        let Ok(bytes) = std::fs::read(&entry) else { continue };
        for secret in [&admin.token, &anna.token] {
            let hidden = secret.rsplit('_').next().unwrap().as_bytes();
            let is_there = bytes.windows(hidden.len()).any(|part| part == hidden);
            assert!(!is_there, "the secret is in {}", entry.display());
        }
    }
}

/// Faults: X3.
#[tokio::test]
async fn expired_token_is_refused() {
    let (_plane, admin) = closed(&[]).await;
    let wanted = json!({ "role": "client", "tenant": "anna", "expires_seconds": 1 });
    let anna = admin.with(&token(&admin, &wanted).await);
    let mut stream = crate::harness::Stream::open(&anna, "?after=0", None).await;
    while stream.read().await.is_some() {}
    assert_eq!(code(&anna, Method::GET, "/remuda/v1/jobs").await, (401, "wrong_token".to_owned()));
    let listed = admin.get("/remuda/v1/tokens").await;
    assert_eq!(listed["tokens"][1]["has_expired"], true, "{listed}");
}

#[tokio::test]
async fn browser_login_accepts_token_as_password() {
    let (plane, admin) = closed(&[]).await;
    let anna = client_of(&admin, "anna").await;
    let asked = plane.request(Method::GET, "/remuda/v1/jobs").send().await.unwrap();
    let challenges: Vec<_> = asked.headers().get_all("www-authenticate").iter().collect();
    assert_eq!(challenges.len(), 2, "{challenges:?}");
    let request = plane.request(Method::GET, "/remuda/v1/jobs").basic_auth("anybody", Some(&anna.token));
    assert_eq!(answered(request).await.0, StatusCode::OK);
    let request =
        plane.request(Method::GET, "/remuda/v1/jobs").header("cookie", format!("token={}", anna.token));
    assert_eq!(answered(request).await.0, StatusCode::UNAUTHORIZED);
    let in_address = format!("/remuda/v1/jobs?token={}", anna.token);
    assert_eq!(code(&plane, Method::GET, &in_address).await.0, 401);
}

#[tokio::test]
async fn token_commands_create_list_and_revoke() {
    let plane = Plane::start(&[]).await;
    let folder = plane.folder().to_owned();
    let typed = async |token: &str, arguments: &[&str]| {
        let all = [&["token"], arguments, &["--url", &plane.url, "--json"]].concat();
        let (code, said) = run_as(token, &folder, &all).await;
        (code, serde_json::from_str::<Value>(&said).unwrap_or(Value::String(said)))
    };
    let (_, made) = typed("", &["create", "--role", "admin", "--name", "root"]).await;
    let admin = made["token"].as_str().unwrap().to_owned();
    let wanted =
        ["create", "--role", "client", "--tenant", "anna", "--name", "anna's laptop", "--expires", "30d"];
    let (code, made) = typed(&admin, &wanted).await;
    assert_eq!((code, &made["tenant"]), (0, &json!("anna")), "{made}");
    let anna = plane.with(made["token"].as_str().unwrap());
    anna.submit(json!({ "n": 1 })).await;
    let (_, listed) = typed(&admin, &["list"]).await;
    assert_eq!(listed["tokens"].as_array().unwrap().len(), 2);
    assert!(!listed.to_string().contains(&anna.token), "{listed}");
    assert!(listed["tokens"][1]["used_at"].is_string(), "{listed}");
    assert_eq!(typed(&admin, &["revoke", "anna's laptop"]).await.0, 0);
    assert_eq!(anna.post("/remuda/v1/jobs", &json!({ "workflow": {} })).await.0, StatusCode::UNAUTHORIZED);
    let (code, said) = typed(&anna.token, &["list"]).await;
    assert_eq!(code, 1);
    assert_contains_all(said.as_str().unwrap(), &["unknown, expired or revoked"]);
    let (code, said) = run(&folder, &["token", "create", "--role", "king", "--url", &plane.url]).await;
    assert_eq!(code, 2, "{said}");
}
