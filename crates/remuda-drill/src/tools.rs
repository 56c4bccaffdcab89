//! What the machine must lend for some faults: a small file system in memory (full disk), strace (fsync that fails or is
//! slow), libfaketime (clock). Where something is missing, its faults are not drawn, and the report says why.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Pid;

use crate::schedule::FaultKind;

/// The plane's disk: room for all jobs that it keeps, twice what one takes (4 kB), and never too large to be filled in a
/// moment.
const DISK_BYTES_MIN: u64 = 256 << 20;
const DISK_BYTES_PER_JOB: f64 = 8192.0;
const DISK_BYTES_MAX: u64 = 4 << 30;
const FILL_PIECE_BYTES: usize = 1 << 20;
const FAKETIME: [&str; 3] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// A file system of its own for the plane's data, unmounted when dropped.
#[derive(Debug)]
pub(crate) struct SmallDisk {
    folder: PathBuf,
}

impl SmallDisk {
    pub(crate) fn mount(folder: PathBuf, bytes: u64) -> anyhow::Result<SmallDisk> {
        std::fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let size = format!("size={bytes}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, "none"]).arg(&folder).output();
        let mounted = mounted.context("cannot run mount")?;
        anyhow::ensure!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr).trim());
        Ok(SmallDisk { folder })
    }

    /// Writes until nothing fits any more.
    pub(crate) fn fill(&self) {
        let piece = vec![0; FILL_PIECE_BYTES];
        let Ok(mut filler) = std::fs::File::create(self.filler()) else { return };
        while std::io::Write::write_all(&mut filler, &piece).is_ok() {}
    }

    pub(crate) fn clear(&self) {
        drop(std::fs::remove_file(self.filler()));
    }

    fn filler(&self) -> PathBuf {
        self.folder.join("filler")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg("-l").arg(&self.folder).status();
        if !unmounted.is_ok_and(|status| status.success()) {
            eprintln!("remuda: {} could not be unmounted", self.folder.display());
        }
    }
}

/// Tampers with the syncs of a running process for so long.
pub(crate) async fn tamper_with_syncs(process: Pid, kind: FaultKind, length: Duration) -> anyhow::Result<()> {
    let inject = match kind {
        FaultKind::SyncFails => "fdatasync,fsync:error=EIO",
        _ => "fdatasync,fsync:delay_enter=200000",
    };
    let mut strace = tokio::process::Command::new("strace")
        .args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync", "-e"])
        .arg(format!("inject={inject}"))
        .args(["-p", &process.as_raw_nonzero().to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .context("cannot run strace")?;
    // It ends by itself if the process does.
    let ended = tokio::time::timeout(length, strace.wait()).await;
    if ended.is_err() {
        // Asked to end, it lets go of the process; killed, it might leave it stopped.
        let id = strace.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(id) = id {
            rustix::process::kill_process(id, rustix::process::Signal::TERM).ok();
        }
        drop(tokio::time::timeout(Duration::from_secs(5), strace.wait()).await);
    }
    Ok(())
}

fn may_trace() -> bool {
    let traced = Command::new("strace").args(["-o", "/dev/null", "true"]).output();
    traced.is_ok_and(|traced| traced.status.success())
}

/// The clock of a program, as an offset in a file that libfaketime reads at every look.
#[derive(Clone, Debug)]
pub(crate) struct FakeClock {
    library: &'static str,
    file: PathBuf,
}

impl FakeClock {
    pub(crate) fn find(folder: &Path) -> Option<FakeClock> {
        let library = FAKETIME.into_iter().find(|path| Path::new(path).exists())?;
        let clock = FakeClock { library, file: folder.join("clock") };
        clock.set(0).ok()?;
        Some(clock)
    }

    /// Seconds that the clock is ahead.
    pub(crate) fn set(&self, seconds: i64) -> anyhow::Result<()> {
        // In one step, so that no look at the clock finds half a number.
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{seconds:+}\n"))?;
        std::fs::rename(&new, &self.file).context("cannot set the clock")
    }

    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("LD_PRELOAD", self.library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            // Timers go by the monotonic clock, which no operator can set.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
    }
}

/// What this machine lends, and what it does not, with the reason.
#[derive(Debug)]
pub(crate) struct Tools {
    pub(crate) disk: Option<SmallDisk>,
    pub(crate) clock: Option<FakeClock>,
    pub(crate) not_tried: Vec<(FaultKind, String)>,
}

impl Tools {
    /// `jobs_kept` is how many jobs the plane has on its disk at most.
    pub(crate) fn find(folder: &Path, jobs_kept: f64) -> Tools {
        let mut not_tried = Vec::new();
        let bytes =
            DISK_BYTES_MIN.saturating_add((jobs_kept * DISK_BYTES_PER_JOB) as u64).min(DISK_BYTES_MAX);
        let disk = match SmallDisk::mount(folder.join("data"), bytes) {
            Ok(disk) => Some(disk),
            Err(error) => {
                not_tried.push((FaultKind::DiskFull, format!("no file system can be mounted: {error}")));
                None
            }
        };
        if !may_trace() {
            let why = "strace is missing or may not trace".to_owned();
            not_tried.extend([(FaultKind::SyncFails, why.clone()), (FaultKind::SyncSlow, why)]);
        }
        let clock = FakeClock::find(folder);
        if clock.is_none() {
            not_tried.push((FaultKind::ClockJump, "libfaketime is not installed".to_owned()));
        }
        Tools { disk, clock, not_tried }
    }

    pub(crate) fn possible(&self) -> Vec<FaultKind> {
        let is_possible = |kind: &FaultKind| self.not_tried.iter().all(|(missing, _)| missing != kind);
        FaultKind::ALL.into_iter().filter(is_possible).collect()
    }
}
