//! A private sshd with its own host key and accepted keys. It is started per connection, as inetd would do, so it has a
//! port from the start, and its settings can change between two bootstraps.

use std::collections::BTreeMap;
use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use remuda_core::provider::{BootstrapError, SshAddress};
use tempfile::TempDir;

use super::super::{BootstrapSettings, GpuCheck, HostKeyPolicy, KnownHosts, PodInstance, SshKey, bootstrap};

const SSHD: &str = "/usr/sbin/sshd";

/// Long enough to be redacted from errors.
pub(super) const TOKEN: &str = "rmj_it's \"$HOME\" `id` \\ äöü";

pub(super) struct Sshd {
    folder: TempDir,
    /// The address of a bootstrap; a test may change it.
    pub(super) address: SshAddress,
    port: u16,
    pub(super) key: SshKey,
    state: Arc<ListenerState>,
}

#[derive(Default)]
struct ListenerState {
    is_shut: AtomicBool,
    is_closed: AtomicBool,
    /// Connections that came while it was shut.
    waiting: Mutex<Vec<TcpStream>>,
    connections: AtomicUsize,
}

impl Sshd {
    /// `lines` are added to its settings.
    pub(super) fn start(lines: &str) -> Sshd {
        make_run_folder();
        let folder = tempfile::tempdir().unwrap();
        let key = SshKey::open(&folder.path().join("id_ed25519")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let user = said("id", &["-un"]);
        let address = SshAddress { host: "127.0.0.1".to_owned(), port, user };
        let sshd = Sshd { folder, address, port, key, state: Arc::default() };
        sshd.set(lines);
        sshd.change_host_key();
        sshd.authorize(sshd.key.public());
        let (state, config) = (Arc::clone(&sshd.state), sshd.path("config"));
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if state.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                if state.is_shut.load(Ordering::SeqCst) {
                    state.waiting.lock().unwrap().push(socket);
                    continue;
                }
                serve(&config, socket, &state);
            }
        });
        sshd
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// New settings for connections from now on.
    pub(super) fn set(&self, lines: &str) {
        let path = |name| self.path(name).display().to_string();
        let text = format!(
            "{lines}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM no\n\
             PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n",
            path("host_key"),
            path("authorized_keys"),
        );
        fs::write(self.path("config"), text).unwrap();
    }

    /// A new host key, as after a restart. Returns its fingerprint.
    pub(super) fn change_host_key(&self) -> String {
        let path = self.path("host_key");
        drop(fs::remove_file(&path));
        let path = path.to_str().unwrap();
        said("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", path]);
        said("ssh-keygen", &["-lf", path]).split(' ').nth(1).unwrap().to_owned()
    }

    /// Accepts these keys and no others.
    pub(super) fn authorize(&self, keys: &str) {
        fs::write(self.path("authorized_keys"), keys).unwrap();
    }

    /// Accepts connections and stays silent.
    pub(super) fn shut(&self) {
        self.state.is_shut.store(true, Ordering::SeqCst);
    }

    pub(super) fn unshut(&self) {
        self.state.is_shut.store(false, Ordering::SeqCst);
        self.state.waiting.lock().unwrap().clear();
    }

    /// Waits until there are no connections.
    pub(super) async fn wait_disconnected(&self) {
        until("all connections are closed", || self.state.connections.load(Ordering::SeqCst) == 0).await;
    }

    /// Settings that only start this worker, with timeouts short enough for tests.
    pub(super) fn settings(&self, worker: &str) -> BootstrapSettings {
        let hosts = KnownHosts::open(&self.path("hosts.json")).unwrap();
        let mut settings =
            BootstrapSettings::new(self.key.clone(), HostKeyPolicy::Pinned(Arc::new(hosts)), worker);
        settings.gpu = GpuCheck::None;
        settings.folder = self.path("remuda").display().to_string();
        settings.timeouts.settle_time = Duration::from_millis(100);
        settings
    }

    pub(super) async fn bootstrap(&self, settings: &BootstrapSettings) -> Result<(), BootstrapError> {
        self.bootstrap_pod("pod", "1", settings).await
    }

    pub(super) async fn bootstrap_pod(
        &self,
        pod: &str,
        started: &str,
        settings: &BootstrapSettings,
    ) -> Result<(), BootstrapError> {
        let pod = PodInstance { pod: pod.parse().unwrap(), started: started.to_owned() };
        let environment = BTreeMap::from([("REMUDA_TOKEN".to_owned(), TOKEN.to_owned())]);
        bootstrap(&self.address, &pod, settings, &environment).await
    }

    /// The pid of the worker that was started.
    pub(super) fn worker(&self) -> u32 {
        let text = self.text("remuda/worker.pid");
        let number = text.split(' ').next().unwrap_or_default();
        number.parse().unwrap_or_else(|_| panic!("no worker was started: {text:?}"))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.state.is_closed.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let worker = self.text("remuda/worker.pid").split(' ').next().and_then(|it| it.parse().ok());
        // Only a process that a bootstrap started has its own session; no other pid in the file may be killed.
        if let Some(worker) = worker.filter(|worker| session(*worker) == Some(*worker)) {
            drop(Command::new("kill").args(["-KILL", "--", &format!("-{worker}")]).output());
        }
    }
}

fn serve(config: &Path, socket: TcpStream, state: &Arc<ListenerState>) {
    let log =
        fs::OpenOptions::new().create(true).append(true).open(config.with_file_name("sshd.log")).unwrap();
    let socket = OwnedFd::from(socket);
    let mut sshd = Command::new(SSHD)
        .args(["-i", "-e", "-f"])
        .arg(config)
        .stdin(Stdio::from(socket.try_clone().unwrap()))
        .stdout(Stdio::from(socket))
        .stderr(Stdio::from(log))
        .spawn()
        .unwrap();
    state.connections.fetch_add(1, Ordering::SeqCst);
    let state = Arc::clone(state);
    thread::spawn(move || {
        sshd.wait().unwrap();
        state.connections.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Creates the folder that the system's sshd service would create.
fn make_run_folder() {
    drop(fs::create_dir_all("/run/sshd"));
}

pub(super) fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The session of a process.
pub(super) fn session(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

/// A zombie counts as dead.
pub(super) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Far longer than needed.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
