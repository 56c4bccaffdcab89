//! ONNX Runtime and sentence-transformers, in a Python process of their own that is asked line by line.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

const SCRIPT: &str = include_str!("others.py");
const PACKAGES: [&str; 5] = ["onnx", "onnxruntime", "safetensors", "sentence-transformers", "tokenizers"];

/// Those that there are, by what the script calls them and what people do.
pub(crate) const OTHERS: [(&str, &str); 2] =
    [("onnxruntime", "ONNX Runtime"), ("sentence_transformers", "sentence-transformers")];

#[derive(Debug)]
pub(crate) struct PythonBaseline {
    versions: Map<String, Value>,
    _child: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

#[derive(Deserialize)]
struct Rate {
    rate: f64,
}

#[derive(Deserialize)]
struct Vectors {
    vectors: Vec<Vec<f32>>,
}

impl PythonBaseline {
    pub(crate) async fn start(python: &Path, model: &Path, work: &Path) -> anyhow::Result<Self> {
        let script = work.join("others.py");
        std::fs::write(&script, SCRIPT).with_context(|| format!("cannot write {}", script.display()))?;
        let mut command = Command::new(python);
        command.arg(&script).arg(model).arg(work).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child =
            command.kill_on_drop(true).spawn().with_context(|| format!("cannot run {}", python.display()))?;
        let questions = child.stdin.take().context("no way to ask Python")?;
        let answers = BufReader::new(child.stdout.take().context("no way to hear Python")?).lines();
        let mut others = PythonBaseline { versions: Map::new(), _child: child, questions, answers };
        others.versions = others.answer().await?;
        Ok(others)
    }

    pub(crate) fn version(&self, engine: &str) -> Option<&str> {
        self.versions.get(engine).and_then(Value::as_str)
    }

    /// Texts a second of processor time.
    pub(crate) async fn rate(
        &mut self,
        engine: &str,
        threads: u32,
        texts: &[String],
        seconds: f64,
    ) -> anyhow::Result<f64> {
        let question = json!({ "engine": engine, "threads": threads, "texts": texts, "seconds": seconds });
        Ok(self.ask::<Rate>(&question).await?.rate)
    }

    pub(crate) async fn vectors(&mut self, engine: &str, texts: &[String]) -> anyhow::Result<Vec<Vec<f32>>> {
        Ok(self.ask::<Vectors>(&json!({ "engine": engine, "vectors": texts })).await?.vectors)
    }

    async fn ask<T: DeserializeOwned>(&mut self, question: &Value) -> anyhow::Result<T> {
        self.questions.write_all(format!("{question}\n").as_bytes()).await?;
        self.answer().await
    }

    async fn answer<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let line =
            self.answers.next_line().await?.context("Python ended; what it said of it stands above")?;
        serde_json::from_str(&line).with_context(|| format!("Python said {line:?}"))
    }
}

/// A Python that has what the script needs: made in a folder that is kept, since it is some gigabytes.
pub(crate) async fn python(folder: &Path) -> anyhow::Result<PathBuf> {
    let python = folder.join("bin/python");
    let done = folder.join("installed");
    if done.exists() {
        return Ok(python);
    }
    eprintln!("  installing {} into {}: some gigabytes", PACKAGES.join(", "), folder.display());
    run(Command::new("python3").args(["-m", "venv"]).arg(folder)).await?;
    run(Command::new(&python).args(["-m", "pip", "install", "--quiet"]).args(PACKAGES)).await?;
    std::fs::write(done, "")?;
    Ok(python)
}

async fn run(command: &mut Command) -> anyhow::Result<()> {
    let hint = "give --python a Python that has onnxruntime and sentence-transformers, or measure --alone";
    let status = command.stdout(Stdio::null()).status().await.context(hint)?;
    ensure!(status.success(), "{:?} failed: {hint}", command.as_std());
    Ok(())
}
