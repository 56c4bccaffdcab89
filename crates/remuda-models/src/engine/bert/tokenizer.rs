//! Tokenises texts on the callers' threads.

use std::path::PathBuf;

use tokenizers::{PostProcessor, Tokenizer, TruncationParams};

use super::config::{Config, wrong};
use crate::backend::Prepare;
use crate::failure::{LoadError, ModelError};
use crate::request::{ModelRequest, RequestPart};

/// The golden text.
const GOLDEN: &str = "The rider takes a fresh horse from the remuda.";

pub(super) struct BertTokenizer {
    tokenizer: Tokenizer,
    lower_case: bool,
    golden: Vec<u32>,
}

pub(super) fn file(config: &Config) -> Result<PathBuf, LoadError> {
    let file = config.folder.join("tokenizer.json");
    if file.exists() {
        return Ok(file);
    }
    let hint = "; save the model with a fast tokenizer of transformers".to_owned();
    Err(LoadError::Missing { path: config.folder.clone(), what: "tokenizer.json".to_owned(), hint })
}

impl BertTokenizer {
    pub(super) fn read(config: &Config) -> Result<Self, LoadError> {
        let file = file(config)?;
        let bytes = std::fs::read(&file).map_err(|error| wrong(&file, error))?;
        let mut tokenizer = Tokenizer::from_bytes(bytes).map_err(|error| wrong(&file, error))?;
        let known = tokenizer.get_vocab_size(true);
        if known > config.vocabulary {
            let detail = format!("{known} tokens, but the model's vocabulary has {}", config.vocabulary);
            return Err(wrong(&file, detail));
        }
        let added = tokenizer.get_post_processor().map_or(0, |last| last.added_tokens(false));
        if config.tokens_max <= added {
            let detail =
                format!("it adds {added} tokens to every text, but the limit is {}", config.tokens_max);
            return Err(wrong(&file, detail));
        }
        // The file may define its own padding and truncation.
        tokenizer.with_padding(None);
        let cut = TruncationParams { max_length: config.tokens_max, ..TruncationParams::default() };
        tokenizer.with_truncation(Some(cut)).map_err(|error| wrong(&file, error))?;
        let mut tokenizer = BertTokenizer { tokenizer, lower_case: config.lower_case, golden: Vec::new() };
        tokenizer.golden = tokenizer.tokens(GOLDEN).map_err(|error| wrong(&file, error))?;
        Ok(tokenizer)
    }

    pub(super) fn tokens(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = if self.lower_case {
            self.tokenizer.encode_fast(text.to_lowercase(), true)
        } else {
            self.tokenizer.encode_fast(text, true)
        };
        let tokens = encoding.map_err(|error| error.to_string())?.get_ids().to_vec();
        if tokens.is_empty() { Err("it has no tokens".to_owned()) } else { Ok(tokens) }
    }
}

impl Prepare for BertTokenizer {
    fn prepare(&self, request: ModelRequest) -> Result<Vec<RequestPart>, ModelError> {
        let ModelRequest::TextEmbedding { texts } = request else {
            let asked = request.capability();
            return Err(ModelError::Input(format!("a text embedding model got a request for {asked}")));
        };
        let refused = |place: usize, why: String| ModelError::Input(format!("text {}: {why}", place + 1));
        let parts = texts.iter().enumerate();
        parts
            .map(|(place, text)| {
                self.tokens(text).map(RequestPart::Tokens).map_err(|why| refused(place, why))
            })
            .collect()
    }

    fn golden(&self) -> RequestPart {
        RequestPart::Tokens(self.golden.clone())
    }
}
