//! Who may join as a rented machine, with and without tokens.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};

use super::machine_history::MachineHistory;
use super::process_fleet::ProcessFleet;
use crate::harness::{Client, Gate, answered, assert_contains_all, wait_until};

async fn join(client: &Client, name: &str) -> (u16, Value) {
    let join = json!({ "worker": name, "machine": name, "services": ["exec"] });
    let (status, answer) = client.post("/remuda/v1/workers", &join).await;
    (status.as_u16(), answer["error"]["code"].clone())
}

/// Faults: M7. A machine is known by the token it was given, not by its name or address.
#[tokio::test]
async fn foreign_worker_with_machine_name_is_refused() {
    let yard = ProcessFleet::start("machines_min = 1\nmachines_max = 1\n", None, "cat").await;
    let machine = yard.until_active(1).await.remove(0);
    assert_eq!(
        join(&yard, &machine).await,
        (403, json!("identity_unproven")),
        "by name alone, on an open plane"
    );
    let forged = yard.with(&format!("rmj_{machine}_{}", "0".repeat(64)));
    assert_eq!(join(&forged, &machine).await, (401, json!("wrong_token")));
    let other = yard.with(&format!("rmw_0_{}", "0".repeat(64)));
    assert_eq!(join(&other, &machine).await, (403, json!("identity_unproven")));
    let worker = yard.worker(&machine).await;
    assert_eq!((&worker["presence"], &worker["incarnation"]), (&json!("online"), &json!(1)), "{worker}");
    let (status, _) =
        yard.post("/remuda/v1/workers", &json!({ "worker": "by-hand", "services": ["exec"] })).await;
    assert_eq!(status, StatusCode::CREATED, "other workers join as before");
}

/// Faults: M7, X4. It joins, works and leaves with its own token, which is useless afterwards.
#[tokio::test]
async fn machine_joins_closed_plane_with_its_own_token() {
    const ADMIN: &str = "an-unguessable-admin-token";
    let yard = ProcessFleet::closed(ADMIN, "machines_min = 1\nmachines_max = 1\n", "cat").await;
    let admin = yard.with(ADMIN);
    let job = admin.submit(json!({ "n": 7 })).await;
    let ended = admin.ended(&job).await;
    assert_eq!((&ended["state"], &ended["result"]), (&json!("completed"), &json!({ "n": 7 })), "{ended}");
    let (machine, pid) = yard.processes().remove(0);
    let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero())).unwrap();
    let environment = String::from_utf8_lossy(&environment).into_owned();
    // What was in the machine's environment before its worker hid it.
    let token = std::fs::read_to_string(yard.folder().join("token")).unwrap();
    let token = token.trim();
    assert!(token.starts_with("rmj_") && !environment.contains(token), "its jobs cannot read it");
    assert!(!environment.contains(ADMIN), "it knows nothing else that opens anything");
    let finder = yard.with(token);
    assert_eq!(join(&finder, &machine).await, (403, json!("identity_unproven")), "it was used");
    assert_eq!(join(&finder, "another-machine").await, (403, json!("forbidden")), "it is for that machine");
    for path in ["/remuda/v1/jobs", "/remuda/v1/workers", "/remuda/v1/tokens", "/remuda/v1/events"] {
        let (status, _) = answered(finder.request(Method::GET, path)).await;
        assert_eq!(status, StatusCode::UNAUTHORIZED, "{path}");
    }
    assert_eq!(admin.worker(&machine).await["incarnation"], 1);
}

/// Faults: M4. Given up means given up: who comes late is told to stop, and does.
#[tokio::test]
async fn late_machine_is_told_to_stop() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Gate::closed(folder.path(), "late");
    // It boots for longer than anybody waits, and hears nothing meanwhile.
    let boot = format!(
        "trap \"\" TERM; while [ -e {} ]; do sleep 0.05; done; ",
        folder.path().join("late").display()
    );
    let keys = "machines_min = 1\nmachines_max = 1\nspawning_timeout = '1s'\n".to_owned();
    let yard = ProcessFleet::booting(&keys, &boot, None, "cat").await;
    let machine = wait_until("one is started", async || yard.processes().into_iter().next()).await.0;
    wait_until("it is given up", async || {
        let books = MachineHistory::of(&yard).await;
        (books.machines.get(&machine)? == "returning").then_some(())
    })
    .await;
    gate.open();
    wait_until("it has stopped by itself", async || {
        let is_there = yard.processes().iter().any(|(name, _)| *name == machine);
        (!is_there).then_some(())
    })
    .await;
    assert_contains_all(&yard.said(&machine), &["was given up and is being returned: stop"]);
    let known = yard.get("/remuda/v1/workers").await;
    let is_known = known["workers"].as_array().unwrap().iter().any(|worker| worker["id"] == machine.as_str());
    assert!(!is_known, "it never joined: {known}");
}
