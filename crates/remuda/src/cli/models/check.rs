//! `remuda models check`: looks at a model's files without loading them.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use remuda_models::{Capability, Device, LoadError, ModelInfo, ModelSpec, engine};
use serde_json::json;

use super::size;
use crate::cli::DataSettings;
use crate::cli::model_path::{find_model, models_folder};
use remuda_net::terminal::escape_control;
use remuda_net::terminal::print_line;

#[derive(Debug, Args)]
pub(super) struct Check {
    /// The file or folder it lies in, or the bare name of a fetched model
    path: PathBuf,
    /// What it is to do, where its files leave that open
    #[arg(long, value_name = "NAME")]
    capability: Option<Capability>,
    /// What it is to compute on: cpu, cuda, cuda:1, …; by default a card, where there is one it can use
    #[arg(long, value_name = "NAME")]
    device: Option<Device>,
    #[command(flatten)]
    settings: DataSettings,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

impl Check {
    pub(super) fn run(self) -> anyhow::Result<ExitCode> {
        let path = find_model(&self.path, &models_folder(&self.settings.load()?))?;
        let spec =
            ModelSpec { capability: self.capability, device: self.device, ..ModelSpec::new("check", &path) };
        match engine::engines().find(&spec) {
            Ok((_, found)) => {
                print_line(&if self.json { json!({ "found": found }).to_string() } else { told(&found) });
                Ok(ExitCode::SUCCESS)
            }
            Err(error) => {
                if self.json {
                    print_line(&json!({ "error": error.to_string(), "kind": kind(&error) }).to_string());
                } else {
                    eprintln!("remuda: {}", escape_control(&error.to_string()));
                }
                Ok(ExitCode::FAILURE)
            }
        }
    }
}

fn told(found: &ModelInfo) -> String {
    let mut lines = vec![
        format!("capability    {}", found.capability),
        format!("architecture  {}", found.architecture),
        format!("engine        {}", found.engine),
        format!("device        {}", found.device),
        format!("memory        {} for each copy", size(found.memory_bytes)),
    ];
    let files = found.files.iter().map(|file| {
        let bytes = file.metadata().map_or(0, |file| file.len());
        format!("file          {} ({})", file.display(), size(bytes))
    });
    lines.extend(files);
    lines.extend(found.notes.iter().map(|note| format!("note          {note}")));
    lines.iter().map(|line| escape_control(line)).collect::<Vec<_>>().join("\n")
}

fn kind(error: &LoadError) -> &'static str {
    match error {
        LoadError::Missing { .. } => "missing",
        LoadError::Truncated { .. } => "truncated",
        LoadError::Wrong { .. } => "wrong",
        LoadError::Unsupported { .. } => "unsupported",
        LoadError::Pickle { .. } => "pickle",
        LoadError::Memory { .. } => "memory",
        LoadError::Device { .. } => "device",
        LoadError::Engine(_) => "engine",
        LoadError::Stopped => "stopped",
    }
}
