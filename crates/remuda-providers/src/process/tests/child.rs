//! A plane, as a separate process, that is killed while it rents.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// The folder in which the child rents, and the variable by which its pods are found without a record.
const FOLDER: &str = "REMUDA_STORY_FOLDER";

/// Does nothing unless another test starts it.
#[tokio::test]
async fn rents_until_it_is_killed() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let process = process(Path::new(&folder), WAITS);
    let first: usize = std::env::var("FIRST").unwrap().parse().unwrap();
    for number in first.. {
        let mut order = order(&format!("remuda-a-f-{number}"));
        order.environment.insert(FOLDER.to_owned(), folder.clone());
        process.rent(order).await.unwrap();
        println!("rented remuda-a-f-{number}");
    }
}

/// Returns the tags that a plane rents before it is killed; it may be renting one more.
fn rent_and_die(folder: &str, first: usize, pods: usize) -> Vec<String> {
    // Derived from the module path: with a stale literal the child would run no test, and this one would check nothing.
    let module = module_path!().split_once("::").unwrap().1;
    let story = format!("{module}::rents_until_it_is_killed");
    let mut plane = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &story, "--nocapture"])
        .envs([(FOLDER, folder), ("FIRST", &first.to_string())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(plane.stdout.take().unwrap()).lines();
    let rented = lines.filter_map(|line| Some(line.unwrap().split_once("rented ")?.1.to_owned()));
    let rented: Vec<_> = rented.take(pods).collect();
    assert_eq!(rented.len(), pods, "the child ended early");
    plane.kill().unwrap();
    plane.wait().unwrap();
    rented
}

/// Faults: P1.
#[tokio::test]
async fn plane_killed_at_any_time_leaves_listed_pods() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut rented = BTreeSet::new();
    for round in 0..12 {
        rented.extend(rent_and_die(path, 100 * round, 1 + round % 3));
    }
    assert_eq!(rented.len(), 4 * (1 + 2 + 3));

    let next = process(folder.path(), WAITS);
    let running = || {
        let lives = identity::marked(FOLDER, path).unwrap().into_iter();
        lives.map(|process| format!("{}/{}", process.pid, process.started)).collect::<BTreeSet<_>>()
    };
    let listed = async || {
        let pods = next.list().await.unwrap().into_iter();
        let running = pods.filter(|pod| pod.status == PodStatus::Running);
        running.map(|pod| (pod.started, pod.tag)).unzip::<_, _, BTreeSet<_>, BTreeSet<_>>()
    };
    // A pod that was starting when the plane died still comes up a moment later.
    wait_until("what runs is listed", async || running() == listed().await.0).await;
    assert!(listed().await.1.is_superset(&rented));
    for pod in next.list().await.unwrap() {
        next.return_pod(pod.id).await.unwrap();
    }
    wait_until("all records are gone", async || statuses(&next).await.is_empty()).await;
    assert_eq!(running(), BTreeSet::new());
}
