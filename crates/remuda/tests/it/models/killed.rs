//! Copies are killed while OpenAI's client asks and asks: no call may fail.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use super::host::{Host, copies};
use crate::harness::{let_pass, wait_until};

/// How often in a test that runs every day; `REMUDA_KILLS=60` is a minute of it.
const KILLS: u32 = 15;

fn kills() -> u32 {
    std::env::var("REMUDA_KILLS").map_or(KILLS, |kills| kills.parse().unwrap())
}

/// Kills one of two copies every second while a client asks in a loop, and sees that nothing failed.
async fn no_call_fails(model: &str) {
    let mut host = Host::up(&[model]).await;
    let mut script = host.script("loop.py", &["embed"]);
    assert!(script.line("asking").await.is_some(), "{}", script.said());
    let mut killed = Vec::new();
    for _ in 0..kills() {
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
        let_pass(Duration::from_secs(1)).await;
        assert!(!script.has_ended(), "a call failed: {}", script.said());
    }
    std::fs::write(host.folder().join("enough"), "").unwrap();
    let status = script.ended().await;
    assert!(status.success(), "{status}: {}", script.said());
    let model = host.model("embed").await;
    let deaths: u64 =
        model["here"]["deaths"].as_object().unwrap().values().filter_map(|it| it.as_u64()).sum();
    assert!(deaths >= u64::from(kills()), "{model}");
    assert!(!host.process.has_ended());
    println!("{} kills, {}; {model}", kills(), script.said());
}

/// Faults: T1, T10.
#[tokio::test]
async fn no_call_fails_while_one_of_two_copies_is_killed_every_second() {
    no_call_fails("embed=embed.fake,copies=2,isolation=process").await;
}
