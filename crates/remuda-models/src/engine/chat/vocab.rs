//! The bytes of each token, and which tokens end an answer.
//!
//! Read from the file's token list, so that a copy needs no tokenizer: a token may be part of a character, and only
//! bytes can express that.

use std::collections::BTreeMap;

use crate::engine::gguf::Gguf;
use crate::failure::LoadError;

/// End-of-turn tokens by name, for files that list only one of them by id.
const ENDS: [&str; 7] =
    ["<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<end_of_turn>", "<|end|>", "<|end_of_text|>", "</s>"];

/// How tokens are written in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TokenEncoding {
    /// `gpt2`: every byte is mapped to a printable character.
    Bytes,
    /// `llama` (SentencePiece): characters, ▁ for a space, `<0x0A>` for a byte.
    Characters,
}

/// The token type without text.
const CONTROL: i64 = 3;

#[derive(Debug)]
pub(super) struct Vocab {
    bytes: Vec<Box<[u8]>>,
    ends: Vec<u32>,
}

impl Vocab {
    pub(super) fn of(gguf: &Gguf) -> Result<Self, LoadError> {
        let tokens = tokens(gguf)?;
        let spelling = TokenEncoding::of(gguf)?;
        let kinds = gguf.integers("tokenizer.ggml.token_type").unwrap_or_default();
        let letters = letters();
        let bytes = tokens.iter().enumerate().map(|(token, text)| match kinds.get(token) {
            Some(&CONTROL) => Box::default(),
            _ => spelling.bytes(text, &letters),
        });
        let named = ["eos", "eot", "eom"].map(|end| gguf.integer(&format!("tokenizer.ggml.{end}_token_id")));
        let named = named.into_iter().flatten().filter_map(|token| u32::try_from(token).ok());
        let known = tokens.iter().zip(0..).filter(|(text, _)| ENDS.contains(&text.as_str()));
        Ok(Vocab { ends: named.chain(known.map(|(_, token)| token)).collect(), bytes: bytes.collect() })
    }

    pub(super) fn bytes_of_token(&self, token: u32) -> &[u8] {
        self.bytes.get(token as usize).map_or(&[], |bytes| bytes)
    }

    pub(super) fn ends(&self, token: u32) -> bool {
        self.ends.contains(&token)
    }
}

pub(super) fn tokens(gguf: &Gguf) -> Result<&[String], LoadError> {
    gguf.texts("tokenizer.ggml.tokens").filter(|tokens| !tokens.is_empty()).ok_or_else(|| LoadError::Wrong {
        path: gguf.path.clone(),
        detail: "its metadata has no list of tokens".to_owned(),
    })
}

impl TokenEncoding {
    pub(super) fn of(gguf: &Gguf) -> Result<Self, LoadError> {
        match gguf.text("tokenizer.ggml.model") {
            Some("gpt2") => Ok(TokenEncoding::Bytes),
            Some("llama") => Ok(TokenEncoding::Characters),
            other => Err(LoadError::Unsupported {
                path: gguf.path.clone(),
                what: format!("a tokenizer of type {}", other.unwrap_or("none")),
                hint: "; supported are gpt2, and llama with a tokenizer.json next to it".to_owned(),
            }),
        }
    }

    fn bytes(self, text: &str, letters: &BTreeMap<char, u8>) -> Box<[u8]> {
        match self {
            TokenEncoding::Bytes => {
                let spelt: Option<Vec<u8>> =
                    text.chars().map(|letter| letters.get(&letter).copied()).collect();
                spelt.unwrap_or_else(|| text.as_bytes().to_vec()).into()
            }
            TokenEncoding::Characters => {
                let byte = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
                match byte.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                    Some(byte) => Box::new([byte]),
                    None => text.replace('▁', " ").into_bytes().into(),
                }
            }
        }
    }
}

/// GPT-2's alphabet: printable bytes are themselves, the others follow from 256 on.
fn letters() -> BTreeMap<char, u8> {
    let printable = |byte: &u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let others = (0..=255_u8).filter(|byte| !printable(byte)).zip(256..);
    (0..=255_u8)
        .filter(printable)
        .map(|byte| (char::from(byte), byte))
        .chain(others.filter_map(|(byte, letter)| char::from_u32(letter).map(|letter| (letter, byte))))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{TokenEncoding, letters};

    #[test]
    fn every_byte_has_its_own_character() {
        let letters = letters();
        assert_eq!(letters.len(), 256);
        assert_eq!(*TokenEncoding::Bytes.bytes("ĠHiĊ", &letters), *b" Hi\n");
        assert_eq!(*TokenEncoding::Characters.bytes("▁Hi", &letters), *b" Hi");
        assert_eq!(*TokenEncoding::Characters.bytes("<0x0A>", &letters), *b"\n");
    }
}
