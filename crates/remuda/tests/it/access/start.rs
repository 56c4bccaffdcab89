//! Beyond loopback a plane does not start without TLS and an admin token; the message says what to do.

use serde_json::{Value, json};

use super::tls::Authority;
use crate::harness::{Plane, Process, assert_contains_all, remuda};
use crate::start::{run, run_as};

/// Faults: X1. Each message is followed until the plane starts.
#[tokio::test]
async fn non_loopback_plane_explains_what_it_needs() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let (cert, key) = authority.issue("plane", &["localhost"], false);
    let (cert, key) = (cert.to_str().unwrap(), key.to_str().unwrap());
    let serve = ["serve", "--data", "data", "--listen", "0.0.0.0:0"];
    let (code, said) = run(folder.path(), &serve).await;
    assert_eq!(code, 1);
    assert_contains_all(
        &said,
        &["open to other machines", "--tls-cert", "remuda token create --role admin --data data"],
    );
    let (code, said) = run(folder.path(), &[&serve[..], &["--tls-cert", cert]].concat()).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["--tls-key"]);
    let with_tls = [&serve[..], &["--tls-cert", cert, "--tls-key", key]].concat();
    let (code, said) = run(folder.path(), &with_tls).await;
    assert_eq!(code, 1);
    assert_contains_all(
        &said,
        &["there is no admin token yet", "remuda token create --role admin --data data"],
    );
    let (code, said) =
        run(folder.path(), &["token", "create", "--role", "admin", "--data", "data", "--json"]).await;
    assert_eq!(code, 0, "{said}");
    let made: Value = serde_json::from_str(&said).unwrap();
    let mut plane = Process::start("the plane", remuda(folder.path()).args(&with_tls));
    let line = plane.line("serves on").await.unwrap_or_else(|| panic!("{}", plane.said()));
    let port = line.split("0.0.0.0:").nth(1).unwrap().split(' ').next().unwrap();
    let url = format!("https://localhost:{port}");
    let ca = authority.path();
    let typed = ["jobs", "--url", &url, "--ca", ca.to_str().unwrap()];
    let (code, said) = run(folder.path(), &typed).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said, &["send a token"]);
    let token = made["token"].as_str().unwrap();
    let (code, said) = run_as(token, folder.path(), &typed).await;
    assert_eq!(code, 0, "{said}");
    // The error names the plane that uses the folder, and how to reach it.
    let (code, said) = run(folder.path(), &["token", "create", "--role", "admin", "--data", "data"]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["a plane is running on this folder", "--url"]);
}

/// Faults: X1, X10.
#[tokio::test]
async fn admin_token_comes_from_environment_or_file() {
    let secret = "an admin of the environment, long enough";
    let plane = Plane::plan(&[]).variable("REMUDA_ADMIN_TOKEN", secret).start().await;
    assert_eq!(super::code(&plane, reqwest::Method::GET, "/remuda/v1/jobs").await.0, 401);
    let admin = plane.with(secret);
    admin.post("/remuda/v1/tokens", &json!({ "role": "client", "tenant": "anna" })).await;
    assert_eq!(admin.get("/remuda/v1/tokens").await["tokens"].as_array().unwrap().len(), 1);
    // An admin's token is accepted where a worker's credential is, whatever it looks like.
    let unknown = super::code(&admin, reqwest::Method::DELETE, "/remuda/v1/workers/no-such-worker").await;
    assert_eq!(unknown, (404, "unknown_worker".to_owned()));
    assert_eq!(super::code(&admin, reqwest::Method::GET, "/remuda/v1/blobs/blake3:00").await.0, 400);

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("admin");
    std::fs::write(&file, format!("{secret}\n")).unwrap();
    let setting = format!("admin_token_file={}", file.display());
    let plane = Plane::start(&[&setting]).await;
    assert_eq!(plane.with(secret).jobs().await.len(), 0);
    assert_eq!(super::code(&plane, reqwest::Method::GET, "/remuda/v1/jobs").await.0, 401);

    std::fs::write(&file, "short").unwrap();
    let (code, said) = run(folder.path(), &["serve", "--listen", "127.0.0.1:0", "--set", &setting]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["too short"]);
}
