//! `remuda bench fleet`: a large fleet on this machine. Many workers that beat while jobs flow, the control cycle over many
//! workers and a long queue, and how long a job of a killed worker takes to run elsewhere.

mod cycle;
mod killed_workers;
mod many_workers;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use crate::figures::{self, Figures};
use crate::open_files;

#[derive(Debug, Args)]
pub(crate) struct FleetBenchOptions {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Workers that beat
    #[arg(long, default_value_t = 10_000)]
    workers: usize,
    /// Jobs submitted each second meanwhile
    #[arg(long, default_value_t = 1000)]
    jobs: u64,
    /// Seconds for which that is measured
    #[arg(long, default_value_t = 30)]
    seconds: u64,
    /// Jobs that wait while the control cycle is measured
    #[arg(long, default_value_t = 100_000)]
    waiting: u64,
    /// Worker processes that are killed, one after the other
    #[arg(long, default_value_t = 20)]
    kills: usize,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(options: FleetBenchOptions) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &FleetBenchOptions, data: &Path) -> anyhow::Result<Figures> {
    let mut table = Figures::default();
    cycle::measure(&mut table, options.workers, options.waiting)?;
    killed_workers::measure(&mut table, options.kills, &data.join("kills")).await?;
    open_files::allow(options.workers as u64)?;
    many_workers::measure(&mut table, options, &data.join("crowd")).await?;
    Ok(table)
}
