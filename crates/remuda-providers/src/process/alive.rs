//! Which processes there are, as `/proc` says. A number alone says nothing: it is given out again. With the time of its
//! start, and the start of the whole system, it is one process and no other.

use std::fs;
use std::io;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

/// One process, told apart from whoever may get the same number later.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Life {
    pub(super) pid: i32,
    /// In ticks since the system's start.
    pub(super) started: u64,
    boot: String,
}

impl Life {
    /// Whoever has this number now, be it a process nobody has waited for yet.
    pub(super) fn of(pid: i32) -> io::Result<Life> {
        let stat = Stat::read(pid)?.ok_or(io::ErrorKind::NotFound)?;
        Ok(Life { pid, started: stat.started, boot: boot()? })
    }

    /// Dead is also who only waits to be waited for.
    pub(super) fn is_alive(&self) -> bool {
        self.is(|stat| !stat.is_dead)
    }

    /// Whether it lives, or is a dead child of ours that nobody has waited for yet. Dead children of others are theirs.
    pub(super) fn is_left(&self) -> bool {
        self.is(|stat| !stat.is_dead || u32::try_from(stat.parent).is_ok_and(|it| it == std::process::id()))
    }

    fn is(&self, what: impl Fn(&Stat) -> bool) -> bool {
        let is_this = |stat: Stat| stat.started == self.started && what(&stat);
        // Who cannot be seen is believed to live: nobody's record is removed because a file could not be read.
        Stat::read(self.pid).map_or(true, |stat| stat.is_some_and(is_this))
            && boot().map_or(true, |boot| boot == self.boot)
    }

    /// To it and its group; to nobody if it is not there any more.
    pub(super) fn send(&self, signal: Signal) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            // It may have gone just now.
            kill_process_group(pid, signal).ok();
        }
    }

    /// To this process alone.
    fn kill(&self) {
        if self.is_alive()
            && let Some(pid) = Pid::from_raw(self.pid)
        {
            kill_process(pid, Signal::KILL).ok();
        }
    }
}

/// The first of those that carry `name=value` in their environment: children inherit it.
pub(super) fn oldest_marked(name: &str, value: &str) -> io::Result<Option<Life>> {
    Ok(marked(name, value)?.into_iter().min_by_key(|life| (life.started, life.pid)))
}

/// Kills whoever carries `name=value`; whether there was anybody.
pub(super) fn kill_marked(name: &str, value: &str) -> io::Result<bool> {
    let marked = marked(name, value)?;
    marked.iter().for_each(Life::kill);
    Ok(!marked.is_empty())
}

/// Those that live and carry `name=value` in their environment.
pub(super) fn marked(name: &str, value: &str) -> io::Result<Vec<Life>> {
    let mark = format!("{name}={value}");
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let Some(pid) = entry?.file_name().to_str().and_then(|name| name.parse::<i32>().ok()) else {
            continue;
        };
        // Those of others cannot be read, and are none of ours; some end while they are looked at.
        let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { continue };
        if environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
            && let Ok(life) = Life::of(pid)
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
    /// Nothing if there is no such process.
    fn read(pid: i32) -> io::Result<Option<Stat>> {
        let text = match fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(text) => text,
            // The second is said of one that ends while it is read.
            Err(error) if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(3) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        Stat::parse(&text)
            .map(Some)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("/proc/{pid}/stat: {text:?}")))
    }

    /// `PID (NAME) STATE …`, where the name may hold anything, brackets too; the start is the 22nd field.
    fn parse(text: &str) -> Option<Stat> {
        let mut fields = text[text.rfind(')')? + 1..].split_whitespace();
        let is_dead = matches!(fields.next()?, "Z" | "X" | "x");
        let parent = fields.next()?.parse().ok()?;
        let started = fields.nth(17)?.parse().ok()?;
        Some(Stat { is_dead, parent, started })
    }
}

/// Another one after every start of the system.
fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_full_of_brackets_does_not_hide_who_it_is() {
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
    fn a_number_given_out_again_is_somebody_else() {
        let us = Life::of(i32::try_from(std::process::id()).unwrap()).unwrap();
        assert!(us.is_alive());
        assert!(!Life { started: us.started + 1, ..us.clone() }.is_alive());
        assert!(!Life { boot: "another".to_owned(), ..us }.is_alive());
    }
}
