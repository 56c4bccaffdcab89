//! Embedding beside ONNX Runtime and sentence-transformers: the same weights and texts, from the text to the vector.
//!
//! The candidates take turns within each figure, so that all meet the same machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use remuda_models::{
    CallOptions, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer, Precision, engines,
};

use super::cpu_time::{self, median};
use super::python_baseline::{OTHERS, PythonBaseline};
use super::texts;
use crate::figures::Figures;

const ROUNDS: usize = 3;
const UNIT: &str = "texts/CPU s";
const PRECISIONS: [(Precision, &str); 2] = [(Precision::Native, "remuda"), (Precision::Int8, "remuda int8")];

pub(crate) async fn measure(
    table: &mut Figures,
    model: &Path,
    others: &mut Option<PythonBaseline>,
    seconds: f64,
) -> anyhow::Result<()> {
    faithful(table, model, others).await?;
    for threads in [1, 2] {
        let pools = PRECISIONS.map(|(precision, name)| (name, pool(model, precision, threads)));
        for (workload, texts) in workloads(model)? {
            let mut rates: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
            for _ in 0..ROUNDS {
                for (name, pool) in &pools {
                    let pool = pool.as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))?;
                    rates.entry(name).or_default().push(rate(pool, &texts, seconds).await?);
                }
                let Some(others) = others else { continue };
                for (engine, name) in OTHERS {
                    if others.version(engine).is_some() {
                        let rate = others.rate(engine, threads, &texts, seconds).await?;
                        rates.entry(name).or_default().push(rate);
                    }
                }
            }
            let rates = rates.into_iter().map(|(name, rates)| (name, median(rates))).collect();
            show(table, &format!("{workload}, {threads} thread(s)"), &rates);
        }
    }
    Ok(())
}

fn show(table: &mut Figures, workload: &str, rates: &BTreeMap<&str, f64>) {
    let of = |name: &str| rates.get(name).copied();
    for (name, rate) in rates {
        let note = match *name {
            "remuda int8" => of("remuda").map(|float| format!("{:.2} of float", rate / float)),
            _ => of("ONNX Runtime").map(|other| format!("{:.2} of ONNX Runtime", rate / other)),
        };
        table.add(&format!("embed {workload}: {name}"), *rate, UNIT, note.unwrap_or_default());
    }
}

/// One pool for each, so that none waits for another's memory.
fn pool(model: &Path, precision: Precision, threads: u32) -> anyhow::Result<ModelPool> {
    let pool = ModelPool::start(ModelPoolSettings::default(), engines());
    pool.add(ModelSpec { precision, threads, ..ModelSpec::new("embed", model) })?;
    Ok(pool)
}

/// The texts of a request and what it is called.
fn workloads(model: &Path) -> anyhow::Result<Vec<(String, Vec<String>)>> {
    let mut workloads = Vec::new();
    for length in [32, 128] {
        for size in [1, 8, 32] {
            let texts: Vec<String> = (0..size).map(|number| texts::of_length(length, number)).collect();
            workloads.push((format!("{length} tokens × {size}"), texts));
        }
    }
    let mixed = texts::MIXED.iter().enumerate();
    workloads.push((
        "mixed lengths × 32".to_owned(),
        mixed.map(|(number, length)| texts::of_length(*length, number)).collect(),
    ));

    let spec = ModelSpec::new("embed", model);
    let words = engines().find(&spec)?.0.prepare(&spec)?;
    let request = ModelRequest::TextEmbedding {
        texts: workloads.iter().flat_map(|(_, texts)| texts.clone()).collect(),
    };
    let lengths: Vec<usize> =
        words.prepare(request)?.iter().map(remuda_models::RequestPart::tokens).collect();
    let wanted = [32; 41].into_iter().chain([128; 41]).chain(texts::MIXED);
    ensure!(wanted.eq(lengths), "the texts are not as long in this model's tokens as they should be");
    Ok(workloads)
}

async fn rate(pool: &ModelPool, texts: &[String], seconds: f64) -> anyhow::Result<f64> {
    vectors(pool, texts).await?;
    let (began, mut count) = (cpu_time::own()?, 0);
    loop {
        vectors(pool, texts).await?;
        count += texts.len();
        let used = cpu_time::own()?.saturating_sub(began);
        if used >= Duration::from_secs_f64(seconds) {
            return Ok(count as f64 / used.as_secs_f64());
        }
    }
}

pub(crate) async fn vectors(pool: &ModelPool, texts: &[String]) -> anyhow::Result<Vec<Vec<f32>>> {
    let request = ModelRequest::TextEmbedding { texts: texts.to_vec() };
    let answer = pool.call("embed", request, CallOptions::default())?.answer().await?;
    answer
        .parts
        .into_iter()
        .map(|part| match part {
            PartAnswer::Vector(vector) => Ok(vector),
            other => bail!("a text was answered with {other:?}"),
        })
        .collect()
}

/// How far vectors are from the reference, and int8's from float's: without that, speed means nothing.
async fn faithful(
    table: &mut Figures,
    model: &Path,
    others: &mut Option<PythonBaseline>,
) -> anyhow::Result<()> {
    let texts = texts::varied();
    let float = vectors(&pool(model, Precision::Native, 1)?, &texts).await?;
    let int8 = vectors(&pool(model, Precision::Int8, 1)?, &texts).await?;
    let note = || format!("worst of {} texts", texts.len());
    table.add(
        "embed int8: cosine to float",
        worst(&float, &int8)?,
        "",
        format!("{}; wanted: ≥ 0.99", note()),
    );
    if let Some(others) = others
        && others.version("sentence_transformers").is_some()
    {
        let wanted = others.vectors("sentence_transformers", &texts).await?;
        let distance = 1.0 - worst(&wanted, &float)?;
        table.add(
            "embed: distance from sentence-transformers × 1e6",
            distance * 1e6,
            "",
            format!("{}; wanted: < 100", note()),
        );
    }
    Ok(())
}

fn worst(these: &[Vec<f32>], those: &[Vec<f32>]) -> anyhow::Result<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let cosine = |(a, b): (&Vec<f32>, &Vec<f32>)| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
    these.iter().zip(those).map(cosine).min_by(f64::total_cmp).context("no texts")
}
