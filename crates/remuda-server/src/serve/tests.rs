mod workflow_reads;

use remuda_core::settings::Settings;
use serde_json::Value;

use super::*;

/// Faults: C6.
#[tokio::test]
async fn event_loop_that_panics_ends_the_program() {
    let store = Store::open("memory:").await.unwrap();
    let effects = EffectRunner::new(WorkflowCache::default(), mpsc::unbounded_channel().0);
    let (plane, _) = EventLoop::start(store.clone(), Settings::default(), effects).await.unwrap();
    let (stop, mut stopping) = watch::channel(false);
    let tasks = Supervisor::new(stopping.clone(), RestartPolicy::default());
    let event_loop = tokio::spawn(async { panic!("a rule was broken") });
    let error = MainTask { event_loop, tasks, store }.run(plane, stop).await.unwrap_err();
    assert_eq!(error.to_string(), "the event loop panicked");
    stopped(&mut stopping).await;
}

async fn start() -> (tempfile::TempDir, Serving) {
    let folder = tempfile::tempdir().unwrap();
    let mut resolved = ResolvedConfig::defaults(folder.path().to_path_buf());
    resolved.serve.listen.set_port(0);
    let serving = Serving::start(&resolved).await.unwrap();
    (folder, serving)
}

async fn get(serving: &Serving, path: &str) -> (u16, Value) {
    let http = remuda_net::http_client::client_builder().build().unwrap();
    let response = http.get(format!("{}{path}", serving.url())).send().await.unwrap();
    (response.status().as_u16(), response.json().await.unwrap())
}

/// Faults: C6.
#[tokio::test]
async fn background_task_that_is_down_makes_the_plane_unready_and_is_named() {
    let (_folder, serving) = start().await;
    assert_eq!(get(&serving, "/health/ready").await.0, 200);
    let never = RestartPolicy { restarts_max: 0, ..RestartPolicy::default() };
    let tasks = serving.context.tasks.clone().with_policy(never);
    tasks.spawn("broken", "panics in this test", |_| async { panic!("a rule was broken") });
    tasks.ended("broken").await;
    let (status, answer) = get(&serving, "/health/ready").await;
    assert_eq!((status, &answer["tasks_down"]), (503, &serde_json::json!(["broken"])), "{answer}");
    assert!(answer["reason"].as_str().unwrap().contains("broken"), "{answer}");
    assert_eq!(get(&serving, "/health/live").await.0, 200, "the event loop runs");
    let (_, status) = get(&serving, "/remuda/v1/status").await;
    let names: Vec<_> = status["tasks"].as_array().unwrap().iter().map(|it| it["name"].clone()).collect();
    let expected = [
        "blob_sweep",
        "broken",
        "comfyui_publisher",
        "fleets",
        "folder_watch",
        "http",
        "job_watch",
        "listener_check",
        "number_sampler",
        "retention",
        "webhooks",
    ];
    assert_eq!(names, expected, "{status}");
    let broken = &status["tasks"][1];
    assert_eq!((&broken["state"], &broken["restarts"]), (&Value::from("down"), &Value::from(0)));
    assert_eq!(broken["last_failure"], "panicked: a rule was broken");
    serving.stop().await.unwrap();
}
