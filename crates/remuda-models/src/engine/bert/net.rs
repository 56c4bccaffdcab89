//! The whole model: the tokens of several texts to one vector per text, without padding rows.

use std::ops::Range;

use super::config::{Config, Pooling};
use super::elementwise::{self, Norm};
use super::int8::QuantizedLayer;
use super::layer::{self, BertLayer, LayerBuffers, LayerWeights};
use super::weights::BertWeights;
use crate::beacon::Beacon;
use crate::failure::{InferenceError, LoadError};

pub(super) struct BertNet {
    pub(super) tables: EmbeddingTables,
    pub(super) layers: Vec<AnyLayer>,
}

pub(super) enum AnyLayer {
    Float(Box<BertLayer>),
    Int8(Box<QuantizedLayer>),
}

impl AnyLayer {
    fn run(
        &self,
        rows: &mut [f32],
        texts: &[Range<usize>],
        buffers: &mut LayerBuffers,
    ) -> Result<(), InferenceError> {
        match self {
            AnyLayer::Float(layer) => layer.run(rows, texts, buffers),
            AnyLayer::Int8(layer) => layer.run(rows, texts, buffers),
        }
    }
}

/// The embedding before the first layer and the pooling after the last.
pub(super) struct EmbeddingTables {
    tokens: Vec<f32>,
    /// With the embedding of token type 0 already added.
    places: Vec<f32>,
    norm: Norm,
    none: Vec<f32>,
    hidden: usize,
    pooling: Pooling,
    tokens_max: usize,
}

impl BertNet {
    pub(super) fn load(
        config: &Config,
        weights: &mut BertWeights,
        beacon: &Beacon,
    ) -> Result<Self, LoadError> {
        let tables = EmbeddingTables::load(config, weights)?;
        let mut layers = Vec::new();
        for number in 0..config.layers {
            beacon.step()?;
            let layer = BertLayer::new(config, LayerWeights::read(config, weights, number)?);
            layers.push(AnyLayer::Float(Box::new(layer)));
        }
        Ok(BertNet { tables, layers })
    }

    /// Embeds texts that passed `check`.
    pub(super) fn embed(
        &self,
        texts: &[&[u32]],
        buffers: &mut LayerBuffers,
        beacon: &Beacon,
    ) -> Result<Vec<Vec<f32>>, InferenceError> {
        let ranges = ranges(texts);
        let mut rows = self.tables.rows(texts);
        for layer in &self.layers {
            layer.run(&mut rows, &ranges, buffers)?;
            beacon.step()?;
        }
        Ok(self.tables.pool(&rows, &ranges))
    }
}

/// The row range of each text.
pub(super) fn ranges(texts: &[&[u32]]) -> Vec<Range<usize>> {
    let mut end = 0;
    let mut next = |text: &&[u32]| {
        let begin = end;
        end += text.len();
        begin..end
    };
    texts.iter().map(&mut next).collect()
}

impl EmbeddingTables {
    pub(super) fn load(config: &Config, weights: &mut BertWeights) -> Result<Self, LoadError> {
        let hidden = config.hidden;
        let embedding = "embeddings.word_embeddings.weight";
        weights.strip_prefixes(&["", "bert.", "roberta.", "distilbert."], embedding);
        let tokens = weights.read(embedding, &[config.vocabulary, hidden])?;
        let mut places =
            weights.read("embeddings.position_embeddings.weight", &[config.positions, hidden])?;
        places.drain(..(config.first_position * hidden).min(places.len()));
        if config.token_types > 0 {
            let kinds =
                weights.read("embeddings.token_type_embeddings.weight", &[config.token_types, hidden])?;
            for place in places.chunks_exact_mut(hidden) {
                place.iter_mut().zip(&kinds).for_each(|(place, kind)| *place += kind);
            }
        }
        let mut read =
            |name: &str, part: &str, shape: &[usize]| weights.read(&format!("{name}.{part}"), shape);
        Ok(EmbeddingTables {
            tokens,
            places,
            norm: layer::norm(config, &mut read, "embeddings.LayerNorm")?,
            none: vec![0.0; hidden],
            hidden,
            pooling: config.pooling,
            tokens_max: config.tokens_max,
        })
    }

    /// Refuses token lists that the model's tokenizer cannot produce.
    pub(super) fn check(&self, text: &[u32]) -> Result<(), InferenceError> {
        if text.is_empty() || text.len() > self.tokens_max {
            let why = format!("a text has {} tokens; 1 to {} are allowed", text.len(), self.tokens_max);
            return Err(InferenceError::Input(why));
        }
        let vocabulary = self.tokens.len() / self.hidden;
        match text.iter().find(|token| **token as usize >= vocabulary) {
            Some(token) => {
                Err(InferenceError::Input(format!("unknown token {token}: the vocabulary has {vocabulary}")))
            }
            None => Ok(()),
        }
    }

    pub(super) fn rows(&self, texts: &[&[u32]]) -> Vec<f32> {
        let hidden = self.hidden;
        let mut rows = Vec::with_capacity(texts.iter().map(|text| text.len()).sum::<usize>() * hidden);
        for text in texts {
            for (token, place) in text.iter().zip(self.places.chunks_exact(hidden)) {
                let word = &self.tokens[*token as usize * hidden..][..hidden];
                rows.extend(word.iter().zip(place).map(|(word, place)| word + place));
            }
        }
        elementwise::normalize(&mut rows, &self.none, &self.norm);
        rows
    }

    /// Returns a unit vector for each text.
    pub(super) fn pool(&self, rows: &[f32], texts: &[Range<usize>]) -> Vec<Vec<f32>> {
        texts
            .iter()
            .map(|text| self.pool_one(&rows[text.start * self.hidden..text.end * self.hidden]))
            .collect()
    }

    fn pool_one(&self, rows: &[f32]) -> Vec<f32> {
        let mut tokens = rows.chunks_exact(self.hidden);
        let mut vector = tokens.next().map(<[f32]>::to_vec).unwrap_or_default();
        match self.pooling {
            Pooling::First => {}
            // The division is omitted, because the vector is normalised anyway.
            Pooling::Mean => tokens.for_each(|token| merge(&mut vector, token, |sum, number| sum + number)),
            Pooling::Max => tokens.for_each(|token| merge(&mut vector, token, f32::max)),
        }
        let length = vector.iter().map(|number| number * number).sum::<f32>().sqrt();
        // As torch's `normalize`: a zero vector stays zero.
        vector.iter_mut().for_each(|number| *number /= length.max(1e-12));
        vector
    }
}

fn merge(vector: &mut [f32], token: &[f32], with: impl Fn(f32, f32) -> f32) {
    for (number, other) in vector.iter_mut().zip(token) {
        *number = with(*number, *other);
    }
}
