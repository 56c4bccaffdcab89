//! A stand-in for ComfyUI: the same HTTP answers, the same messages in the same order, the same oddities, and faults on
//! demand. `README.md` beside `fake.rs` lists where it knowingly differs; recorded runs of the real server are replayed
//! against it by `tests/transcripts.rs`.
//!
//! ```text
//!  Fake ── a thread with a runtime of its own: what a process is to the real one
//!   │        routes ──▶ queue ──▶ executor ──▶ history
//!   │                                │
//!   │                                └──▶ outbox ──▶ one socket after the other
//!   └── disk, counts, faults, dice: what outlives a death
//! ```
//!
//! A death drops the runtime and every connection with it; whatever a client meets then, it also meets after `kill -9`.

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
use std::str::FromStr;
use std::time::Duration;

pub use control::Control;
pub use faults::{Fault, Faults, UnknownFault};
pub use tally::Counts;

use process::Process;

/// Which ComfyUI it looks like.
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

/// How a stand-in is to be.
#[derive(Clone, Debug)]
pub struct Options {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    pub version: Version,
    /// Speed of the imagined GPU: the seconds that nodes take are divided by it. Infinite means no time at all.
    pub speed: f64,
    pub vram_bytes: u64,
    /// Checkpoint files it claims to have.
    pub models: Vec<String>,
    pub faults: Faults,
    /// Two runs with one seed and the same prompts in the same order meet the same faults.
    pub seed: u64,
    /// What stands before every path, for instance `/comfy`; empty by default.
    pub base_path: String,
    /// Demands `Authorization: Bearer TOKEN`.
    pub token: Option<String>,
    /// Shown as the GPU's name.
    pub name: String,
    /// Comes back by itself so long after it died; otherwise it stays dead until `restart`.
    pub revive: Option<Duration>,
    /// The GPU's time stands still until `Control::advance`.
    pub manual_time: bool,
    /// How long the faults last that pass by themselves: slow-reader, slow-http.
    pub trouble: Duration,
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
        }
    }
}

/// One server in this process. Dropping it stops it.
#[derive(Debug)]
pub struct Fake {
    process: Process,
}

impl Fake {
    /// Listens, and answers from then on.
    pub async fn start(options: Options) -> io::Result<Fake> {
        Ok(Fake { process: Process::start(options).await? })
    }

    /// `http://ADDRESS` with the base path, without a slash at the end.
    pub fn url(&self) -> String {
        format!("http://{}{}", self.address(), self.process.options().base_path)
    }

    pub fn address(&self) -> SocketAddr {
        self.process.address()
    }

    /// The same powers as the endpoints under `/fake`.
    pub fn control(&self) -> Control {
        self.process.control()
    }

    /// What it was asked and what it did so far, over all its lives.
    pub fn counts(&self) -> Counts {
        self.process.counts()
    }

    /// As by `kill -9`: connections drop without a closing frame, the port refuses.
    pub async fn kill(&self) {
        self.process.control().kill().await;
    }

    /// Comes back on the same port with an empty queue, history and cache, the counter at 0 and no temporary files.
    /// The output folder is kept. Dies first, if it is alive.
    pub async fn restart(&self) {
        self.process.control().restart().await;
    }

    /// Answers once it has died by itself or by `kill`.
    pub async fn died(&self) {
        self.process.died().await;
    }

    pub async fn stop(self) {
        self.process.stop().await;
    }
}
