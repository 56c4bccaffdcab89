mod child;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use remuda_core::provider::{PodStatus, ProviderErrorClass};
use tempfile::TempDir;

use super::*;
use crate::contract::{Account, passes_the_contract};

/// What no pod of these tests takes longer for.
const SOON: Duration = Duration::from_secs(20);

/// A folder with things in it that are no pods.
struct Place(TempDir);

impl Account for Place {
    fn open(&self) -> Box<dyn Provider> {
        Box::new(process(self.0.path(), WAITS))
    }

    fn offers(&self) -> Vec<String> {
        vec![OFFER.to_owned()]
    }
}

async fn place() -> Place {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("notes.txt"), "mine").unwrap();
    fs::create_dir(folder.path().join("models")).unwrap();
    fs::write(folder.path().join("remuda-0a1b2c3d-gpus-7.log"), "of one that is gone").unwrap();
    Place(folder)
}

passes_the_contract!(place);

/// Says that it is there, and waits for its end.
const WAITS: &str = "echo here; exec sleep 600";
const IGNORES_TERM: &str = "trap '' TERM; echo here; while :; do sleep 0.1; done";

fn process(folder: &Path, script: &str) -> Process {
    let command = ["sh", "-c", script].map(str::to_owned).to_vec();
    Process::open(ProcessSettings {
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

async fn statuses(process: &Process) -> Vec<(String, PodStatus)> {
    process.list().await.unwrap().into_iter().map(|pod| (pod.tag, pod.status)).collect()
}

/// Looks until it is as expected.
async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let mut looks = tokio::time::interval(Duration::from_millis(20));
    let looking = async {
        while !is_so().await {
            looks.tick().await;
        }
    };
    assert!(tokio::time::timeout(SOON, looking).await.is_ok(), "not within {SOON:?}: {what}");
}

async fn until_it_says(folder: &Path, tag: &str, what: &str) {
    let log = folder.join(format!("{tag}.log"));
    until(what, async || fs::read_to_string(&log).is_ok_and(|log| log.contains(what))).await;
}

fn record(folder: &Path, tag: &str) -> Record {
    Records::open(folder.to_owned()).unwrap().read(&id(tag)).unwrap().unwrap()
}

fn pid(folder: &Path, tag: &str) -> i32 {
    record(folder, tag).life.unwrap().pid
}

#[tokio::test]
async fn a_plane_that_was_killed_finds_its_pods_again() {
    let folder = TempDir::new().unwrap();
    process(folder.path(), WAITS).rent(order("remuda-a-f-1")).await.unwrap();
    // As a kill between the start and the record of it leaves them.
    process(folder.path(), WAITS).rent(order("remuda-a-f-2")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-2", "here").await;
    let running = pid(folder.path(), "remuda-a-f-2");
    let records = Records::open(folder.path().to_owned()).unwrap();
    records.write(&Record { life: None, ..record(folder.path(), "remuda-a-f-2") }).unwrap();
    // And between the intent and the start.
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
        next.give_back(id(&tag)).await.unwrap();
    }
    until("all are gone", async || statuses(&next).await.is_empty()).await;
}

#[tokio::test]
async fn a_pod_that_ended_is_shown_as_stopped_until_it_is_given_back() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), "exit 3");
    process.rent(order("remuda-a-f-1")).await.unwrap();
    let stopped = [("remuda-a-f-1".to_owned(), PodStatus::Stopped)];
    until("it has ended", async || statuses(&process).await == stopped).await;
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    until("it is gone", async || statuses(&process).await.is_empty()).await;
}

#[tokio::test]
async fn a_pod_that_does_not_go_is_killed_and_nobody_waits_for_it() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), IGNORES_TERM);
    process.rent(order("remuda-a-f-1")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "here").await;
    let life = Life::of(pid(folder.path(), "remuda-a-f-1")).unwrap();
    let asked = Instant::now();
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    assert_eq!(statuses(&process).await, [("remuda-a-f-1".to_owned(), PodStatus::Running)]);
    until("it is gone", async || statuses(&process).await.is_empty()).await;
    assert!(
        asked.elapsed() >= Duration::from_millis(300),
        "killed before its grace was over: {:?}",
        asked.elapsed()
    );
    assert!(!life.is_alive());
    assert!(!Path::new(&format!("/proc/{}", life.pid)).exists(), "nobody waited for it");
}

#[tokio::test]
async fn what_a_pod_started_goes_with_it() {
    let folder = TempDir::new().unwrap();
    // A group of its own, which a signal to the pod's does not reach.
    let process = process(folder.path(), "setsid sh -c 'echo child $$; exec sleep 600' & wait");
    process.rent(order("remuda-a-f-1")).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "child").await;
    let log = fs::read_to_string(folder.path().join("remuda-a-f-1.log")).unwrap();
    let child = Life::of(log.split_whitespace().last().unwrap().parse().unwrap()).unwrap();
    assert!(child.is_alive());
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    until("it is gone", async || statuses(&process).await.is_empty()).await;
    assert!(!child.is_alive());
}

#[tokio::test]
async fn a_number_that_belongs_to_somebody_else_by_now_is_left_alone() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), WAITS);
    let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let now = Life::of(i32::try_from(other.id()).unwrap()).unwrap();
    let mut former = now.clone();
    former.started -= 1;
    let records = Records::open(folder.path().to_owned()).unwrap();
    records.begin(&Record { life: Some(former), ..Record::intent(id("remuda-a-f-1")) }).unwrap();
    assert_eq!(statuses(&process).await, [("remuda-a-f-1".to_owned(), PodStatus::Stopped)]);
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    until("its record is gone", async || statuses(&process).await.is_empty()).await;
    assert!(now.is_alive());
    other.kill().unwrap();
    other.wait().unwrap();
}

#[tokio::test]
async fn a_program_that_is_not_there_is_a_matter_of_the_settings() {
    let folder = TempDir::new().unwrap();
    let command = vec!["no-such-program".to_owned()];
    let process = Process::open(ProcessSettings::new(command, folder.path().to_owned())).unwrap();
    let fault = process.rent(order("remuda-a-f-1")).await.unwrap_err();
    assert_eq!(fault.class, ProviderErrorClass::Invalid);
    assert!(fault.message.contains("no-such-program"), "{fault}");
    assert_eq!(statuses(&process).await, []);
}

#[tokio::test]
async fn a_record_that_cannot_be_read_is_a_fault_and_not_an_absence() {
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
async fn what_a_pod_is_told_is_not_written_down() {
    let folder = TempDir::new().unwrap();
    let process = process(folder.path(), "echo $REMUDA_TOKEN ${CARGO_MANIFEST_DIR-none}; exec sleep 600");
    let order = order("remuda-a-f-1");
    assert!(!format!("{order:?}").contains("canary"));
    process.rent(order).await.unwrap();
    until_it_says(folder.path(), "remuda-a-f-1", "canary none").await;
    let record = fs::read_to_string(folder.path().join("remuda-a-f-1.json")).unwrap();
    assert!(!record.contains("canary"), "{record}");
    process.give_back(id("remuda-a-f-1")).await.unwrap();
    until("it is gone", async || statuses(&process).await.is_empty()).await;
}

#[tokio::test]
async fn logs_of_pods_that_are_gone_do_not_pile_up() {
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
