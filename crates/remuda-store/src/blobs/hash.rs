//! What a blob is called. A name from outside becomes a path only through here, and only in the one spelling that
//! content has: `blake3:` and 64 lower-case hex digits.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt::{self, Write};
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const SCHEME: &str = "blake3:";
const DIGITS: usize = 64;

/// The name of a content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    pub fn of(content: &[u8]) -> BlobHash {
        blake3::hash(content).into()
    }

    /// Of everything that is still to be read, and how much that was. Blocks while it reads.
    pub fn of_reader(reader: impl io::Read) -> io::Result<(BlobHash, u64)> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok((hasher.finalize().into(), hasher.count()))
    }

    /// The folder it lies in.
    pub(super) fn shard(self) -> u8 {
        self.0[0]
    }

    /// What it is called in there.
    pub(super) fn file_name(self) -> String {
        self.hex()[2..].to_owned()
    }

    /// The blob behind a file's name, if it is one.
    pub(super) fn of_file_name(shard: u8, name: &str) -> Option<BlobHash> {
        format!("{SCHEME}{shard:02x}{name}").parse().ok()
    }

    /// The digits alone.
    pub fn hex(self) -> String {
        self.0.iter().fold(String::with_capacity(DIGITS), |mut text, byte| {
            write!(text, "{byte:02x}").expect("a string takes whatever is written to it");
            text
        })
    }
}

impl From<blake3::Hash> for BlobHash {
    fn from(hash: blake3::Hash) -> Self {
        BlobHash(hash.into())
    }
}

/// What no blob is called.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a blob: expected blake3: and 64 lower-case hex digits")]
pub struct BadHash(String);

impl FromStr for BlobHash {
    type Err = BadHash;

    fn from_str(text: &str) -> Result<Self, BadHash> {
        let bad = || BadHash(text.chars().take(80).collect());
        let digits = text.strip_prefix(SCHEME).ok_or_else(bad)?.as_bytes();
        if digits.len() != DIGITS {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = digit(pair[0]).zip(digit(pair[1])).map(|(high, low)| high << 4 | low).ok_or_else(bad)?;
        }
        Ok(BlobHash(bytes))
    }
}

fn digit(letter: u8) -> Option<u8> {
    match letter {
        b'0'..=b'9' => Some(letter - b'0'),
        b'a'..=b'f' => Some(letter - b'a' + 10),
        _ => None,
    }
}

impl TryFrom<Cow<'_, str>> for BlobHash {
    type Error = BadHash;

    fn try_from(text: Cow<'_, str>) -> Result<Self, BadHash> {
        text.parse()
    }
}

impl From<BlobHash> for String {
    fn from(hash: BlobHash) -> String {
        hash.to_string()
    }
}

impl fmt::Display for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.hex())
    }
}

impl fmt::Debug for BlobHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Every blob that a JSON text names, wherever in it. Too many rather than too few: who is named is kept.
pub fn named_in(json: &str) -> BTreeSet<BlobHash> {
    // Letters may be written as escapes; written anew, they are not.
    let plain = if json.contains("\\u") { rewritten(json) } else { None };
    let text = plain.as_deref().unwrap_or(json);
    let names = text.match_indices(SCHEME).filter_map(|(at, _)| text.get(at..at + SCHEME.len() + DIGITS));
    names.filter_map(|name| name.parse().ok()).collect()
}

fn rewritten(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(value.to_string())
}
