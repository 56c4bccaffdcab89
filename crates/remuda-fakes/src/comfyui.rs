//! A fake ComfyUI: the same HTTP answers, the same messages in the same order, the same quirks, and faults on demand.
//! `README.md` in this folder lists where it knowingly differs; `tests/transcripts` replays recorded runs of the real
//! server against it.
//!
//! ```text
//!  FakeComfyui ── a thread with its own runtime: stands for the process of a real server
//!   │        routes ──▶ queue ──▶ executor ──▶ history
//!   │                                │
//!   │                                └──▶ outbox ──▶ one socket after the other
//!   └── disk, counts, faults, random generator: what outlives a crash
//! ```
//!
//! A crash drops the runtime with every connection, so a client sees what it would see after `kill -9`.

mod cache;
mod clock;
mod control;
mod executor;
mod faults;
mod files;
mod graph;
mod history;
mod image;
mod info;
mod jobs;
mod nodes;
mod plan;
mod process;
mod progress;
mod queue;
mod routes;
mod server;
mod socket;
mod submit;
mod tally;
#[cfg(test)]
mod tests;
mod transfer;
mod validate;
mod values;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub use control::Control;
pub use faults::{Fault, Faults, UnknownFault};
pub use tally::Counts;

use process::Process;

/// The version of ComfyUI to imitate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    V0_3_75,
    V0_7_0,
    #[default]
    V0_30_0,
}

impl Version {
    pub const ALL: [Version; 3] = [Version::V0_3_75, Version::V0_7_0, Version::V0_30_0];

    pub fn name(self) -> &'static str {
        match self {
            Version::V0_3_75 => "0.3.75",
            Version::V0_7_0 => "0.7.0",
            Version::V0_30_0 => "0.30.0",
        }
    }
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Version, String> {
        let known = Version::ALL.into_iter().find(|version| version.name() == text);
        known.ok_or_else(|| format!("there are 0.3.75, 0.7.0 and 0.30.0, and no \"{text}\""))
    }
}

/// Options of a fake ComfyUI.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port 0 picks a free one.
    pub listen: SocketAddr,
    pub version: Version,
    /// Speed of the simulated GPU: node durations are divided by it. Infinite means no time at all.
    pub speed: f64,
    pub vram_bytes: u64,
    /// Checkpoint files that it lists.
    pub models: Vec<String>,
    pub faults: Faults,
    /// Two runs with one seed and the same prompts in the same order get the same faults.
    pub seed: u64,
    /// Prefix of every path, for instance `/comfy`; empty by default.
    pub base_path: String,
    /// Requires `Authorization: Bearer TOKEN`.
    pub token: Option<String>,
    /// Reported as the name of the GPU.
    pub name: String,
    /// Restarts by itself this long after a crash; otherwise it stays down until `restart`.
    pub revive: Option<Duration>,
    /// GPU time stands still until `Control::advance`.
    pub manual_time: bool,
    /// How long temporary faults last: slow-reader, slow-http.
    pub trouble: Duration,
    /// Saved files are written here too, as by a server on this machine; it reports the folder in its arguments.
    pub output_directory: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            version: Version::default(),
            speed: 1.0,
            vram_bytes: 24 << 30,
            models: vec!["v1-5-pruned-emaonly-fp16.safetensors".to_owned()],
            faults: Faults::none(),
            seed: 0,
            base_path: String::new(),
            token: None,
            name: "Imagined GPU".to_owned(),
            revive: None,
            manual_time: false,
            trouble: Duration::from_secs(5),
            output_directory: None,
        }
    }
}

/// One fake server in this process. Dropping it stops it.
#[derive(Debug)]
pub struct Fake {
    process: Process,
}

impl Fake {
    /// Starts listening and answering.
    pub async fn start(options: Options) -> io::Result<Fake> {
        Ok(Fake { process: Process::start(options).await? })
    }

    /// `http://ADDRESS` with the base path, without a trailing slash.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address(), self.process.options().base_path)
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// Offers the same commands as the endpoints under `/fake`.
    pub fn control(&self) -> Control {
        self.process.control()
    }

    /// Requests and executions so far, across restarts.
    pub fn counts(&self) -> Counts {
        self.process.counts()
    }

    /// As by `kill -9`: connections drop without a close frame, and the port refuses.
    pub async fn kill(&self) {
        self.process.control().kill().await;
    }

    /// Restarts on the same port with empty queue, history and cache, the counter at 0 and no temporary files. The
    /// output folder is kept. Kills the server first if it runs.
    pub async fn restart(&self) {
        self.process.control().restart().await;
    }

    /// Resolves once it has crashed or was killed.
    pub async fn died(&self) {
        self.process.died().await;
    }

    pub async fn stop(self) {
        self.process.stop().await;
    }
}
