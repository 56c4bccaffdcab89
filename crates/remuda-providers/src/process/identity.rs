//! Processes as listed in `/proc`. A pid alone is not enough, because pids are reused; with the start time and the boot
//! id it identifies one process.

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

/// Identifies one process, even if its pid is reused later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    pub(super) pid: i32,
    /// In clock ticks since boot.
    pub(super) started: u64,
    boot: String,
}

impl ProcessIdentity {
    /// The process that has this pid now, including one that is not reaped yet.
    pub(super) fn for_pid(pid: i32) -> io::Result<ProcessIdentity> {
        let stat = Stat::read(pid)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(ProcessIdentity { pid, started: stat.started, boot: boot()? })
    }

    /// Whether it runs. A zombie counts as dead.
    pub(super) fn is_alive(&self) -> bool {
        self.is(|stat| !stat.is_dead)
    }

    /// Whether it runs, or is a zombie child of ours. Zombies of other parents do not count.
    pub(super) fn is_unreaped(&self) -> bool {
        self.is(|stat| !stat.is_dead || u32::try_from(stat.parent).is_ok_and(|it| it == std::process::id()))
    }

    fn is(&self, what: impl Fn(&Stat) -> bool) -> bool {
        let is_this = |stat: Stat| stat.started == self.started && what(&stat);
        // If its state cannot be read it counts as alive: no record is removed because of an unreadable file.
        Stat::read(self.pid).map_or(true, |stat| stat.is_some_and(is_this))
            && boot().map_or(true, |boot| boot == self.boot)
    }

    /// Sends a signal to the process and its group, if it still exists.
    pub(super) fn send(&self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            // It may have exited just now.
            kill_process_group(pid, signal).ok();
        }
    }

    /// Kills only this process.
    fn kill(&self) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// The oldest process with `name=value` in its environment: its children inherit the variable.
pub(super) fn oldest_marked(name: &str, value: &str) -> io::Result<Option<ProcessIdentity>> {
    Ok(marked(name, value)?.into_iter().min_by_key(|life| (life.started, life.pid)))
}

/// Kills every process with `name=value` in its environment. Returns whether there was one.
pub(super) fn kill_marked(name: &str, value: &str) -> io::Result<bool> {
    let marked = marked(name, value)?;
    marked.iter().for_each(ProcessIdentity::kill);
    Ok(!marked.is_empty())
}

/// All running processes with `name=value` in their environment.
pub(super) fn marked(name: &str, value: &str) -> io::Result<Vec<ProcessIdentity>> {
    let mark = format!("{name}={value}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Processes of other users are unreadable and not ours; some exit while they are read.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            && let Ok(life) = ProcessIdentity::for_pid(pid)
            && life.is_alive()
        {
            found.push(life);
        }
    }
    Ok(found)
}

struct Stat {
    is_dead: bool,
    parent: i32,
    started: u64,
}

impl Stat {
    /// `None` if there is no such process.
    fn read(pid: i32) -> io::Result<Option<Stat>> {
        let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            // ESRCH: the process exited while it was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Stat::parse(&text)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {text:?}")))
    }

    /// `PID (NAME) STATE …`. The name may contain anything, including brackets; the start time is field 22.
    fn parse(text: &str) -> Option<Stat> {
        let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
        let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat { is_dead, parent, started })
    }
}

/// The boot id, which differs after every boot.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_a_process_name_are_parsed() {
        let rest = "1 9 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 4711 100 200";
        for (name, state, is_dead) in [("sh", "S", false), ("a) Z (b", "R", false), ("x", "Z", true)] {
            let stat = Stat::parse(&format!("9 ({name}) {state} {rest}")).unwrap();
            assert_eq!((stat.is_dead, stat.parent, stat.started), (is_dead, 1, 4711), "{name}");
        }
        for odd in ["", "9 (x)", "9 (x) S 1 2", "no process"] {
            assert!(Stat::parse(odd).is_none(), "{odd}");
        }
    }

    #[test]
    fn reused_pid_is_another_process() {
        let us = ProcessIdentity::for_pid(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(us.is_alive());
        assert!(!ProcessIdentity { started: us.started + 1, ..us.clone() }.is_alive());
        assert!(!ProcessIdentity { boot: "another".to_owned(), ..us }.is_alive());
    }
}
