//! A plane that is killed while it rents, as a process of its own.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use super::*;

/// Where the child rents, and what its pods carry besides their mark: so they are found without any record.
const FOLDER: &str = "REMUDA_STORY_FOLDER";

/// Does nothing unless another story starts it.
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

/// The tags that a plane rents before it is killed; it may be about to rent one more.
fn rent_and_die(folder: &str, first: usize, pods: usize) -> Vec<String> {
    let story = "provider::process::tests::child::rents_until_it_is_killed";
    let mut plane = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", story, "--nocapture"])
        .envs([(FOLDER, folder), ("FIRST", &first.to_string())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let lines = BufReader::new(plane.stdout.take().unwrap()).lines();
    let rented = lines.filter_map(|line| Some(line.unwrap().split_once("rented ")?.1.to_owned()));
    let rented = rented.take(pods).collect();
    plane.kill().unwrap();
    plane.wait().unwrap();
    rented
}

/// Faults: P1.
#[tokio::test]
async fn whenever_a_plane_is_killed_the_next_one_lists_all_that_runs() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut rented = BTreeSet::new();
    for round in 0..12 {
        rented.extend(rent_and_die(path, 100 * round, 1 + round % 3));
    }
    assert_eq!(rented.len(), 4 * (1 + 2 + 3));

    let next = process(folder.path(), WAITS);
    let running = || {
        let lives = alive::marked(FOLDER, path).unwrap().into_iter();
        lives.map(|life| format!("{}/{}", life.pid, life.started)).collect::<BTreeSet<_>>()
    };
    let listed = async || {
        let pods = next.list().await.unwrap().into_iter();
        let running = pods.filter(|pod| pod.status == PodStatus::Running);
        running.map(|pod| (pod.started, pod.tag)).unzip::<_, _, BTreeSet<_>, BTreeSet<_>>()
    };
    // One that was being started when the plane died comes up all the same, a moment later.
    until("what runs is listed", async || running() == listed().await.0).await;
    assert!(listed().await.1.is_superset(&rented));
    for pod in next.list().await.unwrap() {
        next.give_back(pod.id).await.unwrap();
    }
    until("all records are gone", async || statuses(&next).await.is_empty()).await;
    assert_eq!(running(), BTreeSet::new());
}
