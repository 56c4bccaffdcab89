//! Tokenises texts with the merges in the file or a `tokenizer.json` next to it.

use std::path::Path;

use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::PreTokenizerWrapper;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{AddedToken, SplitDelimiterBehavior, Tokenizer};

use super::vocab::{TokenEncoding, tokens};
use crate::engine::gguf::Gguf;
use crate::failure::LoadError;

/// The pre-tokenizer of Qwen 2 and 3: digits one by one.
const QWEN: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The pre-tokenizer of Llama 3: digits in groups of three.
const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The token types matched verbatim in a text: control and user-defined.
const WHOLE: [i64; 2] = [3, 4];

#[derive(Debug)]
pub(super) struct ChatTokenizer {
    tokenizer: Tokenizer,
    /// The token every prompt begins with.
    begin: Option<u32>,
    /// The largest number of bytes per token, so that a text that cannot fit is refused without tokenising it.
    longest: usize,
}

impl ChatTokenizer {
    pub(super) fn of(gguf: &Gguf) -> Result<Self, LoadError> {
        let tokens = tokens(gguf)?;
        let begin = match gguf.truth("tokenizer.ggml.add_bos_token") {
            Some(false) => None,
            // SentencePiece models add a start token unless configured otherwise, the others only if configured.
            None if TokenEncoding::of(gguf)? == TokenEncoding::Bytes => None,
            None | Some(true) => {
                gguf.integer("tokenizer.ggml.bos_token_id").and_then(|token| u32::try_from(token).ok())
            }
        };
        let beside = gguf.path.with_file_name("tokenizer.json");
        let tokenizer = match beside.is_file() {
            true => read(&beside, tokens.len())?,
            false => merged(gguf, tokens)?,
        };
        Ok(ChatTokenizer { tokenizer, begin, longest: tokens.iter().map(String::len).max().unwrap_or(1) })
    }

    /// The smallest number of tokens for a text of this many bytes.
    pub(super) fn at_least(&self, bytes: usize) -> usize {
        bytes / self.longest.max(1)
    }

    pub(super) fn cut(&self, text: &str) -> Result<Vec<u32>, String> {
        let cut = self.tokenizer.encode_fast(text, false).map_err(|error| error.to_string())?;
        let begin = self.begin.filter(|begin| cut.get_ids().first() != Some(begin));
        Ok(begin.into_iter().chain(cut.get_ids().iter().copied()).collect())
    }
}

fn read(path: &Path, tokens: usize) -> Result<Tokenizer, LoadError> {
    let wrong = |detail: String| LoadError::Wrong { path: path.to_owned(), detail };
    let tokenizer = Tokenizer::from_file(path).map_err(|error| wrong(error.to_string()))?;
    match tokenizer.get_vocab_size(true) {
        own if own <= tokens => Ok(tokenizer),
        own => Err(wrong(format!("it has {own} tokens but the model has {tokens}"))),
    }
}

fn merged(gguf: &Gguf, tokens: &[String]) -> Result<Tokenizer, LoadError> {
    let wrong = |detail: String| LoadError::Wrong { path: gguf.path.clone(), detail };
    let unsupported = |what: String| LoadError::Unsupported {
        path: gguf.path.clone(),
        what,
        hint: "; put the model's tokenizer.json next to it".to_owned(),
    };
    if TokenEncoding::of(gguf)? != TokenEncoding::Bytes {
        return Err(unsupported("a SentencePiece tokenizer".to_owned()));
    }
    let merges = gguf.texts("tokenizer.ggml.merges").unwrap_or_default().iter().map(|merge| {
        let two = merge.split_once(' ').map(|(left, right)| (left.to_owned(), right.to_owned()));
        two.ok_or_else(|| wrong(format!("{merge:?} merges nothing")))
    });
    let kind = gguf.text("tokenizer.ggml.pre").unwrap_or("default");
    let vocab: Vocab = tokens.iter().cloned().zip(0..).collect();
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges.collect::<Result<_, _>>()?)
        .ignore_merges(kind == "llama-bpe")
        .build()
        .map_err(|error| wrong(format!("its tokenizer: {error}")))?;
    let mut tokenizer = Tokenizer::new(model);
    let pre = before(kind).ok_or_else(|| unsupported(format!("the pre-tokenizer {kind}")))?;
    tokenizer.with_pre_tokenizer(Some(pre));
    if kind == "qwen2" {
        tokenizer.with_normalizer(Some(NFC)).map_err(|error| wrong(error.to_string()))?;
    }
    let kinds = gguf.integers("tokenizer.ggml.token_type").unwrap_or_default();
    let whole = tokens.iter().zip(kinds).filter(|(text, kind)| WHOLE.contains(kind) && !text.is_empty());
    let whole = whole.map(|(text, _)| AddedToken::from(text.clone(), true).normalized(false));
    tokenizer.add_special_tokens(whole).map_err(|error| wrong(error.to_string()))?;
    Ok(tokenizer)
}

/// The pre-tokenizer with the name the file uses.
fn before(kind: &str) -> Option<PreTokenizerWrapper> {
    let bytes = |regex| PreTokenizerWrapper::ByteLevel(ByteLevel::new(false, true, regex));
    let split = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).ok()?;
        let parts = vec![PreTokenizerWrapper::Split(split), bytes(false)];
        Some(PreTokenizerWrapper::Sequence(Sequence::new(parts)))
    };
    match kind {
        "default" | "gpt-2" => Some(bytes(true)),
        "smollm" => {
            let digits = PreTokenizerWrapper::Digits(Digits::new(true));
            Some(PreTokenizerWrapper::Sequence(Sequence::new(vec![digits, bytes(true)])))
        }
        "qwen2" => split(QWEN),
        "llama-bpe" | "llama3" => split(LLAMA),
        _ => None,
    }
}
