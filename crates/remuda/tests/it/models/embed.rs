//! Texts as vectors on real weights, held to what sentence-transformers 6.2 says of them (`embed/reference.jsonl`).

use remuda_models::{
    CallOptions, ModelPool, ModelPoolSettings, ModelRequest, ModelSpec, PartAnswer, Precision, engines,
};
use serde::Deserialize;

const MODEL: &str = "all-minilm-l6-v2";

/// Empty, short, in many scripts, code, and longer than the model reads.
#[derive(Deserialize)]
struct Known {
    text: String,
    times: usize,
    vector: Vec<f32>,
}

fn known() -> Vec<Known> {
    let lines = include_str!("embed/reference.jsonl").lines();
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What the model says of all of them in one request.
fn said(spec: ModelSpec) -> Vec<Vec<f32>> {
    let pool = ModelPool::start(ModelPoolSettings::default(), engines());
    assert_eq!(pool.add(spec).unwrap().engine, "bert");
    let texts = known().iter().map(|known| known.text.repeat(known.times)).collect();
    let answer = pool
        .call("it", ModelRequest::TextEmbedding { texts }, CallOptions::default())
        .unwrap()
        .wait()
        .unwrap();
    let vector = |part| match part {
        PartAnswer::Vector(vector) => vector,
        other => panic!("{other:?}"),
    };
    answer.parts.into_iter().map(vector).collect()
}

/// The distance of each from what is known of it.
fn distances(said: &[Vec<f32>]) -> Vec<f64> {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    let known = known();
    assert_eq!(said.len(), known.len());
    let distance = |(said, known): (&Vec<f32>, &Known)| {
        assert_eq!(said.len(), known.vector.len());
        1.0 - dot(said, &known.vector) / (dot(said, said) * dot(&known.vector, &known.vector)).sqrt()
    };
    said.iter().zip(&known).map(distance).collect()
}

#[test]
fn embeddings_match_reference() {
    let Some(folder) = remuda_testkit::model(MODEL) else { return };
    let distances = distances(&said(ModelSpec::new("it", folder)));
    eprintln!("distances from the reference: {distances:?}");
    assert!(distances.iter().all(|distance| *distance < 1e-6), "{distances:?}");
}

#[test]
fn int8_embeddings_stay_close_to_reference() {
    let Some(folder) = remuda_testkit::model(MODEL) else { return };
    let spec = ModelSpec { precision: Precision::Int8, threads: 2, ..ModelSpec::new("it", folder) };
    let distances = distances(&said(spec));
    eprintln!("distances from the reference: {distances:.4?}");
    assert!(distances.iter().all(|distance| *distance < 0.01), "{distances:?}");
}
