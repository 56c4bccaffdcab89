//! A machine whose clock is wrong by years, at the start of a plane or while it runs (libfaketime).

use std::path::{Path, PathBuf};
use std::time::Duration;

use remuda_core::time::Timestamp;
use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Client, Gate, Plan, Plane, QUICK, Worker, assert_contains_all, wait_until};
use crate::webhooks::{HERE, Receiver};

const FIFTY_YEARS: i64 = 50 * 365 * 24 * 3600;
/// What a busy machine may need between two looks at the clock.
const SLACK: Duration = Duration::from_secs(120);
const HOUR: Duration = Duration::from_secs(3600);

/// The clock of a process, as an offset in a file that libfaketime reads at every look.
struct FakeClock {
    library: PathBuf,
    folder: tempfile::TempDir,
}

impl FakeClock {
    /// Without libfaketime the test is skipped.
    fn ahead(seconds: i64) -> Option<FakeClock> {
        let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
        let found = folders.iter().map(|folder| Path::new(folder).join("faketime/libfaketime.so.1"));
        let Some(library) = found.into_iter().find(|path| path.exists()) else {
            remuda_testkit::skip("libfaketime");
            return None;
        };
        let clock = FakeClock { library, folder: tempfile::tempdir().unwrap() };
        clock.set_ahead(seconds);
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }

    fn set_ahead(&self, seconds: i64) {
        // In one step, so that no look at the clock finds half a number.
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
        std::fs::rename(&new, self.file()).unwrap();
    }

    fn plan(&self, settings: &[&str]) -> Plan {
        Plane::plan(settings)
            .variable("LD_PRELOAD", &self.library.display().to_string())
            .variable("FAKETIME_TIMESTAMP_FILE", &self.file().display().to_string())
            .variable("FAKETIME_NO_CACHE", "1")
            // Timers go by the monotonic clock, which no operator can set.
            .variable("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }
}

fn true_time() -> Timestamp {
    Timestamp::ZERO.plus(std::time::UNIX_EPOCH.elapsed().unwrap())
}

/// Whether a shown time is `ahead` of the true one; dates compare as texts do.
fn is_ahead_by(shown: &Value, ahead: Duration) -> bool {
    let at = true_time().plus(ahead);
    let (from, until) = (at.minus(SLACK).to_string(), at.plus(SLACK).to_string());
    shown.as_str().is_some_and(|shown| *from <= *shown && *shown <= *until)
}

fn assert_ahead_by(shown: &Value, ahead: Duration) {
    assert!(is_ahead_by(shown, ahead), "{shown} is not {ahead:?} after {}", true_time());
}

async fn clock_events(plane: &Client) -> Vec<Value> {
    let events = plane.history().await;
    events.into_iter().map(|event| event.data).filter(|event| event["name"] == "plane:clock").collect()
}

/// Faults: K1, C21.
#[tokio::test]
async fn plane_that_first_started_fifty_years_ahead_returns_to_the_true_time() {
    let Some(clock) = FakeClock::ahead(FIFTY_YEARS) else { return };
    let mut plane = clock.plan(&[QUICK, &[HERE]].concat()).start().await;
    let years = Duration::from_secs(FIFTY_YEARS.cast_unsigned());
    let wanted = json!({ "role": "admin", "name": "boss", "expires_seconds": 3600 });
    let (status, token) = plane.post("/remuda/v1/tokens", &wanted).await;
    assert_eq!(status, StatusCode::CREATED, "{token}");
    let boss = plane.with(token["token"].as_str().unwrap());
    assert_ahead_by(&boss.get("/remuda/v1/status").await["now"], years);

    let receiver = Receiver::start(&[StatusCode::SERVICE_UNAVAILABLE; 2]).await;
    let hook = json!({ "url": receiver.url(), "secret": "hush" });
    let cancelled = boss.submit_as(json!({ "workflow": { "n": 1 }, "webhook": hook, "tenant": "t" })).await;
    boss.cancel(&cancelled).await;
    let waiting =
        boss.submit_as(json!({ "workflow": { "n": 2 }, "deadline_seconds": 3600, "tenant": "t" })).await;
    assert_ahead_by(&boss.job(&waiting).await["accepted_at"], years);
    receiver.until(1).await;
    assert!(plane.stop().await.success());

    clock.set_ahead(0);
    plane.start_again().await;
    assert_ahead_by(&boss.get("/remuda/v1/status").await["now"], Duration::ZERO);
    let job = boss.job(&waiting).await;
    assert_ahead_by(&job["accepted_at"], Duration::ZERO);
    assert_ahead_by(&job["deadline"], HOUR);
    assert_ahead_by(&boss.job(&cancelled).await["changed_at"], Duration::ZERO);
    let tokens = boss.get("/remuda/v1/tokens").await;
    assert_ahead_by(&tokens["tokens"][0]["expires_at"], HOUR);
    let told = receiver.until(2).await;
    let signature = told.last().unwrap().0["remuda-signature"].to_str().unwrap().to_owned();
    let signed: u64 = signature.strip_prefix("t=").unwrap().split(',').next().unwrap().parse().unwrap();
    let signed = Timestamp::from_millis(signed * 1000);
    assert!(signed.apart(true_time()) < SLACK, "{signature} at {}", true_time());

    let later = boss.submit_as(json!({ "workflow": { "n": 3 }, "tenant": "t" })).await;
    let listed: Vec<_> = boss.jobs().await.iter().map(|job| job["id"].clone()).collect();
    assert_eq!(
        listed,
        [&later, &waiting, &cancelled].map(|job| json!(job)),
        "newest first, as they were accepted"
    );
    let events = clock_events(&boss).await;
    assert_eq!(events.len(), 1, "{events:?}");
    assert_ahead_by(&events[0]["detail"]["from"], years);
    assert_ahead_by(&events[0]["detail"]["to"], Duration::ZERO);
    assert_contains_all(&plane.process.said(), &["stored times set back", "clock jumped"]);

    // The next start is an ordinary one.
    plane.kill();
    plane.start_again().await;
    assert_eq!(clock_events(&boss).await.len(), 1);
    assert_ahead_by(&boss.job(&waiting).await["deadline"], HOUR);
    assert_eq!(boss.job(&waiting).await["state"], "queued");
}

/// Faults: K1, C21.
#[tokio::test]
async fn clock_that_is_fifty_years_ahead_at_a_later_start_is_reported_and_not_followed() {
    let Some(clock) = FakeClock::ahead(0) else { return };
    let mut plane = clock.plan(QUICK).start().await;
    let job = plane.submit_as(json!({ "workflow": { "n": 1 }, "deadline_seconds": 3600 })).await;
    assert!(plane.stop().await.success());
    clock.set_ahead(FIFTY_YEARS);
    plane.start_again().await;
    let status = plane.get("/remuda/v1/status").await;
    assert_ahead_by(&status["now"], Duration::ZERO);
    assert_contains_all(
        status["clock"]["problem"].as_str().unwrap(),
        &["18250 days ahead", "trust_clock=true"],
    );
    let ready = plane.get("/health/ready").await;
    assert_eq!((&ready["ready"], &ready["clock"]), (&json!(true), &status["clock"]["problem"]));
    assert_eq!(clock_events(&plane).await.len(), 1);
    assert_eq!(plane.job(&job).await["state"], "queued");
    let _worker = Worker::start(&plane, "w", "echo 1").await;
    assert_eq!(plane.ended(&job).await["state"], "completed");
}

/// Faults: K1.
#[tokio::test]
async fn clock_that_is_set_right_while_the_plane_runs_is_followed() {
    let Some(clock) = FakeClock::ahead(FIFTY_YEARS) else { return };
    let mut plane = clock.plan(QUICK).start().await;
    let gate = Gate::closed(plane.folder(), "gate");
    let _worker = Worker::start(&plane, "w", &format!("{}; echo 1", gate.wait())).await;
    let job = plane.submit(json!({ "n": 1 })).await;
    plane.runs_on(&job).await;
    clock.set_ahead(0);
    wait_until("the plane's time is right", async || {
        let status = plane.request(reqwest::Method::GET, "/remuda/v1/status").send().await.ok()?;
        let status: Value = status.json().await.ok()?;
        is_ahead_by(&status["now"], Duration::ZERO).then_some(())
    })
    .await;
    assert!(!plane.process.has_ended(), "the process is the same");
    gate.open();
    let ended = plane.ended(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(1)), "{ended}");
    let events = clock_events(&plane).await;
    assert_eq!(events.len(), 2, "that it was set, and that the plane followed: {events:?}");
    assert_contains_all(&plane.process.said(), &["the plane starts again to take its time"]);
}
