//! A model of a few dozen weights in a temporary folder, with a reference implementation in plain arithmetic.

use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) const HIDDEN: usize = 20;
pub(super) const HEADS: usize = 4;
const INNER: usize = 36;
const LAYERS: usize = 2;
const VOCABULARY: usize = 29;
pub(super) const PLACES: usize = 24;

pub(super) struct Tiny {
    pub(super) folder: TempDir,
    pub(super) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    pub(super) config: Value,
}

/// The naming scheme and conventions of the tiny model.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TinyFamily {
    Bert,
    Roberta,
    Distilbert,
}

impl Tiny {
    pub(super) fn new(kind: TinyFamily) -> Self {
        let (prefix, layer, names) = match kind {
            TinyFamily::Bert => ("", "encoder.layer", BERT),
            TinyFamily::Roberta => ("roberta.", "encoder.layer", BERT),
            TinyFamily::Distilbert => ("distilbert.", "transformer.layer", DISTILBERT),
        };
        let mut random = TinyRng(7);
        let mut tensors = BTreeMap::new();
        let mut put = |name: String, shape: &[usize]| {
            let numbers = (0..shape.iter().product()).map(|_| random.next()).collect();
            tensors.insert(format!("{prefix}{name}"), (shape.to_vec(), numbers));
        };
        put("embeddings.word_embeddings.weight".into(), &[VOCABULARY, HIDDEN]);
        put("embeddings.position_embeddings.weight".into(), &[PLACES, HIDDEN]);
        if kind != TinyFamily::Distilbert {
            put("embeddings.token_type_embeddings.weight".into(), &[2, HIDDEN]);
        }
        put("embeddings.LayerNorm.weight".into(), &[HIDDEN]);
        put("embeddings.LayerNorm.bias".into(), &[HIDDEN]);
        for number in 0..LAYERS {
            for (part, name) in names.iter().enumerate() {
                let [inputs, outputs] = match part {
                    5 => [HIDDEN, INNER],
                    6 => [INNER, HIDDEN],
                    _ => [HIDDEN, HIDDEN],
                };
                let shape = if part == 4 || part == 7 { vec![HIDDEN] } else { vec![outputs, inputs] };
                put(format!("{layer}.{number}.{name}.weight"), &shape);
                put(format!("{layer}.{number}.{name}.bias"), &[outputs]);
            }
        }
        let config = match kind {
            TinyFamily::Bert | TinyFamily::Roberta => json!({
                "model_type": if kind == TinyFamily::Bert { "bert" } else { "roberta" },
                "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "num_hidden_layers": LAYERS,
                "num_attention_heads": HEADS, "intermediate_size": INNER,
                "max_position_embeddings": PLACES, "type_vocab_size": 2, "pad_token_id": 1,
            }),
            TinyFamily::Distilbert => json!({
                "model_type": "distilbert", "vocab_size": VOCABULARY, "dim": HIDDEN, "n_layers": LAYERS,
                "n_heads": HEADS, "hidden_dim": INNER, "max_position_embeddings": PLACES, "activation": "gelu",
            }),
        };
        let tiny = Tiny { folder: tempfile::tempdir().unwrap(), tensors, config };
        tiny.write();
        tiny
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes its files in their current state.
    pub(super) fn write(&self) {
        self.json("config.json", &self.config);
        self.json("tokenizer.json", &tokenizer());
        let bytes: BTreeMap<_, _> = self
            .tensors
            .iter()
            .map(|(name, (shape, numbers))| {
                (
                    name,
                    (
                        shape.clone(),
                        numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>(),
                    ),
                )
            })
            .collect();
        let views = bytes
            .iter()
            .map(|(name, (shape, bytes))| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
        safetensors::serialize_to_file(views, None, &self.path().join("model.safetensors")).unwrap();
    }

    pub(super) fn json(&self, name: &str, value: &Value) {
        let file = self.path().join(name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, value.to_string()).unwrap();
    }

    /// The token vectors of a text before pooling.
    pub(super) fn rows(
        &self,
        kind: TinyFamily,
        tokens: &[u32],
        activation: impl Fn(f64) -> f64,
    ) -> Vec<Vec<f64>> {
        let (prefix, layer, names, first) = match kind {
            TinyFamily::Bert => ("", "encoder.layer", BERT, 0),
            TinyFamily::Roberta => ("roberta.", "encoder.layer", BERT, 2),
            TinyFamily::Distilbert => ("distilbert.", "transformer.layer", DISTILBERT, 0),
        };
        let tensor = |name: &str| {
            self.tensors[&format!("{prefix}{name}")].1.iter().map(|x| f64::from(*x)).collect::<Vec<_>>()
        };
        let linear = |row: &[f64], name: &str| {
            let (weights, bias) = (tensor(&format!("{name}.weight")), tensor(&format!("{name}.bias")));
            weights
                .chunks(row.len())
                .zip(bias)
                .map(|(line, bias)| dot(line, row) + bias)
                .collect::<Vec<f64>>()
        };
        let norm = |row: &[f64], name: &str| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            let spread = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / row.len() as f64;
            let (gain, shift) = (tensor(&format!("{name}.weight")), tensor(&format!("{name}.bias")));
            let even = row.iter().map(|x| (x - mean) / (spread + 1e-12).sqrt());
            even.zip(gain.iter().zip(shift)).map(|(x, (gain, shift))| x * gain + shift).collect::<Vec<f64>>()
        };
        let add = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
        let (tokenizer, places) =
            (tensor("embeddings.word_embeddings.weight"), tensor("embeddings.position_embeddings.weight"));
        let mut rows: Vec<Vec<f64>> = tokens
            .iter()
            .enumerate()
            .map(|(place, token)| {
                let mut row = add(
                    &tokenizer[*token as usize * HIDDEN..][..HIDDEN],
                    &places[(place + first) * HIDDEN..][..HIDDEN],
                );
                if kind != TinyFamily::Distilbert {
                    row = add(&row, &tensor("embeddings.token_type_embeddings.weight")[..HIDDEN]);
                }
                norm(&row, "embeddings.LayerNorm")
            })
            .collect();
        for number in 0..LAYERS {
            let name = |part: usize| format!("{layer}.{number}.{}", names[part]);
            let all = |part: usize| rows.iter().map(|row| linear(row, &name(part))).collect::<Vec<_>>();
            let (queries, keys, values) = (all(0), all(1), all(2));
            rows = rows
                .iter()
                .zip(&queries)
                .map(|(row, query)| {
                    let found = attend(query, &keys, &values);
                    let row = norm(&add(row, &linear(&found, &name(3))), &name(4));
                    let inner: Vec<f64> = linear(&row, &name(5)).into_iter().map(&activation).collect();
                    norm(&add(&row, &linear(&inner, &name(6))), &name(7))
                })
                .collect();
        }
        rows
    }
}

/// Attention of one token to all tokens, head by head.
fn attend(query: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let size = HIDDEN / HEADS;
    let mut found = Vec::new();
    for head in (0..HIDDEN).step_by(size) {
        let part = head..head + size;
        let score = |key: &Vec<f64>| dot(&query[part.clone()], &key[part.clone()]) / (size as f64).sqrt();
        let scores: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
        let sum: f64 = scores.iter().sum();
        let taken =
            |at: usize| scores.iter().zip(values).map(|(score, value)| score / sum * value[at]).sum::<f64>();
        found.extend(part.clone().map(taken));
    }
    found
}

const BERT: [&str; 8] = [
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
];

const DISTILBERT: [&str; 8] = [
    "attention.q_lin",
    "attention.k_lin",
    "attention.v_lin",
    "attention.out_lin",
    "sa_layer_norm",
    "ffn.lin1",
    "ffn.lin2",
    "output_layer_norm",
];

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// One-letter words from `a` on between a start and an end token. The file asks to truncate at 4 and pad to 4, which
/// must be ignored.
fn tokenizer() -> Value {
    let mut vocabulary = serde_json::Map::new();
    for (id, word) in ["[PAD]", "[UNK]", "[CLS]", "[SEP]"].iter().enumerate() {
        vocabulary.insert((*word).to_owned(), json!(id));
    }
    for (place, letter) in ('a'..='y').enumerate() {
        vocabulary.insert(letter.to_string(), json!(place + 4));
    }
    let special = |word: &str, id: u32| json!({ "id": word, "ids": [id], "tokens": [word] });
    json!({
        "version": "1.0",
        "truncation": { "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0 },
        "padding": {
            "strategy": { "Fixed": 4 }, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]",
        },
        "added_tokens": [], "normalizer": null, "pre_tokenizer": { "type": "Whitespace" },
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [
                { "SpecialToken": { "id": "[CLS]", "type_id": 0 } },
                { "Sequence": { "id": "A", "type_id": 0 } },
                { "SpecialToken": { "id": "[SEP]", "type_id": 0 } },
            ],
            "pair": [{ "Sequence": { "id": "A", "type_id": 0 } }, { "Sequence": { "id": "B", "type_id": 1 } }],
            "special_tokens": { "[CLS]": special("[CLS]", 2), "[SEP]": special("[SEP]", 3) },
        },
        "decoder": null,
        "model": { "type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]" },
    })
}

/// Deterministic numbers between -1 and 1.
struct TinyRng(u64);

impl TinyRng {
    fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
