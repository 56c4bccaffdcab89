//! The process between the fake and what runs in a pod. It guarantees that no process is left over, whatever happens to
//! the fake: it holds one end of a pipe, and when the other end closes, it ends the pod.
//!
//! ```text
//!  fake ──pipe──▶ supervisor ──▶ sh -c COMMAND ──▶ its descendants, in their own groups and sessions
//!                     └── adopts orphans (subreaper), so no descendant escapes
//! ```
//!
//! End of file on the pipe means SIGTERM, a grace period, SIGKILL. A byte means SIGKILL at once, as when a host dies.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, setsid, wait,
};

/// How often the remaining processes are checked.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// A shell reports 128 plus the signal for a killed command.
const BY_SIGNAL: i32 = 128;

/// Runs a command and its descendants for as long as the other end of standard input is open. Returns the command's
/// exit code once all of them are gone.
pub fn keep(command: &str, grace: Duration) -> io::Result<ExitCode> {
    setsid()?;
    set_child_subreaper(Some(getpid()))?;
    let child = Command::new("sh").arg("-c").arg(command).stdin(Stdio::null()).process_group(0).spawn()?;
    let main = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidData)?;
    let is_ending = Arc::new(AtomicBool::new(false));
    let watcher = Arc::clone(&is_ending);
    std::thread::spawn(move || {
        let is_gentle = !matches!(io::stdin().read(&mut [0]), Ok(1..));
        watcher.store(true, Ordering::SeqCst);
        if is_gentle {
            // An error only means that it has ended already.
            kill_process_group(main, Signal::TERM).ok();
            std::thread::sleep(grace);
        }
        kill_all_for_ever();
    });
    let mut code = None;
    loop {
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == main => {
                let signal = status.terminating_signal().map(|signal| BY_SIGNAL + signal);
                code = status.exit_status().or(signal);
                // As with the first process of a container: when it ends, so does the rest.
                if !is_ending.load(Ordering::SeqCst) {
                    std::thread::spawn(kill_all_for_ever);
                }
            }
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            // No descendant is left, not even an orphan.
            Err(_) => break,
        }
    }
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Runs until this process ends, which it does when no descendant is left.
fn kill_all_for_ever() {
    loop {
        for pid in descendants(getpid()) {
            // An error only means that it has ended already.
            kill_process(pid, Signal::KILL).ok();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// All descendants of this process.
fn descendants(root: Pid) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in brackets may contain anything.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((Pid::from_raw(pid)?, Pid::from_raw(parent)?))
        })
        .collect();
    let mut found = vec![root];
    let mut at = 0;
    while let Some(parent) = found.get(at).copied() {
        found.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        at += 1;
    }
    found.split_off(1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rustix::process::{Pid, getpid};

    use super::descendants;

    #[test]
    fn children_and_their_children_are_found() {
        let mut child = std::process::Command::new("sh").arg("-c").arg("sleep 60; true").spawn().unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while descendants(pid).is_empty() {
            assert!(std::time::Instant::now() < deadline, "the shell never started its command");
            std::thread::yield_now();
        }
        let grandchild = descendants(pid)[0];
        let ours = descendants(getpid());
        assert!(ours.contains(&pid) && ours.contains(&grandchild), "{ours:?}");
        rustix::process::kill_process(grandchild, rustix::process::Signal::KILL).unwrap();
        child.kill().ok();
        child.wait().unwrap();
    }
}
