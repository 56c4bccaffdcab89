//! One layer: what rows are after it, given what they were before.

use std::ops::Range;

use super::attention::Attention;
use super::config::{Activation, Config, Family};
use super::int8::Room8;
use super::linear::{Linear, Onto};
use super::sweep::{self, Norm};
use super::weights::Weights;
use crate::failure::{Failure, LoadError};

/// Room to work in, kept from batch to batch.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Queries, keys and values side by side.
    pub(super) asked: Vec<f32>,
    pub(super) apart: Vec<f32>,
    pub(super) found: Vec<f32>,
    inner: Vec<f32>,
    pub(super) eight: Room8,
}

/// A layer as its file has it, but for what is done beforehand: the root that scores are divided by is in the queries'
/// weights; a bias of keys changes every score of a row alike and so nothing; a bias of values is added whatever was
/// looked at, so it is in the bias that follows.
pub(super) struct Plain {
    /// Queries, keys and values, one below the other.
    pub(super) ask: Vec<f32>,
    pub(super) ask_bias: Vec<f32>,
    pub(super) answer: Vec<f32>,
    pub(super) answer_bias: Vec<f32>,
    pub(super) answer_norm: Norm,
    pub(super) grow: Vec<f32>,
    pub(super) grow_bias: Vec<f32>,
    pub(super) shrink: Vec<f32>,
    pub(super) shrink_bias: Vec<f32>,
    pub(super) shrink_norm: Norm,
}

pub(super) struct Layer {
    attention: Attention,
    activation: Activation,
    ask: Linear,
    answer: Linear,
    grow: Linear,
    shrink: Linear,
    ask_bias: Vec<f32>,
    answer_bias: Vec<f32>,
    answer_norm: Norm,
    grow_bias: Vec<f32>,
    shrink_bias: Vec<f32>,
    shrink_norm: Norm,
}

impl Layer {
    pub(super) fn new(config: &Config, plain: Plain) -> Self {
        Layer {
            attention: Attention::new(config.heads, config.head()),
            activation: config.activation,
            ask: Linear::new(&plain.ask, config.hidden),
            answer: Linear::new(&plain.answer, config.hidden),
            grow: Linear::new(&plain.grow, config.hidden),
            shrink: Linear::new(&plain.shrink, config.inner),
            ask_bias: plain.ask_bias,
            answer_bias: plain.answer_bias,
            answer_norm: plain.answer_norm,
            grow_bias: plain.grow_bias,
            shrink_bias: plain.shrink_bias,
            shrink_norm: plain.shrink_norm,
        }
    }

    /// Rows of several texts, of which each is a range of rows.
    pub(super) fn run(
        &self,
        rows: &mut [f32],
        texts: &[Range<usize>],
        room: &mut Room,
    ) -> Result<(), Failure> {
        let hidden = self.answer_bias.len();
        room.asked.resize(rows.len() * 3, 0.0);
        room.found.resize(rows.len(), 0.0);
        self.ask.apply(rows, &mut room.asked, Onto::Nothing);
        sweep::add(&mut room.asked, 3 * hidden, &self.ask_bias);
        for text in texts {
            let asked = &room.asked[text.start * 3 * hidden..text.end * 3 * hidden];
            let found = &mut room.found[text.start * hidden..text.end * hidden];
            self.attention.look(asked, found, &mut room.apart)?;
        }
        self.answer.apply(&room.found, rows, Onto::Itself);
        sweep::normalize(rows, &self.answer_bias, &self.answer_norm);

        room.inner.resize(rows.len() / hidden * self.grow_bias.len(), 0.0);
        self.grow.apply(rows, &mut room.inner, Onto::Nothing);
        sweep::activate(&mut room.inner, &self.grow_bias, self.activation);
        self.shrink.apply(&room.inner, rows, Onto::Itself);
        sweep::normalize(rows, &self.shrink_bias, &self.shrink_norm);
        Ok(())
    }
}

impl Plain {
    pub(super) fn read(config: &Config, weights: &mut Weights, number: usize) -> Result<Self, LoadError> {
        let (hidden, inner) = (config.hidden, config.inner);
        let [query, key, value, answer, answer_norm, grow, shrink, shrink_norm] =
            names(config.family, number);
        let mut read =
            |name: &str, part: &str, shape: &[usize]| weights.read(&format!("{name}.{part}"), shape);
        let square = [hidden, hidden];

        let scale = 1.0 / (config.head() as f32).sqrt();
        let mut ask = read(&query, "weight", &square)?;
        let mut ask_bias = read(&query, "bias", &[hidden])?;
        for number in ask.iter_mut().chain(&mut ask_bias) {
            *number *= scale;
        }
        ask.extend(read(&key, "weight", &square)?);
        ask.extend(read(&value, "weight", &square)?);
        let value_bias = read(&value, "bias", &[hidden])?;
        let answer_weights = read(&answer, "weight", &square)?;
        let mut answer_bias = read(&answer, "bias", &[hidden])?;
        for (bias, row) in answer_bias.iter_mut().zip(answer_weights.chunks_exact(hidden)) {
            *bias += row.iter().zip(&value_bias).map(|(weight, value)| weight * value).sum::<f32>();
        }
        Ok(Plain {
            ask,
            ask_bias,
            answer: answer_weights,
            answer_bias,
            answer_norm: norm(config, &mut read, &answer_norm)?,
            grow: read(&grow, "weight", &[inner, hidden])?,
            grow_bias: read(&grow, "bias", &[inner])?,
            shrink: read(&shrink, "weight", &[hidden, inner])?,
            shrink_bias: read(&shrink, "bias", &[hidden])?,
            shrink_norm: norm(config, &mut read, &shrink_norm)?,
        })
    }
}

/// Reads one part of what has a name, in a shape.
type Reader<'a> = dyn FnMut(&str, &str, &[usize]) -> Result<Vec<f32>, LoadError> + 'a;

pub(super) fn norm(config: &Config, read: &mut Reader<'_>, name: &str) -> Result<Norm, LoadError> {
    Ok(Norm {
        gain: read(name, "weight", &[config.hidden])?,
        shift: read(name, "bias", &[config.hidden])?,
        epsilon: config.epsilon,
    })
}

/// Query, key, value, what follows them and its norm, the wide middle, the way back and its norm.
fn names(family: Family, number: usize) -> [String; 8] {
    let (layers, parts) = match family {
        Family::Bert | Family::Roberta => (
            "encoder.layer",
            [
                "attention.self.query",
                "attention.self.key",
                "attention.self.value",
                "attention.output.dense",
                "attention.output.LayerNorm",
                "intermediate.dense",
                "output.dense",
                "output.LayerNorm",
            ],
        ),
        Family::Distilbert => (
            "transformer.layer",
            [
                "attention.q_lin",
                "attention.k_lin",
                "attention.v_lin",
                "attention.out_lin",
                "sa_layer_norm",
                "ffn.lin1",
                "ffn.lin2",
                "output_layer_norm",
            ],
        ),
    };
    parts.map(|part| format!("{layers}.{number}.{part}"))
}
