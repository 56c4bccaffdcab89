//! A fleet of processes that grows with the queue, shrinks when idle, and survives its plane.

use std::collections::BTreeSet;

use rustix::process::{Signal, kill_process_group};
use serde_json::json;

use super::machine_history::{MachineHistory, last_cycle};
use super::process_fleet::ProcessFleet;
use crate::harness::wait_until;

/// Faults: P17. From the minimum to what the formula says, `ceil(30 / 10)`, and back.
#[tokio::test]
async fn fleet_grows_with_queue_and_shrinks_when_idle() {
    let yard = ProcessFleet::start(
        "machines_min = 1\nmachines_max = 4\njobs_per_worker = 10\n",
        Some("gate"),
        "sleep 0.1; echo '{}'",
    )
    .await;
    yard.until_active(1).await;
    let jobs = yard.submit_many(30).await;
    let machines = yard.until_active(3).await;
    yard.open("gate");
    yard.until_done(&jobs).await;
    for machine in &machines {
        assert!(yard.worker(machine).await["completed"].as_u64() >= Some(1), "{machine} did nothing");
    }
    yard.until_left(1).await;
    yard.until_active(1).await;
    let books = wait_until("the others are proved gone", async || {
        let books = MachineHistory::of(&yard).await;
        (books.there().len() == 1).then_some(books)
    })
    .await;
    assert_eq!(books.most, 3, "{books:?}");
    let started: BTreeSet<_> = yard.starts().into_iter().collect();
    assert_eq!(started.len(), yard.starts().len(), "a machine was started twice: {:?}", yard.starts());
    assert_eq!(started, books.machines.keys().cloned().collect());
    let cycles = yard.get("/remuda/v1/cycles").await;
    let spawned = |cycle: &serde_json::Value| cycle["actions"]["workers_spawned"].as_u64().unwrap();
    let spawned: u64 = cycles["cycles"].as_array().unwrap().iter().map(spawned).sum();
    assert_eq!((spawned, books.ordered), (3, 3), "the reports tell the same story");
    let last = last_cycle(&yard).await;
    assert_eq!(last["fleets"]["local"]["status"]["active_workers"], 1, "{last}");
}

/// Faults: P1, M1. However many wait, `max` holds at every moment, although the plane is killed while it orders, and a machine
/// is killed while it works.
#[tokio::test]
async fn killed_plane_finds_machines_and_orders_none_twice() {
    let mut yard = ProcessFleet::start(
        "machines_min = 1\nmachines_max = 4\njobs_per_worker = 1\n",
        Some("gate"),
        "sleep 0.05; echo '{}'",
    )
    .await;
    let jobs = yard.submit_many(30).await;
    wait_until("the first machine was started", async || (!yard.starts().is_empty()).then_some(())).await;
    yard.kill();
    yard.start_again().await;
    yard.until_active(4).await;
    let before: BTreeSet<_> = yard.processes().into_iter().map(|(machine, _)| machine).collect();
    yard.kill();
    yard.start_again().await;
    yard.until_active(4).await;
    let after: BTreeSet<_> = yard.processes().into_iter().map(|(machine, _)| machine).collect();
    assert_eq!(before, after, "the same machines, found again");
    let (victim, pid) = yard.processes().remove(0);
    kill_process_group(pid, Signal::KILL).unwrap();
    wait_until("another one takes its place", async || {
        let there: BTreeSet<_> = yard.processes().into_iter().map(|(machine, _)| machine).collect();
        (there.len() == 4 && !there.contains(&victim)).then_some(())
    })
    .await;
    yard.open("gate");
    yard.until_done(&jobs).await;
    yard.until_left(1).await;
    let books = MachineHistory::of(&yard).await;
    assert!(books.most <= 4, "{books:?}");
    let starts = yard.starts();
    assert_eq!(starts.iter().collect::<BTreeSet<_>>().len(), starts.len(), "{starts:?}");
    assert!(starts.iter().all(|machine| books.machines.contains_key(machine)), "{starts:?}");
}

/// Faults: M1. Who is stopped for longer than its lease has lost its work when it wakes; it is refused, told so, and joins again as
/// the machine it is.
#[tokio::test]
async fn paused_machine_is_refused_and_rejoins() {
    let keys = "machines_min = 2\nmachines_max = 2\nidle_timeout = '1h'\n";
    let yard = ProcessFleet::start(keys, Some("gate"), "echo '{}'").await;
    yard.until_active(2).await;
    let job = yard.submit(json!({ "n": 1 })).await;
    let machine = yard.runs_on(&job).await;
    let (_, pid) = yard.processes().into_iter().find(|(name, _)| *name == machine).unwrap();
    let first = yard.worker(&machine).await["incarnation"].as_u64().unwrap();
    kill_process_group(pid, Signal::STOP).unwrap();
    let elsewhere = yard.job_until(&job, "runs elsewhere", |job| {
        job["state"] == "running" && job["worker"] != machine.as_str()
    });
    elsewhere.await;
    yard.worker_until_offline(&machine).await;
    kill_process_group(pid, Signal::CONT).unwrap();
    wait_until("it is back", async || {
        let worker = yard.worker(&machine).await;
        (worker["presence"] == "online" && worker["holds"] == json!([])).then_some(())
    })
    .await;
    let again = yard.worker(&machine).await["incarnation"].as_u64().unwrap();
    yard.open("gate");
    let ended = yard.ended(&job).await;
    assert_eq!((&ended["state"], &ended["attempt"]), (&json!("completed"), &json!(2)), "{ended}");
    assert_eq!(yard.starts().len(), 2, "no machine was replaced; incarnations {first} and {again}");
}
