//! A bare machine is bootstrapped over SSH and then works for the plane.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;

use remuda_core::provider::SshAddress;
use remuda_providers::ssh::{
    BootstrapSettings, GpuCheck, HostKeyPolicy, KnownHosts, PodInstance, ProgramUpload, SshKey, bootstrap,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::{Plane, QUICK, answered, wait_until};

const SSHD: &str = "/usr/sbin/sshd";

/// An sshd for each connection, and what a bootstrap leaves behind.
pub(crate) struct Machine {
    folder: TempDir,
    pub(crate) address: SshAddress,
    key: SshKey,
}

impl Machine {
    /// Without sshd the test is skipped.
    pub(crate) fn start() -> Option<Machine> {
        remuda_testkit::program("sshd")?;
        // Its own service makes this one, and does not run here.
        drop(fs::create_dir_all("/run/sshd"));
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let key = SshKey::open(&folder.path().join("id_ed25519")).unwrap();
        fs::write(path("authorized_keys"), key.public()).unwrap();
        said("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", &path("host_key")]);
        let keys = format!("HostKey {}\nAuthorizedKeysFile {}", path("host_key"), path("authorized_keys"));
        // A login starts in the test's own folder, not in the home folder of the user who runs it.
        fs::create_dir(path("home")).unwrap();
        let program = Path::new(env!("CARGO_BIN_EXE_remuda")).parent().unwrap().display();
        let begin = format!(
            "cd {home}; HOME={home}; PATH=$PATH:{program}; export HOME PATH; eval \"$SSH_ORIGINAL_COMMAND\"",
            home = path("home")
        );
        let settings =
            format!("PidFile none\nStrictModes no\nUsePAM no\nPermitRootLogin yes\nForceCommand {begin}");
        fs::write(path("config"), format!("{keys}\n{settings}\n")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let config = path("config");
        // It ends with the test: each test has a process, or a program of tests, of its own.
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let socket = OwnedFd::from(socket);
                let input = Stdio::from(socket.try_clone().unwrap());
                let mut sshd = Command::new(SSHD);
                sshd.args(["-i", "-q", "-f", &config]).stdin(input).stdout(socket);
                let mut sshd = sshd.spawn().unwrap();
                thread::spawn(move || sshd.wait());
            }
        });
        let address = SshAddress { host: "127.0.0.1".to_owned(), port, user: said("id", &["-un"]) };
        Some(Machine { folder, address, key })
    }

    /// Lets this key in as well.
    pub(crate) fn admit(&self, key: &SshKey) {
        let both = format!("{}\n{}\n", self.key.public(), key.public());
        fs::write(self.path("authorized_keys"), both).unwrap();
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    pub(crate) fn worker(&self) -> Option<Pid> {
        let text = fs::read_to_string(self.path("home/.remuda/worker.pid")).ok()?;
        Pid::from_raw(text.split(' ').next()?.parse().ok()?)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if let Some(worker) = self.worker() {
            // Only what a bootstrap started leads a group; whatever else the file may name is not ours to end.
            kill_process_group(worker, Signal::KILL).ok();
        }
    }
}

fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

#[tokio::test]
async fn bare_machine_is_bootstrapped_over_ssh() {
    let plane = Plane::start(QUICK).await;
    let Some(machine) = Machine::start() else { return };
    let program = machine.path("bin/remuda");
    let hosts = KnownHosts::open(machine.path("hosts.json").as_ref()).unwrap();
    let command = format!("exec {program} worker --name visited --exec 'echo done'");
    let mut settings =
        BootstrapSettings::new(machine.key.clone(), HostKeyPolicy::Pinned(Arc::new(hosts)), command);
    settings.gpu = GpuCheck::None;
    settings.upload = Some(ProgramUpload { from: env!("CARGO_BIN_EXE_remuda").into(), to: program });
    let environment = BTreeMap::from([("REMUDA_URL".to_owned(), plane.url.clone())]);
    let pod = PodInstance { pod: "pod-1".parse().unwrap(), started: "1".to_owned() };
    let run = || bootstrap(&machine.address, &pod, &settings, &environment);

    run().await.unwrap();
    let job = plane.submit(json!({ "n": 1 })).await;
    assert_eq!(plane.ended(&job).await["worker"], "visited");

    // A plane that comes back does not know whether it was there: nothing happens to the worker.
    let worker = machine.worker().unwrap();
    run().await.unwrap();
    assert_eq!(machine.worker(), Some(worker));
    assert_eq!(plane.worker("visited").await["presence"], "online");

    // A worker that died is brought back, and the program is there already.
    kill_process(worker, Signal::KILL).unwrap();
    wait_until("the plane hears no worker any more", async || {
        let (_, worker) = answered(plane.request(reqwest::Method::GET, "/remuda/v1/workers/visited")).await;
        (worker["presence"] != "online").then_some(())
    })
    .await;
    run().await.unwrap();
    assert_ne!(machine.worker(), Some(worker));
    let job = plane.submit(json!({ "n": 2 })).await;
    assert_eq!(plane.ended(&job).await["worker"], "visited");
}
