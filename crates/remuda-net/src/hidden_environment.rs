//! Keeps secrets out of this process's environment block, which its children can read as `/proc/PID/environ` and which
//! removing a variable does not clear. A program that starts jobs runs itself again without those variables, and hands
//! their values over in a file in memory that is emptied when it has been read:
//!
//! ```text
//!  start ──▶ some variables are hidden? ── no ──▶ go on
//!                 │ yes
//!                 └─▶ write them to memory ──▶ exec the same program ──▶ read and empty ──▶ go on
//! ```
//!
//! The process id stays. On systems other than Linux nothing is hidden: there is no `/proc`.

use std::ffi::OsString;
use std::sync::OnceLock;

use crate::secret::SECRET_VARIABLES;
use crate::variable_names::{has_secret_name, is_passed_by_default};

/// Names the file descriptor with the hidden variables.
pub const HIDDEN_VARIABLE: &str = "REMUDA_HIDDEN_ENVIRONMENT";

static HIDDEN: OnceLock<Vec<(OsString, OsString)>> = OnceLock::new();

/// Every variable that this process was started with, hidden ones included.
pub fn process_variables() -> impl Iterator<Item = (OsString, OsString)> {
    let shown = std::env::vars_os().filter(|(name, _)| name != HIDDEN_VARIABLE);
    shown.chain(HIDDEN.get().into_iter().flatten().cloned())
}

/// One variable that this process was started with.
pub fn process_variable(name: &str) -> Option<String> {
    let (_, value) = process_variables().find(|(own, _)| own == name)?;
    value.into_string().ok().filter(|value| !value.is_empty())
}

/// Whether a variable may stay where children can read it: settings of ours without secrets, and what jobs get anyway.
fn is_shown(name: &str) -> bool {
    let is_secret = || SECRET_VARIABLES.contains(&name) || has_secret_name(name) && !name.ends_with("_FILE");
    is_passed_by_default(name) || name.trim_start_matches('_').starts_with("REMUDA_") && !is_secret()
}

/// Hides what children must not read. Call it before any thread is started; it does not return if it had to start the
/// program again.
#[cfg(target_os = "linux")]
pub fn hide_secrets() -> std::io::Result<()> {
    use std::fs::File;
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::process::CommandExt as _;

    use rustix::fs::{MemfdFlags, memfd_create};

    if let Some(descriptor) = std::env::var_os(HIDDEN_VARIABLE) {
        return linux::read_hidden(&descriptor);
    }
    let hidden: Vec<_> =
        std::env::vars_os().filter(|(name, _)| !name.to_str().is_some_and(is_shown)).collect();
    if hidden.is_empty() {
        return Ok(());
    }
    // Without CLOEXEC: the program that takes this one's place reads it.
    let mut memory = File::from(memfd_create("environment", MemfdFlags::empty())?);
    memory.write_all(&linux::encode(&hidden))?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let mut again = std::process::Command::new("/proc/self/exe");
    again.arg0(name).args(arguments).env(HIDDEN_VARIABLE, memory.as_raw_fd().to_string());
    for (name, _) in &hidden {
        again.env_remove(name);
    }
    Err(again.exec())
}

#[cfg(not(target_os = "linux"))]
pub fn hide_secrets() -> std::io::Result<()> {
    Ok(())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::{OsStr, OsString};
    use std::fs::File;
    use std::io::{self, Read as _};
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
    use std::path::Path;

    /// `NAME=value` with a NUL after each, as in the environment block itself.
    pub(super) fn encode(variables: &[(OsString, OsString)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (name, value) in variables {
            bytes.extend_from_slice(name.as_bytes());
            bytes.push(b'=');
            bytes.extend_from_slice(value.as_bytes());
            bytes.push(0);
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Vec<(OsString, OsString)> {
        let parts = bytes.split(|byte| *byte == 0).filter(|part| !part.is_empty());
        let pair = |part: &[u8]| {
            let at = part.iter().position(|byte| *byte == b'=')?;
            Some((OsString::from_vec(part[..at].to_vec()), OsString::from_vec(part[at + 1..].to_vec())))
        };
        parts.filter_map(pair).collect()
    }

    /// Reads what the program that started this one has hidden, and empties it: the descriptor is inherited.
    pub(super) fn read_hidden(descriptor: &OsStr) -> io::Result<()> {
        let path = Path::new("/proc/self/fd").join(descriptor);
        let mut memory = File::options().read(true).write(true).open(path)?;
        let mut bytes = Vec::new();
        memory.read_to_end(&mut bytes)?;
        memory.set_len(0)?;
        // Only the first call of a process reads anything.
        super::HIDDEN.set(decode(&bytes)).ok();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults: X11.
    #[test]
    fn secrets_and_unknown_variables_are_hidden() {
        for name in [
            "REMUDA_TOKEN",
            "REMUDA_ADMIN_TOKEN",
            "REMUDA_COMFYUI_HEADER",
            "REMUDA_OTHER_TOKEN",
            "RUNPOD_API_KEY",
        ] {
            assert!(!is_shown(name), "{name}");
        }
        for name in ["PATH", "REMUDA_URL", "REMUDA_TOKEN_FILE", "REMUDA_POD"] {
            assert!(is_shown(name), "{name}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn hidden_variables_are_read_back_as_they_were() {
        let pair = |name: &str, value: &str| (OsString::from(name), OsString::from(value));
        let variables = vec![pair("A", "1"), pair("B", ""), pair("C", "x=y\nz")];
        assert_eq!(linux::decode(&linux::encode(&variables)), variables);
    }
}
