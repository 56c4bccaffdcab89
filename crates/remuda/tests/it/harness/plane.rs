//! A plane in a process of its own, with its own data folder, at an address it keeps over restarts.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use rustix::process::Signal;
use tempfile::TempDir;

use super::process::remuda_environment;
use super::{Client, Process, remuda};

#[derive(Debug)]
pub(crate) struct Plane {
    pub(crate) process: Process,
    pub(crate) address: SocketAddr,
    plan: Plan,
    client: Client,
    folder: TempDir,
}

/// How a plane is started, the first time and every other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    settings: Vec<String>,
    /// In the plane's folder, unless it is somewhere else.
    data: Option<PathBuf>,
    open_files_max: Option<u32>,
    /// A program that runs it, with its arguments.
    under: Vec<String>,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    /// Its address, if a test must know it before the start.
    address: Option<SocketAddr>,
}

impl Deref for Plane {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Plane {
    pub(crate) fn plan(settings: &[&str]) -> Plan {
        Plan { settings: settings.iter().map(|&setting| setting.to_owned()).collect(), ..Plan::default() }
    }

    pub(crate) async fn start(settings: &[&str]) -> Plane {
        Plane::plan(settings).start().await
    }

    /// Where tests may put files of their own; it goes with the plane.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.plan.data(&self.folder).join("remuda.sqlite")
    }

    pub(crate) fn kill(&mut self) {
        self.process.kill();
    }

    /// Asks it to stop, and waits until it has.
    pub(crate) async fn stop(&mut self) -> ExitStatus {
        self.process.signal(Signal::TERM);
        self.process.ended().await
    }

    /// Starts it again where it was, and waits until it serves.
    pub(crate) async fn start_again(&mut self) {
        self.spawn_again();
        assert!(self.process.line("serves on").await.is_some(), "it should serve: {}", self.process.said());
    }

    /// From now on it runs by itself.
    pub(crate) fn no_longer_under(&mut self) {
        self.plan.under.clear();
    }

    /// Starts it again and does not wait.
    pub(crate) fn spawn_again(&mut self) {
        self.process = self.plan.spawn(&self.folder, self.address);
    }
}

impl Plan {
    pub(crate) fn data_in(mut self, data: &Path) -> Plan {
        self.data = Some(data.to_owned());
        self
    }

    /// More of what is typed after `serve`.
    pub(crate) fn arguments(mut self, arguments: &[&str]) -> Plan {
        self.arguments.extend(arguments.iter().map(|&argument| argument.to_owned()));
        self
    }

    /// Runs it under another program.
    pub(crate) fn under(mut self, words: &[&str]) -> Plan {
        self.under = words.iter().map(|&word| word.to_owned()).collect();
        self
    }

    pub(crate) fn variable(mut self, name: &str, value: &str) -> Plan {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Chooses where it will listen.
    pub(crate) fn listening(mut self) -> Plan {
        self.address = Some(free_address());
        self
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.expect("an address was chosen")
    }

    pub(crate) fn open_files_max(mut self, files: u32) -> Plan {
        self.open_files_max = Some(files);
        self
    }

    pub(crate) async fn start(self) -> Plane {
        let folder = tempfile::tempdir().unwrap();
        loop {
            let address = self.address.unwrap_or_else(free_address);
            let mut process = self.spawn(&folder, address);
            if process.line("serves on").await.is_some() {
                let client = Client::new(format!("http://{address}"));
                return Plane { process, address, plan: self, client, folder };
            }
            // Another process took the address first.
            let may_move = self.address.is_none() && process.said().contains("cannot listen");
            assert!(may_move, "it should serve: {}", process.said());
        }
    }

    fn spawn(&self, folder: &TempDir, address: SocketAddr) -> Process {
        let mut command = remuda(folder.path());
        if let Some(files) = self.open_files_max {
            let program = command.get_program().to_owned();
            command = remuda_environment(std::process::Command::new("sh"), folder.path());
            command.arg("-c").arg(format!("ulimit -n {files}; exec \"$0\" \"$@\"")).arg(program);
        }
        if let Some((name, arguments)) = self.under.split_first() {
            let program = command.get_program().to_owned();
            command = remuda_environment(std::process::Command::new(name), folder.path());
            command.args(arguments).arg(program);
        }
        command.arg("serve").arg("--data").arg(self.data(folder)).arg("--listen").arg(address.to_string());
        command.args(&self.arguments).envs(self.environment.iter().map(|(name, value)| (name, value)));
        for setting in &self.settings {
            command.arg("--set").arg(setting);
        }
        Process::start("the plane", &mut command)
    }

    fn data(&self, folder: &TempDir) -> PathBuf {
        self.data.clone().unwrap_or_else(|| folder.path().join("data"))
    }
}

/// Below the ephemeral ports of the kernel, so that it stays free while a plane restarts.
pub(crate) fn free_address() -> SocketAddr {
    let mut luck = super::TestRng::new();
    loop {
        let port = 10_000 + luck.below(20_000) as u16;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        if TcpListener::bind(address).is_ok() {
            return address;
        }
    }
}
