//! The process between the stand-in and what runs in a pod. It sees to it that nothing is left over, whatever happens to
//! the stand-in: it holds one end of a pipe, and when the other end is gone, so is the pod.
//!
//! ```text
//!  stand-in ──pipe──▶ keeper ──▶ sh -c COMMAND ──▶ whatever that starts, in groups and sessions of its own
//!                        └── adopts what loses its parent: in here nobody gets away
//! ```
//!
//! The end of the pipe means: SIGTERM, some grace, SIGKILL. A byte on it means: SIGKILL at once, as a host that dies.

use std::io::{self, Read};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, kill_process_group, set_child_subreaper, setsid, wait,
};

/// Between two looks at who is still there.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// What a shell says of a command that a signal ended, besides the signal.
const BY_SIGNAL: i32 = 128;

/// Runs a command and everything it starts for as long as the other end of standard input is open. Answers with the
/// command's own exit code, once nothing of it is left.
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
            // An error only says that it has ended already.
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
            // Nobody is left, not even an orphan.
            Err(_) => break,
        }
    }
    Ok(ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

/// Until this process ends, which it does when nobody else is left.
fn kill_all_for_ever() {
    loop {
        for pid in descendants(getpid()) {
            // An error only says that it has ended already.
            kill_process(pid, Signal::KILL).ok();
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Everyone who comes from this process.
fn descendants(root: Pid) -> Vec<Pid> {
    let parents: Vec<(Pid, Pid)> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // The name in brackets may hold anything.
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
