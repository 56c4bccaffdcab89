//! Closing a pool.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use remuda_models::ModelError;
use rustix::process::{Pid, test_kill_process};

use super::fixture::{KINDS, STAND_IN, fixture, wait_until};

fn is_there(pid: u32) -> bool {
    test_kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()).is_ok()
}

/// Faults: T11.
#[test]
fn closing_waits_for_running_work() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(1, kind);
        let running = fixture.ask("!busy 300");
        let waiting = fixture.ask("text");
        fixture.until("busy", |model| model.copies[0].state == "busy");
        fixture.pool.close(Duration::from_secs(60));
        running.wait().unwrap();
        waiting.wait().unwrap();
        assert_eq!(fixture.try_ask("late").unwrap_err(), ModelError::Closing);
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 0);
    }
}

/// Faults: T11.
#[test]
fn closing_at_its_deadline_answers_every_caller_and_reaps_every_copy() {
    for kind in KINDS {
        let fixture = fixture();
        fixture.embedding(2, kind);
        let pids: Vec<_> = fixture.model().copies.iter().filter_map(|copy| copy.pid).collect();
        assert_eq!(pids.len(), if kind == KINDS[1] { 2 } else { 0 });
        let tickets: Vec<_> = (0..4).map(|_| fixture.ask("!busy 100000")).collect();
        fixture.until("busy", |model| model.copies.iter().all(|copy| copy.state == "busy"));
        let began = Instant::now();
        fixture.pool.close(Duration::from_millis(100));
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        for pending in tickets {
            assert_eq!(pending.wait(), Err(ModelError::Closing));
        }
        assert_eq!(fixture.pool.snapshot().memory_reserved_bytes, 0);
        assert!(!pids.iter().any(|pid| is_there(*pid)), "reaped");
    }
}

/// Dropping the pool ends it and its children.
#[test]
fn dropped_pool_ends_its_children() {
    let mut fixture = fixture();
    fixture.embedding(1, KINDS[1]);
    let pid = fixture.model().copies[0].pid.unwrap();
    fixture.pool = super::fixture::fixture().pool.clone();
    wait_until("it has ended", || if is_there(pid) { Err("it runs".to_owned()) } else { Ok(()) });
}

/// A child whose parent was killed ends by itself, in the middle of its work.
#[test]
fn child_does_not_outlive_its_parent() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("embed.fake");
    std::fs::write(&model, format!("text_embedding\n{}", KINDS[1])).unwrap();
    let mut parent = Command::new(STAND_IN).arg("parent").arg(&model).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(parent.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = line.trim().parse().unwrap();
    assert!(is_there(pid));
    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until("it has ended", || if is_there(pid) { Err("it runs".to_owned()) } else { Ok(()) });
}
