//! A plane with models in it, and OpenAI's own client that asks them.

use std::ops::Deref;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::clients::tools::openai_python;
use crate::harness::{Client, Process, free_address, remuda, wait_until};

const PACKAGES: &str = include_str!("requirements.txt");

/// The Python with OpenAI's client; without it the test is skipped.
pub(super) fn python() -> Option<PathBuf> {
    openai_python(PACKAGES)
}

/// `remuda up --model …`.
#[derive(Debug)]
pub(super) struct Host {
    pub(super) process: Process,
    client: Client,
    folder: TempDir,
}

impl Deref for Host {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Host {
    /// With these models, each `NAME=FILE,…`; a file that ends in `.fake` says what the stand-in does, by its first word.
    pub(super) async fn up(models: &[&str]) -> Host {
        Host::up_with(models, &[]).await
    }

    /// As `up`, with more arguments.
    pub(super) async fn up_with(models: &[&str], more: &[&str]) -> Host {
        let folder = tempfile::tempdir().unwrap();
        stand_ins(folder.path());
        loop {
            let address = free_address().to_string();
            let mut up = remuda(folder.path());
            up.args(["up", "--data", "data", "--listen", &address]);
            up.args(models.iter().flat_map(|model| ["--model", model]));
            let mut process = Process::start("up", up.args(more));
            if process.line("is up on").await.is_some() {
                let host = Host { process, client: Client::new(format!("http://{address}")), folder };
                host.is_ready().await;
                return host;
            }
            // Another process took the address first.
            assert!(process.said().contains("cannot listen"), "it should be up: {}", process.said());
        }
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Until every model has all its copies.
    async fn is_ready(&self) {
        wait_until("all copies are ready", async || {
            let status = self.get("/remuda/v1/models").await;
            let models = status["models"].as_array().unwrap();
            let is_whole = |model: &Value| {
                let ready = copies(model).iter().filter(|copy| copy["state"] == "ready").count();
                Some(ready as u64) == model["here"]["copies_wanted"].as_u64()
            };
            models.iter().all(is_whole).then_some(())
        })
        .await;
    }

    /// One model as operators see it.
    pub(super) async fn model(&self, name: &str) -> Value {
        let status = self.get("/remuda/v1/models").await;
        let models = status["models"].as_array().unwrap();
        models.iter().find(|model| model["id"] == name).unwrap_or_else(|| panic!("{status}")).clone()
    }

    /// Starts a script of OpenAI's client.
    pub(super) fn script(&self, python: &Path, name: &str, arguments: &[&str]) -> Process {
        script(self, python, self.folder(), name, arguments)
    }
}

/// The same against any plane.
pub(super) fn script(
    client: &Client,
    python: &Path,
    folder: &Path,
    name: &str,
    arguments: &[&str],
) -> Process {
    let ours = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/models").join(name);
    let key = if client.token.is_empty() { "unused" } else { &client.token };
    let mut command = std::process::Command::new(python);
    command.current_dir(folder).arg("-u").arg(ours).args(arguments);
    command.env("OPENAI_BASE_URL", format!("{}/v1", client.url)).env("OPENAI_API_KEY", key);
    Process::start(name, command.env("NO_PROXY", "127.0.0.1"))
}

/// Waits until a script has ended, and well.
pub(super) async fn ended_well(mut script: Process) -> String {
    let status = script.ended().await;
    assert!(status.success(), "{status}: {}", script.said());
    script.said()
}

pub(super) fn copies(model: &Value) -> Vec<Value> {
    model["here"]["copies"].as_array().cloned().unwrap_or_default()
}

/// Models that compute nothing.
pub(crate) fn stand_ins(folder: &Path) {
    for (name, habits) in [
        ("embed.fake", "text_embedding"),
        ("chat.fake", "text_to_text"),
        ("draw.fake", "text_to_image"),
        ("broken.fake", "text_embedding\nfailing_loads = 1000000"),
    ] {
        std::fs::write(folder.join(name), habits).unwrap();
    }
}

/// The path of a stand-in model.
pub(super) fn stand_in(folder: &Path, name: &str) -> PathBuf {
    stand_ins(folder);
    folder.join(name)
}
