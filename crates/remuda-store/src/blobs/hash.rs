//! The name of a blob: `blake3:` and 64 lower-case hexadecimal digits. An untrusted name becomes a path only through this
//! type, which accepts no other spelling.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

const SCHEME: &str = "blake3:";
const DIGITS: usize = 64;

/// The BLAKE3 hash of a blob's content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "Cow<'_, str>", into = "String")]
pub struct BlobHash([u8; 32]);

impl BlobHash {
    pub fn from_content(content: &[u8]) -> BlobHash {
        blake3::hash(content).into()
    }

    /// The hash and the length of everything the reader returns. Blocks while reading.
    pub fn from_reader(reader: impl io::Read) -> io::Result<(BlobHash, u64)> {
        let mut hasher = blake3::Hasher::new();
        hasher.update_reader(reader)?;
        Ok((hasher.finalize().into(), hasher.count()))
    }

    /// The number of its subfolder.
    pub(super) fn shard(self) -> u8 {
        self.0[0]
    }

    /// The file name in its subfolder.
    pub(super) fn file_name(self) -> String {
        self.hex()[2..].to_owned()
    }

    /// The hash for a file name, if it is the name of a blob.
    pub(super) fn from_file_name(shard: u8, name: &str) -> Option<BlobHash> {
        format!("{SCHEME}{shard:02x}{name}").parse().ok()
    }

    /// The digits without `blake3:`.
    pub fn hex(self) -> String {
        hex::encode(self.0)
    }
}

impl From<blake3::Hash> for BlobHash {
    fn from(hash: blake3::Hash) -> Self {
        BlobHash(hash.into())
    }
}

/// A text that is not the name of a blob.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not the name of a blob: expected blake3: and 64 lower-case hexadecimal digits")]
pub struct InvalidBlobHash(String);

impl FromStr for BlobHash {
    type Err = InvalidBlobHash;

    fn from_str(text: &str) -> Result<Self, InvalidBlobHash> {
        let bad = || InvalidBlobHash(text.chars().take(80).collect());
        let digits = text.strip_prefix(SCHEME).ok_or_else(bad)?;
        // `hex` accepts upper-case digits, but a blob has only one name.
        if digits.bytes().any(|digit| digit.is_ascii_uppercase()) {
            return Err(bad());
        }
        let mut bytes = [0; 32];
        hex::decode_to_slice(digits, &mut bytes).map_err(|_| bad())?;
        Ok(BlobHash(bytes))
    }
}

impl TryFrom<Cow<'_, str>> for BlobHash {
    type Error = InvalidBlobHash;

    fn try_from(text: Cow<'_, str>) -> Result<Self, InvalidBlobHash> {
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

/// All blobs named anywhere in a JSON text. It may find too many, but never too few, because named blobs are protected from
/// deletion.
pub fn find_blob_hashes(json: &str) -> BTreeSet<BlobHash> {
    // Letters may be escaped; reserializing removes the escapes.
    let unescaped = if json.contains("\\u") { unescape(json) } else { None };
    let text = unescaped.as_deref().unwrap_or(json);
    let names = text.match_indices(SCHEME).filter_map(|(at, _)| text.get(at..at + SCHEME.len() + DIGITS));
    names.filter_map(|name| name.parse().ok()).collect()
}

fn unescape(json: &str) -> Option<String> {
    let value: serde_json::Value = serde_json::from_str(json).ok()?;
    Some(value.to_string())
}
