//! CLIP's tokenizer: from `tokenizer.json`, or from the `vocab.json` and `merges.txt` of older folders.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Value, json};
use tokenizers::{AddedToken, Tokenizer};

use super::config::{read, wrong};
use crate::failure::LoadError;

const FIRST: &str = "<|startoftext|>";
const LAST: &str = "<|endoftext|>";
/// The vocabulary that all models share has 1 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// Every prompt becomes as many tokens as the text encoder has positions.
#[derive(Debug)]
pub(super) struct ClipTokenizer {
    tokenizer: Tokenizer,
    first: u32,
    last: u32,
    pad: u32,
    places: usize,
}

/// From `tokenizer_config.json` or `special_tokens_map.json`.
#[derive(Deserialize, Default)]
struct SpecialToken {
    pad_token: Option<Value>,
}

impl ClipTokenizer {
    /// The files of the tokenizer.
    pub(super) fn files(model: &Path) -> Result<Vec<PathBuf>, LoadError> {
        let folder = model.join("tokenizer");
        let (vocab, merges) = (folder.join("vocab.json"), folder.join("merges.txt"));
        for whole in [folder.join("tokenizer.json"), model.join("tokenizer.json")] {
            if whole.is_file() {
                return Ok(vec![whole]);
            }
        }
        if vocab.is_file() && merges.is_file() {
            return Ok(vec![vocab, merges]);
        }
        let what = "tokenizer.json, or vocab.json with merges.txt,".to_owned();
        let hint = "; download the tokenizer folder of the model as well".to_owned();
        Err(LoadError::Missing { path: folder, what, hint })
    }

    pub(super) fn load(model: &Path, places: usize, vocabulary: usize) -> Result<Self, LoadError> {
        let files = Self::files(model)?;
        let path = files[0].as_path();
        let mut tokenizer = match &files[..] {
            [vocab, merges] => from_parts(vocab, merges)?,
            _ => bounded(path).and_then(|bytes| {
                Tokenizer::from_bytes(bytes).map_err(|error| wrong(path, error.to_string()))
            })?,
        };
        // Truncation and padding are done here, whatever the file configures.
        tokenizer.with_padding(None);
        tokenizer.with_truncation(None).map_err(|error| wrong(path, error.to_string()))?;
        let padding = pad(model).unwrap_or_else(|| LAST.to_owned());
        if tokenizer.token_to_id(&padding).is_some() {
            // Prompts that contain the padding token, which is `!` for some models, are tokenised this way everywhere.
            let special = [AddedToken::from(padding.as_str(), true)];
            tokenizer.add_special_tokens(special).map_err(|error| wrong(path, error.to_string()))?;
        }
        let id = |word: &str| {
            tokenizer.token_to_id(word).ok_or_else(|| wrong(path, format!("there is no token {word}")))
        };
        let (first, last, pad) = (id(FIRST)?, id(LAST)?, id(&padding)?);
        let known = tokenizer.get_vocab_size(true);
        if known > vocabulary {
            let detail = format!("it has {known} tokens, but the text encoder has {vocabulary}");
            return Err(wrong(path, detail));
        }
        Ok(ClipTokenizer { tokenizer, first, last, pad, places })
    }

    /// Truncated and padded to the number of positions.
    pub(super) fn of(&self, prompt: &str) -> Result<Vec<u32>, String> {
        let words = self.tokenizer.encode(prompt, false).map_err(|error| error.to_string())?;
        let words = words.get_ids().iter().copied().take(self.places - 2);
        let mut tokens: Vec<u32> = std::iter::once(self.first).chain(words).collect();
        tokens.push(self.last);
        tokens.resize(self.places, self.pad);
        Ok(tokens)
    }

    #[cfg(test)]
    pub(super) fn to_json(&self) -> String {
        self.tokenizer.to_string(false).unwrap()
    }
}

/// CLIP's byte-pair encoding: lower-case words, bytes as characters, `</w>` at the end of a word.
fn from_parts(vocab: &Path, merges: &Path) -> Result<Tokenizer, LoadError> {
    let words: Value =
        serde_json::from_slice(&bounded(vocab)?).map_err(|error| wrong(vocab, error.to_string()))?;
    let text = String::from_utf8(bounded(merges)?).map_err(|error| wrong(merges, error.to_string()))?;
    let is_pair = |line: &&str| !line.trim().is_empty() && !line.starts_with("#version");
    let pairs: Vec<&str> = text.lines().filter(is_pair).collect();
    let special = |word: &str| {
        let id = words.get(word)?;
        let (no, yes) = (false, true);
        Some(json!({"id": id, "content": word, "special": yes,
            "single_word": no, "lstrip": no, "rstrip": no, "normalized": no}))
    };
    let special: Vec<Value> = [FIRST, LAST].into_iter().filter_map(special).collect();
    let pattern =
        r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
    let whole = json!({
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "NFC"},
            {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
            {"type": "Lowercase"},
        ]},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Removed", "invert": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "model": {
            "type": "BPE", "vocab": words, "merges": pairs, "unk_token": LAST,
            "continuing_subword_prefix": "", "end_of_word_suffix": "</w>", "fuse_unk": false,
        },
    });
    Tokenizer::from_bytes(whole.to_string()).map_err(|error| wrong(vocab, error.to_string()))
}

fn pad(model: &Path) -> Option<String> {
    let folder = model.join("tokenizer");
    for name in ["special_tokens_map.json", "tokenizer_config.json"] {
        let special: SpecialToken = read(&folder.join(name)).unwrap_or_default();
        let word = match special.pad_token {
            Some(Value::String(word)) => Some(word),
            Some(Value::Object(token)) => token.get("content").and_then(Value::as_str).map(str::to_owned),
            _ => None,
        };
        if word.is_some() {
            return word;
        }
    }
    None
}

fn bounded(path: &Path) -> Result<Vec<u8>, LoadError> {
    let length = fs::metadata(path).map_err(|error| wrong(path, error.to_string()))?.len();
    if length > FILE_BYTES_MAX {
        return Err(wrong(path, format!("{length} bytes is too large for a vocabulary")));
    }
    fs::read(path).map_err(|error| wrong(path, error.to_string()))
}
