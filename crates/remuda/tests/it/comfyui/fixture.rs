//! A fixture of a plane, a ComfyUI server and its worker.

use std::collections::BTreeMap;
use std::ops::Deref;
use std::time::Duration;

use remuda_core::id::{Attempt, JobId};
use remuda_fakes::comfyui::{Counts, Fake, Options};
use reqwest::Method;
use serde_json::{Value, json};

use crate::harness::{Plane, QUICK, Worker, answered, wait_until};

/// Agent timings scaled down, in the same proportions.
pub(crate) const AGENT: &[&str] = &[
    "agent.inactivity=500ms",
    "agent.unknown_recheck=400ms",
    "agent.cancel_timeout=1s",
    "agent.given_up_recheck=300ms",
];

/// Where a real server is, if these tests are to run against one.
fn real() -> Option<String> {
    std::env::var("REMUDA_COMFYUI_URL").ok().filter(|url| !url.is_empty())
}

/// A server that runs workflows.
#[derive(Debug)]
pub(crate) enum Server {
    Fake(Fake),
    Real(String),
}

impl Server {
    /// The real server if there is one, for what every server can do.
    pub(crate) async fn any() -> Server {
        match real() {
            Some(url) => Server::Real(url),
            None => Server::fake(Options::default()).await,
        }
    }

    pub(crate) async fn fake(options: Options) -> Server {
        Server::Fake(Fake::start(options).await.unwrap())
    }

    pub(crate) fn url(&self) -> String {
        match self {
            Server::Fake(fake) => fake.url(),
            Server::Real(url) => url.clone(),
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        self.as_fake().counts()
    }

    pub(crate) fn as_fake(&self) -> &Fake {
        match self {
            Server::Fake(fake) => fake,
            Server::Real(_) => panic!("only the stand-in can do that"),
        }
    }
}

/// One worker on one server.
#[derive(Debug)]
pub(crate) struct ComfyFixture {
    pub(crate) plane: Plane,
    pub(crate) server: Server,
    pub(crate) worker: Worker,
}

impl Deref for ComfyFixture {
    type Target = Plane;

    fn deref(&self) -> &Plane {
        &self.plane
    }
}

impl ComfyFixture {
    /// On a real server, if there is one.
    pub(crate) async fn any() -> ComfyFixture {
        ComfyFixture::on(Server::any().await).await
    }

    /// On a stand-in, whatever there is.
    pub(crate) async fn fake() -> ComfyFixture {
        ComfyFixture::on(Server::fake(Options::default()).await).await
    }

    pub(crate) async fn on(server: Server) -> ComfyFixture {
        ComfyFixture::with(server, &[], &[]).await
    }

    /// With settings and arguments of the worker beside the usual ones; the last of a kind counts.
    pub(crate) async fn with(server: Server, settings: &[&str], more: &[&str]) -> ComfyFixture {
        let plane = Plane::start(&[QUICK, settings].concat()).await;
        let worker = worker(&plane, "w", &server.url(), more).await;
        ComfyFixture { plane, server, worker }
    }

    pub(crate) fn fake_counts(&self) -> Counts {
        self.server.counts()
    }

    /// Runs a workflow to its end.
    pub(crate) async fn run(&self, workflow: Value) -> Value {
        let job = self.submit(workflow).await;
        self.ended(&job).await
    }

    /// Starts another worker of the same name on the same server.
    pub(crate) async fn start_worker_again(&mut self, more: &[&str]) {
        self.worker = worker(&self.plane, "w", &self.server.url(), more).await;
    }

    /// Waits until the server has begun this attempt of the job.
    pub(crate) async fn begun(&self, job: &str, attempt: u32) {
        begun(&self.server, job, attempt).await;
    }

    /// That the server ran the job's first attempt once, and no other.
    pub(crate) async fn ran_once(&self, job: &str) {
        let first = prompt_id(job, 1);
        match &self.server {
            Server::Fake(fake) => {
                let counts = fake.counts();
                assert_eq!(counts.executions.get(&first), Some(&1), "{counts:?}");
                assert_eq!(counts.executions.get(&prompt_id(job, 2)), None, "{counts:?}");
            }
            Server::Real(_) => {
                // It does not say how often it ran an id; but a second run is a second entry, or an attempt of its own.
                assert!(history(&self.plane, &self.server, &first).await.is_some());
                assert!(history(&self.plane, &self.server, &prompt_id(job, 2)).await.is_none());
            }
        }
    }
}

/// Starts a worker on a server. Its name is as no other test has it: a real server remembers.
pub(crate) async fn worker(plane: &Plane, name: &str, url: &str, more: &[&str]) -> Worker {
    let name = format!("{name}-{}", plane.address.port());
    let mut arguments = vec!["--comfyui", url];
    for setting in AGENT {
        arguments.extend(["--set", setting]);
    }
    Worker::start_doing(plane, &name, &[&arguments, more].concat()).await
}

pub(crate) async fn begun(server: &Server, job: &str, attempt: u32) {
    let id = prompt_id(job, attempt);
    let http = remuda_net::http_client::client_builder().build().unwrap();
    wait_until(&format!("the server has begun attempt {attempt} of {job}"), async || match server {
        Server::Fake(fake) => fake.counts().executions.contains_key(&id).then_some(()),
        Server::Real(url) => {
            let queue = http.get(format!("{url}/queue")).send().await.unwrap().text().await.unwrap();
            let running = queue.split("\"queue_pending\"").next().unwrap_or_default().contains(&id);
            running.then_some(())
        }
    })
    .await;
}

/// What a server's history says of a prompt.
pub(crate) async fn history(plane: &Plane, server: &Server, id: &str) -> Option<Value> {
    let request = plane.http.request(Method::GET, format!("{}/history/{id}", server.url()));
    let (_, answer) = answered(request.timeout(Duration::from_secs(10))).await;
    answer.get(id).cloned()
}

/// The id under which an attempt is handed in.
pub(crate) fn prompt_id(job: &str, attempt: u32) -> String {
    job.parse::<JobId>().unwrap().service_job_id(Attempt(attempt))
}

/// How often the servers together began an attempt of this job.
pub(crate) fn executions(servers: &[&Server], job: &str) -> u32 {
    let counts: Vec<BTreeMap<String, u32>> =
        servers.iter().map(|server| server.counts().executions).collect();
    let ids = (1..=50).map(|attempt| prompt_id(job, attempt));
    ids.map(|id| counts.iter().filter_map(|executions| executions.get(&id)).sum::<u32>()).sum()
}

/// That the job was completed in its first attempt, by whatever detours.
pub(crate) fn completed_at_once(job: &Value) {
    let is = (&job["state"], &job["attempt"], &job["infra_failures"]);
    assert_eq!(is, (&json!("completed"), &json!(1), &json!(0)), "{job}");
}

/// That the job was completed after one attempt was lost through no fault of its own.
pub(crate) fn completed_after_a_mishap(job: &Value) {
    let is = (&job["state"], &job["attempt"], &job["infra_failures"], &job["failures"]);
    assert_eq!(is, (&json!("completed"), &json!(2), &json!(1), &json!(0)), "{job}");
}

/// The files that a job gave: their names, and what is in them.
pub(crate) async fn files(plane: &Plane, job: &Value) -> Vec<(String, Vec<u8>)> {
    let mut files = Vec::new();
    for output in job["result"]["outputs"].as_array().unwrap() {
        let path = format!("/remuda/v1/blobs/{}", output["hash"].as_str().unwrap());
        let answer = plane.request(Method::GET, &path).send().await.unwrap();
        assert!(answer.status().is_success(), "{path}: {}", answer.status());
        let content = answer.bytes().await.unwrap().to_vec();
        assert_eq!(output["size_bytes"], content.len(), "{output}");
        files.push((output["name"].as_str().unwrap().to_owned(), content));
    }
    files
}

/// That the job gave one picture, whole.
pub(crate) async fn gave_a_picture(plane: &Plane, job: &Value) {
    assert_eq!(job["state"], "completed", "{job}");
    let files = files(plane, job).await;
    assert_eq!(files.len(), 1, "{job}");
    let (name, content) = &files[0];
    assert!(name.ends_with(".png"), "{name}");
    assert!(
        content.starts_with(b"\x89PNG") && content.ends_with(b"IEND\xaeB`\x82"),
        "{name} is no whole picture"
    );
}

/// Waits until the service has said this of the job's attempt, when it was asked.
pub(crate) async fn until_seen(plane: &Plane, job: &str, status: &str) {
    wait_until(&format!("{job} was seen as {status}"), async || {
        let why = plane.why(job).await;
        let last = why["attempts"].as_array().and_then(|attempts| attempts.last().cloned())?;
        (last["service"]["service_status"] == status).then_some(())
    })
    .await;
}

/// Waits until the job's worker has told that more than this much of it is done.
pub(crate) async fn until_progress(plane: &Plane, job: &str, more_than: f64) {
    wait_until(&format!("{more_than} of {job} is done"), async || {
        let workers = plane.get("/remuda/v1/workers").await;
        let mut holds =
            workers["workers"].as_array()?.iter().flat_map(|worker| worker["holds"].as_array().unwrap());
        holds.find(|hold| hold["job"] == job && hold["progress"].as_f64() > Some(more_than)).map(|_| ())
    })
    .await;
}

/// Why the job's attempt ended as it did, for people.
pub(crate) async fn verdict(plane: &Plane, job: &str, attempt: usize) -> String {
    plane.why(job).await["attempts"][attempt - 1]["message"].as_str().unwrap().to_owned()
}

/// Waits until the worker takes new work, or does not.
pub(crate) async fn until_open(plane: &Plane, worker: &Worker, is_open: bool) -> String {
    let what = format!("{} is {}", worker.name, if is_open { "open" } else { "closed" });
    wait_until(&what, async || {
        let closed =
            plane.worker(&worker.name).await["unavailable_reason"].as_str().unwrap_or_default().to_owned();
        (closed.is_empty() == is_open).then_some(closed)
    })
    .await
}

/// Waits until the server has nothing to do any more.
pub(crate) async fn until_idle(server: &Server) {
    let http = remuda_net::http_client::client_builder().build().unwrap();
    wait_until("the server is idle", async || {
        let (_, answer) = answered(http.get(format!("{}/prompt", server.url()))).await;
        (answer["exec_info"]["queue_remaining"] == 0).then_some(())
    })
    .await;
}
