//! Pods whose image starts no worker: the plane rents them, starts one over SSH, and gives them back.

use remuda_providers::ssh::SshKey;
use rustix::process::{Signal, kill_process_group, test_kill_process};
use serde_json::json;

use super::account::Account;
use crate::harness::{Plane, wait_until};
use crate::ssh::Machine;

const QUICK: &str = "list_every = '500ms'\nlist_lag_max = '2s'\nreversal_cooldown = '1s'\nuptime_min = '1s'\nlost_create_timeout = '5s'\n\
                     image_pull_timeout = '20s'\nspawning_timeout = '60s'\nreadiness_timeout = '10s'\ncontact_timeout = '120s'\n";

/// From the order to the return. The program is on the machine already; uploading it is tested in `remuda-providers`.
#[tokio::test]
async fn ssh_pod_is_rented_bootstrapped_used_and_returned() {
    let folder = tempfile::tempdir().unwrap();
    let Some(machine) = Machine::start() else { return };
    let data = folder.path().join("data");
    machine.admit(&SshKey::open(&data.join("ssh/id_ed25519")).unwrap());
    let port = machine.address.port.to_string();
    let flags = ["--ssh-port", &port, "--speed", "60", "--requests-per-minute", "0"];
    let account = Account::bare(folder.path(), &flags).await;
    let config = folder.path().join("remuda.toml");
    let plan = Plane::plan(crate::harness::QUICK)
        .data_in(&data)
        .arguments(&["--config", config.to_str().unwrap()])
        .variable("RUNPOD_API_KEY", "rpa_canary")
        .listening();
    let text = format!(
        "cycle_every = '1s'\n[[fleet]]\nname = 'bare'\nprovider = 'runpod'\nimage = 'theirs:1'\nurl = 'http://{}'\n\
         gpus = ['NVIDIA RTX A4000']\nclouds = ['secure']\nbase_url = '{}'\nports = ['22/tcp']\nstart = 'ssh'\n\
         command = \"remuda worker --exec 'echo done'\"\ngpu_check = 'none'\nupload = false\nssh_user = '{}'\nmachines_min = 0\nmachines_max = 1\n\
         jobs_per_worker = 1\nprice_max = 0.27\n{QUICK}",
        plan.address(),
        account.url,
        machine.address.user,
    );
    std::fs::write(&config, text).unwrap();
    let plane = plan.start().await;

    let job = plane.submit(json!({ "n": 1 })).await;
    let ended = plane.ended(&job).await;
    let worker = ended["worker"].as_str().unwrap();
    assert!(ended["state"] == "completed" && worker.starts_with("bare-"), "{ended}");

    let ledger = wait_until("it is given back", async || {
        let ledger = account.ledger().await;
        (ledger.names.len() == 1 && ledger.left_over().is_empty()).then_some(ledger)
    })
    .await;
    assert!(ledger.names.values().all(|named| named.orders == 1), "{ledger:?}");
    // A real pod would take its worker along; here the test has to.
    if let Some(worker) = machine.worker().filter(|worker| test_kill_process(*worker).is_ok()) {
        kill_process_group(worker, Signal::KILL).ok();
    }
}
