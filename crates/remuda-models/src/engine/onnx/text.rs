//! Text embeddings with a transformer graph and the tokenizer next to it.
//!
//! A graph needs rectangular batches, and padding costs 3.6 times the work at mixed lengths. So only texts of equal
//! length go through it together, and none is padded.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::path::{Path, PathBuf};

use rten::NodeId;
use rten_tensor::Tensor;
use rten_tensor::prelude::*;
use serde_json::Value;
use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use super::graph::{self, OnnxGraph};
use super::header::{INT64, OnnxHeader};
use crate::backend::Prepare;
use crate::beacon::Beacon;
use crate::engine::image_model::unit;
use crate::failure::{InferenceError, LoadError, ModelError};
use crate::model::TextEmbedding;
use crate::request::{ModelRequest, RequestPart};

/// Scratch memory of a run besides the weights.
pub(super) const WORK_BYTES: u64 = 64 << 20;

/// Tokens per run: more gains nothing on a CPU.
const RUN_TOKENS_MAX: usize = 512;
/// BERT's default.
const TOKENS_MAX: usize = 512;
/// The size limit of a configuration file.
const SETTINGS_BYTES_MAX: u64 = 1 << 20;
const GOLDEN: &str = "The rider takes a fresh horse from the remuda.";

/// The optional inputs of a graph besides its tokens.
const MASK: &str = "attention_mask";
const KINDS: &str = "token_type_ids";

/// A graph and its tokenizer file.
#[derive(Clone, Debug)]
pub(super) struct TextModelFolder {
    graph: PathBuf,
    tokenizer: PathBuf,
    inputs: Vec<String>,
    output: String,
    tokens_max: usize,
}

impl TextModelFolder {
    pub(super) fn read(graph: &Path, header: &OnnxHeader) -> Result<TextModelFolder, LoadError> {
        let unsupported = |what: String| {
            let hint = "; supported are graphs that take input_ids, attention_mask and token_type_ids and return vectors";
            LoadError::Unsupported { path: graph.to_owned(), what, hint: hint.to_owned() }
        };
        for input in &header.inputs {
            if input.element != INT64 || ![MASK, KINDS, "input_ids"].contains(&input.name.as_str()) {
                return Err(unsupported(format!("a text graph that takes {}", input.name)));
            }
        }
        let of_rank = |rank: usize| header.outputs.iter().find(|info| info.shape.len() == rank);
        let pooled = header.outputs.iter().find(|info| info.name == "sentence_embedding");
        let Some(output) = pooled.or(of_rank(3)).or(of_rank(2)) else {
            return Err(unsupported("a graph without vector outputs".to_owned()));
        };
        let home = graph.parent().unwrap_or(Path::new("."));
        let homes = [home, home.parent().unwrap_or(home)];
        let beside = |name: &str| homes.iter().map(|home| home.join(name)).find(|path| path.is_file());
        let tokenizer = beside("tokenizer.json").ok_or_else(|| LoadError::Missing {
            path: home.to_owned(),
            what: "tokenizer.json".to_owned(),
            hint: "; save the model with a fast tokenizer of transformers".to_owned(),
        })?;
        let setting = |file: &str, key: &str| beside(file).and_then(|path| number(&path, key));
        let tokens_max = setting("sentence_bert_config.json", "max_seq_length")
            .or_else(|| setting("config.json", "max_position_embeddings"))
            .unwrap_or(TOKENS_MAX);
        Ok(TextModelFolder {
            graph: graph.to_owned(),
            tokenizer,
            inputs: header.inputs.iter().map(|info| info.name.clone()).collect(),
            output: output.name.clone(),
            tokens_max,
        })
    }

    pub(super) fn files(&self) -> Vec<PathBuf> {
        vec![self.graph.clone(), self.tokenizer.clone()]
    }

    pub(super) fn notes(&self) -> Vec<String> {
        vec![
            format!("texts are truncated to {} tokens", self.tokens_max),
            "the same model as safetensors is faster for texts of mixed lengths".to_owned(),
        ]
    }

    pub(super) fn words(&self) -> Result<OnnxTokenizer, LoadError> {
        let file = &self.tokenizer;
        let mut tokenizer = Tokenizer::from_file(file).map_err(|error| wrong(file, error))?;
        let added = tokenizer.get_post_processor().map_or(0, |last| last.added_tokens(false));
        if self.tokens_max <= added {
            return Err(wrong(
                file,
                format!("it adds {added} tokens to every text, but the limit is {}", self.tokens_max),
            ));
        }
        tokenizer.with_padding(None);
        let cut = TruncationParams { max_length: self.tokens_max, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(cut)).map_err(|error| wrong(file, error))?;
        let mut words = OnnxTokenizer { tokenizer, golden: Vec::new() };
        words.golden = words.tokens(GOLDEN).map_err(|error| wrong(file, error))?;
        Ok(words)
    }
}

fn wrong(path: &Path, error: impl Display) -> LoadError {
    LoadError::Wrong { path: path.to_owned(), detail: error.to_string() }
}

/// A positive number in a JSON file, if it exists.
fn number(path: &Path, key: &str) -> Option<usize> {
    if path.metadata().ok()?.len() > SETTINGS_BYTES_MAX {
        return None;
    }
    let settings: Value = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    settings.get(key)?.as_u64().and_then(|number| usize::try_from(number).ok()).filter(|number| *number > 0)
}

/// Tokenises texts on the callers' threads.
pub(super) struct OnnxTokenizer {
    tokenizer: Tokenizer,
    golden: Vec<u32>,
}

impl OnnxTokenizer {
    fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.tokenizer.encode_fast(text, true).map_err(|error| error.to_string())?;
        match encoding.get_ids() {
            [] => Err("it has no tokens".to_owned()),
            tokens => Ok(tokens.to_vec()),
        }
    }
}

impl Prepare for OnnxTokenizer {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        let ModelRequest::TextEmbedding { texts } = request else {
            let asked = request.capability();
            return Err(ModelError::Input(format!("a text embedding model got a request for {asked}")));
        };
        let parts = texts.iter().enumerate().map(|(place, text)| {
            let why = |why| ModelError::Input(format!("text {}: {why}", place + 1));
            self.tokens(text).map(RequestPart::Tokens).map_err(why)
        });
        parts.collect()
    }

    fn golden(&self) -> RequestPart {
        RequestPart::Tokens(self.golden.clone())
    }
}

pub(super) struct OnnxTextModel {
    graph: OnnxGraph,
    inputs: Vec<(String, NodeId)>,
    output: NodeId,
}

impl OnnxTextModel {
    pub(super) fn load(
        folder: &TextModelFolder,
        threads: u32,
        beacon: &Beacon,
    ) -> Result<OnnxTextModel, LoadError> {
        let graph = OnnxGraph::load(&folder.graph, &graph::threads(threads), beacon)?;
        let named = |name: &String| Ok((name.clone(), graph.value(name)?));
        let inputs = folder.inputs.iter().map(named).collect::<Result<_, LoadError>>()?;
        let output = graph.value(&folder.output)?;
        Ok(OnnxTextModel { graph, inputs, output })
    }

    /// Runs texts of equal length.
    fn run(&self, texts: &[&[u32]], length: usize) -> Result<Vec<Vec<f32>>, InferenceError> {
        let shape = [texts.len(), length];
        let mut inputs = Vec::new();
        for (name, node) in &self.inputs {
            let values = match name.as_str() {
                MASK => vec![1; texts.len() * length],
                KINDS => vec![0; texts.len() * length],
                _ => texts.iter().flat_map(|text| text.iter().map(|token| token.cast_signed())).collect(),
            };
            inputs.push((*node, Tensor::from_data(&shape, values).into()));
        }
        let given = self.graph.run(inputs, self.output)?;
        let (width, is_pooled) = match *given.shape() {
            [count, width] if count == texts.len() => (width, true),
            [count, tokens, width] if count == texts.len() && tokens == length => (width, false),
            ref shape => {
                return Err(InferenceError::Engine(format!("expected vectors, got {shape:?}")));
            }
        };
        let numbers = given.to_vec();
        if is_pooled {
            return numbers.chunks_exact(width.max(1)).map(|vector| unit(vector.to_vec())).collect();
        }
        // The mean of its tokens, up to its length.
        let of_text = |tokens: &[f32]| {
            let mut sum = vec![0.0; width];
            for token in tokens.chunks_exact(width.max(1)) {
                sum.iter_mut().zip(token).for_each(|(sum, number)| *sum += number);
            }
            unit(sum)
        };
        numbers.chunks_exact((length * width).max(1)).map(of_text).collect()
    }
}

impl TextEmbedding for OnnxTextModel {
    fn embed(&mut self, texts: &[&[u32]], beacon: &Beacon) -> Result<Vec<Vec<f32>>, InferenceError> {
        let mut by_length: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, text) in texts.iter().enumerate() {
            by_length.entry(text.len()).or_default().push(place);
        }
        let mut vectors = vec![Vec::new(); texts.len()];
        for (length, places) in by_length {
            for places in places.chunks((RUN_TOKENS_MAX / length.max(1)).max(1)) {
                beacon.step()?;
                let together: Vec<_> = places.iter().map(|place| texts[*place]).collect();
                for (place, vector) in places.iter().zip(self.run(&together, length)?) {
                    vectors[*place] = vector;
                }
            }
        }
        beacon.step()?;
        Ok(vectors)
    }
}
