//! Refuses int8 if its answers would differ too much: while the model is loaded, a few texts go through every layer in
//! float and in int8. Each float layer is dropped before the next one is read.

use super::config::Config;
use super::int8::QuantizedLayer;
use super::layer::{BertLayer, LayerBuffers, LayerWeights};
use super::net::{AnyLayer, BertNet, EmbeddingTables, ranges};
use super::tokenizer::BertTokenizer;
use super::weights::BertWeights;
use crate::beacon::Beacon;
use crate::failure::LoadError;

/// The minimal cosine of the worst text. Below it the order of near neighbours begins to change.
const COSINE_MIN: f32 = 0.99;

/// Short and long, plain and unusual: int8 first affects texts that depend on few tokens.
const TEXTS: [&str; 12] = [
    "",
    "horse",
    "The rider takes a fresh horse from the remuda.",
    "How do I reset my password?",
    "What will the weather in Paris be like tomorrow afternoon?",
    "Ein Zaun aus Draht hält die Pferde auf der Koppel.",
    "def step(now, event):\n    return [effect for effect in event if effect.due <= now]\n",
    "SELECT id, state FROM workers WHERE seen_at < now() - interval '90 seconds';",
    "In 1815 the eruption of Mount Tambora caused a year without a summer across the northern hemisphere.",
    "🐎 naïve café, 3.14159, 東京は晴れ",
    "https://example.org/a/b?c=d&e=f#g !!! ??? ...",
    "A worker that says nothing for ninety seconds is asked; one that does not answer is given no more work. What it \
     held goes to another, and what it says later is refused, because an attempt that was given up must not be believed \
     once a newer one has begun. The same holds for machines, whose provider is asked, and for fleets, where a brake \
     keeps many failures at once from becoming many purchases at once.",
];

pub(super) fn load(
    config: &Config,
    weights: &mut BertWeights,
    beacon: &Beacon,
) -> Result<BertNet, LoadError> {
    let tokenizer = BertTokenizer::read(config)?;
    let tokens: Vec<Vec<u32>> = TEXTS.iter().filter_map(|text| tokenizer.tokens(text).ok()).collect();
    let texts: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
    let tables = EmbeddingTables::load(config, weights)?;
    for text in &texts {
        tables.check(text).map_err(|failure| LoadError::Engine(failure.to_string()))?;
    }
    let ranges = ranges(&texts);
    let mut float = tables.rows(&texts);
    let mut int8 = float.clone();
    let mut buffers = LayerBuffers::default();
    let mut layers = Vec::new();
    let engine = |failure: crate::failure::InferenceError| LoadError::Engine(failure.to_string());
    for number in 0..config.layers {
        let plain = LayerWeights::read(config, weights, number)?;
        let layer = QuantizedLayer::new(config, &plain)?;
        layer.run(&mut int8, &ranges, &mut buffers).map_err(engine)?;
        BertLayer::new(config, plain).run(&mut float, &ranges, &mut buffers).map_err(engine)?;
        layers.push(AnyLayer::Int8(Box::new(layer)));
        beacon.step()?;
    }
    let cosine = worst(&tables.pool(&float, &ranges), &tables.pool(&int8, &ranges));
    tracing::debug!(cosine, "compared int8 with float");
    // Not `<`, so that NaN is refused.
    if cosine >= COSINE_MIN {
        return Ok(BertNet { tables, layers });
    }
    Err(LoadError::Unsupported {
        path: weights.path().to_owned(),
        what: format!(
            "int8: the worst of {} texts has a cosine of {cosine:.4} to its float vector",
            texts.len()
        ),
        hint: format!(", below the minimum of {COSINE_MIN}; use the native precision"),
    })
}

/// The smallest cosine between pairs of unit vectors.
fn worst(these: &[Vec<f32>], those: &[Vec<f32>]) -> f32 {
    let cosine =
        |(this, that): (&Vec<f32>, &Vec<f32>)| this.iter().zip(that).map(|(a, b)| a * b).sum::<f32>();
    these.iter().zip(those).map(cosine).fold(1.0, |least, next| if next >= least { least } else { next })
}
