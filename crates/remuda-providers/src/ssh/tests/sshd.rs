//! An sshd of our own: it has its own host key, lets in whom we say, and is started for each connection, as inetd would
//! do. So it has a port from the start on, and its settings can change between two visits.

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

use super::super::{GpuCheck, HostKey, HostKeys, Key, PodKey, Preparation, prepare};

const SSHD: &str = "/usr/sbin/sshd";

/// Longer than a value that is blotted out from reasons must be.
pub(super) const TOKEN: &str = "rmj_it's \"$HOME\" `id` \\ äöü";

pub(super) struct Sshd {
    folder: TempDir,
    /// Where a visit goes; a test may send it elsewhere.
    pub(super) address: SshAddress,
    port: u16,
    pub(super) key: Key,
    door: Arc<Door>,
}

#[derive(Default)]
struct Door {
    is_shut: AtomicBool,
    is_closed: AtomicBool,
    /// Whoever came while it was shut.
    waiting: Mutex<Vec<TcpStream>>,
    inside: AtomicUsize,
}

impl Sshd {
    /// `lines` are added to its settings.
    pub(super) fn start(lines: &str) -> Sshd {
        make_run_folder();
        let folder = tempfile::tempdir().unwrap();
        let key = Key::open(&folder.path().join("id_ed25519")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let user = said("id", &["-un"]);
        let address = SshAddress { host: "127.0.0.1".to_owned(), port, user };
        let sshd = Sshd { folder, address, port, key, door: Arc::default() };
        sshd.set(lines);
        sshd.change_host_key();
        sshd.let_in(sshd.key.public());
        let (door, config) = (Arc::clone(&sshd.door), sshd.path("config"));
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                if door.is_closed.load(Ordering::SeqCst) {
                    return;
                }
                if door.is_shut.load(Ordering::SeqCst) {
                    door.waiting.lock().unwrap().push(socket);
                    continue;
                }
                serve(&config, socket, &door);
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

    /// New settings, for whoever comes from now on.
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

    /// Another one, as after a start; its fingerprint.
    pub(super) fn change_host_key(&self) -> String {
        let path = self.path("host_key");
        drop(fs::remove_file(&path));
        let path = path.to_str().unwrap();
        said("ssh-keygen", &["-q", "-t", "ed25519", "-N", "", "-f", path]);
        said("ssh-keygen", &["-lf", path]).split(' ').nth(1).unwrap().to_owned()
    }

    /// These keys and no others.
    pub(super) fn let_in(&self, keys: &str) {
        fs::write(self.path("authorized_keys"), keys).unwrap();
    }

    /// Takes connections and says nothing.
    pub(super) fn shut(&self) {
        self.door.is_shut.store(true, Ordering::SeqCst);
    }

    pub(super) fn unshut(&self) {
        self.door.is_shut.store(false, Ordering::SeqCst);
        self.door.waiting.lock().unwrap().clear();
    }

    /// Comes back once nobody is connected any more.
    pub(super) async fn is_left(&self) {
        until("everybody has left", || self.door.inside.load(Ordering::SeqCst) == 0).await;
    }

    /// A visit that starts nothing but this worker, with limits that a test can wait for where it has to.
    pub(super) fn settings(&self, worker: &str) -> Preparation {
        let hosts = HostKeys::open(&self.path("hosts.json")).unwrap();
        let mut settings = Preparation::new(self.key.clone(), HostKey::Pinned(Arc::new(hosts)), worker);
        settings.gpu = GpuCheck::None;
        settings.folder = self.path("remuda").display().to_string();
        settings.limits.settling = Duration::from_millis(100);
        settings
    }

    pub(super) async fn visit(&self, settings: &Preparation) -> Result<(), BootstrapError> {
        self.visit_pod("pod", "1", settings).await
    }

    pub(super) async fn visit_pod(
        &self,
        pod: &str,
        started: &str,
        settings: &Preparation,
    ) -> Result<(), BootstrapError> {
        let pod = PodKey { pod: pod.parse().unwrap(), started: started.to_owned() };
        let environment = BTreeMap::from([("REMUDA_TOKEN".to_owned(), TOKEN.to_owned())]);
        prepare(&self.address, &pod, settings, &environment).await
    }

    /// The process of the worker that was started.
    pub(super) fn worker(&self) -> u32 {
        let text = self.text("remuda/worker.pid");
        let number = text.split(' ').next().unwrap_or_default();
        number.parse().unwrap_or_else(|_| panic!("no worker was started: {text:?}"))
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        self.door.is_closed.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(("127.0.0.1", self.port)));
        let worker = self.text("remuda/worker.pid").split(' ').next().and_then(|it| it.parse().ok());
        // Only what a visit started has a session of its own; whatever else the file may name is not ours to end.
        if let Some(worker) = worker.filter(|worker| session(*worker) == Some(*worker)) {
            drop(Command::new("kill").args(["-KILL", "--", &format!("-{worker}")]).output());
        }
    }
}

fn serve(config: &Path, socket: TcpStream, door: &Arc<Door>) {
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
    door.inside.fetch_add(1, Ordering::SeqCst);
    let door = Arc::clone(door);
    thread::spawn(move || {
        sshd.wait().unwrap();
        door.inside.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Makes the folder that the system's own sshd service would make.
fn make_run_folder() {
    drop(fs::create_dir_all("/run/sshd"));
}

pub(super) fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output().unwrap();
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// The session that a process is in.
pub(super) fn session(process: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}

/// A dead one that nobody has buried yet does not count.
pub(super) fn is_alive(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Far longer than it takes.
const WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < WAIT_MAX, "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
