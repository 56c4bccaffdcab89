//! How a second process of this program is started: as a model copy, or to render a chat template.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The command of a program that calls [`child::run`](crate::child::run).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildCommand {
    /// Default: this program, even if its file was replaced since it started.
    pub program: Option<PathBuf>,
    pub args: Vec<OsString>,
    /// The whole environment of copies; by default they inherit this program's.
    pub environment: Option<Vec<(OsString, OsString)>>,
}

impl Default for ChildCommand {
    fn default() -> Self {
        ChildCommand { program: None, args: vec![OsString::from("pool-copy")], environment: None }
    }
}

impl ChildCommand {
    pub(crate) fn command(&self) -> io::Result<Command> {
        let mut command = Command::new(self.program.clone().map_or_else(this_program, Ok)?);
        if let Some(environment) = &self.environment {
            command.env_clear().envs(environment.iter().map(|(name, value)| (name, value)));
        }
        command.args(&self.args).stdout(Stdio::null());
        Ok(command)
    }
}

/// The running program, even if its file was replaced since it started.
pub(crate) fn this_program() -> io::Result<PathBuf> {
    match cfg!(target_os = "linux") {
        true => Ok(PathBuf::from("/proc/self/exe")),
        false => std::env::current_exe(),
    }
}
