//! Copies are killed while OpenAI's client asks and asks: no call may fail.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use super::host::{Host, copies, ended_well, python};
use crate::harness::{sleep_for, wait_until};

/// How often in a test that runs every day; `REMUDA_KILLS=60` is a minute of it.
const KILLS: u32 = 15;

fn kills() -> u32 {
    std::env::var("REMUDA_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// Kills one of two copies every second while a client asks in a loop, and sees that nothing failed.
async fn no_call_fails(model: &str, kills: u32) {
    let Some(python) = python() else { return };
    let mut host = Host::up(&[model]).await;
    let mut script = host.script(&python, "loop.py", &["embed"]);
    assert!(script.line("asking").await.is_some(), "{}", script.said());
    let mut killed = Vec::new();
    for _ in 0..kills {
        let pid = wait_until("there are two copies, and one that was not killed yet", async || {
            let copies = copies(&host.model("embed").await);
            let is_at_work = |state: &str| ["ready", "busy"].contains(&state);
            let pids = copies.iter().filter(|copy| is_at_work(copy["state"].as_str().unwrap()));
            let pids: Vec<_> = pids.filter_map(|copy| copy["pid"].as_i64()).collect();
            pids.iter().copied().find(|pid| pids.len() == 2 && !killed.contains(pid))
        })
        .await;
        kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), Signal::KILL).unwrap();
        killed.push(pid);
        // One every second, as it was promised.
        sleep_for(Duration::from_secs(1)).await;
        assert!(!script.has_ended(), "a call failed: {}", script.said());
    }
    std::fs::write(host.folder().join("enough"), "").unwrap();
    let status = script.ended().await;
    assert!(status.success(), "{status}: {}", script.said());
    let model = host.model("embed").await;
    let deaths: u64 =
        model["here"]["deaths"].as_object().unwrap().values().filter_map(|it| it.as_u64()).sum();
    assert!(deaths >= u64::from(kills), "{model}");
    assert!(!host.process.has_ended());
    eprintln!("{kills} kills, {}; {model}", script.said());
}

/// Copies panic on another caller's request: that request fails, and no other.
///
/// Faults: T1, T6.
#[tokio::test]
async fn panics_fail_only_their_own_calls() {
    let Some(python) = python() else { return };
    let host = Host::up(&["embed=embed.fake,copies=2,isolation=thread"]).await;
    let mut script = host.script(&python, "loop.py", &["embed"]);
    assert!(script.line("asking").await.is_some(), "{}", script.said());
    for _ in 0..kills() {
        let (status, answer) =
            host.post("/v1/embeddings", &json!({ "model": "embed", "input": "!panic" })).await;
        assert_eq!((status.as_u16(), &answer["error"]["code"]), (500, &json!("model_failed")), "{answer}");
        sleep_for(Duration::from_secs(1)).await;
        assert!(!script.has_ended(), "a call failed: {}", script.said());
    }
    std::fs::write(host.folder().join("enough"), "").unwrap();
    eprintln!("{}", ended_well(script).await);
}

/// The same with real weights.
///
/// Faults: T1, T10.
#[tokio::test]
async fn no_call_to_real_model_fails_while_copies_are_killed() {
    let Some(folder) = remuda_testkit::model("all-minilm-l6-v2") else { return };
    // Fewer: without optimisation each copy takes seconds to load.
    no_call_fails(&format!("embed={},copies=2,isolation=process", folder.display()), kills() / 3).await;
}

/// Faults: T1, T10.
#[tokio::test]
async fn no_call_fails_while_copies_are_killed() {
    no_call_fails("embed=embed.fake,copies=2,isolation=process", kills()).await;
}
