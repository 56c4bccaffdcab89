//! Uploads and starts of the worker.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use super::super::{BootstrapSettings, ProgramUpload};
use super::check;
use super::sshd::{Sshd, TOKEN, is_alive, said, session, until};
use remuda_testkit::SmallDisk;

#[tokio::test]
async fn worker_outlives_the_bootstrap() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let token_file = sshd.path("token");
    let worker = format!(
        "printf %s \"$REMUDA_TOKEN\" >{0}.new; mv {0}.new {0}; exec sleep 1000",
        token_file.display()
    );
    sshd.bootstrap(&sshd.settings(&worker)).await.unwrap();
    sshd.wait_disconnected().await;

    let process = sshd.worker();
    assert!(is_alive(process));
    until("the worker wrote its token", || token_file.exists()).await;
    assert_eq!(fs::read_to_string(&token_file).unwrap(), TOKEN);
    assert_eq!(session(process), Some(process), "it has no session of its own");
    let log = sshd.path("remuda/worker.log");
    let streams = [0, 1, 2].map(|fd| fs::read_link(format!("/proc/{process}/fd/{fd}")).unwrap());
    assert_eq!(streams.each_ref().map(|it| it.as_path()), ["/dev/null".as_ref(), &*log, &*log]);
    let open = fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    assert_eq!(open, 3, "something of the bootstrap is left open");
}

#[tokio::test]
async fn environment_reaches_only_the_worker() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    sshd.bootstrap(&sshd.settings("exec sleep 1000")).await.unwrap();
    let mut names: Vec<_> =
        fs::read_dir(sshd.path("remuda")).unwrap().map(|it| it.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lock", "worker.log", "worker.pid"]);
    for name in names {
        let metadata = fs::metadata(sshd.path("remuda").join(&name)).unwrap();
        assert_eq!(metadata.permissions().mode() & 0o077, 0, "{name:?}");
    }
    let process = sshd.worker();
    let holds = |what: &str| {
        let bytes = fs::read(format!("/proc/{process}/{what}")).unwrap();
        String::from_utf8_lossy(&bytes).contains(TOKEN)
    };
    assert!(holds("environ") && !holds("cmdline"));
    assert!(!sshd.text("sshd.log").contains("rmj_"), "{}", sshd.text("sshd.log"));
}

/// A worker that records each of its starts.
fn noting(sshd: &Sshd) -> BootstrapSettings {
    sshd.settings(&format!("echo started >>{}; exec sleep 1000", sshd.path("starts").display()))
}

#[tokio::test]
async fn two_bootstraps_start_one_worker() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    // A slow start, so that the second bootstrap arrives in the middle of it.
    let slow = sshd.path("setsid");
    fs::write(&slow, "#!/bin/sh\nsleep 1\nexec /usr/bin/setsid \"$@\"\n").unwrap();
    said("chmod", &["+x", slow.to_str().unwrap()]);
    sshd.set(&format!("SetEnv PATH={}:/usr/bin:/bin", slow.parent().unwrap().display()));
    let settings = noting(&sshd);
    let (one, other) = tokio::join!(sshd.bootstrap(&settings), sshd.bootstrap(&settings));
    one.unwrap();
    other.unwrap();
    let process = sshd.worker();
    sshd.bootstrap(&settings).await.unwrap();
    assert_eq!(sshd.worker(), process);
    until("it was noted", || !sshd.text("starts").is_empty()).await;
    assert_eq!(sshd.text("starts"), "started\n");
}

#[tokio::test]
async fn dead_worker_is_restarted() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let settings = noting(&sshd);
    sshd.bootstrap(&settings).await.unwrap();
    let first = sshd.worker();
    said("kill", &["-KILL", &first.to_string()]);
    until("it is dead", || !is_alive(first)).await;
    sshd.bootstrap(&settings).await.unwrap();
    assert_ne!(sshd.worker(), first);
    until("both were noted", || sshd.text("starts") == "started\nstarted\n").await;
}

#[tokio::test]
async fn reused_pid_is_not_the_worker() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    fs::create_dir(sshd.path("remuda")).unwrap();
    // Alive with another start time: the pid was reused, as after a restart of the pod.
    fs::write(sshd.path("remuda/worker.pid"), format!("{} 1\n", std::process::id())).unwrap();
    sshd.bootstrap(&sshd.settings("exec sleep 1000")).await.unwrap();
    assert_ne!(sshd.worker(), std::process::id());

    // A zombie, as in a container whose first process does not reap.
    said("kill", &["-KILL", &sshd.worker().to_string()]);
    let mut dead = Command::new("true").spawn().unwrap();
    until("it is dead", || !is_alive(dead.id())).await;
    let stat = fs::read_to_string(format!("/proc/{}/stat", dead.id())).unwrap();
    let born = stat.rsplit_once(") ").unwrap().1.split(' ').nth(19).unwrap();
    fs::write(sshd.path("remuda/worker.pid"), format!("{} {born}\n", dead.id())).unwrap();
    sshd.bootstrap(&sshd.settings("exec sleep 1000")).await.unwrap();
    assert_ne!(sshd.worker(), dead.id());
    dead.wait().unwrap();
}

#[tokio::test]
async fn worker_that_exits_at_once_reports_why() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let settings =
        sshd.settings("seq 1 100000; echo \"$REMUDA_TOKEN: no answer from plane:7777\" >&2; exit 1");
    let result = sshd.bootstrap(&settings).await;
    assert!(!result.as_ref().unwrap_err().message.contains("rmj_"), "{result:?}");
    check(result, "started", false, &["exited at once", "99999\n100000\n…: no answer from plane:7777"]);
    let settings = sshd.settings("exec /no/such/program");
    check(sshd.bootstrap(&settings).await, "started", false, &["/no/such/program", "not found"]);
}

#[tokio::test]
async fn invalid_variable_is_reported_before_connecting() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let mut settings = sshd.settings("exec sleep 1000");
    settings.environment.insert("A B".to_owned(), "secret".to_owned());
    check(sshd.bootstrap(&settings).await, "start", false, &["\"A B\" is not a valid variable name"]);
    assert!(sshd.text("sshd.log").is_empty());
}

fn uploading(sshd: &Sshd, folder: &Path) -> BootstrapSettings {
    let to = folder.join("bin/remuda");
    let mut settings = sshd.settings(&format!("exec {}", to.display()));
    settings.upload = Some(ProgramUpload { from: sshd.path("ours"), to: to.display().to_string() });
    settings
}

/// A program of a few megabytes that keeps running and prints its version.
fn program(sshd: &Sshd, name: &str) -> Vec<u8> {
    let mut bytes = format!("#!/bin/sh\necho {name}\nexec sleep 1000\n").into_bytes();
    bytes.extend((0..5_000_000_u32).map(|it| (it.wrapping_mul(2_654_435_761) >> 24) as u8));
    fs::write(sshd.path("ours"), &bytes).unwrap();
    bytes
}

#[tokio::test]
async fn program_is_uploaded_only_when_it_changed() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let folder = tempfile::tempdir().unwrap();
    let (settings, there) = (uploading(&sshd, folder.path()), folder.path().join("bin/remuda"));
    let bytes = program(&sshd, "first");
    sshd.bootstrap(&settings).await.unwrap();
    assert!(fs::read(&there).unwrap() == bytes);
    assert_eq!(fs::metadata(&there).unwrap().permissions().mode() & 0o777, 0o755);
    until("it speaks", || sshd.text("remuda/worker.log") == "first\n").await;

    let file = fs::metadata(&there).unwrap().ino();
    sshd.bootstrap(&settings).await.unwrap();
    assert_eq!(fs::metadata(&there).unwrap().ino(), file, "the same one was sent twice");
    let bytes = program(&sshd, "second");
    sshd.bootstrap(&settings).await.unwrap();
    assert!(fs::read(&there).unwrap() == bytes);
    assert_eq!(fs::read_dir(folder.path().join("bin")).unwrap().count(), 1, "a part was left behind");
}

#[tokio::test]
async fn upload_failure_is_reported() {
    if remuda_testkit::program("sshd").is_none() {
        return;
    }
    let sshd = Sshd::start("");
    let Some(disk) = SmallDisk::mount("64k") else { return };
    let settings = uploading(&sshd, disk.path());
    check(sshd.bootstrap(&settings).await, "upload", false, &["our own", "No such file"]);
    program(&sshd, "large");
    check(sshd.bootstrap(&settings).await, "upload", false, &["No space left"]);
    assert_eq!(fs::read_dir(disk.path().join("bin")).unwrap().count(), 0, "a part was left behind");
}
