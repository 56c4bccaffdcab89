//! `remuda models`: what models there are to fetch, fetching them, and what an engine makes of a folder.

mod check;
mod get;
mod status;

use std::process::ExitCode;

use clap::{Args, Subcommand};

#[derive(Debug, Args)]
pub(super) struct ModelsCommand {
    #[command(subcommand)]
    action: ModelsAction,
}

#[derive(Debug, Subcommand)]
enum ModelsAction {
    /// List the models that can be fetched by name, and which of them are here
    List(get::List),
    /// Fetch a model by name: a pinned version, checked by its hash, nothing in it ever run
    ///
    /// Example: remuda models get all-minilm-l6-v2
    Get(get::Get),
    /// Tell what a file or folder holds, which engine would run it and what it takes, or why none would
    ///
    /// Example: remuda models check ./all-minilm-l6-v2
    Check(check::Check),
    /// Show the models that a plane's fleet serves: their copies, what waits for them, who died of what
    ///
    /// Example: remuda models status
    Status(status::Status),
}

impl ModelsCommand {
    pub(super) async fn run(self) -> anyhow::Result<ExitCode> {
        match self.action {
            ModelsAction::List(list) => list.run(),
            ModelsAction::Get(get) => get.run().await,
            ModelsAction::Check(check) => check.run(),
            ModelsAction::Status(status) => status.run().await,
        }
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.0} kB", (bytes as f64 / 1e3).ceil()),
        1_000_000..1_000_000_000 => format!("{:.0} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}
