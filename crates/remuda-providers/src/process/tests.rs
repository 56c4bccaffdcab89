mod child;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_core::provider::{PodStatus, ProviderErrorClass};
use tempfile::TempDir;

use super::*;
use crate::contract::{Account, passes_the_contract};

/// Longer than any pod of these tests needs.
const WAIT_MAX: Duration = Duration::from_secs(20);

/// A folder that also contains files that are not pods.
struct Fixture(TempDir);

impl Account for Fixture {
    fn open(&self) -> Box<dyn Provider> {
        Box::new(process(self.0.path(), WAITS))
    }

    fn offers(&self) -> Vec<String> {
        vec![OFFER.to_owned()]
    }
}

async fn fixture() -> Fixture {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.path().join("models")).unwrap();
    fs::write(folder.path().join("remuda-0a1b2c3d-gpus-7.log"), "of one that is gone").unwrap();
    Fixture(folder)
}

passes_the_contract!(fixture);

/// Prints a line and waits wait_until it is stopped.
const WAITS: &str = "echo here; exec sleep 600";
const IGNORES_TERM: &str = "trap '' TERM; echo here; while :; do sleep 0.1; done";

fn process(folder: &Path, script: &str) -> ProcessProvider {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    ProcessProvider::open(ProcessSettings {
        stop_grace: Duration::from_millis(300),
        price: Some("0.5".parse().unwrap()),
        ..ProcessSettings::new(command, folder.to_owned())
    })
    .unwrap()
}

fn order(tag: &str) -> RentOrder {
    RentOrder {
        machine: "gpu-1".parse().unwrap(),
        tag: tag.to_owned(),
        offer: OFFER.to_owned(),
        environment: BTreeMap::from([("REMUDA_TOKEN".to_owned(), "canary".to_owned())]),
    }
}

fn id(tag: &str) -> PodId {
    tag.parse().unwrap()
}

async fn statuses(process: &ProcessProvider) -> Vec<(String, PodStatus)> {
    process.list().await.unwrap().into_iter().map(|pod| (pod.tag, pod.status)).collect()
}

/// Polls until the condition holds.
async fn wait_until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let looking = async {
        while !is_so().await {
            looks.tick().await;
        }
    };
    assert!(tokio::time::timeout(WAIT_MAX, looking).await.is_ok(), "not within {WAIT_MAX:?}: {what}");
}

async fn until_it_says(folder: &Path, tag: &str, what: &str) {
    let log = folder.join(format!("{tag}.log"));
    wait_until(what, async || fs::read_to_string(&log).is_ok_and(|log| log.contains(what))).await;
}

fn record(folder: &Path, tag: &str) -> Record {
    Records::open(folder.to_owned()).unwrap().read(&id(tag)).unwrap().unwrap()
}

fn pid(folder: &Path, tag: &str) -> i32 {
    record(folder, tag).process.unwrap().pid
}

#[tokio::test]
async fn killed_plane_finds_its_pods_again() {
    let folder = TempDir::new().unwrap();
    process(folder.path(), WAITS).rent(order("remuda-a-f-1")).await.unwrap();
    // As after a kill between the start of the process and its record.
    process(folder.path(), WAITS).rent(order("remuda-a-f-2")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-2", "here").await;
    let running = pid(folder.path(), "remuda-a-f-2");
    let records = Records::open(folder.path().to_owned()).unwrap();
    records.write(&Record { process: None, ..record(folder.path(), "remuda-a-f-2") }).unwrap();
    // As after a kill between the intent and the start.
    records.begin(&Record::intent(id("remuda-a-f-3"))).unwrap();

    let next = process(folder.path(), WAITS);
    let found = [
        ("remuda-a-f-1".to_owned(), PodStatus::Running),
        ("remuda-a-f-2".to_owned(), PodStatus::Running),
        ("remuda-a-f-3".to_owned(), PodStatus::Failed),
    ];
    assert_eq!(statuses(&next).await, found);
    assert_eq!(pid(folder.path(), "remuda-a-f-2"), running);
    for (tag, _) in found {
        next.return_pod(id(&tag)).await.unwrap();
    }
    wait_until("all are gone", async || statuses(&next).await.is_empty()).await;
}

#[tokio::test]
async fn ended_pod_is_listed_as_stopped_until_returned() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), "exit 3");
    process.rent(order("remuda-a-f-1")).await.unwrap();
    let stopped = [("remuda-a-f-1".to_owned(), PodStatus::Stopped)];
    wait_until("it has ended", async || statuses(&process).await == stopped).await;
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    wait_until("it is gone", async || statuses(&process).await.is_empty()).await;
}

#[tokio::test]
async fn stubborn_pod_is_killed_in_the_background() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), IGNORES_TERM);
    process.rent(order("remuda-a-f-1")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "here").await;
    let identity = ProcessIdentity::for_pid(pid(folder.path(), "remuda-a-f-1")).unwrap();
    let started = Instant::now();
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    assert_eq!(statuses(&process).await, [("remuda-a-f-1".to_owned(), PodStatus::Running)]);
    wait_until("it is gone", async || statuses(&process).await.is_empty()).await;
    assert!(
        started.elapsed() >= Duration::from_millis(300),
        "killed before its grace was over: {:?}",
        started.elapsed()
    );
    assert!(!identity.is_alive());
    assert!(!Path::new(&format!("/proc/{}", identity.pid)).exists(), "it was not reaped");
}

#[tokio::test]
async fn children_of_a_pod_are_killed_with_it() {
    let folder = TempDir::new().unwrap();
    // A process group of the child's own, which a signal to the pod's group does not reach.
    let process = process(folder.path(), "setsid sh -c 'echo child $$; exec sleep 600' & wait");
    process.rent(order("remuda-a-f-1")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "child").await;
    let log = fs::read_to_string(folder.path().join("remuda-a-f-1.log")).unwrap();
    let child = ProcessIdentity::for_pid(log.split_whitespace().last().unwrap().parse().unwrap()).unwrap();
    assert!(child.is_alive());
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    wait_until("it is gone", async || statuses(&process).await.is_empty()).await;
    assert!(!child.is_alive());
}

#[tokio::test]
async fn reused_pid_is_not_signalled() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), WAITS);
    let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let now = ProcessIdentity::for_pid(i32::try_from(other.id()).unwrap()).unwrap();
    let mut former = now.clone();
    former.started -= 1;
    let records = Records::open(folder.path().to_owned()).unwrap();
    records.begin(&Record { process: Some(former), ..Record::intent(id("remuda-a-f-1")) }).unwrap();
    assert_eq!(statuses(&process).await, [("remuda-a-f-1".to_owned(), PodStatus::Stopped)]);
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    wait_until("its record is gone", async || statuses(&process).await.is_empty()).await;
    assert!(now.is_alive());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn missing_program_is_an_invalid_setting() {
    let folder = TempDir::new().unwrap();
    let command = vec!["no-such-program".to_owned()];
    let process = ProcessProvider::open(ProcessSettings::new(command, folder.path().to_owned())).unwrap();
    let fault = process.rent(order("remuda-a-f-1")).await.unwrap_err();
    assert_eq!(fault.class, ProviderErrorClass::Invalid);
    assert!(fault.message.contains("no-such-program"), "{fault}");
    assert_eq!(statuses(&process).await, []);
}

#[tokio::test]
async fn unreadable_record_is_an_error() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("remuda-a-f-1.json"), "{").unwrap();
    let fault = process(folder.path(), WAITS).list().await.unwrap_err();
    assert_eq!(fault.class, ProviderErrorClass::Invalid);
    assert!(fault.message.contains("remuda-a-f-1.json"), "{fault}");
    fs::remove_dir_all(folder.path()).unwrap();
    assert!(process(folder.path(), WAITS).list().await.is_ok(), "a folder is made where there is none");
}

/// Faults: X10.
#[tokio::test]
async fn environment_is_not_recorded() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), "echo $REMUDA_TOKEN ${CARGO_MANIFEST_DIR-none}; exec sleep 600");
    let order = order("remuda-a-f-1");
    assert!(!format!("{order:?}").contains("canary"));
    process.rent(order).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "canary none").await;
    let record = fs::read_to_string(folder.path().join("remuda-a-f-1.json")).unwrap();
    assert!(!record.contains("canary"), "{record}");
    process.return_pod(id("remuda-a-f-1")).await.unwrap();
    wait_until("it is gone", async || statuses(&process).await.is_empty()).await;
}

#[tokio::test]
async fn old_logs_are_removed() {
    let folder = TempDir::new().unwrap();
    let records = Records::open(folder.path().to_owned()).unwrap();
    records.begin(&Record::intent(id("kept"))).unwrap();
    drop(records.log("kept").unwrap());
    for n in 0..30 {
        drop(records.log(&format!("gone-{n}")).unwrap());
    }
    records.remove(&id("gone-0")).unwrap();
    let logs = fs::read_dir(folder.path()).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "log")
    });
    assert_eq!(logs.count(), 21);
    assert!(folder.path().join("kept.log").exists());
}
