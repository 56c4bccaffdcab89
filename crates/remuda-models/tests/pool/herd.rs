//! A pool of stand-ins, and what its tests say to it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use remuda_models::fake::Fake;
use remuda_models::request::{Chat, Message, Sampling};
use remuda_models::{
    Answer, Call, ChildCommand, Engines, ModelSnapshot, ModelSpec, Pool, PoolError, PoolSettings, Request,
    Ticket,
};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes on a starved machine; nobody waits for it unless something is broken.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct Herd {
    pub(crate) pool: Pool,
    pub(crate) folder: tempfile::TempDir,
}

/// The program that is a copy, or has one and is killed.
pub(crate) const STAND_IN: &str = env!("CARGO_BIN_EXE_remuda-models-stand-in");

pub(crate) fn settings() -> PoolSettings {
    let child = ChildCommand { program: Some(PathBuf::from(STAND_IN)), ..ChildCommand::default() };
    PoolSettings { child, ..PoolSettings::default() }
}

/// What a copy runs in, as the file of a stand-in says it.
pub(crate) const KINDS: [&str; 2] = ["isolation = thread", "isolation = process"];

pub(crate) fn herd() -> Herd {
    herd_with(settings())
}

pub(crate) fn herd_with(settings: PoolSettings) -> Herd {
    let pool = Pool::start(settings, Engines::default().with(Fake));
    Herd { pool, folder: tempfile::tempdir().unwrap() }
}

impl Herd {
    /// A model called `name`, with these habits.
    pub(crate) fn spec(&self, name: &str, habits: &str) -> ModelSpec {
        let path = self.path(name);
        std::fs::write(&path, habits).unwrap();
        ModelSpec::new(name, path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension("fake")
    }

    /// So many copies of an embedding model called `embed`, ready.
    pub(crate) fn embedding(&self, copies: u32, habits: &str) {
        let spec = self.spec("embed", &format!("text_embedding\n{habits}"));
        self.pool.add(ModelSpec { copies, ..spec }).unwrap();
        self.all_ready(copies);
    }

    /// So many copies of it are ready, and no others are there, not even dead ones.
    pub(crate) fn all_ready(&self, copies: u32) -> ModelSnapshot {
        self.until("all are ready", |model| {
            model.copies.len() == copies as usize && model.copies.iter().all(|copy| copy.state == "ready")
        })
    }

    pub(crate) fn ask(&self, text: &str) -> Ticket {
        self.try_ask(text).unwrap()
    }

    pub(crate) fn try_ask(&self, text: &str) -> Result<Ticket, PoolError> {
        let request = Request::TextEmbedding { texts: vec![text.to_owned()] };
        self.pool.call("embed", request, Call { deadline: Some(Instant::now() + LONG) })
    }

    pub(crate) fn embed(&self, text: &str) -> Result<Answer, PoolError> {
        self.try_ask(text)?.wait()
    }

    pub(crate) fn model(&self) -> ModelSnapshot {
        self.pool.snapshot().models.into_iter().find(|model| model.model == "embed").unwrap()
    }

    /// Lets everything that hangs go on.
    pub(crate) fn release(&self, name: &str) {
        std::fs::write(self.path(name).with_extension("go"), "").unwrap();
    }

    /// Looks again and again until that is so.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&ModelSnapshot) -> bool) -> ModelSnapshot {
        wait_until(what, || Some(self.model()).filter(&is_so).ok_or_else(|| format!("{:#?}", self.model())))
    }
}

/// Looks again and again until there is something.
pub(crate) fn wait_until<T>(what: &str, look: impl Fn() -> Result<T, String>) -> T {
    let end = Instant::now() + LONG;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(instead) => assert!(Instant::now() < end, "never seen: {what}; {instead}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "fake") {
                std::fs::write(path.with_extension("go"), "").unwrap();
            }
        }
        self.pool.close(Duration::ZERO);
    }
}

pub(crate) fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

/// What a process takes of the machine's memory, in bytes: all of it is `VmRSS`, what is not read from a file `RssAnon`.
pub(crate) fn resident(pid: u32, kind: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

pub(crate) fn chat(text: &str) -> Request {
    Request::TextToText(Chat {
        messages: vec![Message { role: "user".to_owned(), content: text.to_owned() }],
        sampling: Sampling::default(),
    })
}
