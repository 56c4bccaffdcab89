//! `remuda::WorkflowPool`: the library form, with servers that fail and programs that end as programs do.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use remuda::{
    ComfyuiServer, EnqueueOptions, EventFilter, JobError, JobHandle, JobOutputError, WorkflowPool,
    WorkflowPoolBuildError, WorkflowPoolBuilder, WorkflowPoolError,
};
use remuda_core::cause::Cause;
use remuda_core::id::Attempt;
use remuda_core::workflow::reads;
use remuda_fakes::comfyui::{Fake, Options as FakeOptions};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::harness::{WAIT_MAX, free_address, wait_until};

pub(crate) async fn fake() -> Fake {
    Fake::start(FakeOptions::default()).await.unwrap()
}

pub(crate) async fn instant_fake() -> Fake {
    Fake::start(FakeOptions { speed: f64::INFINITY, ..FakeOptions::default() }).await.unwrap()
}

/// A pool in a hurry, in the proportions of a patient one.
pub(crate) fn hurried() -> WorkflowPoolBuilder {
    WorkflowPool::builder().retry_delay(Duration::from_millis(50)).cooldown(Duration::from_millis(300)).set(
        |it| {
            it.settings.beat_busy = Duration::from_millis(200);
            it.settings.lease = Duration::from_secs(2);
            it.settings.suspect_after = Duration::from_millis(600);
            it.settings.order_grace = Duration::from_millis(500);
            it.agent.inactivity = Duration::from_millis(500);
            it.agent.unknown_recheck = Duration::from_millis(400);
            it.agent.given_up_recheck = Duration::from_millis(300);
            it.agent.cancel_timeout = Duration::from_secs(1);
        },
    )
}

pub(crate) fn picture(color: u64) -> Value {
    json!({
        "1": { "class_type": "EmptyImage", "inputs": { "width": 16, "height": 16, "batch_size": 1, "color": color } },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "picture" } },
    })
}

/// Takes `seconds`, shows previews, and counts to ten.
pub(crate) fn slow(color: u64, seconds: f64) -> Value {
    let mut graph = picture(color);
    graph["2"]["inputs"]["images"] = json!(["3", 0]);
    let inputs = json!({ "image": ["1", 0], "seconds": seconds, "steps": 10, "preview": true });
    graph["3"] = json!({ "class_type": "RemudaSleep", "inputs": inputs });
    graph
}

pub(crate) async fn enqueue(pool: &WorkflowPool, workflow: Value) -> JobHandle {
    pool.enqueue(workflow, EnqueueOptions::new()).await.unwrap()
}

pub(crate) async fn until_online(pool: &WorkflowPool, workers: usize) {
    wait_until(&format!("{workers} workers are online"), async || {
        (pool.stats().await.unwrap().workers_online == workers).then_some(())
    })
    .await;
}

/// How often the servers together began an attempt of this job.
fn begun(servers: &[&Fake], job: &JobHandle) -> u32 {
    let ids = (1..=20).map(|attempt| job.id().service_job_id(Attempt(attempt)));
    let counts: Vec<_> = servers.iter().map(|server| server.counts().executions).collect();
    ids.map(|id| counts.iter().filter_map(|executions| executions.get(&id)).sum::<u32>()).sum()
}

pub(crate) async fn until_begun(server: &Fake, job: &JobHandle) {
    wait_until("the server has begun it", async || (begun(&[server], job) > 0).then_some(())).await;
}

fn is_picture(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG") && bytes.ends_with(b"IEND\xaeB`\x82")
}

#[tokio::test]
async fn workflow_returns_image() {
    let server = instant_fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let outcome = enqueue(&pool, picture(1)).await.await.unwrap();
    assert_eq!((outcome.attempts, outcome.outputs.len()), (1, 1));
    let output = &outcome.outputs[0];
    assert_eq!((output.node.as_str(), output.media.as_str()), ("2", "image/png"));
    let bytes = output.bytes().await.unwrap();
    assert!(is_picture(&bytes) && bytes.len() as u64 == output.size_bytes);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(&output.name);
    assert_eq!(output.save_to(&path).await.unwrap(), output.size_bytes);
    assert_eq!(std::fs::read(&path).unwrap(), bytes);

    let text = picture(2).to_string();
    std::fs::write(folder.path().join("workflow.json"), &text).unwrap();
    pool.enqueue(text.as_str(), EnqueueOptions::new()).await.unwrap().await.unwrap();
    let file = folder.path().join("workflow.json");
    pool.enqueue(file.as_path(), EnqueueOptions::new()).await.unwrap().await.unwrap();
    let stats = pool.stats().await.unwrap();
    assert_eq!((stats.completed, stats.queued, stats.running, stats.workers_online), (3, 0, 0, 1));

    pool.shutdown().await.unwrap();
    assert!(matches!(output.bytes().await, Err(JobOutputError::Stopped)));
    let late = pool.enqueue(picture(3), EnqueueOptions::new()).await;
    assert!(matches!(late, Err(WorkflowPoolError::Stopped)), "{late:?}");
    pool.shutdown().await.unwrap();
}

/// Plane and worker are in this thread, so their reads are counted together.
#[tokio::test]
async fn workflow_is_read_once_by_the_plane_and_once_by_the_worker() {
    let server = instant_fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    until_online(&pool, 1).await;
    let before = reads();
    enqueue(&pool, picture(1)).await.await.unwrap();
    assert_eq!(reads() - before, 2);
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn attachment_is_sent_and_unused_name_is_refused() {
    let server = instant_fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let made = enqueue(&pool, picture(1)).await.await.unwrap().outputs[0].bytes().await.unwrap();
    let workflow = json!({
        "1": { "class_type": "LoadImage", "inputs": { "image": "photo.png" } },
        "2": { "class_type": "SaveImage", "inputs": { "images": ["1", 0], "filename_prefix": "again" } },
    });
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.png");
    std::fs::write(&path, &made).unwrap();
    for options in [
        EnqueueOptions::new().attach("photo.png", made.clone()),
        EnqueueOptions::new().attach("photo.png", path.as_path()),
    ] {
        let outcome = pool.enqueue(&workflow, options).await.unwrap().await.unwrap();
        assert!(is_picture(&outcome.outputs[0].bytes().await.unwrap()));
    }
    for (options, said) in [
        (EnqueueOptions::new().attach("other.png", made), "other.png"),
        (EnqueueOptions::new().attach("photo.png", Path::new("/nowhere/x.png")), "/nowhere/x.png"),
    ] {
        let refused = pool.enqueue(&workflow, options).await.unwrap_err();
        assert!(matches!(&refused, WorkflowPoolError::Invalid(why) if why.contains(said)), "{refused}");
    }
    pool.shutdown().await.unwrap();
}

/// Faults: V1.
#[tokio::test]
async fn two_hundred_instant_jobs_complete_exactly_once() {
    let servers = [instant_fake().await, instant_fake().await];
    let pool = hurried().comfyui(servers[0].url()).comfyui(servers[1].url()).build().await.unwrap();
    let told = Arc::new(Mutex::new(Vec::new()));
    let (heard, telling) = (told.clone(), told.clone());
    pool.on("job:completed", move |event| telling.lock().unwrap().push(event.job.unwrap()));
    let mut jobs = Vec::new();
    for color in 0..200 {
        jobs.push(enqueue(&pool, picture(color)).await);
    }
    let ids: BTreeSet<_> = jobs.iter().map(JobHandle::id).collect();
    for job in &jobs {
        let outcome = job.outcome().await.unwrap();
        assert_eq!((outcome.outputs.len(), outcome.attempts), (1, 1));
        assert_eq!(begun(&[&servers[0], &servers[1]], job), 1);
    }
    assert_eq!(ids.len(), 200);
    wait_until("every end was told", async || (heard.lock().unwrap().len() >= 200).then_some(())).await;
    let told = told.lock().unwrap().clone();
    assert_eq!((told.len(), told.into_iter().collect::<BTreeSet<_>>()), (200, ids));
    assert!(servers.iter().all(|server| server.counts().prompts_accepted > 10), "both took their share");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn absent_server_delays_nothing_and_joins_later() {
    let server = instant_fake().await;
    let absent = free_address();
    let began = Instant::now();
    let pool = hurried().comfyui(format!("http://{absent}")).comfyui(server.url()).build().await.unwrap();
    enqueue(&pool, picture(1)).await.await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    let workers = pool.workers().await.unwrap();
    let is_online: Vec<_> = workers.iter().map(|worker| worker.is_online).collect();
    assert_eq!(is_online, [false, true], "{workers:?}");
    assert!(!workers[0].reason.is_empty());

    let options = FakeOptions { listen: absent, speed: f64::INFINITY, ..FakeOptions::default() };
    let late = Fake::start(options).await.unwrap();
    until_online(&pool, 2).await;
    let name = pool.workers().await.unwrap()[0].worker.clone();
    let outcome =
        pool.enqueue(picture(2), EnqueueOptions::new().pin(name.clone())).await.unwrap().await.unwrap();
    assert_eq!(outcome.worker, name);
    assert_eq!(late.counts().successes.len(), 2, "the check and the job");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn killed_server_moves_job() {
    let servers = [fake().await, fake().await];
    let pool = hurried().comfyui(servers[0].url()).comfyui(servers[1].url()).build().await.unwrap();
    until_online(&pool, 2).await;
    let first = pool.workers().await.unwrap()[0].worker.clone();
    let job = pool.enqueue(slow(1, 2.0), EnqueueOptions::new().prefer(first.clone())).await.unwrap();
    until_begun(&servers[0], &job).await;
    servers[0].kill().await;
    let outcome = job.await.unwrap();
    assert!(outcome.worker != first && outcome.attempts == 2, "{outcome:?}");
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn cancelled_job_never_runs_and_ended_job_stays() {
    let server = fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let running = enqueue(&pool, slow(1, 60.0)).await;
    until_begun(&server, &running).await;
    let waiting = enqueue(&pool, picture(2)).await;
    waiting.cancel().await.unwrap();
    running.cancel().await.unwrap();
    for job in [&running, &waiting] {
        let ended = job.outcome().await;
        assert!(matches!(ended, Err(JobError::Cancelled { .. })), "{ended:?}");
        assert!(matches!(job.cancel().await, Err(WorkflowPoolError::Ended { state: "cancelled" })));
    }
    enqueue(&pool, picture(3)).await.await.unwrap();
    assert_eq!(begun(&[&server], &waiting), 0);
    let unknown = remuda_core::id::JobId::from_u128(7);
    assert!(matches!(pool.cancel(unknown).await, Err(WorkflowPoolError::Unknown(id)) if id == unknown));
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn progress_previews_outputs_and_events_are_live() {
    let server = fake().await;
    let pool = hurried().comfyui(server.url()).build().await.unwrap();
    let mine = EventFilter::new().name("job").metadata("user", "anna");
    let mut events = Box::pin(pool.events(mine));
    let other = pool.enqueue(picture(1), EnqueueOptions::new().metadata("user", "otto")).await.unwrap();
    other.await.unwrap();
    let mut workflow = slow(2, 2.0);
    let early = json!({ "images": ["1", 0], "filename_prefix": "early" });
    workflow["4"] = json!({ "class_type": "SaveImage", "inputs": early });
    let job = pool.enqueue(workflow, EnqueueOptions::new().metadata("user", "anna")).await.unwrap();
    let progress = tokio::spawn(job.progress().collect::<Vec<_>>());
    let previews = tokio::spawn(job.previews().collect::<Vec<_>>());
    let outcome = job.clone().await.unwrap();

    let progress = progress.await.unwrap();
    assert!(progress.len() > 3 && progress.is_sorted_by(|a, b| a.value <= b.value), "{progress:?}");
    assert!(
        progress.iter().any(|it| it.current_node_class.as_deref() == Some("RemudaSleep")),
        "{progress:?}"
    );
    let previews = previews.await.unwrap();
    assert!(!previews.is_empty());
    assert!(previews.iter().all(|it| !it.bytes.is_empty() && it.node.as_deref() == Some("3")));
    assert_eq!((outcome.outputs.len(), job.outputs().len()), (2, 2));

    let mut names = Vec::new();
    while names.last().map(String::as_str) != Some("job:completed") {
        let event = events.next().await.unwrap();
        assert_eq!((event.job, &event.metadata["user"]), (Some(job.id()), &json!("anna")), "{event:?}");
        if event.name == "job:progress" {
            assert!(event.detail["value"].is_f64(), "{event:?}");
        }
        names.push(event.name);
    }
    assert_eq!(&names[..2], ["job:queued", "job:started"]);
    for live in ["job:progress", "job:preview"] {
        assert!(names.iter().any(|name| name == live), "{live} in {names:?}");
    }
    pool.shutdown().await.unwrap();
    assert!(events.next().await.is_none(), "the stream ends with the pool");
}

/// Faults: C9.
#[tokio::test]
async fn late_reader_misses_no_stored_event() {
    // More than the live buffer holds, of jobs that no worker can run.
    const JOBS: usize = 2_200;
    let pool = hurried().comfyui(format!("http://{}", free_address())).build().await.unwrap();
    let mut events = Box::pin(pool.events(EventFilter::new().name("job")));
    let mut expected = Vec::new();
    for color in 0..JOBS {
        let job = enqueue(&pool, picture(color as u64)).await;
        job.cancel().await.unwrap();
        expected.extend([("job:queued".to_owned(), job.id()), ("job:cancelled".to_owned(), job.id())]);
    }
    let mut heard = Vec::new();
    while heard.len() < expected.len() {
        let event =
            tokio::time::timeout(WAIT_MAX, events.next()).await.expect("an event should come").unwrap();
        heard.push((event.name, event.job.unwrap()));
    }
    assert!(heard == expected, "in order, and each once");
    assert_eq!(pool.stats().await.unwrap().cancelled, JOBS as u64);
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn failed_job_names_cause() {
    let server = instant_fake().await;
    let pool = hurried().comfyui(server.url()).max_attempts(2).build().await.unwrap();
    let mut workflow = picture(1);
    workflow["2"]["inputs"]["images"] = json!(["3", 0]);
    let inputs = json!({ "image": ["1", 0], "kind": "error" });
    workflow["3"] = json!({ "class_type": "RemudaFail", "inputs": inputs });
    let (sender, mut blocked) = mpsc::unbounded_channel();
    pool.on("client:blocked_workflow", move |event| drop(sender.send(event)));
    let failed = enqueue(&pool, workflow).await.await.unwrap_err();
    assert!(matches!(&failed, JobError::Failed { cause: Cause::Job, attempts: 1, .. }), "{failed:?}");
    let event = blocked.recv().await.unwrap();
    assert_eq!(event.worker, Some(pool.workers().await.unwrap()[0].worker.clone()));
    let loose = json!({ "1": { "class_type": "SaveImage", "inputs": { "images": ["9", 0] } } });
    let refused = pool.enqueue(loose, EnqueueOptions::new()).await;
    assert!(matches!(refused, Err(WorkflowPoolError::Invalid(_))), "{refused:?}");
    pool.shutdown().await.unwrap();
}

/// Faults: C1.
#[tokio::test]
async fn pool_resumes_from_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = fake().await;
    let build = || hurried().comfyui(server.url()).sqlite(folder.path()).build();
    let pool = build().await.unwrap();
    let running = enqueue(&pool, slow(0, 1.0)).await;
    until_begun(&server, &running).await;
    let mut waiting = Vec::new();
    for color in 1..=20 {
        waiting.push(enqueue(&pool, picture(color)).await);
    }
    pool.shutdown().await.unwrap();
    assert_eq!(running.outcome().await.unwrap().attempts, 1, "what ran was let finish");
    let left: Vec<_> = waiting.iter().map(JobHandle::id).collect();
    let ended = waiting[19].outcome().await;
    assert!(matches!(ended, Err(JobError::Stopped)), "{ended:?}");

    // Also after a pool that was simply dropped, with a job under way.
    let pool = build().await.unwrap();
    let under_way = enqueue(&pool, slow(21, 1.0)).await;
    until_begun(&server, &under_way).await;
    drop(pool);
    let ended = under_way.outcome().await;
    assert!(matches!(ended, Err(JobError::Stopped)), "{ended:?}");

    let pool = build().await.unwrap();
    for id in left.into_iter().chain([running.id(), under_way.id()]) {
        let job = pool.job(id).await.unwrap();
        let outcome = job.outcome().await.unwrap();
        assert_eq!(outcome.outputs.len(), 1);
        assert!(is_picture(&outcome.outputs[0].bytes().await.unwrap()));
        assert_eq!(begun(&[&server], &job), 1, "{id} was run once");
    }
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn unfinished_job_reruns_in_next_pool() {
    let folder = tempfile::tempdir().unwrap();
    let server = fake().await;
    let build = || hurried().comfyui(server.url()).sqlite(folder.path()).build();
    let pool = build().await.unwrap();
    let long = enqueue(&pool, slow(1, 3.0)).await;
    until_begun(&server, &long).await;
    let began = Instant::now();
    pool.shutdown_within(Duration::from_millis(100)).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let pool = build().await.unwrap();
    let outcome = pool.job(long.id()).await.unwrap().await.unwrap();
    assert_eq!(outcome.outputs.len(), 1);
    pool.shutdown().await.unwrap();
}

#[tokio::test]
async fn pools_share_server_but_not_folder() {
    let folder = tempfile::tempdir().unwrap();
    let server = fake().await;
    let pools = [
        hurried().comfyui(server.url()).build().await.unwrap(),
        hurried().comfyui(server.url()).sqlite(folder.path()).build().await.unwrap(),
    ];
    let jobs = [enqueue(&pools[0], slow(1, 0.5)).await, enqueue(&pools[1], slow(2, 0.5)).await];
    let third = hurried().comfyui(server.url()).build().await.unwrap();
    enqueue(&third, picture(3)).await.await.unwrap();
    for job in jobs {
        assert_eq!(job.outcome().await.unwrap().attempts, 1);
        assert_eq!(begun(&[&server], &job), 1);
    }
    let same = hurried().comfyui(server.url()).sqlite(folder.path()).build().await;
    assert!(matches!(same, Err(WorkflowPoolBuildError::InUse { .. })), "{same:?}");
    for pool in pools.iter().chain([&third]) {
        pool.shutdown().await.unwrap();
    }
}

#[tokio::test]
async fn invalid_pool_explains_what_to_do() {
    let none = WorkflowPool::builder().build().await.unwrap_err();
    assert!(matches!(none, WorkflowPoolBuildError::NoServer), "{none}");
    let address = WorkflowPool::builder().comfyui("not an address").build().await.unwrap_err();
    assert!(
        matches!(&address, WorkflowPoolBuildError::Address { url, .. } if url == "not an address"),
        "{address}"
    );
    let name = || "one".parse().unwrap();
    let twice = WorkflowPool::builder()
        .comfyui(ComfyuiServer::new("http://127.0.0.1:1").name(name()))
        .comfyui(ComfyuiServer::new("http://127.0.0.1:2").name(name()))
        .build()
        .await
        .unwrap_err();
    assert!(matches!(&twice, WorkflowPoolBuildError::SameName(worker) if *worker == name()), "{twice}");
    let unwritable =
        WorkflowPool::builder().comfyui("http://127.0.0.1:1").sqlite("/proc/nowhere").build().await;
    assert!(matches!(unwritable, Err(WorkflowPoolBuildError::Start { .. })), "{unwritable:?}");
}

#[tokio::test]
async fn affinity_excludes_server() {
    let servers = [instant_fake().await, instant_fake().await];
    let pool = hurried().comfyui(servers[0].url()).comfyui(servers[1].url()).build().await.unwrap();
    until_online(&pool, 2).await;
    let workers = pool.workers().await.unwrap();
    pool.set_affinity(picture(1), [], [workers[0].worker.clone()]).await.unwrap();
    for color in 2..8 {
        assert_eq!(enqueue(&pool, picture(color)).await.await.unwrap().worker, workers[1].worker);
    }
    pool.shutdown().await.unwrap();
}
