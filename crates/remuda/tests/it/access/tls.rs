//! TLS with a private authority and certificates that are replaced while the plane runs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd};
use serde_json::json;

use crate::harness::{Client, Plane, assert_contains_all, wait_until};
use crate::start::run;

/// A certificate authority.
pub(super) struct Authority {
    folder: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(super) fn new(folder: &Path) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "An authority of our own");
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let authority = Authority { folder: folder.to_owned(), issuer };
        std::fs::write(authority.path(), authority.issuer.pem()).unwrap();
        authority
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A certificate for these names and its key, as files.
    pub(super) fn issue(&self, file: &str, names: &[&str], has_expired: bool) -> (PathBuf, PathBuf) {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        if has_expired {
            (params.not_before, params.not_after) = (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1));
        }
        self.write(file, &params)
    }

    /// As `issue`, for localhost and so many days from now.
    fn issue_for_days(&self, file: &str, days: u64) -> (PathBuf, PathBuf) {
        let year_2020 = std::time::UNIX_EPOCH + Duration::from_secs(1_577_836_800);
        let since = year_2020.elapsed().unwrap() + Duration::from_secs(days * 24 * 60 * 60);
        let mut params = CertificateParams::new(["localhost".to_owned()]).unwrap();
        params.not_after = date_time_ymd(2020, 1, 1) + since;
        self.write(file, &params)
    }

    fn write(&self, file: &str, params: &CertificateParams) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        let (at, key_at) = (self.folder.join(format!("{file}.pem")), self.folder.join(format!("{file}.key")));
        std::fs::write(&key_at, key.serialize_pem()).unwrap();
        std::fs::write(&at, cert.pem()).unwrap();
        (at, key_at)
    }

    /// A client that trusts only this authority and opens a connection for each request.
    fn client(&self, url: &str) -> Client {
        let pem = std::fs::read(self.path()).unwrap();
        let only = reqwest::Certificate::from_pem_bundle(&pem).unwrap();
        let http = remuda_net::http_client::client_builder()
            .pool_max_idle_per_host(0)
            .tls_certs_only(only)
            .build()
            .unwrap();
        Client { http, url: url.to_owned(), token: String::new() }
    }
}

struct Stage {
    plane: Plane,
    authority: Authority,
    _folder: tempfile::TempDir,
}

impl Stage {
    async fn set() -> Stage {
        let folder = tempfile::tempdir().unwrap();
        let authority = Authority::new(folder.path());
        let (cert, key) = authority.issue("plane", &["localhost"], false);
        let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
        let plane = Plane::plan(&[]).arguments(&arguments).start().await;
        Stage { plane, authority, _folder: folder }
    }

    fn url(&self, name: &str) -> String {
        format!("https://{name}:{}", self.plane.address.port())
    }

    /// Whether a new connection by this name is believed.
    async fn is_believed(&self, name: &str) -> bool {
        let client = self.authority.client(&self.url(name));
        client.http.get(format!("{}/health/live", client.url)).send().await.is_ok()
    }
}

#[tokio::test]
async fn private_ca_works_for_clients_and_workers() {
    let stage = Stage::set().await;
    let (url, ca) = (stage.url("localhost"), stage.authority.path());
    let client = stage.authority.client(&url);
    client.submit(json!({ "n": 1 })).await;
    let plain = stage.plane.http.get(format!("{}/health/live", stage.plane.url)).send().await;
    assert!(plain.is_err(), "nothing is said without TLS");
    let folder = stage.plane.folder();
    let (code, said) = run(folder, &["jobs", "--url", &url]).await;
    assert_eq!(code, 3, "without --ca the certificate is not trusted: {said}");
    let ca = ca.to_str().unwrap();
    let (code, said) = run(folder, &["jobs", "--url", &url, "--ca", ca]).await;
    assert_eq!(code, 0, "{said}");
    let (code, said) = run(folder, &["jobs", "--url", &url, "--ca", "nothing.pem"]).await;
    assert_eq!(code, 1);
    assert_contains_all(&said, &["cannot read nothing.pem"]);
    let mut worker = crate::harness::remuda(folder);
    worker.args(["worker", "--url", &url, "--ca", ca, "--name", "a", "--exec", "cat"]);
    let _worker = crate::harness::Process::start("the worker", &mut worker);
    let job = client.jobs().await[0]["id"].as_str().unwrap().to_owned();
    assert_eq!(client.ended(&job).await["state"], "completed");
    std::fs::write(folder.join("w.json"), r#"{ "n": 2 }"#).unwrap();
    let (code, said) = run(folder, &["run", "w.json", "--url", &url, "--ca", ca]).await;
    assert_eq!(code, 0, "{said}");
}

/// Faults: N9.
#[tokio::test]
async fn certificate_is_replaced_without_restart() {
    let stage = Stage::set().await;
    assert!(stage.is_believed("localhost").await && !stage.is_believed("127.0.0.1").await);
    // Noticed by itself.
    stage.authority.issue("plane", &["localhost", "127.0.0.1"], false);
    wait_until("the new certificate is used", async || stage.is_believed("127.0.0.1").await.then_some(()))
        .await;
    // Half of a pair changes nothing and is told.
    let client = stage.authority.client(&stage.url("localhost"));
    let (other, _) = stage.authority.issue("other", &["elsewhere"], false);
    std::fs::copy(other, stage.authority.folder.join("plane.pem")).unwrap();
    let (status, refused) = client.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!(status.as_u16(), 422, "{refused}");
    assert_contains_all(&refused.to_string(), &["nothing was changed", "do not belong together"]);
    assert!(stage.is_believed("127.0.0.1").await, "the old one stays");
    // And at once on a reload.
    stage.authority.issue("plane", &["localhost"], false);
    assert_eq!(client.post("/remuda/v1/reload", &json!({})).await.0.as_u16(), 200);
    assert!(stage.is_believed("localhost").await && !stage.is_believed("127.0.0.1").await);
}

/// Faults: N9. The plane neither starts with a certificate that has ended nor takes one up.
#[tokio::test]
async fn expired_certificate_is_never_used() {
    let stage = Stage::set().await;
    let client = stage.authority.client(&stage.url("localhost"));
    let before = client.get("/remuda/v1/status").await["tls"]["ends_at"].clone();
    assert!(before.is_string(), "{before}");
    let (cert, key) = stage.authority.issue("plane", &["localhost"], true);
    let (status, refused) = client.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!(status.as_u16(), 422, "{refused}");
    assert_contains_all(&refused.to_string(), &["ended on 2021-01-01", "renew it"]);
    assert!(stage.is_believed("localhost").await, "the old one stays");
    assert_eq!(client.get("/remuda/v1/status").await["tls"]["ends_at"], before);
    let folder = tempfile::tempdir().unwrap();
    let listen = ["serve", "--data", "data", "--listen", "127.0.0.1:0"];
    let tls = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let (code, said) = run(folder.path(), &[&listen[..], &tls].concat()).await;
    assert_eq!(code, 1, "{said}");
    assert_contains_all(&said, &["ended on 2021-01-01", "tls.cert"]);
}

/// Faults: N9.
#[tokio::test]
async fn certificate_that_ends_soon_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let (cert, key) = authority.issue_for_days("plane", 10);
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let mut plane = Plane::plan(&[]).arguments(&arguments).start().await;
    let line = plane.process.line("certificate ends in").await;
    assert!(line.is_some(), "{}", plane.process.said());
    // A longer one is taken up, and status tells until when.
    let client = authority.client(&format!("https://localhost:{}", plane.address.port()));
    let ends_at = async || client.get("/remuda/v1/status").await["tls"]["ends_at"].clone();
    let before = ends_at().await;
    authority.issue_for_days("plane", 90);
    wait_until("the new certificate is used", async || (ends_at().await != before).then_some(())).await;
}

/// Faults: N9. The certificate is replaced twice, by one that has ended and by a good one, under a worker that runs a job
/// for longer than its lease.
#[tokio::test]
async fn worker_keeps_its_job_while_the_certificate_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::new(folder.path());
    let (cert, key) = authority.issue("plane", &["localhost"], false);
    let arguments = ["--tls-cert", cert.to_str().unwrap(), "--tls-key", key.to_str().unwrap()];
    let plane = Plane::plan(crate::harness::QUICK).arguments(&arguments).start().await;
    let stage = Stage { plane, authority, _folder: folder };
    let client = stage.authority.client(&stage.url("localhost"));
    let gate = crate::harness::Gate::closed(stage.plane.folder(), "gate");
    let mut worker = crate::harness::remuda(stage.plane.folder());
    let command = format!("{}; echo $REMUDA_ATTEMPT", gate.wait());
    let ca = stage.authority.path();
    worker.args([
        "worker",
        "--url",
        &client.url,
        "--ca",
        ca.to_str().unwrap(),
        "--name",
        "a",
        "--exec",
        &command,
    ]);
    let _worker = crate::harness::Process::start("the worker", &mut worker);
    let job = client.submit(json!({ "n": 1 })).await;
    client.runs_on(&job).await;

    stage.authority.issue("plane", &["localhost"], true);
    let (status, refused) = client.post("/remuda/v1/reload", &json!({})).await;
    assert_eq!(status.as_u16(), 422, "{refused}");
    assert!(stage.is_believed("localhost").await, "the one that is valid stays in use");
    stage.authority.issue("plane", &["localhost", "127.0.0.1"], false);
    assert_eq!(client.post("/remuda/v1/reload", &json!({})).await.0.as_u16(), 200);
    assert!(stage.is_believed("127.0.0.1").await);
    // Longer than a lease: the worker's next beats go over new connections, too.
    crate::harness::sleep_for(Duration::from_secs(3)).await;
    gate.open();
    let ended = client.ended(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!(1)), "{ended}");
    let names: Vec<_> = client.history().await.into_iter().map(|event| event.name).collect();
    assert!(!names.iter().any(|name| name == "worker:offline" || name == "job:retrying"), "{names:?}");
}
