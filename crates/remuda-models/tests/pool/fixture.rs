//! A pool of fake models for tests.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use remuda_models::fake::FakeEngine;
use remuda_models::request::{Chat, ChatMessage, Sampling};
use remuda_models::{
    AnswerHandle, CallOptions, ChildCommand, Engines, ModelAnswer, ModelError, ModelPool, ModelPoolSettings,
    ModelRequest, ModelSnapshot, ModelSpec,
};
use rustix::process::{Pid, Signal, kill_process};

/// Longer than anything here takes on an overloaded machine; only reached if something is broken.
pub(crate) const LONG: Duration = Duration::from_secs(60);

pub(crate) struct PoolFixture {
    pub(crate) pool: ModelPool,
    pub(crate) folder: tempfile::TempDir,
}

/// The program that is a copy, or has one and is killed.
pub(crate) const STAND_IN: &str = env!("CARGO_BIN_EXE_remuda-models-stand-in");

pub(crate) fn settings() -> ModelPoolSettings {
    let child = ChildCommand { program: Some(PathBuf::from(STAND_IN)), ..ChildCommand::default() };
    ModelPoolSettings { child, ..ModelPoolSettings::default() }
}

/// The isolation of a copy, as a setting of the fake model's file.
pub(crate) const KINDS: [&str; 2] = ["isolation = thread", "isolation = process"];

pub(crate) fn fixture() -> PoolFixture {
    fixture_with(settings())
}

pub(crate) fn fixture_with(settings: ModelPoolSettings) -> PoolFixture {
    let pool = ModelPool::start(settings, Engines::default().with(FakeEngine));
    PoolFixture { pool, folder: tempfile::tempdir().unwrap() }
}

impl PoolFixture {
    /// A model called `name` with this configuration.
    pub(crate) fn spec(&self, name: &str, config: &str) -> ModelSpec {
        let path = self.path(name);
        std::fs::write(&path, config).unwrap();
        ModelSpec::new(name, path)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name).with_extension("fake")
    }

    /// Starts this many copies of an embedding model called `embed` and waits until they are ready.
    pub(crate) fn embedding(&self, copies: u32, config: &str) {
        let spec = self.spec("embed", &format!("text_embedding\n{config}"));
        self.pool.add(ModelSpec { copies, ..spec }).unwrap();
        self.all_ready(copies);
    }

    /// Waits until this many copies are ready and no others exist, not even dead ones.
    pub(crate) fn all_ready(&self, copies: u32) -> ModelSnapshot {
        self.until("all are ready", |model| {
            model.copies.len() == copies as usize && model.copies.iter().all(|copy| copy.state == "ready")
        })
    }

    pub(crate) fn ask(&self, text: &str) -> AnswerHandle {
        self.try_ask(text).unwrap()
    }

    pub(crate) fn try_ask(&self, text: &str) -> Result<AnswerHandle, ModelError> {
        let request = ModelRequest::TextEmbedding { texts: vec![text.to_owned()] };
        self.pool.call("embed", request, CallOptions { deadline: Some(Instant::now() + LONG) })
    }

    pub(crate) fn embed(&self, text: &str) -> Result<ModelAnswer, ModelError> {
        self.try_ask(text)?.wait()
    }

    pub(crate) fn model(&self) -> ModelSnapshot {
        self.pool.snapshot().models.into_iter().find(|model| model.model == "embed").unwrap()
    }

    /// Releases all injected hangs.
    pub(crate) fn release(&self, name: &str) {
        std::fs::write(self.path(name).with_extension("go"), "").unwrap();
    }

    /// Polls the model until the condition holds.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(&ModelSnapshot) -> bool) -> ModelSnapshot {
        wait_until(what, || Some(self.model()).filter(&is_so).ok_or_else(|| format!("{:#?}", self.model())))
    }
}

/// Polls until the closure succeeds.
pub(crate) fn wait_until<T>(what: &str, look: impl Fn() -> Result<T, String>) -> T {
    let end = Instant::now() + LONG;
    loop {
        match look() {
            Ok(seen) => return seen,
            Err(instead) => assert!(Instant::now() < end, "timed out waiting for: {what}; {instead}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

impl Drop for PoolFixture {
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

/// Resident memory of a process in bytes: `VmRSS` is all of it, `RssAnon` without pages of files.
pub(crate) fn resident(pid: u32, kind: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(kind)?.strip_prefix(':')).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

pub(crate) fn chat(text: &str) -> ModelRequest {
    ModelRequest::TextToText(Chat {
        messages: vec![ChatMessage { role: "user".to_owned(), content: text.to_owned() }],
        sampling: Sampling::default(),
    })
}
