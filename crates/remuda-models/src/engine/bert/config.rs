//! The model's configuration files: its dimensions, its pooling, and its maximal text length.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::failure::LoadError;

/// No published model comes near this; a larger number is a mistake or an attack.
const SIZE_MAX: usize = 1 << 20;

/// The size limit of the JSON files next to the weights.
const JSON_BYTES_MAX: u64 = 1 << 20;

/// The naming scheme of the weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BertFamily {
    Bert,
    /// RoBERTa and XLM-RoBERTa: BERT whose positions start after the padding index.
    Roberta,
    /// Half of BERT's layers under other names, without token types.
    Distilbert,
}

/// How token vectors become a text vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pooling {
    Mean,
    /// The vector of the first token.
    First,
    Max,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activation {
    Gelu,
    /// The tanh approximation.
    GeluTanh,
    Relu,
}

#[derive(Clone, Debug)]
pub(super) struct Config {
    /// The folder of `config.json` and the weights.
    pub(super) folder: PathBuf,
    pub(super) files: Vec<PathBuf>,
    pub(super) family: BertFamily,
    pub(super) vocabulary: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) heads: usize,
    pub(super) intermediate: usize,
    pub(super) positions: usize,
    pub(super) token_types: usize,
    /// The position index of the first token.
    pub(super) first_position: usize,
    pub(super) epsilon: f32,
    pub(super) activation: Activation,
    pub(super) pooling: Pooling,
    /// Including the tokens the tokenizer adds.
    pub(super) tokens_max: usize,
    pub(super) lower_case: bool,
    architecture: String,
    /// Whether the folder defines the pooling.
    is_pooling_defined: bool,
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    architectures: Vec<String>,
    vocab_size: usize,
    #[serde(alias = "dim")]
    hidden_size: usize,
    #[serde(alias = "n_layers")]
    num_hidden_layers: usize,
    #[serde(alias = "n_heads")]
    num_attention_heads: usize,
    #[serde(alias = "hidden_dim")]
    intermediate_size: usize,
    max_position_embeddings: usize,
    #[serde(default)]
    type_vocab_size: usize,
    #[serde(default = "epsilon")]
    layer_norm_eps: f32,
    #[serde(default = "gelu", alias = "activation")]
    hidden_act: String,
    position_embedding_type: Option<String>,
    pad_token_id: Option<usize>,
}

fn epsilon() -> f32 {
    1e-12
}

fn gelu() -> String {
    "gelu".to_owned()
}

#[derive(Deserialize)]
struct Type {
    model_type: String,
}

/// One entry of `modules.json` in a sentence-transformers model.
#[derive(Deserialize)]
struct Module {
    path: String,
    #[serde(rename = "type")]
    kind: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PoolingFile {
    pooling_mode: Option<String>,
    pooling_mode_cls_token: bool,
    pooling_mode_mean_tokens: bool,
    pooling_mode_max_tokens: bool,
    pooling_mode_mean_sqrt_len_tokens: bool,
    pooling_mode_weightedmean_tokens: bool,
    pooling_mode_lasttoken: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct SentenceFile {
    max_seq_length: Option<usize>,
    do_lower_case: bool,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct TokenizerConfigFile {
    /// As a float: models without a limit write an integer of thirty digits.
    model_max_length: Option<f64>,
}

/// The family of the model in a folder, if it is a supported one.
pub(super) fn family(path: &Path) -> Option<BertFamily> {
    let folder = transformer(path).ok()?;
    let Type { model_type } = optional(&folder.join("config.json")).ok()??;
    match model_type.as_str() {
        "bert" => Some(BertFamily::Bert),
        "roberta" | "xlm-roberta" | "camembert" => Some(BertFamily::Roberta),
        "distilbert" => Some(BertFamily::Distilbert),
        _ => None,
    }
}

/// Whether the folder has weights, possibly in a format that is refused with a reason.
pub(super) fn has_weights(path: &Path) -> bool {
    let names = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin"];
    transformer(path).is_ok_and(|folder| names.iter().any(|name| folder.join(name).exists()))
}

/// The folder of the transformer module in a sentence-transformers model.
fn transformer(path: &Path) -> Result<PathBuf, LoadError> {
    let modules: Option<Vec<Module>> = optional(&path.join("modules.json"))?;
    let first = modules.into_iter().flatten().find(|module| module.kind.ends_with(".Transformer"));
    match first {
        Some(module) => inside(path, &module.path),
        None => Ok(path.to_owned()),
    }
}

impl Config {
    pub(super) fn read(path: &Path) -> Result<Self, LoadError> {
        let folder = transformer(path)?;
        let file = folder.join("config.json");
        let Some(read) = optional::<ConfigFile>(&file)? else {
            let hint = "; use the folder that the model was published in".to_owned();
            return Err(LoadError::Missing { path: folder, what: "config.json".to_owned(), hint });
        };
        let family =
            family(path).ok_or_else(|| wrong(&file, "its model_type is not supported by this engine"))?;
        let mut files = vec![file.clone()];
        let (pooling, is_pooling_defined) = match pooling(path, &mut files)? {
            Some(pooling) => (pooling, true),
            None => (Pooling::Mean, false),
        };
        let sentence: SentenceFile = optional(&folder.join("sentence_bert_config.json"))?.unwrap_or_default();
        let tokenizer: TokenizerConfigFile =
            optional(&folder.join("tokenizer_config.json"))?.unwrap_or_default();
        let first_position = match family {
            BertFamily::Roberta => read.pad_token_id.unwrap_or(1).saturating_add(1),
            BertFamily::Bert | BertFamily::Distilbert => 0,
        };
        let positions = read.max_position_embeddings;
        let readable = positions.saturating_sub(first_position);
        let configured =
            sentence.max_seq_length.or_else(|| tokenizer.model_max_length.map(|max| max as usize));
        let config = Config {
            folder,
            files,
            family,
            vocabulary: read.vocab_size,
            hidden: read.hidden_size,
            layers: read.num_hidden_layers,
            heads: read.num_attention_heads,
            intermediate: read.intermediate_size,
            positions,
            token_types: if family == BertFamily::Distilbert { 0 } else { read.type_vocab_size },
            first_position,
            epsilon: read.layer_norm_eps,
            activation: activation(&file, &read.hidden_act)?,
            pooling,
            tokens_max: configured.unwrap_or(readable).min(readable),
            lower_case: sentence.do_lower_case,
            architecture: read.architectures.into_iter().next().unwrap_or_else(|| "unnamed".to_owned()),
            is_pooling_defined,
        };
        config.check(&file, read.position_embedding_type.as_deref())?;
        Ok(config)
    }

    /// Refuses implausible numbers before they are used.
    fn check(&self, file: &Path, position_type: Option<&str>) -> Result<(), LoadError> {
        let sizes = [
            ("vocab_size", self.vocabulary, 1),
            ("hidden_size", self.hidden, 1),
            ("num_hidden_layers", self.layers, 1),
            ("num_attention_heads", self.heads, 1),
            ("intermediate_size", self.intermediate, 1),
            ("max_position_embeddings", self.positions, 1),
            ("type_vocab_size", self.token_types, 0),
        ];
        if let Some((field, size, min)) =
            sizes.iter().find(|(_, size, min)| !(*min..=SIZE_MAX).contains(size))
        {
            return Err(wrong(file, format!("{field} is {size}, but must be from {min} to {SIZE_MAX}")));
        }
        if !self.hidden.is_multiple_of(self.heads) {
            let detail =
                format!("a hidden size of {} cannot be divided among {} heads", self.hidden, self.heads);
            return Err(wrong(file, detail));
        }
        if !(self.epsilon.is_finite() && self.epsilon > 0.0) {
            return Err(wrong(file, "layer_norm_eps is not above 0"));
        }
        if self.tokens_max == 0 {
            return Err(wrong(file, "its maximum length is zero tokens"));
        }
        if let Some(kind) = position_type.filter(|kind| *kind != "absolute") {
            let what = format!("position embeddings of type {kind}");
            return Err(LoadError::Unsupported {
                path: file.to_owned(),
                what,
                hint: "; only absolute ones are supported".into(),
            });
        }
        Ok(())
    }

    pub(super) fn weights_file(&self) -> Result<PathBuf, LoadError> {
        let file = self.folder.join("model.safetensors");
        if file.exists() {
            return Ok(file);
        }
        let shards = self.folder.join("model.safetensors.index.json");
        if shards.exists() {
            let what = "weights in several files".to_owned();
            return Err(LoadError::Unsupported {
                path: shards,
                what,
                hint: "; save them as one file".to_owned(),
            });
        }
        let pickle = self.folder.join("pytorch_model.bin");
        if pickle.exists() {
            return Err(LoadError::Pickle { path: pickle });
        }
        let what = "model.safetensors".to_owned();
        Err(LoadError::Missing { path: self.folder.clone(), what, hint: String::new() })
    }

    pub(super) fn head(&self) -> usize {
        self.hidden / self.heads
    }

    pub(super) fn table_weights(&self) -> u64 {
        (self.vocabulary + self.positions + self.token_types) as u64 * self.hidden as u64
    }

    pub(super) fn layer_weights(&self) -> u64 {
        let (hidden, intermediate) = (self.hidden as u64, self.intermediate as u64);
        4 * hidden * hidden + 2 * hidden * intermediate + 9 * hidden + intermediate
    }

    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("texts are truncated to {} tokens", self.tokens_max)];
        if !self.is_pooling_defined {
            notes.push("no pooling is configured: using the mean over all tokens".to_owned());
        }
        if self.architecture.ends_with("ForSequenceClassification") {
            notes.push("this model classifies texts; its vectors may be poor embeddings".to_owned());
        }
        notes
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = match self.family {
            BertFamily::Bert => "bert",
            BertFamily::Roberta => "roberta",
            BertFamily::Distilbert => "distilbert",
        };
        write!(f, "{family} ({} layers, {} dimensions)", self.layers, self.hidden)
    }
}

fn pooling(path: &Path, files: &mut Vec<PathBuf>) -> Result<Option<Pooling>, LoadError> {
    let list = path.join("modules.json");
    let Some(modules) = optional::<Vec<Module>>(&list)? else { return Ok(None) };
    files.push(list.clone());
    let mut pooling = None;
    for module in modules {
        match module.kind.rsplit('.').next() {
            Some("Transformer" | "Normalize") => {}
            Some("Pooling") => {
                let file = inside(path, &module.path)?.join("config.json");
                let read: PoolingFile = optional(&file)?.unwrap_or_default();
                pooling = Some(read.pooling(&file)?);
                files.push(file);
            }
            _ => {
                let what = format!("a module of type {}", module.kind);
                let hint = "; supported are Transformer, Pooling and Normalize".to_owned();
                return Err(LoadError::Unsupported { path: list, what, hint });
            }
        }
    }
    Ok(pooling)
}

impl PoolingFile {
    fn pooling(&self, file: &Path) -> Result<Pooling, LoadError> {
        let modes = [
            ("mean", self.pooling_mode_mean_tokens),
            ("cls", self.pooling_mode_cls_token),
            ("max", self.pooling_mode_max_tokens),
            ("mean_sqrt_len_tokens", self.pooling_mode_mean_sqrt_len_tokens),
            ("weightedmean", self.pooling_mode_weightedmean_tokens),
            ("lasttoken", self.pooling_mode_lasttoken),
        ];
        let chosen: Vec<&str> = match &self.pooling_mode {
            Some(mode) => vec![mode],
            None => modes.iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect(),
        };
        match chosen[..] {
            // Dividing by the length or by its root gives the same unit vector.
            ["mean" | "mean_sqrt_len_tokens"] => Ok(Pooling::Mean),
            ["cls"] => Ok(Pooling::First),
            ["max"] => Ok(Pooling::Max),
            _ => Err(LoadError::Unsupported {
                path: file.to_owned(),
                what: format!(
                    "pooling by {}",
                    if chosen.is_empty() { "nothing".into() } else { chosen.join(" and ") }
                ),
                hint: "; supported: mean, cls or max".to_owned(),
            }),
        }
    }
}

fn activation(file: &Path, name: &str) -> Result<Activation, LoadError> {
    match name {
        "gelu" => Ok(Activation::Gelu),
        "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        _ => Err(LoadError::Unsupported {
            path: file.to_owned(),
            what: format!("the activation {name}"),
            hint: "; supported are gelu, gelu_new and relu".to_owned(),
        }),
    }
}

/// Resolves a path from a file; it must not lead out of the folder.
fn inside(folder: &Path, name: &str) -> Result<PathBuf, LoadError> {
    if Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
        return Ok(folder.join(name));
    }
    Err(wrong(&folder.join("modules.json"), format!("the path {name} leads out of the folder")))
}

/// Reads a JSON file; `None` if it does not exist.
pub(super) fn optional<T: DeserializeOwned>(file: &Path) -> Result<Option<T>, LoadError> {
    let Ok(metadata) = std::fs::metadata(file) else { return Ok(None) };
    if metadata.len() > JSON_BYTES_MAX {
        return Err(wrong(file, format!("larger than {JSON_BYTES_MAX} bytes")));
    }
    let bytes = std::fs::read(file).map_err(|error| wrong(file, error))?;
    serde_json::from_slice(&bytes).map(Some).map_err(|error| wrong(file, error))
}

pub(super) fn wrong(path: &Path, detail: impl fmt::Display) -> LoadError {
    LoadError::Wrong { path: path.to_owned(), detail: detail.to_string() }
}
