//! `remuda bench`: figures about this machine and about Remuda on it, taken in one run, so that their ratios mean
//! something on any machine.

mod api;
mod child;
mod comfyui;
mod core;
mod fleet;
mod limits;
mod line;
mod load;
#[cfg(feature = "models")]
mod models;
mod queue;
mod rows;

use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct Bench {
    #[command(subcommand)]
    action: BenchAction,
}

#[derive(Debug, Subcommand)]
enum BenchAction {
    /// The queue: durable lifecycles, dispatch latency, claims, memory, restart, hashes; and the machine's limits
    ///
    /// Run it once on disk and once with --data on a memory file system, where syncs are free and only CPU counts.
    /// Example: remuda bench queue --data /dev/shm/bench
    Queue(queue::Options),
    /// The way to ComfyUI and back: added latency, jobs a second, recovery of lost news, requests a job
    ///
    /// Against stand-ins that need no time to compute, so that only Remuda's share is left.
    /// Example: remuda bench comfyui --servers 4 --data /dev/shm/bench
    Comfyui(comfyui::Options),
    /// What clients meet: submissions through Comfy API v2, a thousand listeners, a large file up and down
    ///
    /// Example: remuda bench api --data /dev/shm/bench
    Api(api::Options),
    /// A large fleet: many workers that beat while jobs flow, the control cycle, and jobs of killed workers
    ///
    /// Each worker is a connection: `ulimit -n` must allow a few more than there are workers.
    /// Example: remuda bench fleet --workers 2000 --seconds 10 --kills 5 --data /dev/shm/bench
    Fleet(fleet::Options),
    /// Models in the process beside ONNX Runtime and sentence-transformers; deaths, recovery, overload, words a second
    ///
    /// Build with --release: the figures of a debug build say nothing.
    /// Example: remuda bench models --models ~/models --python ./venv/bin/python
    #[cfg(feature = "models")]
    Models(models::Options),
}

impl Bench {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            BenchAction::Queue(options) => queue::run(options).await,
            BenchAction::Comfyui(options) => comfyui::run(options).await,
            BenchAction::Api(options) => api::run(options).await,
            BenchAction::Fleet(options) => fleet::run(options).await,
            #[cfg(feature = "models")]
            BenchAction::Models(options) => models::run(options).await,
        }
    }
}
